"""
The database copy of documents that live in files, brought up off the step path.

A write is put into a buffer and the step goes on; a thread commits what has gathered, a few times a second, in one
transaction. Of a workflow's bodies only the last is kept, of its events all. Whatever fails here stops no workflow: a
document keeps its events in its outbox until they are confirmed, so nothing is lost that a later start cannot bring in.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Params, Session
from adws.adw_modules.errors import AdwError
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import check_adw_id
from adws.adw_modules.interfaces import ProjectedWrite
from adws.adw_modules.state_schema import CURRENT_VERSION

if TYPE_CHECKING:
    from adws.app import Home

logger = logging.getLogger("adw.projection")

#: Seconds between two commits.
INTERVAL_SECONDS = 0.2
#: Longest wait after a failed commit.
MAX_WAIT_SECONDS = 30.0
#: Events that may wait in memory. Beyond it, writes are dropped: their documents keep the events in their outbox.
MAX_WAITING_EVENTS = 20_000


@dataclass(kw_only=True, slots=True)
class _Waiting:
    """What is to be committed for one workflow."""

    write: ProjectedWrite  #: the newest
    events: list[Event] = field(default_factory=list)
    whole_at: int = 0  #: the last revision handed over with its whole outbox, as far as that was looked at

    def add(self, write: ProjectedWrite, events: Sequence[Event], whole_at: int) -> None:
        """Take in what came after this."""
        self.events.extend(events)
        self.whole_at = max(self.whole_at, whole_at)
        if write.revision > self.write.revision:
            self.write = write


class Projection:
    """
    The database copy of the documents of one home.

    The first write opens the database: reading a good file opens none, and reading a broken one creates none.
    """

    _guard: threading.Lock  #: for the buffer
    _committing: threading.Lock  #: one commit at a time, so that an older one never comes after a newer one
    _work: threading.Event
    _closing: threading.Event
    _thread: threading.Thread | None
    _waiting: dict[str, _Waiting]
    _event_count: int
    _has_failed: bool

    def __init__(
        self,
        home: Home,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        max_waiting_events: int = MAX_WAITING_EVENTS,
    ) -> None:
        self._home = home
        self._interval = interval_seconds
        self._max_events = max_waiting_events
        self._confirmed: dict[str, int] = {}
        #: Workflow -> the last revision that was dropped. Nothing is confirmed for it, so its outbox keeps everything,
        #: until that revision or a later one was committed with its whole outbox: then all of it is in.
        self._gaps: dict[str, int] = {}
        self._start_afresh()
        _OPEN.add(self)

    def submit(self, write: ProjectedWrite) -> None:
        """Queue a write; returns at once, whatever state an open database is in. The first write opens it."""
        _ = self._home.database
        with self._guard:
            if self._event_count + len(write.events) > self._max_events:
                self._gaps[write.adw_id] = max(write.revision, self._gaps.get(write.adw_id, 0))
                return
            whole_at = write.revision if write.adw_id in self._gaps and _has_whole_outbox(write) else 0
            waiting = self._waiting.get(write.adw_id)
            if waiting is None:
                self._waiting[write.adw_id] = _Waiting(write=write, events=list(write.events), whole_at=whole_at)
            else:
                waiting.add(write, write.events, whole_at)
            self._event_count += len(write.events)
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._keep_up, name="adw-projection", daemon=True)
                self._thread.start()
            if not self._work.is_set():
                self._work.set()

    def flush(self) -> None:
        """Return when everything handed over so far is committed; raise what kept the database from it."""
        if self._home.may_have_projection():
            self._commit()

    def close(self) -> None:
        """Commit what is left and stop; a database that cannot be reached is logged, the documents have the events."""
        self._closing.set()
        self._work.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        try:
            self._commit()
        except AdwError:
            logger.warning("Database copy not brought up", extra={"action": "projection_behind"}, exc_info=True)
        self._closing = threading.Event()

    def confirmed_revision(self, adw_id: str) -> int:
        """Return the last revision known to be in the database, 0 when unknown."""
        _ = self._home.database  # it is written next, and a home that cannot be opened is refused before that

        return self._confirmed.get(adw_id, 0)

    def copy_of(self, adw_id: str) -> bytes | None:
        """Return the copied document, for recovery of a lost file; None when there is no copy."""
        if not self._home.may_have_projection():
            return None
        with self._home.database.read() as session:
            row = session.one(connection.STATE_BODY, {"adw_id": check_adw_id(adw_id), "home": "files"})

        return None if row is None else str(row[1]).encode("utf-8")

    # --- the buffer --------------------------------------------------------------------------------------------

    def _start_afresh(self) -> None:
        """Begin with an empty buffer and no thread, as a forked child must: what waited is its parent's work."""
        self._guard = threading.Lock()
        self._committing = threading.Lock()
        self._work = threading.Event()
        self._closing = threading.Event()
        self._thread = None
        self._waiting = {}
        self._event_count = 0
        self._has_failed = False

    def _take_all(self) -> dict[str, _Waiting]:
        with self._guard:
            taken, self._waiting = self._waiting, {}
            self._event_count = 0
            self._work.clear()

        return taken

    def _put_back(self, taken: dict[str, _Waiting]) -> None:
        """Put what could not be committed in front of what came meanwhile."""
        with self._guard:
            newer, self._waiting = self._waiting, taken
            for adw_id, later in newer.items():
                before = taken.setdefault(adw_id, later)
                if before is not later:
                    before.add(later.write, later.events, later.whole_at)
            self._event_count = sum(len(waiting.events) for waiting in self._waiting.values())

    # --- committing --------------------------------------------------------------------------------------------

    def _keep_up(self) -> None:
        wait = self._interval
        while not self._closing.is_set():
            self._work.wait()
            if self._closing.wait(wait):
                return
            try:
                self._commit()
                wait = self._interval
            except AdwError as exc:
                wait = min(MAX_WAIT_SECONDS, wait * 2.0)
                self._tell_once(exc)

    def _commit(self) -> None:
        with self._committing:
            taken = self._take_all()
            if not taken:
                return
            try:
                # By id, so that two projectors never wait for each other in a circle.
                ordered = [taken[adw_id] for adw_id in sorted(taken)]
                self._home.database.transact(lambda session: _write_all(session, ordered))
            except BaseException:
                self._put_back(taken)
                self._work.set()
                raise
            self._has_failed = False
            self._confirm(taken)

    def _confirm(self, taken: dict[str, _Waiting]) -> None:
        with self._guard:  # a write dropped meanwhile either is seen here or comes after what is confirmed
            for adw_id, waiting in taken.items():
                if self._gaps.get(adw_id, 0) <= waiting.whole_at:
                    self._gaps.pop(adw_id, None)
                if adw_id not in self._gaps:
                    self._confirmed[adw_id] = max(self._confirmed.get(adw_id, 0), waiting.write.revision)

    def _tell_once(self, error: AdwError) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning("Database copy is behind: %s", error, extra={"action": "projection_failed"}, exc_info=error)


def _has_whole_outbox(write: ProjectedWrite) -> bool:
    """Say whether *write* brings every event that still waits in its document."""
    outbox = json.loads(write.body).get("outbox")
    brought = {event.event_id for event in write.events}

    return isinstance(outbox, list) and all(entry.get("event_id") in brought for entry in outbox)


def _write_all(session: Session, batch: list[_Waiting]) -> None:
    for waiting in batch:
        session.run(connection.STATE_PROJECT, _params(waiting.write))
    events = [connection.event_params(event) for waiting in batch for event in waiting.events]
    if events:
        session.run_each(connection.EVENT_INSERT, events)


def _params(write: ProjectedWrite) -> Params:
    return {
        **connection.summary_params(write.summary),
        "adw_id": write.adw_id,
        "revision": write.revision,
        "fence": write.fence,
        "schema_version": CURRENT_VERSION,
        "body": write.body.decode("utf-8"),
    }


#: Every projection of this process, so that a forked child starts with an empty one.
_OPEN: weakref.WeakSet[Projection] = weakref.WeakSet()


def _forget_all() -> None:
    for projection in list(_OPEN):
        projection._start_afresh()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_forget_all)
