"""
What one workflow adds to the sums of reports, read from its document as plain JSON.

Pure, and without the document's own model. The same document always adds the same, so looking at it twice adds nothing:
what is new is the difference to what was added before. A document of another tool may hold anything: what has not the
right form is passed over.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from adws.adw_modules import cost_entries, doctor_rules
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.plain_document import error_of, objects

#: How a workflow can have ended, as its state says it.
OUTCOMES = ("completed", "failed", "abandoned", "rolled_back")
#: Attempts that count towards those a phase may have.
COUNTED = frozenset({"succeeded", "failed", "interrupted"})
#: Attempts that are failures.
FAILED = frozenset({"failed", "interrupted"})
#: Kinds of sums about money; the item is who was paid.
COST_KINDS = ("cost", "cost_unknown", "cost_subscription", "cost_estimated", "tokens")

#: Characters of a message that are kept.
LABEL_LENGTH = 300
#: Most attempts that are told apart; more are counted as so many.
MOST_NEEDED = 99
#: Buckets of durations for each doubling: one is a fifth wide.
PER_DOUBLING = 4
_LONGEST_MS = 10**11

_DAY = re.compile(r"\d{4}-\d\d-\d\d(?=T|$)")


class Slot(NamedTuple):
    """Which sum."""

    kind: str
    day: str
    workflow: str
    phase: str = ""
    item: str = ""


class Sum(NamedTuple):
    """A sum."""

    number: int = 0
    amount: int = 0  #: millionths of a dollar, or milliseconds

    def plus(self, other: Sum) -> Sum:
        """Return both together."""
        return Sum(self.number + other.number, self.amount + other.amount)


NOTHING = Sum()


class Last(NamedTuple):
    """The last failure of a group."""

    at: str = ""
    adw_id: str = ""
    label: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tallies:
    """What a workflow adds."""

    adw_id: str
    workflow: str
    outcome: str = ""  #: "": it goes on
    last_day: str = ""  #: on which an attempt ended last
    attempts: int = 0  #: that ended
    cost: int = 0  #: millionths of a dollar
    sums: Mapping[Slot, Sum] = field(default_factory=dict)
    lasts: Mapping[Slot, Last] = field(default_factory=dict)  #: of failures


# --- reading a document ----------------------------------------------------------------------------------------


def tallies_of(adw_id: str, workflow: str, data: JsonObject) -> Tallies:
    """Return what the document *data* of a workflow with that name of a definition adds."""
    maker = _Maker(adw_id, workflow)
    phases = data.get("phases")
    for phase in objects(phases):
        maker.add_phase(str(phase.get("name") or ""), list(objects(phase.get("attempts"))))
    for entry in cost_entries.entries_of(adw_id, workflow, phases):
        maker.add_cost(entry)
    outcome = data.get("current_state")
    if outcome in OUTCOMES and (day := day_of(_ended_at(data, str(outcome)))):
        maker.add(Slot("outcome", day, workflow, item=str(outcome)))

    return maker.result(str(outcome) if outcome in OUTCOMES else "")


class _Maker:
    """Adds up what is found."""

    def __init__(self, adw_id: str, workflow: str) -> None:
        self._adw_id, self._workflow = adw_id, workflow
        self._sums: dict[Slot, list[int]] = {}  #: number and amount, changed in place: there are dozens of each
        self._lasts: dict[Slot, Last] = {}
        self._last_day, self._attempts, self._cost = "", 0, 0

    def add(self, slot: Slot, number: int = 1, amount: int = 0) -> None:
        found = self._sums.setdefault(slot, [0, 0])
        found[0] += number
        found[1] += amount

    def add_phase(self, name: str, attempts: Iterable[JsonObject]) -> None:
        needed, in_round = 0, None
        for attempt in attempts:
            status, day = str(attempt.get("status") or ""), day_of(attempt.get("ended_at"))
            needed = needed if attempt.get("round", 1) == in_round else 0
            in_round = attempt.get("round", 1)
            needed += status in COUNTED
            if not day:
                continue
            self._attempts += 1
            self._last_day = max(self._last_day, day)
            self._add_attempt(name, day, attempt, needed)
            needed = 0 if status == "succeeded" else needed

    def _add_attempt(self, phase: str, day: str, attempt: JsonObject, needed: int) -> None:
        status, took = str(attempt.get("status") or ""), milliseconds(attempt.get("duration"))
        workflow = self._workflow
        self.add(Slot("attempt", day, workflow, phase, status), amount=took or 0)
        if status == "succeeded":
            self.add(Slot("needed", day, workflow, phase, str(min(needed, MOST_NEEDED))))
        if status == "succeeded" and took is not None:
            self.add(Slot("duration", f"{day[:7]}-01", workflow, phase, str(bucket_of(took))))
        if status in FAILED:
            self._add_failure(Slot("failure", day, workflow, phase), attempt)

    def _add_failure(self, slot: Slot, attempt: JsonObject) -> None:
        found = error_of(attempt)
        message, klass = str(found.get("message") or "").strip(), str(found.get("klass") or "")
        slot = slot._replace(item=failure_item(str(found.get("category") or "unknown"), klass, message))
        at = str(attempt.get("ended_at"))
        self.add(slot)
        if at >= self._lasts.get(slot, Last()).at:
            self._lasts[slot] = Last(at, self._adw_id, message[:LABEL_LENGTH])

    def add_cost(self, entry: cost_entries.CostEntry) -> None:
        day = day_of(entry.ended_at)
        if not day:
            return
        micros = round((entry.cost_usd or 0.0) * 1_000_000)
        self._cost += micros
        figures = (1, entry.is_unknown, entry.is_subscription, entry.is_estimated, entry.tokens.total)
        for kind, number in zip(COST_KINDS, figures, strict=True):
            if number:
                slot = Slot(kind, day, self._workflow, entry.phase, entry.provider)
                self.add(slot, int(number), micros if kind == "cost" else 0)

    def result(self, outcome: str) -> Tallies:
        return Tallies(
            adw_id=self._adw_id,
            workflow=self._workflow,
            outcome=outcome,
            last_day=self._last_day,
            attempts=self._attempts,
            cost=self._cost,
            sums={slot: Sum(*found) for slot, found in self._sums.items()},
            lasts=self._lasts,
        )


def _ended_at(data: JsonObject, outcome: str) -> object:
    """Return when the workflow came to its outcome: its last move there, else its last change."""
    history = data.get("state_history")
    moves = [move for move in objects(history) if move.get("to") == outcome]

    return moves[-1].get("timestamp") if moves else data.get("updated_at")


def failure_item(category: str, klass: str, message: str) -> str:
    """Return what failures of a group have in common; it begins with their category."""
    print_ = doctor_rules.fingerprint(klass, message)

    return f"{category}:{hashlib.sha256(print_.encode('utf-8', 'replace')).hexdigest()[:16]}"


def category_of(item: str) -> str:
    """Return the category of a group of failures."""
    return item.rpartition(":")[0]


def day_of(moment: object) -> str:
    """Return the day of a moment, "" for what is none."""
    found = _DAY.match(moment) if isinstance(moment, str) else None

    return found.group() if found else ""


def milliseconds(seconds: object) -> int | None:
    """Return a duration in milliseconds, None for what is none."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        return None

    return int(min(seconds * 1000, _LONGEST_MS))


