"""
A step whose calls are spread over workers: the execution, its iterations, and what is reported of them.

The rows are the truth about what is done and what is left; the events of an execution tell how it came to that, and
folding them gives the same. An iteration is fenced by the run that works on it: whoever lost that run changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from adws.adw_modules.demands import Demands
from adws.adw_modules.execution_words import ExecutionState, IterationState
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.runs import NO_DEMANDS

if TYPE_CHECKING:
    from adws.adw_modules.events import Event
    from adws.adw_modules.interfaces_engine import ProcessRecord
    from adws.adw_modules.runs import Run
    from adws.adw_modules.steps import StepSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class NewExecution:
    """An execution that is asked for. A step without a loop is one of a single iteration without an element."""

    execution_id: str  #: `<adw_id>.<phase>.<attempt>.<step>`
    parent_execution_id: str  #: of the phase's attempt
    adw_id: str
    phase: str
    attempt_number: int  #: of the phase
    catalog_id: str
    step: StepSpec
    context: JsonObject  #: what templates may know: issue, workload, vars, results of steps and phases before
    labels: frozenset[str] = frozenset()  #: of its runs
    demands: Demands = NO_DEMANDS  #: of the workers that make its calls
    parent_run_id: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """An execution as it stands: the facts that decisions are made on."""

    execution_id: str
    step: StepSpec
    total: int | None = None  #: iterations, None while the collection is being stored
    state: ExecutionState = ExecutionState.RUNNING
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    reason: str = ""  #: why it failed or was cancelled
    first_event_id: str = ""

    @property
    def ended(self) -> int:
        """How many iterations are over."""
        return self.succeeded + self.failed + self.cancelled


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """One call to make now."""

    execution_id: str
    index: int
    element: JsonValue
    attempt_number: int  #: of this iteration, over all pages
    page: int  #: counts from 1
    same_call: int  #: calls for this page, this one counted
    call: JsonObject = field(default_factory=dict)  #: inputs that the page before asked for
    event_id: str = ""  #: of its `iteration_started` or `action_started`
    sequence_id: str = ""  #: the first event of its chain of calls
    was_interrupted: bool = False  #: the call before was cut off

    @property
    def sink_key(self) -> str:
        """Names what a sink saves for this call, whoever makes it and however often."""
        return f"{self.execution_id}#{self.index}#{self.page}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CallReport:
    """What came of one call."""

    index: int
    attempt_number: int
    ok: bool
    result: JsonValue = None  #: whole, as it came
    error: JsonObject | None = None  #: type, message, category, has_stack_trace
    fingerprint: str = ""  #: equal for failures that are the same
    duration: float = 0.0
    context: JsonObject = field(default_factory=dict)  #: sanitised, for the event
    meta: JsonObject = field(default_factory=dict)
    is_suspended: bool = False  #: ended on order: does not count, and is made again


# --- what the planner answers ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class CallAgain:
    """The iteration is called again: after a failure, or for the next page."""

    index: int
    after_seconds: float
    page: int
    call: JsonObject
    why: str  #: on_error | on_success


@dataclass(frozen=True, kw_only=True, slots=True)
class EndIteration:
    """The iteration is over; *sequence* is how its chain of calls ended, "" when it had only one and no rule."""

    index: int
    state: IterationState
    sequence: str = ""  #: completed | exhausted | failed
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRest:
    """What has not begun is not begun any more."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EndExecution:
    """All is over: the phase goes on."""

    state: ExecutionState
    reason: str = ""


