"""A report as one value, and the report of the day."""

from __future__ import annotations

import json

from adws.adw_modules.housekeeping.inventory import Orphan
from adws.adw_modules.reports import reports as reports_module
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

NOW = "2026-01-31T09:00:00.000000Z"
DAYS = (
    DayOutcomes(day="2026-01-30", completed=2, failed=1),
    DayOutcomes(day="2026-01-31", completed=1, abandoned=1, rolled_back=1),
)
COSTS = (
    CostSum(key="build", cost_usd=1.5, attempts=3, unknown=1, tokens=10),
    CostSum(key="test", cost_usd=0.5, attempts=2, subscription=1, estimated=1, tokens=5),
)
FAILURE = FailureGroup(
    phase="build", category="transient", message="no net\nat all", count=7, last_at="now", adw_id="1a2b3c4d"
)


def stuck(adw_id: str) -> StuckNow:
    return StuckNow(
        subject=Subject(adw_id=adw_id, title="Add a button"),
        kind=StuckKind.SILENT,
        phase="build",
        since="then",
        why="its worker is silent",
        commands=("adw admin recover",),
    )


# --- a report --------------------------------------------------------------------------------------------------


def test_a_report_adds_up_its_days_and_its_phases():
    result = Report(made_at=NOW, outcomes=DAYS, costs_by_phase=COSTS)

    assert result.ended == DayOutcomes(day="total", completed=3, failed=1, abandoned=1, rolled_back=1)
    assert reports_module.rate_text(result.ended) == "50%: 3 of 6 completed"
    assert result.spent == CostSum(
        key="total", cost_usd=2.0, attempts=5, unknown=1, subscription=1, estimated=1, tokens=15
    )
    assert reports_module.rate_text(Report(made_at=NOW).ended) == "nothing ended"


def test_a_report_is_json_for_programs():
    cost = WorkflowCost(adw_id="1a2b3c4d", workflow="sdlc", outcome="", cost_usd=1.0, attempts=2, last_day="2026-01-31")
    result = Report(
        made_at=NOW,
        since="2026-01-30",
        states={"failed": Count(number=2)},
        outcomes=DAYS,
        attempts=[PhaseAttempts(phase="build", needed={1: 1, 3: 1}, by_status={"succeeded": 2}, seconds=1.5)],
        costs_by_phase=COSTS,
        costliest=[cost],
        failures=[FAILURE],
        stuck=[stuck("1a2b3c4d")],
        orphans=[Orphan(kind="branch", name="x", adw_id="", why="it is over")],
        problems=["the remote did not answer"],
    )

    told = json.loads(json.dumps(result.to_json()))

    assert (told["since"], told["workflow"], told["states"]) == ("2026-01-30", None, {"failed": 2})
    assert (told["outcomes"]["success_rate"], told["outcomes"]["by_day"][0]["day"]) == (0.5, "2026-01-30")
    assert told["attempts"][0]["needed"] == {"1": 1, "3": 1}
    assert told["attempts"][0]["mean_needed"] == 2.0
    assert (told["costs"]["cost_usd"], told["costs"]["by_workflow"][0]["adw_id"]) == (2.0, "1a2b3c4d")
    assert told["failures"][0]["count"] == 7
    assert (told["stuck"][0]["kind"], told["stuck"][0]["commands"]) == ("silent", ["adw admin recover"])
    assert (told["orphans"][0]["kind"], told["problems"]) == ("branch", ["the remote did not answer"])


def test_orphans_that_nobody_looked_for_are_not_none():
    assert Report(made_at=NOW).to_json()["orphans"] is None
    assert Report(made_at=NOW, orphans=()).to_json()["orphans"] == []


# --- the report of the day -------------------------------------------------------------------------------------


def test_a_day_says_what_stands_and_ended_and_leaves_states_without_a_workflow_out():
    states = {"failed": Count(number=2), "building": Count(number=1), "paused": Count(number=0)}
    day = Report(made_at=NOW, since="2026-01-30", states=states, outcomes=DAYS)

    assert reports_module.report(day, waiting=3).splitlines()[:5] == [
        "Workflows by state:",
        "  building: 1",
        "  failed: 2",
        "Ended since 2026-01-30: 50%: 3 of 6 completed",
        "Runs that wait for a worker: 3",
    ]
    assert reports_module.headline(day, waiting=3) == "3 workflows, 3 runs waiting, 0.00 USD in a day"
    assert reports_module.report(Report(made_at=NOW, since="2026-01-30"), waiting=0).splitlines() == [
        "Workflows by state:",
        "  none",
        "Ended since 2026-01-30: nothing ended",
        "Runs that wait for a worker: 0",
        "Spent since 2026-01-30: 0.00 USD in 0 attempts",
    ]


def test_those_that_do_not_move_are_named_up_to_a_number():
    every = [stuck(f"id{number}") for number in range(12)]
    day = Report(made_at=NOW, since="2026-01-30", stuck=every, costs_by_phase=COSTS, failures=[FAILURE])

    lines = reports_module.report(day, waiting=0).splitlines()

    assert "Spent since 2026-01-30: 2.00 USD in 5 attempts" in lines
    assert lines[-14:-12] == ["Failed attempts:", "  7 x build, transient: no net at all"]
    assert lines[-12] == "Not moving:"
    assert lines[-11] == "  id0: its worker is silent; adw status id0"
    assert lines[-1] == "  and 2 more"
    assert "12 stuck" in reports_module.headline(day, waiting=0)


def test_a_count_that_stopped_has_a_plus_and_no_rate_is_not_a_rate_of_0():
    assert (str(Count(number=12345)), str(Count(number=10_000, is_more=True))) == ("12,345", "10,000+")
    assert (DAYS[0].success_rate, DayOutcomes(day="2026-01-31").success_rate) == (2 / 3, None)
    assert PhaseAttempts(phase="build").mean_needed is None


def test_a_message_is_one_line_that_is_not_too_long():
    assert reports_module.short("a\n b") == "a b"
    assert reports_module.short(" ") == "it says nothing"
    assert reports_module.short("x" * 100) == f"{'x' * 77}..."
