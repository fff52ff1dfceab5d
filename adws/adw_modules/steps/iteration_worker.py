"""
The lanes of an execution: runs that take iterations, make their calls and report them.

A lane is fenced by its own run, not by the workflow's lease: any worker may have one. It gives itself back when others
wait and it had its time, when nothing is due, and on order; calls that an order ended do not count. How many iterations
it takes at a time follows from how long they take.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules import costs, error_handler, timestamps
from adws.adw_modules.agent import TokenUsage, Usage
from adws.adw_modules.costs import money
from adws.adw_modules.engine import advisor
from adws.adw_modules.errors import Fenced, LeaseLost, RunLost
from adws.adw_modules.expressions.values import Value
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.ownership.lease_renewer import LeaseHandle
from adws.adw_modules.phase import Order
from adws.adw_modules.queue.model import Run, RunResult, RunState
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.steps import call_policy
from adws.adw_modules.steps.context import resolved
from adws.adw_modules.steps.execution_update import is_sequential
from adws.adw_modules.steps.model import Assignment, CallReport, NewExecution, Taken, values_of
from adws.adw_modules.steps.sinks import Sinks
from adws.adw_modules.steps.tools import MAX_RESULT_BYTES, CallContext, ToolResult, checked
from adws.adw_modules.workflow.model import FAIL_FAST, StepSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home


# Make one call of a step: fill in its inputs, call the tool, save the result, and report it.
#
# Whatever a tool or a sink raises is a failed call, classified once; a call that was ended on order is suspended and
# does not count. The inputs of a call are shown to nobody but the tool: a report has the result as it came, and facts
# without credentials.


#: Characters of a message in a report.
MAX_MESSAGE = 500


class Tool(Protocol):
    """Something that steps call."""

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Make one call; what this raises is a failed call."""