# --- durations -------------------------------------------------------------------------------------------------


def bucket_of(took: int) -> int:
    """Return the bucket of so many milliseconds."""
    return math.floor(PER_DOUBLING * math.log2(max(took, 1)))


def seconds_at(bucket: float) -> float:
    """Return where a bucket begins, in seconds; its middle is half a bucket further."""
    return float(2.0 ** (bucket / PER_DOUBLING) / 1000.0)


# --- what is new -----------------------------------------------------------------------------------------------


def difference(before: Mapping[Slot, Sum], after: Mapping[Slot, Sum]) -> dict[Slot, Sum]:
    """Return what has to be added to *before* to make it *after*; sums that stay the same are left out."""
    if not before:
        return dict(after)
    changed = {}
    for slot in {**before, **after}:
        old, new = before.get(slot, NOTHING), after.get(slot, NOTHING)
        if old != new:
            changed[slot] = Sum(new.number - old.number, new.amount - old.amount)

    return changed


def to_text(sums: Mapping[Slot, Sum]) -> str:
    """Return sums as text, for a row."""
    return json.dumps([[*slot, *total] for slot, total in sums.items()], separators=(",", ":"))


def from_text(text: str | None) -> dict[Slot, Sum]:
    """Return the sums in the text of a row; none for None."""
    return {Slot(*entry[:5]): Sum(*entry[5:]) for entry in json.loads(text or "[]")}
