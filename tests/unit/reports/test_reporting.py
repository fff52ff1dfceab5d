"""Making reports of parts in memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from adws.adw_modules.document import AttemptRecord
from adws.adw_modules.housekeeping.inventory import Orphan
from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.reports.model import StuckKind, Window
from adws.adw_modules.reports.reports import Reporting
from adws.adw_modules.workflow.requirements import Capabilities
from tests.contracts.report_contract import TODAY, moment, phase, put, tried
from tests.contracts.worlds import FIRST, SECOND, make_owner
from tests.homes import lab_home
from tests.unit.setting_cases import settings_with

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
    return lab_home()


@pytest.fixture
def reporting(parts):
    return Reporting(
        SimpleNamespace(
            clock=parts.clock,
            settings=settings_with(),
            reports=parts.reports,
            workers=parts.workers,
            processes=parts.processes,
            collector=Collector(),
            quotas=parts.quotas,
        )
    )


def test_a_report_has_everything(parts, reporting):
    put(parts, FIRST, state="completed", phases=[phase(attempts=tried("succeeded", report={"cost_usd": 1.0}))])

    result = reporting.report(Window(since=moment()))

    assert (result.made_at, result.since) == ("2026-01-31T09:00:00.000000Z", TODAY)
    assert (result.ended.completed, result.spent.cost_usd, result.costliest[0].adw_id) == (1, 1.0, FIRST)
    assert [one.key for one in result.costs_by_day] == [TODAY]
    assert (result.attempts[0].successes, result.states["completed"].number) == (1, 1)
    assert (result.orphans, result.problems) == ((ORPHAN,), ("the remote did not answer",))


def test_looking_for_left_overs_can_be_left_out(reporting):
    assert reporting.report(Window(), with_orphans=False).orphans is None


def test_what_takes_longer_than_its_history_is_stuck(parts, reporting):
    put(parts, FIRST, state="completed", phases=[phase(attempts=tried(*["succeeded"] * 5, seconds=30.0))])
    begun = AttemptRecord(number=1, started_at="2026-01-31T09:00:00.000000Z")
    put(parts, SECOND, phases=[phase(status="running", attempts_used=1, attempts=[begun])])
    parts.workers.register(make_owner(), Capabilities(host="testhost"), concurrency=1, version="1")
    parts.runs.enqueue(NewRun(adw_id=SECOND))
    run = parts.runs.claim(make_owner(), ttl_seconds=30.0)
    for _ in range(6):
        parts.clock.advance(20.0)
        parts.runs.renew(run, ttl_seconds=30.0)
        parts.workers.beat(make_owner(), busy=1)

    (result,) = reporting.stuck()

    assert (result.subject.adw_id, result.kind, result.phase) == (SECOND, StuckKind.TOO_LONG, "build")
    assert "5 that succeeded" in result.why


def test_what_is_due_is_stuck_only_without_a_worker(parts, reporting):
    put(parts, FIRST)
    parts.runs.enqueue(NewRun(adw_id=FIRST))
    parts.clock.advance(301.0)

    assert [item.kind for item in reporting.stuck()] == [StuckKind.NOT_TAKEN]
    parts.workers.register(make_owner(), Capabilities(host="testhost"), concurrency=1, version="1")
    assert reporting.stuck() == ()
