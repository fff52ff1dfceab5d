"""
Which phase comes next, how many attempts it has, and what its attempts add up to.

Pure. Everything is read off the attempts themselves: there is no second counter that could say something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING

from adws.adw_modules.errors import StateInvalid
from adws.adw_modules.workflow.model import PhaseSpec, WorkflowSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument


#: Ordered stops in a row after which a person has to look, and again after as many more.
MAX_SUSPENSIONS = 20

#: How attempts end that do not count against any limit.
NOT_COUNTED = frozenset({"suspended", "parked"})
#: The status of an attempt that waits for work that others do, and goes on.
WAITING = "waiting"

_PASSED = frozenset({"complete", "skipped"})
_name_of = attrgetter("name")


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The phase to work on."""

    spec: PhaseSpec
    record: PhaseRecord
    index: int  #: of the record in the document


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocked:
    """A phase whose needs can never be met any more."""

    spec: PhaseSpec
    index: int
    missing: tuple[str, ...]  #: phases that would have to be complete


@dataclass(frozen=True, kw_only=True, slots=True)
class AllPassed:
    """There is nothing left to do."""


def choose(spec: WorkflowSpec, phases: Sequence[PhaseRecord]) -> Chosen | Blocked | AllPassed:
    """
    Return the first phase that is not over, in the order of the definition.

    That order respects tiers and needs, and a required phase that failed ends the workflow: so nothing of a later tier
    starts after a failed one. Raises StateInvalid when the document has other phases than its definition: one that was
    left out would be one that nobody missed.
    """
    if list(map(_name_of, phases)) != list(map(_name_of, spec.phases)):
        raise StateInvalid(f"the document does not have the phases of its definition {spec.catalog_id}")
    for index, (item, record) in enumerate(zip(spec.phases, phases, strict=True)):
        if is_over(item, record.status):
            continue
        missing = _missing(item.needs, phases) if item.needs else ()
        if missing:
            return Blocked(spec=item, index=index, missing=missing)

        return Chosen(spec=item, record=record, index=index)

    return AllPassed()


def _missing(needs: tuple[str, ...], phases: Sequence[PhaseRecord]) -> tuple[str, ...]:
    """Return those of *needs* that are not complete."""
    complete = {record.name for record in phases if record.status == "complete"}

    return tuple(name for name in needs if name not in complete)


def is_over(phase: PhaseSpec, status: str) -> bool:
    """Say whether the workflow may go past *phase*."""
    return status in _PASSED or (status == "failed" and not phase.is_required)


# --- attempts --------------------------------------------------------------------------------------------------


def limit(record: PhaseRecord) -> int:
    """Return how many attempts the phase has in this round, with what a person granted."""
    return record.max_attempts + record.granted


def is_exhausted(record: PhaseRecord) -> bool:
    """Say whether the round has no attempt left, nor one that waits for others and goes on."""
    return record.attempts_used >= limit(record) and waiting_attempt(record) is None


def last_attempt(record: PhaseRecord) -> AttemptRecord | None:
    """Return the newest attempt."""
    return record.attempts[-1] if record.attempts else None


def running_attempt(record: PhaseRecord) -> AttemptRecord | None:
    """Return the attempt that is recorded as running, if its end is not."""
    last = last_attempt(record)
    return last if last is not None and last.status == "running" else None


def waiting_attempt(record: PhaseRecord) -> AttemptRecord | None:
    """Return the attempt of this round that waits for work that others do."""
    last = last_attempt(record)
    return last if last is not None and last.status == WAITING and last.round == record.round else None


def suspensions(record: PhaseRecord) -> int:
    """Return how many ordered stops there were in a row."""
    return sum(1 for _ in takewhile(lambda attempt: attempt.status == "suspended", reversed(record.attempts)))


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptTotals:
    """What the attempts of a phase add up to, over all rounds."""

    attempts: int
    counted: int  #: without those that were ended on order or parked
    seconds: float
    average_seconds: float | None  #: of those whose time is known


def totals(record: PhaseRecord) -> AttemptTotals:
    """Return what the attempts of *record* add up to."""
    times = [attempt.duration for attempt in record.attempts if attempt.duration is not None]
    counted = sum(1 for attempt in record.attempts if attempt.status not in NOT_COUNTED)

    return AttemptTotals(
        attempts=len(record.attempts),
        counted=counted,
        seconds=sum(times),
        average_seconds=sum(times) / len(times) if times else None,
    )


def over_budget(document: WorkflowDocument) -> str:
    """Return how the workflow's health budget is used up, "" while there is some left."""
    if document.max_total_attempts is None and document.max_minutes is None:
        return ""
    everything = [totals(record) for record in document.phases]
    attempts = sum(item.counted for item in everything)
    if document.max_total_attempts is not None and attempts >= document.max_total_attempts:
        return f"{attempts} of {document.max_total_attempts} attempts are used"
    minutes = sum(item.seconds for item in everything) / 60.0
    if document.max_minutes is not None and minutes >= document.max_minutes:
        return f"{minutes:.1f} of {document.max_minutes:g} minutes are used"

    return ""
