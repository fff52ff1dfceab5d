"""
One attempt per call: pick the phase, record the attempt, run it once, record the result with what comes next.

The attempt is durable before anything runs. Result, counters and the next state are one write, and when the work goes
on at once, the beginning of the next phase is in that same write. Nothing here retries or waits: the outcome says what
is to be done, and whoever called does it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

from adws.adw_modules import attempt_rules
from adws.adw_modules.attempt_rules import Trouble
from adws.adw_modules.document_draft import Draft
from adws.adw_modules.engine.gates import GateVerdict
from adws.adw_modules.errors import (
    AdwError,
    DurabilityUnknown,
    Fenced,
    GateFailed,
    LeaseLost,
    RunLost,
    StateConflict,
    StateUnserialisable,
    UsageError,
)
from adws.adw_modules.interfaces import Clock, Owned
from adws.adw_modules.interfaces_engine import EffectMaker, Orders, PhaseContext, ProcessRecord, Runner
from adws.adw_modules.outcome import Done, Failed, Next, Outcome, Paused, RunReport, Suspended
from adws.adw_modules.phase_choice import AllPassed, Chosen, choose, limit, running_attempt
from adws.adw_modules.resume_rules import ResumePlan, definition_of, hints_for, plan_resume
from adws.adw_modules.state_machine import WorkflowState, WorkflowStateMachine
from adws.adw_modules.state_table import PHASE_STATES, TERMINAL_STATES
from adws.adw_modules.structured_logger import StructuredLogger

if TYPE_CHECKING:
    from adws.adw_modules.document import PhaseRecord, WorkflowDocument
    from adws.adw_modules.events import Event
    from adws.adw_modules.redaction import Redactor
    from adws.adw_modules.workflow import PhaseSpec, WorkflowSpec

logger = logging.getLogger("adw.engine")

_Result = TypeVar("_Result")

#: Not ours to handle: somebody else owns the workflow, or nobody knows what is on disk.
_NOT_OURS = (Fenced, LeaseLost, RunLost, StateConflict, DurabilityUnknown)


class Judge(Protocol):
    """Classifies what went wrong and decides whether the phase is tried again."""

    def __call__(self, error: BaseException, phase: PhaseSpec, record: PhaseRecord) -> Trouble: ...


class GateKeeper(Protocol):
    """Says whether what a phase did may pass."""

    def __call__(self, phase: PhaseSpec, context: PhaseContext, report: RunReport) -> GateVerdict: ...


class Conclusion(Protocol):
    """Secures what a phase did after its own success and before its gates; what it raises is a failed attempt."""

    def __call__(
        self, session: WorkSession, phase: PhaseSpec, context: PhaseContext, report: RunReport
    ) -> RunReport: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineParts:
    """What the engine works with."""

    clock: Clock
    runners: Mapping[str, Runner]
    judge: Judge
    gates: GateKeeper
    folder_of: Callable[[str], Path]  #: a workflow's own directory
    workplace_of: Callable[[WorkflowDocument], Path]  #: where its phases work
    end_process: Callable[[Mapping[str, object]], str]  #: ends what a crash left running, and says what it was
    say: Callable[[str, str], None] = lambda _adw_id, _line: None  #: shows a line of a phase's output
    tell: Callable[[WorkflowDocument, Sequence[Event]], None] = lambda _document, _events: None  #: shows what is stored
    log_of: Callable[[str], AbstractContextManager[object]] = nullcontext  #: opens the log of a workflow
    redactor: Redactor | None = None  #: keeps secrets out of the log
    clean_up: Callable[[PhaseSpec, PhaseContext], None] = lambda _phase, _context: None  #: frees what was short
    prepare: Callable[[WorkSession], None] = lambda _session: None  #: makes the place an attempt works in
    #: Hands things over to the processes of a phase inside the block; gives the variables that say what.
    around: Callable[[WorkflowDocument], AbstractContextManager[Mapping[str, str]]] = lambda _document: nullcontext({})
    conclude: Conclusion = lambda _session, _phase, _context, report: report
    effects_of: Callable[[WorkSession], EffectMaker | None] = lambda _session: None  #: the ledger, for runners
    release: Callable[[WorkSession], None] = lambda _session: None  #: gives back what only work at hand may hold
    report: Callable[[WorkSession], None] = lambda _session: None  #: tells the outside how the work stands
    max_cost_usd: float | None = None  #: what a workflow without a cap of its own may cost; None: no cap


class WorkSession:
    """The work on one workflow while it is owned."""

    def __init__(self, parts: EngineParts, owned: Owned, orders: Orders) -> None:
        self._parts = parts
        self._owned = owned
        self._orders = orders
        self._thawed: WorkflowSpec | None = None
        self._machine: WorkflowStateMachine | None = None
        self._ready: Chosen | None = None  #: begun by our last write and not run yet
        self._chosen: Chosen | None = None  #: whose attempt was run last
        self._context_made: tuple[Chosen, PhaseContext] | None = None  #: of the attempt that runs

    @property
    def document(self) -> WorkflowDocument:
        """The last stored revision."""
        return self._owned.document

    # --- one attempt -------------------------------------------------------------------------------------------

    def attempt(self, *, may_go_on: Callable[[], bool] = lambda: False) -> Outcome:
        """Run the next phase once and return what came of it; *may_go_on* is asked before the finishing write."""
        chosen, self._ready = self._ready, None
        if chosen is None:
            found = self._open()
            if not isinstance(found, Chosen):
                return found
            chosen = found

        return self._close(chosen, self._run(chosen), may_go_on)

    @property
    def spec(self) -> WorkflowSpec:
        """The definition frozen in the document; raises StateInvalid when there is none."""
        if self._thawed is None:
            self._thawed = definition_of(self.document)

        return self._thawed

    def plan_resume(self, *, from_phase: str = "", grant: int = 0) -> ResumePlan:
        """Return how the workflow goes on; raise UsageError when it cannot."""
        machine = self._draft().machine

        return plan_resume(self.document, self.spec, machine, from_phase=from_phase, grant=grant)

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
        ended = self._parts.end_process(process) if process else ""
        why = "the process that worked on it ended without a word" + (f"; {ended}" if ended else "")
        draft = self._draft()
        outcome = attempt_rules.interrupt(draft, self.spec, index, why)
        self._save(draft)

        return outcome if isinstance(outcome, Done | Failed | Paused) else None

    def _open_attempt(self) -> int | None:
        phases = self.document.phases
        return next((index for index, record in enumerate(phases) if running_attempt(record) is not None), None)

    def _open(self) -> Chosen | Outcome:
        """Return the phase whose attempt is recorded and may run now, or what is to be done instead."""
        over = self.settle() or self._resting()
        if over is not None:
            return over
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
        if isinstance(found, Chosen):
            lease = self._owned.lease
            attempt_rules.begin(draft, found, owner=lease.owner.describe(), fence=lease.fence)

        return found

    # --- running -----------------------------------------------------------------------------------------------

    def _run(self, chosen: Chosen) -> RunReport | Suspended:
        phase = chosen.spec
        order = self._orders.current()
        if order is not None:
            return Suspended(reason=order.reason)
        try:
            report: object = self._work(chosen)
        except _NOT_OURS:
            raise
        except KeyboardInterrupt as stop:
            self._suspend(chosen, stop)
            raise
        except BaseException as exc:  # noqa: BLE001 - whatever a runner raises is a failed attempt
            return RunReport(ok=False, error=exc)
        if isinstance(report, Suspended) or (isinstance(report, RunReport) and not _is_well(report)):
            return report
        if isinstance(report, RunReport):
            return self._conclude(chosen, report)
        wrong = f"the runner {phase.runner!r} answered with {type(report).__name__}, not with a RunReport or Suspended"

        return RunReport(ok=False, error=TypeError(wrong))

    def running(self) -> tuple[PhaseSpec, PhaseContext]:
        """Return the phase whose attempt runs now, and what may be known of it before its place is made."""
        if self._chosen is None:
            raise UsageError(f"workflow {self.document.adw_id} has no attempt that runs")

        return self._chosen.spec, self._new_context(self._chosen, {})

    def _work(self, chosen: Chosen) -> object:
        phase, self._chosen = chosen.spec, chosen
        self._parts.prepare(self)
        with self._parts.around(self.document) as env:
            context = self._context(chosen, env)
            if _needs_cleanup(chosen.record):
                self._parts.clean_up(phase, context)

            return self._runner(phase).run(phase, context)

    def _conclude(self, chosen: Chosen, report: RunReport) -> RunReport:
        try:
            return self._parts.conclude(self, chosen.spec, self._context(chosen), report)
        except _NOT_OURS:
            raise
        except KeyboardInterrupt as stop:
            self._suspend(chosen, stop)
            raise
        except BaseException as exc:  # noqa: BLE001 - work that could not be secured is no success
            return replace(report, ok=False, error=exc)

    def _suspend(self, chosen: Chosen, stop: KeyboardInterrupt) -> None:
        """Close an attempt that a person interrupted; what goes wrong with that does not keep them from leaving."""
        try:
            self._finish(chosen, Suspended(reason="interrupted from the keyboard"), None, lambda: False)
        except AdwError as exc:
            stop.add_note(f"the attempt could not be closed and will count as interrupted: {exc}")

    def _runner(self, phase: PhaseSpec) -> Runner:
        runner = self._parts.runners.get(phase.runner)
        if runner is None:
            known = ", ".join(sorted(self._parts.runners))
            raise UsageError(f"phase {phase.name} has the runner {phase.runner!r}; there are: {known}")

        return runner

    def _context(self, chosen: Chosen, env: Mapping[str, str] = MappingProxyType({})) -> PhaseContext:
        """Return what runner and gates may know: one context for the whole attempt."""
        made = self._context_made
        if made is None or made[0] is not chosen:
            made = self._context_made = (chosen, self._new_context(chosen, env))

        return made[1]

    def _new_context(self, chosen: Chosen, env: Mapping[str, str]) -> PhaseContext:
        document = self.document
        record = document.phases[chosen.index]

        return PhaseContext(
            document=document,
            phase=record.name,
            attempt_number=record.attempts[-1].number,
            round=record.round,
            cwd=self._parts.workplace_of(document),
            folder=self._parts.folder_of(document.adw_id),
            orders=self._orders,
            record_process=lambda process: self._record_process(chosen.index, process),
            say=lambda line: self._parts.say(document.adw_id, line),
            results={phase.name: phase.result for phase in document.phases if phase.result is not None},
            hints=hints_for(document, record.name),
            env=env,
            effects=self._parts.effects_of(self),
        )

    def _record_process(self, index: int, process: ProcessRecord) -> None:
        draft = self._draft()
        record = draft.phase(index)
        marked = record.attempts[-1].model_copy(update={"process": process.to_json()})
        draft.change_phase(index, attempts=[*record.attempts[:-1], marked])
        self._save(draft)

    # --- the end of an attempt ---------------------------------------------------------------------------------

    def _close(self, chosen: Chosen, report: RunReport | Suspended, may_go_on: Callable[[], bool]) -> Outcome:
        verdict = self._verdict(chosen, report)
        if verdict is not None and verdict.is_suspended:
            report = Suspended(reason=verdict.reason)
        try:
            return self._finish(chosen, report, verdict, may_go_on)
        except StateUnserialisable as exc:
            # What the phase gave back cannot be stored: that is its failure, and the attempt has to end.
            return self._finish(chosen, RunReport(ok=False, error=exc), None, may_go_on)

    def _verdict(self, chosen: Chosen, report: RunReport | Suspended) -> GateVerdict | None:
        if isinstance(report, Suspended) or not _is_well(report) or report.wants_rework:
            return None
        try:
            with self._parts.around(self.document):
                return self._parts.gates(chosen.spec, self._context(chosen), report)
        except _NOT_OURS:
            raise
        except KeyboardInterrupt as stop:
            self._suspend(chosen, stop)
            raise
        except BaseException as exc:  # noqa: BLE001 - a gate that cannot be decided does not pass
            return GateVerdict(passed=False, reason=f"the gate could not be decided: {exc}")

    def _finish(
        self,
        chosen: Chosen,
        report: RunReport | Suspended,
        verdict: GateVerdict | None,
        may_go_on: Callable[[], bool],
    ) -> Outcome:
        draft = self._draft()
        outcome = self._outcome(draft, chosen, report, verdict)
        begun: Chosen | None = None
        if isinstance(outcome, Next) and self._orders.current() is None and may_go_on():
            found = self._begin(draft)
            if isinstance(found, Chosen):
                begun, outcome = found, Next(phase=found.spec.name, is_begun=True)
            else:
                outcome = found
        self._save(draft)
        self._ready = self._as_stored(begun) if begun else None

        return outcome

    def _outcome(
        self, draft: Draft, chosen: Chosen, report: RunReport | Suspended, verdict: GateVerdict | None
    ) -> Outcome:
        if isinstance(report, Suspended):
            order = self._orders.current()
            kind, reason = (order.kind, order.reason or report.reason) if order else ("stop", report.reason)
            return attempt_rules.suspend(draft, chosen, kind=kind, reason=reason)
        if _is_well(report) and report.wants_rework and chosen.spec.on_rework:
            return attempt_rules.rework(draft, self.spec, chosen, report)
        error = _gate_error(chosen.spec, report, verdict) if _is_well(report) else report.error
        if error is None and verdict is not None and verdict.needs_human:
            return attempt_rules.await_approval(draft, chosen, report, verdict.reason)
        if error is None and report.ok:
            return attempt_rules.succeed(draft, self.spec, chosen, report)
        record = draft.phase(chosen.index)
        trouble = self._parts.judge(error or RuntimeError("it failed without a reason"), chosen.spec, record)

        return attempt_rules.fail(draft, self.spec, chosen, trouble, report)

    # --- the document ------------------------------------------------------------------------------------------

    def _draft(self) -> Draft:
        # The draft may move the machine: it comes back with the write that stores the move, and never without it.
        machine, self._machine = self._machine, None
        if machine is None:
            machine = WorkflowStateMachine.of(self.document, now=self._parts.clock.now)

        return Draft(self.document, machine, now=self._parts.clock.now, max_cost_usd=self._parts.max_cost_usd)

    def _save(self, draft: Draft) -> None:
        self._owned.save(draft.finished(), events=draft.events)
        self._machine = draft.machine
        _log(self.document, draft.events, self._parts.redactor)
        self._parts.tell(self.document, draft.events)

    def _as_stored(self, chosen: Chosen) -> Chosen:
        return Chosen(spec=chosen.spec, record=self.document.phases[chosen.index], index=chosen.index)


def _is_well(report: RunReport) -> bool:
    """Say whether the runner reports success, and nothing that speaks against it."""
    return report.ok and report.error is None


def _needs_cleanup(record: PhaseRecord) -> bool:
    """Say whether the attempt before the one that begins failed for want of something that can be freed."""
    before = record.attempts[-2] if len(record.attempts) > 1 else None
    metadata = (before.error or {}).get("metadata") if before is not None else None

    return isinstance(metadata, dict) and metadata.get("requires_cleanup") is True


def _gate_error(phase: PhaseSpec, report: RunReport, verdict: GateVerdict | None) -> BaseException | None:
    if report.wants_rework:
        return GateFailed(phase.name, "it asks for rework, but its definition does not say where to go back to")
    if verdict is None or verdict.passed or verdict.needs_human:
        return None

    return GateFailed(phase.name, verdict.reason)


#: States whose entry is said by the line before or after already; that work was parked or is over is not.
_UNLOGGED_STATES = frozenset(state.value for state in PHASE_STATES)
_LEVELS = {"attempt_failed": "WARNING", "attempt_interrupted": "WARNING", "phase_failed": "ERROR"}


def _log(document: WorkflowDocument, events: Sequence[Event], redactor: Redactor | None) -> None:
    """Tell the log of what is now stored, with the counters that the document has."""
    for event in events:
        if _is_said_already(event):
            continue
        record = next((phase for phase in document.phases if phase.name == event.node_name), None)
        used, allowed = (record.attempts_used, limit(record)) if record else (None, None)
        StructuredLogger(document.adw_id, event.node_name or "workflow", redactor=redactor).log(
            _LEVELS.get(event.event_type, "INFO"),
            _sentence(event, used, allowed),
            event_type=event.event_type,
            status=event.status,
            attempt=event.attempt_number,
            attempts_used=used,
            max_attempts=allowed,
            revision=document.revision,
            details=event.data,
        )


def _is_said_already(event: Event) -> bool:
    is_entry = event.event_type == "state_changed" and event.status in _UNLOGGED_STATES
    return is_entry or event.event_type == "phase_completed"


def _sentence(event: Event, used: int | None, allowed: int | None) -> str:
    words = event.event_type.replace("_", " ")
    if event.event_type == "attempt_started":
        return f"Attempt {used}/{allowed}"

    return words[0].upper() + words[1:]
