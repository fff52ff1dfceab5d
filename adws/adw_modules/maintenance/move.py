"""
A home that moves from its SQLite database, and its files, to PostgreSQL.

The old database is held by one write transaction from the check of its owners to the mark that it has moved: nobody
changes it meanwhile, and processes that waited find it closed. The new one is filled in one transaction, with a note of
where from, and read back. So an interrupted move left the new one empty, or filled and unmarked: the next move sees
which.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table

from adws.adw_modules import timestamps
from adws.adw_modules.db import migrate, schema
from adws.adw_modules.db.connection import Params, Row, Session
from adws.adw_modules.db.migrate import moved
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.errors import AdwError, DatabaseError, OwnershipError, StateInvalid, UsageError
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.interfaces import Clock, OwnerRecord, StateStore, Verdict
from adws.adw_modules.queue import store as queue_store
from adws.adw_modules.schedule import store as schedule_store
from adws.adw_modules.state_schema import CURRENT_VERSION

if TYPE_CHECKING:
    from adws.adw_modules.ownership.local_lock import LocalLock
    from adws.app import Home

# What moving a home to another database asks of the two: who is at work, how much there is, and the copy itself.
#
# Apart from `interfaces` because only `adw db move-to` needs it, and every view would load it.


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """An owner of something in the old database, by a lease, a claim or a heartbeat that is not over."""

    what: str  #: workflow a1b2c3d4 | run 7 | schedule entry gc | worker
    owner: OwnerRecord | None  #: None: its record cannot be read


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedDocument:
    """A workflow's document on its way into the database."""

    revision: int
    body: str  #: JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSum:
    """How many rows a table has, and a number made of all of them, whatever their order."""

    rows: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """The result of a move."""

    source: str  #: where it was, without a password
    target: str
    tables: Mapping[str, TableSum] = field(default_factory=dict)
    announced: int = 0  #: waiting runs that are announced to workers there
    was_done: bool = False  #: it had moved there already
    gone_on: int = 0  #: workflows that have gone on there since


# Moving a home to another database: nobody may be at work, every document goes with it, and the old files stay.
#
# A document in files is brought up in its row first, so that its events are there; what cannot be read or is not known
# is named, and nothing is moved. The file locks of all workflows are held while the copy is made.


#: Names in one sentence.
MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveReport:
    """What was moved, or would be."""

    move: Move
    counts: dict[str, int] = field(default_factory=dict)  #: rows of each table
    is_dry_run: bool = False

    def to_json(self) -> JsonObject:
        """Return the report as plain data."""
        return {
            "source": self.move.source,
            "target": self.move.target,
            "tables": dict(self.counts),
            "digests": {name: total.digest for name, total in self.move.tables.items()},
            "announced": self.move.announced,
            "was_done": self.move.was_done,
            "gone_on": self.move.gone_on,
            "dry_run": self.is_dry_run,
        }


def move(home: Home, databases: PostgresMove, *, dry_run: bool = False) -> MoveReport:
    """Move the home, or say how much there is to move; raise OwnershipError while somebody works."""
    source, target = databases.source_name, databases.target_name
    moved_to = databases.moved_to()
    if moved_to and moved_to != target:
        raise moved(source, moved_to)
    if moved_to:
        return _report(databases.verify())
    counts = dict(databases.counts())
    if dry_run:
        return MoveReport(move=Move(source=source, target=target), counts=counts, is_dry_run=True)
    if home.settings.store == "database":
        return _report(databases.carry(refuse=lambda holders: _refuse(home, holders), document=lambda _adw_id: None))
    ids = sorted(home.store.ids())
    with _held(home.local_lock, ids):
        _bring_up(home, databases, ids)
        done = databases.carry(
            refuse=lambda holders: _refuse(home, holders), document=lambda adw_id: _document(home.store, adw_id)
        )

    return _report(done)


def _report(done: Move) -> MoveReport:
    return MoveReport(move=done, counts={name: total.rows for name, total in done.tables.items()})


@contextmanager
def _held(local_lock: LocalLock, ids: Iterable[str]) -> Iterator[None]:
    """Hold the file locks of all *ids*, so that nobody begins to work on what is being moved."""
    with ExitStack() as held:
        for adw_id in ids:
            if not local_lock.try_hold(adw_id):
                raise OwnershipError(f"workflow {adw_id} is being worked on by another process: stop it first")
            held.callback(local_lock.let_go, adw_id)
        yield


