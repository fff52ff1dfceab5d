"""
What came of one attempt, and what a runner says about it.

A runner reports facts (`RunReport`); the rules make of them what happens next (`Outcome`); only the worker acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from adws.adw_modules.json_value import JsonObject

if TYPE_CHECKING:
    from adws.adw_modules.agent import Usage

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
class Forked:
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
    """The attempt failed and the phase is tried again at that moment, or it waits and is looked at again then."""

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
    """The attempt was suspended on order; the run goes back to where whoever ordered it wants it."""

    reason: str  #: drain | lost_lease


Outcome: TypeAlias = Done | Next | RetryAt | Paused | Failed | Stopped
