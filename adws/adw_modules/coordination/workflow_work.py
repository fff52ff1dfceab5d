"""
Working on one run: own the workflow, make attempts, act on what comes of them.

Only here is an outcome acted on. The run is given back, requeued or ended after the document says so, never before: a
crash in between leaves a run whose worker is gone, and recovery finds both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Protocol

from adws.adw_modules import attempt_rules, timestamps
from adws.adw_modules.coordination.keeper import Charge, Keeper
from adws.adw_modules.coordination.request_desk import RequestDesk
from adws.adw_modules.engine.attempt import EngineParts, WorkSession
from adws.adw_modules.errors import (
    AdwError,
    DatabaseError,
    Fenced,
    OwnershipError,
    QuotaExceeded,
    RunLost,
    StateConflict,
    StateError,
    StateWriteFailed,
    UsageError,
    WorkElsewhere,
    WorkflowBusy,
)
from adws.adw_modules.interfaces import Clock, Owned, Ownership, Requests
from adws.adw_modules.interfaces_engine import Order, RunQueue
from adws.adw_modules.outcome import Done, Failed, Next, Outcome, Paused, RetryAt, Stopped
from adws.adw_modules.runs import FINAL_RUNS, ITERATION, ROLLBACK, WITHOUT_WORKFLOW, Run, RunEnd, RunState
from adws.adw_modules.state_table import ACTIVE_STATES, WorkflowState

logger = logging.getLogger("adw.worker")

#: Most seconds until a run is tried again whose workflow somebody else is working on, and those of the first time.
BUSY_SECONDS = 2.0
FIRST_BUSY_SECONDS = 0.05
#: Seconds until a run is tried again that a full disk or a lost database stopped.
TROUBLE_SECONDS = 30.0
#: Seconds until a run is tried again that there was no room for.
QUOTA_SECONDS = 60.0
#: Kinds of runs that do not go on with a workflow.
ERRAND_KINDS = WITHOUT_WORKFLOW | {ROLLBACK, ITERATION}


#: Why work was stopped without a word to the workflow itself.
_STOPS = {
    "drain": "its worker was told to end and gave it back",
    "lost_lease": "its worker could not prove any more that the workflow is its own",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkEnd:
    """How the work on a run ended."""

    run: Run | None  #: as it stands now; None: it is not ours any more
    outcome: Outcome | None  #: None: there was no attempt
    message: str = ""


class Errand(Protocol):
    """Does what runs of one kind are for, when that is not going on with a workflow."""

    def work(self, run: Run) -> WorkEnd:
        """Do it for a claimed run, and end that; what this raises is treated as with all other work."""

    def give_up(self, run: Run, why: str) -> None:
        """Write down, where whoever asked looks, that it will not be done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkParts:
    """What working on runs needs."""

    clock: Clock
    engine: EngineParts
    ownership: Ownership
    runs: RunQueue
    requests: Requests
    keeper: Keeper
    #: Raises QuotaExceeded when there is no room for it, WorkElsewhere when only another machine can go on with it.
    admit: Callable[[WorkSession], None] = lambda _session: None
    errands: Mapping[str, Errand] = field(default_factory=dict)  #: kind of run -> who does what it is for
    #: Told that a workflow waits: makes its run due when what it waits for ended before it began to wait.
    wake: Callable[[str], object] = lambda _adw_id: None