def _bring_up(home: Home, databases: PostgresMove, ids: Iterable[str]) -> None:
    """See to it that the database has every document as it is on the disk, with its events."""
    known = databases.revisions()
    for adw_id in ids:
        try:
            revision = home.load(adw_id).revision
            if adw_id in known and known[adw_id][1] <= revision:
                home.catch_up(adw_id)
        except AdwError as exc:
            raise StateInvalid(f"the document of {adw_id} cannot be moved: {exc}") from exc
    known = databases.revisions()
    strange = [adw_id for adw_id in ids if home.load(adw_id).revision != known.get(adw_id, ("", -1))[1]]
    if strange:
        raise StateInvalid(
            f"the database does not have these documents as they are on the disk: {_named(strange)}; adw db rebuild "
            "makes it again from them"
        )


def _document(store: StateStore, adw_id: str) -> MovedDocument | None:
    """Return a document as it lives in a database, None when only its copy is left, or it was never written."""
    if not store.exists(adw_id):
        return None
    moved = store.load(adw_id).document.changed(outbox=[])  # its events are in the database

    return MovedDocument(revision=moved.revision, body=moved.to_bytes(indent=None).decode("utf-8"))


def _refuse(home: Home, holders: Iterable[Holder]) -> None:
    """Raise OwnershipError naming those of *holders* that are not proven dead."""
    living = [holder for holder in holders if home.processes.verdict(holder.owner) is not Verdict.DEAD]
    if not living:
        return
    named = [
        f"{holder.what} ({holder.owner.describe() if holder.owner else 'an owner whose record cannot be read'})"
        for holder in living
    ]

    raise OwnershipError(f"somebody is at work: {_named(named)}; stop them first, and move again")


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""

    return ", ".join(names[:MOST_NAMED]) + more


# Whole tables from one database to another: read in pages, summed up, put in.
#
# Ids, tokens and fences stay. What is measured by the clock of one machine does not: a lease or a claim is over on the
# other side, and its owner stays, so that the next one takes over. The sum of a table does not depend on the order of
# its rows, which the databases sort differently.


#: Rows that are read or written at once.
AT_ONCE = 500
#: Workers say that they are there by themselves, and facts are about one database. Without a note how far they were
#: looked through, all workflows are looked at again for reports: their documents may be newer than the copies were.
NOT_COPIED = frozenset({"runners", "home_facts", "report_progress"})
#: What is over on another machine.
_OVER: Mapping[str, Mapping[str, object]] = {
    "workflow_states": {"lease_until": 0.0, "lease_boot": "", "home": "database"},
    "runs": {"claim_until": 0.0, "claim_boot": ""},
    "schedule": {"claim_until": 0.0, "claim_boot": ""},
    "notifications": {"claim_until": 0.0, "claim_boot": ""},
}

#: The tables that are copied.
TABLES: tuple[Table, ...] = tuple(table for table in schema.metadata.sorted_tables if table.name not in NOT_COPIED)

_SPACE = 1 << 256


