"""
One update of an execution: how reports, interruptions and cancellations change its rows, and the resulting events.

The store opens a transaction, lets an update change rows, then writes rows and events. This module writes nothing; it
reads rows through the `IterationRepository` of the transaction, each at most once per update. The events alone explain
why a call was repeated or not; their names are those of seed 001 (`data`, and in `meta` the keys retry, execution,
queue and error).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from adws.adw_modules import timestamps
from adws.adw_modules.events import Event
from adws.adw_modules.expressions.values import Value
from adws.adw_modules.identifiers import JsonObject, JsonValue, counted
from adws.adw_modules.interfaces import Clock, OwnerRecord
from adws.adw_modules.steps import call_policy
from adws.adw_modules.steps.call_policy import INTERRUPTION, REPLACE, Judgement, collected
from adws.adw_modules.steps.model import (
    CUT,
    NULL,
    RETRY_WAIT,
    RUNNING,
    Assignment,
    CallReport,
    Execution,
    ExecutionSpec,
    ExecutionState,
    Iteration,
    IterationState,
    Taken,
)
from adws.adw_modules.workflow.model import (
    ACCEPT,
    ASYNC,
    CONTINUE,
    FAIL_FAST,
    ON_ERROR,
    ON_SUCCESS,
    THRESHOLD,
    StepSpec,
    to_json,
)

if TYPE_CHECKING:
    from adws.adw_modules.queue.model import Run
    from adws.adw_modules.redaction.redactor import Redactor
    from adws.adw_modules.steps.store import IterationRepository

#: Iterations cancelled per transaction.
CANCELLED_AT_ONCE = 500
#: Characters of JSON of a value in an event. For a larger value the event has only the size; the rows have the value.
MAX_VALUE = 10_000
#: Characters of a message in an event.
MAX_MESSAGE = 500
#: The key of a table that refers to the results of an execution.
REFERENCE = "_execution"
#: The event that ends an iteration -> the final state.
ENDS = {
    "iteration_completed": IterationState.COMPLETED,
    "iteration_failed": IterationState.FAILED,
    "iteration_cancelled": IterationState.CANCELLED,
}
#: The event that ends an execution -> the final state.
EXECUTION_ENDS = {
    "iterator_completed": ExecutionState.COMPLETED,
    "iterator_failed": ExecutionState.FAILED,
    "iterator_cancelled": ExecutionState.CANCELLED,
}
#: Why a sequence ends if its next call cannot be stored while it waits.
_NOT_STORABLE = (
    "the next call asks for something that looks like a secret, which is never stored: give it by headers_env"
)
_NOTHING_SAID: Mapping[str, Any] = MappingProxyType({})
_UNREAD = object()  #: marks a value of which only the JSON text is available
_WELL = Judgement(facts={})

_encode = json.JSONEncoder(allow_nan=False).encode


def is_sequential(step: StepSpec) -> bool:
    """Return whether the iterations of *step* run one after the other."""
    return step.loop is None or step.loop.mode != ASYNC


def lanes_of(step: StepSpec, total: int) -> int:
    """Return how many lanes *step* has for *total* iterations."""
    return 1 if step.loop is None or is_sequential(step) else max(1, min(step.loop.concurrency, total))


def is_broken(execution: Execution) -> bool:
    """Return whether enough iterations failed for the whole execution to fail."""
    loop, total = execution.step.loop, execution.total or 0
    if not execution.failed or loop is None or loop.on_failure == FAIL_FAST:
        return execution.failed > 0
    if loop.on_failure == CONTINUE:
        return False

    return execution.failed > (loop.threshold * total if loop.threshold < 1 else loop.threshold)


def verdict(execution: Execution) -> tuple[ExecutionState, str] | None:
    """Return the final state of an execution and the reason, or None while iterations remain."""
    ended = execution.succeeded + execution.failed + execution.cancelled
    if execution.total is None or ended < execution.total:
        return None
    if is_broken(execution):
        return ExecutionState.FAILED, f"{execution.failed} of {execution.total} iterations failed"
    if execution.cancelled:
        which = counted(execution.cancelled, "iteration was", "iterations were")
        return ExecutionState.CANCELLED, execution.reason or f"{which} cancelled"

    return ExecutionState.COMPLETED, ""


def truncated(size: int) -> JsonObject:
    """Return the placeholder for a value of *size* characters."""
    return {"_truncated": True, "_size": size}


def error_meta(error: JsonObject, message: str, moment: str) -> JsonObject:
    """Return the facts of a failure for the `meta` of its event."""
    return {
        "message": message,
        "has_stack_trace": bool(error.get("has_stack_trace") or error.get("traceback")),
        "failed_at": error.get("failed_at") or moment,
    }


class ExecutionUpdate:
    """Changes the rows of one execution and collects the events that describe the changes."""

    def __init__(
        self,
        spec: ExecutionSpec,
        execution: Execution,
        rows: IterationRepository,
        *,
        redactor: Redactor,
        clock: Clock,
        run: Run | None = None,
    ) -> None:
        """*run* is the lane that makes the update; None for a person or the phase itself."""
        new = spec.new
        self.spec = spec
        self.execution = execution
        self.rows = rows
        self.changed: dict[int, Iteration] = {}
        self.pages: list[tuple[int, int, str]] = []  #: index, page and part to store
        self.events: list[Event] = []
        self._step = new.step
        self._redactor = redactor
        self._clock = clock
        self._now = clock.now()
        self._moment = timestamps.to_text(self._now)
        self._run = run
        rule = call_policy.collecting(self._step)
        self._collects = REPLACE if rule is None else rule.collect
        meta: JsonObject = {"retry": {"has_config": bool(self._step.retry)}}
        if run is not None:
            owner = OwnerRecord.from_text(run.owner)
            meta["queue"] = {"queue_id": run.run_id, "worker_id": owner.describe() if owner else ""}
        self._usual: dict[str, Any] = {
            "adw_id": new.adw_id,
            "created_at": self._moment,
            "execution_id": new.execution_id,
            "parent_execution_id": new.parent_execution_id,
            "total_iterations": execution.total,
            "node_id": f"{new.phase}.{self._step.name}",
            "node_name": self._step.name,
            "node_type": "step",
            "catalog_id": new.catalog_id,
            "context": spec.small_context,
            "data": {},
            "meta": meta,
        }

    @property
    def is_over(self) -> bool:
        """Whether the execution has ended."""
        return self.execution.state is not ExecutionState.RUNNING

    # --- beginning ---------------------------------------------------------------------------------------------

    def start(self, total: int, said: Mapping[str, Any] = _NOTHING_SAID) -> None:
        """Record that all iterations are stored and calls can begin; *said* are fields reported from outside."""
        step, loop = self._step, self._step.loop
        settings: JsonObject = {"tool": step.tool, "collection_size": total}
        if loop is not None:
            settings |= {
                "iterator_name": loop.element,
                "mode": loop.mode,
                "concurrency": loop.concurrency,
                "chunk_size": loop.chunk_size,
                "on_failure": loop.on_failure,
            }
            if loop.on_failure == THRESHOLD:
                settings["threshold"] = loop.threshold
            settings |= {name: value for name in ("where", "order_by", "limit") if (value := getattr(loop, name))}
        written = to_json(step)
        if step.retry:
            settings["retry_config"] = written["retry"]
        if step.sink is not None:
            settings["sink"] = written["sink"]
        data = {**said.get("data", {}), **self._redactor.redact(settings)}  # type: ignore[dict-item]  # a table stays one
        self._usual["total_iterations"] = self.execution.total = total
        fields = {"status": "running", "context": self.spec.event_context, **said, "data": data}
        self.execution.first_event_id = self._add_event("iterator_started", None, fields).event_id
        self._end_if_over()

    def take(self, most: int, *, is_wanted: bool) -> Taken:
        """
        Return the next calls for the run, at most *most*, or until when it waits.

        A sequential loop begins an iteration only after all calls of the previous one. Otherwise due retries come
        first, and a run takes no more than its share of the iterations that have not begun.
        """
        execution, moment = self.execution, self._moment
        if execution.cancel_reason and not self.is_over:
            self.cancel_some()
        if self.is_over:
            return Taken(is_over=True)
        if not is_wanted or execution.total is None or most < 1:
            return Taken()
        if execution.cancel_reason:
            return Taken(wait_until=moment) if execution.next_index < execution.total else Taken()

        waiting = [row for row in self.changed.values() if row.state == RETRY_WAIT]
        if is_sequential(self._step):
            first = min([*waiting, *self.rows.first_waiting()], key=lambda row: row.index, default=None)
            if first is not None:
                chosen = [first] if first.next_at <= moment else []
            else:
                chosen = self._not_begun(1 if self._step.retry else most)
        else:
            due = [*(row for row in waiting if row.next_at <= moment), *self.rows.due(moment, most)]
            chosen = sorted(due, key=lambda row: (row.next_at, row.index))[:most]
            suspects = [row for row in chosen if row.why == INTERRUPTION]
            if suspects:
                chosen = suspects[:1]  # a call that crashes its worker must not interrupt others again
            elif len(chosen) < most:
                share = max(1, (execution.total - execution.next_index) // (2 * execution.lanes))
                chosen += self._not_begun(min(most - len(chosen), share))
        if chosen:
            return Taken(assignments=tuple(map(self._begin, chosen)))

        lost = [row for row in self.rows.orphans() if row.index not in self.changed]
        if lost:
            self.interrupt(lost)
            return Taken(wait_until=moment, is_over=self.is_over)
        moments = [row.next_at for row in waiting]
        stored = self.rows.next_at()
        if stored is not None:
            moments.append(stored)

        return Taken(wait_until=max(min(moments), moment) if moments else "")

    def _not_begun(self, most: int) -> list[Iteration]:
        execution = self.execution
        if execution.next_index >= (execution.total or 0):
            return []
        rows = self.rows.not_begun(execution.next_index, most)
        execution.next_index = rows[-1].index + 1 if len(rows) == most else execution.total or 0

        return rows

    def _begin(self, row: Iteration) -> Assignment:
        """Assign an iteration to the run, and return the call to make."""
        self.changed[row.index] = row
        element = json.loads(row.element) if row.element != NULL else None
        if not row.last_event_id:
            fields = {"status": RUNNING, "data": {"element": self._shown(row.element, row, element)}}
            row.last_event_id = self._add_event("iteration_started", row, fields).event_id
            row.started_at = self._moment
        row.state, row.next_at, row.why = RUNNING, "", ""
        row.attempts += 1
        row.same_call += 1
        row.run_id, row.token = (self._run.run_id, self._run.token) if self._run is not None else (None, 0)
        data = {"page": row.page} if self._step.retry else {}
        fields = {"status": RUNNING, "parent_event_id": row.last_event_id, "data": data}
        event = self._add_event("action_started", row, fields)
        row.last_event_id = event.event_id
        row.sequence_id = event.retry_sequence_id = row.sequence_id or event.event_id

        return Assignment(
            execution_id=self.spec.new.execution_id,
            index=row.index,
            element=element,
            attempt_number=row.attempts,
            page=row.page,
            call={} if row.call == "{}" else json.loads(row.call),
        )

    # --- calls -------------------------------------------------------------------------------------------------

    def report(self, rows: Sequence[Iteration], reports: Sequence[CallReport]) -> None:
        """Record the results of calls; rows without a report did not begin, and wait again."""
        known = {report.index: report for report in reports}
        for row in rows:
            report = known.get(row.index)
            if report is None or report.attempt_number != row.attempts or report.is_suspended:
                self._suspend(row, was_begun=report is not None)
                continue
            text = NULL
            if report.ok and report.result is not None:
                try:
                    text = _encode(report.result)
                except (TypeError, ValueError) as exc:
                    error: JsonObject = {
                        "type": type(exc).__name__,
                        "category": "fatal",
                        "message": f"what the call gave back is not JSON: {exc}",
                        "has_stack_trace": False,
                    }
                    report = replace(report, ok=False, result=None, error=error, fingerprint="not_json")
            judgement = self._judge(row, report) if self._step.retry or not report.ok else _WELL
            self._record(row, report, judgement, text)

    def interrupt(self, rows: Sequence[Iteration]) -> None:
        """Count calls of vanished workers as failed."""
        for row in rows:
            self._record(row, None, self._judge(row, None))

    def give_up(self, rows: Sequence[Iteration], reason: str) -> None:
        """Fail iterations whose calls crash every worker."""
        facts: JsonObject = {"again": False, "sequence": call_policy.FAILED, "reason": reason}
        for row in rows:
            self._record(row, None, Judgement(facts=facts, marks=row.marks))

    def _suspend(self, row: Iteration, *, was_begun: bool) -> None:
        """Let a call that was ended on order wait again; it does not count as an attempt."""
        self.changed[row.index] = row
        fields = {"status": RETRY_WAIT, "parent_event_id": row.last_event_id, "data": {"was_begun": was_begun}}
        row.last_event_id = self._add_event("action_suspended", row, fields).event_id
        row.attempts -= 1
        row.same_call -= 1
        row.state, row.next_at, row.why = RETRY_WAIT, "", "suspended"
        row.run_id, row.token, row.process = None, 0, ""

    def _judge(self, row: Iteration, report: CallReport | None) -> Judgement:
        def values() -> Mapping[str, Value]:
            known, element = self.rows.known(self.spec.new), json.loads(row.element)
            return call_policy.values_of(
                self.spec.new, known, index=row.index, element=element, attempt=row.attempts, page=row.page
            )

        result = call_policy.judge(self._step, row, report, values, now=self._now, random=self._clock.random())
        call = result.facts.get("call")
        if call and result.facts.get("page") != row.page:
            payload = _encode(call).encode("ascii")
            if self._redactor.scrub_bytes(payload) is not payload:
                return replace(result, facts={"again": False, "sequence": call_policy.FAILED, "reason": _NOT_STORABLE})

        return result

    def _record(self, row: Iteration, report: CallReport | None, judgement: Judgement, text: str = NULL) -> None:
        """
        Record a call and what follows: it is repeated, the next page is requested, or the iteration ends.

        Without a *report* the worker that made the call vanished; *text* is the result as JSON.
        """
        self.changed[row.index] = row
        facts, redact = judgement.facts, self._redactor.redact
        is_again = facts.get("again") is True
        told = dict(facts)  # without secrets: only the row has the full next call
        if facts.get("call"):
            told["call"] = self._shown(_encode(facts["call"]), None, facts["call"])
        reason = str(redact(facts["reason"])) if facts.get("reason") else ""
        if reason:
            told["reason"] = reason
        meta: JsonObject = {**self._usual["meta"], **(report.meta if report is not None else {})}
        if self._step.retry:
            kind = ON_SUCCESS if report and report.ok else ON_ERROR
            usual = next((rule for rule in self._step.retry if rule.kind == kind), self._step.retry[0])
            meta["retry"] = {
                "has_config": True,
                "attempt_number": row.attempts,
                "max_attempts": facts.get("max_attempts") or usual.max_attempts,
                "retry_type": str(facts.get("rule") or usual.kind),
                "will_retry": is_again,
            }
        if report is not None:
            meta["execution"] = {"duration_seconds": report.duration, "completed_at": self._moment}
        fields: dict[str, Any] = {
            "parent_event_id": row.last_event_id,
            "duration": report.duration if report is not None else None,
            "data": {"retry": told, "page": row.page} if facts else {},
            "meta": meta,
        }
        row.fingerprint, row.same_failures, row.marks = judgement.fingerprint, judgement.same_failures, judgement.marks
        row.process = ""
        if report is None:
            row.interruptions += 1
        is_ok = report is not None and report.ok
        if report is not None and report.ok:
            row.result, row.error = text, ""
            if judgement.keeps_part and self._collects != REPLACE:
                self.pages.append((row.index, row.page, _encode(judgement.part)))
            elif judgement.keeps_part:
                row.result = _encode(judgement.part)
            is_kept = not is_again or self._collects != REPLACE
            fields |= {"status": "completed", "result": self._shown(text, row if is_kept else None, report.result)}
        else:
            error = dict(call_policy.INTERRUPTED if report is None else report.error or {})
            row.error = str(error.get("message") or "")[:MAX_MESSAGE]
            meta["error"] = error_meta(error, str(redact(row.error)), self._moment)
            shown = {**error, "message": row.error}
            shown.pop("traceback", None)  # tracebacks stay with the worker that made the call
            fields |= {"status": "failed", "data": {**fields["data"], "error": redact(shown)}}
        event = self._add_event("action_completed" if is_ok else "action_failed", row, fields)
        row.last_event_id = event.event_id
        if is_again:
            self._call_again(row, facts)
            return
        sequence = str(facts.get("sequence") or "")
        is_ok = is_ok and sequence in ("", call_policy.COMPLETED)
        is_cut = is_ok and facts.get("is_cut") is True
        self._end_sequence(row, sequence, reason, is_cut=is_cut)
        self._end_iteration(row, IterationState.COMPLETED if is_ok else IterationState.FAILED, reason, is_cut=is_cut)

    def _call_again(self, row: Iteration, facts: JsonObject) -> None:
        page, seconds = int(facts["page"]), float(facts["after_seconds"])  # type: ignore[arg-type]  # made by call_policy
        if page != row.page:
            row.same_call = row.interruptions = row.same_failures = 0
            row.fingerprint = ""
        row.state, row.why, row.page, row.call = RETRY_WAIT, str(facts["rule"]), page, _encode(facts["call"])
        row.run_id, row.token = None, 0
        row.next_at = timestamps.to_text(self._now + timedelta(seconds=seconds)) if seconds else ""

    # --- ends --------------------------------------------------------------------------------------------------

    def ask_to_cancel(self, reason: str, said: Mapping[str, Any] = _NOTHING_SAID) -> None:
        """Record that no further iteration is begun."""
        execution = self.execution
        if execution.cancel_reason or self.is_over:
            return
        why = str(self._redactor.redact(reason))
        fields = {"status": "cancelling", **said, "data": {**said.get("data", {}), "reason": why}}
        self._add_event("iterator_cancel_requested", None, fields)
        execution.reason = execution.reason or why
        execution.cancel_reason = why or "cancelled"

    def cancel(self, rows: Iterable[Iteration], reason: str) -> None:
        """Cancel waiting iterations."""
        why = str(self._redactor.redact(reason))
        for row in rows:
            self.changed[row.index] = row
            self._end_sequence(row, call_policy.FAILED if row.attempts else "", why)
            self._end_iteration(row, IterationState.CANCELLED, why)

    def cancel_some(self) -> bool:
        """Cancel some of the waiting iterations; return whether there may be more."""
        execution = self.execution
        again = [row for row in self.changed.values() if row.state == RETRY_WAIT]
        waiting = self.rows.waiting(CANCELLED_AT_ONCE)
        self.cancel([*again, *waiting], execution.cancel_reason)
        self.cancel(self._not_begun(CANCELLED_AT_ONCE), execution.cancel_reason)
        is_begun = execution.next_index >= (execution.total or 0)

        return not self.is_over and (len(waiting) == CANCELLED_AT_ONCE or not is_begun)

    def begin_outside(self, row: Iteration, said: Mapping[str, Any]) -> None:
        """Record that an iteration begins outside of adw; *said* are fields of the event."""
        self.changed[row.index] = row
        row.state, row.attempts, row.same_call, row.started_at = RUNNING, 1, 1, self._moment
        row.last_event_id = self._add_event("iteration_started", row, {"status": RUNNING, **said}).event_id

    def end_outside(
        self, row: Iteration, state: IterationState, said: Mapping[str, Any], *, reason: str, result: str
    ) -> None:
        """Record how an iteration ended that ran outside of adw; *result* is JSON text."""
        self.changed[row.index] = row
        row.attempts = max(1, row.attempts)
        row.result = result
        row.error = reason[:MAX_MESSAGE] if state is IterationState.FAILED else ""
        self._end_iteration(row, state, reason, said=said)

    def _end_sequence(self, row: Iteration, sequence: str, reason: str, *, is_cut: bool = False) -> None:
        if not sequence or not self._step.retry:
            return
        data: JsonObject = {"total_attempts": row.attempts, "pages": row.page, "reason": reason}
        if is_cut:
            data["is_cut"] = True
            fields = {"status": "warning", "parent_event_id": row.last_event_id, "data": dict(data)}
            row.last_event_id = self._add_event("retry_limit_reached", row, fields).event_id
        result = self._place(row) if sequence == call_policy.COMPLETED else None
        ended = {"status": sequence, "parent_event_id": row.last_event_id, "result": result, "data": data}
        row.last_event_id = self._add_event(f"retry_sequence_{sequence}", row, ended).event_id

    def _end_iteration(
        self,
        row: Iteration,
        state: IterationState,
        reason: str,
        *,
        is_cut: bool = False,
        said: Mapping[str, Any] = _NOTHING_SAID,
    ) -> None:
        execution, is_completed = self.execution, state is IterationState.COMPLETED
        if is_completed and self._collects != REPLACE:  # each page was checked on arrival, so the parts fit together
            parts = [json.loads(text) for index, _page, text in self.pages if index == row.index]
            row.result = _encode(collected(self._collects, [*self.rows.parts(row.index), *parts]))
        row.state, row.ended_at = state.value, self._moment
        row.next_at, row.run_id, row.token = "", None, 0
        row.why = (CUT if is_cut else "") if is_completed else reason
        fields = {
            "status": state.value,
            "duration": self._seconds_since(row.started_at),
            "result": self._shown(row.result, row) if is_completed else None,
            **said,
            "data": {
                **said.get("data", {}),
                **({"reason": reason} if reason else {}),
                **({"is_cut": True} if is_cut else {}),
            },
        }
        if row.last_event_id:
            fields.setdefault("parent_event_id", row.last_event_id)
        row.last_event_id = self._add_event(f"iteration_{state.value}", row, fields).event_id
        if is_completed:
            execution.succeeded += 1
        elif state is IterationState.FAILED:
            execution.failed += 1
        else:
            execution.cancelled += 1
        is_over = self._end_if_over()
        if not is_over and state is IterationState.FAILED and is_broken(execution):
            execution.cancel_reason = execution.cancel_reason or f"iteration {row.index} failed: {reason}"

    def _end_if_over(self) -> bool:
        """End the execution once every iteration has ended; return whether it has."""
        execution, end = self.execution, verdict(self.execution)
        if end is None:
            return False
        state, reason = end
        cut = 0
        if any(rule.kind == ON_SUCCESS and rule.on_limit == ACCEPT for rule in self._step.retry):
            completed = IterationState.COMPLETED.value
            cut = self.rows.cut() + sum(row.state == completed and row.why == CUT for row in self.changed.values())
        if cut and not reason:
            which = f"{cut} of {execution.total} iterations were" if self._step.loop is not None else "it was"
            reason = f"{which} cut at max_attempts: there are more pages"
        total = execution.total or 0
        success_rate = round(execution.succeeded / total, 6) if total else 1.0
        data: JsonObject = {
            "total_iterations": total,
            "successful": execution.succeeded,
            "failed": execution.failed,
            "cancelled": execution.cancelled,
            "success_rate": success_rate,
            **({"cut": cut} if cut else {}),
            **({"reason": reason} if reason else {}),
        }
        meta: JsonObject = {
            **self._usual["meta"],
            "total_iterations": total,
            "completed_iterations": execution.succeeded,
            "success_rate": success_rate,
            "completed_at": self._moment,
        }
        fields = {
            "status": state.value,
            "parent_event_id": execution.first_event_id or None,
            "duration": self._seconds_since(execution.created_at),
            "context": self.spec.event_context,
            "result": {REFERENCE: execution.execution_id} if state is ExecutionState.COMPLETED else None,
            "data": data,
            "meta": meta,
        }
        self._add_event(f"iterator_{state.value}", None, fields)
        execution.state, execution.ended_at = state, self._moment
        execution.reason = reason or execution.reason

        return True

    # --- events ------------------------------------------------------------------------------------------------

    def _add_event(self, event_type: str, row: Iteration | None, fields: Mapping[str, Any]) -> Event:
        execution = self.execution
        execution.last_event += 1
        event_id = f"{execution.execution_id}.{execution.last_event}"
        of_row: dict[str, Any] = {}
        if row is not None:
            of_row = {
                "iteration_index": row.index,
                "attempt_number": row.attempts or 1,
                "retry_sequence_id": row.sequence_id or None,
                "parent_event_id": execution.first_event_id or None,
                "node_type": "iteration",
            }
        event = Event(**{"event_type": event_type, "event_id": event_id, **self._usual, **of_row, **fields})
        self.events.append(event)

        return event

    def _shown(self, text: str, row: Iteration | None, value: JsonValue | object = _UNREAD) -> JsonValue:
        """Return a value as shown in an event; a large one is replaced by its size and a reference to *row*."""
        if len(text) > MAX_VALUE:
            return {**truncated(len(text)), **(self._place(row) if row is not None else {})}
        if value is _UNREAD:
            value = json.loads(text)

        return self._redactor.redact(value) if isinstance(value, str | list | dict) else value  # type: ignore[return-value]  # it is JSON, read or given

    def _place(self, row: Iteration) -> JsonObject:
        """Return the reference to the full result of an iteration."""
        return {REFERENCE: self.spec.new.execution_id, "_index": row.index}

    def _seconds_since(self, moment: str | None) -> float | None:
        return None if moment is None else max(0.0, (self._now - timestamps.parse(moment)).total_seconds())
