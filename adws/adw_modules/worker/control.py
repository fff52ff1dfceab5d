"""
Changes that people make to a workflow: pause, stop, abandon, resume, retry, approve, reject, hint.

Only the owner of a live lease writes, so while one exists the change becomes a request to it, and the caller is told.
Otherwise this takes the lease, closes what a crash left open, and makes the change itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from adws.adw_modules import document
from adws.adw_modules.document import Draft, FrozenIssue, Mark
from adws.adw_modules.engine import continuing, resume, transitions
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.engine.continuing import ContinuePlan, RunLimits
from adws.adw_modules.engine.resume import ResumePlan
from adws.adw_modules.engine.transitions import TerminalFailure, waiting_attempt
from adws.adw_modules.errors import (
    AdwError,
    ConfigError,
    ForgeError,
    NotTheLockOwner,
    StateError,
    StateInvalid,
    UnknownWorkflow,
    UsageError,
    WorkflowBusy,
)
from adws.adw_modules.interfaces import Request
from adws.adw_modules.phase import NoOrders, Outcome
from adws.adw_modules.queue.model import (
    FINAL_RUNS,
    LIVE_RUNS,
    ROLLBACK,
    Run,
    RunEnd,
    RunState,
    stop_reason,
)
from adws.adw_modules.state_machine import (
    ACTIVE_STATES,
    TERMINAL_STATES,
    WorkflowState,
    WorkflowStateMachine,
    state_named,
)
from adws.adw_modules.steps.model import WaitingRetry
from adws.adw_modules.worker.create_workflow import MAX_REWORKS, MAX_TOTAL_ATTEMPTS
from adws.adw_modules.worker.preflight import StartRequest
from adws.adw_modules.worker.run_executor import NOTED, note_hint
from adws.adw_modules.workflow.model import WorkflowSpec

if TYPE_CHECKING:
    from adws.adw_modules.db.connection import Session
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.identifiers import JsonObject
    from adws.app import Home


#: Orders about a workflow, given by command, page, API or comment -> the parameter that takes the text sent with it.
ORDERS = {
    **dict.fromkeys(("pause", "stop", "abandon"), "reason"),
    **dict.fromkeys(("approve", "reject", "hint"), "text"),
    **dict.fromkeys(("resume", "continue_with"), "hint"),
}
_ACTIVE = frozenset(state.value for state in ACTIVE_STATES)
#: The failure reason of a phase whose next attempt was cancelled by a person.
CANCELLED = "RETRY_CANCELLED"


def of_phase(document: WorkflowDocument) -> WaitingRetry | None:
    """Return the retry that a workflow waits for, or None."""
    index = _waiting_index(document)
    record = document.phases[index] if index is not None else None
    if record is None or not record.retry_at:
        return None

    return WaitingRetry(
        kind="phase",
        retry_id=document.adw_id,
        adw_id=document.adw_id,
        phase=record.name,
        next_at=record.retry_at,
        why=record.wait_reason or "it failed",
        attempt_number=record.attempts_used,
        error=record.last_failure_reason or "",
    )


def waiting_phase(document: WorkflowDocument) -> int:
    """Return the index of the phase that waits for a retry; raise UsageError if no phase does."""
    index = _waiting_index(document)
    if index is None:
        raise UsageError(f"workflow {document.adw_id} has no scheduled retry: adw queue retries lists those there are")

    return index


def _waiting_index(document: WorkflowDocument) -> int | None:
    """Return the index of the phase that waits for a retry; an unfinished attempt that waits for others is not one."""
    for index, record in enumerate(document.phases if document.current_state in _ACTIVE else ()):
        if record.status == "retry_wait" and waiting_attempt(record) is None:
            return index

    return None


_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The live owner was sent a request, which is durable."""

    request: Request
    owner: str  #: as text
    #: Obeys the request if the owner is gone by now; it may have died while obeying it.
    again: Callable[[], Asked | Applied] = field(compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """The change was made."""

    state: str  #: of the workflow, after the change
    message: str
    run: Run | None = None  #: the run that continues the workflow
    is_confirmed: bool = True  #: whether all its work is known to have ended


class Control:
    """Changes workflows from outside the run that works on them."""

    def __init__(self, home: Home, *, mark: Mark | None = None) -> None:
        """*mark* names the requester."""
        self._home = home
        self._mark = mark

    def asked_by(self, mark: Mark) -> Control:
        """Return a Control for request *mark*, which is stored with the change, so a delivery is obeyed only once."""
        return Control(self._home, mark=mark)

    def _change(self, session: WorkSession, rule: Callable[[Draft], _Result]) -> _Result:
        """Apply *rule* and the requester's mark in one write."""

        def marked(draft: Draft) -> _Result:
            answer = rule(draft)
            document.mark(draft, self._mark)
            return answer

        return session.change(marked)

    def _asked(self, payload: JsonObject) -> JsonObject:
        """Return *payload* for a request to a live owner, with the requester's mark."""
        return payload if self._mark is None else {**payload, "mark": self._mark.to_json()}

    @contextmanager
    def _session(self, adw_id: str, *, needs_issue: bool = True) -> Iterator[WorkSession]:
        """Own a workflow inside the block to change it; raise WorkflowBusy if it has a live owner."""
        engine = self._home.engine  # built first: a wrong setting is refused before taking the lease
        with self._home.ownership.own(adw_id, needs_issue=needs_issue) as owned, engine.log_of(adw_id):
            yield WorkSession(engine, owned, NoOrders())

    def order(self, adw_id: str, kind: str, *, by: str, text: str = "", **options: Any) -> Asked | Applied:
        """Carry out *kind*, one of ORDERS, with the *text* sent with it and the *options* of its method."""
        answer: Asked | Applied = getattr(self, kind)(adw_id, by=by, **{ORDERS[kind]: text}, **options)

        return answer

    # --- stopping ----------------------------------------------------------------------------------------------

    def pause(self, adw_id: str, *, by: str, reason: str = "") -> Asked | Applied:
        """Pause the workflow; a running attempt is suspended and does not count."""
        return self._ask_or_stop(adw_id, "pause", by, reason or f"paused by {by}")

    def stop(self, adw_id: str, *, by: str, reason: str = "", is_urgent: bool = False) -> Asked | Applied:
        """Stop the work and pause the workflow; *is_urgent* leaves its processes no time to end by themselves."""
        return self._ask_or_stop(adw_id, "stop", by, reason or f"stopped by {by}", is_urgent=is_urgent)

    def abandon(self, adw_id: str, *, by: str, reason: str = "") -> Asked | Applied:
        """Abandon the workflow and free its issue; what it made is kept until a rollback."""
        return self._ask_or_stop(adw_id, "abandon", by, reason or f"abandoned by {by}")

    def _stop(self, session: WorkSession, kind: str, why: str) -> Applied:
        """Pause or abandon a workflow that we own, and end its runs."""
        adw_id, state = session.document.adw_id, WorkflowState(session.document.current_state)
        is_abandoned = kind == "abandon"
        if state is WorkflowState.PAUSED and not is_abandoned:
            return Applied(state=state.value, message=f"workflow {adw_id} is paused already")
        if state in TERMINAL_STATES or (state is WorkflowState.FAILED and not is_abandoned):
            verb = "abandon" if is_abandoned else "pause"
            raise UsageError(f"workflow {adw_id} is {state.value}: there is nothing to {verb}")
        reason = stop_reason(why, session.doubt)
        change = transitions.abandon if is_abandoned else transitions.pause
        self._change(session, lambda draft: change(draft, reason))
        session.rest()
        self._end_runs(adw_id, reason)
        message = f"workflow {adw_id} is {'abandoned; what it made is kept' if is_abandoned else 'paused'}"
        if session.doubt:
            message = f"{message}; {reason}"

        return Applied(state=session.document.current_state, message=message, is_confirmed=not session.doubt)

    def _end_runs(self, adw_id: str, why: str) -> None:
        for run in self._home.runs.of_workflow(adw_id):
            is_left = run.state in LIVE_RUNS and run.seconds_left <= 0.0  # else its worker or recovery confirms it
            if is_left and self._home.runs.settle_lost(run, RunEnd(state=RunState.STOPPED, reason=why)) is not None:
                continue
            if run.state not in FINAL_RUNS:
                self._home.runs.ask_to_stop(run.run_id, reason=why)

    def _ask_or_stop(self, adw_id: str, kind: str, by: str, why: str, *, is_urgent: bool = False) -> Asked | Applied:
        """Stop the workflow as its owner, or leave a request for its live owner."""
        try:
            # A document of an older version may be ended even if another workflow has its issue by now.
            with self._session(adw_id, needs_issue=kind != "abandon") as session:
                session.settle()
                return self._stop(session, kind, why)
        except WorkflowBusy:
            payload = self._asked({"reason": why, "is_urgent": is_urgent})
            request = self._home.requests.ask(adw_id, kind, payload=payload, asked_by=by)
        if kind == "stop":
            # Also marked on the run, so that recovery of a dead worker knows that it was to stop.
            for run in self._home.runs.of_workflow(adw_id, limit=1):
                if run.state in LIVE_RUNS and run.kind != ROLLBACK:
                    self._home.runs.ask_to_stop(run.run_id, reason=why)

        return self._serve(request, lambda session: self._stop(session, kind, why))

    def _serve(self, request: Request, change: Callable[[WorkSession], Applied]) -> Asked | Applied:
        """Obey our own request if its owner left without seeing it (an owner polls once more after leaving)."""
        try:
            with self._session(request.adw_id) as session:
                asked = self._home.requests.get(request.request_id)
                if asked is not None and asked.handled_at is not None:
                    return Applied(state=session.document.current_state, message=asked.outcome or "answered")
                session.settle()
                try:
                    applied = change(session)
                except UsageError as exc:
                    self._home.requests.handled(request.request_id, str(exc))
                    raise
                self._home.requests.handled(request.request_id, applied.message)
                return applied
        except WorkflowBusy as exc:
            return Asked(request=request, owner=exc.owner, again=lambda: self._serve(request, change))

    # --- resuming ---------------------------------------------------------------------------------------------

    def plan(
        self,
        adw_id: str,
        *,
        from_phase: str = "",
        grant: int = 0,
        budget: float | None = None,
        spec: WorkflowSpec | None = None,
    ) -> ResumePlan:
        """Return what a resume would do; changes nothing."""
        document = self._home.load(adw_id)
        spec = self._missing_definition(document, spec)
        if spec is not None:
            clock = self._home.clock
            draft = Draft(document, WorkflowStateMachine.of(document, now=clock.now), now=clock.now)
            resume.adopt(draft, spec)
            document = draft.document
        machine = WorkflowStateMachine.of(document, now=self._home.clock.now)

        return resume.plan_resume(
            document,
            resume.definition_of(document),
            machine,
            from_phase=from_phase,
            grant=grant,
            budget=budget,
            max_cost_usd=self._home.settings.quota_max_cost,
        )

    def resume(
        self,
        adw_id: str,
        *,
        by: str,
        from_phase: str = "",
        hint: str = "",
        grant: int = 0,
        budget: float | None = None,
        spec: WorkflowSpec | None = None,
    ) -> Applied:
        """
        Resume a stopped workflow, and queue it; raise UsageError if it cannot be resumed.

        *budget* is its new limit on the total cost, in US dollars. *spec* is the definition for a document of an older
        version, which has none of its own; by default the one that the document names. If the workflow started without
        the text of its issue, the issue is read now; errors of the forge are raised unless *hint* says what to do.
        """
        issue: FrozenIssue | None = None
        try:
            issue = self._home.preflight.read_again(self._home.load(adw_id))
        except (ForgeError, ConfigError):
            if not hint:
                raise
        with self._session(adw_id) as session:
            self._refuse_while_rolled_back(adw_id)
            missing = self._missing_definition(session.document, spec)
            if missing is not None:
                self.plan(adw_id, from_phase=from_phase, grant=grant, budget=budget, spec=missing)  # checked first
                session.change(lambda draft: resume.adopt(draft, missing))
                session.forget_table()
            session.settle()
            plan = session.plan_resume(from_phase=from_phase, grant=grant, budget=budget)

            def take_issue(draft: Draft, issue: FrozenIssue) -> None:
                draft.document.issue = issue
                draft.add_event("issue_read", data={"title": issue.title, "url": issue.url})

            if issue is not None:
                session.change(partial(take_issue, issue=issue))
            self._change(session, lambda draft: resume.apply_resume(draft, plan, hint=hint, by=by))
            self._overtake(session)
            self._reset_breakers(session, plan.phase)
            run = self._leave_to(session, "retry" if grant else "resume", by)

            return Applied(state=session.document.current_state, message=plan.describe(), run=run)

    def _missing_definition(self, document: WorkflowDocument, spec: WorkflowSpec | None) -> WorkflowSpec | None:
        """Return the definition to add to a document of an older version: *spec*, or the one that it names."""
        if document.workflow is not None and document.workflow.phases:
            if spec is not None:
                raise UsageError(
                    f"workflow {document.adw_id} runs {document.workflow.name}, frozen when it started:"
                    " leave --workflow out"
                )
            return None
        resume.refuse_what_is_over(document, WorkflowStateMachine.of(document, now=self._home.clock.now))
        if spec is None and document.workflow is not None:
            named = document.workflow.name
            for name in (
                f"adw_{named}_iso",
                named,
            ):  # the script first: our workflow of that name may have other phases
                with suppress(UnknownWorkflow):
                    return self._home.workflows.get(name)

        return spec

    def plan_continue(
        self,
        adw_id: str,
        spec: WorkflowSpec,
        *,
        issue_number: int | None = None,
        repository: str = "",
        hint: str = "",
        budget: float | None = None,
    ) -> ContinuePlan:
        """Return what `continue_with` would do, or raise what it would raise; changes nothing."""
        home = self._home
        known = home.load(adw_id)
        _refuse_other_issue(home, known, issue_number, repository)
        plan = self._plan_continue(known, spec, budget)
        home.workflows.joined(resume.definition_of(known), plan.named)
        home.preflight.check(start_request(home, known, spec, hint))

        return plan

    def _plan_continue(self, stored: WorkflowDocument, spec: WorkflowSpec, budget: float | None) -> ContinuePlan:
        resume.definition_of(stored)  # raises for a document of an older version without one
        machine = WorkflowStateMachine.of(stored, now=self._home.clock.now)
        cap = self._home.settings.quota_max_cost

        return continuing.plan_continue(stored, machine, spec, budget=budget, max_cost_usd=cap)

    def continue_with(
        self,
        adw_id: str,
        spec: WorkflowSpec,
        *,
        by: str,
        issue_number: int | None = None,
        repository: str = "",
        hint: str = "",
        budget: float | None = None,
        model_set: str = "",
        priority: int = 0,
    ) -> Applied:
        """
        Continue a workflow with the phases of *spec* in the same document, worktree and branch, and queue it.

        Raises NotTheLockOwner if it is not the workflow of *issue_number* (None: of any issue), and IssueLocked if
        another workflow has the issue by now; otherwise it gets its issue lock back. Raises UsageError, or what the
        checks before a start raise, if it cannot continue or nothing would be done; then nothing has changed.
        """
        home = self._home
        self.plan_continue(
            adw_id, spec, issue_number=issue_number, repository=repository, hint=hint, budget=budget
        )  # raises before anything is owned: the forge and the remote may be slow
        with self._session(adw_id) as session:
            self._refuse_while_rolled_back(adw_id)
            session.settle()
            stored = session.document
            plan = self._plan_continue(stored, spec, budget)
            joined = home.workflows.joined(session.spec, plan.named)
            limits = RunLimits(
                attempts=MAX_TOTAL_ATTEMPTS,
                minutes=home.settings.max_minutes,
                reworks=MAX_REWORKS,
            )
            # The lock before the document: after a crash in between, recovery frees the lock, while an active document
            # without it would share its issue. The run last: recovery queues an active workflow that has no run.
            home.ownership.claim_again(stored)
            phase = self._change(
                session,
                lambda draft: continuing.apply_continue(
                    draft, plan, joined, limits=limits, hint=hint, by=by, model_set=model_set
                ),
            )
            session.forget_table()
            self._overtake(session)
            self._reset_breakers(session, phase)
            run = self._leave_to(session, "resume", by, priority=priority)

            return Applied(state=session.document.current_state, message=plan.describe(), run=run)

    def _reset_breakers(self, session: WorkSession, name: str) -> None:
        """Let a requested phase run at once, even if circuit breakers of its services are open."""
        for phase in session.spec.phases:
            if phase.name == name and self._home.service_guard.reset_breakers(phase):
                self._home.service_waits.wake()

    def _refuse_while_rolled_back(self, adw_id: str) -> None:
        for run in self._home.runs.of_workflow(adw_id, limit=1):
            if run.kind == ROLLBACK and run.state not in FINAL_RUNS:
                raise UsageError(f"workflow {adw_id} is to be rolled back (run {run.run_id}): it does not go on")

    def _overtake(self, session: WorkSession) -> None:
        """Answer requests whose owner died: the decision made now is newer than they are, but hints are still noted."""
        for request in self._home.requests.open_for(session.document.adw_id):
            answer = "overtaken: the workflow was told to go on"
            if request.kind == "hint":
                session.change(partial(note_hint, request))
                answer = NOTED
            self._home.requests.handled(request.request_id, answer)

    def _leave_to(self, session: WorkSession, kind: str, by: str, *, priority: int = 0) -> Run:
        """
        Release the workflow and return a run that is due now, in one transaction; replaces a run with a later due time.

        The caller owns the workflow, so a run that is still claimed belongs to a worker that is gone, or that will find
        the workflow owned.
        """
        runs, why = self._home.runs, f"{kind} asked by {by or 'somebody'}"
        wanted = self._home.run_factory.of(session.document, kind, asked_by=by, priority=priority)

        def enqueue(transaction: Session) -> Run:
            run = runs.enqueue_in(transaction, wanted)
            if run.state in LIVE_RUNS:
                runs.settle_in(transaction, run, RunEnd(state=RunState.PENDING, reason=why))
                run = runs.enqueue_in(transaction, wanted)
            if run.state is not RunState.PENDING or not run.not_before:
                return run
            runs.stop_in(transaction, run.run_id, reason=why)

            return runs.enqueue_in(transaction, replace(wanted, priority=run.priority))

        return session.owned.leave_with(enqueue)

    def hint(self, adw_id: str, text: str, *, by: str) -> Asked | Applied:
        """Say what to do differently in the next attempt."""
        try:
            with self._session(adw_id) as session:
                return self._note_hint(session, text, by)
        except WorkflowBusy:
            request = self._home.requests.ask(adw_id, "hint", payload=self._asked({"text": text}), asked_by=by)

        return self._serve(request, lambda session: self._note_hint(session, text, by))

    def _note_hint(self, session: WorkSession, text: str, by: str) -> Applied:
        state = WorkflowState(session.document.current_state)
        if state in TERMINAL_STATES:
            raise UsageError(f"workflow {session.document.adw_id} is {state.value}: there is no next attempt")
        self._change(session, lambda draft: resume.add_hint(draft, "", text, by))

        return Applied(state=state.value, message=NOTED)

    # --- retries -----------------------------------------------------------------------------------------------

    def cancel_retry(self, adw_id: str, *, by: str, reason: str = "") -> Applied:
        """Fail the phase that waits for a retry; raise UsageError if none does, WorkflowBusy during work."""
        with self._session(adw_id) as session:
            session.settle()
            index = waiting_phase(session.document)
            phase = session.document.phases[index].name
            why = f"{by} cancelled its next attempt" + (f": {reason}" if reason else "")
            failure = TerminalFailure(reason=CANCELLED, message=why)
            self._change(session, lambda draft: transitions.fail_waiting(draft, session.spec, index, failure))
            session.rest()
            state = WorkflowState(session.document.current_state)
            if state in TERMINAL_STATES or state is WorkflowState.FAILED:
                self._end_runs(adw_id, f"the retry of {phase} was cancelled by {by}")
                run = None
            else:  # the phase is not required
                run = self._leave_to(session, "resume", by)
            message = f"{phase} is not retried; the workflow is {state.value}"

            return Applied(state=state.value, message=message, run=run)

    # --- approval ----------------------------------------------------------------------------------------------

    def approve(self, adw_id: str, *, by: str, text: str = "") -> Applied:
        """Approve the waiting phase, and queue the workflow."""
        return self._judge(adw_id, by, lambda session, draft: resume.approve(draft, session.spec, text=text, by=by))

    def reject(self, adw_id: str, *, by: str, text: str = "") -> Applied:
        """Send the waiting phase back to work with *text* as a hint, and queue the workflow."""
        return self._judge(adw_id, by, lambda session, draft: resume.reject(draft, session.spec, text=text, by=by))

    def _judge(self, adw_id: str, by: str, rule: Callable[[WorkSession, Draft], Outcome | None]) -> Applied:
        with self._session(adw_id) as session:
            self._refuse_while_rolled_back(adw_id)
            phase = session.document.phases[resume.waiting_phase(session.document)].name
            self._change(session, lambda draft: rule(session, draft))
            state = WorkflowState(session.document.current_state)
            is_over = state in TERMINAL_STATES or state is WorkflowState.FAILED
            self._overtake(session)
            run = None if is_over else self._leave_to(session, "resume", by)

            return Applied(state=state.value, message=f"{phase} is decided; the workflow is {state.value}", run=run)


# Continuing the work of an issue: finding its workflow, and checking that it may continue.


def last_workflow(home: Home, issue_number: int, repository: str, spec: WorkflowSpec) -> WorkflowDocument:
    """Return the last workflow of an issue, which *spec* continues; raise UsageError if the issue has none."""
    repository = repository or home.settings.repository or ""
    rows = home.catalogue.find_by_issue(issue_number, repository) if home.has_database() else ()
    for row in rows:
        try:
            return home.load(row.adw_id)
        except StateError:
            continue  # it was deleted, or is unreadable

    raise UsageError(
        f"{spec.name} continues the work of an earlier workflow, and issue {issue_number} has none:"
        f" adw run {issue_number} --workflow plan begins it"
    )


def start_request(home: Home, document: WorkflowDocument, spec: WorkflowSpec, hint: str) -> StartRequest:
    """Return the checks to pass before *document* continues with *spec*; its own pull request may be open."""
    issue = document.issue or FrozenIssue()
    only_cleans = all(phase.state == WorkflowState.CLEANING.value for phase in spec.phases)

    return StartRequest(
        spec=spec,
        issue_number=None if only_cleans else document.issue_number,
        repository=document.repository,
        title=issue.title,
        body=issue.body,
        hint=hint,
        is_in_place=not home.has_worktrees and home.settings.worktree_enabled,
        is_again=True,
    )


def _refuse_other_issue(home: Home, document: WorkflowDocument, issue_number: int | None, repository: str) -> None:
    """Raise NotTheLockOwner unless *document* is of that issue and no later workflow continued its branch."""
    adw_id, locks = document.adw_id, home.locks
    wanted = document.issue_number if issue_number is None else issue_number
    is_there = not repository or locks.key(document.repository) == locks.key(repository)
    if wanted is None:
        return
    if document.issue_number != wanted or not is_there:
        named = f"issue {document.issue_number}" if document.issue_number is not None else "no issue"
        of = f" of {document.repository}" if document.repository and not is_there else ""
        raise NotTheLockOwner(adw_id, wanted, f"its document names {named}{of}")
    first = document.continues or adw_id
    for row in home.catalogue.find_by_issue(wanted, document.repository or home.settings.repository or ""):
        if row.adw_id == adw_id:
            continue
        try:
            other = home.load(row.adw_id)
        except StateError:
            continue
        if other.continues == first and other.followups > document.followups:
            raise NotTheLockOwner(adw_id, wanted, f"workflow {other.adw_id} continued its branch: use that one")


# Orders that a workflow allows in its present state.
#
# Pure, and no second set of rules: `resume.plan_resume` decides whether a workflow can be resumed. A live owner can be
# asked to stop or to take a hint; orders that need a free workflow are not offered while it has an owner.


#: Added to what a workflow has cost, to see whether budget is what it lacks.
_ENOUGH_USD = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Possible:
    """Orders that a workflow allows."""

    approval: str = ""  #: the phase that waits for approval, or ""
    may_pause: bool = False
    may_stop: bool = False  #: it has an owner that can be stopped
    may_abandon: bool = False
    may_hint: bool = False
    may_roll_back: bool = False
    is_retry: bool = False  #: it failed, so resuming it is a retry
    plan: str = ""  #: what a resume would do, as text; "" if it cannot be resumed
    needs: tuple[str, ...] = ()  #: grant | budget: required with the order to resume
    phases: tuple[str, ...] = ()  #: those from which it can be restarted
    refusal: str = ""  #: why it cannot be resumed, or what it needs
    cancels: str = ""  #: the phase whose next attempt can be cancelled, or ""

    @property
    def may_go_on(self) -> bool:
        """Whether the workflow can be resumed."""
        return bool(self.plan)


def allowed_actions(
    document: WorkflowDocument,
    *,
    is_live: bool = False,
    is_rolled_back_next: bool = False,
    max_cost_usd: float | None = None,
    now: Callable[[], datetime],
) -> Possible:
    """
    Return the orders that the workflow in *document* allows.

    *is_live*: it has a live owner. *is_rolled_back_next*: a rollback of it is queued. *max_cost_usd* is the cap in the
    settings.
    """
    state = state_named(document.current_state)
    may_roll_back = state is not WorkflowState.ROLLED_BACK and not document.pr_merged
    if document.rollback is not None or is_rolled_back_next:
        return Possible(may_roll_back=may_roll_back and not is_rolled_back_next)
    is_over = state in TERMINAL_STATES
    is_free = not is_live and not is_over
    # An attempt that waits for others continues by itself; resumed, it would only wait again.
    waits_for_others = any(waiting_attempt(record) is not None for record in document.phases)

    def phase_name(find: Callable[[WorkflowDocument], int]) -> str:
        try:
            return document.phases[find(document)].name if is_free else ""
        except UsageError:
            return ""

    possible = Possible(
        approval=phase_name(resume.waiting_phase),
        may_pause=state in ACTIVE_STATES,
        may_stop=is_live and state in ACTIVE_STATES,
        may_abandon=not is_over,
        may_hint=not is_over,
        may_roll_back=may_roll_back,
        is_retry=state is WorkflowState.FAILED,
        cancels=phase_name(waiting_phase),
    )
    if not is_free or waits_for_others:
        return possible
    try:
        spec = resume.definition_of(document)
        machine = WorkflowStateMachine.of(document, now=now)
    except StateInvalid as exc:
        return replace(possible, refusal=str(exc))

    def plan(*, from_phase: str = "", needs: tuple[str, ...] = ()) -> ResumePlan | str:
        """Return the plan of a resume, or why it is refused."""
        try:
            return resume.plan_resume(
                document,
                spec,
                machine,
                from_phase=from_phase,
                grant=1 if "grant" in needs else 0,
                budget=document.cost.total_usd + _ENOUGH_USD if "budget" in needs else None,
                max_cost_usd=max_cost_usd,
            )
        except AdwError as exc:
            return str(exc)

    refusal = ""
    for needs in ((), ("grant",), ("budget",), ("grant", "budget")):
        result = plan(needs=needs)
        if isinstance(result, str):
            refusal = refusal or result
            continue
        startable = tuple(
            record.name
            for record in document.phases
            if any(isinstance(plan(from_phase=record.name, needs=also), ResumePlan) for also in ((), ("budget",)))
        )
        said = f"workflow {document.adw_id} continues with {result.phase}" if needs else result.describe()
        return replace(possible, plan=said, needs=needs, phases=startable, refusal=refusal)

    return replace(possible, refusal=refusal)


# Scheduled retries of phases and of step calls in one list, and cancelling one.


class PendingRetries:
    """Lists scheduled retries and cancels them."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def all(self, *, adw_id: str = "", limit: int = 1000) -> tuple[WaitingRetry, ...]:
        """Return the scheduled retries, the next one first."""
        ids, retries = [adw_id], [*self._home.executions.retries(adw_id=adw_id, limit=limit)]
        if not adw_id:  # the workflows whose run has a due time
            waiting = (run for run in self._home.runs.unfinished() if run.state is RunState.PENDING)
            ids = list(dict.fromkeys(run.adw_id for run in waiting if run.not_before and not run.slot))
        for one in ids:
            try:
                retry = of_phase(self._home.load(one))
            except AdwError:
                if adw_id:
                    raise
                continue  # unreadable; `adw db check` names it
            if retry is not None:
                retries.append(retry)

        return tuple(sorted(retries, key=lambda retry: (retry.next_at, retry.retry_id, retry.index or 0))[:limit])

    def cancel(self, retry_id: str, *, by: str, index: int | None = None, reason: str = "") -> str:
        """
        Cancel the retry *retry_id* and return what was done; raise UsageError if there is no such retry.

        Of an execution, this cancels the call of one iteration, or all unfinished ones; of a workflow, it fails the
        phase.
        """
        executions = self._home.executions
        if executions.get(retry_id) is None:
            if index is not None:
                raise UsageError(
                    f"there is no execution {retry_id}, so it has no iteration {index}: adw queue retries shows them"
                )
            return self._home.control.cancel_retry(retry_id, by=by, reason=reason).message
        why = f"cancelled by {by}" + (f": {reason}" if reason else "")
        if not executions.cancel(retry_id, reason=why, index=index):
            what = "is over" if index is None else f"has no iteration {index} that waits for a call"
            raise UsageError(f"execution {retry_id} {what}: adw queue retries lists the scheduled retries")

        return f"execution {retry_id} is {why}" if index is None else f"iteration {index} of {retry_id} is {why}"
