"""
Executing one run: own the workflow, make attempts, act on their outcomes.

Outcomes are acted on only here. The run is released, requeued or ended only after the document says so: a crash in
between leaves a run whose worker is gone, and recovery finds both.
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

# Requests to the owner of a workflow: each is obeyed first, then answered.
#
# What a request does depends on the state of the document now: a pause after the end is answered "too late". A request
# whose change could not be written is not answered, so the next owner finds it.


#: The answer to a hint.
NOTED = "noted for the next attempt"

#: Requests that park the workflow.
PAUSING = ("pause", "stop")
_ABANDONING = ("abandon", "rollback")
#: Orders after which another worker continues the workflow.
_LEAVING = ("drain", "lost_lease")


class RequestHandler:
    """Answers the requests to the owner of one workflow."""

    def __init__(self, requests: Requests, session: WorkSession, charge: LeaseHandle) -> None:
        self._requests = requests
        self._session = session
        self._charge = charge

    def fetch(self) -> None:
        """Fetch requests made since the lease renewer's last poll, or left by an owner that died."""
        for request in self._requests.open_for(self._charge.adw_id):
            self._charge.note(request)

    def obey(self) -> Outcome | None:
        """Obey and answer all requests while no attempt runs; return the outcome if one ends the work."""
        if self._has_lost_lease():
            return Stopped(reason="lost_lease")
        # A paused or abandoned workflow has no running attempt and no process.
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
        """Store the hints and leave other requests: an attempt is recorded, which must run or be suspended."""
        for request in self._charge.open_requests():
            if request.kind == "hint" and not self._has_lost_lease():
                self._obey_request(request)

    def conclude(self, outcome: Outcome) -> Outcome:
        """Obey requests that came during the last attempt, and return how the work ends."""
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
        """Obey an order that came without a request: a signal, or a run that is to stop."""
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
        """Pause the workflow unless it is parked or final, or abandon it unless it is final."""
        session, state, is_pause = self._session, self._state(), kind in PAUSING
        if state in TERMINAL_STATES or (is_pause and state not in ACTIVE_STATES):
            # The attempt ended by this order may have stored the state with its result; then only the mark is missing.
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
    """Store the hint of *request*, unless a delivery that was processed twice stored it before."""
    payload, mark = request.payload, _mark_of(request)
    if document.is_marked(draft.document, mark):
        return
    document.mark(draft, mark)
    resume.add_hint(draft, str(payload.get("phase") or ""), str(payload.get("text") or ""), request.asked_by)


def _mark_of(request: Request) -> Mark | None:
    return Mark.from_json(request.payload.get("mark"))


logger = logging.getLogger("adw.worker")

#: Maximum delay before the run of a busy workflow is retried, and the first delay.
BUSY_SECONDS = 2.0
FIRST_BUSY_SECONDS = 0.05
#: Seconds before a run is retried after a full disk or a lost database stopped it.
TROUBLE_SECONDS = 30.0
#: Seconds before a run refused by a quota is retried.
QUOTA_SECONDS = 60.0
#: Why work stopped without a change to the workflow itself.
_STOPS = {
    "drain": "its worker was told to end and gave it back",
    "lost_lease": "its worker could not prove any more that the workflow is its own",
}


class JobHandler(Protocol):
    """Executes runs of one kind that do not continue a workflow: `Home.job_handler` returns the one for a kind."""

    def work(self, run: Run) -> RunResult:
        """Execute and end a claimed run; errors are handled as for every other run."""

    def give_up(self, run: Run, why: str) -> None:
        """Record, where the requester sees it, that the run will not be executed."""


