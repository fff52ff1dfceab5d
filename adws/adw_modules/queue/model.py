"""
A run: one piece of work that waits for a worker, or is with one.

The row in `runs` is the truth about it. Every report of a worker carries the run's token; after a new claim the old
token is worth nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import JsonObject, check_adw_id
from adws.adw_modules.workflow.requirements import Capabilities, Requirements

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.phase import Outcome


# How many runs of one kind may be under way at the same time: of a repository, a workflow, a provider of models.
#
# Pure. A run carries its labels; a label is full when as many live runs carry it as its limit allows.


#: What can be limited, as it begins a label.
SCOPES = ("repository", "workflow", "provider")
#: The name that stands for every one that has no limit of its own.
EVERY = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLimits:
    """For each scope: name -> how many at a time; `*` is for each name that is not listed."""

    scopes: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))

    def __bool__(self) -> bool:
        """Say whether anything is limited."""
        return any(self.scopes.values())

    def of(self, label: str) -> int | None:
        """Return how many live runs may carry *label*, None when it is not limited."""
        scope, _, name = label.partition(":")
        limits = self.scopes.get(scope, {})

        return limits.get(name, limits.get(EVERY))


def full_labels(live: Iterable[Iterable[str]], limits: RunLimits) -> tuple[str, ...]:
    """Return the labels that no further run may carry now; *live* has the labels of each live run."""
    counted = Counter(label for labels in live for label in set(labels))
    none_allowed = (
        f"{scope}:{name}" for scope, names in limits.scopes.items() for name, most in names.items() if most <= 0
    )
    reached = (label for label, count in counted.items() if (most := limits.of(label)) is not None and count >= most)

    return tuple(sorted({*none_allowed, *reached}))


NO_DEMANDS, NO_LIMITS = Requirements(), RunLimits()


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
    demands: Requirements = NO_DEMANDS  #: of the worker
    labels: frozenset[str] = frozenset()  #: `scope:name`, what limits count it under
    slot: str = ""  #: a workflow has one unfinished run for each; "": the one that goes on with the workflow
    parent_run_id: int | None = None  #: of a lane: the run of the workflow that waits for its calls


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
    demands: Requirements = NO_DEMANDS
    labels: frozenset[str] = frozenset()
    losses: int = 0  #: how often a worker vanished with it
    slot: str = ""
    parent_run_id: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimPolicy:
    """On which terms a worker claims."""

    offer: Capabilities | None = None  #: what the worker has; None: its host and no tags
    limits: RunLimits = NO_LIMITS


NO_TERMS = ClaimPolicy()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd:
    """How a worker is done with a run: it is over, or it waits again."""

    state: RunState  #: COMPLETED, FAILED or STOPPED; PENDING: given back, to its old place
    reason: str = ""
    not_before: str = ""  #: of one that waits again; "": at once
    demands: Requirements | None = None  #: of one that waits again; None: as before


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


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """How the work on a run ended."""

    run: Run | None  #: as it stands now; None: it is not ours any more
    outcome: Outcome | None  #: None: there was no attempt
    message: str = ""


# Making the run that goes on with a workflow: its requirements, and the labels that limits count it under.
#
# Pure. Both come from the definition that is frozen in the document, so the run requires the same regardless of the
# requester. Runs that undo something or execute a delivery are not made here: they carry no labels, because a limit
# holds work back and must not hold back what ends or undoes it.


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFactory:
    """Makes the runs of workflows of one home."""

    repository: str = ""  #: of the home: that of documents that name none
    providers: Mapping[str, str] = field(default_factory=dict)  #: runner of a phase -> the provider its agent calls

    def of(
        self, document: WorkflowDocument, kind: str, *, asked_by: str = "", priority: int = 0, not_before: str = ""
    ) -> NewRun:
        """Return the run of *kind* for *document*; raise UsageError when what it demands makes no sense."""
        workflow = document.workflow

        return NewRun(
            adw_id=document.adw_id,
            kind=kind,
            priority=priority,
            not_before=not_before,
            asked_by=asked_by,
            demands=Requirements.from_json(workflow.demands) if workflow else Requirements(),
            labels=self._labels(
                document.repository, workflow.name if workflow else "", workflow.phases if workflow else ()
            ),
        )

    def _labels(self, repository: str, workflow: str, phases: Sequence[Mapping[str, object]]) -> frozenset[str]:
        # Forges do not tell Acme/Widget from acme/widget, and neither do limits.
        result = [("repository", (repository or self.repository).casefold()), ("workflow", workflow)]
        result += [("provider", self.providers.get(_text(phase.get("runner")), "")) for phase in phases]

        return frozenset(f"{scope}:{name}" for scope, name in result if name and "|" not in name)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
