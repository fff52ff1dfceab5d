"""
Run a phase that is made of steps, one after the other.

A step that is a single call is done here. One with a loop or a retry becomes an execution, and the attempt waits for
it; the worker that continues the attempt takes its result. Finished steps are stored one by one, so neither a wait, a
crash nor the next attempt of the same round repeats them; the step that failed is begun anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from adws.adw_modules import costs, error_handler, timestamps
from adws.adw_modules.checkpoint import PhaseCheckpoints, holds, task_of
from adws.adw_modules.error_handler import WorkflowError
from adws.adw_modules.error_tables import ErrorCategory
from adws.adw_modules.errors import ExpressionError, Fenced, LeaseLost, RunLost
from adws.adw_modules.events import Event
from adws.adw_modules.expressions import expressions
from adws.adw_modules.expressions.values import Rows, Value
from adws.adw_modules.identifiers import JsonObject, JsonValue, counted
from adws.adw_modules.phase import PhaseContext, RunReport, Suspended, WaitingForChildren
from adws.adw_modules.steps.call_policy import collecting
from adws.adw_modules.steps.context import (
    known_of,
    limited,
    read_result,
    resolved,
    result_facts,
    shown_context,
    stored_result,
)
from adws.adw_modules.steps.execution_update import MAX_MESSAGE, MAX_VALUE, REFERENCE, error_meta, lanes_of
from adws.adw_modules.steps.iteration_worker import used
from adws.adw_modules.steps.model import Assignment, CallReport, Execution, ExecutionState, NewExecution, values_of
from adws.adw_modules.steps.tools import CallContext
from adws.adw_modules.workflow.model import LoopSpec, PhaseSpec, StepSpec
from adws.adw_modules.workflow.requirements import Requirements

if TYPE_CHECKING:
    from adws.adw_modules.agent import Usage
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home


# How far an attempt came with the steps of its phase: kept as a checkpoint after each step.
#
# An attempt that waited goes on from it, and so does the next attempt of the same round: a step that is done is not
# done again. Large results are kept apart, and a key stands for them.


#: Characters of JSON of the results of a loop that stand in the checkpoint itself, which has those of all steps.
MAX_INLINE = 64 * 1024
#: Steps that an attempt may go through, those that it comes to again counted.
MAX_VISITS = 10_000


@dataclass(kw_only=True, slots=True)
class StepProgress:
    """What is done."""

    at: str | None = None  #: the step that comes next, "" at the end, None at the beginning
    steps: JsonObject = field(default_factory=dict)  #: results by name, null for one that was skipped
    statuses: JsonObject = field(default_factory=dict)  #: completed | skipped
    cut: list[JsonValue] = field(default_factory=list)  #: steps whose calls were used up before their last page
    vars: JsonObject = field(default_factory=dict)
    visits: JsonObject = field(default_factory=dict)  #: how often each step was begun
    execution: str = ""  #: what the step that comes next waits for
    call: str = ""  #: the single call with a sink that was begun
    metas: list[JsonValue] = field(default_factory=list)  #: what single calls used that no attempt has reported yet
    began_at: str = ""  #: when the step that comes next was begun
    told: int = 0  #: events
    last_event: str = ""  #: the last one of them

    def to_json(self) -> JsonObject:
        """Return it as a checkpoint."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> StepProgress:
        """Return what `to_json` wrote."""
        known = {one.name: data[one.name] for one in fields(cls) if one.name in data}

        return cls(**known)  # type: ignore[arg-type]  # written by to_json

    def visit(self, step: str) -> int:
        """Count that a step is begun, and return how often it was; raise ExpressionError when all that has no end."""
        known = [count for count in self.visits.values() if isinstance(count, int)]
        if sum(known) >= MAX_VISITS:
            raise ExpressionError(f"its steps were begun {MAX_VISITS} times: look at next of step {step}", name=step)
        before = self.visits.get(step)
        count = (before if isinstance(before, int) else 0) + 1
        self.visits[step] = count

        return count

    def finish(self, step: str, status: str, stored: JsonValue, *, is_cut: bool = False) -> None:
        """Note the result of a step."""
        self.steps[step] = stored
        self.statuses[step] = status
        self.cut = [name for name in self.cut if name != step] + ([step] if is_cut else [])
        self.execution = self.call = ""


