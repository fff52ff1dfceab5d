"""
One attempt per call: pick the phase, record the attempt, run it once, record the result with what comes next.

The attempt is durable before anything runs. Result, counters and the next state are one write; if the work continues at
once, that write also contains the beginning of the next phase. Nothing here retries or waits: the outcome says what to
do next, and the caller does it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

from adws.adw_modules import timestamps
from adws.adw_modules.document import Draft
from adws.adw_modules.effects import Ledger, secured_head
from adws.adw_modules.engine import advisor, base_check, transitions
from adws.adw_modules.engine.advisor import Advice, Case, may_ask, no_answer
from adws.adw_modules.engine.gates import GateVerdict
from adws.adw_modules.engine.git_guard import GuardedRunner
from adws.adw_modules.engine.resume import ResumePlan, definition_of, plan_resume
from adws.adw_modules.engine.transitions import (
    AllPassed,
    Chosen,
    Failure,
    choose,
    hints_for,
    limit,
    running_attempt,
    waiting_attempt,
)
from adws.adw_modules.error_handler import describe
from adws.adw_modules.errors import (
    AdwError,
    DurabilityUnknown,
    FailedRun,
    Fenced,
    GateFailed,
    LeaseLost,
    Overdue,
    RepositoryTampered,
    RunFailed,
    RunLost,
    StateConflict,
    StateUnserialisable,
    UsageError,
    WorkflowBusy,
)
from adws.adw_modules.git.change_policy import CHANGED
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.interfaces import Clock, ProcessRecord
from adws.adw_modules.phase import (
    Done,
    Failed,
    Harvest,
    Next,
    Order,
    Orders,
    Outcome,
    Paused,
    PhaseContext,
    Runner,
    RunReport,
    Suspended,
    WaitingForChildren,
)
from adws.adw_modules.plugins import RUNNERS, KnownNames
from adws.adw_modules.retry_handler import DAY, AskPerson, Parking, Retry, RetryDecision, decide, policies_of
from adws.adw_modules.state_machine import PHASE_STATES, TERMINAL_STATES, WorkflowState, WorkflowStateMachine
from adws.adw_modules.structured_logger import write_entries
from adws.adw_modules.workflow.model import NO_MODEL, STEPS, PhaseSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
    from adws.adw_modules.engine.service_guard import BreakerEvent
    from adws.adw_modules.error_handler import ErrorFacts
    from adws.adw_modules.events import Event
    from adws.adw_modules.ownership.ownership import OwnedWorkflow
    from adws.adw_modules.queue.model import RunEnd
    from adws.adw_modules.redaction.redactor import Redactor
    from adws.adw_modules.workflow.model import WorkflowSpec
    from adws.app import Home


#: How long a phase waits, without using attempts, while a network, a forge or a provider fails.
MAX_OUTAGE_SECONDS = 24 * 3600.0
#: Errors not handled here: another owner has the workflow, or the content of the disk is unknown.
NOT_OURS = (Fenced, LeaseLost, RunLost, StateConflict, DurabilityUnknown)

_Answer = TypeVar("_Answer")
_Result = TypeVar("_Result")


class WorkSession:
    """The work on one workflow while this process owns it."""

    def __init__(self, home: Home, owned: OwnedWorkflow, orders: Orders, *, has_log: bool = True) -> None:
        """*has_log* says whether stored events are also written to the workflow's log, which must be open then."""
        self._home = home
        self._has_log = has_log
        self.owned = owned  #: the workflow and our lease on it
        self._orders = orders
        self._worker = owned.lease.owner.describe()
        self.ledger = Ledger(self, host=home.host)  #: makes external effects, each recorded first
        self._folder = home.folder_of(owned.lease.adw_id)
        self._thawed: WorkflowSpec | None = None
        self._machine: WorkflowStateMachine | None = None
        self._ready: Chosen | None = None  #: begun by our last write, not run yet
        self._end_of: Callable[[Outcome, WorkflowDocument], RunEnd | None] = lambda _outcome, _document: None
        self._current: Chosen | None = None  #: the phase whose attempt ran last
        self._context: PhaseContext | None = None  #: context of that attempt, once its workspace is ready

    @property
    def document(self) -> WorkflowDocument:
        """The last stored revision."""
        return self.owned.document

    @property
    def queue(self) -> JsonObject:
        """The worker and run in charge of the workflow, which events carry as `meta.queue`."""
        run = self.owned.run

        return {"worker_id": self._worker} if run is None else {"queue_id": run.run_id, "worker_id": self._worker}

    @property
    def spec(self) -> WorkflowSpec:
        """The definition frozen in the document. Raises StateInvalid without one."""
        if self._thawed is None:
            self._thawed = definition_of(self.document)

        return self._thawed

    @property
    def has_ended(self) -> bool:
        """Whether the last write ended the run, so that the workflow is no longer ours."""
        return self.owned.ended is not None

    @property
    def has_begun(self) -> bool:
        """Whether an attempt is recorded but has not run: it must be run or suspended before anything else."""
        return self._ready is not None

    # --- one attempt -------------------------------------------------------------------------------------------

    def attempt(
        self,
        *,
        may_go_on: Callable[[], bool] = lambda: False,
        end_of: Callable[[Outcome, WorkflowDocument], RunEnd | None] = lambda _outcome, _document: None,
    ) -> Outcome:
        """
        Run the next phase once and return the outcome; *may_go_on* is called before the write that records the end.

        *end_of* returns how that write ends the run, or None if more must be done before it can end (`has_ended`).
        """
        self._end_of = end_of
        chosen, self._ready = self._ready, None
        if chosen is None:
            opened = self._open()
            if not isinstance(opened, Chosen):
                return opened
            chosen = opened

        report = self._execute(chosen)
        if isinstance(report, WaitingForChildren):
            self._home.service_guard.let_go(self.owned.document)
            return self._fork(chosen, report)
        if isinstance(report, RunReport) and isinstance(report.error, Overdue):
            # No report arrived in time: the attempt counts, like one interrupted by a crash.
            self._home.service_guard.let_go(self.owned.document)
            return self._interrupt(chosen, str(report.error)) or Next(phase=chosen.spec.name)

        verdict: GateVerdict | None = None
        success = report if isinstance(report, RunReport) and is_well(report) else None
        if success is not None and chosen.spec.gates and not success.wants_rework:
            verdict = self._ask_gates(chosen, success)
            if verdict.is_suspended:
                report, success = Suspended(reason=verdict.reason), None
        discarded: JsonObject | BaseException | None = None
        if self.owned.document.worktree_path:
            discarded = self._discard(chosen, report)
            if success is not None and isinstance(discarded, BaseException):
                # The next phase would commit the leftover files, so this attempt fails and the next one discards them.
                report, verdict = replace(success, ok=False, error=discarded, was_done=True), None
            elif success is not None:
                report = self._sync(chosen, success)
        try:
            return self._record(chosen, report, verdict, discarded, may_go_on)
        except StateUnserialisable as exc:
            # The output of the phase cannot be stored: that counts as its failure, because the attempt has to end.
            return self._record(chosen, RunReport(ok=False, error=exc, was_done=True), None, discarded, may_go_on)

    def _open(self) -> Chosen | Outcome:
        """Return the phase whose attempt is recorded and may run now, or the outcome if none may run."""
        over = self.settle() or self._resting()
        if over is not None:
            return over
        self.end_left()
        draft = self._draft()
        result = self._begin(draft)
        if draft.events:
            self._save(draft)

        return self._as_stored(result) if isinstance(result, Chosen) else result

    def _resting(self) -> Outcome | None:
        """Return the outcome of a workflow that cannot be worked on in its current state, or None if it can."""
        document = self.owned.document
        state = WorkflowState(document.current_state)
        if document.rollback is not None or state in TERMINAL_STATES:
            return Done(state=state.value, warnings=tuple(document.warnings))
        if state is WorkflowState.PAUSED:
            return Paused(reason=document.pause_reason or "paused")
        if state is WorkflowState.FAILED:
            result = choose(self.spec, document.phases)
            failed = None if isinstance(result, AllPassed) else document.phases[result.index]
            message = failed.last_failure_reason if failed else None
            return Failed(
                phase=failed.name if failed else "", reason=document.terminal_reason or "FAILED", message=message or ""
            )

        return None

    def _begin(self, draft: Draft) -> Chosen | Outcome:
        """Record the next attempt in *draft* and return its phase, or the outcome if none may begin."""
        guard = self._home.service_guard
        for index, record in enumerate(draft.document.phases):
            if record.retry_at and record.waits_for and guard.has_closed(record.waits_for):
                transitions.end_wait(draft, index)  # early, because the service is available again
        result = transitions.before_attempt(draft, self.spec)
        if not isinstance(result, Chosen):
            return result
        if draft.document.worktree_path and (why := self._why_too_large(draft.document.worktree_path, result)):
            return transitions.pause(draft, why, result.spec.name)
        wait = guard.may_begin(draft.document, result.spec)
        if wait is not None:
            return transitions.wait_for(draft, self.spec, result, wait)
        fence = self.owned.lease.fence
        if waiting_attempt(result.record) is not None:
            transitions.go_on(draft, result, owner=self._worker, fence=fence)
            return result
        model = ""
        if result.spec.runner not in NO_MODEL:
            model = self._home.agent_runner.model_for(draft.document, result.spec, result.record)
        transitions.begin(draft, result, owner=self._worker, fence=fence, model=model)

        return result

    def _why_too_large(self, worktree: str, chosen: Chosen) -> str:
        """Return why the worktree is too large for the next phase, or "" if it is not (or is not measured)."""
        # Cleaning removes the worktree, and an attempt that waited is in the middle of its phase.
        if chosen.spec.state == WorkflowState.CLEANING.value or waiting_attempt(chosen.record) is not None:
            return ""

        return self._home.workspace.why_too_large(self.owned.document.adw_id, Path(worktree))

    # --- running the attempt -----------------------------------------------------------------------------------
    #
    # Any exception while preparing, running, checking or recording the work is a failed attempt, except those which say
    # that the workflow is no longer ours (NOT_OURS). KeyboardInterrupt closes the attempt and ends the program.

    def _execute(self, chosen: Chosen) -> RunReport | Suspended | WaitingForChildren:
        """Run the attempt once: prepare the workspace, run the runner, commit and record the work."""
        self._current, self._context = chosen, None
        order = self._orders.current()
        if order is not None:
            return Suspended(reason=order.reason)
        home, phase = self._home, chosen.spec
        done: RunReport | None = None
        try:
            home.workspace.prepare(self)
            with home.workspace.around(self.owned.document) as env:
                self._context = context = self._new_context(chosen, env)
                if len(chosen.record.attempts) > 1 and _needs_cleanup(chosen.record):
                    home.commands.clean_up(phase, context)
                if phase.is_paid and (order := self._check_base(context)) is not None:
                    return Suspended(reason=order.kind)
                report: object = self._runner(phase).run(phase, context)
            if isinstance(report, RunReport) and is_well(report):
                done = report
                return home.workspace.conclude(self, phase, context, report)
        except NOT_OURS:
            raise
        except KeyboardInterrupt as stop:
            self._close_stopped(chosen, stop)
            raise
        except BaseException as exc:  # noqa: BLE001 - any exception of a runner is a failed attempt
            # Work that was done but not committed and recorded is not a success.
            return replace(done, ok=False, error=exc, was_done=True) if done else RunReport(ok=False, error=exc)
        if isinstance(report, RunReport | Suspended | WaitingForChildren):
            return report
        wrong = f"answered with {type(report).__name__}, not with a RunReport, Suspended or WaitingForChildren"

        return RunReport(ok=False, error=TypeError(f"the runner {phase.runner!r} {wrong}"))

    def _runner(self, phase: PhaseSpec) -> Runner:
        runner = self._home.phase_runners.get(phase.runner)
        if runner is not None:
            return runner
        known = KnownNames(tuple(self._home.phase_runners), RUNNERS)
        if phase.runner not in known:
            listed = ", ".join(sorted(known))
            raise UsageError(f"phase {phase.name} has the runner {phase.runner!r}; there are: {listed}")

        return GuardedRunner(self._home.plugins.runner(phase.runner), self._home.git_guard)

    def _check_base(self, context: PhaseContext) -> Order | None:
        """Raise BaseRed if a required gate fails on the base commit; checked before any money is spent."""
        document = context.document
        if any(attempt.agent for record in document.phases for attempt in record.attempts):
            return None
        checked = self._home.base_check.before_agent(self.spec, context)
        if checked is None or isinstance(checked, Order):
            return checked
        commit, results = checked
        index = next(index for index, record in enumerate(document.phases) if record.name == context.phase)
        data: JsonObject = {"commit": commit, "gates": [result.to_json() for result in results]}
        self.change(lambda draft: draft.add_event("base_checked", index, data=data))
        base_check.refuse(results, commit)

        return None

    def _ask_gates(self, chosen: Chosen, report: RunReport) -> GateVerdict:
        """Return the verdict of the gates on a phase that reports success."""

        def ask() -> GateVerdict:
            with self._home.workspace.around(self.owned.document):
                return self._home.gates.check(chosen.spec, self._context_of(chosen), report)

        return self._guarded(
            chosen, ask, lambda exc: GateVerdict(passed=False, reason=f"the gate could not be decided: {exc}")
        )

    def _discard(self, chosen: Chosen, report: RunReport | Suspended) -> JsonObject | BaseException | None:
        """Discard files that gates and checks left beside the work; return what they were, or why discarding failed."""
        if isinstance(report, RunReport) and isinstance(report.error, RepositoryTampered):
            # git must not run here on a tampered shared git directory: a person has to check it first.
            return report.error

        return self._guarded(chosen, lambda: self._home.workspace.discard(self, chosen.index), lambda exc: exc)

    def _sync(self, chosen: Chosen, report: RunReport) -> RunReport:
        """Return *report* once the files of the phase survive a power cut; a failed sync is a failed attempt."""

        def sync() -> RunReport:
            self._home.workspace.sync(self.owned.document)
            return report

        return self._guarded(chosen, sync, lambda exc: replace(report, ok=False, error=exc, was_done=True))

    def _guarded(
        self, chosen: Chosen, action: Callable[[], _Answer], failed: Callable[[BaseException], _Answer]
    ) -> _Answer:
        """Return the result of *action*, or what *failed* returns for its exception."""
        try:
            return action()
        except NOT_OURS:
            raise
        except KeyboardInterrupt as stop:
            self._close_stopped(chosen, stop)
            raise
        except BaseException as exc:  # noqa: BLE001 - any exception of a gate is a failed attempt
            return failed(exc)

    # --- the context of the runner -----------------------------------------------------------------------------

    def running(self) -> tuple[PhaseSpec, PhaseContext]:
        """Return the running phase and the context as known before its workspace is prepared."""
        if self._current is None:
            raise UsageError(f"workflow {self.owned.document.adw_id} has no attempt that runs")

        return self._current.spec, self._new_context(self._current)

    def _context_of(self, chosen: Chosen) -> PhaseContext:
        """Return the context for gates and advisor: the runner's own, if the attempt got that far."""
        if self._context is None:
            self._context = self._new_context(chosen)

        return self._context

    def _new_context(self, chosen: Chosen, env: Mapping[str, str] = MappingProxyType({})) -> PhaseContext:
        home, document, index = self._home, self.owned.document, chosen.index
        record = document.phases[index]
        attempt = record.attempts[-1]

        return PhaseContext(
            document=document,
            phase=record.name,
            attempt_number=attempt.number,
            round=record.round,
            cwd=home.workspace.workplace_of(document),
            folder=self._folder,
            orders=self._orders,
            record_process=partial(self._record_process, index),
            say=partial(home.say, document.adw_id),
            results={phase.name: phase.result for phase in document.phases if phase.result is not None},
            hints=hints_for(document, record.name),
            env=env,
            effects=self.ledger,
            model=attempt.model or "",
            record_agent=partial(self._record_agent, index),
            record_shared=partial(self._record_shared, index),
            answered=partial(self._answered, chosen.spec),
            base=secured_head(document) if document.branch_name else "",
            queue=self.queue,
        )

    def _answered(self, phase: PhaseSpec) -> None:
        """Note that the services of a phase respond, and wake the runs that waited for a breaker this closes."""
        if self._home.service_guard.answered(self.owned.document, phase):
            self._home.service_waits.wake()

    def _record_process(self, index: int, process: ProcessRecord) -> None:
        self.change(lambda draft: draft.mark_attempt(index, process=process.to_json()))

    def _record_shared(self, index: int, facts: JsonObject) -> None:
        self.change(partial(_mark_shared, index, facts))

    def _record_agent(self, index: int, facts: JsonObject) -> None:
        def merge(draft: Draft) -> None:
            known = draft.phase(index).attempts[-1].agent or {}
            changed = changed_rules(draft.document, known, facts)
            draft.mark_attempt(index, agent={**known, **facts})
            if changed is not None:
                draft.add_event("rules_reloaded", index, data=changed)

        self.change(merge)
        record = self.owned.document.phases[index]
        self._home.agent_session_recorder.begin(self.owned.document, record.name, record.attempts[-1])

    # --- recording the end -------------------------------------------------------------------------------------

    def _record(
        self,
        chosen: Chosen,
        report: RunReport | Suspended,
        verdict: GateVerdict | None,
        discarded: JsonObject | BaseException | None,
        may_go_on: Callable[[], bool],
    ) -> Outcome:
        """Record the end of an attempt, its consequences and the beginning of the next attempt, in one write."""
        home, phase, index = self._home, chosen.spec, chosen.index
        trouble: Failure | None = None
        if isinstance(report, RunReport) and (verdict is not None or report.wants_rework or not is_well(report)):
            trouble = self._trouble(chosen, report, verdict)
        # A red gate rejects what was built: checking the same work again would not help.
        is_sent_back = verdict is not None and verdict.is_red and bool(phase.on_rework)
        advice = self._consult(chosen, trouble) if trouble is not None and not is_sent_back else None
        news: Sequence[BreakerEvent] = ()
        if isinstance(report, Suspended):
            home.service_guard.let_go(self.owned.document)
        else:
            news = home.service_guard.settle(self.owned.document, phase, trouble.facts if trouble else None)

        draft = self._draft()
        if discarded is not None or draft.document.phases[index].attempts[-1].leftovers:
            _record_discarded(draft, index, discarded)
        _record_denied(draft, index, self._context)
        outcome: Outcome
        if isinstance(report, Suspended):
            outcome = self._suspend(draft, chosen, report)
        elif trouble is None and report.wants_rework:
            outcome = transitions.rework(draft, self.spec, chosen, report)
        elif trouble is None and verdict is not None and verdict.needs_human:
            outcome = transitions.await_approval(draft, chosen, report, verdict.reason)
        elif trouble is None:
            outcome = transitions.succeed(draft, self.spec, chosen, report)
        elif is_sent_back:
            outcome = transitions.rework(draft, self.spec, chosen, report, trouble)
        else:
            outcome = self._fail(draft, chosen, trouble, advice, report)
        for item in news:
            draft.add_event(item.event_type, index, data=item.data)

        begun: Chosen | None = None
        if isinstance(outcome, Next) and self._orders.current() is None and may_go_on():
            result = self._begin(draft)
            if isinstance(result, Chosen):
                begun, outcome = result, Next(phase=result.spec.name, is_begun=True)
            else:
                outcome = result
        self._save(draft, end=None if isinstance(outcome, Next) else self._end_of(outcome, draft.document))

        self._ready = self._as_stored(begun) if begun else None
        if news and any(item.event_type == "breaker_closed" for item in news):
            home.service_waits.wake()
        self.tell_agent_ended(index, chosen.record.attempts[-1].number)
        if isinstance(report, RunReport) and trouble is None:
            home.past_checkpoints.forget(self.owned.document, phase, chosen.record.round)

        return outcome

    def _trouble(self, chosen: Chosen, report: RunReport, verdict: GateVerdict | None) -> Failure | None:
        """Return the classified failure of the attempt, or None if nothing failed."""
        error: BaseException | None
        if not is_well(report):
            error = report.error or RunFailed(FailedRun(text="it failed without a reason"))
        elif report.wants_rework and chosen.spec.on_rework:
            return None
        else:
            error = gate_error(chosen.spec, report, verdict)
        if error is None:
            return None

        return judge(
            error,
            chosen.spec,
            self.owned.document.phases[chosen.index],
            clock=self._home.clock,
            redact=self._home.redactor.redact,
            max_outage_seconds=MAX_OUTAGE_SECONDS,
            has_services=bool(self._home.service_guard.parties_of(chosen.spec)),
        )

    def _consult(self, chosen: Chosen, trouble: Failure) -> Advice | None:
        """Ask the advisor, if there is one, about a failed attempt. The call is recorded before it is made."""
        asked, record = self._home.advisor, self.owned.document.phases[chosen.index]
        if asked is None or trouble.facts is None or not may_ask(self.owned.document, record, trouble):
            return None
        if not asked.is_free:
            self.change(lambda draft: advisor.note_call(draft, chosen.index, asked.name))
        case = Case(
            facts=trouble.facts,
            phase=chosen.spec,
            record=self.owned.document.phases[chosen.index],
            document=self.owned.document,
            context=self._context_of(chosen),
        )
        advice = self._guarded(chosen, lambda: asked.ask(case), lambda exc: no_answer(asked.name, exc))

        return advice if advice.is_news else None

    def _suspend(self, draft: Draft, chosen: Chosen, report: Suspended) -> Outcome:
        order = self._orders.current()
        kind, reason = (order.kind, order.reason or report.reason) if order else ("stop", report.reason)
        attempt = draft.phase(chosen.index).attempts[-1]
        harvest: Harvest | None
        if report.usage is not None:
            harvest = Harvest(report=RunReport(ok=False, usage=report.usage))
        else:
            harvest = self._home.agent_runner.harvest(self.owned.document, chosen.spec, attempt)

        return transitions.suspend(draft, chosen, kind=kind, reason=reason, harvest=harvest)

    def _fail(
        self, draft: Draft, chosen: Chosen, trouble: Failure, advice: Advice | None, report: RunReport
    ) -> Outcome:
        report = replace(report, was_done=report.was_done or is_well(report))
        if trouble.is_parked and trouble.retry_at is not None:
            facts = trouble.facts
            waits_for = self._home.service_guard.services_of(chosen.spec, facts) if facts is not None else {}
            return transitions.park(draft, chosen, trouble, trouble.retry_at, report, waits_for=waits_for)
        if advice is not None:
            return advisor.apply_decision(draft, self.spec, chosen, trouble, report=report, found=advice)

        return transitions.fail(draft, self.spec, chosen, trouble, report)

    def _fork(self, chosen: Chosen, report: WaitingForChildren) -> Outcome:
        return self.change(lambda draft: transitions.fork(draft, chosen, report))

    def _interrupt(self, chosen: Chosen, why: str) -> Outcome | None:
        return self.change(lambda draft: transitions.interrupt(draft, self.spec, chosen.index, why))

    def _close_stopped(self, chosen: Chosen, stop: KeyboardInterrupt) -> None:
        """Close an attempt that a person interrupted. Errors here do not keep the person from quitting."""
        try:
            # Files it left in the worktree beside its work are discarded before the next attempt.
            self._record(chosen, Suspended(reason="interrupted from the keyboard"), None, stop, lambda: False)
        except AdwError as exc:
            stop.add_note(f"the attempt could not be closed and will count as interrupted: {exc}")

    # --- between attempts --------------------------------------------------------------------------------------

    def settle(self) -> Outcome | None:
        """Close what a crash left open: end its processes, count the attempt. Returns the outcome if it is final."""
        phases = self.owned.document.phases
        index = next((index for index, record in enumerate(phases) if running_attempt(record) is not None), None)
        if index is None:
            return None
        attempt = phases[index].attempts[-1]
        ended = self._home.end_process(attempt.process) if attempt.process else None
        why = "the process that worked on it ended without a word" + (f"; {ended.describe()}" if ended else "")
        harvest = self._home.agent_runner.harvest(self.owned.document, self.spec.phases[index], attempt)
        doubt = ended.describe() if ended and not ended.is_certain else ""
        outcome = self.change(lambda draft: transitions.interrupt(draft, self.spec, index, why, harvest, doubt=doubt))
        self.tell_agent_ended(index, attempt.number)

        return outcome if isinstance(outcome, Done | Failed | Paused) else None

    @property
    def doubt(self) -> str:
        """Why it is unknown whether the last attempt's process has ended, or "" if it is known."""
        return transitions.doubt_of(self.owned.document.phases)

    def end_left(self) -> None:
        """End processes left here by attempts closed on another machine; raise WorkflowBusy if that is impossible."""
        for index, attempt in transitions.in_doubt(self.owned.document.phases):
            ending = self._home.end_process(attempt.process or {})
            if ending.left:
                what = f"processes of an earlier attempt that cannot be ended ({', '.join(ending.left)})"
                raise WorkflowBusy(self.owned.document.adw_id, what)
            if ending.is_certain:
                clear = partial(transitions.clear_doubt, index=index, number=attempt.number, found=ending.describe())
                self.change(clear)

    def tell_agent_ended(self, index: int, number: int) -> None:
        """Record the end of attempt *number* of a phase in its agent session, if an agent worked on it."""
        record = self.owned.document.phases[index]
        for attempt in reversed(record.attempts):
            if attempt.number == number and attempt.agent and attempt.ended_at is not None:
                self._home.agent_session_recorder.end(self.owned.document, record.name, attempt)

    def plan_resume(self, *, from_phase: str = "", grant: int = 0, budget: float | None = None) -> ResumePlan:
        """Return how the workflow resumes; raise UsageError if it cannot."""
        return plan_resume(
            self.owned.document,
            self.spec,
            self._draft().machine,
            from_phase=from_phase,
            grant=grant,
            budget=budget,
            max_cost_usd=self._home.settings.quota_max_cost,
        )

    def forget_table(self) -> None:
        """Drop the cached definition and table, after the document got another definition."""
        self._thawed = None
        self._machine = None

    def rest(self) -> None:
        """Release the ports and the quota reservation, and update the status comment. May be repeated."""
        self._home.workspace.release(self)
        self._home.status_comment.update(self)

    # --- the document ------------------------------------------------------------------------------------------

    def change(self, rule: Callable[[Draft], _Result]) -> _Result:
        """Apply *rule* to the document between two attempts, store the result and return what *rule* returns."""
        draft = self._draft()
        answer = rule(draft)
        self._save(draft)

        return answer

    def _draft(self) -> Draft:
        # The draft may move the machine, so the machine is kept again only after the write that stores the move.
        machine, self._machine = self._machine, None
        if machine is None:
            machine = WorkflowStateMachine.of(self.owned.document, now=self._home.clock.now)

        return Draft(
            self.owned.document,
            machine,
            now=self._home.clock.now,
            max_cost_usd=self._home.settings.quota_max_cost,
            queue=self.queue,
        )

    def _save(self, draft: Draft, *, end: RunEnd | None = None) -> None:
        self.owned.save(draft.finished(), events=draft.events, end=end)
        self._machine = draft.machine
        if self._has_log:
            log_events(self.owned.document, draft.events, self._home.redactor)
        self._home.tell(self.owned.document, draft.events)

    def _as_stored(self, chosen: Chosen) -> Chosen:
        return Chosen(spec=chosen.spec, record=self.owned.document.phases[chosen.index], index=chosen.index)


