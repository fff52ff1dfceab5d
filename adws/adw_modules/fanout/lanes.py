"""
The lanes of an execution: runs that take iterations, make their calls and report them.

A lane is fenced by its own run, not by the workflow's lease: any worker may have one. It gives itself back when others
wait and it had its time, when nothing is due, and on order; calls that an order ended do not count. How many iterations
it takes at a time follows from how long they take.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.coordination.keeper import Charge, Keeper
from adws.adw_modules.coordination.workflow_work import WorkEnd
from adws.adw_modules.execution_picking import is_sequential
from adws.adw_modules.execution_state import values_of
from adws.adw_modules.executions import Assignment, CallReport, Executions, NewExecution, Taken
from adws.adw_modules.fanout import call_costs
from adws.adw_modules.fanout.calls import CallContext, CallMaker
from adws.adw_modules.fanout.contexts import resolved
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import Order, RunQueue
from adws.adw_modules.process_tree import Ending
from adws.adw_modules.runs import Run, RunState
from adws.adw_modules.steps import FAIL_FAST, StepSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.expressions import Value

logger = logging.getLogger("adw.lanes")

#: A batch that took less than this many seconds may be longer the next time, one that took more is shorter.
SHORT_SECONDS, LONG_SECONDS = 0.05, 0.25
#: Seconds that a lane stays back after it had its time, so that what waits comes first: it keeps its old place.
YIELD_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneParts:
    """What lanes work with."""

    clock: Clock
    runs: RunQueue
    executions: Executions
    keeper: Keeper
    calls: CallMaker
    load: Callable[[str], WorkflowDocument]  #: reads a document without owning it
    workplace_of: Callable[[WorkflowDocument], Path]
    folder_of: Callable[[str], Path]
    end_process: Callable[[Mapping[str, object]], Ending]  #: ends what a crash left running, and says what it was
    say: Callable[[str, str], None] = lambda _adw_id, _line: None
    lane_seconds: float = 5.0  #: of work, then others that wait come first
    batch: int = 64  #: most iterations that are taken at a time


class Lanes:
    """Works on lanes; implements `Errand`."""

    def __init__(self, parts: LaneParts) -> None:
        self._parts = parts

    def work(self, run: Run) -> WorkEnd:
        """Make calls until there are none for this lane now, and give its run back or end it."""
        parts = self._parts
        run = parts.runs.begin(run)
        for process in parts.executions.left_processes(run):
            ended = parts.end_process(process)
            said = {"action": "call_ended", "run_id": run.run_id, "found": ended.describe()}
            logger.info("Ended what a call left", extra=said)
        with parts.keeper.keep(run, is_wanted=lambda: parts.executions.is_wanted(run.adw_id)) as charge:
            if run.state is RunState.STOPPING:
                charge.give(Order(kind="stop", reason=run.reason or "asked to stop"))
            taken, why = self._go(run, charge)

        return self._end(run, taken, why, charge.current())

    def give_up(self, run: Run, why: str) -> None:
        """Fail the calls that took their workers with them."""
        self._parts.executions.give_up(run, reason=why)

    def _end(self, run: Run, taken: Taken, why: str, order: Order | None) -> WorkEnd:
        parts = self._parts
        if taken.is_over:
            ended = parts.runs.finish(run, RunState.COMPLETED, reason="the execution has ended")
        elif taken.wait_until:
            ended = parts.runs.requeue(run, not_before=taken.wait_until, reason=why or "its next call is not due")
        elif order is not None and order.kind in ("drain", "lost_lease"):
            ended = parts.runs.requeue(run, reason=order.reason or order.kind)
        elif order is not None:
            ended = parts.runs.finish(run, RunState.STOPPED, reason=order.reason)
        else:
            ended = parts.runs.finish(run, RunState.COMPLETED, reason="nothing is left for this lane")

        return WorkEnd(run=ended, outcome=None, message=ended.reason)

    def _go(self, run: Run, charge: Charge) -> tuple[Taken, str]:
        """Take, call and report until this lane has nothing to do now; return what it was told last, and why."""
        executions, clock = self._parts.executions, self._parts.clock
        new = executions.plan(str(run.payload.get("execution_id")))
        if new is None:
            return Taken(is_over=True), ""
        calls = _Calls(self._parts, run, new, charge)
        turn, most = _Turn(self._parts), 1
        taken = executions.take(run, most=0 if charge.current() else most)
        while not taken.is_over:
            if taken.assignments:
                started = clock.monotonic()
                reports = calls.make_all(taken.assignments)
                most = _next_batch(most, clock.monotonic() - started, self._parts.batch)
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
        return timestamps.to_text(self._parts.clock.now() + timedelta(seconds=seconds))


class _Turn:
    """The time a lane has before others that wait come first."""

    def __init__(self, parts: LaneParts) -> None:
        self._parts = parts
        self._began = parts.clock.monotonic()

    def is_over(self) -> bool:
        """Say whether it had its time and somebody waits; it has that time again when nobody does."""
        now = self._parts.clock.monotonic()
        if now - self._began < self._parts.lane_seconds:
            return False
        self._began = now

        return self._parts.runs.seconds_to_next() == 0.0


class _Calls:
    """Makes the calls of one lane."""

    def __init__(self, parts: LaneParts, run: Run, new: NewExecution, charge: Charge) -> None:
        self._parts = parts
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
            report = self._parts.calls.make(self._new.step, assignment, self._context(assignment))
            reports.append(report)
            if report.is_suspended or (self._stops_early and not report.ok):
                break

        return reports

    def _context(self, assignment: Assignment) -> CallContext:
        parts, new = self._parts, self._new
        if self._document is None or self._known is None:
            self._document = parts.load(new.adw_id)
            self._known = resolved(new.context, parts.executions, new.adw_id)

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
            cwd=parts.workplace_of(self._document),
            folder=parts.folder_of(new.adw_id),
            orders=self._charge,
            record_process=lambda process: parts.executions.record_process(self._run, assignment, process),
            say=lambda line: parts.say(new.adw_id, line),
            spent=lambda: call_costs.spent(parts.executions.metas(new.execution_id)),
        )


def stops_at_failure(step: StepSpec) -> bool:
    """Say whether what comes after a failed call may not be begun before the failure is judged."""
    return is_sequential(step) or (step.loop is not None and step.loop.on_failure == FAIL_FAST)


def _next_batch(most: int, seconds: float, limit: int) -> int:
    """Return how many iterations to take next, by how long these took."""
    if seconds < SHORT_SECONDS:
        return min(most * 2, limit)

    return max(1, most // 2) if seconds > LONG_SECONDS else most
