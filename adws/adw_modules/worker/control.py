"""
What people do to a workflow: pause, stop, abandon, resume, retry, approve, reject, hint.

While a lease is live only its owner writes: then this leaves a request, and says so. Without a live owner it takes the
lease, closes what a crash left open, and makes the change itself.
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


#: What people order about a workflow, by command, page, API or comment -> what the text is that comes with it.
ORDERS = {
    **dict.fromkeys(("pause", "stop", "abandon"), "reason"),
    **dict.fromkeys(("approve", "reject", "hint"), "text"),
    **dict.fromkeys(("resume", "continue_with"), "hint"),
}
_ACTIVE = frozenset(state.value for state in ACTIVE_STATES)
#: Why a phase has failed whose next attempt a person did not want.
CANCELLED = "RETRY_CANCELLED"


def of_phase(document: WorkflowDocument) -> WaitingRetry | None:
    """Return the retry that a workflow waits for, None when it waits for none."""
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
    """Return the index of the phase that waits for a retry; raise UsageError when none does."""
    index = _waiting_index(document)
    if index is None:
        raise UsageError(f"workflow {document.adw_id} has no scheduled retry: adw queue retries lists those there are")

    return index


def _waiting_index(document: WorkflowDocument) -> int | None:
    """Return the index of the phase that waits; one whose attempt waits for others is no retry: it is not over."""
    for index, record in enumerate(document.phases if document.current_state in _ACTIVE else ()):
        if record.status == "retry_wait" and waiting_attempt(record) is None:
            return index

    return None


def cancel(draft: Draft, spec: WorkflowSpec, index: int, *, by: str, reason: str = "") -> Outcome:
    """Fail the phase at *index* instead of retrying it; the workflow continues without one that is not required."""
    why = f"{by} cancelled its next attempt" + (f": {reason}" if reason else "")

    return transitions.fail_waiting(draft, spec, index, TerminalFailure(reason=CANCELLED, message=why))


_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A live owner was asked; the request is durable."""

    request: Request
    owner: str  #: as text
    #: Obeys the request if its owner is gone by now; the owner may have died over it.
    again: Callable[[], Asked | Applied] = field(compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """It is done."""

    state: str  #: of the workflow, now
    message: str
    run: Run | None = None  #: the one that continues it
    is_confirmed: bool = True  #: whether everything that worked on it is known to have ended


class Control:
    """Changes workflows from outside their work."""

    def __init__(self, home: Home, *, mark: Mark | None = None) -> None:
        """*mark* names the requester."""
        self._home = home
        self._mark = mark

    def asked_by(self, mark: Mark) -> Control:
        """Return the same for what *mark* asks: the write that obeys it says so, and a delivery is obeyed once."""
        return Control(self._home, mark=mark)

    def _change(self, session: WorkSession, rule: Callable[[Draft], _Result]) -> _Result:
        """Store what *rule* does, and who asked for it."""

        def marked(draft: Draft) -> _Result:
            answer = rule(draft)
            document.mark(draft, self._mark)
            return answer

        return session.change(marked)

    def _asked(self, payload: JsonObject) -> JsonObject:
        """Return the payload of a request to a live owner, with who makes it."""
        return payload if self._mark is None else {**payload, "mark": self._mark.to_json()}

    @contextmanager
    def _session(self, adw_id: str, *, needs_issue: bool = True) -> Iterator[WorkSession]:
        """Own a workflow to change it inside the block; raise WorkflowBusy when somebody works on it."""
        engine = self._home.engine  # built first: a wrong setting is refused before the workflow is taken
        with self._home.ownership.own(adw_id, needs_issue=needs_issue) as owned, engine.log_of(adw_id):
            yield WorkSession(engine, owned, NoOrders())

    def order(self, adw_id: str, kind: str, *, by: str, text: str = "", **options: Any) -> Asked | Applied:
        """Carry out *kind*, one of ORDERS, with the *text* that came with it and the *options* of its own method."""
        answer: Asked | Applied = getattr(self, kind)(adw_id, by=by, **{ORDERS[kind]: text}, **options)

        return answer

    # --- stopping ----------------------------------------------------------------------------------------------

    def pause(self, adw_id: str, *, by: str, reason: str = "") -> Asked | Applied:
        """Park the workflow; an attempt under way is suspended and does not count."""
        return self._ask_or_stop(adw_id, "pause", by, reason or f"paused by {by}")

    def stop(self, adw_id: str, *, by: str, reason: str = "", is_urgent: bool = False) -> Asked | Applied:
        """Stop the work and park the workflow; with *is_urgent* its processes get no time to end by themselves."""
        return self._ask_or_stop(adw_id, "stop", by, reason or f"stopped by {by}", is_urgent=is_urgent)

    def abandon(self, adw_id: str, *, by: str, reason: str = "") -> Asked | Applied:
        """Give the workflow up and free its issue; what it made is kept until a rollback."""
        return self._ask_or_stop(adw_id, "abandon", by, reason or f"abandoned by {by}")

    def _stop(self, session: WorkSession, kind: str, why: str) -> Applied:
        """Park or abandon a workflow that we own, and end its runs."""
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
            is_left = run.state in LIVE_RUNS and run.seconds_left <= 0.0  # else its worker, or recovery, confirms it
            if is_left and self._home.runs.settle_lost(run, RunEnd(state=RunState.STOPPED, reason=why)) is not None:
                continue
            if run.state not in FINAL_RUNS:
                self._home.runs.ask_to_stop(run.run_id, reason=why)

    def _ask_or_stop(self, adw_id: str, kind: str, by: str, why: str, *, is_urgent: bool = False) -> Asked | Applied:
        """Stop the workflow as its owner, or leave a request to the one there is."""
        try:
            # Ending a document of an older version is allowed also when another workflow has its issue by now.
            with self._session(adw_id, needs_issue=kind != "abandon") as session:
                session.settle()
                return self._stop(session, kind, why)
        except WorkflowBusy:
            payload = self._asked({"reason": why, "is_urgent": is_urgent})
            request = self._home.requests.ask(adw_id, kind, payload=payload, asked_by=by)
        if kind == "stop":
            # On the run, too: then recovery of a dead worker knows what was wanted of it.
            for run in self._home.runs.of_workflow(adw_id, limit=1):
                if run.state in LIVE_RUNS and run.kind != ROLLBACK:
                    self._home.runs.ask_to_stop(run.run_id, reason=why)

        return self._serve(request, lambda session: self._stop(session, kind, why))

    def _serve(self, request: Request, change: Callable[[WorkSession], Applied]) -> Asked | Applied:
        """Obey our own request if its owner left before seeing it; an owner polls once more after it left."""
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
        Resume a stopped workflow, and queue it; raise UsageError, saying why, when it cannot.

        *budget* is what it may cost in all from now on, in US dollars. *spec* is for a document of an older version,
        which has no definition of its own; without it, the one that the document names. An issue that had no text when
        the workflow started is read again; raises what the forge raises, unless *hint* says what to do.
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
                self.plan(adw_id, from_phase=from_phase, grant=grant, budget=budget, spec=missing)  # refused unwritten
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
        """Return the definition that a document of an older version gets: *spec*, or the one that it names."""
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
            for name in (f"adw_{named}_iso", named):  # a script of this name, which need not have the shape of ours
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
        """Return what `continue_with` would do, or raise what it would; changes nothing."""
        home = self._home
        known = home.load(adw_id)
        _refuse_other_issue(home, known, issue_number, repository)
        plan = self._plan_continue(known, spec, budget)
        home.workflows.joined(resume.definition_of(known), plan.named)
        home.preflight.check(start_request(home, known, spec, hint))

        return plan

    def _plan_continue(self, stored: WorkflowDocument, spec: WorkflowSpec, budget: float | None) -> ContinuePlan:
        resume.definition_of(stored)  # raises for one of an older version that has none
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
        Carry a workflow on with the phases of *spec* in the same document, worktree and branch, and queue it.

        It must be that of *issue_number* (None: of whichever), and gets its issue back: raises NotTheLockOwner, or
        IssueLocked when another workflow has the issue by now. What cannot be done, and what could only end with
        nothing done, raises UsageError or what the checks before a start raise; nothing has changed then.
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
            # The lock before the document: a crash in between leaves one that recovery frees, while an active document
            # without it would share its issue. The run last: recovery queues an active workflow that has none.
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
        """Let a phase that a person asked for be tried at once, also when its services were unavailable."""
        for phase in session.spec.phases:
            if phase.name == name and self._home.service_guard.reset_breakers(phase):
                self._home.service_waits.wake()

    def _refuse_while_rolled_back(self, adw_id: str) -> None:
        for run in self._home.runs.of_workflow(adw_id, limit=1):
            if run.kind == ROLLBACK and run.state not in FINAL_RUNS:
                raise UsageError(f"workflow {adw_id} is to be rolled back (run {run.run_id}): it does not go on")

    def _overtake(self, session: WorkSession) -> None:
        """Answer requests to an owner that died over them: what is decided now is newer, but a hint still holds."""
        for request in self._home.requests.open_for(session.document.adw_id):
            answer = "overtaken: the workflow was told to go on"
            if request.kind == "hint":
                session.change(partial(note_hint, request))
                answer = NOTED
            self._home.requests.handled(request.request_id, answer)

    def _leave_to(self, session: WorkSession, kind: str, by: str, *, priority: int = 0) -> Run:
        """
        Give the workflow back and return a run that is due now, in one transaction; one that waits is replaced.

        Called by the owner of the workflow: a run that somebody else still has belongs to a worker that is gone, or
        that will find the workflow owned.
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
        """Fail the phase that waits for a retry; raise UsageError when none does, WorkflowBusy while at work."""
        with self._session(adw_id) as session:
            session.settle()
            index = waiting_phase(session.document)
            phase = session.document.phases[index].name
            self._change(session, lambda draft: cancel(draft, session.spec, index, by=by, reason=reason))
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
        """Let the phase that waits pass, and queue the workflow."""
        return self._judge(adw_id, by, lambda session, draft: resume.approve(draft, session.spec, text=text, by=by))

    def reject(self, adw_id: str, *, by: str, text: str = "") -> Applied:
        """Send the phase that waits back to work, with *text* as a hint, and queue the workflow."""
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


# Continuing the work of an issue: which workflow that is, and whether it may.


def last_workflow(home: Home, issue_number: int, repository: str, spec: WorkflowSpec) -> WorkflowDocument:
    """Return the last workflow of an issue, which *spec* continues; raise UsageError when there is none."""
    repository = repository or home.settings.repository or ""
    rows = home.catalogue.find_by_issue(issue_number, repository) if home.has_database() else ()
    for row in rows:
        try:
            return home.load(row.adw_id)
        except StateError:
            continue  # it was deleted, or cannot be read by anybody

    raise UsageError(
        f"{spec.name} continues the work of an earlier workflow, and issue {issue_number} has none:"
        f" adw run {issue_number} --workflow plan begins it"
    )


def start_request(home: Home, document: WorkflowDocument, spec: WorkflowSpec, hint: str) -> StartRequest:
    """Return what has to be so before *document* is carried on with *spec*; its own pull request may be open."""
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
    """Raise NotTheLockOwner unless *document* is of that issue, and the last one that works on its branch."""
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


# What a person may order about a workflow as it stands now.
#
# Pure, and no second set of rules: whether a workflow can be resumed is decided by the plan that resuming uses. A live
# owner can be asked to stop or to take a hint; what needs the workflow to be free is not offered while it has an owner.


#: More than a workflow has cost, to see whether money is what it lacks.
_ENOUGH_USD = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GoingOn:
    """How a workflow can be resumed."""

    plan: str = ""  #: what would happen, as text; "": it cannot
    needs: tuple[str, ...] = ()  #: grant | budget: what has to come with the order
    phases: tuple[str, ...] = ()  #: those that it can be started from afresh
    refusal: str = ""  #: why it cannot be resumed, or what it needs


@dataclass(frozen=True, kw_only=True, slots=True)
class Possible:
    """What may be ordered."""

    approval: str = ""  #: the phase that waits to be approved or rejected, "" for none
    may_pause: bool = False
    may_stop: bool = False  #: somebody works on it, and can be stopped
    may_abandon: bool = False
    may_hint: bool = False
    may_roll_back: bool = False
    is_retry: bool = False  #: it failed: resuming it is a retry
    going_on: GoingOn = field(default_factory=GoingOn)
    cancels: str = ""  #: the phase whose next attempt can be cancelled, "" for none

    @property
    def may_go_on(self) -> bool:
        """Whether it can be resumed."""
        return bool(self.going_on.plan)


def allowed_actions(
    document: WorkflowDocument,
    *,
    is_live: bool = False,
    is_rolled_back_next: bool = False,
    max_cost_usd: float | None = None,
    now: Callable[[], datetime],
) -> Possible:
    """
    Return what may be ordered about the workflow in *document*.

    *is_live*: somebody works on it. *is_rolled_back_next*: a rollback waits for a worker. *max_cost_usd* is the cap of
    the settings.
    """
    state = state_named(document.current_state)
    may_roll_back = state is not WorkflowState.ROLLED_BACK and not document.pr_merged
    if document.rollback is not None or is_rolled_back_next:
        return Possible(may_roll_back=may_roll_back and not is_rolled_back_next)
    is_over = state in TERMINAL_STATES
    is_free = not is_live and not is_over
    # An attempt that waits for others continues by itself: resumed, it would wait again.
    waits_for_others = any(waiting_attempt(record) is not None for record in document.phases)

    def phase_name(find: Callable[[WorkflowDocument], int]) -> str:
        try:
            return document.phases[find(document)].name if is_free else ""
        except UsageError:
            return ""

    return Possible(
        approval=phase_name(resume.waiting_phase),
        may_pause=state in ACTIVE_STATES,
        may_stop=is_live and state in ACTIVE_STATES,
        may_abandon=not is_over,
        may_hint=not is_over,
        may_roll_back=may_roll_back,
        is_retry=state is WorkflowState.FAILED,
        going_on=_going_on(document, max_cost_usd, now) if is_free and not waits_for_others else GoingOn(),
        cancels=phase_name(waiting_phase),
    )


def _going_on(document: WorkflowDocument, max_cost_usd: float | None, now: Callable[[], datetime]) -> GoingOn:
    """Return what a resume would do, or what it needs to be possible."""
    try:
        spec = resume.definition_of(document)
        machine = WorkflowStateMachine.of(document, now=now)
    except StateInvalid as exc:
        return GoingOn(refusal=str(exc))

    def plan(*, from_phase: str = "", needs: tuple[str, ...] = ()) -> ResumePlan | str:
        """Return the plan, or why there is none."""
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

    def startable_phases() -> tuple[str, ...]:
        return tuple(
            record.name
            for record in document.phases
            if isinstance(plan(from_phase=record.name), ResumePlan)
            or isinstance(plan(from_phase=record.name, needs=("budget",)), ResumePlan)
        )

    result = plan()
    if isinstance(result, ResumePlan):
        return GoingOn(plan=result.describe(), phases=startable_phases())
    for needs in (("grant",), ("budget",), ("grant", "budget")):
        other = plan(needs=needs)
        if isinstance(other, ResumePlan):
            phase = f"workflow {document.adw_id} continues with {other.phase}"
            return GoingOn(plan=phase, needs=needs, phases=startable_phases(), refusal=result)

    return GoingOn(refusal=result)


# Scheduled retries in one list, phases and calls of steps, and cancelling one.


class PendingRetries:
    """Lists scheduled retries and cancels them."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def all(self, *, adw_id: str = "", limit: int = 1000) -> tuple[WaitingRetry, ...]:
        """Return the scheduled retries, the next one first."""
        ids, retries = [adw_id], [*self._home.executions.retries(adw_id=adw_id, limit=limit)]
        if not adw_id:  # the workflows whose run waits for a moment
            waiting = (run for run in self._home.runs.unfinished() if run.state is RunState.PENDING)
            ids = list(dict.fromkeys(run.adw_id for run in waiting if run.not_before and not run.slot))
        for one in ids:
            try:
                retry = of_phase(self._home.load(one))
            except AdwError:
                if adw_id:
                    raise
                continue  # its run waits, and nobody can read what for; `adw db check` names it
            if retry is not None:
                retries.append(retry)

        return tuple(sorted(retries, key=lambda retry: (retry.next_at, retry.retry_id, retry.index or 0))[:limit])

    def cancel(self, retry_id: str, *, by: str, index: int | None = None, reason: str = "") -> str:
        """
        Cancel the retry *retry_id*, and return what was done; raise UsageError when there is none.

        Of an execution: the call of one iteration, or all that has not ended. Of a workflow: its phase fails.
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
