"""
The lanes of an execution: runs that take iterations, make their calls and report the results.

A lane is fenced by its own run, not by the workflow's lease: any worker may have one. It releases its run when its turn
is over and other runs wait, when no call is due, and on order; calls that an order ended do not count. How many
iterations it takes at a time depends on how long they take.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING

from adws.adw_modules import costs, error_handler, identifiers, timestamps
from adws.adw_modules.agent import TokenUsage, Usage
from adws.adw_modules.costs import money
from adws.adw_modules.errors import Fenced, LeaseLost, RunLost
from adws.adw_modules.expressions.values import Value
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.ownership.lease_renewer import LeaseHandle
from adws.adw_modules.phase import Order
from adws.adw_modules.queue.model import Run, RunResult, RunState
from adws.adw_modules.steps import call_policy
from adws.adw_modules.steps.context import resolved
from adws.adw_modules.steps.execution_update import is_sequential
from adws.adw_modules.steps.model import Assignment, CallReport, NewExecution, Taken
from adws.adw_modules.steps.sinks import Sinks
from adws.adw_modules.steps.tools import CallContext, checked
from adws.adw_modules.workflow.model import FAIL_FAST, StepSpec

if TYPE_CHECKING:
    from adws.app import Home

logger = logging.getLogger("adw.lanes")

#: After a batch shorter than SHORT_SECONDS the next may be larger; after one longer than LONG_SECONDS it is smaller.
SHORT_SECONDS, LONG_SECONDS = 0.05, 0.25
#: Seconds a lane waits after its turn, so that waiting lanes come first: it keeps its place in the queue.
YIELD_SECONDS = 0.05
#: After this long on the calls of one step, a worker lets other waiting runs come first.
TURN_SECONDS = 5.0
#: Most short calls of a loop taken at a time; long calls are taken one by one.
MOST_CALLS = 64
#: Characters of a message in a report.
MAX_MESSAGE = 500


class IterationWorker:
    """Runs lanes; implements `JobHandler`."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def work(self, run: Run) -> RunResult:
        """Make calls until this lane has none left for now, then release or finish its run."""
        home, executions, runs = self._home, self._home.executions, self._home.runs
        run = runs.begin(run)
        for process in executions.left_processes(run):
            ended = home.end_process(process)
            said = {"action": "call_ended", "run_id": run.run_id, "found": ended.describe()}
            logger.info("Ended what a call left", extra=said)
        with home.lease_renewer.keep(run, is_wanted=lambda: executions.is_wanted(run.adw_id)) as lease:
            if run.state is RunState.STOPPING:
                lease.give(Order(kind="stop", reason=run.reason or "asked to stop"))
            taken = Taken(is_over=True)
            new = executions.plan(str(run.payload.get("execution_id")))
            if new is not None:
                lane = Lane(home, run, new, lease)
                taken = executions.take(run, most=0 if lease.current() else 1)
                while taken.assignments or (lane.is_due(taken) and lease.current() is None):
                    taken = lane.iterate(taken.assignments)

        order = lease.current()
        if taken.is_over:
            done = runs.finish(run, RunState.COMPLETED, reason="the execution has ended")
        elif taken.wait_until:
            done = runs.requeue(run, not_before=taken.wait_until, reason=taken.reason or "its next call is not due")
        elif order is not None and order.kind in ("drain", "lost_lease"):
            done = runs.requeue(run, reason=order.reason or order.kind)
        elif order is not None:
            done = runs.finish(run, RunState.STOPPED, reason=order.reason)
        else:
            done = runs.finish(run, RunState.COMPLETED, reason="nothing is left for this lane")

        return RunResult(run=done, outcome=None, message=done.reason)

    def give_up(self, run: Run, why: str) -> None:
        """Fail the calls that crashed their workers."""
        self._home.executions.give_up(run, reason=why)