def next_step(steps: tuple[StepSpec, ...], step: StepSpec, values: Mapping[str, Value]) -> str:
    """Return the name of the step after *step*, "" at the end of the phase."""
    for rule in step.next:
        if not rule.when or expressions.holds(rule.when, values):
            return rule.step
    names = [one.name for one in steps]
    place = names.index(step.name) + 1

    return names[place] if place < len(names) else ""


# --- loops -----------------------------------------------------------------------------------------------------


def elements_of(loop: LoopSpec, values: Mapping[str, Value]) -> Iterator[JsonValue]:
    """Yield what each iteration gets: elements that are meant, in their order, in pieces where that is asked for."""
    result = _meant(loop, _collection(loop, values), values)
    pieces = result if loop.chunk_size is None else _pieces(result, loop.chunk_size)
    for number, piece in enumerate(pieces):
        if loop.limit is not None and number >= loop.limit:
            return
        yield piece


def _collection(loop: LoopSpec, values: Mapping[str, Value]) -> Iterator[JsonValue]:
    result = loop.collection
    value = expressions.evaluate(result, values) if isinstance(result, str) else expressions.render(result, values)
    if isinstance(value, list | Rows):
        return iter(value)
    if isinstance(value, dict):
        return iter([{"key": key, "value": item} for key, item in value.items()])

    raise ExpressionError(
        f"a loop goes over a list, and its collection is {json.dumps(value)[:60]}", expression=str(result)
    )


def _meant(loop: LoopSpec, elements: Iterator[JsonValue], values: Mapping[str, Value]) -> Iterator[JsonValue]:
    if loop.where:
        elements = (one for one in elements if expressions.holds(loop.where, {**values, loop.element: one}))
    if not loop.order_by:
        return elements
    by = loop.order_by if "{{" in loop.order_by else f"{{{{ {loop.order_by} }}}}"
    keyed = [(expressions.render(by, {**values, loop.element: one}), one) for one in elements]
    try:
        keyed.sort(key=lambda pair: pair[0])  # type: ignore[arg-type, return-value]  # said below when they do not sort
    except TypeError as exc:
        raise ExpressionError(f"its values have no order: {exc}", expression=loop.order_by) from exc

    return iter([one for _key, one in keyed])


def _pieces(elements: Iterator[JsonValue], size: int) -> Iterator[JsonValue]:
    piece: list[JsonValue] = []
    for one in elements:
        piece.append(one)
        if len(piece) == size:
            yield piece
            piece = []
    if piece:
        yield piece


# The events of the steps of a phase: of their beginning and end, and of the calls that the phase's own run makes.


_STATUSES = {
    "step_started": "running",
    "step_completed": "completed",
    "step_failed": "failed",
    "step_skipped": "skipped",
    "action_started": "running",
}
_ENDS = frozenset({"step_completed", "step_failed"})


