"""
The wiring of reports.

Apart from `app` because of its length.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules.coordination.reporting import Reporting, ReportingParts
from adws.adw_modules.stuck_rules import StuckTerms

if TYPE_CHECKING:
    from adws import config
    from adws.adw_modules.interfaces import Clock
    from adws.adw_modules.interfaces_coordination import Runners
    from adws.adw_modules.interfaces_reports import Reports
    from adws.adw_modules.process import SystemProcesses
    from adws.app_tidy import TidyRoom


class HomeParts(Protocol):
    """What is needed of a home (`app.App`)."""

    @property
    def settings(self) -> config.Settings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def reports(self) -> Reports: ...
    @property
    def runners(self) -> Runners: ...
    @property
    def processes(self) -> SystemProcesses: ...
    @property
    def tidy(self) -> TidyRoom: ...


def open_reporting(app: HomeParts) -> Reporting:
    """Return what makes the reports of a home."""
    minutes = app.settings.cron_stuck_minutes

    return Reporting(
        ReportingParts(
            clock=app.clock,
            reports=app.reports,
            runners=app.runners,
            verdict=app.processes.verdict,
            collector=lambda: app.tidy.collector,
            terms=StuckTerms(
                lease_seconds=app.settings.lease_ttl_seconds,
                after=timedelta(minutes=minutes) if minutes else None,
            ),
        )
    )
