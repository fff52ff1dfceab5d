"""
A step whose calls are spread over workers: the execution, its iterations, and the reports of its calls.

The rows are the truth about what is done and what remains; counting the events of an execution gives the same. An
iteration is fenced by its run: a worker that lost that run changes nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.queue.model import ITERATION, NO_DEMANDS, NewRun
from adws.adw_modules.workflow.requirements import Requirements

if TYPE_CHECKING:
    from adws.adw_modules.workflow.model import StepSpec


class IterationState(Enum):
    """State of an iteration."""

    PENDING = "pending"  #: waits for a lane
    RUNNING = "running"  #: a run has taken it
    RETRY_WAIT = "retry_wait"  #: will be called again at `next_at`, after a failure or for the next page
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"  #: the loop ended before it, or a person cancelled it


class ExecutionState(Enum):
    """State of an execution."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewExecution:
    """A requested execution. A step without a loop has a single iteration without an element."""

    execution_id: str  #: `<adw_id>.<phase>.<attempt>.<step>`
    parent_execution_id: str  #: of the phase attempt
    adw_id: str
    phase: str
    attempt_number: int  #: of the phase
    catalog_id: str
    step: StepSpec
    context: JsonObject  #: template values: issue, workload, vars, results of earlier steps and phases
    labels: frozenset[str] = frozenset()  #: of its runs
    demands: Requirements = NO_DEMANDS  #: on the workers that make its calls
    parent_run_id: int | None = None  #: the workflow's run that requested it; also the parent of its lanes


@dataclass
class Execution:
    """The row of an execution, in the order of its columns; an `ExecutionUpdate` changes it."""

    execution_id: str
    step: StepSpec
    state: ExecutionState = ExecutionState.RUNNING
    reason: str = ""  #: why it failed or was cancelled
    total: int | None = None  #: iterations; None while the collection is being stored
    stored: int = 0  #: iterations stored so far
    next_index: int = 0  #: the first iteration that has not begun
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    cancel_reason: str = ""  #: why no further iteration is begun
    lanes: int = 1
    last_event: int = 0  #: number of its last event
    first_event_id: str = ""
    ended_at: str | None = None
    created_at: str | None = None

    @property
    def ended(self) -> int:
        """Number of iterations that have ended."""
        return self.succeeded + self.failed + self.cancelled


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """One call to make now."""

    execution_id: str
    index: int
    element: JsonValue
    attempt_number: int  #: of this iteration, over all pages
    page: int  #: counts from 1
    call: JsonObject = field(default_factory=dict)  #: inputs requested by the previous page

    @property
    def sink_key(self) -> str:
        """Key under which a sink saves this call, however often and by whichever worker it is made."""
        return f"{self.execution_id}#{self.index}#{self.page}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CallReport:
    """The result of one call."""

    index: int
    attempt_number: int
    ok: bool
    result: JsonValue = None  #: complete, as received
    error: JsonObject | None = None  #: type, message, category, has_stack_trace
    fingerprint: str = ""  #: equal for equal failures
    duration: float = 0.0
    meta: JsonObject = field(default_factory=dict)
    is_suspended: bool = False  #: ended on order: does not count, and is repeated


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What a run should do next."""

    assignments: tuple[Assignment, ...] = ()
    wait_until: str = ""  #: no call now, but one is due then; "": nothing is left for this run
    is_over: bool = False  #: the execution has ended
    reason: str = ""  #: why it waits; "" if its next call is not due


@dataclass(frozen=True, slots=True)
class WaitingRetry:
    """A scheduled retry of a phase or of a step's call; fields in the order of the columns read."""

    kind: str  #: phase | call
    retry_id: str  #: argument of `adw queue retries cancel`: the workflow or the execution
    adw_id: str
    phase: str
    next_at: str
    why: str
    step: str = ""
    index: int | None = None  #: of a call's iteration
    attempt_number: int = 0  #: attempts so far
    page: int | None = None
    error: str = ""

    def to_json(self) -> JsonObject:
        """Return the retry as JSON."""
        return asdict(self)


PENDING, RUNNING, RETRY_WAIT = (
    IterationState.PENDING.value,
    IterationState.RUNNING.value,
    IterationState.RETRY_WAIT.value,
)
#: `why` of a completed iteration whose sequence reached `max_attempts`.
CUT = "cut"
#: JSON null.
NULL = "null"


@dataclass
class Iteration:
    """The row of an iteration, in the order of its columns; values are JSON text."""

    index: int
    state: str = PENDING
    attempts: int = 0  #: calls begun, over all pages
    page: int = 1
    same_call: int = 0  #: calls for this page
    interruptions: int = 0  #: how many of those calls were interrupted
    next_at: str = ""
    why: str = ""
    run_id: int | None = None
    token: int = 0
    last_event_id: str = ""
    sequence_id: str = ""
    fingerprint: str = ""  #: of the last failure
    same_failures: int = 0  #: how often it came in a row
    marks: str = ""  #: digests of the calls that pages requested
    error: str = ""
    process: str = ""
    started_at: str | None = None
    ended_at: str | None = None
    call: str = "{}"  #: inputs requested by the previous page
    element: str = NULL
    result: str = NULL


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionSpec:
    """The part of an execution that never changes."""

    new: NewExecution
    event_context: JsonObject = field(default_factory=dict)  #: sanitised, for the first and last event
    small_context: JsonObject = field(default_factory=dict)  #: shorter, for all events between, of which there are many


def lane_run(new: NewExecution, slot: str) -> NewRun:
    """Return a new run for a lane of an execution."""
    return NewRun(
        adw_id=new.adw_id,
        kind=ITERATION,
        payload={"execution_id": new.execution_id},
        asked_by="steps",
        demands=new.demands,
        labels=new.labels,
        slot=slot,
        parent_run_id=new.parent_run_id,
    )
