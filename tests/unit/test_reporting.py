"""Making reports of parts in memory."""

from __future__ import annotations

from datetime import timedelta

import pytest

from adws.adw_modules.coordination.reporting import Reporting, ReportingParts
from adws.adw_modules.demands import Offer
from adws.adw_modules.document import AttemptRecord
from adws.adw_modules.gc_rules import Orphan
from adws.adw_modules.interfaces_reports import StuckKind, Window
from adws.adw_modules.runs import NewRun
from adws.adw_modules.stuck_rules import StuckTerms
from adws.testing import memory_parts
from tests.contracts.report_contract import TODAY, moment, phase, put, tried
from tests.contracts.worlds import FIRST, SECOND, make_owner

ORPHAN = Orphan(kind="branch", name="adw-1", adw_id="", why="it is over")


class Collector:
    problems: list[str]

    def __init__(self) -> None:
        self.problems = []

    def find(self):
        self.problems.append("the remote did not answer")
        return (ORPHAN,)


@pytest.fixture
def parts():
    return memory_parts()


@pytest.fixture
def reporting(parts):
    return Reporting(
        ReportingParts(
            clock=parts.clock,
            reports=parts.reports,
            runners=parts.runners,
            verdict=parts.processes.verdict,
            collector=Collector,
            terms=StuckTerms(after=timedelta(hours=2)),
        )
    )


def test_a_report_has_everything(parts, reporting):
    put(parts, FIRST, state="completed", phases=[phase(attempts=tried("succeeded", report={"cost_usd": 1.0}))])

    found = reporting.report(Window(since=moment()))

    assert (found.made_at, found.since) == ("2026-01-31T09:00:00.000000Z", TODAY)
    assert (found.ended.completed, found.spent.cost_usd, found.costliest[0].adw_id) == (1, 1.0, FIRST)
    assert [one.key for one in found.costs_by_day] == [TODAY]
    assert (found.attempts[0].successes, found.states["completed"].number) == (1, 1)
    assert (found.orphans, found.problems) == ((ORPHAN,), ("the remote did not answer",))


def test_looking_for_left_overs_can_be_left_out(reporting):
    assert reporting.report(Window(), with_orphans=False).orphans is None


def test_what_takes_longer_than_its_history_is_stuck(parts, reporting):
    put(parts, FIRST, state="completed", phases=[phase(attempts=tried(*["succeeded"] * 5, seconds=30.0))])
    begun = AttemptRecord(number=1, started_at="2026-01-31T09:00:00.000000Z")
    put(parts, SECOND, phases=[phase(status="running", attempts_used=1, attempts=[begun])])
    parts.runners.register(make_owner(), Offer(host="testhost"), concurrency=1, version="1")
    parts.runs.enqueue(NewRun(adw_id=SECOND))
    run = parts.runs.claim(make_owner(), ttl_seconds=30.0)
    for _ in range(6):
        parts.clock.advance(20.0)
        parts.runs.renew(run, ttl_seconds=30.0)
        parts.runners.beat(make_owner(), busy=1)

    (found,) = reporting.stuck()

    assert (found.subject.adw_id, found.kind, found.phase) == (SECOND, StuckKind.TOO_LONG, "build")
    assert "5 that succeeded" in found.why


def test_what_is_due_is_stuck_only_without_a_worker(parts, reporting):
    put(parts, FIRST)
    parts.runs.enqueue(NewRun(adw_id=FIRST))
    parts.clock.advance(301.0)

    assert [found.kind for found in reporting.stuck()] == [StuckKind.NOT_TAKEN]
    parts.runners.register(make_owner(), Offer(host="testhost"), concurrency=1, version="1")
    assert reporting.stuck() == ()
