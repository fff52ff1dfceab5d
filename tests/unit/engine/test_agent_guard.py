"""An agent under guard: what is shared is compared before and after, and a crash in between hides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
from adws.adw_modules.engine.git_guard import Guard, GuardedRunner
from adws.adw_modules.errors import RepositoryTampered
from adws.adw_modules.phase import PhaseContext, RunReport, Suspended
from adws.adw_modules.workflow.model import PhaseSpec

AT = "2026-01-31T09:00:0{}.000000Z"
PHASE = PhaseSpec(name="build", state="building", runner="agent", prompt="build")
WELL = RunReport(ok=True, summary="done")
BEFORE = {"hooks/x": "1", "refs/heads/main": "a"}


class Place:
    """What is shared, in memory; *history* says which commit is part of which."""

    def __init__(self) -> None:
        self.now = dict(BEFORE)
        self.history: set[tuple[str, str]] = set()

    def marks(self):
        return dict(self.now)

    def is_ancestor(self, old: str, new: str) -> bool:
        return (old, new) in self.history


class Agent:
    """A runner that does something to what is shared, and then ends as it is told."""

    def __init__(self, act=lambda: None, end: RunReport | Suspended | BaseException = WELL) -> None:
        self.act, self.end = act, end

    def check(self, _phase) -> str:
        return "something"

    def run(self, _phase, _context):
        self.act()
        if isinstance(self.end, BaseException):
            raise self.end
        return self.end


@pytest.fixture
def place():
    return Place()


@pytest.fixture
def facts():
    return {}


def context_of(facts, *attempts: dict) -> PhaseContext:
    made = [AttemptRecord(number=n, started_at=AT.format(n), **one) for n, one in enumerate([*attempts, {}], start=1)]
    document = WorkflowDocument(
        adw_id="1a2b3c4d",
        issue_number=7,
        branch_name="mine",
        phases=[PhaseRecord(name="build", state="building", attempts=made)],
        created_at=AT.format(0),
        updated_at=AT.format(0),
    )
    return PhaseContext(
        document=document,
        phase="build",
        attempt_number=len(made),
        round=1,
        cwd=Path("/tree"),
        folder=Path("/state"),
        orders=None,  # nobody asks for orders here
        record_process=lambda _record: None,
        say=lambda _line: None,
        record_shared=facts.update,
        base="base",
    )


def test_an_agent_that_leaves_all_alone_succeeds_also_after_a_failed_attempt_that_a_person_looked_at(place, facts):
    assert GuardedRunner(Agent(), Guard(place)).run(PHASE, context_of(facts)) == WELL
    assert facts == {"before": BEFORE}
    place.now = {"hooks/x": "2"}
    before = {"status": "failed", "shared": {"before": BEFORE, "changed": {"hooks/x": "1"}}}

    assert GuardedRunner(Agent(), Guard(place)).run(PHASE, context_of(facts, before)) == WELL


def test_an_agent_that_changes_what_is_shared_has_failed_whatever_it_says(place, facts):
    agent = Agent(lambda: place.now.update({"hooks/y": "2"}))

    report = GuardedRunner(agent, Guard(place)).run(PHASE, context_of(facts))

    assert not report.ok
    assert isinstance(report.error, RepositoryTampered)
    assert "hooks/y (new)" in str(report.error)
    assert facts["changed"] == {"hooks/y": ""}


def test_a_suspended_agent_stays_so_and_the_change_is_known(place, facts):
    agent = Agent(place.now.clear, Suspended(reason="pause"))

    assert GuardedRunner(agent, Guard(place)).run(PHASE, context_of(facts)) == Suspended(reason="pause")
    assert facts["changed"] == BEFORE


def test_tampering_wins_over_another_error_and_not_over_an_interrupt(place, facts):
    with pytest.raises(RepositoryTampered):
        GuardedRunner(Agent(place.now.clear, OSError()), Guard(place)).run(PHASE, context_of(facts))
    place.now = dict(BEFORE)
    with pytest.raises(KeyboardInterrupt):
        GuardedRunner(Agent(place.now.clear, KeyboardInterrupt()), Guard(place)).run(PHASE, context_of(facts))
    with pytest.raises(OSError, match="x"):
        GuardedRunner(Agent(end=OSError("x")), Guard(place)).run(PHASE, context_of(facts))


@pytest.mark.parametrize(
    ("history", "is_fine"),
    [
        ({("a", "b")}, True),
        (set(), False),
        ({("a", "b"), ("b", "refs/heads/mine")}, False),
        ({("a", "b"), ("b", "refs/heads/mine"), ("b", "base")}, True),
    ],
    ids=["forward", "elsewhere", "to-what-it-made", "to-what-it-began-with"],
)
def test_the_default_branch_may_go_on_but_not_to_what_the_agent_made(place, facts, history, is_fine):
    place.history = history
    agent = Agent(lambda: place.now.update({"refs/heads/main": "b"}))

    report = GuardedRunner(agent, Guard(place)).run(PHASE, context_of(facts))

    assert report.ok is is_fine


@pytest.mark.parametrize("status", ["interrupted", "suspended"])
def test_what_an_attempt_left_that_nobody_looked_at_stops_the_next_one(place, facts, status):
    place.now = {"hooks/x": "2"}
    agent = {"before": BEFORE} | ({"changed": {"hooks/x": "1"}} if status == "suspended" else {})

    with pytest.raises(RepositoryTampered, match=r"hooks/x \(changed\)"):
        GuardedRunner(Agent(), Guard(place)).run(PHASE, context_of(facts, {"status": status, "shared": agent}))
    assert facts["changed"] == {"hooks/x": "1"}


def test_where_there_is_no_repository_nothing_is_guarded(facts):
    runner = GuardedRunner(Agent(), Guard(None))

    assert runner.run(PHASE, context_of(facts)) == WELL
    assert runner.check(PHASE) == "something"
    assert facts == {}
