"""
The rows of an execution while a turn may change them, and what a turn is made by.

Nouns only; `execution_turn` changes them, and whoever stores executions reads and writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from adws.adw_modules.events import Event
from adws.adw_modules.execution_words import IterationState
from adws.adw_modules.executions import Decide, Execution, NewExecution
from adws.adw_modules.expressions import Value
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.runs import ITERATION, NewRun

PENDING, RUNNING, RETRY_WAIT = (
    IterationState.PENDING.value,
    IterationState.RUNNING.value,
    IterationState.RETRY_WAIT.value,
)
#: How JSON spells what is not there.
NULL = "null"

#: Counts an event into an execution; `planner.fold`.
Fold = Callable[[Execution, Event], Execution]


@dataclass(kw_only=True, slots=True)
class Iteration:
    """The row of an iteration, while a turn may change it; values of JSON are texts."""

    index: int
    state: str = PENDING
    attempts: int = 0
    page: int = 1
    same_call: int = 0
    interruptions: int = 0
    next_at: str = ""
    why: str = ""
    run_id: int | None = None
    token: int = 0
    last_event_id: str = ""
    sequence_id: str = ""
    fingerprint: str = ""
    same_failures: int = 0
    marks: str = ""
    error: str = ""
    process: str = ""
    started_at: str | None = None
    ended_at: str | None = None
    call: str = "{}"
    element: str = NULL
    result: str = NULL


@dataclass(kw_only=True, slots=True)
class Head:
    """The row of an execution, while a turn may change it."""

    execution: Execution
    next_index: int = 0  #: the first iteration that nobody has begun
    cancel_reason: str = ""  #: why nothing more is begun
    last_event: int = 0
    lanes: int = 1
    stored: int = 0
    ended_at: str | None = None
    created_at: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What of an execution never changes."""

    new: NewExecution
    event_context: JsonObject = field(default_factory=dict)  #: sanitised, for its first and last event
    small_context: JsonObject = field(default_factory=dict)  #: the same for all others, of which there are many


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """Who makes the turn: the run that has a lane, None for a person or the phase itself."""

    run_id: int
    token: int
    worker_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a turn is made by."""

    decide: Decide
    fold: Fold
    scrub: Callable[[JsonValue], JsonValue] = lambda value: value  #: takes secrets out of what events show
    is_storable: Callable[[str], bool] = lambda _text: True  #: whether a text of JSON is stored as it is
    #: Makes what templates know of the stored context; long results are read when they are asked for.
    resolve: Callable[[NewExecution], Mapping[str, Value]] = lambda new: new.context


def values_of(
    new: NewExecution, known: Mapping[str, Value], *, index: int, element: JsonValue, attempt: int, page: int
) -> dict[str, Value]:
    """Return what the templates of one call know."""
    values = {**known, "attempt": attempt, "page": page}
    if new.step.loop is not None:
        values["index"] = index
        values[new.step.loop.element] = element

    return values


def lane_run(new: NewExecution, slot: str) -> NewRun:
    """Return the run that a lane of an execution is."""
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
