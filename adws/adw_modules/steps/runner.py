"""
Run a phase that is made of steps, one after the other.

A single call is made here. A step with a loop or a retry becomes an execution, and the attempt waits for it; the worker
that continues the attempt takes its result. Each finished step is stored, so that neither a wait, a crash nor the next
attempt of the same round repeats it; a failed step is begun anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import timedelta
from itertools import islice
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
from adws.adw_modules.steps.call_policy import collecting, values_of
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
from adws.adw_modules.steps.model import Assignment, CallReport, Execution, ExecutionState, NewExecution
from adws.adw_modules.steps.tools import CallContext
from adws.adw_modules.workflow.model import LoopSpec, PhaseSpec, StepSpec
from adws.adw_modules.workflow.requirements import Requirements

if TYPE_CHECKING:
    from adws.adw_modules.agent import Usage
    from adws.app import Home

#: Most characters of JSON of a loop's results that are stored in the checkpoint itself, which has those of all steps.
MAX_INLINE = 64 * 1024
#: Most steps an attempt may begin, including repeated ones.
MAX_VISITS = 10_000
#: Seconds an attempt waits before it checks whether its execution is still running.
LOOK_SECONDS = 3600.0
#: Why executions of an earlier attempt are cancelled.
SUPERSEDED = "the phase was begun anew"


class StepRunner:
    """Runs phases that are made of steps; implements `Runner`."""

    def __init__(self, home: Home) -> None:
        """Parts of *home* are read only when a phase runs: building the runners must not open a database."""
        self._home = home

    def check(self, phase: PhaseSpec) -> str:
        """Return why this runner cannot run *phase*, or "" if it can."""
        return "" if phase.steps else f"phase {phase.name} has the runner steps and no steps: write one at least"

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended | WaitingForChildren:
        """Run the steps of *phase* that are not done yet."""
        return _PhaseSteps(self._home, phase, context).run()


@dataclass(kw_only=True, slots=True)
class StepProgress:
    """The progress of an attempt through the steps of its phase, stored as a checkpoint after each step."""

    at: str | None = None  #: the next step; "" at the end, None at the beginning
    steps: JsonObject = field(default_factory=dict)  #: results by name, null for a skipped step
    statuses: JsonObject = field(default_factory=dict)  #: completed | skipped
    cut: list[JsonValue] = field(default_factory=list)  #: steps that used up their calls before their last page
    vars: JsonObject = field(default_factory=dict)
    visits: dict[str, int] = field(default_factory=dict)  #: how often each step was begun
    execution: str = ""  #: the execution that the next step waits for
    call: str = ""  #: the single call with a sink that has begun
    metas: list[JsonObject] = field(default_factory=list)  #: facts of calls not reported by an attempt yet
    began_at: str = ""  #: when the next step was begun
    told: int = 0  #: number of events stored
    last_event: str = ""  #: id of the last event

    def to_json(self) -> JsonObject:
        """Return the checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepProgress:
        """Return the progress written by `to_json`."""
        return cls(**{one.name: data[one.name] for one in fields(cls) if one.name in data})

    def visit(self, step: str) -> int:
        """Count that a step begins, and return how often it did; raise ExpressionError after MAX_VISITS steps."""
        if sum(self.visits.values()) >= MAX_VISITS:
            raise ExpressionError(f"its steps were begun {MAX_VISITS} times: look at next of step {step}", name=step)
        self.visits[step] = self.visits.get(step, 0) + 1

        return self.visits[step]

    def finish(self, step: str, status: str, stored: JsonValue, *, is_cut: bool = False) -> None:
        """Record the result of a step."""
        self.steps[step] = stored
        self.statuses[step] = status
        self.cut = [name for name in self.cut if name != step] + ([step] if is_cut else [])
        self.execution = self.call = ""