class StepEvents:
    """Stores the events of one attempt's steps; the progress numbers them, so storing one twice changes nothing."""

    def __init__(self, home: Home, context: PhaseContext, progress: StepProgress) -> None:
        self._home = home
        self._redact = home.redactor.redact
        self._catalog_id = _catalog_id(context.document)
        self._context = context
        self._progress = progress
        self._execution_id = f"{context.document.adw_id}.{context.phase}.{context.attempt_number}"
        self._call: str | None = None  #: the event that began the call

    def tell(self, event_type: str, step: StepSpec, **fields: Any) -> None:
        """Store one event of *step*."""
        progress = self._progress
        progress.told += 1
        moment = timestamps.to_text(self._home.clock.now())
        if event_type == "step_started":
            progress.began_at = moment
        event_id = f"{self._execution_id}.s{progress.told}"
        if event_type == "action_started":
            self._call = event_id
        event = Event(
            event_type=event_type,
            adw_id=self._context.document.adw_id,
            event_id=event_id,
            created_at=moment,
            execution_id=self._execution_id,
            parent_execution_id=self._context.document.adw_id,
            parent_event_id=progress.last_event or None,
            retry_sequence_id=self._call if event_type.startswith("action") else None,
            attempt_number=self._context.attempt_number,
            node_id=f"{self._context.phase}.{step.name}",
            node_name=step.name,
            node_type="step",
            catalog_id=self._catalog_id,
            **{
                "status": _STATUSES.get(event_type, ""),
                "duration": self._since_beginning() if event_type in _ENDS else None,
                "context": self._shown(),
                "meta": self._meta(),
                **fields,
            },
        )
        self._home.executions.tell([event])
        progress.last_event = event_id

    def tell_success(self, step: StepSpec, report: CallReport, stored: JsonValue) -> None:
        """Store that a single call ended well; *stored* is what is kept of its result."""
        result = self._redact(limited(stored))
        meta = self._call_meta(report, timestamps.to_text(self._home.clock.now()))
        self.tell("action_completed", step, status="completed", duration=report.duration, result=result, meta=meta)

    def tell_failure(self, step: StepSpec, report: CallReport) -> None:
        """Store that a single call failed."""
        moment = timestamps.to_text(self._home.clock.now())
        error = report.error or {}
        message = str(self._redact(str(error.get("message") or "")[:MAX_MESSAGE]))
        meta = {**self._call_meta(report, moment), "error": error_meta(error, message, moment)}
        told: JsonObject = {key: error[key] for key in ("type", "category", "klass", "status") if error.get(key)}
        data: JsonObject = {"error": {**told, "message": message}}
        self.tell("action_failed", step, status="failed", duration=report.duration, data=data, meta=meta)

    def _since_beginning(self) -> float | None:
        began = self._progress.began_at
        if not began:
            return None

        return max(0.0, (self._home.clock.now() - timestamps.parse(began)).total_seconds())

    def _call_meta(self, report: CallReport, moment: str) -> JsonObject:
        return {
            **report.meta,
            **self._meta(),
            "retry": {"has_config": False, "will_retry": False},
            "execution": {"duration_seconds": report.duration, "completed_at": moment},
        }

    def _meta(self) -> JsonObject:
        return {"queue": dict(self._context.queue)} if self._context.queue else {}

    def _shown(self) -> JsonObject:
        ids: JsonObject = {
            "execution_id": self._execution_id,
            "parent_execution_id": self._context.document.adw_id,
            "catalog_id": self._catalog_id,
        }

        return shown_context(ids, known_to(self._context, self._progress), self._home.redactor, self._progress.statuses)


#: How long an attempt waits before it is checked whether its execution still goes on.
LOOK_SECONDS = 3600.0
#: Why executions are cancelled that an earlier attempt left.
SUPERSEDED = "the phase was begun anew"


class StepRunner:
    """Runs phases that are made of steps; implements `Runner`."""

    def __init__(self, home: Home) -> None:
        """Parts of *home* are read when a phase runs: building the runners must not open a database."""
        self._home = home

    def check(self, phase: PhaseSpec) -> str:
        """Return what is wrong with *phase* for this runner, "" when nothing is."""
        return "" if phase.steps else f"phase {phase.name} has the runner steps and no steps: write one at least"

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended | WaitingForChildren:
        """Go on with the steps of *phase*; what is done already is not done again."""
        return _PhaseSteps(self._home, phase, context).run()


