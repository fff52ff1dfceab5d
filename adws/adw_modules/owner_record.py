"""
Who owns a workflow, and whether that owner is still alive.

Pure: the record says what was true when the lease was taken, the observation what is true now. A process is only ever
called dead on proof; everything unreadable is `unknown`, and then the lease's end decides.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

#: Fields of a record that are numbers; all others are texts.
_NUMBERS = frozenset({"pid", "start_ticks"})
#: Records that are kept in mind: each lease and each claim has one of its own.
_KEPT = 4096


class Verdict(Enum):
    """What is known about an owner."""

    ALIVE = "alive"  #: the very process that took the lease runs
    DEAD = "dead"  #: proven: other boot, pid gone, pid reused, or a zombie
    UNKNOWN = "unknown"  #: other host or pid namespace, or nothing readable


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerRecord:
    """Identity of an owning process, enough to recognise it after a restart or a reused pid."""

    token: str  #: random, unique for each owner
    host: str  #: name of the machine, for people
    machine: str  #: stable identity of the machine, "" when unknown
    boot_id: str  #: kernel boot, "" when unknown (no /proc)
    pid_namespace: str  #: "" when unknown
    pid: int
    start_ticks: int  #: field 22 of /proc/<pid>/stat, 0 when unknown
    role: str = "cli"  #: cli | worker | web | library

    def to_text(self) -> str:
        """Return the record as one line of JSON, as it stands in the lease."""
        return _text_of(self)

    @classmethod
    def from_text(cls, text: str) -> OwnerRecord | None:
        """Return the record written in *text*, or None when it is empty or not one of ours."""
        return _record_in(text)

    def describe(self) -> str:
        """Return the owner in words, for messages."""
        return f"{self.role} {self.pid}@{self.host}"


_KINDS = tuple((name, int if name in _NUMBERS else str) for name in OwnerRecord.__slots__)


@lru_cache(maxsize=_KEPT)
def _record_in(text: str) -> OwnerRecord | None:
    """Return the record in *text*; recovery reads the same ones again and again."""
    try:
        record = OwnerRecord(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    # A wrong type (a pid that is a text) would be looked for in /proc, not found, and taken for dead.
    return record if all(type(getattr(record, name)) is kind for name, kind in _KINDS) else None


@lru_cache(maxsize=_KEPT)
def _text_of(record: OwnerRecord) -> str:
    """Return the record as text; every statement about a lease or a claim names its owner by it."""
    return json.dumps({name: getattr(record, name) for name in record.__slots__}, sort_keys=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What this machine says now about the pid of a record."""

    machine: str
    boot_id: str
    pid_namespace: str
    exists: bool | None  #: None: could not be told
    start_ticks: int = 0
    is_zombie: bool = False


def judge(record: OwnerRecord | None, seen: Observation) -> Verdict:
    """Return whether the owner in *record* lives, given what is *seen* on this machine."""
    if record is None or not record.machine or record.machine != seen.machine:
        return Verdict.UNKNOWN
    if not record.boot_id or not seen.boot_id:
        return Verdict.UNKNOWN
    if record.boot_id != seen.boot_id:
        return Verdict.DEAD
    if not record.pid_namespace or record.pid_namespace != seen.pid_namespace or seen.exists is None:
        return Verdict.UNKNOWN
    if not seen.exists or seen.is_zombie:
        return Verdict.DEAD
    if not record.start_ticks or not seen.start_ticks:
        return Verdict.UNKNOWN

    return Verdict.ALIVE if record.start_ticks == seen.start_ticks else Verdict.DEAD