class _PhaseSteps:
    """The steps of one phase in one attempt."""

    def __init__(self, home: Home, phase: PhaseSpec, context: PhaseContext) -> None:
        document = context.document
        self._home = home
        self._phase = phase
        self._context = context
        self._document = document
        self._executions = home.executions
        self._checkpoints = PhaseCheckpoints(home.checkpoint_manager, context)
        self._catalog_id = f"{document.workflow.name}@{document.workflow.version}" if document.workflow else ""
        self._id = f"{document.adw_id}.{context.phase}.{context.attempt_number}"
        #: The run of this attempt; the runs of its calls become its children.
        queue_id = context.queue.get("queue_id")
        self._run_id = queue_id if isinstance(queue_id, int) else None
        # An earlier attempt of this round, or this one before a wait, may have finished some steps.
        checkpoint = home.checkpoint_manager.latest(task_of(document.adw_id, context.phase, context.round))
        is_usable = checkpoint is not None and holds(checkpoint, context)
        self._progress = StepProgress.from_json(checkpoint.data) if checkpoint and is_usable else StepProgress()
        self._call_event: str | None = None  #: the event of the call's start

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

        self._count_denied()
        # The progress is deleted only after this report is stored: a crash before that repeats nothing.
        done = [name for name, status in progress.statuses.items() if status == "completed"]
        facts: JsonObject = {
            name: {
                **result_facts(progress.steps.get(name), status=str(status)),
                **({"is_cut": True} if name in progress.cut else {}),
            }
            for name, status in progress.statuses.items()
        }
        last = progress.steps.get(done[-1]) if done else None
        if len(json.dumps(last)) > MAX_VALUE:  # the document refers to it; later phases read it from there
            last = stored_result(last, f"{self._id}#result", self._executions)
        result: JsonObject = {"result": last, "steps": facts}
        if progress.vars:
            result["vars"] = progress.vars

        return RunReport(ok=True, summary=f"{counted(len(done), 'step')} done", result=result, usage=self._usage())

    def _do(self, step: StepSpec) -> Suspended | WaitingForChildren | None:
        """Run or continue one step; return what ends the run before the next step."""
        progress = self._progress
        if progress.execution:
            execution = self._executions.get(progress.execution)
            if execution is None or execution.state is ExecutionState.RUNNING:
                # Never stored, partly stored, or stopped with the workflow: opening it continues from there, and
                # stopped lanes are opened anew by this run.
                new = self._executions.plan(progress.execution)
                new = new or replace(self._new(step, 1), execution_id=progress.execution)
                new = replace(new, parent_run_id=self._run_id)
                known = resolved(new.context, self._executions, new.adw_id)
                execution = self._opened(step, new, known)
            return self._take(step, execution)
        values = self._values()
        if step.when and not expressions.holds(step.when, values):
            progress.finish(step.name, "skipped", None)
            self._tell("step_skipped", step, data={"when": step.when})
            progress.at = self._following(step)
            self._save(step)
            return None

        if progress.call:  # an interrupted call keeps its id, under which its sink saves
            new = replace(self._new(step, 1), execution_id=progress.call)
        else:
            new = self._new(step, progress.visit(step.name))
            if step.sink is not None and not step.is_queued:
                progress.call = new.execution_id
                self._save(step)
        self._tell("step_started", step, data={"tool": step.tool, "is_queued": step.is_queued})
        if not step.is_queued:
            return self._call(step, new)
        progress.execution = new.execution_id
        self._save(step)  # before the execution is opened, so that it is found after a crash

        return self._take(step, self._opened(step, new, values))

    def _values(self) -> dict[str, Value]:
        return resolved(self._known(), self._executions, self._document.adw_id)

    def _known(self) -> JsonObject:
        """Return the template values of the phase after the finished steps."""
        return known_of(self._document, self._context.results, self._progress.steps, self._progress.vars)

    def _following(self, step: StepSpec) -> str:
        """Return the step after *step* in the definition, or "" at the end of the phase."""
        names = [one.name for one in self._phase.steps]

        return next(iter(names[names.index(step.name) + 1 :]), "")

    def _new(self, step: StepSpec, visit: int) -> NewExecution:
        home, workflow = self._home, self._document.workflow
        demands = Requirements.from_json(workflow.demands) if workflow else Requirements()
        touches_files = step.tool != "http" or (step.sink is not None and step.sink.tool != "postgres")
        if touches_files and home.settings.database_url.startswith("postgresql"):
            demands = replace(demands, host=home.host)  # only this machine has the worktree

        return NewExecution(
            execution_id=f"{self._id}.{step.name}" if visit == 1 else f"{self._id}.{step.name}~{visit}",
            parent_execution_id=self._id,
            adw_id=self._document.adw_id,
            phase=self._context.phase,
            attempt_number=self._context.attempt_number,
            catalog_id=self._catalog_id,
            step=step,
            context=self._known(),
            labels=home.run_factory.of(self._document, "resume").labels,
            demands=demands,
            parent_run_id=self._run_id,
        )

    # --- executions --------------------------------------------------------------------------------------------

    def _opened(self, step: StepSpec, new: NewExecution, values: Mapping[str, Value]) -> Execution:
        elements: Iterator[JsonValue] = iter([None]) if step.loop is None else elements_of(step.loop, values)
        lanes = 1 if step.loop is None else lanes_of(step, step.loop.concurrency)

        return self._executions.open(new, elements, lanes=lanes)

    def _take(self, step: StepSpec, execution: Execution) -> WaitingForChildren | None:
        """Take the result of an execution that has ended, or wait for it."""
        execution_id, total = execution.execution_id, execution.total or 0
        if execution.state is ExecutionState.RUNNING:
            left = f"{total - execution.ended} of {total} iterations of " if step.loop is not None else ""
            return WaitingForChildren(
                reason=f"waits for {left}step {step.name}",
                until=self._home.clock.now() + timedelta(seconds=LOOK_SECONDS),
                facts={
                    "step": step.name,
                    "execution_id": execution_id,
                    "total": total,
                    "done": execution.ended,
                    "failed": execution.failed,
                },
            )
        if step.tool == "agent":
            metas = self._executions.metas(execution_id)
            self._progress.metas += [{"call": meta["call"]} for meta in metas if "call" in meta]
        elif denied := self._executions.denied(execution_id):
            self._progress.metas.append({"call": {"denied": denied}})
        if execution.state is not ExecutionState.COMPLETED:
            error = self._executions.last_error(execution_id) or {}
            said, whole = str(error.get("message") or ""), execution.reason or execution.state.value
            self._executions.mark_taken(execution_id)
            if step.loop is None and execution.state is ExecutionState.FAILED:
                message = said or whole
            else:
                message = f"{whole}; {said}" if said and said not in whole else whole
            raise _error_of({**error, "message": message}, step)
        cut = self._executions.cut(execution_id) if collecting(step) is not None else 0
        self._finish(step, *self._result_of(step, execution, cut), is_cut=bool(cut))
        self._executions.mark_taken(execution_id)

        return None

    def _result_of(self, step: StepSpec, execution: Execution, cut: int) -> tuple[Value, JsonValue]:
        """Return an execution's result as templates see it and as stored; *cut* iterations have further pages."""
        execution_id = execution.execution_id
        results = (value for _index, _state, value in self._executions.results(execution_id))
        if step.loop is None:
            result = next(results, None)
            return result, stored_result(result, f"{execution_id}#0", self._executions)
        facts: JsonObject = {
            "total": execution.total or 0,
            "successful": execution.succeeded,
            "failed": execution.failed,
        }
        if collecting(step) is not None:
            facts["cut"] = cut
        if self._executions.results_size(execution_id) > MAX_INLINE:
            stored: JsonObject = {**facts, "results": {REFERENCE: execution_id}}
            return read_result(stored, self._executions, self._document.adw_id), stored
        whole: JsonObject = {**facts, "results": list(results)}

        return whole, whole

    # --- single calls ------------------------------------------------------------------------------------------

    def _call(self, step: StepSpec, new: NewExecution) -> Suspended | None:
        context = self._context
        assignment = Assignment(execution_id=new.execution_id, index=0, element=None, attempt_number=1, page=1)
        self._tell("action_started", step, data={"page": 1})
        call = CallContext(
            document=self._document,
            phase=context.phase,
            phase_attempt=context.attempt_number,
            values=values_of(new, self._values(), index=0, element=None, attempt=1, page=1),
            cwd=context.cwd,
            folder=context.folder,
            orders=context.orders,
            record_process=context.record_process,
            say=context.say,
            env=context.env,
            spent=lambda: costs.counted(self._usage()) or 0.0,
            model=context.model,
        )
        report = self._home.step_calls.make(step, assignment, call)
        if "call" in report.meta:
            self._progress.metas.append({"call": report.meta["call"]})
        if report.is_suspended:
            order = context.orders.current()
            return Suspended(reason=order.reason if order else "ended on order", usage=self._usage())
        if not report.ok:
            self._tell_call("action_failed", step, report)
            raise _error_of(report.error or {}, step)
        stored = stored_result(report.result, f"{new.execution_id}#0", self._executions)
        self._tell_call("action_completed", step, report, stored)
        self._finish(step, report.result, stored)

        return None

    # --- ends --------------------------------------------------------------------------------------------------

    def _finish(self, step: StepSpec, result: Value, stored: JsonValue, *, is_cut: bool = False) -> None:
        """Record the result of a step, set its variables, and choose the next step."""
        progress = self._progress
        progress.finish(step.name, "completed", stored, is_cut=is_cut)
        ended: dict[str, Value] = {"result": result, "is_cut": is_cut}
        known = {**self._values(), **ended}
        for name, template in step.vars.items():
            progress.vars[name] = expressions.render(template, known)
        known = {**self._values(), **ended}  # with the variables
        chosen = (rule.step for rule in step.next if not rule.when or expressions.holds(rule.when, known))
        following = next(chosen, None)
        progress.at = self._following(step) if following is None else following
        shown = self._home.redactor.redact(limited(stored))
        self._tell("step_completed", step, result=shown, data={"is_cut": True} if is_cut else {})
        self._save(step)
        self._context.say(
            f"step {step.name} reached max_attempts and continues with what it collected: there are more pages"
            if is_cut
            else f"step {step.name} is done"
        )

    def _failed(self, step: StepSpec, exc: WorkflowError) -> RunReport:
        """Report a failed step, which the next attempt begins anew."""
        usage = self._usage()
        self._count_denied()
        self._progress.execution = self._progress.call = ""
        self._progress.metas = []
        self._progress.visits.pop(step.name, None)  # the next attempt has its own number, and so its own executions
        self._tell("step_failed", step, data={"error": self._home.redactor.redact(str(exc)[:500])})
        self._save(step)

        return RunReport(ok=False, error=exc, summary=f"step {step.name} failed", usage=usage)

    def _save(self, step: StepSpec) -> None:
        self._checkpoints.save(self._progress.to_json(), step.name)

    def _usage(self) -> Usage | None:
        return used(self._progress.metas)

    def _count_denied(self) -> None:
        """Add the hosts that sandboxes denied to the calls to those of the attempt."""
        for meta in self._progress.metas:
            call = meta.get("call")
            hosts = call.get("denied") if isinstance(call, dict) else None
            for host, times in hosts.items() if isinstance(hosts, dict) else ():
                self._context.denied[host] = self._context.denied.get(host, 0) + int(str(times))

    # --- events ------------------------------------------------------------------------------------------------

    def _tell(self, event_type: str, step: StepSpec, **more: Any) -> None:
        """Store one event of *step*; the progress numbers the events, so storing one twice changes nothing."""
        progress, context, now = self._progress, self._context, self._home.clock.now()
        progress.told += 1
        event_id = f"{self._id}.s{progress.told}"
        duration = None
        if event_type == "step_started":
            progress.began_at = timestamps.to_text(now)
        elif event_type in ("step_completed", "step_failed") and progress.began_at:
            duration = max(0.0, (now - timestamps.parse(progress.began_at)).total_seconds())
        elif event_type == "action_started":
            self._call_event = event_id
        ids: JsonObject = {
            "execution_id": self._id,
            "parent_execution_id": self._document.adw_id,
            "catalog_id": self._catalog_id,
        }
        usual: dict[str, Any] = {
            "duration": duration,
            "context": shown_context(ids, self._known(), self._home.redactor, progress.statuses),
            "meta": self._queue_meta(),
        }
        event = Event(
            event_type=event_type,
            adw_id=self._document.adw_id,
            event_id=event_id,
            created_at=timestamps.to_text(now),
            status="running" if event_type.endswith("_started") else event_type.rpartition("_")[2],
            execution_id=self._id,
            parent_execution_id=self._document.adw_id,
            parent_event_id=progress.last_event or None,
            retry_sequence_id=self._call_event if event_type.startswith("action") else None,
            attempt_number=context.attempt_number,
            node_id=f"{context.phase}.{step.name}",
            node_name=step.name,
            node_type="step",
            catalog_id=self._catalog_id,
            **{**usual, **more},
        )
        self._executions.tell([event])
        progress.last_event = event_id

    def _tell_call(self, event_type: str, step: StepSpec, report: CallReport, stored: JsonValue = None) -> None:
        """Store how a single call ended; *stored* is the stored form of its result."""
        redact, moment = self._home.redactor.redact, timestamps.to_text(self._home.clock.now())
        meta: JsonObject = {
            **report.meta,
            **self._queue_meta(),
            "retry": {"has_config": False, "will_retry": False},
            "execution": {"duration_seconds": report.duration, "completed_at": moment},
        }
        data: JsonObject = {}
        if not report.ok:
            error = report.error or {}
            message = str(redact(str(error.get("message") or "")[:MAX_MESSAGE]))
            meta["error"] = error_meta(error, message, moment)
            known: JsonObject = {key: error[key] for key in ("type", "category", "klass", "status") if error.get(key)}
            data = {"error": {**known, "message": message}}
        self._tell(event_type, step, duration=report.duration, result=redact(limited(stored)), data=data, meta=meta)

    def _queue_meta(self) -> JsonObject:
        return {"queue": dict(self._context.queue)} if self._context.queue else {}


