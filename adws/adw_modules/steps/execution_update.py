"""
One update of an execution: what reports, interruptions and cancellations do to its rows, and the events about it.

Pure: the store reads rows, lets an update change them, and writes rows and events in one transaction. The orchestrator
(`decide`) decides on each event; here its commands are applied to the rows. Folding the events from the beginning gives
what the rows say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from adws.adw_modules import timestamps
from adws.adw_modules.events import Event
from adws.adw_modules.expressions.values import Value
from adws.adw_modules.identifiers import JsonObject, JsonValue, counted
from adws.adw_modules.steps import call_policy
from adws.adw_modules.steps.call_policy import INTERRUPTION, REPLACE, CallFacts, Judgement, collected
from adws.adw_modules.steps.model import (
    CUT,
    NULL,
    RETRY_WAIT,
    RUNNING,
    Assignment,
    CallAgain,
    CallReport,
    CancelRest,
    Command,
    EndExecution,
    EndIteration,
    Execution,
    ExecutionRow,
    ExecutionSpec,
    ExecutionState,
    Iteration,
    IterationState,
    Slot,
    Taken,
    values_of,
)
from adws.adw_modules.workflow.model import (
    ACCEPT,
    ASYNC,
    CONTINUE,
    FAIL_FAST,
    ON_ERROR,
    ON_SUCCESS,
    THRESHOLD,
    LoopSpec,
    StepSpec,
    step_to_json,
)

if TYPE_CHECKING:
    from adws.adw_modules.redaction.redactor import Redactor
    from adws.adw_modules.steps.store import IterationRepository

# What a lane of an execution does next: which iterations it takes, or what it waits for.
#
# Pure; rows are read through an `IterationRepository`, and none of them is read twice in an update. A sequential loop
# begins an iteration only when the one before is over, with all its calls. Of many waiting iterations a lane takes no
# more than its share.


#: Iterations that are cancelled in one transaction.
CANCELLED_AT_ONCE = 500
#: Why calls of workflows that are over are cancelled.
LEFT = "its workflow is over"


def is_sequential(step: StepSpec) -> bool:
    """Say whether the iterations of *step* are done one after the other."""
    return step.loop is None or step.loop.mode != ASYNC


def lanes_of(step: StepSpec, total: int) -> int:
    """Return how many lanes *step* has for so many iterations."""
    return 1 if step.loop is None or is_sequential(step) else max(1, min(step.loop.concurrency, total))


def pick(turn: ExecutionUpdate, shelf: IterationRepository, *, moment: str, most: int, is_wanted: bool) -> Taken:
    """Give the lane its next iterations, or say what it waits for."""
    head = turn.head
    if head.cancel_reason and not turn.is_over:
        cancel_some(turn, shelf)
    if turn.is_over:
        return Taken(is_over=True)
    if not is_wanted or head.execution.total is None or most < 1:
        return Taken()
    if head.cancel_reason:
        return Taken(wait_until=moment) if _is_left_to_cancel(head) else Taken()
    again = [row for row in turn.changed.values() if row.state == RETRY_WAIT]
    rows = _in_order(turn, shelf, again, moment, most) if is_sequential(head.execution.step) else None
    if rows is None:
        rows = _side_by_side(turn, shelf, again, moment, most)
    if rows:
        return Taken(assignments=turn.begin(rows))

    return _nothing_now(turn, shelf, again, moment)


def _nothing_now(turn: ExecutionUpdate, shelf: IterationRepository, again: Sequence[Iteration], moment: str) -> Taken:
    known = {row.index for row in turn.changed.values()}
    lost = [row for row in shelf.orphans() if row.index not in known]
    if lost:
        turn.interrupt(lost)
        return Taken(wait_until=moment, is_over=turn.is_over)
    moments = [row.next_at for row in again]
    stored = shelf.next_at()
    if stored is not None:
        moments.append(stored)

    return Taken(wait_until=max(min(moments), moment) if moments else "")


def _in_order(
    turn: ExecutionUpdate, shelf: IterationRepository, again: Sequence[Iteration], moment: str, most: int
) -> list[Iteration]:
    stored = shelf.first_waiting()
    first = min([*again, *([stored] if stored else [])], key=_place, default=None)
    if first is not None:
        return [first] if first.next_at <= moment else []
    has_rules = bool(turn.head.execution.step.retry)

    return _fresh(turn.head, shelf, 1 if has_rules else most)


def _side_by_side(
    turn: ExecutionUpdate, shelf: IterationRepository, again: Sequence[Iteration], moment: str, most: int
) -> list[Iteration]:
    due = [*(row for row in again if row.next_at <= moment), *shelf.due(moment, most)]
    rows = sorted(due, key=lambda row: (row.next_at, row.index))[:most]
    suspects = [row for row in rows if row.why == INTERRUPTION]
    if suspects:
        return suspects[:1]  # a call that takes its worker along shall not take others with it again
    left = most - len(rows)
    if left:
        rows += _fresh(turn.head, shelf, min(left, _share(turn.head)))

    return rows


def _share(head: ExecutionRow) -> int:
    """Return how many of those that wait a lane takes, so that there are some for the others."""
    left = (head.execution.total or 0) - head.next_index

    return max(1, left // (2 * head.lanes))


def _fresh(head: ExecutionRow, shelf: IterationRepository, most: int) -> list[Iteration]:
    if head.next_index >= (head.execution.total or 0):
        return []
    rows = shelf.not_begun(head.next_index, most)
    head.next_index = rows[-1].index + 1 if len(rows) == most else head.execution.total or 0

    return rows


def _place(row: Iteration) -> int:
    return row.index


# --- cancelling ------------------------------------------------------------------------------------------------


def cancel_some(turn: ExecutionUpdate, shelf: IterationRepository) -> bool:
    """End some of the waiting iterations; return whether there may be more."""
    head = turn.head
    again = [row for row in turn.changed.values() if row.state == RETRY_WAIT]
    waiting = shelf.waiting(CANCELLED_AT_ONCE)
    turn.cancel([*again, *waiting], head.cancel_reason)
    turn.cancel(_fresh(head, shelf, CANCELLED_AT_ONCE), head.cancel_reason)

    return not turn.is_over and (len(waiting) == CANCELLED_AT_ONCE or _is_left_to_cancel(head))


def _is_left_to_cancel(head: ExecutionRow) -> bool:
    return head.next_index < (head.execution.total or 0)


# --- for people ------------------------------------------------------------------------------------------------


def shown_facts(head: ExecutionRow, *, running: int, waiting: int, next_at: str | None) -> JsonObject:
    """Return the counts of an execution."""
    done = head.execution

    return {
        "execution_id": done.execution_id,
        "step": done.step.name,
        "state": done.state.value,
        "reason": done.reason,
        "total": done.total,
        "done": done.ended,
        "succeeded": done.succeeded,
        "failed": done.failed,
        "cancelled": done.cancelled,
        "running": running,
        "waiting": waiting,
        "pending": max(0, head.stored - head.next_index) if done.state is ExecutionState.RUNNING else 0,
        "next_retry": next_at,
    }


# What the events of an execution say of it: its settings, the result of a call, how it ended.
#
# Pure. The names are those of seed 001 (`data`, and in `meta` the keys retry, execution, queue and error), so that the
# log alone explains why a call was made again, or not.


#: Characters of JSON of a value in an event. Of a larger one the event says how large it is; the rows have it.
MAX_VALUE = 10_000
#: Characters of a message in an event.
MAX_MESSAGE = 500
#: The key of a table that stands for the results of an execution.
REFERENCE = "_execution"


def truncated(size: int) -> JsonObject:
    """Return what stands for a value of so many characters."""
    return {"_truncated": True, "_size": size}


def started(step: StepSpec, total: int) -> JsonObject:
    """Return what is told when the calls of *step* can begin."""
    written = step_to_json(step)
    data: JsonObject = {
        "tool": step.tool,
        "collection_size": total,
        **(_of_loop(step.loop) if step.loop is not None else {}),
    }
    if step.retry:
        data["retry_config"] = written["retry"]
    if step.sink is not None:
        data["sink"] = written["sink"]

    return data


def _of_loop(loop: LoopSpec) -> JsonObject:
    result: JsonObject = {
        "iterator_name": loop.element,
        "mode": loop.mode,
        "concurrency": loop.concurrency,
        "chunk_size": loop.chunk_size,
        "on_failure": loop.on_failure,
    }
    if loop.on_failure == THRESHOLD:
        result["threshold"] = loop.threshold
    for name in ("where", "order_by", "limit"):
        if value := getattr(loop, name):
            result[name] = value

    return result


def was_cut(row: Iteration) -> bool:
    """Say whether an iteration handed on what it had when its calls were used up."""
    return row.state == IterationState.COMPLETED.value and row.why == CUT


def ended(done: Execution, reason: str, cut: int = 0) -> JsonObject:
    """Return what is told when everything is over; *cut* iterations reached their limit of calls."""
    if cut and not reason:
        which = f"{cut} of {done.total} iterations were" if done.step.loop is not None else "it was"
        reason = f"{which} cut at max_attempts: there are more pages"
    return {
        "total_iterations": done.total or 0,
        "successful": done.succeeded,
        "failed": done.failed,
        "cancelled": done.cancelled,
        "success_rate": _success_rate(done),
        **({"cut": cut} if cut else {}),
        **({"reason": reason} if reason else {}),
    }


def end_meta(done: Execution, moment: str) -> JsonObject:
    """Return what the end of an execution has in `meta`."""
    return {
        "total_iterations": done.total or 0,
        "completed_iterations": done.succeeded,
        "success_rate": _success_rate(done),
        "completed_at": moment,
    }


def _success_rate(done: Execution) -> float:
    return round(done.succeeded / done.total, 6) if done.total else 1.0


def usual_meta(step: StepSpec, lane: Slot | None) -> JsonObject:
    """Return what every event has in `meta`: whether there are rules, and which worker has it."""
    meta: JsonObject = {"retry": {"has_config": bool(step.retry)}}
    if lane is not None:
        meta["queue"] = {"queue_id": lane.run_id, "worker_id": lane.worker_id}

    return meta


def retry_meta(step: StepSpec, found: Judgement, *, attempts: int, is_well: bool) -> JsonObject:
    """Return which rule decided about a call, and whether another one follows."""
    facts = found.facts
    kind = ON_SUCCESS if is_well else ON_ERROR
    usual = next((rule for rule in step.retry if rule.kind == kind), step.retry[0])

    return {
        "has_config": True,
        "attempt_number": attempts,
        "max_attempts": facts.get("max_attempts") or usual.max_attempts,
        "retry_type": str(facts.get("rule") or usual.kind),
        "will_retry": facts.get("again") is True,
    }


def error_meta(error: JsonObject, message: str, moment: str) -> JsonObject:
    """Return what `meta` says of a failure."""
    return {
        "message": message,
        "has_stack_trace": bool(error.get("has_stack_trace") or error.get("traceback")),
        "failed_at": error.get("failed_at") or moment,
    }


def said(error: JsonObject) -> JsonObject:
    """Return the part of an error that an event shows; traces stay with the worker that made the call."""
    told: JsonObject = {key: value for key, value in error.items() if key not in ("traceback", "message")}
    told["message"] = str(error.get("message") or "")[:MAX_MESSAGE]

    return told


def failure_of(iteration: JsonObject, call: JsonObject) -> JsonObject:
    """Return why an iteration failed, of the `data` of its end and of its last call, {} when that went well."""
    error = call.get("error")
    result: JsonObject = dict(error) if isinstance(error, dict) else {}

    return {**result, "message": iteration.get("reason") or result.get("message") or ""}


def not_json(report: CallReport, why: Exception) -> CallReport:
    """Return *report* as that of a failed call: what it gave back cannot be stored."""
    error: JsonObject = {
        "type": type(why).__name__,
        "category": "fatal",
        "message": f"what the call gave back is not JSON: {why}",
        "has_stack_trace": False,
    }

    return CallReport(
        index=report.index,
        attempt_number=report.attempt_number,
        ok=False,
        error=error,
        fingerprint="not_json",
        duration=report.duration,
        context=report.context,
        meta=report.meta,
    )


#: Why a sequence ends whose next call cannot be kept until it is made.
_NOT_STORABLE = (
    "the next call asks for something that looks like a secret, which is never stored: give it by headers_env"
)

_encode = json.JSONEncoder(allow_nan=False).encode


class ExecutionUpdate:
    """Changes the rows of one execution, and collects the events of that."""

    def __init__(
        self,
        plan: ExecutionSpec,
        head: ExecutionRow,
        *,
        redactor: Redactor,
        now: datetime,
        random: Callable[[], float],
        lane: Slot | None,
        parts_of: Callable[[int], Iterable[JsonValue]],
        known: Callable[[], Mapping[str, Value]],
        cut: Callable[[], int],
    ) -> None:
        """
        The callbacks read the database, and are called only when a rule needs what they read.

        *parts_of* returns what was kept of the earlier pages of an iteration, *known* what templates know, *cut* how
        many stored iterations reached their limit of calls.
        """
        self.plan = plan
        self._step = plan.new.step
        self.head = head
        self._redactor = redactor
        self._now = now
        self._moment = timestamps.to_text(now)
        self._random = random
        self._lane = lane
        self._parts_of = parts_of
        self._known = known
        self._cut = cut
        self.events: list[Event] = []
        self.changed: dict[int, Iteration] = {}
        self.pages: list[tuple[int, int, str]] = []  #: index, page and part of what is kept
        self._asked: dict[int, str] = {}  #: index -> what its next call gets, whole
        rule = call_policy.collecting(self._step)
        self._collects = REPLACE if rule is None else rule.collect
        self._base = self._usual_fields()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.head.execution.state is not ExecutionState.RUNNING

    # --- what happens ------------------------------------------------------------------------------------------

    def start(self, total: int, said: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Say that everything is stored and calls can begin; *said* are fields of the event from somebody outside."""
        data = {**said.get("data", {}), **self._redactor.redact(started(self._step, total))}  # type: ignore[dict-item]  # a table stays one
        self._base["total_iterations"] = total
        fields = {"status": "running", "context": self.plan.event_context, **said, "data": data}
        self._tell("iterator_started", **fields)

    def begin(self, rows: Sequence[Iteration]) -> tuple[Assignment, ...]:
        """Give *rows* to the lane, and return the calls to make."""
        return tuple(self._begun(row) for row in rows)

    def report(self, rows: Sequence[Iteration], reports: Sequence[CallReport]) -> None:
        """Take in the results of calls; rows without a report were not begun, and go back."""
        known = {report.index: report for report in reports}
        for row in rows:
            report = known.get(row.index)
            if report is None or report.attempt_number != row.attempts or report.is_suspended:
                self._suspend(row, report)
            else:
                self._called(row, report)

    def interrupt(self, rows: Sequence[Iteration]) -> None:
        """Count calls as failed whose worker is gone."""
        for row in rows:
            self._judged(row, None, self._judge(row, None), NULL)

    def give_up(self, rows: Sequence[Iteration], reason: str) -> None:
        """Fail iterations that take every worker with them."""
        for row in rows:
            facts: JsonObject = {"again": False, "sequence": call_policy.FAILED, "reason": reason}
            self._judged(row, None, Judgement(facts=facts, marks=row.marks), NULL)

    def ask_to_cancel(self, reason: str, said: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Say that nothing more is begun."""
        if not self.head.cancel_reason and not self.is_over:
            data = {**said.get("data", {}), "reason": self._redactor.redact(reason)}
            self._tell("iterator_cancel_requested", **{"status": "cancelling", **said, "data": data})

    def cancel(self, rows: Iterable[Iteration], reason: str) -> None:
        """End iterations that wait."""
        why = str(self._redactor.redact(reason))
        for row in rows:
            self._touch(row)
            self._end_sequence(row, call_policy.FAILED if row.attempts else "", why)
            self._over(row, IterationState.CANCELLED, why)

    # --- loops that are run outside ----------------------------------------------------------------------------

    def begin_outside(self, row: Iteration, said: Mapping[str, Any]) -> None:
        """Record that somebody outside of adw begins an iteration; *said* are fields of the event."""
        self._touch(row)
        row.state, row.attempts, row.same_call, row.started_at = RUNNING, 1, 1, self._moment
        event = self._write("iteration_started", row, **{"status": RUNNING, **said})
        row.last_event_id = event.event_id

    def end_outside(
        self, row: Iteration, state: IterationState, said: Mapping[str, Any], *, reason: str, result: str
    ) -> None:
        """Record how an iteration ended that somebody outside of adw ran; *result* is a text of JSON."""
        self._touch(row)
        row.attempts = max(1, row.attempts)
        row.result = result
        row.error = reason[:MAX_MESSAGE] if state is IterationState.FAILED else ""
        self._over(row, state, reason, said=said)

    # --- calls -------------------------------------------------------------------------------------------------

    def _begun(self, row: Iteration) -> Assignment:
        lane = self._lane
        self._touch(row)
        was_interrupted = row.why == "interrupted"
        element = json.loads(row.element) if row.element != NULL else None
        if not row.last_event_id:
            data: JsonObject = {"element": self._shown(element, row.element, row)}
            started = self._write("iteration_started", row, status=RUNNING, data=data)
            row.last_event_id = started.event_id
            row.started_at = self._moment
        row.state, row.next_at, row.why = RUNNING, "", ""
        row.attempts += 1
        row.same_call += 1
        row.run_id, row.token = (lane.run_id, lane.token) if lane is not None else (None, 0)
        event = self._write(
            "action_started",
            row,
            status=RUNNING,
            parent_event_id=row.last_event_id,
            data={"page": row.page} if self._step.retry else {},
        )
        row.last_event_id = event.event_id
        row.sequence_id = row.sequence_id or event.event_id

        return Assignment(
            execution_id=self.plan.new.execution_id,
            index=row.index,
            element=element,
            attempt_number=row.attempts,
            page=row.page,
            same_call=row.same_call,
            call={} if row.call == "{}" else json.loads(row.call),
            event_id=event.event_id,
            sequence_id=row.sequence_id,
            was_interrupted=was_interrupted,
        )

    def _suspend(self, row: Iteration, report: CallReport | None) -> None:
        """Put a call back that was ended on order; it does not count."""
        self._touch(row)
        data: JsonObject = {"was_begun": report is not None}
        event = self._write("action_suspended", row, status=RETRY_WAIT, parent_event_id=row.last_event_id, data=data)
        row.last_event_id = event.event_id
        row.attempts -= 1
        row.same_call -= 1
        row.state, row.next_at, row.why = RETRY_WAIT, "", "suspended"
        row.run_id, row.token, row.process = None, 0, ""

    def _called(self, row: Iteration, report: CallReport) -> None:
        text = NULL
        if report.ok and report.result is not None:
            try:
                text = _encode(report.result)
            except (TypeError, ValueError) as exc:
                report = not_json(report, exc)
        self._judged(row, report, self._judge(row, report), text)

    def _judge(self, row: Iteration, report: CallReport | None) -> Judgement:
        if report is not None and report.ok and not self._step.retry:
            return _WELL
        facts = CallFacts(
            attempts=row.attempts,
            page=row.page,
            same_call=row.same_call,
            interruptions=row.interruptions,
            fingerprint=row.fingerprint,
            same_failures=row.same_failures,
            marks=row.marks,
            call=json.loads(row.call),
        )

        result = call_policy.judge(
            self._step, facts, report, lambda: self._values(row), now=self._now, random=self._random()
        )
        call = result.facts.get("call")
        if call and result.facts.get("page") != row.page and not self._is_storable(_encode(call)):
            return replace(result, facts={"again": False, "sequence": call_policy.FAILED, "reason": _NOT_STORABLE})

        return result

    def _is_storable(self, text: str) -> bool:
        """Say whether a text of JSON has no secrets, and is stored as it is."""
        payload = text.encode("ascii")

        return self._redactor.scrub_bytes(payload) is payload

    def _values(self, row: Iteration) -> Mapping[str, Value]:
        return values_of(
            self.plan.new,
            self._known(),
            index=row.index,
            element=json.loads(row.element),
            attempt=row.attempts,
            page=row.page,
        )

    def _judged(self, row: Iteration, report: CallReport | None, found: Judgement, text: str) -> None:
        """Record a call, and do what follows from it."""
        self._touch(row)
        is_well = report is not None and report.ok
        row.fingerprint, row.same_failures, row.marks = found.fingerprint, found.same_failures, found.marks
        row.process = ""
        if report is None:
            row.interruptions += 1
        if is_well:
            row.result = text
            row.error = ""
            if found.keeps_part:
                self._keep(row, found)
            event = self._tell_success(row, report, found, text)  # type: ignore[arg-type]  # it is well, so it is there
        else:
            event = self._tell_failure(row, report, found)
        row.last_event_id = event.event_id
        self._obey(event)

    def _keep(self, row: Iteration, found: Judgement) -> None:
        if self._collects != REPLACE:
            self.pages.append((row.index, row.page, _encode(found.part)))
        else:
            row.result = _encode(found.part)

    def _tell_success(self, row: Iteration, report: CallReport, found: Judgement, text: str) -> Event:
        is_kept = found.facts.get("again") is not True or self._collects != REPLACE
        return self._write(
            "action_completed",
            row,
            status="completed",
            parent_event_id=row.last_event_id,
            duration=report.duration,
            result=self._shown(report.result, text, row if is_kept else None),
            data={"retry": self._told(row, found), "page": row.page} if found.facts else {},
            context=report.context or self.plan.small_context,
            meta=self._meta(row, report, found),
        )

    def _tell_failure(self, row: Iteration, report: CallReport | None, found: Judgement) -> Event:
        error = dict(call_policy.INTERRUPTED) if report is None else dict(report.error or {})
        row.error = str(error.get("message") or "")[:MAX_MESSAGE]

        return self._write(
            "action_failed",
            row,
            status="failed",
            parent_event_id=row.last_event_id,
            duration=report.duration if report is not None else None,
            data={"retry": self._told(row, found), "page": row.page, "error": self._redactor.redact(said(error))},
            context=(report.context if report is not None else None) or self.plan.small_context,
            meta=self._meta(row, report, found, error),
        )

    def _told(self, row: Iteration, found: Judgement) -> JsonObject:
        """Return what an event shows of a decision: secrets are removed, and the row has what is asked for."""
        told = dict(found.facts)
        if told.get("call"):
            self._asked[row.index] = _encode(told["call"])
            told["call"] = self._shown(told["call"], self._asked[row.index])
        if told.get("reason"):
            told["reason"] = self._redactor.redact(told["reason"])

        return told

    def _meta(
        self, row: Iteration, report: CallReport | None, found: Judgement, error: JsonObject | None = None
    ) -> JsonObject:
        meta: JsonObject = {**self._base["meta"], **(report.meta if report is not None else {})}
        if self._step.retry:
            meta["retry"] = retry_meta(self._step, found, attempts=row.attempts, is_well=error is None)
        if report is not None:
            meta["execution"] = {"duration_seconds": report.duration, "completed_at": self._moment}
        if error is not None:
            message = str(self._redactor.redact(str(error.get("message") or "")[:MAX_MESSAGE]))
            meta["error"] = error_meta(error, message, self._moment)

        return meta

    # --- what the orchestrator says ----------------------------------------------------------------------------

    def _obey(self, event: Event) -> None:
        """Count an event, and carry out what is decided on it."""
        head = self.head
        head.execution = fold(head.execution, event)
        for command in decide(head.execution, event):
            self._do(command)

    def _do(self, command: Command) -> None:
        if isinstance(command, CancelRest):
            self.head.cancel_reason = self.head.cancel_reason or command.reason or "cancelled"
        elif isinstance(command, EndExecution):
            self._end(command)
        elif isinstance(command, CallAgain):
            self._again(self.changed[command.index], command)
        else:
            row = self.changed[command.index]
            self._end_sequence(row, command.sequence, command.reason, is_cut=command.is_cut)
            self._over(row, command.state, command.reason, is_cut=command.is_cut)

    def _again(self, row: Iteration, command: CallAgain) -> None:
        if command.page != row.page:
            row.same_call = row.interruptions = row.same_failures = 0
            row.fingerprint = ""
        row.state, row.why, row.page = RETRY_WAIT, command.why, command.page
        row.call = self._asked.pop(row.index, "") or _encode(command.call)
        row.run_id, row.token = None, 0
        row.next_at = (
            timestamps.to_text(self._now + timedelta(seconds=command.after_seconds)) if command.after_seconds else ""
        )

    def _end_sequence(self, row: Iteration, sequence: str, reason: str, *, is_cut: bool = False) -> None:
        if not sequence or not self._step.retry:
            return
        data: JsonObject = {"total_attempts": row.attempts, "pages": row.page, "reason": reason}
        if is_cut:
            data["is_cut"] = True
            warning = self._write(
                "retry_limit_reached", row, status="warning", parent_event_id=row.last_event_id, data=dict(data)
            )
            row.last_event_id = warning.event_id
        event = self._write(
            f"retry_sequence_{sequence}",
            row,
            status=sequence,
            parent_event_id=row.last_event_id,
            result=self._place(row) if sequence == call_policy.COMPLETED else None,
            data=data,
        )
        row.last_event_id = event.event_id

    def _over(
        self,
        row: Iteration,
        state: IterationState,
        reason: str,
        *,
        is_cut: bool = False,
        said: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        if state is IterationState.COMPLETED:
            self._collect(row)
        row.state, row.ended_at = state.value, self._moment
        row.next_at, row.run_id, row.token = "", None, 0
        row.why = (CUT if is_cut else "") if state is IterationState.COMPLETED else reason
        fields = {
            "status": state.value,
            "duration": self._since(row.started_at),
            "result": self._shown(_UNREAD, row.result, row) if state is IterationState.COMPLETED else None,
            **said,
            "data": {
                **said.get("data", {}),
                **({"reason": reason} if reason else {}),
                **({"is_cut": True} if is_cut else {}),
            },
        }
        if row.last_event_id:
            fields.setdefault("parent_event_id", row.last_event_id)
        event = self._write(f"iteration_{state.value}", row, **fields)
        row.last_event_id = event.event_id
        self._obey(event)

    def _collect(self, row: Iteration) -> None:
        """Put the pages of an iteration together; each was looked at when it came, so they fit."""
        if self._collects == REPLACE:
            return
        kept = [json.loads(text) for index, _page, text in self.pages if index == row.index]
        row.result = _encode(collected(self._collects, [*self._parts_of(row.index), *kept]))

    def _end(self, command: EndExecution) -> None:
        head = self.head
        done = head.execution
        head.ended_at = self._moment
        cut = 0
        if any(rule.kind == ON_SUCCESS and rule.on_limit == ACCEPT for rule in self._step.retry):
            cut = self._cut() + sum(was_cut(row) for row in self.changed.values())
        event = self._write(
            f"iterator_{command.state.value}",
            None,
            status=command.state.value,
            parent_event_id=done.first_event_id or None,
            duration=self._since(head.created_at),
            context=self.plan.event_context,
            result={REFERENCE: done.execution_id} if command.state is ExecutionState.COMPLETED else None,
            data=ended(done, command.reason, cut),
            meta={**self._base["meta"], **end_meta(done, self._moment)},
        )
        head.execution = fold(head.execution, event)

    # --- events ------------------------------------------------------------------------------------------------

    def _tell(self, event_type: str, **fields: Any) -> None:
        self._obey(self._write(event_type, None, **fields))

    def _write(self, event_type: str, row: Iteration | None, **fields: Any) -> Event:
        head = self.head
        head.last_event += 1
        event_id = f"{self.plan.new.execution_id}.{head.last_event}"
        of_row: dict[str, Any] = {}
        if row is not None:
            of_row = {
                "iteration_index": row.index,
                "attempt_number": row.attempts or 1,
                "retry_sequence_id": row.sequence_id or None,
                "parent_event_id": head.execution.first_event_id or None,
                "node_type": "iteration",
            }
        event = Event(**{"event_type": event_type, "event_id": event_id, **self._base, **of_row, **fields})
        if event_type == "action_started" and row is not None and not row.sequence_id:
            event.retry_sequence_id = event.event_id
        self.events.append(event)

        return event

    def _usual_fields(self) -> dict[str, Any]:
        new = self.plan.new

        return {
            "adw_id": new.adw_id,
            "created_at": self._moment,
            "execution_id": new.execution_id,
            "parent_execution_id": new.parent_execution_id,
            "total_iterations": self.head.execution.total,
            "node_id": f"{new.phase}.{self._step.name}",
            "node_name": self._step.name,
            "node_type": "step",
            "catalog_id": new.catalog_id,
            "context": self.plan.small_context,
            "data": {},
            "meta": usual_meta(self._step, self._lane),
        }

    def _shown(self, value: JsonValue | object, text: str, row: Iteration | None = None) -> JsonValue:
        """Return what an event shows of a value; of a large one, that it is with *row*."""
        if len(text) > MAX_VALUE:
            return {**truncated(len(text)), **(self._place(row) if row is not None else {})}
        if value is _UNREAD:
            value = json.loads(text)

        return self._redactor.redact(value) if isinstance(value, str | list | dict) else value  # type: ignore[return-value]  # it is JSON, read or given

    def _since(self, moment: str | None) -> float | None:
        """Return the seconds since *moment*."""
        return None if moment is None else max(0.0, (self._now - timestamps.parse(moment)).total_seconds())

    def _place(self, row: Iteration) -> JsonObject:
        """Return where the result of an iteration is whole."""
        return {REFERENCE: self.plan.new.execution_id, "_index": row.index}

    def _touch(self, row: Iteration) -> None:
        self.changed[row.index] = row


#: A value that only its text is known of.
_UNREAD = object()
_WELL = Judgement(facts={})


# The orchestrator: what is to be done about an event of an execution.
#
# Pure, and decided on the event alone and the counts before it: folding the log of an execution from its beginning
# gives the same counts, and the same commands. Whether a call is repeated was decided on the whole response when the
# event was made; here only what follows from it.


#: The event that ends an iteration -> how it ended.
ENDS = {
    "iteration_completed": IterationState.COMPLETED,
    "iteration_failed": IterationState.FAILED,
    "iteration_cancelled": IterationState.CANCELLED,
}
#: The event that ends an execution -> how it ended.
EXECUTION_ENDS = {
    "iterator_completed": ExecutionState.COMPLETED,
    "iterator_failed": ExecutionState.FAILED,
    "iterator_cancelled": ExecutionState.CANCELLED,
}


def decide(execution: Execution, event: Event) -> tuple[Command, ...]:
    """Return what is to be done about *event*; *execution* has it counted already."""
    if execution.state is not ExecutionState.RUNNING:
        return ()  # its end was told, and nothing comes after that
    if event.event_type in {"action_completed", "action_failed"}:
        return (_after_call(event),)
    if event.event_type == "iterator_cancel_requested":
        return _ordered(*_all_over(execution, cancelled=_reason(event)), CancelRest(reason=_reason(event)))
    if event.event_type in ENDS:
        return _after_iteration(execution, event)
    if event.event_type == "iterator_started":
        return tuple(_all_over(execution))

    return ()


def fold(execution: Execution, event: Event) -> Execution:
    """Return the execution with *event* counted."""
    if event.event_type == "iterator_started":
        return replace(execution, total=event.total_iterations, first_event_id=event.event_id)
    if event.event_type == "iterator_cancel_requested":
        return replace(execution, reason=execution.reason or _reason(event))
    if event.event_type in EXECUTION_ENDS:
        state = EXECUTION_ENDS[event.event_type]
        return replace(execution, state=state, reason=_reason(event) or execution.reason)
    ended = ENDS.get(event.event_type)
    if ended is IterationState.COMPLETED:
        return replace(execution, succeeded=execution.succeeded + 1)
    if ended is IterationState.FAILED:
        return replace(execution, failed=execution.failed + 1)
    if ended is IterationState.CANCELLED:
        return replace(execution, cancelled=execution.cancelled + 1)

    return execution


def replay(execution: Execution, events: Iterable[Event]) -> tuple[Execution, tuple[Command, ...]]:
    """Return what *events*, in their order, make of an execution that has none, and every command they led to."""
    commands: list[Command] = []
    for event in events:
        execution = fold(execution, event)
        commands.extend(decide(execution, event))

    return execution, tuple(commands)


def is_broken(execution: Execution) -> bool:
    """Say whether so many iterations failed that the whole has failed."""
    if not execution.failed:
        return False
    loop = execution.step.loop

    return loop is None or execution.failed > _allowed_failures(loop, execution.total or 0)


def _allowed_failures(loop: LoopSpec, total: int) -> float:
    if loop.on_failure == CONTINUE:
        return total
    if loop.on_failure == FAIL_FAST:
        return 0

    return loop.threshold * total if loop.threshold < 1 else loop.threshold


# --- calls -----------------------------------------------------------------------------------------------------


def _after_call(event: Event) -> Command:
    """Return what the judgement in the event says about its iteration."""
    index = event.iteration_index or 0
    judged = _judged(event)
    if judged.get("again") is True:
        call = judged.get("call")
        return CallAgain(
            index=index,
            after_seconds=float(judged.get("after_seconds") or 0.0),  # type: ignore[arg-type]  # written by call_policy
            page=int(judged.get("page") or 1),  # type: ignore[arg-type]  # the same
            call=call if isinstance(call, dict) else {},
            why=str(judged.get("rule") or ""),
        )
    sequence = str(judged.get("sequence") or "")
    is_well = event.event_type == "action_completed" and sequence in {"", "completed"}

    return EndIteration(
        index=index,
        state=IterationState.COMPLETED if is_well else IterationState.FAILED,
        sequence=sequence,
        reason=str(judged.get("reason") or ""),
        is_cut=is_well and judged.get("is_cut") is True,
    )


def _judged(event: Event) -> JsonObject:
    result = event.data.get("retry")

    return result if isinstance(result, dict) else {}


# --- iterations ------------------------------------------------------------------------------------------------


def _after_iteration(execution: Execution, event: Event) -> tuple[Command, ...]:
    over = _all_over(execution)
    if over or not is_broken(execution):
        return tuple(over)
    if event.event_type == "iteration_failed":
        return (CancelRest(reason=f"iteration {event.iteration_index} failed: {_reason(event)}"),)

    return ()


def _all_over(execution: Execution, *, cancelled: str = "") -> list[Command]:
    """Return the end of the execution, once every iteration has one."""
    if execution.total is None or execution.ended < execution.total:
        return []
    if is_broken(execution):
        reason = f"{execution.failed} of {execution.total} iterations failed"
        return [EndExecution(state=ExecutionState.FAILED, reason=reason)]
    if execution.cancelled or cancelled:
        reason = (
            execution.reason
            or cancelled
            or f"{counted(execution.cancelled, 'iteration was', 'iterations were')} cancelled"
        )
        return [EndExecution(state=ExecutionState.CANCELLED, reason=reason)]

    return [EndExecution(state=ExecutionState.COMPLETED)]


def _ordered(*commands: Command) -> tuple[Command, ...]:
    """Return *commands*, the end of the execution last and alone: nothing is left to cancel after it."""
    end = [command for command in commands if isinstance(command, EndExecution)]

    return tuple(end or commands)


def _reason(event: Event) -> str:
    return str(event.data.get("reason") or "")
