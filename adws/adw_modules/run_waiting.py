"""
Why a run waits, which runners can do it, and when nobody ever will.

Pure. A run whose demands nobody meets is given up after a while, and not before whoever could do it has been away for
as long: a worker that is started again is not a loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from adws.adw_modules import timestamps
from adws.adw_modules.demands import Offer, meets
from adws.adw_modules.interfaces_coordination import Runner
from adws.adw_modules.owner_record import Verdict
from adws.adw_modules.run_limits import RunLimits
from adws.adw_modules.runs import Run, RunState

#: A runner that is silent for so many leases is not counted on.
STALE_LEASES = 2.0


class RunnerState(Enum):
    """What is known about a runner."""

    ONLINE = "online"
    DRAINING = "draining"  #: ends what it has and takes nothing more
    SILENT = "silent"  #: not heard of for a while; nothing proves that it is gone
    GONE = "gone"  #: it left, or its process is dead


def state_of(runner: Runner, *, verdict: Verdict, lease_seconds: float) -> RunnerState:
    """Return how a runner stands; *verdict* is about its process."""
    if runner.concurrency == 0 or verdict is Verdict.DEAD:
        return RunnerState.GONE
    if runner.silent_seconds > STALE_LEASES * lease_seconds:
        return RunnerState.SILENT

    return RunnerState.DRAINING if runner.is_draining else RunnerState.ONLINE


def offer_of(runner: Runner) -> Offer:
    """Return what a runner has to offer."""
    return Offer(host=runner.owner.host, tags=runner.tags)


# --- runs that nobody can do -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long what nobody can do is waited for, in seconds."""

    no_match: float = 300.0
    lease: float = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Unmatched:
    """A run to give up."""

    run: Run
    why: str


def plan_unmatched(
    waiting: Iterable[Run], runners: Sequence[Runner], *, now: datetime, patience: Patience
) -> tuple[Unmatched, ...]:
    """Return the runs that were due for so long, while nobody who meets their demands was heard of."""
    heard = [offer_of(runner) for runner in runners if _counts(runner, patience)]

    return tuple(
        Unmatched(run=run, why=_nobody(run, patience))
        for run in waiting
        if run.state is RunState.PENDING
        and run.demands.to_text()
        and due_seconds(run, now=now) >= patience.no_match
        and not any(meets(offer, run.demands) for offer in heard)
    )


def due_seconds(run: Run, *, now: datetime) -> float:
    """Return for how long a waiting run has been due, negative when it is not: since its time, or since it waits."""
    since = max(run.not_before, run.updated_at)  # one spelling, so texts sort like moments

    return (now - timestamps.parse(since)).total_seconds()


def _counts(runner: Runner, patience: Patience) -> bool:
    """Say whether what a runner offers counts; what has left counts for as long as a run waits."""
    longest = patience.no_match if runner.concurrency == 0 else max(patience.no_match, STALE_LEASES * patience.lease)

    return runner.silent_seconds <= longest


def _nobody(run: Run, patience: Patience) -> str:
    return (
        f"it demands {run.demands.describe()}, and for {patience.no_match:.0f} s there was no worker that has that: "
        "start one (adw runners lists those there are), then adw resume"
    )


# --- what is said about a run that waits -----------------------------------------------------------------------


def why_held(run: Run, *, offers: Iterable[Offer], full: Collection[str], limits: RunLimits) -> str:
    """Return why a run that is due may not be claimed now, "" when any worker with a place may."""
    if run.demands.to_text() and not any(meets(offer, run.demands) for offer in offers):
        return f"no worker that is there has {run.demands.describe()}"
    held = sorted(run.labels & set(full))
    if held:
        return "; ".join(_is_full(label, limits) for label in held)

    return ""


def _is_full(label: str, limits: RunLimits) -> str:
    scope, _, name = label.partition(":")

    return f"the limit of {limits.of(label)} for {scope} {name} is reached"