class _PhaseSteps:
    """The steps of one phase in one attempt."""

    def __init__(self, home: Home, phase: PhaseSpec, context: PhaseContext) -> None:
        self._home = home
        self._phase = phase
        self._context = context
        self._document = context.document
        self._executions = home.executions
        self._kept = PhaseCheckpoints(home.checkpoint_manager, context)
        self._progress = self._progress_so_far()
        self._events = StepEvents(home, context, self._progress)

    def _progress_so_far(self) -> StepProgress:
        """Return how far an earlier attempt of this round came, or this one before it waited."""
        context = self._context
        task = task_of(self._document.adw_id, context.phase, context.round)
        checkpoint = self._home.checkpoint_manager.latest(task)
        if checkpoint is None or not holds(checkpoint, context):
            return StepProgress()

        return StepProgress.from_json(checkpoint.data)

    # --- one after the other -----------------------------------------------------------------------------------

    def run(self) -> RunReport | Suspended | WaitingForChildren:
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

        return self._report()  # its progress is deleted once this is stored: a crash before that repeats nothing

    def _do(self, step: StepSpec) -> Suspended | WaitingForChildren | None:
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
        self._save(step)  # before it is opened: after a crash it is found

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
        return resolved(known_to(self._context, self._progress), self._executions, self._document.adw_id)

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
            context=known_to(context, self._progress),
            labels=self._home.run_factory.of(self._document, "resume").labels,
            demands=demands_of(self._home, self._document, step),
            parent_run_id=self._run_id(),
        )

    def _run_id(self) -> int | None:
        """Return the run that makes this attempt, which asks for the runs of its calls."""
        run_id = self._context.queue.get("queue_id")

        return run_id if isinstance(run_id, int) else None

    # --- executions --------------------------------------------------------------------------------------------

    def _opened(self, step: StepSpec, new: NewExecution, values: Mapping[str, Value]) -> Execution:
        elements: Iterator[JsonValue] = iter([None]) if step.loop is None else elements_of(step.loop, values)
        lanes = 1 if step.loop is None else lanes_of(step, step.loop.concurrency)

        return self._executions.open(new, elements, lanes=lanes)

    def _reopened(self, step: StepSpec) -> Execution:
        """Return the execution that was waited for, with its lanes where they were stopped."""
        execution_id = self._progress.execution
        result = self._executions.get(execution_id)
        if result is not None and result.state is not ExecutionState.RUNNING:
            return result
        # Never stored, half stored, or stopped with the workflow: opening it goes on where it stood.
        new = self._executions.plan(execution_id) or replace(self._new(step, 1), execution_id=execution_id)
        new = replace(new, parent_run_id=self._run_id())  # lanes that were stopped are opened anew by this run

        return self._opened(step, new, resolved(new.context, self._executions, new.adw_id))

    def _take(self, step: StepSpec, found: Execution) -> WaitingForChildren | None:
        """Take the result of an execution that has ended, or wait for it."""
        if found.state is ExecutionState.RUNNING:
            return self._forked(step, found)
        metas = list(self._executions.metas(found.execution_id)) if step.tool == "agent" else []
        self._progress.metas += [{"call": meta["call"]} for meta in metas if "call" in meta]
        if found.state is not ExecutionState.COMPLETED:
            raise self._execution_error(step, found)
        cut = self._executions.cut(found.execution_id) if collecting(step) is not None else 0
        self._finish(step, *self._result_of(step, found, cut), is_cut=bool(cut))
        self._executions.mark_taken(found.execution_id)

        return None

    def _forked(self, step: StepSpec, found: Execution) -> WaitingForChildren:
        total = found.total or 0
        left = total - found.ended
        what = f"{left} of {total} iterations of step {step.name}" if step.loop is not None else f"step {step.name}"

        return WaitingForChildren(
            reason=f"waits for {what}",
            until=self._home.clock.now() + timedelta(seconds=LOOK_SECONDS),
            facts={
                "step": step.name,
                "execution_id": found.execution_id,
                "total": total,
                "done": found.ended,
                "failed": found.failed,
            },
        )

    def _result_of(self, step: StepSpec, found: Execution, cut: int) -> tuple[Value, JsonValue]:
        """Return the result of an execution as templates know it, and as it is stored; *cut* iterations have more."""
        execution_id = found.execution_id
        if step.loop is None:
            result = next((value for _index, _state, value in self._executions.results(execution_id)), None)
            return result, stored_result(result, f"{execution_id}#0", self._executions)
        facts: JsonObject = {"total": found.total or 0, "successful": found.succeeded, "failed": found.failed}
        if collecting(step) is not None:
            facts["cut"] = cut
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
        stored = stored_result(report.result, f"{new.execution_id}#0", self._executions)
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
            spent=lambda: costs.counted(self._usage()) or 0.0,
            model=context.model,
        )

        return self._home.step_calls.make(step, assignment, call)

    # --- ends --------------------------------------------------------------------------------------------------

    def _finish(self, step: StepSpec, result: Value, stored: JsonValue, *, is_cut: bool = False) -> None:
        """Note the result of a step, set its variables, and find the step after it."""
        progress = self._progress
        progress.finish(step.name, "completed", stored, is_cut=is_cut)
        ended: dict[str, Value] = {"result": result, "is_cut": is_cut}
        known = {**self._values(), **ended}
        for name, template in step.vars.items():
            progress.vars[name] = expressions.render(template, known)
        progress.at = next_step(self._phase.steps, step, {**self._values(), **ended})
        shown = self._home.redactor.redact(limited(stored))
        self._events.tell("step_completed", step, result=shown, data={"is_cut": True} if is_cut else {})
        self._save(step)
        self._context.say(
            f"step {step.name} reached max_attempts and goes on with what it collected: there are more pages"
            if is_cut
            else f"step {step.name} is done"
        )

    def _failed(self, step: StepSpec, exc: WorkflowError) -> RunReport:
        """Report that a step failed; the next attempt begins it anew."""
        usage = self._usage()
        self._progress.execution = self._progress.call = ""
        self._progress.metas = []
        self._progress.visits.pop(step.name, None)  # the next attempt has a number, and so executions, of its own
        self._events.tell("step_failed", step, data={"error": self._home.redactor.redact(str(exc)[:500])})
        self._save(step)

        return RunReport(ok=False, error=exc, summary=f"step {step.name} failed", usage=usage)

    def _save(self, step: StepSpec) -> None:
        self._kept.save(self._progress.to_json(), step.name)

    def _usage(self) -> Usage | None:
        return used(meta for meta in self._progress.metas if isinstance(meta, dict))

    def _report(self) -> RunReport:
        progress = self._progress
        done = [name for name, status in progress.statuses.items() if status == "completed"]
        last = done[-1] if done else ""
        steps: JsonObject = {
            name: {
                **result_facts(progress.steps.get(name), status=str(status)),
                **({"is_cut": True} if name in progress.cut else {}),
            }
            for name, status in progress.statuses.items()
        }
        result: JsonObject = {"result": self._short(progress.steps.get(last)), "steps": steps}
        if progress.vars:
            result["vars"] = progress.vars

        return RunReport(ok=True, summary=f"{counted(len(done), 'step')} done", result=result, usage=self._usage())

    def _short(self, value: JsonValue) -> JsonValue:
        """Return what the document has of a result: itself, or where it is; later phases read it there."""
        if len(json.dumps(value)) <= MAX_VALUE:
            return value
        context = self._context
        key = f"{self._document.adw_id}.{context.phase}.{context.attempt_number}#result"

        return stored_result(value, key, self._executions)


def known_to(context: PhaseContext, progress: StepProgress) -> JsonObject:
    """Return what the templates of a phase know after the steps that are done."""
    return known_of(context.document, context.results, progress.steps, progress.vars)


def demands_of(home: Home, document: WorkflowDocument, step: StepSpec) -> Requirements:
    """Return what a worker needs to make the calls of *step*: the machine with the worktree, if there are more."""
    demands = Requirements.from_json(document.workflow.demands) if document.workflow else Requirements()
    touches_files = step.tool != "http" or (step.sink is not None and step.sink.tool != "postgres")
    if not touches_files or not home.settings.database_url.startswith("postgresql"):
        return demands

    return replace(demands, host=home.host)


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
