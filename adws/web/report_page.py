"""
A report as one self-contained page with embedded pictures and styles and without scripts.

It is rendered like the pages of the dashboard: everything is escaped, and every text is redacted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from markupsafe import Markup

from adws.adw_modules import timestamps
from adws.adw_modules.reports import plots
from adws.web.dashboard import frame
from adws.web.dashboard.frame import Frame, Viewer

if TYPE_CHECKING:
    from adws.adw_modules.reports.reports import Report
    from adws.config.settings import Settings

#: The most phases whose attempts are drawn.
_MOST_PHASES = 12


def page(report: Report, *, redact: Callable[[str], str], settings: Settings) -> str:
    """Return the report as HTML."""
    made_at = timestamps.parse(report.made_at)
    first = report.since or (report.outcomes[0].day if report.outcomes else report.made_at)
    days = plots.days_of(first, report.made_at)

    def say(text: str) -> str:
        return frame.plain(redact(text))

    pictures = {
        "outcomes": plots.outcomes_plot(report.outcomes, days),
        "success": plots.success_plot(report.outcomes, days),
        "costs": plots.costs_plot(report.costs_by_day, days, budget=settings.quota_max_cost_per_day),
        "phase_costs": plots.phase_costs_plot(report.costs_by_phase, say=say),
        "failures": plots.failures_plot(report.failures, say=say),
    }
    tried = [one for one in report.attempts if one.needed][:_MOST_PHASES]
    needed = [
        (one, Markup(plots.attempts_plot(one, key=f"needed-{number}", say=say)))  # noqa: S704 - escaped there
        for number, one in enumerate(tried)
    ]

    return Frame(now=lambda: made_at, redact=redact, is_read_only=True).text(
        "report.html",
        path="",
        viewer=Viewer(),
        report=report,
        days=days,
        style=Markup(frame.text("adw.css")),  # noqa: S704 - our own file
        pictures={name: Markup(svg) for name, svg in pictures.items()},  # noqa: S704 - escaped where they are made
        needed=needed,
    )