def changed_rules(document: WorkflowDocument, known: JsonObject, facts: JsonObject) -> JsonObject | None:
    """
    Return which of the project's rules files changed since the same agent last read them, or None if none did.

    Only this workflow counts. *known* holds the facts that the attempt has recorded already.
    """
    rules = facts.get("rules")
    if not isinstance(rules, dict) or "rules" in known:
        return None
    name = facts.get("name")
    attempts = [attempt for record in document.phases for attempt in record.attempts]
    agents = [attempt.agent for attempt in sorted(attempts, key=attrgetter("started_at")) if attempt.agent]
    before = next((agent.get("rules") for agent in reversed(agents) if agent.get("name") == name), rules)
    if before == rules or not isinstance(before, dict):
        return None
    files = sorted(file for file in {*rules, *before} if rules.get(file) != before.get(file))
    whole = hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()

    return {"agent": name, "sha256": whole, "files": {file: rules.get(file) for file in files}}


def _mark_shared(index: int, facts: JsonObject, draft: Draft) -> None:
    """Store *facts* with the newest attempt of a phase, and clear those of earlier attempts without a finding."""
    for number, record in enumerate(draft.document.phases):
        if any(attempt.shared and CHANGED not in attempt.shared for attempt in record.attempts):
            kept = [
                one.changed(shared={}) if one.shared and CHANGED not in one.shared else one for one in record.attempts
            ]
            draft.change_phase(number, attempts=kept)
    known = draft.phase(index).attempts[-1].shared or {}
    draft.mark_attempt(index, shared={**known, **facts})