class RunExecutor:
    """Executes a claimed run as far as it can."""

    def __init__(self, home: Home) -> None:
        self._home = home
        # Built before a run is claimed: a wrong setting stops the worker instead of failing its runs, and the threads
        # that execute runs share them.
        _ = home.engine, home.workspace, home.ownership, home.lease_renewer, home.runs, home.requests

    def work(self, claimed: Run | Claim) -> RunResult:
        """Work on a claimed run, with what was taken with it, until its workflow waits, is parked or has ended."""
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
            except (RunLost, DatabaseError):  # it is no longer ours to requeue
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
        """Fail a run that must not be executed; a workflow that it names is not changed."""
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
            # Makes the run due if what the workflow waits for ended before it began to wait.
            home.executions.wake(run.adw_id)

        return RunResult(run=ended, outcome=outcome)

    def _carry_on(self, session: WorkSession, charge: LeaseHandle, requests: RequestHandler, claim: Claim) -> Outcome:
        """Make attempts until the workflow waits, is parked or has ended."""
        if claim.owned is None:
            requests.fetch()
        for request in claim.requests:
            charge.note(request)
        early = requests.obey()
        if early is not None:
            return early
        # Raises QuotaExceeded at a limit, WorkElsewhere if only another machine can continue the work.
        self._home.workspace.admit(session, has_quota=claim.has_quota(session.document))
        if not any(record.attempts for record in session.document.phases):
            self._home.status_comment.update(session)  # the requester sees it at once: a phase may take an hour

        def ends(outcome: Outcome, document: WorkflowDocument) -> RunEnd | None:
            """Return how the run ends in the same write as *outcome*; None: more is to be done before it ends."""
            if not isinstance(outcome, Done | Failed | Paused) or charge.has_business():
                return None
            has_comment = self._home.has_forge and document.issue_number is not None
            has_agent = any(attempt.agent for record in document.phases for attempt in record.attempts)
            has_left = bool(document.resources) or has_comment or has_agent  # to be released or reported outside
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
        Answer requests made between our last poll and the release of the workflow.

        Later requesters find the workflow free and make the change themselves; if a run is pending, the next owner
        answers.
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
            return  # the next owner answers
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
        Fail a run that cannot be worked on, and pause its workflow for a person.

        Its document is missing, damaged or inconsistent, or the state of the disk is unknown. If the workflow kept its
        state, each recovery would queue it again, forever.
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
                with suppress(StateError):  # without a definition an open attempt cannot be settled
                    session.settle()
                if WorkflowState(session.document.current_state) in ACTIVE_STATES:
                    session.change(lambda draft: transitions.pause(draft, why))
                    session.rest()
        except AdwError:
            # The run has the reason; recovery reports a document that cannot be read.
            said = {"action": "workflow_not_parked", "workflow": run.adw_id}
            logger.warning("The workflow could not be parked", extra=said, exc_info=True)


def busy_seconds(claims: int) -> float:
    """Return the delay before trying a busy workflow; short at first: creating or resuming one is quick."""
    return min(BUSY_SECONDS, FIRST_BUSY_SECONDS * 2.0 ** min(max(claims - 1, 0), 16))


def end_of(run: Run, outcome: Outcome) -> RunEnd:
    """Return how *outcome* ends the claim of a run: it is pending again, or final."""
    if isinstance(outcome, RetryAt):
        due = timestamps.to_text(outcome.at)
        return RunEnd(state=RunState.PENDING, not_before=due, reason=describe(outcome))
    if isinstance(outcome, Stopped):
        return RunEnd(state=RunState.PENDING, reason=describe(outcome))

    return RunEnd(state=final_state(run, outcome), reason=describe(outcome))


def final_state(run: Run, outcome: Outcome) -> RunState:
    """Return the final state of a run whose workflow does not continue after *outcome*."""
    if isinstance(outcome, Failed):
        return RunState.FAILED
    if not isinstance(outcome, Done):
        return RunState.STOPPED
    wanted = WorkflowState.ROLLED_BACK if run.kind == ROLLBACK else WorkflowState.COMPLETED

    return RunState.COMPLETED if outcome.state == wanted.value else RunState.STOPPED


def describe(outcome: Outcome) -> str:
    """Describe an outcome in a few words."""
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
