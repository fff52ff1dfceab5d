"""
What the engine, its runners and processes exchange: PhaseContext, Runner, RunReport, Outcome.

A runner runs one phase once. A `PhaseContext` holds everything the runner may know. A runner returns early when an
order arrives, and records each process before that process executes anything.
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


#: The runner of phases that are done by a program outside adw, and the tool name of such steps.
EXTERNAL = "external"


# --- orders ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """An order that ends the running attempt."""

    kind: str  #: drain | pause | stop | abandon | rollback | lost_lease
    reason: str = ""
    asked_by: str = ""
    request_id: int | None = None  #: id of the request row that gave this order
    is_urgent: bool = False  #: do not wait for a graceful end


class Orders(Protocol):
    """The orders for the workflow being worked on. They are polled often, so checking must be cheap."""

    def current(self) -> Order | None:
        """Return the order to obey, or None while the work may continue."""

    def wait(self, seconds: float) -> Order | None:
        """Wait up to *seconds* for an order."""


class NoOrders:
    """Orders that never come, for work that is short or limits itself."""

    def current(self) -> Order | None:
        """Return None."""
        return None

    def wait(self, seconds: float) -> Order | None:
        """Return None, without waiting."""
        del seconds
        return None


def _keep_none(data: JsonObject, step_name: str | None = None) -> str:
    """Raise UsageError: this context has no place to store checkpoints."""
    del data, step_name
    raise UsageError("checkpoints are kept for phases with the runner python only: this one has no place for them")


@dataclass(kw_only=True, slots=True, eq=False)
class PhaseContext:
    """Everything a runner may know and do in one attempt. The engine makes it; the code it runs must not change it."""

    document: WorkflowDocument  #: as it was stored when the attempt began; a runner never changes it
    phase: str
    attempt_number: int  #: counted over all rounds
    round: int
    cwd: Path  #: working directory: the worktree, or the repository
    folder: Path  #: the workflow's own directory for output and results
    orders: Orders
    record_process: Callable[[ProcessRecord], None]  #: returns when the record is durable
    say: Callable[[str], None]  #: shows a line of progress; never raises
    results: Mapping[str, JsonObject] = field(default_factory=dict)  #: results of the earlier phases, by phase name
    hints: tuple[str, ...] = ()  #: instructions people gave for the phase
    env: Mapping[str, str] = field(default_factory=dict)  #: extra environment variables for the runner's process
    effects: Ledger | None = None  #: makes external effects, each recorded in the ledger first
    model: str = ""  #: the model chosen when this attempt began, or "" for the agent's own choice
    #: Stores facts about the agent (session, hashes) with the attempt, added to those stored before; durable on return.
    record_agent: Callable[[JsonObject], None] = lambda _facts: None
    #: Stores marks of the shared git directory of all worktrees with the attempt; durable on return.
    record_shared: Callable[[JsonObject], None] = lambda _facts: None
    answered: Callable[[], None] = lambda: None  #: reports that the phase's external services respond; never raises
    base: str = ""  #: the last recorded commit of the work when the attempt began, or ""
    checkpoint: JsonObject | None = None  #: last checkpoint of an earlier attempt; None: start from the beginning
    #: Stores an object, optionally with a step name, and returns the checkpoint id; durable on return.
    save_checkpoint: Callable[..., str] = _keep_none
    denied: dict[str, int] = field(default_factory=dict)  #: hosts that the sandbox blocked, with counts
    queue: JsonObject = field(default_factory=dict)  #: `queue_id` and `worker_id` of the worker that makes the attempt


class Runner(Protocol):
    """A way to run phases."""

    def check(self, phase: PhaseSpec) -> str:
        """Return why this runner cannot run *phase*, or "" if it can. Starts nothing."""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended | WaitingForChildren:
        """Run *phase* once. Any exception counts as a failed attempt, except Fenced and LeaseLost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Why an attempt may not begin yet."""

    at: datetime  #: when to check again
    reason: str  #: one sentence for people
    party: str  #: the external service to wait for
    generation: int = 0  #: generation of its circuit breaker, which grows each time the breaker closes


@dataclass(frozen=True, kw_only=True, slots=True)
class Harvest:
    """What an attempt achieved that never reported because it was interrupted or suspended."""

    report: RunReport | None = None  #: usage, cost and last message of the attempt
    agent: JsonObject = field(default_factory=dict)  #: facts about the agent, added to those recorded before


# --- what a runner reports -------------------------------------------------------------------------------------
#
# A runner reports facts (`RunReport`), the engine's rules derive what happens next (`Outcome`), and only the worker
# acts on the outcome.


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """What a runner reports after it ran a phase once. An exception instead means that it failed without a report."""

    ok: bool
    error: BaseException | None = None  #: the cause, for the classifier; set exactly when `ok` is False
    summary: str = ""  #: one line for people
    result: JsonObject = field(default_factory=dict)  #: the output of the phase, for gates and later phases
    wants_rework: bool = False  #: the phase succeeded and found that earlier work must be redone
    exit_code: int | None = None
    cost_usd: float | None = None
    output_files: tuple[str, ...] = ()  #: relative to the workflow's directory
    usage: Usage | None = None  #: usage of an agent; `cost_usd` is the part that costs money
    was_done: bool = False  #: set by the engine when the phase itself succeeded and a step after it failed


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspended:
    """The attempt ended on order (drain, pause, stop, lost lease): it does not count, but its usage does."""

    reason: str
    usage: Usage | None = None  #: usage of an agent until then


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingForChildren:
    """The attempt waits for work done elsewhere and resumes when that work ends, still as the same attempt."""

    reason: str  #: what the attempt waits for, as text for people
    until: datetime  #: the latest time to check again
    facts: JsonObject = field(default_factory=dict)  #: what the attempt waits for, as event data


# --- what the engine answers -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """The workflow has ended: completed, abandoned or rolled back."""

    state: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Next:
    """The phase is complete. The next one is *phase*, which has already begun if *is_begun*."""

    phase: str
    is_begun: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryAt:
    """The attempt failed and the phase is retried at that time, or the attempt waits and is checked again then."""

    phase: str
    at: datetime
    reason: str
    is_waiting: bool = False  #: nothing failed: the attempt waits for work done elsewhere


@dataclass(frozen=True, kw_only=True, slots=True)
class Paused:
    """The workflow waits for a person."""

    reason: str  #: paused by someone | awaiting_approval | ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The workflow failed: a phase used up its attempts, or retrying would not help."""

    phase: str
    reason: str  #: terminal reason, such as MAX_ATTEMPTS_EXHAUSTED
    message: str = ""
    advice: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopped:
    """The attempt was suspended on order; the reason decides what happens to the run."""

    reason: str  #: drain | lost_lease


Outcome: TypeAlias = Done | Next | RetryAt | Paused | Failed | Stopped
