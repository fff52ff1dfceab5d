"""
Putting a workflow's directory right: what the next write does about a file that is no good document.

Nothing is thrown away. A corrupt file, one that was changed by hand and one of an older version each get a second name
before they are replaced, and an event that says so is stored in the same write.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from adws.adw_modules.errors import StateConflict, StateExists
from adws.adw_modules.events import Event
from adws.adw_modules.fenced_write import FencedWrite
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.state_reading import FILE_NAME, Found, Kind, Resolved
from adws.adw_modules.state_schema import CURRENT_VERSION, backup_name


class Repair(NamedTuple):
    """What the next write has to put right."""

    resolved: Resolved
    aside: str | None  #: name under which the file in place is kept, None when there is none


def plan_repair(directory: int, resolved: Resolved, now: datetime) -> Repair | None:
    """Return what has to be done, None when the document in place is good."""
    if resolved.current.kind is Kind.GOOD:
        return None
    if resolved.current.kind is Kind.MISSING:
        return Repair(resolved, None)

    taken = frozenset(os.listdir(directory))
    return Repair(resolved, next(name for name in _names(resolved.current, now) if name not in taken))


def _names(current: Found, now: datetime) -> Iterator[str]:
    """Yield the names under which *current* may be kept, the best one first."""
    moment = now.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for number in itertools.count(1):
        if current.kind is Kind.LEGACY:
            yield backup_name(FILE_NAME, current.version, number)
        else:
            yield f"{FILE_NAME}.{current.kind.value}-{moment}" + ("" if number == 1 else f".{number}")


def publish(write: FencedWrite, repair: Repair | None, *, adw_id: str, expected: int) -> None:
    """Keep what is in the document's place, then replace it: there is no moment without a document."""
    if repair is None:
        write.keep_previous()
        write.publish()
        return
    if repair.aside is not None:
        write.keep_aside(repair.aside)
        write.publish()
        return
    if not write.publish_new():
        raise StateConflict(adw_id, expected, expected + 1)


def publish_first(write: FencedWrite, adw_id: str) -> None:
    """Put the first revision in its place; raise StateExists when somebody was faster."""
    if not write.publish_new():
        raise StateExists(adw_id)


def repair_events(repair: Repair) -> tuple[Event, ...]:
    """Return the events that say what was found and what was done about it."""
    current, used = repair.resolved.current, repair.resolved.used
    aside = f"{current.path.removesuffix(FILE_NAME)}{repair.aside}"
    recovered = Event(event_type="document_recovered", data={"from": used.path, "revision": used.revision})
    if current.kind is Kind.LEGACY:
        versions: JsonObject = {"from": current.version, "to": CURRENT_VERSION, "backup": aside}
        return (Event(event_type="state_migrated", data=versions),)
    if current.kind is Kind.FOREIGN:
        return (Event(event_type="document_foreign", data={"path": aside, "reason": current.reason}),)
    if current.kind is Kind.CORRUPT:
        kept = Event(event_type="document_quarantined", data={"path": aside, "reason": current.reason})
        return (kept, recovered)
    return (recovered,)
