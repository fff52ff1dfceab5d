"""
Reading a database for what is left of it, and filling one again from the documents.

Reading takes what it can get: a part that cannot be read is named and left out. Filling is one transaction. A file that
is corrupt is moved aside, never deleted: somebody may get more out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from adws.adw_modules import durable_file, timestamps
from adws.adw_modules.db import (
    breaker_statements,
    checkpoint_statements,
    delivery_statements,
    event_tally,
    kept_tables,
    opening,
    report_statements,
    rows,
    run_rows,
    run_statements,
    statements,
)
from adws.adw_modules.db.breakers import breaker_params, to_breaker
from adws.adw_modules.db.checkpoints import to_checkpoint
from adws.adw_modules.db.deliveries import kept_params, to_kept
from adws.adw_modules.db.run_queue import DatabaseRunQueue
from adws.adw_modules.db.session import Database, Params, Row, Session
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.errors import DatabaseCorrupt, DatabaseError, DatabaseUnavailable
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import Clock, ProjectedWrite, Request
from adws.adw_modules.interfaces_durability import BreakerRow, CheckpointRow
from adws.adw_modules.interfaces_rebuild import KeptRow, KnownWorkflow, NewContents, Salvage
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.runs import DELIVERY, Run
from adws.adw_modules.state_schema import CURRENT_VERSION
from adws.adw_modules.trigger import KeptDelivery

#: Events read in one go.
_AT_ONCE = 500
#: Endings of the files that make up one SQLite database.
_COMPANIONS = ("", "-wal", "-shm")

_Item = TypeVar("_Item")


class DatabaseReconstruction:
    """The database at *url*, in whatever condition; implements `interfaces.Reconstruction`."""

    def __init__(self, url: str, *, clock: Clock, boot_id: str = "") -> None:
        self._url = url
        self._clock = clock
        self._boot_id = boot_id
        self._database: Database | None = None

    def close(self) -> None:
        """Let go of the database."""
        database, self._database = self._database, None
        if database is not None:
            database.close()

    # --- reading -----------------------------------------------------------------------------------------------

    def salvage(self) -> Salvage:
        """Return what the database says, as far as it can be read; an old schema is upgraded first."""
        file = self._file_database()
        if file is not None and not _is_made(file):
            return Salvage(is_missing=True)
        problems = self._problems()
        events = self._part("events", self.all_events, problems) if problems else ()

        return Salvage(
            workflows=self._part("workflows", self._workflows, problems),
            locks=self._part("locks", lambda: map(rows.to_lock, self._all(statements.LOCKS_ALL)), problems),
            requests=self._part("requests", self._requests, problems),
            runs=self._part("runs", self._runs, problems),
            events=events,
            checkpoints=self._part("checkpoints", self._checkpoints, problems) if problems else (),
            breakers=self._part("breakers", self._breakers, problems) if problems else (),
            deliveries=self._part("deliveries", self._deliveries, problems) if problems else (),
            kept=self._kept(problems) if problems else {},
            problems=tuple(problems),
        )

    def all_events(self) -> Iterator[Event]:
        """Yield every event, in the order they were stored."""
        place = 0
        while found := self._all(statements.EVENTS_AFTER, {"after": place, "limit": _AT_ONCE}):
            yield from (rows.to_event(row[1:]) for row in found)
            place = found[-1][0]

    def copy_to(self, path: str) -> bool:
        """Write a whole copy of the database to the new file *path*; False for one that only its server copies."""
        database = self._open()
        if not isinstance(database, SqliteDatabase):
            return False
        database.copy_to(Path(path))

        return True

    def _problems(self) -> list[str]:
        try:
            return self._open().integrity_problems()
        except DatabaseCorrupt as exc:
            self.close()
            self._database = opening.connect(self._url, clock=self._clock, boot_id=self._boot_id)  # as it is
            return [exc.reason]

    def _part(self, name: str, read: Callable[[], Iterable[_Item]], problems: list[str]) -> tuple[_Item, ...]:
        found: list[_Item] = []
        try:
            found.extend(read())
        except DatabaseUnavailable:
            raise
        except (DatabaseError, ValueError, TypeError) as exc:
            problems.append(f"{name} can be read only in part: {exc}")

        return tuple(found)

    def _kept(self, problems: list[str]) -> dict[str, tuple[KeptRow, ...]]:
        def read(table: str) -> tuple[KeptRow, ...]:
            with self._open().read() as session:
                return kept_tables.read(session, table)

        return {
            table: self._part(table.replace("_", " "), lambda table=table: read(table), problems)  # type: ignore[misc]  # mypy cannot tell the kind of a lambda with a default
            for table in kept_tables.COLUMNS
        }

    def _workflows(self) -> Iterator[KnownWorkflow]:
        database = self._open()
        counts: dict[str, int] = {row[0]: row[1] for row in self._all(statements.SALVAGE_EVENT_COUNTS)}
        for adw_id, home, revision, fence, owner, left in self._all(
            database.spell(statements.SALVAGE_STATES), database.lease_clock()
        ):
            yield KnownWorkflow(
                adw_id=adw_id,
                home=home,
                revision=revision,
                fence=fence,
                owner=OwnerRecord.from_text(owner),
                seconds_left=float(left) if owner else 0.0,
                events=counts.get(adw_id, 0),
            )

    def _requests(self) -> Iterator[Request]:
        return map(rows.to_request, self._all(statements.SALVAGE_REQUESTS))

    def _breakers(self) -> Iterator[BreakerRow]:
        return map(to_breaker, self._all(breaker_statements.BREAKERS_ALL))

    def _deliveries(self) -> Iterator[KeptDelivery]:
        return map(to_kept, self._all(delivery_statements.DELIVERIES_ALL))

    def _checkpoints(self) -> Iterator[CheckpointRow]:
        return map(to_checkpoint, self._all(checkpoint_statements.CHECKPOINTS_ALL))

    def _runs(self) -> Iterator[Run]:
        database = self._open()

        return map(run_rows.to_run, self._all(database.spell(run_statements.RUNS_UNFINISHED), database.lease_clock()))

    def _all(self, sql: str, params: Params | None = None) -> list[Row]:
        with self._open().read() as session:
            return session.all(sql, params or {})

    # --- filling -----------------------------------------------------------------------------------------------

    def set_aside(self, label: str = "corrupt") -> str | None:
        """
        Move the files of a SQLite database away and return where to; a server's database stays where it is.

        A log without its database goes too, left by a run that was cut short: SQLite would play it into the next one.
        """
        self.close()
        path = self._file()
        if path is None:
            return None

        return self._move_away(path, _endings_there(path), label)

    def set_aside_left_overs(self) -> str | None:
        """
        Move what a lost database left beside its place away and return where to; a database that is there stays.

        Its log may be all that is left of the last writes, and SQLite deletes it when an empty database is opened.
        """
        self.close()
        database = self._file_database()
        if database is None or not any(_endings_there(database.path)):
            return None
        try:
            with database.turn.held():  # nobody makes the database meanwhile
                left = [] if _is_made(database) else [ending for ending in _endings_there(database.path) if ending]
                return self._move_away(database.path, left, "lost")
        finally:
            database.close()

    def _move_away(self, path: Path, endings: Sequence[str], label: str) -> str | None:
        if not endings:
            return None
        moment = self._clock.now().strftime("%Y%m%dT%H%M%SZ")
        target, number = path.with_name(f"{path.name}.{label}-{moment}"), 1
        while _endings_there(target):
            number += 1
            target = path.with_name(f"{path.name}.{label}-{moment}-{number}")
        for ending in endings:
            path.with_name(path.name + ending).rename(target.with_name(target.name + ending))
        durable_file.sync_directory_at(str(path.parent))

        return str(target) + endings[0]

    def may_install(self, path: str) -> bool:
        """Say whether the file *path* can become the database; raise DatabaseError when it is damaged or too new."""
        if self._file() is None or not Path(path).exists():
            return False
        copy = SqliteDatabase(Path(path), clock=self._clock, boot_id=self._boot_id)
        try:
            opening.refuse_unknown(copy.name, copy.schema_version())
            problems = copy.integrity_problems()
        finally:
            copy.close()
        if problems:
            raise DatabaseCorrupt(path, problems[0])

        return True

    def install(self, path: str) -> None:
        """Use the file *path*, which is moved, as the database; the one there is is kept aside."""
        place = self._file()
        if place is None:
            raise DatabaseError("a server's database is brought back with the server's own tools")
        self.set_aside("before-restore")
        Path(path).rename(place)
        durable_file.sync_directory_at(str(place.parent))
        self._open()

    def put(self, contents: NewContents) -> int:
        """Write *contents* in one transaction, making the database when it is missing; return how many events came."""
        queue = DatabaseRunQueue(self._open(), clock=self._clock)
        event_tally.DatabaseEventTally(self._open()).bring_up()

        def work(session: Session) -> int:
            before = session.one(statements.EVENTS_COUNT) or (0,)
            session.run_each(statements.STATE_FORGET, [{"adw_id": adw_id} for adw_id in contents.forget])
            session.run_each(statements.STATE_REBUILD, [_row_params(row, contents.home) for row in contents.rows])
            if contents.locks is not None:
                session.run(statements.LOCKS_CLEAR)
                session.run_each(statements.LOCK_ACQUIRE, [rows.lock_params(lock) for lock in contents.locks])
            events = [*contents.events, *(event for row in contents.rows for event in row.events)]
            session.run_each(statements.EVENT_INSERT, [rows.event_params(event) for event in events])
            for request in contents.requests:
                session.one(statements.REQUEST_ASK, _request_params(request))
            session.run_each(delivery_statements.DELIVERY_BRING, list(map(kept_params, contents.deliveries)))
            for run in contents.runs:
                made = queue.enqueue_in(session, run)
                if made.kind == DELIVERY:  # its number is another one now
                    session.run(
                        delivery_statements.DELIVERY_SET_RUN,
                        {"guid": made.payload.get("guid"), "run_id": made.run_id},
                    )
            session.run_each(breaker_statements.BREAKER_BRING, list(map(breaker_params, contents.breakers)))
            session.run_each(
                checkpoint_statements.CHECKPOINT_BRING, list(map(_checkpoint_params, contents.checkpoints))
            )
            for table, kept in contents.kept.items():
                kept_tables.bring(session, table, kept, moment=timestamps.to_text(self._clock.now()))
            session.run(report_statements.PROGRESS_FORGET)  # documents changed that no event tells of
            event_tally.pass_over(self._open(), session)  # what is made again was counted when it happened
            after = session.one(statements.EVENTS_COUNT) or (0,)

            return int(after[0]) - int(before[0])

        return self._open().transact(work)

    def _open(self) -> Database:
        if self._database is None:
            self._database = opening.open_database(self._url, clock=self._clock, boot_id=self._boot_id)

        return self._database

    def _file(self) -> Path | None:
        database = self._file_database()

        return None if database is None else database.path

    def _file_database(self) -> SqliteDatabase | None:
        database = self._database or opening.connect(self._url, clock=self._clock, boot_id=self._boot_id)

        return database if isinstance(database, SqliteDatabase) else None


def _is_made(database: SqliteDatabase) -> bool:
    """Say whether there is something in the file: an empty one is what a lost database is often replaced by."""
    try:
        return database.is_there() and database.path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _endings_there(path: Path) -> list[str]:
    """Return the endings of those files of the database *path* that exist."""
    return [ending for ending in _COMPANIONS if path.with_name(path.name + ending).exists()]


def _row_params(row: ProjectedWrite, home: str) -> Params:
    return {
        **rows.summary_params(row.summary),
        "fence": row.fence,
        "home": home,
        "schema_version": CURRENT_VERSION,
        "body": row.body.decode(),
    }


def _checkpoint_params(row: CheckpointRow) -> Params:
    return {
        "id": row.checkpoint_id,
        "task_id": row.task_id,
        "adw_id": row.adw_id,
        "step_name": row.step_name,
        "created_at": row.created_at,
        "checkpoint_data": rows.json_text(row.data, f"the checkpoint {row.checkpoint_id}"),
    }


def _request_params(request: Request) -> Params:
    return {
        "adw_id": request.adw_id,
        "kind": request.kind,
        "payload": rows.json_text(request.payload, f"the payload of request {request.request_id}"),
        "asked_by": request.asked_by,
        "created_at": request.created_at,
    }