class RunWork:
    """Carries a claimed run as far as it goes."""

    def __init__(self, parts: WorkParts) -> None:
        self._parts = parts

    def work(self, run: Run, *, owning: AbstractContextManager[Owned] | None = None) -> WorkEnd:
        """Work on *run* until it waits, is parked or over; *owning* is the ownership of who owns it already."""
        try:
            end = self._do(run) if run.kind in ERRAND_KINDS else self._go_on(run, owning)
        except WorkflowBusy as exc:
            return self._later(run, str(exc), seconds=busy_seconds(run.attempts))
        except (RunLost, StateConflict, Fenced, OwnershipError) as exc:
            logger.warning("Run lost", extra={"action": "run_lost", "run_id": run.run_id, "workflow": run.adw_id})
            return self._let_go(run, str(exc))
        except QuotaExceeded as exc:
            return self._later(run, str(exc), seconds=QUOTA_SECONDS)
        except WorkElsewhere as exc:
            return self._leave_to(run, exc)
        except (StateWriteFailed, DatabaseError) as exc:
            return self._later(run, str(exc), seconds=TROUBLE_SECONDS)
        except AdwError as exc:
            return self._refuse(run, exc) if run.kind in ERRAND_KINDS else self.give_up(run, exc)
        self._answer_latecomers(end)

        return end

    def _go_on(self, run: Run, owning: AbstractContextManager[Owned] | None) -> WorkEnd:
        with owning or self._parts.ownership.own(run.adw_id, run=run) as owned:
            return self._with(owned, run)

    def _do(self, run: Run) -> WorkEnd:
        errand = self._parts.errands.get(run.kind)
        if errand is None:
            raise UsageError(f"this worker cannot do what runs of kind {run.kind} are for: start one with adw worker")

        return errand.work(run)

    def _refuse(self, run: Run, cause: AdwError) -> WorkEnd:
        """End a run that may not be done; a workflow that it names stays as it is."""
        said = {"action": "run_failed", "run_id": run.run_id, "workflow": run.adw_id}
        logger.warning("Not done", extra=said, exc_info=cause)
        self._tell_errand(run, str(cause))
        ended = self._parts.runs.finish(run, RunState.FAILED, reason=str(cause))

        return WorkEnd(run=ended, outcome=None, message=str(cause))

    def _tell_errand(self, run: Run, why: str) -> None:
        errand = self._parts.errands.get(run.kind)
        if errand is None:
            return
        try:
            errand.give_up(run, why)
        except AdwError:
            said = {"action": "run_failed", "run_id": run.run_id}
            logger.warning("Could not tell that it is given up", extra=said, exc_info=True)

    def _with(self, owned: Owned, run: Run) -> WorkEnd:
        parts = self._parts
        run = owned.run or parts.runs.begin(run)
        with parts.engine.log_of(run.adw_id), parts.keeper.charge(owned, run) as charge:
            if run.state is RunState.STOPPING:
                charge.give(Order(kind="stop", reason=run.reason or "asked to stop"))
            session = WorkSession(parts.engine, owned, charge)
            outcome = self._carry_on(session, charge, RequestDesk(parts.requests, session, charge))
            if outcome != Stopped(reason="lost_lease"):
                session.rest()
        ended = owned.end_run(run, end_of(run, outcome))
        if isinstance(outcome, RetryAt):
            parts.wake(run.adw_id)

        return WorkEnd(run=ended, outcome=outcome)

    def _carry_on(self, session: WorkSession, charge: Charge, desk: RequestDesk) -> Outcome:
        """Make attempts until the workflow does not simply go on."""
        desk.fetch()
        early = desk.obey()
        if early is not None:
            return early
        self._parts.admit(session)
        if not any(record.attempts for record in session.document.phases):
            self._parts.engine.report(session)  # a phase may take an hour, and whoever asked is to see at once
        while True:
            if session.has_begun:
                desk.note_hints()
            elif (early := desk.obey()) is not None:
                return early
            outcome = session.attempt(may_go_on=lambda: not charge.has_business())
            if not isinstance(outcome, Next):
                return desk.conclude(outcome)
            self._parts.engine.report(session)

    def _answer_latecomers(self, end: WorkEnd) -> None:
        """
        Answer what was asked after our last look and before the workflow was free.

        Who asks later finds it free and does it himself; and where a run waits, the next owner answers.
        """
        run = end.run
        if run is None or run.state not in FINAL_RUNS:
            return
        try:
            if self._parts.requests.open_for(run.adw_id):
                self._answer(run.adw_id)
        except WorkflowBusy:
            return  # the next owner does it
        except AdwError:
            said = {"action": "requests_not_answered", "workflow": run.adw_id}
            logger.warning("Requests wait for the next owner", extra=said, exc_info=True)

    def _answer(self, adw_id: str) -> None:
        parts = self._parts
        with (
            parts.ownership.own(adw_id) as owned,
            parts.engine.log_of(adw_id),
            parts.keeper.charge(owned) as charge,
        ):
            desk = RequestDesk(parts.requests, WorkSession(parts.engine, owned, charge), charge)
            desk.fetch()
            desk.obey()

    # --- acting ------------------------------------------------------------------------------------------------

    def _later(self, run: Run, why: str, *, seconds: float) -> WorkEnd:
        due = self._parts.clock.now() + timedelta(seconds=seconds)
        again = self._parts.runs.requeue(run, not_before=timestamps.to_text(due), reason=why)

        return WorkEnd(run=again, outcome=None, message=why)

    def _leave_to(self, run: Run, why: WorkElsewhere) -> WorkEnd:
        """Give a run back for the one host that can go on with its workflow."""
        demands = replace(run.demands, host=why.host)
        again = self._parts.runs.requeue(run, reason=str(why), demands=demands)

        return WorkEnd(run=again, outcome=None, message=str(why))

    def _let_go(self, run: Run, why: str) -> WorkEnd:
        """Give a run back that we may not work on any more, if it is still ours to give."""
        try:
            return self._later(run, why, seconds=busy_seconds(run.attempts))
        except (RunLost, DatabaseError):
            return WorkEnd(run=None, outcome=None, message=why)

    def give_up(self, run: Run, cause: Exception) -> WorkEnd:
        """
        End a run that cannot be worked on, and park its workflow for a person.

        Its document is missing, damaged or makes no sense to us, or nobody knows what is on the disk. A workflow that
        stayed as it is would be queued again by the next recovery, for ever.
        """
        is_known = isinstance(cause, AdwError)
        why = str(cause) if is_known else f"a bug in adw: {type(cause).__name__}: {cause}"
        said = {"action": "run_failed", "run_id": run.run_id, "workflow": run.adw_id, "why": why}
        logger.error("Run cannot be worked on", extra=said, exc_info=None if is_known else cause)
        if run.kind not in WITHOUT_WORKFLOW and run.kind != ITERATION:
            self._park(run, why)
        self._tell_errand(run, why)
        ended = self._parts.runs.finish(run, RunState.FAILED, reason=why)

        return WorkEnd(run=ended, outcome=None, message=why)

    def _park(self, run: Run, why: str) -> None:
        parts = self._parts
        try:
            with parts.ownership.own(run.adw_id) as owned, parts.keeper.charge(owned) as charge:
                session = WorkSession(parts.engine, owned, charge)
                with suppress(StateError):  # without a definition nobody can say what an open attempt means
                    session.settle()
                if WorkflowState(session.document.current_state) in ACTIVE_STATES:
                    session.change(lambda draft: attempt_rules.pause(draft, why))
                    session.rest()
        except AdwError:
            # The run says why; recovery names a document that cannot be read.
            said = {"action": "workflow_not_parked", "workflow": run.adw_id}
            logger.warning("The workflow could not be parked", extra=said, exc_info=True)