def elements_of(loop: LoopSpec, values: Mapping[str, Value]) -> Iterator[JsonValue]:
    """Yield the element of each iteration: filtered, sorted, chunked and limited as *loop* says."""
    collection = loop.collection
    is_text = isinstance(collection, str)
    value = expressions.evaluate(str(collection), values) if is_text else expressions.render(collection, values)
    if isinstance(value, dict):
        value = [{"key": key, "value": item} for key, item in value.items()]
    if not isinstance(value, list | Rows):
        raise ExpressionError(
            f"a loop goes over a list, and its collection is {json.dumps(value)[:60]}", expression=str(collection)
        )
    elements = iter(value)
    if loop.where:
        where = loop.where
        elements = (one for one in elements if expressions.holds(where, {**values, loop.element: one}))
    if loop.order_by:
        by = loop.order_by if "{{" in loop.order_by else f"{{{{ {loop.order_by} }}}}"
        keyed: list[tuple[Any, JsonValue]] = [
            (expressions.render(by, {**values, loop.element: one}), one) for one in elements
        ]
        try:
            keyed.sort(key=lambda pair: pair[0])
        except TypeError as exc:
            raise ExpressionError(f"its values have no order: {exc}", expression=loop.order_by) from exc
        elements = iter([one for _key, one in keyed])
    if loop.chunk_size is not None:
        single, size = elements, loop.chunk_size
        elements = iter(lambda: list(islice(single, size)), [])
    yield from islice(elements, loop.limit)


def _error_of(error: Mapping[str, JsonValue], step: StepSpec) -> WorkflowError:
    """Return the error of a step, already classified, as the error of the phase."""
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
