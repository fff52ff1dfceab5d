"""
A run: one piece of work that waits for a worker, or is being executed by one.

The row in `runs` is the truth about a run. Every report of a worker carries the run's token; a new claim invalidates
the old token.
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


# --- limits: how many runs of one repository, workflow or model provider may be live at the same time ----------
#
# Pure. A run carries labels; a label is full once as many live runs carry it as its limit allows.


#: Prefixes of labels, naming what can be limited.
SCOPES = ("repository", "workflow", "provider")
#: Stands for every name without a limit of its own.
EVERY = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLimits:
    """For each scope: name -> maximum number of live runs; `*` applies to names not listed."""

    scopes: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))

    def __bool__(self) -> bool:
        """Say whether any limit is set."""
        return any(self.scopes.values())

    def of(self, label: str) -> int | None:
        """Return how many live runs may carry *label*, or None if it has no limit."""
        scope, _, name = label.partition(":")
        limits = self.scopes.get(scope, {})

        return limits.get(name, limits.get(EVERY))


def full_labels(live: Iterable[Iterable[str]], limits: RunLimits) -> tuple[str, ...]:
    """Return the labels that no further run may carry now; *live* yields the labels of each live run."""
    counted = Counter(label for labels in live for label in set(labels))
    none_allowed = (
        f"{scope}:{name}" for scope, names in limits.scopes.items() for name, most in names.items() if most <= 0
    )
    reached = (label for label, count in counted.items() if (most := limits.of(label)) is not None and count >= most)

    return tuple(sorted({*none_allowed, *reached}))


NO_DEMANDS, NO_LIMITS = Requirements(), RunLimits()


class RunState(Enum):
    """The state of a run."""

    PENDING = "pending"  #: waits for a worker until at least `not_before`
    CLAIMED = "claimed"  #: a worker claimed it and has not begun
    RUNNING = "running"
    STOPPING = "stopping"  #: a stop was requested; its worker has not confirmed yet
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    DEAD = "dead"  #: failed for good: too many workers vanished with it


#: States in which a worker has the run.
LIVE_RUNS = frozenset({RunState.CLAIMED, RunState.RUNNING, RunState.STOPPING})
#: States in which nothing more happens to the run.
FINAL_RUNS = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.STOPPED, RunState.DEAD})

#: A run that undoes a workflow instead of continuing it.
ROLLBACK = "rollback"
#: A run that carries out a delivery.
DELIVERY = "delivery"
#: A run that executes an entry of the schedule.
CRON = "cron"
#: A run that makes calls of a step spread over workers: one of the step's lanes.
ITERATION = "iteration"
#: Kinds of runs without a workflow: no document has the id of such a run.
WITHOUT_WORKFLOW = frozenset({DELIVERY, CRON})
#: Every kind of run.
RUN_KINDS = ("start", "resume", "retry", ROLLBACK, ITERATION, CRON, DELIVERY)

#: Deliveries run before workflows: they are short, and a stop request must not wait for the work it stops.
DELIVERY_PRIORITY = 100

#: Prefix of the reason of a run that was stopped without proof that its processes have ended.
UNCONFIRMED = "stop unconfirmed"

#: Priorities range from minus this number to this number.
MAX_PRIORITY = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRun:
    """A run to be enqueued."""

    adw_id: str
    kind: str = "start"  #: one of RUN_KINDS
    priority: int = 0  #: higher first; among equals, oldest first
    not_before: str = ""  #: timestamps.to_text; "": immediately
    payload: JsonObject = field(default_factory=dict)
    asked_by: str = ""
    demands: Requirements = NO_DEMANDS  #: requirements for the worker
    labels: frozenset[str] = frozenset()  #: `scope:name` labels by which limits count it
    slot: str = ""  #: a workflow has one unfinished run per slot; "": the run that continues the workflow
    parent_run_id: int | None = None  #: for a lane: the workflow's run that waits for its calls


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run as stored in its row."""

    run_id: int
    adw_id: str
    kind: str
    state: RunState
    priority: int
    not_before: str
    attempts: int  #: how often it was claimed
    token: int  #: grows with each claim; identifies a worker's claim
    owner: str  #: the worker's record as text, "" if unclaimed
    seconds_left: float  #: until its claim expires; negative if expired, 0 if unclaimed
    reason: str  #: why it has this state, for people
    payload: JsonObject
    asked_by: str
    created_at: str
    updated_at: str
    started_at: str | None = None
    finished_at: str | None = None
    demands: Requirements = NO_DEMANDS
    labels: frozenset[str] = frozenset()
    losses: int = 0  #: how often its worker vanished
    slot: str = ""
    parent_run_id: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimPolicy:
    """The terms on which a worker claims runs."""

    offer: Capabilities | None = None  #: capabilities of the worker; None: its host and no tags
    limits: RunLimits = NO_LIMITS


