"""
What people do to a workflow: pause, stop, abandon, resume, retry, approve, reject, hint.

While a lease is live only its owner writes: then this leaves a request, and says so. Without a live owner it takes the
lease, closes what a crash left open, and makes the change itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from adws.adw_modules import attempt_rules, command_rules, resume_rules, retry_rules
from adws.adw_modules.command_rules import Mark
from adws.adw_modules.coordination.request_desk import NOTED, note_hint
from adws.adw_modules.document_draft import Draft
from adws.adw_modules.engine.attempt import EngineParts, WorkSession
from adws.adw_modules.errors import UsageError, WorkflowBusy
from adws.adw_modules.interfaces import Ownership, Request, Requests
from adws.adw_modules.interfaces_engine import NoOrders, RunQueue
from adws.adw_modules.outcome import Outcome
from adws.adw_modules.resume_rules import ResumePlan
from adws.adw_modules.run_making import RunMaker
from adws.adw_modules.runs import FINAL_RUNS, LIVE_RUNS, ROLLBACK, NewRun, Run, RunEnd, RunState, stop_reason
from adws.adw_modules.state_machine import WorkflowState, WorkflowStateMachine
from adws.adw_modules.state_table import TERMINAL_STATES
from adws.adw_modules.workflow import WorkflowSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.json_value import JsonObject

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A live owner was asked; the request is durable."""

    request: Request
    owner: str  #: in words
    #: Obeys the request if its owner is gone by now; he may have died over it.
    again: Callable[[], Asked | Applied] = field(compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """It is done."""

    state: str  #: of the workflow, now
    message: str
    run: Run | None = None  #: the one that goes on with it
    is_confirmed: bool = True  #: whether everything that worked on it is known to have ended


class Control:
    """Changes workflows from outside their work."""

    def __init__(
        self,
        *,
        ownership: Ownership,
        engine: EngineParts,
        runs: RunQueue,
        requests: Requests,
        load: Callable[[str], WorkflowDocument],
        maker: RunMaker | None = None,
        mark: Mark | None = None,
    ) -> None:
        """*load* reads a document without owning it; *maker* makes its runs; *mark* says who asks."""
        self._load = load
        self._maker = maker or RunMaker()
        self._ownership = ownership
        self._engine = engine
        self._runs = runs
        self._requests = requests
        self._mark = mark

    def asked_by(self, mark: Mark) -> Control:
        """Return the same for what *mark* asks: the write that obeys it says so, and a delivery is obeyed once."""
        return Control(
            ownership=self._ownership,
            engine=self._engine,
            runs=self._runs,
            requests=self._requests,
            load=self._load,
            maker=self._maker,
            mark=mark,
        )

    def _change(self, session: WorkSession, rule: Callable[[Draft], _Result]) -> _Result:
        """Store what *rule* does, and who asked for it."""

        def marked(draft: Draft) -> _Result:
            answer = rule(draft)
            command_rules.mark(draft, self._mark)
            return answer

        return session.change(marked)

    def _asked(self, payload: JsonObject) -> JsonObject:
        """Return what is asked of a live owner, with who asks it."""
        return payload if self._mark is None else {**payload, "mark": self._mark.to_json()}

    @contextmanager
    def _session(self, adw_id: str) -> Iterator[WorkSession]:
        """Own a workflow to change it inside the block; raise WorkflowBusy when somebody works on it."""
        with self._ownership.own(adw_id) as owned, self._engine.log_of(adw_id):
            yield WorkSession(self._engine, owned, NoOrders())

    # --- stopping ----------------------------------------------------------------------------------------------

    def pause(self, adw_id: str, *, by: str, reason: str = "") -> Asked | Applied:
        """Park the workflow; an attempt under way is suspended and does not count."""
        why = reason or f"paused by {by}"

        return self._ask_or(adw_id, "pause", by, why, lambda session: self._park(session, why))

    def stop(self, adw_id: str, *, by: str, reason: str = "", is_urgent: bool = False) -> Asked | Applied:
        """Stop the work and park the workflow; with *is_urgent* its processes get no time to end by themselves."""
        why = reason or f"stopped by {by}"

        return self._ask_or(adw_id, "stop", by, why, lambda session: self._park(session, why), is_urgent=is_urgent)

    def abandon(self, adw_id: str, *, by: str, reason: str = "") -> Asked | Applied:
        """Give the workflow up and free its issue; what it made is kept until a rollback."""
        why = reason or f"abandoned by {by}"

        return self._ask_or(adw_id, "abandon", by, why, lambda session: self._abandon(session, why))

    def _park(self, session: WorkSession, why: str) -> Applied:
        state = WorkflowState(session.document.current_state)
        if state is WorkflowState.PAUSED:
            return Applied(state=state.value, message=f"workflow {session.document.adw_id} is paused already")
        if state in TERMINAL_STATES or state is WorkflowState.FAILED:
            raise UsageError(f"workflow {session.document.adw_id} is {state.value}: there is nothing to pause")
        told = stop_reason(why, session.doubt)
        self._change(session, lambda draft: attempt_rules.pause(draft, told))
        session.rest()
        self._end_runs(session.document.adw_id, told)

        return _applied(session, "is paused", told if session.doubt else "")

    def _abandon(self, session: WorkSession, why: str) -> Applied:
        state = WorkflowState(session.document.current_state)
        if state in TERMINAL_STATES:
            raise UsageError(f"workflow {session.document.adw_id} is {state.value}: there is nothing to abandon")
        told = stop_reason(why, session.doubt)
        self._change(session, lambda draft: attempt_rules.abandon(draft, told))
        session.rest()
        self._end_runs(session.document.adw_id, told)

        return _applied(session, "is abandoned; what it made is kept", told if session.doubt else "")

    def _end_runs(self, adw_id: str, why: str) -> None:
        for run in self._runs.of_workflow(adw_id):
            is_left = run.state in LIVE_RUNS and run.seconds_left <= 0.0  # else its worker, or recovery, confirms it
            if is_left and self._runs.settle_lost(run, RunEnd(state=RunState.STOPPED, reason=why)) is not None:
                continue
            if run.state not in FINAL_RUNS:
                self._runs.ask_to_stop(run.run_id, reason=why)

    def _ask_or(
        self,
        adw_id: str,
        kind: str,
        by: str,
        why: str,
        change: Callable[[WorkSession], Applied],
        *,
        is_urgent: bool = False,
    ) -> Asked | Applied:
        """Make *change* as the owner, or leave a request to the one there is."""
        try:
            with self._session(adw_id) as session:
                session.settle()
                return change(session)
        except WorkflowBusy:
            payload = self._asked({"reason": why, "is_urgent": is_urgent})
            request = self._requests.ask(adw_id, kind, payload=payload, asked_by=by)
        if kind == "stop":
            self._mark_stopping(adw_id, why)

        return self._serve(request, change)

    def _mark_stopping(self, adw_id: str, why: str) -> None:
        """Write on the run that it shall stop: whoever finds its worker dead knows what was wanted of it."""
        for run in self._runs.of_workflow(adw_id, limit=1):
            if run.state in LIVE_RUNS and run.kind != ROLLBACK:
                self._runs.ask_to_stop(run.run_id, reason=why)

    def _serve(self, request: Request, change: Callable[[WorkSession], Applied]) -> Asked | Applied:
        """Obey our own request if its owner left before it could see it; he looks once more after he left."""
        try:
            with self._session(request.adw_id) as session:
                asked = self._requests.get(request.request_id)
                if asked is not None and asked.handled_at is not None:
                    return Applied(state=session.document.current_state, message=asked.outcome or "answered")
                session.settle()
                try:
                    applied = change(session)
                except UsageError as exc:
                    self._requests.handled(request.request_id, str(exc))
                    raise
                self._requests.handled(request.request_id, applied.message)
                return applied
        except WorkflowBusy as exc:
            return Asked(request=request, owner=exc.owner, again=lambda: self._serve(request, change))

    # --- going on ----------------------------------------------------------------------------------------------

    def plan(self, adw_id: str, *, from_phase: str = "", grant: int = 0, budget: float | None = None) -> ResumePlan:
        """Return what a resume would do; changes nothing."""
        document = self._load(adw_id)
        machine = WorkflowStateMachine.of(document, now=self._engine.clock.now)

        return resume_rules.plan_resume(
            document,
            resume_rules.definition_of(document),
            machine,
            from_phase=from_phase,
            grant=grant,
            budget=budget,
            max_cost_usd=self._engine.max_cost_usd,
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
        Make a stopped workflow go on, and queue it; raise UsageError, saying why, when it cannot.

        *budget* is what it may cost in all from now on, in US dollars. *spec* is for a document of an older version,
        which has no definition of its own.
        """
        with self._session(adw_id) as session:
            self._refuse_while_rolled_back(adw_id)
            if spec is not None:
                _refuse_second_definition(session.document)
                session.change(lambda draft: resume_rules.adopt(draft, spec))
                session.forget_table()
            session.settle()
            plan = session.plan_resume(from_phase=from_phase, grant=grant, budget=budget)
            self._change(session, lambda draft: resume_rules.apply_resume(draft, plan, hint=hint, by=by))
            self._overtake(session)
            for phase in session.spec.phases:
                if phase.name == plan.phase:
                    self._engine.mended(phase)
            run = self._queue(self._maker.of(session.document, "retry" if grant else "resume", asked_by=by))

            return Applied(state=session.document.current_state, message=plan.describe(), run=run)

    def _refuse_while_rolled_back(self, adw_id: str) -> None:
        for run in self._runs.of_workflow(adw_id, limit=1):
            if run.kind == ROLLBACK and run.state not in FINAL_RUNS:
                raise UsageError(f"workflow {adw_id} is to be rolled back (run {run.run_id}): it does not go on")

    def _overtake(self, session: WorkSession) -> None:
        """Answer what was asked of an owner who died over it: what is decided now is newer, but a hint still holds."""
        for request in self._requests.open_for(session.document.adw_id):
            answer = "overtaken: the workflow was told to go on"
            if request.kind == "hint":
                session.change(partial(note_hint, request))
                answer = NOTED
            self._requests.handled(request.request_id, answer)

    def _queue(self, wanted: NewRun) -> Run:
        """
        Return a run that is due now; one that waits for its time is replaced.

        Called by the owner of the workflow: a run that somebody else still has is of a worker who is gone, or who will
        find the workflow owned.
        """
        run = self._runs.enqueue(wanted)
        if run.state in LIVE_RUNS:
            self._runs.take_back(run, reason=f"{wanted.kind} asked by {wanted.asked_by or 'somebody'}")
            run = self._runs.enqueue(wanted)
        if run.state is not RunState.PENDING or not run.not_before:
            return run
        self._runs.ask_to_stop(run.run_id, reason=f"{wanted.kind} asked by {wanted.asked_by or 'somebody'}")

        return self._runs.enqueue(replace(wanted, priority=run.priority))

    def hint(self, adw_id: str, text: str, *, by: str) -> Asked | Applied:
        """Say what to do differently in the next attempt."""
        try:
            with self._session(adw_id) as session:
                return self._note_hint(session, text, by)
        except WorkflowBusy:
            request = self._requests.ask(adw_id, "hint", payload=self._asked({"text": text}), asked_by=by)

        return self._serve(request, lambda session: self._note_hint(session, text, by))

    def _note_hint(self, session: WorkSession, text: str, by: str) -> Applied:
        state = WorkflowState(session.document.current_state)
        if state in TERMINAL_STATES:
            raise UsageError(f"workflow {session.document.adw_id} is {state.value}: there is no next attempt")
        self._change(session, lambda draft: resume_rules.add_hint(draft, "", text, by))

        return Applied(state=state.value, message=NOTED)

    # --- retries -----------------------------------------------------------------------------------------------

    def cancel_retry(self, adw_id: str, *, by: str, reason: str = "") -> Applied:
        """Fail the phase that waits to be tried again; raise UsageError when none does, WorkflowBusy while at work."""
        with self._session(adw_id) as session:
            session.settle()
            index = retry_rules.waiting_phase(session.document)
            phase = session.document.phases[index].name
            self._change(session, lambda draft: retry_rules.cancel(draft, session.spec, index, by=by, reason=reason))
            session.rest()
            state = WorkflowState(session.document.current_state)
            if state in TERMINAL_STATES or state is WorkflowState.FAILED:
                self._end_runs(adw_id, f"the retry of {phase} was cancelled by {by}")
                run = None
            else:  # the phase is not required
                run = self._queue(self._maker.of(session.document, "resume", asked_by=by))

            return Applied(
                state=state.value, message=f"{phase} is not tried again; the workflow is {state.value}", run=run
            )

    # --- approval ----------------------------------------------------------------------------------------------

    def approve(self, adw_id: str, *, by: str, text: str = "") -> Applied:
        """Let the phase that waits pass, and queue the workflow."""
        return self._judge(
            adw_id, by, lambda session, draft: resume_rules.approve(draft, session.spec, text=text, by=by)
        )

    def reject(self, adw_id: str, *, by: str, text: str = "") -> Applied:
        """Send the phase that waits back to work, with *text* as a hint, and queue the workflow."""
        return self._judge(
            adw_id, by, lambda session, draft: resume_rules.reject(draft, session.spec, text=text, by=by)
        )

    def _judge(self, adw_id: str, by: str, rule: Callable[[WorkSession, Draft], Outcome | None]) -> Applied:
        with self._session(adw_id) as session:
            self._refuse_while_rolled_back(adw_id)
            phase = session.document.phases[resume_rules.waiting_phase(session.document)].name
            self._change(session, lambda draft: rule(session, draft))
            state = WorkflowState(session.document.current_state)
            is_over = state in TERMINAL_STATES or state is WorkflowState.FAILED
            self._overtake(session)
            run = None if is_over else self._queue(self._maker.of(session.document, "resume", asked_by=by))

            return Applied(state=state.value, message=f"{phase} is decided; the workflow is {state.value}", run=run)


def _applied(session: WorkSession, what: str, doubt: str) -> Applied:
    document = session.document
    told = f"workflow {document.adw_id} {what}"

    return Applied(state=document.current_state, message=f"{told}; {doubt}" if doubt else told, is_confirmed=not doubt)


def _refuse_second_definition(document: WorkflowDocument) -> None:
    if document.workflow is not None and document.workflow.phases:
        raise UsageError(
            f"workflow {document.adw_id} runs {document.workflow.name}, frozen when it started: leave --workflow out"
        )
