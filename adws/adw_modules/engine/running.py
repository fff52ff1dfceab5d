"""
Running an attempt that is recorded: its place, its runner, what secures its work, its gates.

Whatever any of these raises is a failed attempt, but for what says that the workflow is not ours any more. A person's
interrupt closes the attempt and goes on to end the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from adws.adw_modules.document_draft import Draft
from adws.adw_modules.effect_rules import secured_head
from adws.adw_modules.engine.gates import GateVerdict
from adws.adw_modules.engine.parts import Parts
from adws.adw_modules.errors import (
    DurabilityUnknown,
    Fenced,
    GateFailed,
    LeaseLost,
    RunLost,
    StateConflict,
    UsageError,
)
from adws.adw_modules.interfaces_engine import Orders, PhaseContext, ProcessRecord, Runner
from adws.adw_modules.outcome import Forked, RunReport, Suspended
from adws.adw_modules.phase_choice import Chosen
from adws.adw_modules.resume_rules import hints_for

if TYPE_CHECKING:
    from adws.adw_modules.document import PhaseRecord, WorkflowDocument
    from adws.adw_modules.json_value import JsonObject
    from adws.adw_modules.workflow import PhaseSpec

#: Not ours to handle: somebody else owns the workflow, or nobody knows what is on disk.
NOT_OURS = (Fenced, LeaseLost, RunLost, StateConflict, DurabilityUnknown)

_Answer = TypeVar("_Answer")


class Session(Protocol):
    """What running needs of the work on a workflow."""

    @property
    def document(self) -> WorkflowDocument:
        """The last stored revision."""

    @property
    def queue(self) -> JsonObject:
        """Who works on it, and on which run."""

    def change(self, rule: Callable[[Draft], None]) -> None:
        """Store what *rule* does to the document."""


_S = TypeVar("_S", bound=Session)


class PhaseRuns(Generic[_S]):
    """Runs the attempts of one session; the attempts are recorded and closed by the session."""

    def __init__(
        self, parts: Parts[_S], session: _S, orders: Orders, *, on_stop: Callable[[Chosen, KeyboardInterrupt], None]
    ) -> None:
        """*on_stop* closes an attempt that a person interrupted."""
        self._parts = parts
        self._session = session
        self._orders = orders
        self._on_stop = on_stop
        self._chosen: Chosen | None = None  #: whose attempt was run last
        self._context_made: tuple[Chosen, PhaseContext] | None = None  #: of the attempt that runs

    def run(self, chosen: Chosen) -> RunReport | Suspended | Forked:
        """Run the attempt once, and secure what it did."""
        order = self._orders.current()
        if order is not None:
            return Suspended(reason=order.reason)
        report = self.guard(chosen, lambda: self._work(chosen), lambda exc: RunReport(ok=False, error=exc))
        if isinstance(report, Suspended | Forked) or (isinstance(report, RunReport) and not is_well(report)):
            return report
        if isinstance(report, RunReport):
            return self._conclude(chosen, report)
        runner = chosen.spec.runner
        wrong = (
            f"the runner {runner!r} answered with {type(report).__name__}, not with a RunReport, Suspended or Forked"
        )

        return RunReport(ok=False, error=TypeError(wrong))

    def verdict(self, chosen: Chosen, report: RunReport | Suspended) -> GateVerdict | None:
        """Return what the gates say, None when there is nothing to ask them about."""
        if isinstance(report, Suspended) or not is_well(report) or report.wants_rework:
            return None

        def ask() -> GateVerdict:
            with self._parts.around(self._session.document):
                return self._parts.gates(chosen.spec, self.context(chosen), report)

        return self.guard(
            chosen, ask, lambda exc: GateVerdict(passed=False, reason=f"the gate could not be decided: {exc}")
        )

    def running(self) -> tuple[PhaseSpec, PhaseContext]:
        """Return the phase whose attempt runs now, and what may be known of it before its place is made."""
        if self._chosen is None:
            raise UsageError(f"workflow {self._session.document.adw_id} has no attempt that runs")

        return self._chosen.spec, self._new_context(self._chosen)

    def guard(
        self, chosen: Chosen, action: Callable[[], _Answer], failed: Callable[[BaseException], _Answer]
    ) -> _Answer:
        """Return what *action* answers, or what *failed* makes of what it raises."""
        try:
            return action()
        except NOT_OURS:
            raise
        except KeyboardInterrupt as stop:
            self._on_stop(chosen, stop)
            raise
        except BaseException as exc:  # noqa: BLE001 - whatever a runner or a gate raises is a failed attempt
            return failed(exc)

    def context(self, chosen: Chosen) -> PhaseContext:
        """Return what runner, gates and doctor may know: one context for the whole attempt."""
        made = self._context_made
        if made is None or made[0] is not chosen:
            made = self._context_made = (chosen, self._new_context(chosen))

        return made[1]

    # --- one after the other -----------------------------------------------------------------------------------

    def _work(self, chosen: Chosen) -> object:
        phase, self._chosen = chosen.spec, chosen
        self._parts.prepare(self._session)
        with self._parts.around(self._session.document) as env:
            context = self._new_context(chosen, env)
            self._context_made = (chosen, context)
            if _needs_cleanup(chosen.record):
                self._parts.clean_up(phase, context)

            return self._runner(phase).run(phase, context)

    def _conclude(self, chosen: Chosen, report: RunReport) -> RunReport:
        return self.guard(
            chosen,
            lambda: self._parts.conclude(self._session, chosen.spec, self.context(chosen), report),
            lambda exc: replace(report, ok=False, error=exc, was_done=True),  # work not secured is no success
        )

    def _runner(self, phase: PhaseSpec) -> Runner:
        runner = self._parts.runners.get(phase.runner)
        if runner is None:
            known = ", ".join(sorted(self._parts.runners))
            raise UsageError(f"phase {phase.name} has the runner {phase.runner!r}; there are: {known}")

        return runner

    def _new_context(self, chosen: Chosen, env: Mapping[str, str] = MappingProxyType({})) -> PhaseContext:
        document = self._session.document
        record = document.phases[chosen.index]
        attempt = record.attempts[-1]

        return PhaseContext(
            document=document,
            phase=record.name,
            attempt_number=attempt.number,
            round=record.round,
            cwd=self._parts.workplace_of(document),
            folder=self._parts.folder_of(document.adw_id),
            orders=self._orders,
            record_process=lambda process: self._record_process(chosen.index, process),
            say=lambda line: self._parts.say(document.adw_id, line),
            results={phase.name: phase.result for phase in document.phases if phase.result is not None},
            hints=hints_for(document, record.name),
            env=env,
            effects=self._parts.effects_of(self._session),
            model=attempt.model or "",
            record_agent=lambda facts: self._record_agent(chosen.index, facts),
            answered=lambda: self._parts.answered(document, chosen.spec),
            base=secured_head(document),
            queue=self._session.queue,
        )

    def _record_process(self, index: int, process: ProcessRecord) -> None:
        self._session.change(lambda draft: draft.mark_attempt(index, process=process.to_json()))

    def _record_agent(self, index: int, facts: JsonObject) -> None:
        def merge(draft: Draft) -> None:
            known = draft.phase(index).attempts[-1].agent or {}
            draft.mark_attempt(index, agent={**known, **facts})

        self._session.change(merge)
        document = self._session.document
        record = document.phases[index]
        self._parts.agent_begun(document, record.name, record.attempts[-1])


def is_well(report: RunReport) -> bool:
    """Say whether the runner reports success, and nothing that speaks against it."""
    return report.ok and report.error is None


def gate_error(phase: PhaseSpec, report: RunReport, verdict: GateVerdict | None) -> BaseException | None:
    """Return why a phase that reports success has failed all the same, None when it has not."""
    if report.wants_rework:
        return GateFailed(phase.name, "it asks for rework, but its definition does not say where to go back to")
    if verdict is None or verdict.passed or verdict.needs_human:
        return None

    return GateFailed(phase.name, verdict.reason)


def _needs_cleanup(record: PhaseRecord) -> bool:
    """Say whether the attempt before the one that begins failed for want of something that can be freed."""
    before = record.attempts[-2] if len(record.attempts) > 1 else None
    metadata = (before.error or {}).get("metadata") if before is not None else None

    return isinstance(metadata, dict) and metadata.get("requires_cleanup") is True
