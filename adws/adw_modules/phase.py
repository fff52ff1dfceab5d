"""
What the engine, its runners and processes exchange: PhaseContext, Runner, RunReport, Outcome.

A runner runs one phase once. It gets all it may know in a `PhaseContext`, ends early when something is ordered, and
records a process before that does anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import JsonObject

if TYPE_CHECKING:
    from adws.adw_modules.agent import Usage
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.effects import Ledger
    from adws.adw_modules.interfaces import ProcessRecord
    from adws.adw_modules.workflow.model import PhaseSpec


#: The runner of phases that a program outside of adw does, and the tool of such steps.
EXTERNAL = "external"


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


def _keep_none(data: JsonObject, step_name: str | None = None) -> str:
    """Refuse: the context was made without a place for checkpoints."""
    del data, step_name
    raise UsageError("checkpoints are kept for phases with the runner python only: this one has no place for them")


@dataclass(kw_only=True, slots=True, eq=False)
class PhaseContext:
    """All that a runner may know and do in one attempt; made by the engine, and not to be changed by what it runs."""

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
    effects: Ledger | None = None  #: makes effects on the outside world, each in the ledger first
    model: str = ""  #: the model this attempt was begun with, "": the agent's own choice
    #: Keeps facts about the agent (session, hashes) with the attempt, besides those kept before; durable on return.
    record_agent: Callable[[JsonObject], None] = lambda _facts: None
    #: Keeps marks of the git directory that all worktrees share with the attempt; durable on return.
    record_shared: Callable[[JsonObject], None] = lambda _facts: None
    answered: Callable[[], None] = lambda: None  #: says that the external services of the phase answer; never raises
    base: str = ""  #: the commit the work stood on when the attempt began, "" without a repository
    checkpoint: JsonObject | None = None  #: what an earlier attempt saved last; None: begin at the beginning
    #: Stores an object, and if wanted the name of a step; durable on return, which is the id of the checkpoint.
    save_checkpoint: Callable[..., str] = _keep_none
    denied: dict[str, int] = field(default_factory=dict)  #: hosts that its sandbox kept it from, with how often
    queue: JsonObject = field(default_factory=dict)  #: `queue_id` and `worker_id` of the worker that makes the attempt


class Runner(Protocol):
    """A way to run phases."""

    def check(self, phase: PhaseSpec) -> str:
        """Return what is wrong with *phase* for this runner, "" when nothing is; starts nothing."""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended | WaitingForChildren:
        """Run *phase* once. What it raises counts as a failed attempt, but for Fenced and LeaseLost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Why an attempt may not begin yet."""

    at: datetime  #: when to ask again
    reason: str  #: one sentence for people
    party: str  #: the external service that is waited for
    generation: int = 0  #: of its circuit breaker; grows when that closes


@dataclass(frozen=True, kw_only=True, slots=True)
class Harvest:
    """What an attempt had achieved that never reported: one that was cut off, or ended on order."""

    report: RunReport | None = None  #: its usage and cost, and what it said last
    agent: JsonObject = field(default_factory=dict)  #: facts about the agent, besides those recorded before


# --- runs ------------------------------------------------------------------------------------------------------


# The outcome of one attempt, and what a runner reports about it.
#
# A runner reports facts (`RunReport`); the rules make of them what happens next (`Outcome`); only the worker acts on
# it.


# --- what a runner reports -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """What a runner says after it ran a phase once. An exception says that it failed without a report."""

    ok: bool
    error: BaseException | None = None  #: why not, for the classifier; set exactly when it is not ok
    summary: str = ""  #: one line for people
    result: JsonObject = field(default_factory=dict)  #: what the phase gave back, for gates and later phases
    wants_rework: bool = False  #: it worked, and found that earlier work has to be done again
    exit_code: int | None = None
    cost_usd: float | None = None
    output_files: tuple[str, ...] = ()  #: relative to the workflow's directory
    usage: Usage | None = None  #: what an agent used; `cost_usd` is what of it counts as money
    was_done: bool = False  #: set by the engine when the work was done, and what came after it failed


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspended:
    """The attempt was ended on order (drain, pause, stop, lost lease): it does not count, but what it used does."""

    reason: str
    usage: Usage | None = None  #: what an agent used until then


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingForChildren:
    """The attempt waits for work that others do, and goes on when that is over; it is the same attempt then."""

    reason: str  #: what it waits for, for people
    until: datetime  #: when to look again at the latest
    facts: JsonObject = field(default_factory=dict)  #: what it waits for, for the event


# --- what the engine answers -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """The workflow is over: completed, abandoned or rolled back."""

    state: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Next:
    """The phase is complete; go on with *phase*, which is begun already when *is_begun*."""

    phase: str
    is_begun: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryAt:
    """The attempt failed and the phase is retried at that moment, or it waits and is checked again then."""

    phase: str
    at: datetime
    reason: str
    is_waiting: bool = False  #: nothing failed: the attempt waits for work that others do


@dataclass(frozen=True, kw_only=True, slots=True)
class Paused:
    """The workflow waits for a person."""

    reason: str  #: paused by someone | awaiting_approval | ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The workflow failed: a phase used up its attempts, or what went wrong is not helped by trying again."""

    phase: str
    reason: str  #: terminal reason, such as MAX_ATTEMPTS_EXHAUSTED
    message: str = ""
    advice: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopped:
    """The attempt was suspended on order; the reason decides where the run goes."""

    reason: str  #: drain | lost_lease


Outcome: TypeAlias = Done | Next | RetryAt | Paused | Failed | Stopped