Command: TypeAlias = CallAgain | EndIteration | CancelRest | EndExecution
#: The orchestrator: what is to be done about an event, decided on the execution as it stands before it.
Decide: TypeAlias = Callable[[Execution, "Event"], Sequence[Command]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What a run has to do next."""

    assignments: tuple[Assignment, ...] = ()
    wait_until: str = ""  #: nothing now, but a call is due then; "": nothing is left for this run
    is_over: bool = False  #: the execution has ended


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduledRetry:
    """A call that waits for its time."""

    execution_id: str
    adw_id: str
    phase: str
    step: str
    index: int
    attempt_number: int
    page: int
    next_at: str
    why: str
    error: str = ""


class Executions(Protocol):
    """The executions of a home, and their iterations."""

    def open(self, new: NewExecution, elements: Iterable[JsonValue], *, lanes: int) -> Execution:
        """
        Store an execution with its iterations and at most *lanes* runs that work on it, or go on with storing it.

        Idempotent by its id. An empty collection ends it at once.
        """

    def get(self, execution_id: str) -> Execution | None:
        """Return an execution as it stands."""

    def plan(self, execution_id: str) -> NewExecution | None:
        """Return what was asked for."""

    def take(self, run: Run, *, most: int) -> Taken:
        """Give *run* up to *most* iterations that are due; raise RunLost when it is not its run any more."""

    def report(self, run: Run, reports: Sequence[CallReport], *, most: int) -> Taken:
        """
        Store what came of calls, decide, and give *run* the next iterations: one transaction.

        Events, results, counts, calls to be made again and the end of the execution come with it. Raises RunLost,
        and then nothing is stored.
        """

    def record_process(self, run: Run, assignment: Assignment, process: ProcessRecord) -> None:
        """Write down which process makes a call, durable on return; raise RunLost when the call is not ours."""

    def left_processes(self, run: Run) -> tuple[JsonObject, ...]:
        """Return the processes of calls that an earlier owner of *run* left: they are ended before it takes."""

    def give_up(self, run: Run, *, reason: str) -> None:
        """Fail the calls of a lane that too many workers vanished with; another run takes its place."""

    def is_wanted(self, adw_id: str) -> bool:
        """Say whether the workflow is to go on: it has a run that is not over and does not undo it."""

    def due_lanes(self, adw_id: str) -> tuple[int, ...]:
        """Return the runs of the lanes of a workflow that wait and are due, the oldest first."""

    def mark_taken(self, execution_id: str) -> None:
        """Say that the phase has taken the result of an execution that has ended: nobody is woken for it any more."""

    def wake(self, adw_id: str = "") -> int:
        """
        Make runs due whose workflow waits for executions that have ended, and return how many.

        The end of an execution does that; this is for a run that began to wait at that same moment.
        """

    def cancel_left(self) -> int:
        """Cancel executions of workflows that are over, and return how many there were."""

    def cancel_all(self, adw_id: str, *, reason: str) -> int:
        """Cancel what has not ended of a workflow's executions, and return how many that were."""

    def cancel(self, execution_id: str, *, reason: str, index: int | None = None) -> bool:
        """End an execution, or the call of one iteration that waits for its time; False when there is none."""

    def retries(self, *, adw_id: str = "", limit: int = 1000) -> tuple[ScheduledRetry, ...]:
        """Return the calls that wait for their time, the next one first."""

    def results(self, execution_id: str, *, first: int = 0) -> Iterator[tuple[int, IterationState, JsonValue]]:
        """Yield index, state and result of each iteration in the order of the collection, few at a time in memory."""

    def results_size(self, execution_id: str) -> int:
        """Return about how many characters all results have as JSON."""

    def keep(self, key: str, value: JsonValue) -> None:
        """Store a large result of a single call, durable on return; again for the same *key* replaces it."""

    def kept(self, key: str) -> JsonValue:
        """Return what was stored for *key*; raise StateInvalid when nothing was."""

    def tell(self, events: Sequence[Event]) -> None:
        """Store events that belong to no execution of its own, such as those of single calls; idempotent."""

    def last_error(self, execution_id: str) -> JsonObject | None:
        """
        Return why the last iteration that failed did, None when none has: `message`, and what its last call raised.

        A call that failed and was made again says nothing about why a later one was the last.
        """

    def metas(self, execution_id: str) -> Iterator[JsonObject]:
        """Yield the `meta` of each call that was reported."""

    def facts(self, execution_id: str) -> Mapping[str, JsonValue]:
        """Return counts for people: total, done, failed, running, waiting, next retry."""
