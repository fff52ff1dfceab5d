"""
What the engine, its runners and the run queue ask of each other: the second half of `interfaces`.

A runner runs one phase once. It gets all it may know in a `PhaseContext`, ends early when something is ordered, and
records a process before that does anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules.errors import UsageError
from adws.adw_modules.json_value import JsonObject, JsonValue

if TYPE_CHECKING:
    from adws.adw_modules.demands import Demands
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.outcome import Forked, RunReport, Suspended
    from adws.adw_modules.owner_record import OwnerRecord
    from adws.adw_modules.runs import NewRun, Run, RunEnd, RunState, Terms
    from adws.adw_modules.workflow import PhaseSpec

# --- orders ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Something that ends the attempt under way."""

    kind: str  #: drain | pause | stop | abandon | rollback | lost_lease
    reason: str = ""
    asked_by: str = ""
    request_id: int | None = None  #: the row it came from
    is_urgent: bool = False  #: do not wait for a graceful end


class Orders(Protocol):
    """The orders for the workflow that is being worked on; looked at often, so looking is cheap."""

    def current(self) -> Order | None:
        """Return the order to obey, None while the work may go on."""

    def wait(self, seconds: float) -> Order | None:
        """Wait for an order, at most that long."""


class NoOrders:
    """Nobody orders anything: what is done is short, or has its own limit."""

    def current(self) -> Order | None:
        """Return None."""
        return None

    def wait(self, seconds: float) -> Order | None:
        """Return None, without waiting."""
        del seconds
        return None


# --- runners ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRecord:
    """A process we started, recorded before it executes anything; enough to recognise and end it after a crash."""

    token: str  #: in its environment as ADW_PROCESS_TOKEN, and in that of all its descendants
    identity: OwnerRecord  #: pid, start ticks, boot, namespace, machine
    argv: tuple[str, ...]  #: what it runs, without secrets
    started_at: str

    def to_json(self) -> JsonObject:
        """Return the record as it stands in the document."""
        return {
            "token": self.token,
            "identity": self.identity.to_text(),
            "argv": list(self.argv),
            "started_at": self.started_at,
        }


class CheckpointSaver(Protocol):
    """Stores a checkpoint of the phase that runs."""

    def __call__(self, data: JsonObject, step_name: str | None = None) -> str:
        """Store *data*, durable on return, and return the id of the checkpoint; raise TypeError or ValueError."""


def _keep_none(data: JsonObject, step_name: str | None = None) -> str:
    """Refuse: whoever made the context gave no place for checkpoints."""
    del data, step_name
    raise UsageError("checkpoints are kept for phases with the runner python only: this one has no place for them")


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseContext:
    """All that a runner may know and do in one attempt."""

    document: WorkflowDocument  #: as it was stored when the attempt began; a runner never changes it
    phase: str
    attempt_number: int  #: over all rounds
    round: int
    cwd: Path  #: where the work is: the worktree, or the repository
    folder: Path  #: the workflow's own directory for output and results
    orders: Orders
    record_process: Callable[[ProcessRecord], None]  #: returns when the record is durable
    say: Callable[[str], None]  #: shows a line of progress; never raises
    results: Mapping[str, JsonObject] = field(default_factory=dict)  #: of the phases before, by name
    hints: tuple[str, ...] = ()  #: what a person said to do differently
    env: Mapping[str, str] = field(default_factory=dict)  #: variables for its process, besides the allowed ones
    effects: EffectMaker | None = None  #: makes effects on the outside world, each in the ledger first
    model: str = ""  #: the model this attempt was begun with, "": the agent's own choice
    #: Keeps facts about the agent (session, hashes) with the attempt, besides those kept before; durable on return.
    record_agent: Callable[[JsonObject], None] = lambda _facts: None
    answered: Callable[[], None] = lambda: None  #: says that the outside parties of the phase answer; never raises
    base: str = ""  #: the commit the work stood on when the attempt began, "" without a repository
    checkpoint: JsonObject | None = None  #: what an earlier attempt saved last; None: begin at the beginning
    save_checkpoint: CheckpointSaver = _keep_none  #: durable on return
    queue: JsonObject = field(default_factory=dict)  #: `queue_id` and `worker_id` of who makes the attempt


class EffectMaker(Protocol):
    """Makes effects on the outside world so that a crash neither loses nor doubles one (`engine.ledger.Ledger`)."""

    def facts(self, key: str) -> JsonObject | None:
        """Return what is known about an effect that is there, None when it is not."""

    def make(
        self,
        key: str,
        kind: str,
        *,
        undo: JsonObject,
        find: Callable[[], JsonObject | None],
        act: Callable[[], JsonObject],
        fields: Callable[[JsonObject], JsonObject] = ...,
    ) -> JsonObject:
        """Return the facts of an effect, made unless it is there."""

    def change(
        self, key: str, *, intended: JsonObject, act: Callable[[], JsonObject], find: Callable[[], JsonObject | None]
    ) -> JsonObject:
        """Return the facts of an effect that is there, changed to what is *intended* unless it is that already."""

    def note(self, key: str, facts: JsonObject) -> None:
        """Add to what is known about an effect."""

    def undone(self, key: str, outcome: str = "undone", facts: JsonObject | None = None) -> None:
        """Write down that an effect is not there any more."""

    def mark_merged(self) -> None:
        """Write down that the pull request is merged: from here on nothing is rolled back."""

    def warn(self, warning: str) -> None:
        """Write down something that went otherwise than asked for and does not keep the work from being done."""

    def set_fields(self, **fields: JsonValue) -> None:
        """Set fields of the document that say where an effect is."""


