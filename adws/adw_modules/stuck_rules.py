"""
What is stuck now, why, and what to type.

Pure. How long an attempt may take is said by its own history: how long successful attempts at that phase of that
workflow took. Where there is not enough of one, a fixed time holds. A workflow that waits for a moment, a person or
somebody outside is not stuck, and neither is one that waits because every worker is busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from adws.adw_modules import timestamps
from adws.adw_modules.interfaces_reports import (
    PhaseHistory,
    RunningNow,
    StuckKind,
    StuckNow,
    Subject,
    WaitingNow,
    WaitKind,
)
from adws.adw_modules.run_waiting import STALE_LEASES
from adws.adw_modules.time_words import span

_HISTORY = "of {count} that succeeded, 95 % took {p95} or less and none more than {longest}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StuckTerms:
    """From when on something is stuck."""

    lease_seconds: float = 30.0
    minimum: int = 5  #: successes that make a history
    factor: float = 2.0  #: times what most took
    shortest_seconds: float = 60.0  #: nothing that takes less is called long
    after: timedelta | None = timedelta(minutes=120)  #: without a history; None: nothing is too long then
    untaken_seconds: float = 300.0  #: so long something may be due while no worker is there

    def limit_of(self, history: PhaseHistory | None) -> float | None:
        """Return how many seconds an attempt may take, None when nobody can say."""
        if history is None or history.count < self.minimum:
            return None if self.after is None else self.after.total_seconds()

        return max(self.shortest_seconds, self.factor * history.p95, history.longest)


@dataclass(frozen=True, kw_only=True, slots=True)
class StuckFacts:
    """What is known about what is not over."""

    now: datetime
    running: Sequence[RunningNow] = ()
    waiting: Sequence[WaitingNow] = ()
    unattended: Sequence[WaitingNow] = ()
    histories: Mapping[tuple[str, str], PhaseHistory] | None = None  #: by workflow and phase
    has_worker: bool = True  #: one that would take something up


def find_stuck(facts: StuckFacts, terms: StuckTerms) -> tuple[StuckNow, ...]:
    """Return what is stuck: what lost its worker first, then what takes too long, then what nobody takes."""
    return (
        *(_silent(one) for one in facts.running if is_silent(one, terms)),
        *(_unattended(one) for one in facts.unattended if _age(one.since, facts.now) > terms.lease_seconds),
        *_too_long(facts, terms),
        *_not_taken(facts, terms),
    )


def is_silent(one: RunningNow, terms: StuckTerms) -> bool:
    """Say whether nobody says any more that the work on it goes on."""
    is_unheard = one.silent_seconds is not None and one.silent_seconds > STALE_LEASES * terms.lease_seconds

    return one.seconds_left < 0.0 or is_unheard


def _silent(one: RunningNow) -> StuckNow:
    silent = max(-one.seconds_left, one.silent_seconds or 0.0)
    adw_id = one.subject.adw_id

    return StuckNow(
        subject=one.subject,
        kind=StuckKind.SILENT,
        phase=one.phase,
        since=one.started_at,
        why=f"its worker has not said for {span(silent)} that it lives",
        commands=("adw recover", f"adw explain {adw_id}"),
    )


def _unattended(one: WaitingNow) -> StuckNow:
    adw_id = one.subject.adw_id
    what = f"{one.phase} is under way" if one.phase else f"it is {one.subject.state}"

    return StuckNow(
        subject=one.subject,
        kind=StuckKind.UNATTENDED,
        phase=one.phase,
        since=one.since,
        why=f"{what} by its document, but nobody works on it and no run of it waits",
        commands=("adw recover", f"adw resume {adw_id}"),
    )


def _too_long(facts: StuckFacts, terms: StuckTerms) -> Iterator[StuckNow]:
    for one in facts.running:
        history = (facts.histories or {}).get(key_of(one.subject, one.phase))
        took, limit = _age(one.started_at, facts.now), terms.limit_of(history)
        if not one.phase or is_silent(one, terms) or limit is None or took <= limit:
            continue
        adw_id = one.subject.adw_id
        yield StuckNow(
            subject=one.subject,
            kind=StuckKind.TOO_LONG,
            phase=one.phase,
            since=one.started_at,
            why=f"attempt {one.attempt} at {one.phase} takes {span(took)} so far: {_usual(history, terms, limit)}",
            commands=(f"adw logs {adw_id} -f", f"adw stop {adw_id}"),
        )


def _usual(history: PhaseHistory | None, terms: StuckTerms, limit: float) -> str:
    if history is None or history.count < terms.minimum:
        return f"more than {span(limit)}, and too few have succeeded to say how long it usually takes"

    return _HISTORY.format(count=history.count, p95=span(history.p95), longest=span(history.longest))


def _not_taken(facts: StuckFacts, terms: StuckTerms) -> Iterator[StuckNow]:
    for one in () if facts.has_worker else facts.waiting:
        waited = _age(one.since, facts.now)
        if one.kind is not WaitKind.WORKER or waited < terms.untaken_seconds:
            continue
        yield StuckNow(
            subject=one.subject,
            kind=StuckKind.NOT_TAKEN,
            phase=one.phase,
            since=one.since,
            why=f"it has been due for {span(waited)}, and no worker is there to take it",
            commands=("adw worker", f"adw resume {one.subject.adw_id}"),
        )


def key_of(subject: Subject, phase: str) -> tuple[str, str]:
    """Return what a history is kept under."""
    return subject.workflow, phase


def _age(moment: str, now: datetime) -> float:
    """Return how many seconds ago a moment was, 0 for what is none."""
    try:
        return max(0.0, (now - timestamps.parse(moment)).total_seconds())
    except ValueError:
        return 0.0
