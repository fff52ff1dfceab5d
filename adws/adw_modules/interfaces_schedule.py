"""
What the schedule and the notifications ask of their store, and the values that cross.

An entry of the schedule is claimed by compare-and-set for one tick, with a lease: two crons do not double, and one that
dies in the middle holds nothing up for longer than its lease. A notification is one row for each channel; its key says
which transition it tells of, so that storing it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from adws.adw_modules.events import Event
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import OwnerRecord

# --- notifications ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """Something that people are to be told."""

    key: str  #: the same for the same transition, for ever
    kind: str  #: one of notify_rules.KINDS
    title: str  #: one line
    text: str = ""  #: more of it, "" for nothing
    adw_id: str = ""
    channels: tuple[str, ...] = ()  #: by which it is told


@dataclass(frozen=True, kw_only=True, slots=True)
class NotificationRow:
    """A notice on its way by one channel."""

    notice_id: int
    key: str
    channel: str
    kind: str
    adw_id: str
    title: str
    text: str
    status: str  #: pending | sent | given_up
    attempts: int
    not_before: str
    error: str  #: of the last attempt
    created_at: str
    sent_at: str | None = None
    token: int = 0  #: grows with each claim


class NotificationBook(Protocol):
    """What people are to be told, and whether they were."""

    def gather(self, pick: Callable[[Event], Notice | None], *, since: str) -> int:
        """
        Store what *pick* makes of every event since the last call, and return how many rows that made.

        Each event is handed over once, whatever dies meanwhile and however many call at a time. The first call begins
        with the events made at or after *since*.
        """

    def add(self, notices: Sequence[Notice]) -> int:
        """Store notices, those that are known left out, and return how many rows that made."""

    def take(self, *, ttl_seconds: float) -> NotificationRow | None:
        """Claim the oldest row that is due, None when there is none; a claim that ends unsettled is taken again."""

    def settle(self, row: NotificationRow, *, status: str, error: str = "", not_before: str = "") -> bool:
        """Write down what came of it; False when somebody else has it now."""

    def page(self, *, limit: int = 50) -> tuple[NotificationRow, ...]:
        """Return rows, newest first."""

    def forget_before(self, moment: str) -> int:
        """Delete those that are over and older than *moment*, and return how many."""


# --- the schedule ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleRow:
    """What is known about an entry."""

    name: str
    spec: str  #: the expression it was claimed with last
    last_due: str  #: the last tick that was done, "" for none
    last_run: str  #: when that ended
    status: str  #: done | failed, "" before the first time
    outcome: str  #: in one sentence
    memo: JsonObject = field(default_factory=dict)  #: what the entry remembers from one time to the next
    owner: str = ""  #: the record of the cron that is at it, "" for nobody
    token: int = 0  #: grows with each claim
    seconds_left: float = 0.0  #: of the claim; negative when over


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """An entry that is ours for one tick."""

    name: str
    due: str
    token: int
    memo: JsonObject = field(default_factory=dict)


class ScheduleBook(Protocol):
    """The entries of the schedule, which all crons of a home share."""

    def rows(self) -> tuple[ScheduleRow, ...]:
        """Return every entry that was ever claimed, by name."""

    def claim(
        self,
        name: str,
        *,
        spec: str,
        due: str,
        seen: str,
        owner: OwnerRecord,
        ttl_seconds: float,
        dead_token: int | None = None,
    ) -> Tick | None:
        """
        Take an entry for the tick *due*; *seen* is the last tick that the caller saw done.

        None when another cron has it, or has done it meanwhile. *dead_token* is that of a claim whose owner is proven
        dead, which needs not be waited for.
        """

    def renew(self, tick: Tick, *, ttl_seconds: float) -> bool:
        """Push the end of the claim out; False when it is not ours any more."""

    def finish(
        self, tick: Tick, *, status: str, outcome: str, memo: JsonObject | None = None, notices: Sequence[Notice] = ()
    ) -> bool:
        """
        Write down that the tick was done, what is remembered (None: as before) and what people are told of it.

        All of it or nothing; False, and nothing is written, when the claim is not ours any more.
        """