class Runner(Protocol):
    """A way to run phases."""

    def check(self, phase: PhaseSpec) -> str:
        """Return what is wrong with *phase* for this runner, "" when nothing is; starts nothing."""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended | Forked:
        """Run *phase* once. What it raises counts as a failed attempt, but for Fenced and LeaseLost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Why an attempt may not begin yet."""

    at: datetime  #: when to ask again
    reason: str  #: one sentence for people
    party: str  #: the outside party that is waited for


@dataclass(frozen=True, kw_only=True, slots=True)
class Harvest:
    """What an attempt had achieved that never reported: one that was cut off, or ended on order."""

    report: RunReport | None = None  #: its usage and cost, and what it said last
    agent: JsonObject = field(default_factory=dict)  #: facts about the agent, besides those recorded before


# --- runs ------------------------------------------------------------------------------------------------------


class RunQueue(Protocol):
    """
    What waits for a worker. Claiming is one compare-and-set; the highest priority first, then the oldest.

    Every call of a worker carries the run it claimed; when its token is not the row's any more, the call raises
    RunLost and changes nothing. An unfinished run of a workflow is unique: enqueueing another returns that one.
    """

    def enqueue(self, run: NewRun) -> Run:
        """Store a run, durable when this returns; the workflow's unfinished run when it has one."""

    def claim(
        self,
        owner: OwnerRecord,
        *,
        ttl_seconds: float,
        run_id: int | None = None,
        only_deliveries: bool = False,
        terms: Terms = ...,
    ) -> Run | None:
        """
        Take the next run that is due (or *run_id*, if it still waits), None when there is none.

        With *only_deliveries* others are passed over; so is what demands more than *terms* offer, and what carries a
        label that is full under its limits.
        """

    def begin(self, run: Run) -> Run:
        """Say that work on a claimed run has begun."""

    def renew(self, run: Run, *, ttl_seconds: float) -> Run:
        """Push the end of the claim out, and return the run as it stands: STOPPING when it shall stop."""

    def requeue(self, run: Run, *, not_before: str = "", reason: str = "", demands: Demands | None = None) -> Run:
        """
        Give the run back: PENDING again (STOPPED if it was stopping), due at *not_before*, in its old place.

        With *demands* it waits for a worker that meets these, instead of those it had.
        """

    def finish(self, run: Run, state: RunState, *, reason: str = "") -> Run:
        """End the run: COMPLETED, FAILED or STOPPED."""

    def ask_to_stop(self, run_id: int, *, reason: str = "") -> Run:
        """Stop a run: one that waits is STOPPED at once, one with a worker becomes STOPPING. Idempotent."""

    def take_back(self, run: Run, *, reason: str) -> Run | None:
        """
        Make a run whose worker is gone PENDING again (STOPPED if it was stopping), None when it moved on.

        A claim that was over in *run* must still be over; for one that was not, the caller has proof of death. Counts
        one more of the run's `losses`.
        """

    def bury(self, run: Run, *, reason: str) -> Run | None:
        """
        End a run that too many workers vanished with: DEAD (STOPPED if it was stopping), None when it moved on.

        The same care as with `take_back`, and the loss counts; one that waits can be buried, too.
        """

    def settle_lost(self, run: Run, end: RunEnd) -> Run | None:
        """
        Do what recovery decided about a run whose worker is gone, or that waits; None when it moved on.

        It waits again, or ends as FAILED, STOPPED or DEAD; one that was to stop is STOPPED whatever was decided. The
        same care as with `take_back`, and the loss is counted as there.
        """

    def get(self, run_id: int) -> Run | None:
        """Return a run."""

    def of_workflow(self, adw_id: str, *, limit: int = 50) -> tuple[Run, ...]:
        """Return the runs of a workflow, newest first, without the lanes of its steps."""

    def page(self, *, states: Sequence[RunState] = (), limit: int = 50, before: int | None = None) -> tuple[Run, ...]:
        """Return runs, newest first, those with a lower id than *before*."""

    def live(self) -> tuple[Run, ...]:
        """Return every run that a worker has, or had when it died."""

    def demanding(self) -> tuple[Run, ...]:
        """Return every waiting run that demands something, the oldest first."""

    def seconds_to_next(self) -> float | None:
        """Return in how many seconds the next waiting run is due (0 when one is), None when none waits."""


class QueueWatch(Protocol):
    """A cheap look at whether anything was committed to the database since the last look."""

    def has_changed(self) -> bool:
        """Say whether there may be something new; the first look says yes."""

    def close(self) -> None:
        """Let go of what it holds open."""
