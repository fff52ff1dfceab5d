"""
Run a phase that is made of steps, one after the other.

A step that is a single call is done here. One with a loop or a retry becomes an execution, and the attempt waits for
it; whoever goes on with the attempt takes its result. What is done is kept after each step, so neither a wait, a crash
nor the next attempt of the same round does it again; the step that failed is begun anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from adws.adw_modules import cost_rules, error_handler, expressions
from adws.adw_modules.checkpoint import CheckpointManager, task_of
from adws.adw_modules.demands import Demands
from adws.adw_modules.engine.runners.phase_checkpoints import PhaseCheckpoints, holds
from adws.adw_modules.error_classes import ErrorCategory
from adws.adw_modules.error_handler import WorkflowError
from adws.adw_modules.errors import ExpressionError, Fenced, LeaseLost, RunLost
from adws.adw_modules.execution_picking import lanes_of
from adws.adw_modules.execution_state import values_of
from adws.adw_modules.execution_telling import MAX_VALUE, REFERENCE
from adws.adw_modules.execution_words import ExecutionState
from adws.adw_modules.executions import Assignment, CallReport, Execution, Executions, NewExecution
from adws.adw_modules.fanout import call_costs
from adws.adw_modules.fanout.calls import CallContext, CallMaker
from adws.adw_modules.fanout.contexts import (
    known_of,
    limited,
    read_result,
    resolved,
    result_facts,
    stored_result,
)
from adws.adw_modules.fanout.step_events import EventParts, StepEvents
from adws.adw_modules.fanout.step_progress import MAX_INLINE, Progress, elements_of, next_step
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.outcome import Forked, RunReport, Suspended
from adws.adw_modules.steps import StepSpec
from adws.adw_modules.workflow import PhaseSpec

if TYPE_CHECKING:
    from adws.adw_modules.agent import Usage
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.expressions import Value

#: How long an attempt waits before somebody looks whether its execution still goes on.
LOOK_SECONDS = 3600.0
#: Why executions are cancelled that an earlier attempt left.
SUPERSEDED = "the phase was begun anew"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepParts:
    """What steps are run with."""

    clock: Clock
    executions: Callable[[], Executions]  #: asked when a phase runs: building the runners must not open a database
    calls: Callable[[], CallMaker]
    checkpoints: CheckpointManager
    labels_of: Callable[[WorkflowDocument], frozenset[str]] = lambda _document: frozenset()
    demands_of: Callable[[WorkflowDocument, StepSpec], Demands] = lambda _document, _step: Demands()
    redact: Callable[[JsonValue], JsonValue] = lambda value: value


class StepRunner:
    """Runs phases that are made of steps; implements `Runner`."""

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts

    def check(self, phase: PhaseSpec) -> str:
        """Return what is wrong with *phase* for this runner, "" when nothing is."""
        return "" if phase.steps else f"phase {phase.name} has the runner steps and no steps: write one at least"

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended | Forked:
        """Go on with the steps of *phase*; what is done already is not done again."""
        return _PhaseSteps(self._parts, phase, context).run()


class _PhaseSteps:
    """The steps of one phase in one attempt."""

    def __init__(self, parts: StepParts, phase: PhaseSpec, context: PhaseContext) -> None:
        self._parts = parts
        self._phase = phase
        self._context = context
        self._document = context.document
        self._executions = parts.executions()
        self._kept = PhaseCheckpoints(parts.checkpoints, context)
        self._progress = self._found()
        self._events = StepEvents(
            EventParts(
                executions=self._executions,
                clock=parts.clock,
                redact=parts.redact,
                known=self._known,
                catalog_id=_catalog_id(context.document),
            ),
            context,
            self._progress,
        )

    def _found(self) -> Progress:
        """Return how far an earlier attempt of this round came, or this one before it waited."""
        context = self._context
        found = self._parts.checkpoints.latest(task_of(self._document.adw_id, context.phase, context.round))

        return Progress.from_json(found.data) if found is not None and holds(found, context) else Progress()

    # --- one after the other -----------------------------------------------------------------------------------

    def run(self) -> RunReport | Suspended | Forked:
        progress, steps = self._progress, {step.name: step for step in self._phase.steps}
        if not progress.execution:
            self._executions.cancel_all(self._document.adw_id, reason=SUPERSEDED)
        if progress.at is None:
            progress.at = self._phase.steps[0].name
        while progress.at:
            order = self._context.orders.current()
            if order is not None:
                return Suspended(reason=order.reason, usage=self._usage())
            step = steps[progress.at]
            try:
                early = self._do(step)
            except (Fenced, LeaseLost, RunLost):
                raise
            except WorkflowError as exc:
                return self._failed(step, exc)
            except ExpressionError as exc:
                return self._failed(step, _error_of(error_handler.describe(exc, step.name).to_json(), step))
            if early is not None:
                return early

        return self._report()  # its progress is deleted once this is stored: who dies before that does nothing twice

    def _do(self, step: StepSpec) -> Suspended | Forked | None:
        """Do one step, or go on with it; return what ends the run before the next one."""
        progress = self._progress
        if progress.execution:
            return self._take(step, self._reopened(step))
        values = self._values()
        if step.when and not expressions.holds(step.when, values):
            progress.finish(step.name, "skipped", None)
            self._events.tell("step_skipped", step, data={"when": step.when})
            following = [one.name for one in self._phase.steps]
            place = following.index(step.name) + 1
            progress.at = following[place] if place < len(following) else ""
            self._save(step)
            return None
        new = self._begun(step)
        self._events.tell("step_started", step, data={"tool": step.tool, "is_queued": step.is_queued})
        if not step.is_queued:
            return self._call(step, new)
        progress.execution = new.execution_id
        self._save(step)  # before it is opened: whoever goes on after a crash finds it

        return self._take(step, self._opened(step, new, values))

    def _begun(self, step: StepSpec) -> NewExecution:
        """Return what a step is begun as; a call that was cut off has its old name, under which its sink saves."""
        progress = self._progress
        if progress.call:
            return replace(self._new(step, 1), execution_id=progress.call)
        new = self._new(step, progress.visit(step.name))
        if step.sink is not None and not step.is_queued:
            progress.call = new.execution_id
            self._save(step)

        return new

    def _values(self) -> dict[str, Value]:
        return resolved(self._known(), self._executions, self._document.adw_id)

    def _known(self) -> JsonObject:
        return known_of(self._document, self._context.results, self._progress.steps, self._progress.vars)

    def _new(self, step: StepSpec, visit: int) -> NewExecution:
        context = self._context
        parent = f"{self._document.adw_id}.{context.phase}.{context.attempt_number}"

        return NewExecution(
            execution_id=f"{parent}.{step.name}" if visit == 1 else f"{parent}.{step.name}~{visit}",
            parent_execution_id=parent,
            adw_id=self._document.adw_id,
            phase=context.phase,
            attempt_number=context.attempt_number,
            catalog_id=_catalog_id(self._document),
            step=step,
            context=self._known(),
            labels=self._parts.labels_of(self._document),
            demands=self._parts.demands_of(self._document, step),
        )

    # --- executions --------------------------------------------------------------------------------------------

    def _opened(self, step: StepSpec, new: NewExecution, values: Mapping[str, Value]) -> Execution:
        elements: Iterator[JsonValue] = iter([None]) if step.loop is None else elements_of(step.loop, values)
        lanes = 1 if step.loop is None else lanes_of(step, step.loop.concurrency)

        return self._executions.open(new, elements, lanes=lanes)

    def _reopened(self, step: StepSpec) -> Execution:
        """Return the execution that was waited for, with its lanes where they were stopped."""
        execution_id = self._progress.execution
        found = self._executions.get(execution_id)
        if found is not None and found.state is not ExecutionState.RUNNING:
            return found
        # Never stored, half stored, or stopped with the workflow: opening it goes on where it stood.
        new = self._executions.plan(execution_id) or replace(self._new(step, 1), execution_id=execution_id)

        return self._opened(step, new, resolved(new.context, self._executions, new.adw_id))

    def _take(self, step: StepSpec, found: Execution) -> Forked | None:
        """Take the result of an execution that has ended, or wait for it."""
        if found.state is ExecutionState.RUNNING:
            return self._forked(step, found)
        metas = list(self._executions.metas(found.execution_id)) if step.tool == "agent" else []
        self._progress.metas += [{"call": meta["call"]} for meta in metas if "call" in meta]
        if found.state is not ExecutionState.COMPLETED:
            raise self._execution_error(step, found)
        self._finish(step, *self._result_of(step, found))
        self._executions.mark_taken(found.execution_id)

        return None

    def _forked(self, step: StepSpec, found: Execution) -> Forked:
        total = found.total or 0
        left = total - found.ended
        what = f"{left} of {total} iterations of step {step.name}" if step.loop is not None else f"step {step.name}"

        return Forked(
            reason=f"waits for {what}",
            until=self._parts.clock.now() + timedelta(seconds=LOOK_SECONDS),
            facts={
                "step": step.name,
                "execution_id": found.execution_id,
                "total": total,
                "done": found.ended,
                "failed": found.failed,
            },
        )

    def _result_of(self, step: StepSpec, found: Execution) -> tuple[Value, JsonValue]:
        """Return the result of an execution as templates know it, and as it is stored."""
        execution_id = found.execution_id
        if step.loop is None:
            result = next((value for _index, _state, value in self._executions.results(execution_id)), None)
            return result, stored_result(result, f"{execution_id}#0", self._executions.keep)
        facts: JsonObject = {"total": found.total or 0, "successful": found.succeeded, "failed": found.failed}
        if self._executions.results_size(execution_id) > MAX_INLINE:
            stored: JsonObject = {**facts, "results": {REFERENCE: execution_id}}
            return read_result(stored, self._executions, self._document.adw_id), stored
        results = [value for _index, _state, value in self._executions.results(execution_id)]
        whole: JsonObject = {**facts, "results": results}

        return whole, whole

    def _execution_error(self, step: StepSpec, found: Execution) -> WorkflowError:
        error = self._executions.last_error(found.execution_id) or {}
        said = str(error.get("message") or "")
        whole = found.reason or found.state.value
        self._executions.mark_taken(found.execution_id)
        if step.loop is None and found.state is ExecutionState.FAILED:
            return _error_of({**error, "message": said or whole}, step)

        return _error_of({**error, "message": f"{whole}; {said}" if said and said not in whole else whole}, step)

    # --- single calls ------------------------------------------------------------------------------------------

    def _call(self, step: StepSpec, new: NewExecution) -> Suspended | None:
        assignment = Assignment(
            execution_id=new.execution_id, index=0, element=None, attempt_number=1, page=1, same_call=1
        )
        self._events.tell("action_started", step, data={"page": 1})
        report = self._made(step, assignment, new)
        if "call" in report.meta:
            self._progress.metas.append({"call": report.meta["call"]})
        if report.is_suspended:
            order = self._context.orders.current()
            return Suspended(reason=order.reason if order else "ended on order", usage=self._usage())
        if not report.ok:
            self._events.tell_failure(step, report)
            raise _error_of(report.error or {}, step)
        stored = stored_result(report.result, f"{new.execution_id}#0", self._executions.keep)
        self._events.tell_success(step, report, stored)
        self._finish(step, report.result, stored)

        return None

    def _made(self, step: StepSpec, assignment: Assignment, new: NewExecution) -> CallReport:
        context = self._context
        values = values_of(new, self._values(), index=0, element=None, attempt=1, page=1)
        call = CallContext(
            document=self._document,
            phase=context.phase,
            phase_attempt=context.attempt_number,
            values=values,
            cwd=context.cwd,
            folder=context.folder,
            orders=context.orders,
            record_process=context.record_process,
            say=context.say,
            env=context.env,
            spent=lambda: cost_rules.counted(self._usage()) or 0.0,
            model=context.model,
        )

        return self._parts.calls().make(step, assignment, call)

    # --- ends --------------------------------------------------------------------------------------------------

    def _finish(self, step: StepSpec, result: Value, stored: JsonValue) -> None:
        """Note the result of a step, set its variables, and find the step after it."""
        progress = self._progress
        progress.finish(step.name, "completed", stored)
        known = {**self._values(), "result": result}
        for name, template in step.vars.items():
            progress.vars[name] = expressions.render(template, known)
        progress.at = next_step(self._phase.steps, step, {**self._values(), "result": result})
        self._events.tell("step_completed", step, result=self._parts.redact(limited(stored)))
        self._save(step)
        self._context.say(f"step {step.name} is done")

    def _failed(self, step: StepSpec, exc: WorkflowError) -> RunReport:
        """Report that a step failed; the next attempt begins it anew."""
        usage = self._usage()
        self._progress.execution = self._progress.call = ""
        self._progress.metas = []
        self._progress.visits.pop(step.name, None)  # the next attempt has a number, and so executions, of its own
        self._events.tell("step_failed", step, data={"error": self._parts.redact(str(exc)[:500])})
        self._save(step)

        return RunReport(ok=False, error=exc, summary=f"step {step.name} failed", usage=usage)

    def _save(self, step: StepSpec) -> None:
        self._kept.save(self._progress.to_json(), step.name)

    def _usage(self) -> Usage | None:
        return call_costs.used(meta for meta in self._progress.metas if isinstance(meta, dict))

    def _report(self) -> RunReport:
        progress = self._progress
        done = [name for name, status in progress.statuses.items() if status == "completed"]
        last = done[-1] if done else ""
        steps: JsonObject = {
            name: result_facts(progress.steps.get(name), status=str(status))
            for name, status in progress.statuses.items()
        }
        result: JsonObject = {"result": self._short(progress.steps.get(last)), "steps": steps}
        if progress.vars:
            result["vars"] = progress.vars

        return RunReport(ok=True, summary=f"{len(done)} steps done", result=result, usage=self._usage())

    def _short(self, value: JsonValue) -> JsonValue:
        """Return what the document has of a result: itself, or where it is; later phases read it there."""
        if len(json.dumps(value)) <= MAX_VALUE:
            return value
        context = self._context
        key = f"{self._document.adw_id}.{context.phase}.{context.attempt_number}#result"

        return stored_result(value, key, self._executions.keep)


def _catalog_id(document: WorkflowDocument) -> str:
    return f"{document.workflow.name}@{document.workflow.version}" if document.workflow else ""


def _error_of(error: Mapping[str, JsonValue], step: StepSpec) -> WorkflowError:
    """Return the classified error of a step for the phase: what was said once is not guessed again."""
    known = {category.value for category in ErrorCategory}
    category = error.get("category")
    metadata = error.get("metadata")

    return WorkflowError(
        f"step {step.name}: {error.get('message') or 'it failed'}",
        ErrorCategory(category) if category in known else ErrorCategory.FATAL,
        step.name,
        recoverable=error.get("recoverable") is True,
        metadata={
            **(metadata if isinstance(metadata, dict) else {}),
            "class": str(error.get("klass") or category or "fatal"),
        },
    )