def busy_seconds(claims: int) -> float:
    """Return how long to leave a busy workflow alone: who creates or resumes one has it for a moment only."""
    return min(BUSY_SECONDS, FIRST_BUSY_SECONDS * 2.0 ** min(max(claims - 1, 0), 16))


def end_of(run: Run, outcome: Outcome) -> RunEnd:
    """Return what becomes of a run with *outcome*: it waits again, or is over."""
    if isinstance(outcome, RetryAt):
        due = timestamps.to_text(outcome.at)
        return RunEnd(state=RunState.PENDING, not_before=due, reason=describe(outcome))
    if isinstance(outcome, Stopped):
        return RunEnd(state=RunState.PENDING, reason=describe(outcome))

    return RunEnd(state=final_state(run, outcome), reason=describe(outcome))


def final_state(run: Run, outcome: Outcome) -> RunState:
    """Return how a run ends with an outcome that nothing follows."""
    if isinstance(outcome, Failed):
        return RunState.FAILED
    if not isinstance(outcome, Done):
        return RunState.STOPPED
    wanted = WorkflowState.ROLLED_BACK if run.kind == ROLLBACK else WorkflowState.COMPLETED

    return RunState.COMPLETED if outcome.state == wanted.value else RunState.STOPPED


def describe(outcome: Outcome) -> str:
    """Return an outcome in a few words."""
    if isinstance(outcome, Done):
        return outcome.state
    if isinstance(outcome, RetryAt):
        if outcome.is_waiting:
            return f"{outcome.phase} {outcome.reason}"
        return f"{outcome.phase} is tried again at {timestamps.to_text(outcome.at)}: {outcome.reason}"
    if isinstance(outcome, Paused):
        return f"paused: {outcome.reason}"
    if isinstance(outcome, Failed):
        return f"{outcome.phase} failed ({outcome.reason}): {outcome.message}"
    if isinstance(outcome, Stopped):
        return f"{_STOPS.get(outcome.reason, outcome.reason)}; the attempt under way does not count"

    return f"goes on with {outcome.phase}"
