"""
Working on one run: own the workflow, make attempts, act on their outcomes.

Only here is an outcome acted on. The run is released, requeued or ended after the document says so, never before: a
crash in between leaves a run whose worker is gone, and recovery finds both.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules import document, timestamps
from adws.adw_modules.document import Draft, Mark
from adws.adw_modules.engine import resume, transitions
from adws.adw_modules.engine.attempt import WorkSession
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
from adws.adw_modules.interfaces import Request
from adws.adw_modules.ownership.lease_renewer import ENDING_REQUESTS, LeaseHandle, reason_of
from adws.adw_modules.phase import Done, Failed, Next, Order, Outcome, Paused, RetryAt, Stopped
from adws.adw_modules.queue.model import (
    FINAL_RUNS,
    ITERATION,
    ROLLBACK,
    WITHOUT_WORKFLOW,
    Run,
    RunEnd,
    RunResult,
    RunState,
    stop_reason,
)
from adws.adw_modules.state_machine import ACTIVE_STATES, TERMINAL_STATES, WorkflowState
from adws.adw_modules.worker.claim import ERRAND_KINDS, Claim

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.ownership.leases import Requests
    from adws.adw_modules.ownership.ownership import OwnedWorkflow
    from adws.app import Home

# Answering requests to the owner of a workflow: each request is obeyed first, then answered.
#
# Obeying depends on the state the document is in, not on what the requester expected: a pause that comes after the end
# is too late, and says so. What cannot be written is not answered either: the next owner finds it.


#: The answer to a hint.
NOTED = "noted for the next attempt"

#: Requests that park the workflow.
PAUSING = ("pause", "stop")
_ABANDONING = ("abandon", "rollback")
#: Orders after which somebody else continues the workflow.
_LEAVING = ("drain", "lost_lease")


class RequestHandler:
    """Answers the requests to the owner of one workflow."""

    def __init__(self, requests: Requests, session: WorkSession, charge: LeaseHandle) -> None:
        self._requests = requests
        self._session = session
        self._charge = charge

    def fetch(self) -> None:
        """Fetch requests made since the lease renewer last polled, or to an owner that died over them."""
        for request in self._requests.open_for(self._charge.adw_id):
            self._charge.note(request)

    def obey(self) -> Outcome | None:
        """Obey and answer everything while no attempt is under way; return the outcome when that ends the work."""
        if self._has_lost_lease():
            return Stopped(reason="lost_lease")
        # A parked or abandoned workflow has no attempt that runs, and no process.
        if any(request.kind in ENDING_REQUESTS for request in self._charge.open_requests()):
            self._session.settle()
        outcome = self._obey_requests()
        order = self._charge.current()
        if outcome is not None or order is None:
            return outcome
        if order.kind in _LEAVING:
            return Stopped(reason=order.kind)

        return self._obey_order(order)

    def note_hints(self) -> None:
        """Write the hints down and leave everything else: an attempt is recorded that has to run or be suspended."""
        for request in self._charge.open_requests():
            if request.kind == "hint" and not self._has_lost_lease():
                self._obey_request(request)

    def conclude(self, outcome: Outcome) -> Outcome:
        """Obey what came while the last attempt ran, and return how the work ends with that."""
        if self._has_lost_lease():
            return outcome
        self.fetch()
        changed = self._obey_requests()
        order = self._charge.current()
        if changed is None and order is not None and order.kind not in _LEAVING:
            changed = self._obey_order(order)

        return changed or outcome

    # --- how -----------------------------------------------------------------------------------------------------

    def _has_lost_lease(self) -> bool:
        order = self._charge.current()
        return order is not None and order.kind == "lost_lease"

    def _obey_order(self, order: Order) -> Outcome | None:
        """Obey an order that came without a request: a signal, or a run that shall stop."""
        if order.request_id is not None:
            return None  # answered with its request
        self._session.settle()

        return self._end(order.kind, order.reason)

    def _obey_requests(self) -> Outcome | None:
        outcome: Outcome | None = None
        for request in self._charge.open_requests():
            outcome = self._obey_request(request) or outcome

        return outcome

    def _obey_request(self, request: Request) -> Outcome | None:
        outcome: Outcome | None = None
        if request.kind == "hint" and self._state() in TERMINAL_STATES:
            answer = f"too late: the workflow is {self._state().value}"
        elif request.kind == "hint":
            self._session.change(partial(note_hint, request))
            answer = NOTED
        elif request.kind in (*PAUSING, *_ABANDONING):
            outcome = self._end(request.kind, reason_of(request), _mark_of(request))
            answer = self._stands()
        else:
            answer = f"{request.kind} is nothing that this owner can do"
        self._requests.handled(request.request_id, answer)
        self._charge.answered(request.request_id)

        return outcome

    def _end(self, kind: str, reason: str, mark: Mark | None = None) -> Outcome | None:
        """Park the workflow unless it is parked or over, or give it up unless it is over."""
        session, state, is_pause = self._session, self._state(), kind in PAUSING
        if state in TERMINAL_STATES or (is_pause and state not in ACTIVE_STATES):
            # The attempt that it ended may have written the state with its own end: then only the mark is missing.
            wanted = WorkflowState.PAUSED if is_pause else WorkflowState.ABANDONED
            if mark is not None and state is wanted and not document.is_marked(session.document, mark):
                session.change(lambda draft: document.mark(draft, mark))
            return None
        change = transitions.pause if is_pause else transitions.abandon

        def write(draft: Draft) -> Outcome:
            outcome = change(draft, stop_reason(reason, session.doubt))
            document.mark(draft, mark)
            return outcome

        return session.change(write)

    def _stands(self) -> str:
        document = self._session.document
        reasons = {WorkflowState.PAUSED: document.pause_reason, WorkflowState.FAILED: document.terminal_reason}
        why = reasons.get(self._state())

        return f"{document.current_state}: {why}" if why else document.current_state

    def _state(self) -> WorkflowState:
        return WorkflowState(self._session.document.current_state)


def note_hint(request: Request, draft: Draft) -> None:
    """Write the hint of *request* down, unless a delivery that was done twice asked for it before."""
    payload, mark = request.payload, _mark_of(request)
    if document.is_marked(draft.document, mark):
        return
    document.mark(draft, mark)
    resume.add_hint(draft, str(payload.get("phase") or ""), str(payload.get("text") or ""), request.asked_by)


def _mark_of(request: Request) -> Mark | None:
    return Mark.from_json(request.payload.get("mark"))


logger = logging.getLogger("adw.worker")

#: Most seconds until a run is retried whose workflow somebody else is working on, and those of the first time.
BUSY_SECONDS = 2.0
FIRST_BUSY_SECONDS = 0.05
#: Seconds until a run is retried that a full disk or a lost database stopped.
TROUBLE_SECONDS = 30.0
#: Seconds until a run is retried that a quota refused.
QUOTA_SECONDS = 60.0
#: Why work was stopped without a change to the workflow itself.
_STOPS = {
    "drain": "its worker was told to end and gave it back",
    "lost_lease": "its worker could not prove any more that the workflow is its own",
}


class JobHandler(Protocol):
    """Executes runs of one kind that do not continue a workflow: `Home.job_handler` returns the one for a kind."""

    def work(self, run: Run) -> RunResult:
        """Execute a claimed run and end it; errors are handled as with every other run."""

    def give_up(self, run: Run, why: str) -> None:
        """Record, where the requester can see it, that the run will not be executed."""


class RunExecutor:
    """Carries a claimed run as far as it goes."""

    def __init__(self, home: Home) -> None:
        self._home = home
        # Built before a run is claimed: a wrong setting stops the worker instead of failing its runs. And runs are
        # executed in several threads.
        _ = home.engine, home.workspace, home.ownership, home.lease_renewer, home.runs, home.requests

    def work(self, claimed: Run | Claim) -> RunResult:
        """Work on a claimed run until it waits, is parked or over, with what was taken together with it."""
        claim = claimed if isinstance(claimed, Claim) else Claim(run=claimed)
        run = claim.run
        try:
            if run.kind not in ERRAND_KINDS:
                with self._home.ownership.own(run.adw_id, run=run, owned=claim.owned) as owned:
                    end = self._with(owned, claim)
            elif (handler := self._home.job_handler(run.kind)) is not None:
                end = handler.work(run)
            else:
                raise UsageError(
                    f"this worker cannot do what runs of kind {run.kind} are for: start one with adw worker"
                )
        except WorkflowBusy as exc:
            return self._later(run, str(exc), seconds=busy_seconds(run.attempts))
        except (RunLost, StateConflict, Fenced, OwnershipError) as exc:
            logger.warning("Run lost", extra={"action": "run_lost", "run_id": run.run_id, "workflow": run.adw_id})
            try:
                return self._later(run, str(exc), seconds=busy_seconds(run.attempts))
            except (RunLost, DatabaseError):  # it is not ours to give any more
                return RunResult(run=None, outcome=None, message=str(exc))
        except QuotaExceeded as exc:
            return self._later(run, str(exc), seconds=QUOTA_SECONDS)
        except WorkElsewhere as exc:
            again = self._home.runs.requeue(run, reason=str(exc), demands=replace(run.demands, host=exc.host))
            return RunResult(run=again, outcome=None, message=str(exc))
        except (StateWriteFailed, DatabaseError) as exc:
            return self._later(run, str(exc), seconds=TROUBLE_SECONDS)
        except AdwError as exc:
            return self._refuse(run, exc) if run.kind in ERRAND_KINDS else self.give_up(run, exc)
        self._answer_latecomers(end)

        return end

    def _refuse(self, run: Run, cause: AdwError) -> RunResult:
        """End a run that may not be done; a workflow that it names stays as it is."""
        said = {"action": "run_failed", "run_id": run.run_id, "workflow": run.adw_id}
        logger.warning("Not done", extra=said, exc_info=cause)
        self._tell_handler(run, str(cause))
        ended = self._home.runs.finish(run, RunState.FAILED, reason=str(cause))

        return RunResult(run=ended, outcome=None, message=str(cause))

    def _tell_handler(self, run: Run, why: str) -> None:
        handler = self._home.job_handler(run.kind)
        if handler is None:
            return
        try:
            handler.give_up(run, why)
        except AdwError:
            said = {"action": "run_failed", "run_id": run.run_id}
            logger.warning("Could not record that the run has failed", extra=said, exc_info=True)

    def _with(self, owned: OwnedWorkflow, claim: Claim) -> RunResult:
        home = self._home
        run = owned.run or home.runs.begin(claim.run)
        with home.engine.log_of(run.adw_id), home.lease_renewer.charge(owned, run) as charge:
            if run.state is RunState.STOPPING:
                charge.give(Order(kind="stop", reason=run.reason or "asked to stop"))
            session = WorkSession(home.engine, owned, charge)
            outcome = self._carry_on(session, charge, RequestHandler(home.requests, session, charge), claim)
            if owned.ended is None and outcome != Stopped(reason="lost_lease"):
                session.rest()
        ended = owned.ended or owned.end_run(run, end_of(run, outcome))
        if isinstance(outcome, RetryAt):
            # Makes the run due when what the workflow waits for ended before it began to wait.
            home.executions.wake(run.adw_id)

        return RunResult(run=ended, outcome=outcome)

    def _carry_on(self, session: WorkSession, charge: LeaseHandle, requests: RequestHandler, claim: Claim) -> Outcome:
        """Make attempts until the workflow waits, is parked or is over."""
        if claim.owned is None:
            requests.fetch()
        for request in claim.requests:
            charge.note(request)
        early = requests.obey()
        if early is not None:
            return early
        # Raises QuotaExceeded when a limit is reached, WorkElsewhere when only another machine can continue the work.
        self._home.workspace.admit(session, has_quota=claim.has_quota(session.document))
        if not any(record.attempts for record in session.document.phases):
            self._home.status_comment.update(session)  # the requester sees it at once: a phase may take an hour

        def ends(outcome: Outcome, document: WorkflowDocument) -> RunEnd | None:
            """Return how the run ends with the write of *outcome*; None: there is more to do before it ends."""
            if not isinstance(outcome, Done | Failed | Paused) or charge.has_business():
                return None
            has_comment = self._home.has_forge and document.issue_number is not None
            has_agent = any(attempt.agent for record in document.phases for attempt in record.attempts)
            has_left = bool(document.resources) or has_comment or has_agent  # to be released or told outside
            return None if has_left else end_of(claim.run, outcome)

        while True:
            if session.has_begun:
                requests.note_hints()
            elif (early := requests.obey()) is not None:
                return early
            outcome = session.attempt(may_go_on=lambda: not charge.has_requests, end_of=ends)
            if not isinstance(outcome, Next):
                return outcome if session.has_ended else requests.conclude(outcome)
            self._home.status_comment.update(session)

    def _answer_latecomers(self, end: RunResult) -> None:
        """
        Answer requests made after our last poll and before the workflow was free.

        Later requesters find it free and make the change themselves; and where a run waits, the next owner answers.
        """
        home, run = self._home, end.run
        if run is None or run.state not in FINAL_RUNS:
            return
        try:
            if not home.requests.open_for(run.adw_id):
                return
            with (
                home.ownership.own(run.adw_id) as owned,
                home.engine.log_of(run.adw_id),
                home.lease_renewer.charge(owned) as charge,
            ):
                requests = RequestHandler(home.requests, WorkSession(home.engine, owned, charge), charge)
                requests.fetch()
                requests.obey()
        except WorkflowBusy:
            return  # the next owner does it
        except AdwError:
            said = {"action": "requests_not_answered", "workflow": run.adw_id}
            logger.warning("Requests wait for the next owner", extra=said, exc_info=True)

    # --- acting ------------------------------------------------------------------------------------------------

    def _later(self, run: Run, why: str, *, seconds: float) -> RunResult:
        due = self._home.clock.now() + timedelta(seconds=seconds)
        again = self._home.runs.requeue(run, not_before=timestamps.to_text(due), reason=why)

        return RunResult(run=again, outcome=None, message=why)

    def give_up(self, run: Run, cause: Exception) -> RunResult:
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
        self._tell_handler(run, why)
        ended = self._home.runs.finish(run, RunState.FAILED, reason=why)

        return RunResult(run=ended, outcome=None, message=why)

    def _park(self, run: Run, why: str) -> None:
        home = self._home
        try:
            with home.ownership.own(run.adw_id) as owned, home.lease_renewer.charge(owned) as charge:
                session = WorkSession(home.engine, owned, charge)
                with suppress(StateError):  # without a definition nobody can say what an open attempt means
                    session.settle()
                if WorkflowState(session.document.current_state) in ACTIVE_STATES:
                    session.change(lambda draft: transitions.pause(draft, why))
                    session.rest()
        except AdwError:
            # The run says why; recovery names a document that cannot be read.
            said = {"action": "workflow_not_parked", "workflow": run.adw_id}
            logger.warning("The workflow could not be parked", extra=said, exc_info=True)


def busy_seconds(claims: int) -> float:
    """Return how long to leave a busy workflow alone: creating or resuming one takes a moment only."""
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
        return f"{outcome.phase} is retried at {timestamps.to_text(outcome.at)}: {outcome.reason}"
    if isinstance(outcome, Paused):
        return f"paused: {outcome.reason}"
    if isinstance(outcome, Failed):
        return f"{outcome.phase} failed ({outcome.reason}): {outcome.message}"
    if isinstance(outcome, Stopped):
        return f"{_STOPS.get(outcome.reason, outcome.reason)}; the attempt under way does not count"

    return f"continues with {outcome.phase}"
