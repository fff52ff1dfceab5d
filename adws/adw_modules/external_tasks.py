"""
External tasks: phases done outside of adw, for example by a build server.

The bearer of a task's token may claim the task. Each report names the number of the claim, and a newer claim makes
older numbers void. The token is derived from the task's id and the key of the home, so no secret is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Row, Session
from adws.adw_modules.engine.transitions import WAITING
from adws.adw_modules.errors import (
    ClaimHeld,
    ClaimLost,
    EventRefused,
    FailedRun,
    Overdue,
    RunFailed,
    StateNotFound,
    TaskNotFound,
    UsageError,
)
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.phase import EXTERNAL, PhaseContext, RunReport, WaitingForChildren
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState
from adws.adw_modules.steps.execution_update import ENDS as ITERATION_ENDS
from adws.adw_modules.steps.execution_update import EXECUTION_ENDS, MAX_MESSAGE, MAX_VALUE, truncated
from adws.adw_modules.steps.model import IterationState, NewExecution
from adws.adw_modules.steps.store import Executions
from adws.adw_modules.workflow import checks
from adws.adw_modules.workflow.model import (
    ASYNC,
    CONTINUE,
    DEFAULT_CONCURRENCY,
    LoopSpec,
    PhaseSpec,
    StepSpec,
)

if TYPE_CHECKING:
    from adws.adw_modules.document import PhaseRecord, WorkflowDocument
    from adws.app import Home


#: Seconds until the deadline of a phase that sets none.
DEFAULT_DEADLINE_SECONDS = 24 * 3600.0
#: How long a claim lasts without a heartbeat, unless the claimant chooses another time.
DEFAULT_CLAIM_SECONDS = 60.0
#: The states of a task: waiting, reported on, or past its deadline without a report.
OPEN, REPORTED, EXPIRED = "open", "reported", "expired"
#: Events that end a task -> whether it succeeded.
ENDS: Mapping[str, bool] = {"action_completed": True, "action_failed": False}
#: Events of a loop that is run outside adw: of the whole loop, and of one iteration.
LOOP_EVENTS = ("iterator_started", *EXECUTION_ENDS)
ITERATION_EVENTS = ("iteration_started", *ITERATION_ENDS)
#: The events that may be reported about a task.
EVENT_TYPES = (
    "action_started",
    "step_started",
    "step_completed",
    "step_failed",
    "step_skipped",
    *ENDS,
    *LOOP_EVENTS,
    *ITERATION_EVENTS,
)
#: The most elements of a loop that is run outside adw.
MAX_ITERATIONS = 10_000
#: The path of tasks in the API.
PATH = "/api/v1/external"

_PREFIX = "adwx_"
_PURPOSE = b"adw queue external task\0"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExternalReport:
    """The result of a task."""

    is_ok: bool
    report_id: str  #: id of the event; repeating the report changes nothing
    summary: str = ""
    result: JsonObject = field(default_factory=dict)
    error: JsonObject = field(default_factory=dict)  #: message, and possibly category, exit_code, status


@dataclass(frozen=True, kw_only=True, slots=True)
class ExternalTask:
    """A task as stored in its row."""

    task_id: str  #: `<adw_id>.<phase>.<attempt>`
    adw_id: str
    phase: str
    round: int
    attempt_number: int  #: the attempt that waits for it
    catalog_id: str
    deadline: str
    created_at: str = ""
    state: str = OPEN
    claims: int = 0  #: number of the last claim
    worker: str = ""
    claim_seconds: float = 0.0
    claim_until: str = ""
    ended_at: str | None = None
    report: ExternalReport | None = None

    def is_held(self, now: datetime) -> bool:
        """Return whether a worker's claim on it has not expired."""
        return bool(self.claim_until) and self.claim_until > timestamps.to_text(now)

    def is_late(self, now: datetime) -> bool:
        """Return whether its deadline has passed."""
        return timestamps.to_text(now) >= self.deadline

    def to_json(self) -> JsonObject:
        """Return the task for programs, without its token."""
        names = (
            "task_id",
            "adw_id",
            "phase",
            "attempt_number",
            "state",
            "deadline",
            "created_at",
            "ended_at",
            "worker",
        )
        report = self.report

        return {
            **{name: getattr(self, name) for name in names},
            "path": f"{PATH}/{self.task_id}",
            "claim": self.claims,
            "claim_until": self.claim_until or None,
            "is_ok": None if report is None else report.is_ok,
            "summary": "" if report is None else report.summary,
            "error": {} if report is None else report.error,
        }