def _record_denied(draft: Draft, index: int, context: PhaseContext | None) -> None:
    """Add an event for each host that the sandbox blocked during the attempt, and a warning for people."""
    denied = sorted(context.denied.items()) if context is not None else []
    for host, times in denied:
        draft.add_event("egress_denied", index, data={"host": host, "count": times})
    if denied:
        about = f"{draft.phase(index).name}: the sandbox denied connections to "
        hosts = ", ".join(f"{host} ({times})" for host, times in denied)
        others = [warning for warning in draft.document.warnings if not warning.startswith(about)]
        draft.document.warnings = [*others, f"{about}{hosts}; sandbox.egress allows hosts"]


def _record_discarded(draft: Draft, index: int, discarded: JsonObject | BaseException | None) -> None:
    """Record that nothing but the work is left in the worktree, unless discarding failed."""
    if not isinstance(discarded, BaseException) and draft.phase(index).attempts[-1].leftovers:
        draft.mark_attempt(index, leftovers=False)
    if isinstance(discarded, dict):
        draft.add_event("work_discarded", index, data=discarded)


def is_well(report: RunReport) -> bool:
    """Say whether the runner reports success without an error."""
    return report.ok and report.error is None


def gate_error(phase: PhaseSpec, report: RunReport, verdict: GateVerdict | None) -> BaseException | None:
    """Return why a phase that reported success has failed after all, or None if it has not."""
    if report.wants_rework:
        return GateFailed(phase.name, "it asks for rework, but its definition does not say where to go back to")
    if verdict is None or verdict.passed or verdict.needs_human:
        return None

    return verdict.error or GateFailed(phase.name, verdict.reason)


