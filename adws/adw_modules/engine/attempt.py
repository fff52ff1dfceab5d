"""
One attempt per call: pick the phase, record the attempt, run it once, record the result with what comes next.

The attempt is durable before anything runs. Result, counters and the next state are one write, and when the work goes
on at once, the beginning of the next phase is in that same write. Nothing here retries or waits: the outcome says what
is to be done, and whoever called does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from adws.adw_modules import attempt_rules, stopping_rules, treatment, waiting_rules
from adws.adw_modules.doctor_rules import Case, Consultation, may_ask, no_answer
from adws.adw_modules.document_draft import Draft
from adws.adw_modules.engine.gates import GateVerdict
from adws.adw_modules.engine.parts import Parts
from adws.adw_modules.engine.running import PhaseRuns, gate_error, is_well
from adws.adw_modules.engine.telling import tell_log
from adws.adw_modules.errors import AdwError, StateUnserialisable, WorkflowBusy
from adws.adw_modules.external_tasks import Overdue
from adws.adw_modules.interfaces import Owned
from adws.adw_modules.interfaces_engine import Harvest, Orders, PhaseContext
from adws.adw_modules.outcome import Done, Failed, Forked, Next, Outcome, Paused, RunReport, Suspended
from adws.adw_modules.phase_choice import AllPassed, Chosen, choose, running_attempt, waiting_attempt
from adws.adw_modules.resume_rules import ResumePlan, definition_of, plan_resume
from adws.adw_modules.state_machine import WorkflowState, WorkflowStateMachine
from adws.adw_modules.state_table import TERMINAL_STATES

if TYPE_CHECKING:
    from adws.adw_modules.attempt_rules import Trouble
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.engine.parties import BreakerNews
    from adws.adw_modules.json_value import JsonObject
    from adws.adw_modules.workflow import PhaseSpec, WorkflowSpec

_Result = TypeVar("_Result")


class EngineParts(Parts["WorkSession"]):
    """What the engine works with."""


class WorkSession:
    """The work on one workflow while it is owned."""

    def __init__(self, parts: EngineParts, owned: Owned, orders: Orders) -> None:
        self._parts = parts
        self._owned = owned
        self._orders = orders
        self._thawed: WorkflowSpec | None = None
        self._machine: WorkflowStateMachine | None = None
        self._ready: Chosen | None = None  #: begun by our last write and not run yet
        self._runs = PhaseRuns(parts, self, orders, on_stop=self._suspend)

    @property
    def document(self) -> WorkflowDocument:
        """The last stored revision."""
        return self._owned.document

    @property
    def queue(self) -> JsonObject:
        """Who works on it, and on which run: what events have as `meta.queue`."""
        run = self._owned.run
        worker: JsonObject = {"worker_id": self._owned.lease.owner.describe()}

        return {"queue_id": run.run_id, **worker} if run is not None else worker

    # --- one attempt -------------------------------------------------------------------------------------------

    def attempt(self, *, may_go_on: Callable[[], bool] = lambda: False) -> Outcome:
        """Run the next phase once and return what came of it; *may_go_on* is asked before the finishing write."""
        chosen, self._ready = self._ready, None
        if chosen is None:
            found = self._open()
            if not isinstance(found, Chosen):
                return found
            chosen = found

        return self._close(chosen, self._runs.run(chosen), may_go_on)

    @property
    def spec(self) -> WorkflowSpec:
        """The definition frozen in the document; raises StateInvalid when there is none."""
        if self._thawed is None:
            self._thawed = definition_of(self.document)

        return self._thawed

    def plan_resume(self, *, from_phase: str = "", grant: int = 0, budget: float | None = None) -> ResumePlan:
        """Return how the workflow goes on; raise UsageError when it cannot."""
        machine = self._draft().machine

        return plan_resume(
            self.document,
            self.spec,
            machine,
            from_phase=from_phase,
            grant=grant,
            budget=budget,
            max_cost_usd=self._parts.max_cost_usd,
        )

    def forget_table(self) -> None:
        """Read definition and table again from the document, which got another definition."""
        self._thawed = None
        self._machine = None

    @property
    def has_begun(self) -> bool:
        """Whether an attempt is recorded that has not run yet: it has to be run, or suspended, before anything else."""
        return self._ready is not None

    def rest(self) -> None:
        """Give back what only work at hand may hold, and tell the outside; may be repeated."""
        self._parts.release(self)
        self._parts.report(self)

    def change(self, rule: Callable[[Draft], _Result]) -> _Result:
        """Store what *rule* does to the document, between two attempts, and return what it answers."""
        draft = self._draft()
        answer = rule(draft)
        self._save(draft)

        return answer

    def settle(self) -> Outcome | None:
        """Close what a crash left open: end its processes, count the attempt. Returns the outcome if that ended it."""
        index = self._open_attempt()
        if index is None:
            return None
        attempt = running_attempt(self.document.phases[index])
        process = attempt.process if attempt else None
        ended = self._parts.end_process(process) if process else None
        why = "the process that worked on it ended without a word" + (f"; {ended.describe()}" if ended else "")
        harvest = self._parts.harvest(self.document, self.spec.phases[index], attempt) if attempt else None
        draft = self._draft()
        doubt = ended.describe() if ended and not ended.is_certain else ""
        outcome = stopping_rules.interrupt(draft, self.spec, index, why, harvest, doubt=doubt)
        self._save(draft)
        if attempt is not None:
            self.tell_agent_ended(index, attempt.number)

        return outcome if isinstance(outcome, Done | Failed | Paused) else None

    @property
    def doubt(self) -> str:
        """Why nobody knows whether what worked on it last has ended, "" when that is known."""
        return stopping_rules.doubt_of(self.document.phases)

    def end_left(self) -> None:
        """End what attempts left here that were closed on another machine; raise WorkflowBusy when that cannot be."""
        for index, attempt in stopping_rules.in_doubt(self.document.phases):
            ending = self._parts.end_process(attempt.process or {})
            if ending.left:
                what = f"processes of an earlier attempt that cannot be ended ({', '.join(ending.left)})"
                raise WorkflowBusy(self.document.adw_id, what)
            if ending.is_certain:
                clear = partial(stopping_rules.clear_doubt, index=index, number=attempt.number, found=ending.describe())
                self.change(clear)

    def tell_agent_ended(self, index: int, number: int) -> None:
        """Tell that attempt *number* of a phase is over, if an agent worked on it."""
        record = self.document.phases[index]
        attempt = next((one for one in reversed(record.attempts) if one.number == number), None)
        if attempt is not None and attempt.agent and attempt.ended_at is not None:
            self._parts.agent_ended(self.document, record.name, attempt)

    def _open_attempt(self) -> int | None:
        phases = self.document.phases
        return next((index for index, record in enumerate(phases) if running_attempt(record) is not None), None)

    def _open(self) -> Chosen | Outcome:
        """Return the phase whose attempt is recorded and may run now, or what is to be done instead."""
        over = self.settle() or self._resting()
        if over is not None:
            return over
        self.end_left()
        draft = self._draft()
        found = self._begin(draft)
        if draft.events:
            self._save(draft)

        return self._as_stored(found) if isinstance(found, Chosen) else found

    def _resting(self) -> Outcome | None:
        """Return the outcome of a workflow that nobody may work on as it stands."""
        document = self.document
        state = WorkflowState(document.current_state)
        if document.rollback is not None or state in TERMINAL_STATES:
            return Done(state=state.value, warnings=tuple(document.warnings))
        if state is WorkflowState.PAUSED:
            return Paused(reason=document.pause_reason or "paused")
        if state is WorkflowState.FAILED:
            found = choose(self.spec, document.phases)
            failed = None if isinstance(found, AllPassed) else document.phases[found.index]
            message = failed.last_failure_reason if failed else None
            return Failed(
                phase=failed.name if failed else "", reason=document.terminal_reason or "FAILED", message=message or ""
            )

        return None

    def _begin(self, draft: Draft) -> Chosen | Outcome:
        found = attempt_rules.before_attempt(draft, self.spec)
        if not isinstance(found, Chosen):
            return found
        wait = self._parts.may_begin(draft.document, found.spec)
        if wait is not None:
            return waiting_rules.wait_for(draft, found, wait)
        lease = self._owned.lease
        if waiting_attempt(found.record) is not None:
            waiting_rules.go_on(draft, found, owner=lease.owner.describe(), fence=lease.fence)
            return found
        model = self._parts.model_for(draft.document, found.spec, found.record)
        attempt_rules.begin(draft, found, owner=lease.owner.describe(), fence=lease.fence, model=model)

        return found

    def running(self) -> tuple[PhaseSpec, PhaseContext]:
        """Return the phase whose attempt runs now, and what may be known of it before its place is made."""
        return self._runs.running()

    # --- the end of an attempt ---------------------------------------------------------------------------------

    def _close(self, chosen: Chosen, report: RunReport | Suspended | Forked, may_go_on: Callable[[], bool]) -> Outcome:
        if isinstance(report, Forked):
            return self._wait(chosen, report)
        if isinstance(report, RunReport) and isinstance(report.error, Overdue):
            return self._cut_off(chosen, report.error)
        verdict = self._runs.verdict(chosen, report)
        if verdict is not None and verdict.is_suspended:
            report = Suspended(reason=verdict.reason)
        try:
            return self._finish(chosen, report, verdict, may_go_on)
        except StateUnserialisable as exc:
            # What the phase gave back cannot be stored: that is its failure, and the attempt has to end.
            return self._finish(chosen, RunReport(ok=False, error=exc, was_done=True), None, may_go_on)

    def _wait(self, chosen: Chosen, report: Forked) -> Outcome:
        self._parts.let_go(self.document)

        return self.change(lambda draft: waiting_rules.fork(draft, chosen, report))

    def _cut_off(self, chosen: Chosen, why: Overdue) -> Outcome:
        """Close an attempt that nobody reported on in time: it counts, as one that a crash cut off."""
        self._parts.let_go(self.document)
        outcome = self.change(lambda draft: stopping_rules.interrupt(draft, self.spec, chosen.index, str(why)))

        return outcome or Next(phase=chosen.spec.name)

    def _suspend(self, chosen: Chosen, stop: KeyboardInterrupt) -> None:
        """Close an attempt that a person interrupted; what goes wrong with that does not keep them from leaving."""
        try:
            self._finish(chosen, Suspended(reason="interrupted from the keyboard"), None, lambda: False)
        except AdwError as exc:
            stop.add_note(f"the attempt could not be closed and will count as interrupted: {exc}")

    def _finish(
        self,
        chosen: Chosen,
        report: RunReport | Suspended,
        verdict: GateVerdict | None,
        may_go_on: Callable[[], bool],
    ) -> Outcome:
        trouble = None if isinstance(report, Suspended) else self._trouble(chosen, report, verdict)
        advice = self._consult(chosen, trouble) if trouble is not None else None
        news = self._settle_parties(chosen, report, trouble)
        draft = self._draft()
        if isinstance(report, Suspended):
            outcome = self._stopped(draft, chosen, report)
        elif trouble is not None:
            outcome = self._failed(draft, chosen, trouble, advice, report)
        else:
            outcome = self._done(draft, chosen, report, verdict)
        for item in news:
            draft.tell(item.event_type, chosen.index, data=item.data)
        begun: Chosen | None = None
        if isinstance(outcome, Next) and self._orders.current() is None and may_go_on():
            found = self._begin(draft)
            if isinstance(found, Chosen):
                begun, outcome = found, Next(phase=found.spec.name, is_begun=True)
            else:
                outcome = found
        self._save(draft)
        self._ready = self._as_stored(begun) if begun else None
        self.tell_agent_ended(chosen.index, chosen.record.attempts[-1].number)
        if isinstance(report, RunReport) and trouble is None:
            self._parts.phase_over(self.document, chosen.spec, chosen.record.round)

        return outcome

    def _trouble(self, chosen: Chosen, report: RunReport, verdict: GateVerdict | None) -> Trouble | None:
        """Return what went wrong and what was judged about it, None when nothing did."""
        if is_well(report) and report.wants_rework and chosen.spec.on_rework:
            return None
        error = gate_error(chosen.spec, report, verdict) if is_well(report) else report.error
        if error is None and report.ok:
            return None
        record = self.document.phases[chosen.index]

        return self._parts.judge(error or RuntimeError("it failed without a reason"), chosen.spec, record)

    def _consult(self, chosen: Chosen, trouble: Trouble) -> Consultation | None:
        """Ask the doctor about a failed attempt, when there is one to ask; the call is durable before it is made."""
        doctor, record = self._parts.doctor, self.document.phases[chosen.index]
        if doctor is None or trouble.facts is None or not may_ask(self.document, record, trouble):
            return None
        if not doctor.is_free:
            self.change(lambda draft: treatment.note_call(draft, chosen.index, doctor.name))
        case = Case(
            facts=trouble.facts,
            phase=chosen.spec,
            record=self.document.phases[chosen.index],
            document=self.document,
            context=self._runs.context(chosen),
        )
        found = self._runs.guard(chosen, lambda: doctor.ask(case), lambda exc: no_answer(doctor.name, exc))

        return found if found.is_news else None

    def _settle_parties(
        self, chosen: Chosen, report: RunReport | Suspended, trouble: Trouble | None
    ) -> Sequence[BreakerNews]:
        if isinstance(report, Suspended):
            self._parts.let_go(self.document)
            return ()

        return self._parts.settle_parties(self.document, chosen.spec, trouble.facts if trouble else None)

    def _stopped(self, draft: Draft, chosen: Chosen, report: Suspended) -> Outcome:
        order = self._orders.current()
        kind, reason = (order.kind, order.reason or report.reason) if order else ("stop", report.reason)
        attempt = draft.phase(chosen.index).attempts[-1]
        harvest: Harvest | None
        if report.usage is not None:
            harvest = Harvest(report=RunReport(ok=False, usage=report.usage))
        else:
            harvest = self._parts.harvest(self.document, chosen.spec, attempt)

        return stopping_rules.suspend(draft, chosen, kind=kind, reason=reason, harvest=harvest)

    def _failed(
        self, draft: Draft, chosen: Chosen, trouble: Trouble, advice: Consultation | None, report: RunReport
    ) -> Outcome:
        report = replace(report, was_done=report.was_done or is_well(report))
        if trouble.is_parked and trouble.retry_at is not None:
            return waiting_rules.park(draft, chosen, trouble, trouble.retry_at, report)
        if advice is not None:
            return treatment.treat(draft, self.spec, chosen, trouble, report=report, found=advice)

        return attempt_rules.fail(draft, self.spec, chosen, trouble, report)

    def _done(self, draft: Draft, chosen: Chosen, report: RunReport, verdict: GateVerdict | None) -> Outcome:
        if report.wants_rework:
            return attempt_rules.rework(draft, self.spec, chosen, report)
        if verdict is not None and verdict.needs_human:
            return attempt_rules.await_approval(draft, chosen, report, verdict.reason)

        return attempt_rules.succeed(draft, self.spec, chosen, report)

    # --- the document ------------------------------------------------------------------------------------------

    def _draft(self) -> Draft:
        # The draft may move the machine: it comes back with the write that stores the move, and never without it.
        machine, self._machine = self._machine, None
        if machine is None:
            machine = WorkflowStateMachine.of(self.document, now=self._parts.clock.now)

        return Draft(
            self.document,
            machine,
            now=self._parts.clock.now,
            max_cost_usd=self._parts.max_cost_usd,
            queue=self.queue,
        )

    def _save(self, draft: Draft) -> None:
        self._owned.save(draft.finished(), events=draft.events)
        self._machine = draft.machine
        if self._parts.has_log:
            tell_log(self.document, draft.events, self._parts.redactor)
        self._parts.tell(self.document, draft.events)

    def _as_stored(self, chosen: Chosen) -> Chosen:
        return Chosen(spec=chosen.spec, record=self.document.phases[chosen.index], index=chosen.index)
