"""The report of the day."""

from __future__ import annotations

from adws.adw_modules import report_rules
from adws.adw_modules.report_rules import DayCounts


def test_a_day_without_work_says_so():
    told = report_rules.report(DayCounts(since="yesterday"))

    assert told == (
        "Workflows by state:\n  none\nRuns that wait for a worker: 0\nSpent since yesterday: 0.00 USD in 0 attempts"
    )


def test_states_without_a_workflow_are_left_out():
    counts = DayCounts(since="yesterday", by_state={"failed": 2, "building": 1, "paused": 0}, waiting=3)

    assert report_rules.report(counts).splitlines()[:4] == [
        "Workflows by state:",
        "  building: 1",
        "  failed: 2",
        "Runs that wait for a worker: 3",
    ]
    assert report_rules.headline(counts) == "3 workflows, 3 runs waiting, 0.00 USD in a day"


def test_those_that_do_not_move_are_named_up_to_a_number():
    counts = DayCounts(since="yesterday", stuck=[f"id{number}" for number in range(12)], cost_usd=1.5, attempts=4)

    lines = report_rules.report(counts).splitlines()

    assert "Spent since yesterday: 1.50 USD in 4 attempts" in lines
    assert lines[-12] == "Not moving:"
    assert lines[-11] == "  id0: adw explain id0"
    assert lines[-1] == "  and 2 more"
    assert "12 stuck" in report_rules.headline(counts)
