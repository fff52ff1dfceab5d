"""
Moving a home from its SQLite database, and its files, to PostgreSQL.

One write transaction holds the old database from the check of its owners to the mark that it has moved: nobody changes
it meanwhile, and processes that waited find it closed. The new one is filled in one transaction, with a note of its
source, and read back. So an interrupted move leaves the new one empty, or filled and unmarked, and the next move sees
which. Nobody may be working: the file locks of all workflows are held during the copy. The old files stay.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Table

from adws.adw_modules import timestamps
from adws.adw_modules.db import migrate, schema
from adws.adw_modules.db.connection import Params, Session
from adws.adw_modules.db.migrate import moved
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.errors import AdwError, DatabaseError, OwnershipError, StateInvalid, UsageError
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.interfaces import OwnerRecord, Verdict
from adws.adw_modules.maintenance.rebuild import AT_ONCE, hold_file_locks, read_rows
from adws.adw_modules.queue import store as queue_store
from adws.adw_modules.schedule import store as schedule_store
from adws.adw_modules.state_schema import CURRENT_VERSION

if TYPE_CHECKING:
    from adws.app import Home


class TableSum(NamedTuple):
    """The number of rows of a table, and a digest of all of them that does not depend on their order."""

    rows: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveReport:
    """The result of a move, or of its dry run."""

    source: str  #: the old database, without a password
    target: str
    counts: Mapping[str, int]  #: rows of each table
    tables: Mapping[str, TableSum] = field(default_factory=dict)
    announced: int = 0  #: waiting runs that are announced to workers there
    was_done: bool = False  #: whether it had moved there before
    gone_on: int = 0  #: workflows that have changed there since
    is_dry_run: bool = False

    def to_json(self) -> JsonObject:
        """Return the report as plain data."""
        return {
            "source": self.source,
            "target": self.target,
            "tables": dict(self.counts),
            "digests": {name: total.digest for name, total in self.tables.items()},
            "announced": self.announced,
            "was_done": self.was_done,
            "gone_on": self.gone_on,
            "dry_run": self.is_dry_run,
        }


# --- whole tables: read in pages, digested, inserted -----------------------------------------------------------

#: Not copied: workers register by themselves, and facts are about one database.
NOT_COPIED = frozenset({"runners", "home_facts"})
#: The tables that are copied.
TABLES: tuple[Table, ...] = tuple(table for table in schema.metadata.sorted_tables if table.name not in NOT_COPIED)
#: Columns measured by one machine's clock: leases and claims arrive expired. Owners are copied, so that the next one
#: takes over, and so are ids, tokens and fences.
_OVER: Mapping[str, Mapping[str, object]] = {
    "workflow_states": {"lease_until": 0.0, "lease_boot": "", "home": "database"},
    "runs": {"claim_until": 0.0, "claim_boot": ""},
    "schedule": {"claim_until": 0.0, "claim_boot": ""},
    "notifications": {"claim_until": 0.0, "claim_boot": ""},
}


def sum_up(rows: Iterable[Params], batch: Callable[[list[Params]], None] = lambda _rows: None) -> TableSum:
    """Return the sum of *rows* in any order, since databases sort differently; *batch* gets them in batches."""
    count = total = 0
    left = iter(rows)
    while some := list(islice(left, AT_ONCE)):
        for row in some:
            text = json.dumps(row, sort_keys=True, default=bytes.hex)
            count, total = count + 1, total + int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
        batch(some)

    return TableSum(count, f"{total % (1 << 256):064x}")


def insert_rows(session: Session, table: Table, rows: list[Params]) -> None:
    """Insert *rows* into *table*, with their ids."""
    names = [column.name for column in table.columns]
    values = ", ".join(f":{name}" for name in names)
    session.run_each(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({values})", rows)


def _count(session: Session, table: Table) -> int:
    row = session.one(f"SELECT count(*) FROM {table.name}")

    return int(row[0]) if row else 0


def _raise_sequences(session: Session, highest: Mapping[str, int]) -> None:
    """Have PostgreSQL continue numbering above every present id, and above the *highest* that a table ever gave."""
    for table in TABLES:
        column = table.autoincrement_column
        if column is None or column.identity is None:
            continue
        row = session.one(f"SELECT coalesce(max({column.name}), 0) FROM {table.name}")
        last = max(int(row[0]) if row else 0, highest.get(table.name, 0))
        if last:
            session.one(f"SELECT setval(pg_get_serial_sequence('{table.name}', '{column.name}'), {last})")


def _sums_of(note: Mapping[str, Any]) -> dict[str, TableSum]:
    return {name: TableSum(*total) for name, total in (note.get("tables") or {}).items()}


# --- the move --------------------------------------------------------------------------------------------------


class PostgresMove:
    """The move of *home* from its SQLite database to the PostgreSQL database *target_url*."""

    def __init__(self, home: Home, target_url: str) -> None:
        clock, boot_id = home.clock, home.processes.boot_id
        source = migrate.connect(home.settings.database_url, clock=clock, boot_id=boot_id)
        if not isinstance(source, SqliteDatabase):
            raise UsageError(f"{source.name} is a server's database already: move it with the server's own tools")
        target = migrate.connect(target_url, clock=clock, boot_id=boot_id)
        if isinstance(target, SqliteDatabase):
            raise UsageError("a home moves to PostgreSQL: give postgresql://USER@HOST/NAME")
        self._home, self._clock = home, clock
        self._source, self._target = source, target

    def close(self) -> None:
        """Close both databases."""
        self._source.close()
        self._target.close()

    def move(self, *, dry_run: bool = False) -> MoveReport:
        """Move the home, or return how much there is to move; raise OwnershipError while there are live owners."""
        source, target = self._source, self._target
        moved_to = "" if source.schema_version() is None else migrate.moved_to(source)
        if moved_to and moved_to != target.name:
            raise moved(source.name, moved_to)
        if moved_to:
            migrate.upgrade(target)
            with source.read() as session:
                note = migrate.read_fact_object(session, migrate.MOVED_TO)
            with target.read() as session:
                came = migrate.read_fact_object(session, migrate.MOVED_FROM)
            if came.get("home_id") != self._known_home_id():
                raise DatabaseError(f"{target.name} is not where {source.name} has moved to: {note['target']}")
            return self._verified(_sums_of(note))
        migrate.upgrade(source)
        if target.schema_version() is not None:
            migrate.upgrade(target)
            with target.read() as session:
                self._refuse_used(session, self._known_home_id())
        if dry_run:
            with source.read() as session:
                counts = {table.name: _count(session, table) for table in TABLES}
            return MoveReport(source=source.name, target=target.name, counts=counts, is_dry_run=True)
        if self._home.settings.store == "database":
            return self._carry()
        ids = sorted(self._home.store.ids())
        with hold_file_locks(self._home, ids):
            self._catch_up(ids)
            return self._carry()

    def _carry(self) -> MoveReport:
        """Copy everything, read it back, and close the old database."""
        migrate.upgrade(self._target)
        home_id = self._known_home_id()
        if not home_id:  # stored before anything is copied, so that it identifies an interrupted move
            home_id = self._clock.token()
            with self._source.write() as session:
                migrate.write_fact(session, migrate.HOME_ID, home_id, moment=timestamps.to_text(self._clock.now()))
        with self._source.write() as source:
            living = []
            for what, text in self._holders(source):
                owner = OwnerRecord.from_text(text)
                if self._home.processes.verdict(owner) is not Verdict.DEAD:
                    living.append(f"{what} ({owner.describe() if owner else 'an owner whose record cannot be read'})")
            if living:
                raise OwnershipError(f"somebody is at work: {_named(living)}; stop them first, and move again")
            report = self._filled(source, home_id)
            self._close_source(source, report.tables)

        return report

    def _filled(self, source: Session, home_id: str) -> MoveReport:
        """Return the report once the new database holds what *source* has, whichever move filled it."""
        with self._target.read() as session:
            note = migrate.read_fact_object(session, migrate.MOVED_FROM)
        if note.get("home_id") == home_id:
            expected = {table.name: sum_up(self._rows(source, table)) for table in TABLES}
            if _sums_of(note) == expected:
                return self._verified(expected)
        announced = self._target.transact(lambda target: self._fill(source, target, home_id))
        with self._target.read() as session:
            wanted = _sums_of(migrate.read_fact_object(session, migrate.MOVED_FROM))
            result = self._sums(session)
        different = [name for name, total in wanted.items() if result[name] != total]
        if different:
            raise DatabaseError(
                f"the copy in {self._target.name} is not the same in {', '.join(different)}: the old database is as it "
                "was and in use; see that nobody works with the new one, and move again"
            )

        return self._report(wanted, announced=announced)

    def _fill(self, source: Session, target: Session, home_id: str) -> int:
        """Copy every table in one transaction of the new database, and return how many runs were announced."""
        target.run("LOCK TABLE home_facts IN EXCLUSIVE MODE")  # one mover at a time
        self._refuse_used(target, home_id)
        target.run(f"TRUNCATE {', '.join(table.name for table in schema.metadata.sorted_tables)}")
        sums = {table.name: sum_up(self._rows(source, table), partial(insert_rows, target, table)) for table in TABLES}
        _raise_sequences(
            target, {name: int(last) for name, last in source.all("SELECT name, seq FROM sqlite_sequence")}
        )
        announced = 0
        while some := queue_store.announce_missing(self._target, target):
            announced += some
        self._note(target, migrate.MOVED_FROM, {"home_id": home_id, "source": self._source.name}, sums)

        return announced

    def _rows(self, source: Session, table: Table) -> Iterator[dict[str, object]]:
        """Yield the rows of *table* as they are to be in the new database, including documents from files."""
        store = self._home.store
        has_files = table is schema.workflow_states and self._home.settings.store != "database"
        for row in read_rows(source, table):
            row.update(_OVER.get(table.name, {}))
            adw_id = str(row.get("adw_id"))
            if has_files and store.exists(adw_id):  # else only its copy is left, or it was never written
                document = store.load(adw_id).document.changed(outbox=[])  # its events are in the database
                body = document.to_bytes(indent=None).decode("utf-8")
                row.update(body=body, revision=document.revision, schema_version=CURRENT_VERSION)
            yield row

    def _refuse_used(self, target: Session, home_id: str) -> None:
        """Raise DatabaseError unless the new database is empty, or unchanged since a move of this home."""
        note = migrate.read_fact_object(target, migrate.MOVED_FROM)
        if not note:
            used = [table.name for table in (*TABLES, schema.runners) if _count(target, table)]
            if not used:
                return
            raise DatabaseError(
                f"the database {self._target.name} is not empty (it has {', '.join(used[:5])}): make a new one for the "
                "move, and start no worker there before"
            )
        if note.get("home_id") != home_id:
            raise DatabaseError(
                f"the database {self._target.name} holds another home, which came from {note.get('source')}: make a "
                "new one for the move"
            )
        if self._sums(target) != _sums_of(note):
            raise DatabaseError(
                f"both {self._target.name} and {self._source.name} have been worked on since the first was filled from "
                "the second: decide which one goes on, and make a new database for another move"
            )

    def _close_source(self, source: Session, tables: Mapping[str, TableSum]) -> None:
        """Mark the old database as moved, and block writes by processes that have it open."""
        self._note(source, migrate.MOVED_TO, {"target": self._target.name}, tables)
        message = f"this database has moved to {self._target.name}".replace("'", "''")
        for table in schema.metadata.sorted_tables:
            for change in ("INSERT", "UPDATE", "DELETE"):
                source.run(
                    f"CREATE TRIGGER moved_{table.name}_{change.lower()} BEFORE {change} ON {table.name}"
                    f" BEGIN SELECT RAISE(ABORT, '{message}'); END"
                )

    def _verified(self, wanted: Mapping[str, TableSum]) -> MoveReport:
        """Return the report if the new database has all that the old one has, or has changed since."""
        query = "SELECT adw_id, revision, fence FROM workflow_states"
        with self._target.read() as session:
            if self._sums(session) == wanted:
                return self._report(wanted, was_done=True)
            now = {row[0]: row[1:] for row in session.all(query)}
        with self._source.read() as session:
            before = {row[0]: row[1:] for row in session.all(query)}
        behind = [
            adw_id
            for adw_id, (revision, fence) in sorted(before.items())
            if adw_id in now and (now[adw_id][0] < revision or now[adw_id][1] < fence)
        ]
        if behind or (before and not now.keys() & before.keys()):
            named = ", ".join(behind[:5]) or "every workflow"
            raise DatabaseError(
                f"{self._target.name} lacks what {self._source.name} has of {named}: bring back a backup"
            )
        gone_on = sum(now[adw_id] != values for adw_id, values in before.items() if adw_id in now)

        return self._report(wanted, was_done=True, gone_on=gone_on)

    # --- documents and owners ----------------------------------------------------------------------------------

    def _catch_up(self, ids: Iterable[str]) -> None:
        """Bring every document with its events into its row; raise StateInvalid if a row differs from its document."""
        home, known = self._home, self._revisions()
        for adw_id in ids:
            try:
                if adw_id in known and known[adw_id] <= home.load(adw_id).revision:
                    home.catch_up(adw_id)
            except AdwError as exc:
                raise StateInvalid(f"the document of {adw_id} cannot be moved: {exc}") from exc
        known = self._revisions()
        strange = [adw_id for adw_id in ids if home.load(adw_id).revision != known.get(adw_id, -1)]
        if strange:
            raise StateInvalid(
                f"the database does not have these documents as they are on the disk: {_named(strange)}; adw db "
                "rebuild makes it again from them"
            )

    def _revisions(self) -> dict[str, int]:
        with self._source.read() as session:
            return dict(session.all("SELECT adw_id, revision FROM workflow_states"))

    def _holders(self, source: Session) -> Iterator[tuple[str, str]]:
        """Yield what has a live lease, claim or heartbeat, with the owner's record."""
        # Workers heard from within two leases count as alive.
        clock = {**self._source.lease_clock(), "silent": 2 * self._home.settings.lease_ttl_seconds}
        leases = """
            SELECT adw_id, owner FROM workflow_states
            WHERE owner <> '' AND lease_boot = :boot AND lease_until > {now} ORDER BY adw_id
        """
        for adw_id, owner in source.all(self._source.render(leases), clock):
            yield f"workflow {adw_id}", owner
        for run in queue_store.RunStore(self._source, clock=self._source.clock).live_in(source):
            if run.seconds_left > 0.0:
                yield f"run {run.run_id}", run.owner
        for row in source.all(self._source.render(schedule_store.SCHEDULE_ALL), clock):
            if row[7] and row[9] > 0.0:
                yield f"schedule entry {row[0]}", row[7]
        heard = """
            SELECT owner FROM runners
            WHERE concurrency > 0 AND beat_boot = :boot AND beat + :silent > {now} ORDER BY started_at
        """
        for (owner,) in source.all(self._source.render(heard), clock):
            yield "worker", owner

    # --- notes -------------------------------------------------------------------------------------------------

    def _sums(self, target: Session) -> dict[str, TableSum]:
        return {table.name: sum_up(read_rows(target, table)) for table in TABLES}

    def _known_home_id(self) -> str:
        with self._source.read() as session:
            return migrate.read_fact(session, migrate.HOME_ID)

    def _note(self, session: Session, name: str, facts: dict[str, str], sums: Mapping[str, TableSum]) -> None:
        moment = timestamps.to_text(self._clock.now())
        note = {**facts, "at": moment, "tables": sums}
        migrate.write_fact(session, name, json.dumps(note), moment=moment)

    def _report(
        self, tables: Mapping[str, TableSum], *, announced: int = 0, was_done: bool = False, gone_on: int = 0
    ) -> MoveReport:
        return MoveReport(
            source=self._source.name,
            target=self._target.name,
            counts={name: total.rows for name, total in tables.items()},
            tables=tables,
            announced=announced,
            was_done=was_done,
            gone_on=gone_on,
        )


def _named(names: list[str]) -> str:
    """Return the first five of *names* in one sentence."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""

    return ", ".join(names[:5]) + more