@dataclass(slots=True)
class RowChecksum:
    """Adds rows up."""

    rows: int = 0
    total: int = field(default=0, repr=False)

    def add(self, row: Params) -> None:
        """Count one row."""
        text = json.dumps(row, sort_keys=True, default=bytes.hex)
        self.rows += 1
        self.total = (self.total + int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")) % _SPACE

    def result(self) -> TableSum:
        """Return what came together."""
        return TableSum(rows=self.rows, digest=f"{self.total:064x}")


def read_rows(session: Session, table: Table) -> Iterator[dict[str, object]]:
    """Yield every row of *table*, in pages along its key."""
    names = [column.name for column in table.columns]
    keys = [column.name for column in table.primary_key.columns]
    listed, key = ", ".join(names), ", ".join(keys)
    first = f"SELECT {listed} FROM {table.name} ORDER BY {key} LIMIT :limit"
    after = ", ".join(f":after_{name}" for name in keys)
    following = f"SELECT {listed} FROM {table.name} WHERE ({key}) > ({after}) ORDER BY {key} LIMIT :limit"
    page = session.all(first, {"limit": AT_ONCE})
    while page:
        rows = [dict(zip(names, row, strict=True)) for row in page]
        yield from rows
        if len(page) < AT_ONCE:
            return
        page = session.all(following, {"limit": AT_ONCE, **{f"after_{name}": rows[-1][name] for name in keys}})


def carried(table: Table, row: dict[str, object]) -> dict[str, object]:
    """Return *row* as it is on the other side."""
    return {**row, **_OVER.get(table.name, {})}


def insert_rows(session: Session, table: Table, rows: list[dict[str, object]]) -> None:
    """Put *rows* into *table*, with the ids they have."""
    names = [column.name for column in table.columns]
    values = ", ".join(f":{name}" for name in names)
    session.run_each(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({values})", rows)


def count(session: Session, table: Table) -> int:
    """Return how many rows *table* has."""
    row = session.one(f"SELECT count(*) FROM {table.name}")

    return int(row[0]) if row else 0


def sum_up(session: Session, table: Table) -> TableSum:
    """Return the sum of what *table* has now."""
    result = RowChecksum()
    for row in read_rows(session, table):
        result.add(row)

    return result.result()


def raise_sequences(session: Session, highest: Mapping[str, int]) -> None:
    """Have PostgreSQL number on above every id that is there, and above the *highest* that a table ever gave."""
    for table in TABLES:
        column = table.autoincrement_column
        if column is None or column.identity is None:
            continue
        row = session.one(f"SELECT coalesce(max({column.name}), 0) FROM {table.name}")
        last = max(int(row[0]) if row else 0, highest.get(table.name, 0))
        if last:
            session.one(f"SELECT setval(pg_get_serial_sequence('{table.name}', '{column.name}'), {last})")


_RUNNERS_HEARD = """
SELECT owner FROM runners
WHERE concurrency > 0 AND beat_boot = :boot AND beat + :silent > {now} ORDER BY started_at
"""
_SEQUENCES = "SELECT name, seq FROM sqlite_sequence"

_Documents = Callable[[str], MovedDocument | None]


class PostgresMove:
    """The move from the SQLite database *source_url* to the PostgreSQL database *target_url*."""

    def __init__(
        self, source_url: str, target_url: str, *, clock: Clock, boot_id: str, silent_seconds: float = 60.0
    ) -> None:
        """Workers that were heard of within *silent_seconds* count as alive."""
        source = migrate.connect(source_url, clock=clock, boot_id=boot_id)
        if not isinstance(source, SqliteDatabase):
            raise UsageError(f"{source.name} is a server's database already: move it with the server's own tools")
        target = migrate.connect(target_url, clock=clock, boot_id=boot_id)
        if isinstance(target, SqliteDatabase):
            raise UsageError("a home moves to PostgreSQL: give postgresql://USER@HOST/NAME")
        self._source, self._target, self._clock, self._silent = source, target, clock, silent_seconds
        self.source_name, self.target_name = source.name, target.name  #: without a password

    def close(self) -> None:
        """Close both databases."""
        self._source.close()
        self._target.close()

    # --- looking -----------------------------------------------------------------------------------------------

    def moved_to(self) -> str:
        """Return where the old one has moved to, "" when it is still in use."""
        return "" if self._source.schema_version() is None else migrate.moved_to(self._source)

    def revisions(self) -> Mapping[str, tuple[str, int]]:
        """Return home and revision of every workflow that the old one knows."""
        migrate.upgrade(self._source)
        with self._source.read() as session:
            rows = session.all("SELECT adw_id, home, revision FROM workflow_states")

        return {adw_id: (home, revision) for adw_id, home, revision in rows}

    def counts(self) -> Mapping[str, int]:
        """Return how many rows of each table there are to copy; raise DatabaseError when the new one is not free."""
        migrate.upgrade(self._source)
        if self._target.schema_version() is not None:
            migrate.upgrade(self._target)
            with self._target.read() as session:
                self._refuse_used(session, migrate.read_fact_object(session, migrate.MOVED_FROM))
        with self._source.read() as session:
            return {table.name: count(session, table) for table in TABLES}

    # --- moving ------------------------------------------------------------------------------------------------

    def carry(self, *, refuse: Callable[[tuple[Holder, ...]], None], document: _Documents) -> Move:
        """Copy everything, read it back, and close the old database."""
        migrate.upgrade(self._source)
        migrate.upgrade(self._target)
        home_id = self._home_id()
        with self._source.write() as source:
            refuse(tuple(self._holders(source)))
            move = self._filled(source, home_id, document)
            self._close_source(source, move)

        return move

    def _filled(self, source: Session, home_id: str, document: _Documents) -> Move:
        """Return the move once the new database holds what *source* has, no matter which move filled it."""
        with self._target.read() as session:
            noted = migrate.read_fact_object(session, migrate.MOVED_FROM)
        if noted.get("home_id") == home_id and _sums_of(noted) == self._expected(source, document):
            return self._verified(_sums_of(noted))
        announced = self._target.transact(lambda target: self._fill(source, target, home_id, document))
        with self._target.read() as session:
            wanted = _sums_of(migrate.read_fact_object(session, migrate.MOVED_FROM))
        result = self._sums()
        different = [name for name, total in wanted.items() if result[name] != total]
        if different:
            raise DatabaseError(
                f"the copy in {self._target.name} is not the same in {', '.join(different)}: the old database is as it "
                "was and in use; see that nobody works with the new one, and move again"
            )

        return Move(source=self._source.name, target=self._target.name, tables=wanted, announced=announced)

    def _fill(self, source: Session, target: Session, home_id: str, document: _Documents) -> int:
        """Copy every table in one transaction of the new database, and return how many runs were announced."""
        target.run("LOCK TABLE home_facts IN EXCLUSIVE MODE")  # one mover at a time
        self._refuse_used(target, migrate.read_fact_object(target, migrate.MOVED_FROM), home_id=home_id)
        target.run(f"TRUNCATE {', '.join(table.name for table in schema.metadata.sorted_tables)}")
        sums: dict[str, TableSum] = {}
        for table in TABLES:
            result, batch = RowChecksum(), []
            for row in _rows(source, table, document):
                result.add(row)
                batch.append(row)
                if len(batch) == AT_ONCE:
                    insert_rows(target, table, batch)
                    batch = []
            insert_rows(target, table, batch)
            sums[table.name] = result.result()
        raise_sequences(target, {name: int(last) for name, last in source.all(_SEQUENCES)})
        announced = 0
        while told := queue_store.announce_missing(self._target, target):
            announced += told
        self._note(target, migrate.MOVED_FROM, {"home_id": home_id, "source": self._source.name}, sums)

        return announced

    def _refuse_used(self, target: Session, noted: dict[str, Any], *, home_id: str = "") -> None:
        """Raise DatabaseError unless the new database is empty, or as a move of this home left it."""
        mine = home_id or self._known_home_id()
        if not noted:
            used = [t.name for t in (*TABLES, schema.runners) if count(target, t)]
            if not used:
                return
            raise DatabaseError(
                f"the database {self._target.name} is not empty (it has {', '.join(used[:5])}): make a new one for the "
                "move, and start no worker there before"
            )
        if noted.get("home_id") != mine:
            raise DatabaseError(
                f"the database {self._target.name} holds another home, which came from {noted.get('source')}: make a "
                "new one for the move"
            )
        if self._sums(target) != _sums_of(noted):
            raise DatabaseError(
                f"both {self._target.name} and {self._source.name} have been worked on since the first was filled from "
                "the second: decide which one goes on, and make a new database for another move"
            )

    # --- looking again -----------------------------------------------------------------------------------------

    def verify(self) -> Move:
        """Hold a new database that is in use against the old one; raise DatabaseError when something is missing."""
        migrate.upgrade(self._target)
        with self._source.read() as session:
            noted = migrate.read_fact_object(session, migrate.MOVED_TO)
        with self._target.read() as session:
            came = migrate.read_fact_object(session, migrate.MOVED_FROM)
        if came.get("home_id") != self._known_home_id():
            raise DatabaseError(f"{self._target.name} is not where {self._source.name} has moved to: {noted['target']}")

        return self._verified(_sums_of(noted))

    def _verified(self, wanted: Mapping[str, TableSum]) -> Move:
        """Return the move when the new database has all that the old one has, or has gone on from there."""
        gone_on = 0 if self._sums() == wanted else self._gone_on()

        return Move(source=self._source.name, target=self._target.name, tables=wanted, was_done=True, gone_on=gone_on)

    def _gone_on(self) -> int:
        """Return how many workflows of the old database are further in the new one; raise when one is behind."""
        query = "SELECT adw_id, revision, fence FROM workflow_states"
        with self._source.read() as session:
            before = {row[0]: row[1:] for row in session.all(query)}
        with self._target.read() as session:
            now = {row[0]: row[1:] for row in session.all(query)}
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

        return sum(now[adw_id] != values for adw_id, values in before.items() if adw_id in now)

    # --- parts -------------------------------------------------------------------------------------------------

    def _holders(self, source: Session) -> Iterator[Holder]:
        clock = {**self._source.lease_clock(), "silent": self._silent}
        sql = """
            SELECT adw_id, owner FROM workflow_states
            WHERE owner <> '' AND lease_boot = :boot AND lease_until > {now} ORDER BY adw_id
        """
        for adw_id, owner in source.all(self._source.render(sql), clock):
            yield Holder(what=f"workflow {adw_id}", owner=OwnerRecord.from_text(owner))
        for run in queue_store.RunStore(self._source, clock=self._source.clock).live_in(source):
            if run.seconds_left > 0.0:
                yield Holder(what=f"run {run.run_id}", owner=OwnerRecord.from_text(run.owner))
        for row in source.all(self._source.render(schedule_store.SCHEDULE_ALL), clock):
            if row[7] and row[9] > 0.0:
                yield Holder(what=f"schedule entry {row[0]}", owner=OwnerRecord.from_text(row[7]))
        for (owner,) in source.all(self._source.render(_RUNNERS_HEARD), clock):
            yield Holder(what="worker", owner=OwnerRecord.from_text(owner))

    def _expected(self, source: Session, document: _Documents) -> dict[str, TableSum]:
        sums = {}
        for table in TABLES:
            result = RowChecksum()
            for row in _rows(source, table, document):
                result.add(row)
            sums[table.name] = result.result()

        return sums

    def _sums(self, session: Session | None = None) -> dict[str, TableSum]:
        if session is not None:
            return {table.name: sum_up(session, table) for table in TABLES}
        with self._target.read() as own:
            return {table.name: sum_up(own, table) for table in TABLES}

    def _known_home_id(self) -> str:
        with self._source.read() as session:
            return migrate.read_fact(session, migrate.HOME_ID)

    def _home_id(self) -> str:
        """Return what tells this home from others, made before anything is copied: a move that is cut off knows it."""
        known = self._known_home_id()
        if known:
            return known
        made = self._clock.token()
        with self._source.write() as session:
            migrate.write_fact(session, migrate.HOME_ID, made, moment=timestamps.to_text(self._clock.now()))

        return made

    def _close_source(self, source: Session, move: Move) -> None:
        """Mark the old database, and refuse what processes that have it open would still write."""
        self._note(source, migrate.MOVED_TO, {"target": self._target.name}, move.tables)
        said = f"this database has moved to {self._target.name}".replace("'", "''")
        for table in schema.metadata.sorted_tables:
            for change in ("INSERT", "UPDATE", "DELETE"):
                source.run(
                    f"CREATE TRIGGER moved_{table.name}_{change.lower()} BEFORE {change} ON {table.name}"
                    f" BEGIN SELECT RAISE(ABORT, '{said}'); END"
                )

    def _note(self, session: Session, name: str, facts: dict[str, str], sums: Mapping[str, TableSum]) -> None:
        moment = timestamps.to_text(self._clock.now())
        tables = {table: [total.rows, total.digest] for table, total in sums.items()}
        migrate.write_fact(session, name, json.dumps({**facts, "at": moment, "tables": tables}), moment=moment)


def _rows(source: Session, table: Table, document: _Documents) -> Iterator[dict[str, object]]:
    """Yield the rows of *table* as they are on the other side, with the documents in them."""
    for row in read_rows(source, table):
        after = carried(table, row)
        result = document(str(row["adw_id"])) if table is schema.workflow_states else None
        if result is not None:
            after |= {"body": result.body, "revision": result.revision, "schema_version": CURRENT_VERSION}
        yield after


def _sums_of(noted: Mapping[str, Any]) -> dict[str, TableSum]:
    tables: Mapping[str, Row] = noted.get("tables") or {}

    return {name: TableSum(rows=rows, digest=digest) for name, (rows, digest) in tables.items()}
