"""
What to do about work whose worker is gone: a plan from evidence, one row for each workflow.

Pure. Age proves nothing: a run is left alone while its owner lives or may live, however long it takes, and taken back
as soon as its owner is proven dead or its lease is over, however young it is. Recovery never runs work itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import Verdict
from adws.adw_modules.runs import LIVE_RUNS, RunState
from adws.adw_modules.state_table import ACTIVE_STATES, WorkflowState, is_terminal

_ACTIVE = frozenset(state.value for state in ACTIVE_STATES)
_ROLLED_BACK = WorkflowState.ROLLED_BACK.value


class Action(Enum):
    """What recovery can do about a workflow."""

    LEAVE = "leave"  #: somebody works on it, or nothing is wrong
    REPORT = "report"  #: something is wrong that a person has to look at
    PROJECT = "project"  #: the database copy is behind the document
    INTERRUPT = "interrupt"  #: an attempt was cut off: close it, and queue what is left to do
    REQUEUE = "requeue"  #: its run goes back to the queue
    ENQUEUE = "enqueue"  #: it should be worked on, and no run says so
    END_RUN = "end_run"  #: it is parked or over, and a run still waits
    FREE_ISSUE = "free_issue"  #: it is over, and still has its issue
    FORGET = "forget"  #: it was registered, and its creator died before there was a document


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A lease or a claim, as recovery sees it."""

    owner: str = ""  #: in words, "" when nobody has it
    verdict: Verdict = Verdict.UNKNOWN
    seconds_left: float = 0.0

    @property
    def is_live(self) -> bool:
        """Whether its owner works, as far as anybody can know."""
        return bool(self.owner) and self.seconds_left > 0.0 and self.verdict is not Verdict.DEAD

    def why_over(self) -> str:
        """Return what ended it."""
        if not self.owner:
            return "nobody owns it"
        if self.verdict is Verdict.DEAD:
            return f"its owner {self.owner} is dead"

        return f"the lease of {self.owner} is over since {-self.seconds_left:.0f} s"


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is known about one workflow."""

    adw_id: str
    state: str = ""  #: of its document, "" when that cannot be read
    problem: str = ""  #: why it cannot
    is_unwritten: bool = False  #: it is registered and has no document
    has_issue: bool = False  #: an issue lock names it
    is_rolling_back: bool = False
    is_errand: bool = False  #: no workflow, but a run of its own: what a delivery or the schedule asks for
    open_attempt: str = ""  #: the phase whose attempt is recorded as running
    revision: int = 0
    copied_revision: int | None = None  #: of the database copy; None: there is no copy to bring up
    lease: Claim = Claim()
    run_id: int | None = None  #: its unfinished run
    run_state: RunState | None = None
    run_claim: Claim = Claim()


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryStep:
    """One row of the plan."""

    adw_id: str
    action: Action
    why: str
    run_id: int | None = None

    def to_json(self) -> JsonObject:
        """Return the row for --json."""
        return {"adw_id": self.adw_id, "action": self.action.value, "why": self.why, "run_id": self.run_id}


def plan_recovery(rows: Iterable[Evidence]) -> tuple[RecoveryStep, ...]:
    """Return what to do about each workflow, in the order given; several steps where several things are wrong."""
    return tuple(step for row in rows for step in _steps(row))


def _steps(row: Evidence) -> list[RecoveryStep]:
    if row.is_errand:
        return _about_lost_run(row) or [_step(row, Action.LEAVE, "nothing is wrong")]
    if row.is_unwritten:
        return [_about_unwritten(row)]
    if not row.state:
        return [_step(row, Action.REPORT, row.problem or "its document says no state"), *_about_lost_run(row)]
    steps = []
    if row.copied_revision is not None and row.copied_revision < row.revision:
        why = f"the copy is at revision {row.copied_revision}, the document at {row.revision}"
        steps.append(_step(row, Action.PROJECT, why))
    steps.extend(_about_work(row))

    return steps or [_step(row, Action.LEAVE, "nothing is wrong")]


def _about_work(row: Evidence) -> list[RecoveryStep]:
    if row.lease.is_live:
        return [_step(row, Action.LEAVE, f"{row.lease.owner} works on it ({row.lease.verdict.value})")]
    if row.is_rolling_back and row.state != _ROLLED_BACK:
        return _about_run(row) if row.run_id is not None else []  # whoever wants it finished says so
    if row.state not in _ACTIVE:
        return [*_about_leftover_run(row), *_about_leftover_issue(row)]
    if row.open_attempt:
        why = f"{row.open_attempt} was cut off: {row.lease.why_over()}"
        return [_step(row, Action.INTERRUPT, why), *_about_run(row)]

    return _about_run(row)


def _about_unwritten(row: Evidence) -> RecoveryStep:
    if row.lease.is_live:
        return _step(row, Action.LEAVE, f"{row.lease.owner} is creating it")

    return _step(row, Action.FORGET, f"it has no document, and {row.lease.why_over()}")


def _about_lost_run(row: Evidence) -> list[RecoveryStep]:
    """Return what to do about the run of a document that nobody can read: a worker ends it, and says why."""
    has_worker = row.run_state in LIVE_RUNS
    if not has_worker or row.run_claim.is_live or row.lease.is_live:
        return []

    return [_step(row, Action.REQUEUE, f"run {row.run_id}: {row.run_claim.why_over()}")]


def _about_run(row: Evidence) -> list[RecoveryStep]:
    if row.run_id is None:
        return [_step(row, Action.ENQUEUE, f"it is {row.state} and no run waits for it")]
    if row.run_state not in LIVE_RUNS:
        return []
    if row.run_claim.is_live:
        return [_step(row, Action.LEAVE, f"{row.run_claim.owner} has its run")]

    return [_step(row, Action.REQUEUE, f"run {row.run_id}: {row.run_claim.why_over()}")]


def _about_leftover_run(row: Evidence) -> list[RecoveryStep]:
    if row.run_id is None or (row.run_state in LIVE_RUNS and row.run_claim.is_live):
        return []

    return [_step(row, Action.END_RUN, f"it is {row.state}, but run {row.run_id} still waits")]


def _about_leftover_issue(row: Evidence) -> list[RecoveryStep]:
    if not row.has_issue or not is_terminal(row.state):
        return []

    return [_step(row, Action.FREE_ISSUE, f"it is {row.state}, and still has its issue")]


def _step(row: Evidence, action: Action, why: str) -> RecoveryStep:
    return RecoveryStep(adw_id=row.adw_id, action=action, why=why, run_id=row.run_id)
