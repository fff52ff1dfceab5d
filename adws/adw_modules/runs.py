"""
A run: one piece of work that waits for a worker, or is with one.

The row in `runs` is the truth about it. Every report of a worker carries the run's token; after a new claim the old
token is worth nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from adws.adw_modules import timestamps
from adws.adw_modules.demands import Demands, Offer
from adws.adw_modules.errors import UsageError
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.run_limits import SCOPES, RunLimits

NO_DEMANDS, NO_LIMITS = Demands(), RunLimits()


class RunState(Enum):
    """Where a run stands."""

    PENDING = "pending"  #: waits for a worker, not before `not_before`
    CLAIMED = "claimed"  #: a worker has it and has not begun
    RUNNING = "running"
    STOPPING = "stopping"  #: somebody wants it stopped; its worker has not confirmed yet
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    DEAD = "dead"  #: given up: too many workers vanished with it


#: A worker has it.
LIVE_RUNS = frozenset({RunState.CLAIMED, RunState.RUNNING, RunState.STOPPING})
#: Nothing will happen to it any more.
FINAL_RUNS = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.STOPPED, RunState.DEAD})

#: A run that undoes a workflow instead of going on with it.
ROLLBACK = "rollback"
#: A run that does what a delivery asks for.
DELIVERY = "delivery"
#: A run that does what the schedule says.
CRON = "cron"
#: A run that makes calls of a step which are spread over workers: one of its lanes.
ITERATION = "iteration"
#: Runs that are of no workflow: their id is their own, and no document has it.
WITHOUT_WORKFLOW = frozenset({DELIVERY, CRON})
#: What a run may be for.
RUN_KINDS = ("start", "resume", "retry", ROLLBACK, ITERATION, CRON, DELIVERY)

#: What deliveries ask for is done before workflows go on: it is short, and a stop is not to wait for what it stops.
DELIVERY_PRIORITY = 100

#: What the reason of a run begins with that was stopped without proof that its processes are gone.
UNCONFIRMED = "stop unconfirmed"

#: Priorities go from minus this to this.
MAX_PRIORITY = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRun:
    """A run that is asked for."""

    adw_id: str
    kind: str = "start"  #: one of RUN_KINDS
    priority: int = 0  #: higher first; among equals the oldest first
    not_before: str = ""  #: timestamps.to_text; "": at once
    payload: JsonObject = field(default_factory=dict)
    asked_by: str = ""
    demands: Demands = NO_DEMANDS  #: of the worker
    labels: frozenset[str] = frozenset()  #: `scope:name`, what limits count it under
    slot: str = ""  #: a workflow has one unfinished run for each; "": the one that goes on with the workflow
    parent_run_id: int | None = None  #: the run that asked for it


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run as its row has it."""

    run_id: int
    adw_id: str
    kind: str
    state: RunState
    priority: int
    not_before: str
    attempts: int  #: how often it was claimed
    token: int  #: grows with each claim; what a worker proves itself by
    owner: str  #: the worker's record as text, "" when nobody has it
    seconds_left: float  #: of its claim; negative when over, 0 when nobody has it
    reason: str  #: why it is in this state, for people
    payload: JsonObject
    asked_by: str
    created_at: str
    updated_at: str
    started_at: str | None = None
    finished_at: str | None = None
    demands: Demands = NO_DEMANDS
    labels: frozenset[str] = frozenset()
    losses: int = 0  #: how often a worker vanished with it
    slot: str = ""
    parent_run_id: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """On which terms a worker claims."""

    offer: Offer | None = None  #: what the worker has; None: its host and no tags
    limits: RunLimits = NO_LIMITS


NO_TERMS = Terms()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd:
    """How a worker is done with a run: it is over, or it waits again."""

    state: RunState  #: COMPLETED, FAILED or STOPPED; PENDING: given back, to its old place
    reason: str = ""
    not_before: str = ""  #: of one that waits again; "": at once
    demands: Demands | None = None  #: of one that waits again; None: as before


def stop_reason(wanted: str, doubt: str = "") -> str:
    """Return why something was stopped: as *wanted*, with the *doubt* whether all of it has ended, if there is any."""
    return f"{UNCONFIRMED}: {doubt} ({wanted})" if doubt else wanted


def check_new_run(run: NewRun) -> NewRun:
    """Return *run*, its moment in the one spelling that sorts; raise InvalidAdwId or UsageError when it cannot be."""
    check_adw_id(run.adw_id)
    if run.kind not in RUN_KINDS:
        raise UsageError(f"{run.kind!r} is no kind of run; use one of {', '.join(RUN_KINDS)}")
    if not -MAX_PRIORITY <= run.priority <= MAX_PRIORITY:
        raise UsageError(f"a priority is a number from -{MAX_PRIORITY} to {MAX_PRIORITY}, not {run.priority}")
    check_labels(run.labels)
    due = check_due(run.not_before)

    return run if due == run.not_before else replace(run, not_before=due)


def labels_text(labels: Iterable[str]) -> str:
    """Return labels as the row has them: one spelling, each between two bars, "" for none."""
    return f"|{'|'.join(sorted(labels))}|" if labels else ""


def labels_of(text: str) -> frozenset[str]:
    """Return the labels in the text of a row."""
    return frozenset(filter(None, text.split("|")))


def check_labels(labels: Iterable[str]) -> None:
    """Raise UsageError for what is no label of a run."""
    for label in labels:
        scope, _, name = label.partition(":")
        if scope not in SCOPES or not name or "|" in name:
            raise UsageError(f"{label!r} is no label of a run: write {' or '.join(SCOPES)}, a colon and a name")


def check_run_of(adw_id: str, run: NewRun | None) -> None:
    """Raise UsageError when *run* cannot be the first run of workflow *adw_id*."""
    if run is None:
        return
    check_new_run(run)
    if run.adw_id != adw_id:
        raise UsageError(f"a run of {run.adw_id} cannot be enqueued with workflow {adw_id}")


def check_due(not_before: str) -> str:
    """Return the moment *not_before* in the one spelling that sorts, "" for at once; raise UsageError."""
    if not not_before:
        return ""
    try:
        return timestamps.to_text(timestamps.parse(not_before))
    except (ValueError, OverflowError) as exc:
        raise UsageError(
            f"{not_before!r} is no moment; write it like 2026-01-31T09:00:00Z, or nothing: at once"
        ) from exc


def check_final(state: RunState) -> RunState:
    """Return *state* when a run can end in it; raise UsageError."""
    if state in FINAL_RUNS:
        return state
    ends = ", ".join(known.value for known in RunState if known in FINAL_RUNS)

    raise UsageError(f"a run cannot end as {state.value}; it ends as one of {ends}")