def _needs_cleanup(record: PhaseRecord) -> bool:
    """Say whether the previous attempt failed for lack of a resource that can be freed."""
    error = record.attempts[-2].error
    metadata = error.get("metadata") if error else None

    return isinstance(metadata, dict) and metadata.get("requires_cleanup") is True


class Advisor(Protocol):
    """Examines a failed attempt and decides how to continue (`engine.advisor`)."""

    @property
    def name(self) -> str:
        """The advisor's name, for the record."""

    @property
    def is_free(self) -> bool:
        """Whether asking has no side effects, so that the call need not be recorded first."""

    def ask(self, case: Case) -> Advice:
        """Return the advice. Raises nothing except for orders and lost ownership."""


# --- the log of a workflow -------------------------------------------------------------------------------------
#
# Written after the commit: a crash can lose a log line, but no line describes something that was not stored.


#: States whose entry the line before or after already reports; parking and the end of a workflow are logged.
_UNLOGGED_STATES = frozenset(state.value for state in PHASE_STATES)
_LEVELS = {"attempt_failed": "WARNING", "attempt_interrupted": "WARNING", "phase_failed": "ERROR"}


def log_events(document: WorkflowDocument, events: Sequence[Event], redactor: Redactor) -> None:
    """Write the log lines of *events*, stored with *document*, with the counters of that revision."""
    entries: list[JsonObject] = []
    record: PhaseRecord | None = None
    for event in events:
        kind, status = event.event_type, event.status
        if kind == "phase_completed" or (kind == "state_changed" and status in _UNLOGGED_STATES):
            continue  # the line before or after reports it
        if record is None or record.name != event.node_name:  # the events of one step concern one phase or two
            record = None
            for phase in document.phases:
                if phase.name == event.node_name:
                    record = phase
        used, allowed = (record.attempts_used, record.max_attempts + record.granted) if record else (None, None)
        sentence = f"Attempt {used}/{allowed}" if kind == "attempt_started" else kind.replace("_", " ").capitalize()
        entry: JsonObject = {
            "timestamp": document.updated_at,
            "adw_id": document.adw_id,
            "phase": redactor.redact_text(event.node_name or "workflow"),
            "level": _LEVELS.get(kind, "INFO"),
            "message": sentence,
            "event_type": kind,
            "status": status,
            "attempt": event.attempt_number,
            "attempts_used": used,
            "max_attempts": allowed,
            "revision": document.revision,
            "details": redactor.redact(event.data) if event.data else {},
        }
        entries.append(entry)
    if entries:
        write_entries(document.adw_id, entries, redactor)


