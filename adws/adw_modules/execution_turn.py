"""
One turn at an execution: what reports, interruptions and cancellations make of its rows, and the events that tell it.

Pure: whoever stores executions reads rows, lets a turn change them, and writes rows and events in one transaction. The
orchestrator (`fanout.planner`) decides on each event; here its commands are carried out on the rows. Folding the events
from the beginning gives what the rows say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from adws.adw_modules import call_rules, execution_telling, timestamps
from adws.adw_modules.call_rules import CallFacts, Judgement
from adws.adw_modules.events import Event
from adws.adw_modules.execution_state import (
    NULL,
    RETRY_WAIT,
    RUNNING,
    Head,
    Iteration,
    Lane,
    Plan,
    Rules,
    values_of,
)
from adws.adw_modules.execution_telling import MAX_MESSAGE, MAX_VALUE, REFERENCE, said, truncated
from adws.adw_modules.execution_words import ExecutionState, IterationState
from adws.adw_modules.executions import Assignment, CallAgain, CallReport, CancelRest, Command, EndExecution
from adws.adw_modules.expressions import Value
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.page_results import REPLACE, collected

#: Why a sequence ends whose next call cannot be kept until it is made.
_NOT_STORABLE = (
    "the next call asks for something that looks like a secret, which is never stored: give it by headers_env"
)

_encode = json.JSONEncoder(allow_nan=False).encode
_USUAL: Mapping[str, Any] = Event(event_type="").__dict__


class ExecutionTurn:
    """Changes the rows of one execution, and collects the events of that."""

    def __init__(
        self,
        plan: Plan,
        head: Head,
        rules: Rules,
        *,
        now: datetime,
        random: Callable[[], float],
        lane: Lane | None = None,
        parts_of: Callable[[int], Iterable[JsonValue]] = lambda _index: (),
    ) -> None:
        """*parts_of* reads what was kept of the earlier pages of an iteration."""
        self.plan = plan
        self._step = plan.new.step
        self.head = head
        self._rules = rules
        self._now = now
        self._moment = timestamps.to_text(now)
        self._random = random
        self._lane = lane
        self._parts_of = parts_of
        self.events: list[Event] = []
        self.changed: dict[int, Iteration] = {}
        self.pages: list[tuple[int, int, str]] = []  #: index, page and part of what is kept
        self._asked: dict[int, str] = {}  #: index -> what its next call gets, whole
        rule = call_rules.collecting(self._step)
        self._collects = REPLACE if rule is None else rule.collect
        self._base = self._usual_fields()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.head.execution.state is not ExecutionState.RUNNING

    # --- what happens ------------------------------------------------------------------------------------------

    def start(self, total: int) -> None:
        """Say that everything is stored and calls can begin."""
        data = self._rules.scrub(execution_telling.started(self._step, total))
        self._base["total_iterations"] = total
        self._tell("iterator_started", status="running", data=data, context=self.plan.event_context)

    def begin(self, rows: Sequence[Iteration]) -> tuple[Assignment, ...]:
        """Give *rows* to the lane, and return the calls to make."""
        return tuple(self._begun(row) for row in rows)

    def report(self, rows: Sequence[Iteration], reports: Sequence[CallReport]) -> None:
        """Take in what came of calls; rows without a report were not begun, and go back."""
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
            facts: JsonObject = {"again": False, "sequence": call_rules.FAILED, "reason": reason}
            self._judged(row, None, Judgement(facts=facts, marks=row.marks), NULL)

    def ask_to_cancel(self, reason: str) -> None:
        """Say that nothing more is begun."""
        if not self.head.cancel_reason and not self.is_over:
            self._tell("iterator_cancel_requested", status="cancelling", data={"reason": self._rules.scrub(reason)})

    def cancel(self, rows: Iterable[Iteration], reason: str) -> None:
        """End iterations that wait."""
        why = str(self._rules.scrub(reason))
        for row in rows:
            self._touch(row)
            self._end_sequence(row, call_rules.FAILED if row.attempts else "", why)
            self._over(row, IterationState.CANCELLED, why)

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
                report = execution_telling.not_json(report, exc)
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

        found = call_rules.judge(
            self._step, facts, report, lambda: self._values(row), now=self._now, random=self._random()
        )
        call = found.facts.get("call")
        if call and found.facts.get("page") != row.page and not self._rules.is_storable(_encode(call)):
            return replace(found, facts={"again": False, "sequence": call_rules.FAILED, "reason": _NOT_STORABLE})

        return found

    def _values(self, row: Iteration) -> Mapping[str, Value]:
        return values_of(
            self.plan.new,
            self._rules.resolve(self.plan.new),
            index=row.index,
            element=json.loads(row.element),
            attempt=row.attempts,
            page=row.page,
        )

    def _judged(self, row: Iteration, report: CallReport | None, found: Judgement, text: str) -> None:
        """Tell of a call, and do what follows from it."""
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
        error = dict(call_rules.INTERRUPTED) if report is None else dict(report.error or {})
        row.error = str(error.get("message") or "")[:MAX_MESSAGE]

        return self._write(
            "action_failed",
            row,
            status="failed",
            parent_event_id=row.last_event_id,
            duration=report.duration if report is not None else None,
            data={"retry": self._told(row, found), "page": row.page, "error": self._rules.scrub(said(error))},
            context=(report.context if report is not None else None) or self.plan.small_context,
            meta=self._meta(row, report, found, error),
        )

    def _told(self, row: Iteration, found: Judgement) -> JsonObject:
        """Return what an event tells of a judgement: secrets are taken out, and the row has what is asked for."""
        told = dict(found.facts)
        if told.get("call"):
            self._asked[row.index] = _encode(told["call"])
            told["call"] = self._shown(told["call"], self._asked[row.index])
        if told.get("reason"):
            told["reason"] = self._rules.scrub(told["reason"])

        return told

    def _meta(
        self, row: Iteration, report: CallReport | None, found: Judgement, error: JsonObject | None = None
    ) -> JsonObject:
        meta: JsonObject = {**self._base["meta"], **(report.meta if report is not None else {})}
        if self._step.retry:
            meta["retry"] = execution_telling.retry_meta(
                self._step, found, attempts=row.attempts, is_well=error is None
            )
        if report is not None:
            meta["execution"] = {"duration_seconds": report.duration, "completed_at": self._moment}
        if error is not None:
            message = str(self._rules.scrub(str(error.get("message") or "")[:MAX_MESSAGE]))
            meta["error"] = execution_telling.error_meta(error, message, self._moment)

        return meta

    # --- what the orchestrator says ----------------------------------------------------------------------------

    def _obey(self, event: Event) -> None:
        """Count an event, and carry out what is decided on it."""
        head = self.head
        head.execution = self._rules.fold(head.execution, event)
        for command in self._rules.decide(head.execution, event):
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
            self._end_sequence(row, command.sequence, command.reason)
            self._over(row, command.state, command.reason)

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

    def _end_sequence(self, row: Iteration, sequence: str, reason: str) -> None:
        if not sequence or not self._step.retry:
            return
        event = self._write(
            f"retry_sequence_{sequence}",
            row,
            status=sequence,
            parent_event_id=row.last_event_id,
            result=self._place(row) if sequence == call_rules.COMPLETED else None,
            data={"total_attempts": row.attempts, "pages": row.page, "reason": reason},
        )
        row.last_event_id = event.event_id

    def _over(self, row: Iteration, state: IterationState, reason: str) -> None:
        if state is IterationState.COMPLETED:
            self._collect(row)
        row.state, row.ended_at = state.value, self._moment
        row.next_at, row.run_id, row.token = "", None, 0
        row.why = "" if state is IterationState.COMPLETED else reason
        event = self._write(
            f"iteration_{state.value}",
            row,
            status=state.value,
            parent_event_id=row.last_event_id,
            duration=self._since(row.started_at),
            result=self._shown(_UNREAD, row.result, row) if state is IterationState.COMPLETED else None,
            data={"reason": reason} if reason else {},
        )
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
        event = self._write(
            f"iterator_{command.state.value}",
            None,
            status=command.state.value,
            parent_event_id=done.first_event_id or None,
            duration=self._since(head.created_at),
            context=self.plan.event_context,
            result={REFERENCE: done.execution_id} if command.state is ExecutionState.COMPLETED else None,
            data=execution_telling.ended(done, command.reason),
            meta={**self._base["meta"], **execution_telling.end_meta(done, self._moment)},
        )
        head.execution = self._rules.fold(head.execution, event)

    # --- events ------------------------------------------------------------------------------------------------

    def _tell(self, event_type: str, **fields: Any) -> None:
        self._obey(self._write(event_type, None, **fields))

    def _write(self, event_type: str, row: Iteration | None, **fields: Any) -> Event:
        head = self.head
        head.last_event += 1
        event = object.__new__(Event)  # every call makes four of these: see `events.new_event`
        known = event.__dict__
        known.update(self._base)
        known["event_type"] = event_type
        known["event_id"] = f"{self.plan.new.execution_id}.{head.last_event}"
        if row is not None:
            known["iteration_index"] = row.index
            known["attempt_number"] = row.attempts or 1
            known["retry_sequence_id"] = row.sequence_id or None
            known["parent_event_id"] = head.execution.first_event_id or None
            known["node_type"] = "iteration"
        known.update(fields)
        if event_type == "action_started" and row is not None and not row.sequence_id:
            known["retry_sequence_id"] = event.event_id
        self.events.append(event)

        return event

    def _usual_fields(self) -> dict[str, Any]:
        new = self.plan.new

        return {
            **_USUAL,
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
            "meta": execution_telling.usual_meta(self._step, self._lane),
        }

    def _shown(self, value: JsonValue | object, text: str, row: Iteration | None = None) -> JsonValue:
        """Return what an event shows of a value; of a large one, that it is with *row*."""
        if len(text) > MAX_VALUE:
            return {**truncated(len(text)), **(self._place(row) if row is not None else {})}
        if value is _UNREAD:
            value = json.loads(text)

        return self._rules.scrub(value) if isinstance(value, str | list | dict) else value  # type: ignore[return-value]  # it is JSON, read or given

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
