"""
What is around an attempt and around a run: prepared, handed over, concluded, admitted, given back, reported.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from adws.adw_modules.engine.gates import GateVerdict
from adws.adw_modules.errors import GitError, LeaseLost, QuotaExceeded, UsageError
from adws.adw_modules.interfaces import OwnerRecord
from adws.adw_modules.phase import Done, Order, RetryAt, RunReport
from adws.adw_modules.queue.model import FINAL_RUNS, RunState
from adws.adw_modules.worker.claim import Claim
from adws.adw_modules.worker.run_executor import QUOTA_SECONDS, RunExecutor
from adws.adw_modules.workflow.model import Gate
from tests.unit.conduct_cases import BROKEN, Home, obedient
from tests.unit.engine_cases import WELL, World, phase, spec_of


def order_of(world: World, scripts=None) -> list[str]:
    """Make one attempt and return what was called, in order."""
    seen: list[str] = []

    @contextmanager
    def around(_document):
        seen.append("handed over")
        yield {"PORT": "1"}
        seen.append("held again")

    def conclude(_session, _phase, context, report):
        seen.append(f"concluded with {context.env}")
        return report

    def gates(_phase, context, _report):
        seen.append(f"gates with {context.env}")
        return GateVerdict(passed=True)

    def run(context):
        seen.append(f"ran with {context.env}")
        return WELL

    world.runner.add("plan", *(scripts or [run]))
    world.attempt(prepare=lambda _session: seen.append("prepared"), around=around, conclude=conclude, gates=gates)

    return seen


def test_an_attempt_is_prepared_handed_over_concluded_and_then_judged():
    env = {"PORT": "1"}

    assert order_of(World(spec_of(phase("plan", gates=(Gate(kind="result"),))))) == [
        "prepared",
        "handed over",
        f"ran with {env}",
        "held again",
        f"concluded with {env}",
        "handed over",
        f"gates with {env}",
        "held again",
    ]


@pytest.mark.parametrize("hook", ["prepare", "conclude"])
def test_trouble_in_a_hook_is_a_failed_attempt(hook):
    world = World(spec_of(phase("plan", gates=(Gate(kind="result"),))))

    def failing(*_args):
        raise GitError("git is broken")

    outcome = world.attempt(**{hook: failing})

    assert isinstance(outcome, RetryAt)
    assert world.record("plan").last_failure_reason == "git is broken"
    assert len(world.runner.calls) == (hook == "conclude")


def test_a_report_keeps_what_it_cost_when_it_cannot_be_concluded():
    world = World(spec_of("plan"), {"plan": [RunReport(ok=True, cost_usd=2.5)]})

    def failing(*_args):
        raise GitError("git is broken")

    world.attempt(conclude=failing)

    assert world.document.cost.total_usd == 2.5


@pytest.mark.parametrize("hook", ["prepare", "conclude"])
def test_work_that_is_not_ours_any_more_is_not_judged(hook):
    world = World(spec_of(phase("plan", gates=(Gate(kind="result"),))))

    def losing(*_args):
        raise LeaseLost("gone")

    with pytest.raises(LeaseLost):
        world.attempt(**{hook: losing})
    assert world.record("plan").attempts[-1].status == "running"


def test_ctrl_c_while_work_is_secured_suspends_the_attempt():
    world = World(spec_of(phase("plan", gates=(Gate(kind="result"),))))

    def interrupted(*_args):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.attempt(conclude=interrupted)
    assert world.record("plan").attempts[-1].status == "suspended"


# --- around a run ----------------------------------------------------------------------------------------------


class Watched(Home):
    """A home that keeps what was admitted, given back and reported."""

    def __init__(self, scripts=None) -> None:
        super().__init__(scripts)
        self.seen: list[str] = []
        self.full = ""
        self.workspace = SimpleNamespace(admit=self._admit)
        self.has_forge = True  # there is a comment to update after the last write: so the run ends after that
        self.engine_changes = {
            "release": lambda session: self._note("released", session),
            "report": lambda session: self._note("reported", session),
        }

    def _note(self, what, session) -> None:
        self.seen.append(f"{what} {session.document.current_state}")

    def _admit(self, session, **_how) -> None:
        if self.full:
            raise QuotaExceeded("runs", self.full)
        self._note("admitted", session)

    def work(self, run=None):
        return RunExecutor(self).work(run or self.claim())


@pytest.fixture
def watched():
    """What makes homes that are closed after the test."""
    made: list[Watched] = []

    def make(*args, **keywords) -> Watched:
        made.append(Watched(*args, **keywords))
        return made[-1]

    yield make
    for home in made:
        home.lease_renewer.close()


def test_a_run_is_admitted_once_reported_before_and_after_each_phase_and_given_back_at_the_end(watched):
    home = watched()
    home.create()

    home.work()

    assert home.seen == [
        "admitted pending",
        "reported pending",
        "reported building",
        "released completed",
        "reported completed",
    ]


def test_a_run_without_room_waits_with_the_reason_and_uses_no_attempt(watched):
    home = watched()
    home.create()
    home.full = "15 of 15 workflows are worked on: wait for one to end"

    end = home.work()

    assert (end.outcome, end.message) == (None, home.full)
    run = home.run()
    assert (run.state, run.reason) == (RunState.PENDING, home.full)
    assert home.record("plan").attempts == []
    assert home.state() == "pending"
    home.full = ""
    home.clock.advance(QUOTA_SECONDS)
    assert home.work().outcome == Done(state="completed")


@pytest.mark.parametrize(
    ("script", "state"),
    [(BROKEN, "planning"), (RunReport(ok=False, error=UsageError("wrong")), "failed")],
    ids=["waits-for-a-retry", "failed"],
)
def test_what_rests_gives_back_what_only_work_may_hold(watched, script, state):
    home = watched({"plan": [script]})
    home.create()

    home.work()

    assert home.seen[-2:] == [f"released {state}", f"reported {state}"]


def test_who_lost_the_workflow_gives_nothing_back(watched):
    home = watched()
    home.create()

    def losing(context):
        home.lease_renewer.order_all(Order(kind="lost_lease", reason="lost"))
        return obedient(context)

    home.runner.add("plan", losing)
    home.work()

    assert not any(item.startswith("released") for item in home.seen)


@pytest.mark.parametrize("what", ["pause", "abandon"])
def test_parking_or_giving_up_from_outside_gives_back_too(watched, what):
    home = watched()
    home.create()

    getattr(home.control, what)("1a2b3c4d", by="ada")

    state = "paused" if what == "pause" else "abandoned"
    assert home.seen == [f"released {state}", f"reported {state}"]


def test_what_a_crash_kept_from_being_given_back_is_given_back_by_recovery(watched):
    home = watched()
    home.create()

    def dying(_session):
        raise LeaseLost("its process died")

    home.engine_changes["release"] = dying
    run = home.claim()
    with suppress(LeaseLost):
        RunExecutor(home)._with(home.hold(), Claim(run=run))
    assert home.state() == "completed"
    home.parts.processes.kill(home.parts.leases.read("1a2b3c4d").owner)
    home.parts.processes.kill(OwnerRecord.from_text(home.run().owner))
    home.parts.local_lock.let_go("1a2b3c4d")
    home.engine_changes["release"] = lambda session: home._note("released", session)

    home.recovery().recover()

    assert home.seen[-2:] == ["released completed", "reported completed"]
    assert home.run().state in FINAL_RUNS