# --- judging a failed attempt ----------------------------------------------------------------------------------
#
# `error_handler` classifies the error and `retry_handler` decides about it. This is the only place where phases use the
# two; nothing is decided here.


#: Number of traceback characters stored with an attempt; the end is the most useful part.
MAX_TRACEBACK = 8000


def judge(
    error: BaseException,
    phase: PhaseSpec,
    record: PhaseRecord,
    *,
    clock: Clock,
    redact: Callable[[JsonObject], JsonValue] = lambda kept: kept,
    max_outage_seconds: float = DAY,
    has_services: bool = True,
) -> Failure:
    """
    Return why the newest attempt of *record* failed, and when the phase is retried.

    *redact* removes secrets from everything logged and stored, as exceptions may contain anything. A phase waits up to
    *max_outage_seconds* for a service that is not available. If the phase has no services, an outage that was only
    guessed from an error's text does not count as one.
    """
    facts = describe(error, phase.name)
    # Calls in steps wait on their own: a sequence that failed after its waits has failed.
    is_counted = phase.runner == STEPS or (facts.is_guess and not has_services)
    may_park = facts.klass == "quota_window" or not is_counted
    parking = _parking(record, max_outage_seconds) if may_park else None
    decision = _decide(facts, phase, record, clock=clock, parking=parking)
    if isinstance(decision, Retry):
        return Failure(
            error=_kept(facts, redact),
            retry_at=decision.at,
            needs_cleanup=decision.needs_cleanup,
            is_parked=decision.is_parked,
            wait_deadline=decision.deadline,
            facts=facts,
        )

    why: JsonObject = {"not_retried": decision.reason}  # the reason quotes the error
    if isinstance(decision, AskPerson):
        why["advice"] = decision.advice

    return Failure(
        error=_kept(facts, redact, why), retry_at=None, terminal_reason=decision.terminal_reason, facts=facts
    )