class ToolCalls:
    """Makes calls of steps: the tool, and then the sink. One thread at a time uses it."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        sinks: Sinks,
        *,
        clock: Clock,
        redactor: Redactor,
        max_bytes: int = MAX_RESULT_BYTES,
    ) -> None:
        """*tools* are those of `model.TOOLS` by name; a result has at most *max_bytes*."""
        self._tools = tools
        self._sinks = sinks
        self._clock = clock
        self._redactor = redactor
        self._max_bytes = max_bytes

    def make(self, step: StepSpec, assignment: Assignment, context: CallContext) -> CallReport:
        """
        Make one call and return its report; raises only what says that the run is not ours any more.

        A failure is a report with an error of the one classifier: `ErrorFacts.to_json()` with `type`, `status` and
        `has_stack_trace` beside it.
        """
        began = self._clock.monotonic()
        facts: JsonObject = {}
        try:
            inputs = call_policy.inputs_of(step, assignment, context.values)
            answer = self._tools[step.tool].call(inputs, context, timeout_seconds=step.timeout_seconds)
            facts = answer.facts
            if answer.ordered:
                return self._suspended(assignment, answer, began)
            result = checked(answer.value, max_bytes=self._max_bytes)
        except (Fenced, LeaseLost, RunLost):
            raise
        except Exception as exc:  # noqa: BLE001 - whatever a tool or a function of the user raises is a failed call
            return self._failed(step, assignment, exc, facts, began)
        try:
            if step.sink is not None:
                facts = {**facts, "rows": self._save(step, assignment, context, result)}
        except (Fenced, LeaseLost, RunLost):
            raise
        except Exception as exc:  # noqa: BLE001 - the call is over only when its result is saved
            return self._failed(step, assignment, exc, facts, began, part="Sink failed: ")

        return CallReport(
            index=assignment.index,
            attempt_number=assignment.attempt_number,
            ok=True,
            result=result,
            duration=self._clock.monotonic() - began,
            meta={"call": facts} if facts else {},
        )

    def close(self) -> None:
        """Close connections and files."""
        self._sinks.close()

    def _save(self, step: StepSpec, assignment: Assignment, context: CallContext, result: JsonValue) -> int:
        if step.sink is None:
            return 0

        return self._sinks.save(
            step.sink, result, values=context.values, root=context.cwd, sink_key=assignment.sink_key
        )

    def _suspended(self, assignment: Assignment, found: ToolResult, began: float) -> CallReport:
        return CallReport(
            index=assignment.index,
            attempt_number=assignment.attempt_number,
            ok=False,
            is_suspended=True,
            duration=self._clock.monotonic() - began,
            meta={"call": {**found.facts, "ordered": found.ordered}},
        )

    def _failed(
        self,
        step: StepSpec,
        assignment: Assignment,
        exc: Exception,
        facts: JsonObject,
        began: float,
        *,
        part: str = "",
    ) -> CallReport:
        result = error_handler.describe(exc, step.name)
        message = (part + self._redactor.redact_text(result.message))[:MAX_MESSAGE]
        more = getattr(exc, "facts", None)
        error: JsonObject = {
            **result.to_json(),
            "type": getattr(exc, "type_name", "") or result.error_type,
            "message": message,
            "traceback": "",
            "has_stack_trace": bool(result.traceback),
            "status": result.metadata.get("http_status"),
            "exit_code": result.metadata.get("exit_code"),
            "failed_at": timestamps.to_text(self._clock.now()),
        }
        known = {**facts, **(more if isinstance(more, dict) else {})}

        return CallReport(
            index=assignment.index,
            attempt_number=assignment.attempt_number,
            ok=False,
            error=error,
            fingerprint=advisor.fingerprint(f"{error['type']}:{result.klass}", message),
            duration=self._clock.monotonic() - began,
            meta={"call": known} if known else {},
        )


# What the agents of calls used, added up for the attempt that made them.
#
# Pure. Every report of a call has it in `meta.call`, and so has its event: `action_completed`, `action_failed`.


def used(metas: Iterable[Mapping[str, object]]) -> Usage | None:
    """
    Return what all calls with these *metas* used together, None when no agent was called.

    With several providers or models, the name of the first stands for all. A part that nobody knows the cost of leaves
    the sum of the others; paid by the month is only what is so altogether.
    """
    result = [usage for meta in metas if (usage := _used(meta)) is not None]
    if len(result) < 2:
        return result[0] if result else None
    known = [usage.cost_usd for usage in result if usage.cost_usd is not None and not usage.is_subscription]

    return replace(
        result[0],
        tokens=_sum(usage.tokens for usage in result),
        cost_usd=sum(known) if known else None,
        is_estimated=any(usage.is_estimated for usage in result),
        is_subscription=all(usage.is_subscription for usage in result),
    )


def spent(metas: Iterable[Mapping[str, object]]) -> float:
    """Return the US dollars that count of it."""
    return costs.counted(used(metas)) or 0.0


def _used(meta: Mapping[str, object]) -> Usage | None:
    call = meta.get("call")
    usage = call.get("usage") if isinstance(call, Mapping) else None
    if not isinstance(usage, Mapping):
        return None
    tokens = usage.get("tokens")

    return Usage(
        provider=str(usage.get("provider") or ""),
        model=str(usage.get("model") or ""),
        tokens=TokenUsage.from_json(tokens) if isinstance(tokens, Mapping) else TokenUsage(),
        cost_usd=money(usage.get("cost_usd")),
        is_estimated=usage.get("is_estimated") is True,
        is_subscription=usage.get("is_subscription") is True,
    )


def _sum(tokens: Iterable[TokenUsage]) -> TokenUsage:
    total = dict.fromkeys((part.name for part in fields(TokenUsage)), 0)
    for one in tokens:
        for name in total:
            total[name] += getattr(one, name)

    return TokenUsage(**total)


logger = logging.getLogger("adw.lanes")

#: A batch that took less than this many seconds may be longer the next time, one that took more is shorter.
SHORT_SECONDS, LONG_SECONDS = 0.05, 0.25
#: Seconds that a lane waits after its time is up, so that waiting lanes come first: it keeps its old place.
YIELD_SECONDS = 0.05


class IterationWorker:
    """Works on lanes; implements `JobHandler`."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def work(self, run: Run) -> RunResult:
        """Make calls until there are none for this lane now, and give its run back or end it."""
        home = self._home
        run = home.runs.begin(run)
        for process in home.executions.left_processes(run):
            ended = home.end_process(process)
            said = {"action": "call_ended", "run_id": run.run_id, "found": ended.describe()}
            logger.info("Ended what a call left", extra=said)
        with home.lease_renewer.keep(run, is_wanted=lambda: home.executions.is_wanted(run.adw_id)) as charge:
            if run.state is RunState.STOPPING:
                charge.give(Order(kind="stop", reason=run.reason or "asked to stop"))
            taken, why = self._go(run, charge)

        return self._end(run, taken, why, charge.current())

    def give_up(self, run: Run, why: str) -> None:
        """Fail the calls that took their workers with them."""
        self._home.executions.give_up(run, reason=why)

    def _end(self, run: Run, taken: Taken, why: str, order: Order | None) -> RunResult:
        runs = self._home.runs
        if taken.is_over:
            ended = runs.finish(run, RunState.COMPLETED, reason="the execution has ended")
        elif taken.wait_until:
            ended = runs.requeue(run, not_before=taken.wait_until, reason=why or "its next call is not due")
        elif order is not None and order.kind in ("drain", "lost_lease"):
            ended = runs.requeue(run, reason=order.reason or order.kind)
        elif order is not None:
            ended = runs.finish(run, RunState.STOPPED, reason=order.reason)
        else:
            ended = runs.finish(run, RunState.COMPLETED, reason="nothing is left for this lane")

        return RunResult(run=ended, outcome=None, message=ended.reason)

    def _go(self, run: Run, charge: LeaseHandle) -> tuple[Taken, str]:
        """Take, call and report until this lane has nothing to do now; return what it was told last, and why."""
        executions, clock = self._home.executions, self._home.clock
        new = executions.plan(str(run.payload.get("execution_id")))
        if new is None:
            return Taken(is_over=True), ""
        calls = _Calls(self._home, run, new, charge)
        turn, most = _Turn(self._home), 1
        taken = executions.take(run, most=0 if charge.current() else most)
        while not taken.is_over:
            if taken.assignments:
                started = clock.monotonic()
                reports = calls.make_all(taken.assignments)
                most = _next_batch(most, clock.monotonic() - started, self._home.settings.steps_batch)
                is_ordered = charge.current() is not None
                is_over = not is_ordered and turn.is_over()
                taken = executions.report(run, reports, most=0 if is_ordered or is_over else most)
                if is_over and not taken.is_over:
                    return Taken(wait_until=self._in(YIELD_SECONDS)), "others come first"
            elif self._is_now(taken) and charge.current() is None:
                taken = executions.take(run, most=most)  # something was tidied up, and there is more to do
            else:
                break

        return taken, ""

    def _is_now(self, taken: Taken) -> bool:
        return bool(taken.wait_until) and taken.wait_until <= self._in(0.0)

    def _in(self, seconds: float) -> str:
        return timestamps.to_text(self._home.clock.now() + timedelta(seconds=seconds))


