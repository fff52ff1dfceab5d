"""The page that `adw report --html` writes, in a real browser: it stands alone, fits, and keeps nobody out."""

from __future__ import annotations

import pytest

from adws.adw_modules.housekeeping.inventory import Orphan
from adws.adw_modules.reports.model import (
    CostSum,
    Count,
    DayOutcomes,
    FailureGroup,
    PhaseAttempts,
    StuckKind,
    StuckNow,
    Subject,
    WorkflowCost,
)
from adws.adw_modules.reports.reports import Report
from adws.config import load as config_load
from adws.web import report_page
from tests.browser_plugin import flaws, flaws_in_every_look

HOSTILE = "<script>document.title = 'taken'</script>\u202e<img src=http://adw.invalid/x onerror=1> " + "long" * 400
MOMENT = "2026-01-31T09:00:00.000000Z"
DAYS = [f"2026-01-{day:02}" for day in range(1, 32)]
SUBJECT = Subject(adw_id="1a2b3c4d", title=HOSTILE, workflow="sdlc", state="building")

REPORT = Report(
    made_at=MOMENT,
    since=DAYS[0],
    workflow=HOSTILE,
    states={"building": Count(number=1)},
    outcomes=[DayOutcomes(day=day, completed=3, failed=1, rolled_back=1) for day in DAYS[::2]],
    attempts=[PhaseAttempts(phase=HOSTILE, needed={1: 9, 2: 3, 7: 1}, by_status={"succeeded": 13}, seconds=99.0)],
    costs_by_phase=[CostSum(key=HOSTILE, cost_usd=3.5, attempts=4), CostSum(key="ship", cost_usd=0.0, attempts=1)],
    costs_by_day=[CostSum(key=day, cost_usd=4.25, attempts=2) for day in DAYS[::3]],
    costliest=[
        WorkflowCost(adw_id="1a2b3c4d", workflow="sdlc", outcome=name, cost_usd=1.0, attempts=2, last_day=DAYS[-1])
        for name in ("", "completed", "failed", "abandoned", "rolled_back")
    ],
    failures=[
        FailureGroup(phase="build", category="rate_limit", message=HOSTILE, count=7, last_at=MOMENT, adw_id="1a2b3c4d")
    ],
    stuck=[
        StuckNow(
            subject=SUBJECT,
            kind=StuckKind.SILENT,
            phase="build",
            since=MOMENT,
            why=HOSTILE,
            commands=("adw admin recover",),
        )
    ],
    orphans=[Orphan(kind="branch", name=HOSTILE, adw_id="", why="it is over")],
    problems=["the remote did not answer"],
)


@pytest.fixture
def make(home):
    """Make the page of a report."""
    settings = config_load.load(env={"ADW_HOME": str(home)}, cwd=home)

    return lambda report: report_page.page(report, redact=str, settings=settings)


def test_a_report_full_of_hostile_texts_is_harmless_fits_and_is_accessible(browsing, make):
    page = browsing.page("about:blank")

    page.set_content(make(REPORT))

    assert page.title().startswith(f"Report since {DAYS[0]}")
    assert page.locator("svg.plot").count() == 6
    assert page.get_by_role("img", name="Success rate").count() == 1
    assert page.locator("main script, main img").count() == 0
    assert flaws_in_every_look(page) == []


def test_an_empty_report_says_that_there_is_nothing(browsing, make):
    page = browsing.page("about:blank")

    page.set_content(make(Report(made_at=MOMENT)))

    for text in ("Nothing ended.", "No attempt has ended.", "No attempt failed.", "Nothing is stuck."):
        assert page.get_by_text(text, exact=True).count() == 1
    assert page.title() == "Report of everything · adw"
    assert flaws(page) == []