NO_TERMS = ClaimPolicy()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd:
    """How a worker is done with a run: the run ends, or it waits again."""

    state: RunState  #: COMPLETED, FAILED or STOPPED; PENDING: requeued at its old position
    reason: str = ""
    not_before: str = ""  #: if it waits again: when; "": immediately
    demands: Requirements | None = None  #: if it waits again: new requirements; None: unchanged


def stop_reason(wanted: str, doubt: str = "") -> str:
    """Return the reason *wanted* for a stop, with the *doubt* whether everything has ended, if there is any."""
    return f"{UNCONFIRMED}: {doubt} ({wanted})" if doubt else wanted


def check_new_run(run: NewRun) -> NewRun:
    """Return *run* with `not_before` in the format that sorts; raise InvalidAdwId or UsageError if it is invalid."""
    check_adw_id(run.adw_id)
    if run.kind not in RUN_KINDS:
        raise UsageError(f"{run.kind!r} is no kind of run; use one of {', '.join(RUN_KINDS)}")
    if not -MAX_PRIORITY <= run.priority <= MAX_PRIORITY:
        raise UsageError(f"a priority is a number from -{MAX_PRIORITY} to {MAX_PRIORITY}, not {run.priority}")
    check_labels(run.labels)
    due = check_due(run.not_before)

    return run if due == run.not_before else replace(run, not_before=due)


def labels_text(labels: Iterable[str]) -> str:
    """Return labels as stored in the row: sorted, each between two bars, "" if there are none."""
    return f"|{'|'.join(sorted(labels))}|" if labels else ""


def labels_of(text: str) -> frozenset[str]:
    """Return the labels in a row's text."""
    return frozenset(filter(None, text.split("|")))


def check_labels(labels: Iterable[str]) -> None:
    """Raise UsageError if any label is invalid."""
    for label in labels:
        scope, _, name = label.partition(":")
        if scope not in SCOPES or not name or "|" in name:
            raise UsageError(f"{label!r} is no label of a run: write {' or '.join(SCOPES)}, a colon and a name")


def check_run_of(adw_id: str, run: NewRun | None) -> None:
    """Raise UsageError if *run* cannot be the first run of workflow *adw_id*."""
    if run is None:
        return
    check_new_run(run)
    if run.adw_id != adw_id:
        raise UsageError(f"a run of {run.adw_id} cannot be enqueued with workflow {adw_id}")


def check_due(not_before: str) -> str:
    """Return the time *not_before* in the format that sorts, "" for immediately; raise UsageError if it is invalid."""
    if not not_before:
        return ""
    try:
        return timestamps.to_text(timestamps.parse(not_before))
    except (ValueError, OverflowError) as exc:
        raise UsageError(
            f"{not_before!r} is no moment; write it like 2026-01-31T09:00:00Z, or nothing: at once"
        ) from exc


def check_final(state: RunState) -> RunState:
    """Return *state* if a run can end in it; raise UsageError otherwise."""
    if state in FINAL_RUNS:
        return state
    ends = ", ".join(known.value for known in RunState if known in FINAL_RUNS)

    raise UsageError(f"a run cannot end as {state.value}; it ends as one of {ends}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The result of executing a run."""

    run: Run | None  #: its current row; None: it is no longer ours
    outcome: Outcome | None  #: None: no attempt was made
    message: str = ""


# --- making the run that continues a workflow: its requirements and labels -------------------------------------
#
# Pure. Both come from the definition frozen in the document, so they do not depend on who requests the run. Runs that
# undo something or carry out a delivery are made elsewhere: they carry no labels, because limits hold work back and
# must not hold back what ends or undoes it.


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFactory:
    """Makes the runs of one home's workflows."""

    repository: str = ""  #: of the home: applies to documents that name no repository
    providers: Mapping[str, str] = field(default_factory=dict)  #: runner of a phase -> provider its agent calls

    def of(
        self, document: WorkflowDocument, kind: str, *, asked_by: str = "", priority: int = 0, not_before: str = ""
    ) -> NewRun:
        """Return the run of *kind* for *document*; raise UsageError if its requirements are invalid."""
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
        # Forges ignore case (Acme/Widget is acme/widget), and so do limits.
        result = [("repository", (repository or self.repository).casefold()), ("workflow", workflow)]
        result += [("provider", self.providers.get(_text(phase.get("runner")), "")) for phase in phases]

        return frozenset(f"{scope}:{name}" for scope, name in result if name and "|" not in name)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