class _Turn:
    """The time a lane has before others that wait come first."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._began = home.clock.monotonic()

    def is_over(self) -> bool:
        """Return whether its time is up and other runs wait; its time starts anew when none do."""
        now = self._home.clock.monotonic()
        if now - self._began < self._home.settings.steps_lane_seconds:
            return False
        self._began = now

        return self._home.runs.seconds_to_next() == 0.0


class _Calls:
    """Makes the calls of one lane."""

    def __init__(self, home: Home, run: Run, new: NewExecution, charge: LeaseHandle) -> None:
        self._home = home
        self._run = run
        self._new = new
        self._charge = charge
        self._stops_early = stops_at_failure(new.step)
        self._known: Mapping[str, Value] | None = None
        self._document: WorkflowDocument | None = None

    def make_all(self, assignments: tuple[Assignment, ...]) -> list[CallReport]:
        """Make calls one after the other; those after an order, or after a failure that ends the loop, are left."""
        reports: list[CallReport] = []
        for assignment in assignments:
            if self._charge.current() is not None:
                break
            report = self._home.step_calls.make(self._new.step, assignment, self._context(assignment))
            reports.append(report)
            if report.is_suspended or (self._stops_early and not report.ok):
                break

        return reports

    def _context(self, assignment: Assignment) -> CallContext:
        home, new = self._home, self._new
        if self._document is None or self._known is None:
            self._document = home.load(new.adw_id)
            self._known = resolved(new.context, home.executions, new.adw_id)

        return CallContext(
            document=self._document,
            phase=new.phase,
            phase_attempt=new.attempt_number,
            values=values_of(
                new,
                self._known,
                index=assignment.index,
                element=assignment.element,
                attempt=assignment.attempt_number,
                page=assignment.page,
            ),
            cwd=home.workspace.workplace_of(self._document),
            folder=home.folder_of(new.adw_id),
            orders=self._charge,
            record_process=lambda process: home.executions.record_process(self._run, assignment, process),
            say=lambda line: home.say(new.adw_id, line),
            spent=lambda: spent(home.executions.metas(new.execution_id)),
        )


def stops_at_failure(step: StepSpec) -> bool:
    """Say whether what comes after a failed call may not be begun before the failure is judged."""
    return is_sequential(step) or (step.loop is not None and step.loop.on_failure == FAIL_FAST)


def _next_batch(most: int, seconds: float, limit: int) -> int:
    """Return how many iterations to take next, by how long these took."""
    if seconds < SHORT_SECONDS:
        return min(most * 2, limit)

    return max(1, most // 2) if seconds > LONG_SECONDS else most


class ThreadCalls:
    """
    Makes calls in any thread of a worker, with a `ToolCalls` for each.

    Sinks keep connections and transactions, which two threads must not share.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._of_thread = threading.local()
        self._made: list[ToolCalls] = []

    def make(self, step: StepSpec, assignment: Assignment, context: CallContext) -> CallReport:
        """Make one call and return its report."""
        calls: ToolCalls | None = getattr(self._of_thread, "calls", None)
        if calls is None:
            home = self._home
            calls = self._of_thread.calls = ToolCalls(
                home.tools,
                Sinks(home),
                clock=home.clock,
                redactor=home.redactor,
                max_bytes=home.settings.steps_max_result_bytes,
            )
            self._made.append(calls)

        return calls.make(step, assignment, context)

    def close(self) -> None:
        """Close connections and files; no thread makes calls any more."""
        while self._made:
            self._made.pop().close()