def _parking(record: PhaseRecord, max_seconds: float) -> Parking:
    """Return the consecutive waits that used no attempt, derived from the attempts."""
    parked = transitions.parked_in_a_row(record)

    return Parking(
        waits=len(parked),
        named_resets=sum(map(transitions.is_named_reset, parked)),
        since=timestamps.parse(parked[-1].ended_at or parked[-1].started_at) if parked else None,
        max_seconds=max_seconds,
    )


def _decide(
    facts: ErrorFacts, phase: PhaseSpec, record: PhaseRecord, *, clock: Clock, parking: Parking | None
) -> RetryDecision:
    same = sum(1 for attempt in record.attempts if _is_same(attempt, record.round, facts.klass))

    return decide(
        facts,
        attempts_used=record.attempts_used,
        max_attempts=limit(record),
        policy=policies_of(phase.retry),
        now=clock.now(),
        random=clock.random(),
        # Attempts that a person granted also extend the limit for this class of errors.
        class_failures=max(1, same + 1 - record.granted),
        parking=parking,
    )


def _kept(
    facts: ErrorFacts, redact: Callable[[JsonObject], JsonValue], why: Mapping[str, JsonValue] = MappingProxyType({})
) -> JsonObject:
    """Return the stored form of an error. It is redacted before it is cut, so that no part of a secret remains."""
    clean = redact({**facts.to_json(), "traceback": facts.traceback, **why})
    kept: JsonObject = clean if isinstance(clean, dict) else {}
    kept["traceback"] = str(kept.get("traceback") or "")[-MAX_TRACEBACK:]

    return kept


def _is_same(attempt: AttemptRecord, round_number: int, klass: str) -> bool:
    return attempt.round == round_number and (attempt.error or {}).get("klass") == klass