def task_id_of(adw_id: str, phase: str, attempt_number: int) -> str:
    """Return the id of the task of an attempt."""
    return f"{adw_id}.{phase}.{attempt_number}"


def token_of(task_id: str, key: bytes) -> str:
    """Return the token of a task, which proves that its bearer was given it."""
    return f"{_PREFIX}{task_id}_{_digest(task_id, key)}"


def task_of_token(token: str, key: Callable[[], bytes]) -> str | None:
    """Return the id of the task that *token* belongs to, or None if it is not a token of this home."""
    if not token.startswith(_PREFIX):
        return None
    task_id, _, shown = token[len(_PREFIX) :].rpartition("_")
    fits = hmac.compare_digest(shown.encode("utf-8", "replace"), _digest(task_id, key()).encode())

    return task_id if fits else None


def _digest(task_id: str, key: bytes) -> str:
    return hmac.new(key, _PURPOSE + task_id.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


# --- tasks and attempts ----------------------------------------------------------------------------------------
#
# Pure. A task belongs to the attempt that waits for it. If that attempt is interrupted, by a crash of adw or on order,
# the next attempt of the round takes over the same task: the external worker did nothing wrong.


#: Statuses of attempts whose task the next attempt takes over.
_CUT_OFF = frozenset({"interrupted", "suspended"})


def is_wanted(task: ExternalTask, document: WorkflowDocument) -> bool:
    """Return whether an attempt of *document* waits for *task*, or will once the workflow continues."""
    state = WorkflowState(document.current_state)
    if document.rollback is not None or not (state in ACTIVE_STATES or state is WorkflowState.PAUSED):
        return False
    record = next((one for one in document.phases if one.name == task.phase), None)
    if record is None or record.round != task.round or not record.attempts:
        return False
    last = record.attempts[-1]

    return last.number == task.attempt_number and last.status in {"running", WAITING, *_CUT_OFF}


def is_for(task: ExternalTask, record: PhaseRecord) -> bool:
    """Return whether *task* belongs to the last attempt of *record*, which may have taken it over."""
    if task.round != record.round:
        return False
    if task.attempt_number == record.attempts[-1].number:
        return True
    before = next((one for one in record.attempts if one.number == task.attempt_number), None)

    return task.state != EXPIRED and before is not None and before.status in _CUT_OFF


# --- claims ----------------------------------------------------------------------------------------------------


def claimed(task: ExternalTask, *, worker: str, seconds: float, now: datetime) -> ExternalTask:
    """Return *task* with a new claim; raise ClaimHeld while another is live, ClaimLost if the task is over."""
    _refuse_over(task, now)
    if task.is_held(now) and not (worker and worker == task.worker):
        raise ClaimHeld(task)  # a repeated claim of the same worker is allowed: it lost the answer or was restarted

    return replace(task, claims=task.claims + 1, worker=worker, claim_seconds=seconds, claim_until=_until(now, seconds))


def renewed(task: ExternalTask, claim: int, *, now: datetime) -> ExternalTask:
    """Return *task* with *claim* extended; raise ClaimLost if it is not the last claim."""
    _refuse_over(task, now)
    _refuse_foreign(task, claim)

    return replace(task, claim_until=_until(now, task.claim_seconds))


def reported(task: ExternalTask, claim: int, report: ExternalReport, *, now: datetime) -> ExternalTask | None:
    """Return *task* ended by *report*, or None if this claim made the same report before; raise ClaimLost."""
    if task.state == REPORTED and task.claims == claim and task.report == report:
        return None
    _refuse_over(task, now)
    _refuse_foreign(task, claim)

    return replace(task, state=REPORTED, report=report, claim_until="", ended_at=timestamps.to_text(now))


def event_of(task: ExternalTask, sent: Event, *, now: datetime) -> Event:
    """Return *sent* as an event of the workflow; adw sets the attempt and the fields that the sender left empty."""
    return replace(
        sent,
        adw_id=task.adw_id,
        event_id=f"{task.task_id}.{sent.event_id}",
        created_at=timestamps.to_text(now),
        execution_id=sent.execution_id or task.task_id,
        parent_execution_id=sent.parent_execution_id or task.adw_id,
        parent_event_id=sent.parent_event_id or None,
        attempt_number=task.attempt_number,
        node_id=sent.node_id or task.phase,
        node_name=sent.node_name or task.phase,
        node_type=sent.node_type or EXTERNAL,
        catalog_id=sent.catalog_id or task.catalog_id or None,
        meta={**sent.meta, "queue": {"queue_id": task.task_id, "worker_id": task.worker, "claim": task.claims}},
    )


def _refuse_over(task: ExternalTask, now: datetime) -> None:
    if task.state == REPORTED:
        raise ClaimLost(task.task_id, "its end was reported already")
    if task.state == EXPIRED or task.is_late(now):
        raise ClaimLost(task.task_id, f"its deadline {task.deadline} is over")


def _refuse_foreign(task: ExternalTask, claim: int) -> None:
    if not 0 < claim == task.claims:
        who = f"{task.worker or 'somebody'} has claim {task.claims}" if task.claims else "nobody has claimed it"
        raise ClaimLost(task.task_id, f"claim {claim} is not the last one, {who}")


def _until(now: datetime, seconds: float) -> str:
    return timestamps.to_text(now + timedelta(seconds=seconds))


# --- the end ---------------------------------------------------------------------------------------------------


def report_of(task: ExternalTask, report: ExternalReport) -> RunReport:
    """Return the runner's report on an attempt whose task was reported on."""
    if report.is_ok:
        return RunReport(ok=True, summary=report.summary, result=report.result)
    error = report.error
    said = str(error.get("message") or report.summary or "no reason was given")
    run = FailedRun(
        text=said,
        subtype=str(error.get("category") or ""),
        exit_code=_whole(error.get("exit_code")),
        http_status=_whole(error.get("status")),
    )
    failed = RunFailed(run, f"{task.worker or 'the external worker'} reports that it failed: {said}")

    return RunReport(ok=False, error=failed, summary=report.summary, result=report.result, exit_code=run.exit_code)


def _whole(value: JsonValue) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# --- the runner ------------------------------------------------------------------------------------------------


class ExternalRunner:
    """
    Runs a phase as a task outside adw; implements `Runner`.

    Nothing runs here while an attempt waits. The report or the deadline wakes the workflow's run, and the worker that
    then claims the run finds which of the two happened.
    """

    def __init__(self, home: Home) -> None:
        """Use parts of *home* only when a phase runs: building the runners must not open a database."""
        self._home = home

    def check(self, phase: PhaseSpec) -> str:
        """Return "": this runner can run every phase."""
        del phase
        return ""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | WaitingForChildren:
        """Return the reported result, or wait for a report until the deadline."""
        tasks, document = self._home.external_tasks, context.document
        record = next(one for one in document.phases if one.name == context.phase)
        known = tasks.latest(document.adw_id, context.phase)
        if known is not None and is_for(known, record):  # its own task, or that of an interrupted attempt
            task = tasks.adopt(known, attempt_number=context.attempt_number)
        else:
            seconds = phase.deadline_seconds or DEFAULT_DEADLINE_SECONDS
            task = tasks.open(
                ExternalTask(
                    task_id=task_id_of(document.adw_id, context.phase, context.attempt_number),
                    adw_id=document.adw_id,
                    phase=context.phase,
                    round=context.round,
                    attempt_number=context.attempt_number,
                    catalog_id=f"{document.workflow.name}@{document.workflow.version}" if document.workflow else "",
                    deadline=timestamps.to_text(self._home.clock.now() + timedelta(seconds=seconds)),
                )
            )
        if task.report is None and task.is_late(self._home.clock.now()):
            tasks.expire(task.task_id)
            task = tasks.get(task.task_id) or task  # a report may have come just before it expired
            if task.report is None:
                return RunReport(ok=False, error=Overdue(task))
        if task.report is not None:
            return report_of(task, task.report)

        return WaitingForChildren(
            reason=f"waits until {task.deadline} for task {task.task_id}, which is done outside of adw",
            until=timestamps.parse(task.deadline),
            facts={"task_id": task.task_id, "path": f"{PATH}/{task.task_id}", "deadline": task.deadline},
        )


# --- the service -----------------------------------------------------------------------------------------------

#: The most bytes of a result as JSON, because it becomes part of the workflow's document.
MAX_RESULT_BYTES = 256 * 1024
#: The prefix of a stored event id, before the id that the sender gave.
_SENT = "told-"
#: The name of a loop.
_LOOP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")
#: The only name with a leading underscore that is kept in a context.
_KEPT = "_step_results"


class ExternalTaskService:
    """
    Lets workers outside adw claim tasks, send heartbeats and events, and report the end.

    A worker can report only on its own task, while the workflow waits for it and the worker has the claim. What it
    sends is truncated and cleaned of secrets before it is stored.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def token_of(self, task_id: str) -> str:
        """Return the token of a task."""
        return token_of(task_id, self._home.forge_key)

    # --- reports -----------------------------------------------------------------------------------------------

    def claim(self, task_id: str, *, worker: str, seconds: float) -> ExternalTask:
        """Give a task to *worker*."""
        self._check_wanted(self._known(task_id))

        return self._home.external_tasks.claim(task_id, worker=self._text(worker), seconds=seconds)

    def heartbeat(self, task_id: str, claim: int) -> ExternalTask:
        """Extend the claim of a worker."""
        self._check_wanted(self._known(task_id))

        return self._home.external_tasks.heartbeat(task_id, claim)

    def emit(self, task_id: str, claim: int, event: Event, *, summary: str = "") -> bool:
        """Store an event; one that ends the task is its report. Return False if it was sent before."""
        if event.event_type not in EVENT_TYPES:
            raise UsageError(f"{event.event_type!r} is no event of a task; use one of {', '.join(EVENT_TYPES)}")
        _refuse_foreign_loop(task_id, event)
        if event.event_type in ENDS:
            return self._end(task_id, claim, event, summary)
        self._check_wanted(self._known(task_id))
        told = replace(
            self._clean(event),
            event_id=f"{_SENT}{event.event_id}",
            status=self._text(event.status),
            result=self._short(event.result),
        )
        tasks, reason = self._home.external_tasks, ""
        if event.event_type in (*EXECUTION_ENDS, *ITERATION_EVENTS):
            error = event.data.get("error")
            said = error.get("message") if isinstance(error, dict) else error
            reason = self._text(str(said or event.data.get("reason") or ""))[:MAX_MESSAGE]
            if not reason and event.event_type.endswith(("_failed", "_cancelled")):
                reason = "no reason was given"
        if event.event_type == "iterator_started":
            size = told.data.get("collection_size")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_ITERATIONS:
                shown = json.dumps(size)[:60]
                raise UsageError(
                    f"data.collection_size is {shown} and must be the number of elements, 0 to {MAX_ITERATIONS}"
                )
            return tasks.tell(task_id, claim, told, loop=loop_of(task_id, told), total=size)
        if event.event_type not in ITERATION_EVENTS:
            return tasks.tell(task_id, claim, told, reason=reason)
        result = event.data.get("result") if event.result is None else event.result
        value = event.data.get("element") if event.event_type == "iteration_started" else result
        told = replace(told, iteration_index=_index(event), result=self._short(result))

        return tasks.tell(task_id, claim, told, value=self._home.redactor.redact(value), reason=reason)

    def _clean(self, event: Event) -> Event:
        """Return *event* as it may be stored: truncated, and without secrets."""
        context = {name: value for name, value in event.context.items() if name[:1] != "_" or name == _KEPT}
        texts = {name: self._text(getattr(event, name) or "") for name in _KEPT_IDS}

        return replace(
            event,
            **texts,  # type: ignore[arg-type]  # the names in _KEPT_IDS are fields with text
            context=self._each_short(context),
            data=self._each_short(event.data),
            meta=self._each_short(event.meta),
        )

    def _end(self, task_id: str, claim: int, event: Event, summary: str) -> bool:
        is_ok = ENDS[event.event_type]
        task = self._known(task_id)
        if task.report is None:  # a repeated report is compared with the first: its answer may have been lost
            self._check_wanted(task)
        result: JsonValue = {} if event.result is None else event.result
        if not isinstance(result, dict):
            raise UsageError("result must be an object, such as {}: a phase gives named values")
        if (size := _size(result)) > MAX_RESULT_BYTES:
            raise UsageError(
                f"result has {size} bytes and may have {MAX_RESULT_BYTES}: keep what is large elsewhere, and name it"
            )
        said = event.data.get("error")
        error: JsonObject = said if isinstance(said, dict) else {"message": said} if said else {}
        report = ExternalReport(
            is_ok=is_ok,
            report_id=event.event_id,
            summary=self._text(summary),
            result=self._object(result),
            error={} if is_ok else self._each_short(error),
        )
        told = self._clean(event)
        told = replace(
            told,
            event_id="end",
            status=self._text(event.status) or ("COMPLETED" if is_ok else "FAILED"),
            result=self._short(report.result),
            data={**told.data, "claim": claim, "summary": report.summary},
        )

        return self._home.external_tasks.report(task_id, claim, report, told)

    def _known(self, task_id: str) -> ExternalTask:
        task = self._home.external_tasks.get(task_id)
        if task is None:
            raise TaskNotFound(task_id)

        return task

    def _check_wanted(self, task: ExternalTask) -> None:
        try:
            document = self._home.load(task.adw_id)
        except StateNotFound as exc:
            raise TaskNotFound(task.task_id) from exc
        if not is_wanted(task, document):
            raise ClaimLost(task.task_id, f"workflow {task.adw_id} does not wait for it any more")

    # --- truncating and redacting ------------------------------------------------------------------------------

    def _each_short(self, values: JsonObject) -> JsonObject:
        """Return *values* without secrets; in tables of variables, such as `vars`, each variable is cut by itself."""
        return self._object({name[:200]: _cut(value) for name, value in values.items()})

    def _short(self, value: JsonValue) -> JsonValue:
        return self._home.redactor.redact(_cut(value))

    def _object(self, value: JsonObject) -> JsonObject:
        clean = self._home.redactor.redact(value)

        return clean if isinstance(clean, dict) else {}

    def _text(self, text: str) -> str:
        return str(self._home.redactor.redact(" ".join(text.split())))


def _cut(value: JsonValue) -> JsonValue:
    """Return *value*, or its size in its place if it is large; in a table only large variables are replaced."""
    size = _size(value)
    if size <= MAX_VALUE:
        return value
    if not isinstance(value, dict):
        return truncated(size)

    return {name[:200]: item if (each := _size(item)) <= MAX_VALUE else truncated(each) for name, item in value.items()}


# --- checks of the events of loops that are run outside adw (pure) ---------------------------------------------


def _refuse_foreign_loop(task_id: str, event: Event) -> None:
    """Raise UsageError if an event names a loop that cannot belong to *task_id*."""
    named = {"execution_id": event.execution_id}
    if event.event_type in ITERATION_EVENTS:
        named["parent_execution_id"] = event.parent_execution_id or ""
    for name, said in named.items():
        is_below = said.startswith(f"{task_id}.") and _LOOP.fullmatch(said[len(task_id) + 1 :])
        if said not in ("", task_id) and not is_below:
            raise UsageError(f"{name} is {said[:60]!r} and must be {task_id}, or {task_id}.NAME for a loop of it")
    if event.event_type in ENDS and event.execution_id not in ("", task_id):
        raise UsageError(f"{event.event_type} ends the task {task_id}: leave execution_id {event.execution_id} out")


def _loop_id(task_id: str, event: Event) -> str:
    """Return the loop of an event; an iteration may name its loop as its parent, as seed 001 does."""
    parent = event.parent_execution_id if event.event_type in ITERATION_EVENTS else ""

    return parent or event.execution_id or task_id


def _index(event: Event) -> int:
    said = event.data.get("iteration_index", event.iteration_index)
    if event.iteration_index not in (None, said):
        raise UsageError(f"iteration_index is {event.iteration_index} and in data {json.dumps(said)[:60]}: say one")
    if not isinstance(said, int) or isinstance(said, bool) or said < 0:
        raise UsageError(
            f"iteration_index is {json.dumps(said)[:60]} and must be the place of the element, counted from 0"
        )

    return said


def loop_of(task_id: str, event: Event) -> StepSpec:
    """Return the step that an `iterator_started` event describes; raise UsageError if its settings are invalid."""
    said = {name: value for name, value in event.data.items() if value is not None}
    mode = said.get("mode", ASYNC)
    loop = LoopSpec(
        collection=[],
        element=said.get("iterator_name", "item"),  # type: ignore[arg-type]  # checked below, like all of these
        mode=mode,  # type: ignore[arg-type]  # the same
        concurrency=said.get("concurrency", DEFAULT_CONCURRENCY if mode == ASYNC else 1),  # type: ignore[arg-type]  # the same
        chunk_size=said.get("chunk_size"),  # type: ignore[arg-type]  # the same
        on_failure=said.get("on_failure", CONTINUE),  # type: ignore[arg-type]  # the same
        threshold=said.get("threshold", 0.0),  # type: ignore[arg-type]  # the same
    )
    name = event.node_name or _loop_id(task_id, event).removeprefix(task_id).lstrip(".") or "loop"
    step = StepSpec(name=name, tool=EXTERNAL, loop=loop)
    problems = checks.step_shape_problems(step) or list(checks.loop_problems(step))
    if problems:
        raise UsageError(f"data of iterator_started: {problems[0].message}")

    return step


def _size(value: JsonValue) -> int:
    return len(json.dumps(value).encode())


# --- the store -------------------------------------------------------------------------------------------------

TASK_COLUMNS = (
    *("task_id", "adw_id", "phase", "round", "attempt_number", "catalog_id", "state", "claims", "worker"),
    *("claim_seconds", "claim_until", "created_at", "deadline", "ended_at"),
    *("report_id", "is_ok", "summary", "error", "result"),
)
_SELECT = f"SELECT {', '.join(TASK_COLUMNS)} FROM external_tasks"
_UPDATE = (
    f"UPDATE external_tasks SET {', '.join(f'{name} = :{name}' for name in TASK_COLUMNS[1:])} WHERE task_id = :task_id"
)
_EVENT_KNOWN = "SELECT event_type, execution_id, iteration_index FROM events WHERE event_id = :event_id"
#: Fields of an event that are taken from the sender.
_KEPT_IDS = ("parent_execution_id", "parent_event_id", "node_id", "node_name", "node_type", "catalog_id")


class ExternalTasks:
    """
    The table external_tasks: one row per task, changed under its row lock.

    The end of a task, its event and the wake-up of the waiting run are one transaction.
    """

    def __init__(self, database: Database, *, clock: Clock, executions: Executions) -> None:
        """*executions* stores the loops that are run for a task."""
        self._database = database
        self._clock = clock
        self._executions = executions
        self._runs = RunStore(database, clock=clock)
        self._lock = database.render(f"{_SELECT} WHERE task_id = :task_id {{row_lock}}")
        #: Taken before an event is numbered, so that transactions number a workflow's events one after the other.
        self._lock_workflow = database.render("SELECT 1 FROM workflow_states WHERE adw_id = :adw_id {row_lock}")

    # --- the workflow's side -----------------------------------------------------------------------------------

    def open(self, task: ExternalTask) -> ExternalTask:
        """Store a task, or return the stored one with the same id."""
        new = replace(task, created_at=timestamps.to_text(self._clock.now()))

        def work(session: Session) -> ExternalTask:
            names = ", ".join(TASK_COLUMNS)
            values = ", ".join(f":{name}" for name in TASK_COLUMNS)
            session.run(
                f"INSERT INTO external_tasks ({names}) VALUES ({values}) ON CONFLICT (task_id) DO NOTHING", _params(new)
            )
            return self._locked(session, task.task_id)

        return self._database.transact(work)

    def get(self, task_id: str) -> ExternalTask | None:
        """Return a task, or None."""
        return self._one(f"{_SELECT} WHERE task_id = :task_id", {"task_id": connection.plain(task_id)})

    def latest(self, adw_id: str, phase: str) -> ExternalTask | None:
        """Return the newest task of a phase, or None."""
        return self._one(
            f"{_SELECT} WHERE adw_id = :adw_id AND phase = :phase"
            " ORDER BY created_at DESC, attempt_number DESC LIMIT 1",
            {"adw_id": adw_id, "phase": phase},
        )

    def page(self, *, adw_id: str = "", only_open: bool = False, limit: int = 100) -> tuple[ExternalTask, ...]:
        """Return tasks, newest first."""
        conditions = [*(["adw_id = :adw_id"] if adw_id else []), *(["state = 'open'"] if only_open else [])]
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        sql = f"{_SELECT} {where} ORDER BY created_at DESC, task_id DESC LIMIT :limit"
        with self._database.read() as session:
            return tuple(map(_to_task, session.all(sql, {"adw_id": adw_id, "limit": limit})))

    def adopt(self, task: ExternalTask, *, attempt_number: int) -> ExternalTask:
        """Hand a task over to another attempt after its own was interrupted."""
        if task.attempt_number == attempt_number:
            return task

        return self._change(task.task_id, lambda found: replace(found, attempt_number=attempt_number))

    def expire(self, task_id: str) -> bool:
        """Expire an open task and cancel its loops; return False if it is not open any more."""
        params = {"task_id": connection.plain(task_id), "moment": timestamps.to_text(self._clock.now())}

        def work(session: Session) -> bool:
            expire = (
                "UPDATE external_tasks SET state = 'expired', ended_at = :moment, claim_until = ''"
                " WHERE task_id = :task_id AND state = 'open'"
            )
            if session.run(expire, params) != 1:
                return False
            adw_id = self._locked(session, task_id).adw_id
            self._executions.cancel_outside(session, adw_id, task_id, reason="the deadline of its task is over")

            return True

        return self._database.transact(work)

    # --- the external worker's side ----------------------------------------------------------------------------

    def claim(self, task_id: str, *, worker: str, seconds: float) -> ExternalTask:
        """Give the task to *worker* and record an event; raise TaskNotFound, ClaimHeld or ClaimLost."""

        def work(session: Session) -> ExternalTask:
            now = self._clock.now()
            result = self._locked(session, task_id)
            taken = claimed(result, worker=connection.plain(worker), seconds=seconds, now=now)
            session.run(_UPDATE, _params(taken))
            told = Event(event_type="action_started", event_id=f"claim-{taken.claims}", status="STARTED")
            self._tell(session, taken, told)

            return taken

        return self._database.transact(work)

    def heartbeat(self, task_id: str, claim: int) -> ExternalTask:
        """Extend a claim; raise TaskNotFound or ClaimLost."""
        return self._change(task_id, lambda found: renewed(found, claim, now=self._clock.now()))

    def tell(
        self,
        task_id: str,
        claim: int,
        event: Event,
        *,
        loop: StepSpec | None = None,
        total: int = 0,
        value: JsonValue = None,
        reason: str = "",
    ) -> bool:
        """
        Store an event and extend the claim; return False if the event was stored before.

        `iterator_started` begins *loop* over *total* elements. *value* is the element of a starting iteration or the
        result of one that ended; the end of the last iteration ends the loop in the same transaction. An event can end
        a loop only when all its iterations have ended. *reason* is why something failed. Raise EventRefused.
        """

        def work(session: Session) -> bool:
            task, is_new = self._heard(session, task_id, claim, event)
            if not is_new:
                return False
            loop_id, kind = _loop_id(task_id, event), event.event_type
            if kind not in (*LOOP_EVENTS, *ITERATION_EVENTS):
                return self._tell(session, task, self._chained(session, task, event))
            said = self._said(session, task, event)
            if kind in EXECUTION_ENDS:
                return self._executions.end_loop_outside(session, loop_id, EXECUTION_ENDS[kind], said, reason=reason)
            if loop is not None:
                new = NewExecution(
                    execution_id=loop_id,
                    parent_execution_id=task_id,
                    adw_id=task.adw_id,
                    phase=task.phase,
                    attempt_number=task.attempt_number,
                    catalog_id=event.catalog_id or task.catalog_id,
                    step=loop,
                    context={},
                )
                self._executions.open_outside(session, new, total, said)
                return True
            state = ITERATION_ENDS.get(kind, IterationState.RUNNING)
            self._executions.tell_outside(
                session, loop_id, event.iteration_index or 0, state, said, value=value, reason=reason
            )

            return True

        return self._database.transact(work)

    def _heard(self, session: Session, task_id: str, claim: int, event: Event) -> tuple[ExternalTask, bool]:
        """Renew the claim; return the task and whether the event is new; raise EventRefused if its id was used."""
        task = renewed(self._locked(session, task_id), claim, now=self._clock.now())
        session.run(_UPDATE, _params(task))
        known = session.one(_EVENT_KNOWN, {"event_id": f"{task_id}.{event.event_id}"})
        if known is None:
            session.one(self._lock_workflow, {"adw_id": task.adw_id})
            return task, True
        is_cancel = event.event_type == "iterator_cancelled"
        stored_as = "iterator_cancel_requested" if is_cancel else event.event_type
        if tuple(known) != (stored_as, _loop_id(task_id, event), event.iteration_index):
            raise EventRefused(
                f"event_id {event.event_id.removeprefix(_SENT)} was used for {known[0]}: give each event its own"
            )

        return task, False

    def _chained(self, session: Session, task: ExternalTask, event: Event) -> Event:
        """Return *event* with its parent's stored id, if the sender used that id for an earlier event."""
        stored = f"{task.task_id}.{_SENT}{event.parent_event_id}"
        if event.parent_event_id and session.one(_EVENT_KNOWN, {"event_id": stored}) is not None:
            return replace(event, parent_event_id=stored)

        return event

    def _said(self, session: Session, task: ExternalTask, event: Event) -> dict[str, object]:
        """Return the fields of a loop's event that its sender determines."""
        whole = event_of(task, self._chained(session, task, event), now=self._clock.now())
        sent = [name for name in _KEPT_IDS if getattr(event, name)]
        values = [name for name in ("status", "duration", "context") if getattr(event, name)]
        result = ["result"] if event.event_type in ITERATION_ENDS and event.result is not None else []

        return {name: getattr(whole, name) for name in ("event_id", *sent, *values, *result, "data", "meta")}

    def report(self, task_id: str, claim: int, report: ExternalReport, event: Event) -> bool:
        """End the task, record an event and wake the waiting run; return False if the report is a repetition."""

        def work(session: Session) -> bool:
            result = self._locked(session, task_id)
            ended = reported(result, claim, report, now=self._clock.now())
            if ended is None:
                return False
            session.run(_UPDATE, _params(ended))
            self._tell(session, ended, self._chained(session, ended, event))
            self._executions.cancel_outside(session, ended.adw_id, task_id, reason="its task was reported")
            self._runs.wake_in(session, ended.adw_id)

            return True

        return self._database.transact(work)

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _locked(self, session: Session, task_id: str) -> ExternalTask:
        row = session.one(self._lock, {"task_id": connection.plain(task_id)})
        if row is None:
            raise TaskNotFound(task_id)

        return _to_task(row)

    def _change(self, task_id: str, rule: Callable[[ExternalTask], ExternalTask]) -> ExternalTask:
        def work(session: Session) -> ExternalTask:
            changed = rule(self._locked(session, task_id))
            session.run(_UPDATE, _params(changed))

            return changed

        return self._database.transact(work)

    def _tell(self, session: Session, task: ExternalTask, told: Event) -> bool:
        """Store an event under the lock that orders its workflow's events; return False if it was stored before."""
        session.one(self._lock_workflow, {"adw_id": task.adw_id})
        event = event_of(task, told, now=self._clock.now())

        return session.run(connection.EVENT_INSERT, connection.event_params(event)) == 1

    def _one(self, sql: str, params: dict[str, object]) -> ExternalTask | None:
        with self._database.read() as session:
            row = session.one(sql, params)

        return None if row is None else _to_task(row)


def _params(task: ExternalTask) -> dict[str, object]:
    report = task.report

    return {
        **{name: getattr(task, name) for name in TASK_COLUMNS[:14]},
        "report_id": "" if report is None else report.report_id,
        "is_ok": None if report is None else int(report.is_ok),
        "summary": "" if report is None else connection.plain(report.summary),
        "error": "" if report is None else connection.json_text(report.error, f"the error of task {task.task_id}"),
        "result": "" if report is None else connection.json_text(report.result, f"the result of task {task.task_id}"),
    }


def _to_task(row: Row) -> ExternalTask:
    values = dict(zip(TASK_COLUMNS, row, strict=True))
    report_id, is_ok, summary, error, result = (values.pop(name) for name in TASK_COLUMNS[14:])
    report = None
    if is_ok is not None:
        report = ExternalReport(
            report_id=report_id,
            is_ok=bool(is_ok),
            summary=summary,
            error=json.loads(error),
            result=json.loads(result),
        )

    return ExternalTask(**values, report=report)