class Lane:
    """One run that makes the calls of iterations of an execution."""

    def __init__(self, home: Home, run: Run, new: NewExecution, lease: LeaseHandle) -> None:
        self._home = home
        self._run = run
        self._new = new
        self._lease = lease
        self._most = 1  #: iterations to take at a time
        self._turn_began = home.clock.monotonic()
        loop = new.step.loop
        #: The next call begins only after a failure of the previous one has been evaluated.
        self._stops_at_failure = is_sequential(new.step) or (loop is not None and loop.on_failure == FAIL_FAST)

    def is_due(self, taken: Taken) -> bool:
        """Return whether more calls are due now; a lane that lets others come first gives a reason."""
        return bool(taken.wait_until) and not (taken.is_over or taken.reason) and taken.wait_until <= self._in(0.0)

    def iterate(self, assignments: tuple[Assignment, ...]) -> Taken:
        """
        Make calls one after the other, then report them and take the next ones in one transaction.

        Calls after an order, or after a failure that may end the loop, are not made; missing from the report, they
        wait again. When the turn is over and other runs wait, the lane takes nothing and comes back soon.
        """
        home, new, lease, clock = self._home, self._new, self._lease, self._home.clock
        reports: list[CallReport] = []
        began = clock.monotonic()
        for assignment in assignments:
            if lease.current() is not None:
                break
            values = call_policy.values_of(
                new,
                self._known,
                index=assignment.index,
                element=assignment.element,
                attempt=assignment.attempt_number,
                page=assignment.page,
            )
            record = partial(home.executions.record_process, self._run, assignment)
            report = home.step_calls.make(new.step, assignment, self._context(values=values, record_process=record))
            reports.append(report)
            if report.is_suspended or (self._stops_at_failure and not report.ok):
                break

        now = clock.monotonic()
        if assignments and now - began < SHORT_SECONDS:
            self._most = min(self._most * 2, MOST_CALLS)
        elif now - began > LONG_SECONDS:
            self._most = max(1, self._most // 2)
        is_stopped, is_turn_over = lease.current() is not None, False
        if not is_stopped and now - self._turn_began >= TURN_SECONDS:
            self._turn_began = now  # a new turn if no other run waits
            is_turn_over = home.runs.seconds_to_next() == 0.0

        most = 0 if is_stopped or is_turn_over else self._most
        taken = home.executions.report(self._run, reports if assignments else None, most=most)
        if is_turn_over and not taken.is_over:
            return Taken(wait_until=self._in(YIELD_SECONDS), reason="others come first")

        return taken

    @cached_property
    def _known(self) -> dict[str, Value]:
        return resolved(self._new.context, self._home.executions, self._new.adw_id)

    @cached_property
    def _context(self) -> Callable[..., CallContext]:
        """The part of the call context that all calls of the lane share."""
        home, new = self._home, self._new
        document = home.load(new.adw_id)

        return partial(
            CallContext,
            document=document,
            phase=new.phase,
            phase_attempt=new.attempt_number,
            cwd=home.workspace.workplace_of(document),
            folder=home.folder_of(new.adw_id),
            orders=self._lease,
            say=lambda line: home.say(new.adw_id, line),
            spent=lambda: spent(home.executions.metas(new.execution_id)),
        )

    def _in(self, seconds: float) -> str:
        return timestamps.to_text(self._home.clock.now() + timedelta(seconds=seconds))


class ToolCalls:
    """
    Makes the calls of steps, in any thread of a worker: first the tool, then the sink.

    Anything a tool or sink raises becomes a failed call, classified once; a call ended on order is suspended and does
    not count. Only the tool sees the inputs of a call.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._of_thread = threading.local()  #: sinks have connections and transactions, which threads cannot share
        self._sinks: list[Sinks] = []

    def make(self, step: StepSpec, assignment: Assignment, context: CallContext) -> CallReport:
        """
        Make one call and return its report; raise only errors that say the run is no longer ours.

        A failure is a report with an error of the one classifier: `ErrorFacts.to_json()` plus `type`, `status` and
        `has_stack_trace`.
        """
        home = self._home
        began = home.clock.monotonic()
        facts: JsonObject = {}
        result: JsonValue = None
        error: JsonObject | None = None
        ordered = fingerprint = part = ""
        try:
            inputs = call_policy.inputs_of(step, assignment, context.values)
            answer = home.tools[step.tool].call(inputs, context, timeout_seconds=step.timeout_seconds)
            facts, ordered = answer.facts, answer.ordered
            if not ordered:
                result = checked(answer.value)
            if step.sink is not None and not ordered:
                part = "Sink failed: "  # the call counts as done only once its result is saved
                sinks: Sinks | None = getattr(self._of_thread, "sinks", None)
                if sinks is None:
                    sinks = self._of_thread.sinks = Sinks(home)
                    self._sinks.append(sinks)
                rows = sinks.save(
                    step.sink, result, values=context.values, root=context.cwd, sink_key=assignment.sink_key
                )
                facts = {**facts, "rows": rows}
        except (Fenced, LeaseLost, RunLost):
            raise
        except Exception as exc:  # noqa: BLE001 - anything that a tool or a user's function raises is a failed call
            described = error_handler.describe(exc, step.name)
            message = (part + home.redactor.redact_text(described.message))[:MAX_MESSAGE]
            error = {
                **described.to_json(),
                "type": getattr(exc, "type_name", "") or described.error_type,
                "message": message,
                "traceback": "",
                "has_stack_trace": bool(described.traceback),
                "status": described.metadata.get("http_status"),
                "exit_code": described.metadata.get("exit_code"),
                "failed_at": timestamps.to_text(home.clock.now()),
            }
            fingerprint = identifiers.fingerprint(f"{error['type']}:{described.klass}", message)
            more = getattr(exc, "facts", None)
            facts = {**facts, **(more if isinstance(more, dict) else {})}
        if ordered:
            facts = {**facts, "ordered": ordered}
        if context.denied:
            facts = {**facts, "denied": dict(context.denied)}

        return CallReport(
            index=assignment.index,
            attempt_number=assignment.attempt_number,
            ok=error is None and not ordered,
            result=result if error is None else None,
            error=error,
            fingerprint=fingerprint,
            duration=home.clock.monotonic() - began,
            meta={"call": facts} if facts else {},
            is_suspended=bool(ordered),
        )

    def close(self) -> None:
        """Close connections and files, once no thread makes calls any more."""
        while self._sinks:
            self._sinks.pop().close()


# --- costs -----------------------------------------------------------------------------------------------------


def used(metas: Iterable[Mapping[str, object]]) -> Usage | None:
    """
    Return the total usage of all agent calls with these *metas*, or None if no agent was called.

    With several providers or models, the result names the first. Calls of unknown cost are left out of the sum; the
    total is a subscription only if every call is.
    """
    result: list[Usage] = []
    for meta in metas:
        call = meta.get("call")
        said = call.get("usage") if isinstance(call, Mapping) else None
        if isinstance(said, Mapping):
            tokens = said.get("tokens")
            usage = Usage(
                provider=str(said.get("provider") or ""),
                model=str(said.get("model") or ""),
                tokens=TokenUsage.from_json(tokens) if isinstance(tokens, Mapping) else TokenUsage(),
                cost_usd=money(said.get("cost_usd")),
                is_estimated=said.get("is_estimated") is True,
                is_subscription=said.get("is_subscription") is True,
            )
            result.append(usage)
    if len(result) < 2:
        return result[0] if result else None
    known = [usage.cost_usd for usage in result if usage.cost_usd is not None and not usage.is_subscription]

    return replace(
        result[0],
        tokens=TokenUsage(
            **{part.name: sum(getattr(usage.tokens, part.name) for usage in result) for part in fields(TokenUsage)}
        ),
        cost_usd=sum(known) if known else None,
        is_estimated=any(usage.is_estimated for usage in result),
        is_subscription=all(usage.is_subscription for usage in result),
    )


def spent(metas: Iterable[Mapping[str, object]]) -> float:
    """Return the US dollars these calls cost; subscriptions and unknown costs count as 0."""
    return costs.counted(used(metas)) or 0.0
