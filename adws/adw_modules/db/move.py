"""
A home that moves from its SQLite database, and its files, to PostgreSQL.

The old database is held by one write from the look at its owners to the mark that it has moved: nobody changes it
meanwhile, and whoever waited for it finds it closed. The new one is filled in one transaction, with a note of where
from, and read back. So a move that was cut off left the new one empty, or filled and unmarked: the next one sees which.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Table

from adws.adw_modules import timestamps
from adws.adw_modules.db import announcing, home_facts, models, opening, run_statements, statements, table_copy
from adws.adw_modules.db import schedule_statements as schedule_sql
from adws.adw_modules.db.session import Row, Session
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.db.table_copy import AT_ONCE, TABLES, Sum
from adws.adw_modules.errors import DatabaseError, UsageError
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_move import Holder, Move, MovedDocument, TableSum
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.state_schema import CURRENT_VERSION

_RUNNERS_HEARD = """
SELECT owner FROM runners
WHERE concurrency > 0 AND beat_boot = :boot AND beat + :silent > {now} ORDER BY started_at
"""
_SEQUENCES = "SELECT name, seq FROM sqlite_sequence"

_Documents = Callable[[str], MovedDocument | None]


class PostgresMove:
    """A `DatabaseMove` from the SQLite database *source_url* to the PostgreSQL database *target_url*."""

    def __init__(
        self, source_url: str, target_url: str, *, clock: Clock, boot_id: str, silent_seconds: float = 60.0
    ) -> None:
        """Workers that were heard of within *silent_seconds* count as alive."""
        source = opening.connect(source_url, clock=clock, boot_id=boot_id)
        if not isinstance(source, SqliteDatabase):
            raise UsageError(f"{source.name} is a server's database already: move it with the server's own tools")
        target = opening.connect(target_url, clock=clock, boot_id=boot_id)
        if isinstance(target, SqliteDatabase):
            raise UsageError("a home moves to PostgreSQL: give postgresql://USER@HOST/NAME")
        self._source, self._target, self._clock, self._silent = source, target, clock, silent_seconds
        self.source_name, self.target_name = source.name, target.name  #: without a password

    def close(self) -> None:
        """Let go of both."""
        self._source.close()
        self._target.close()

    # --- looking -----------------------------------------------------------------------------------------------

    def moved_to(self) -> str:
        """Return where the old one has moved to, "" when it is still in use."""
        version = self._source.schema_version()

        return home_facts.moved_to(self._source) if version is not None and version >= home_facts.SINCE else ""

    def revisions(self) -> Mapping[str, tuple[str, int]]:
        """Return home and revision of every workflow that the old one knows."""
        opening.upgrade(self._source)
        with self._source.read() as session:
            found = session.all("SELECT adw_id, home, revision FROM workflow_states")

        return {adw_id: (home, revision) for adw_id, home, revision in found}

    def counts(self) -> Mapping[str, int]:
        """Return how many rows of each table there are to copy; raise DatabaseError when the new one is not free."""
        opening.upgrade(self._source)
        if self._target.schema_version() is not None:
            opening.upgrade(self._target)
            with self._target.read() as session:
                self._refuse_used(session, home_facts.read_object(session, home_facts.MOVED_FROM))
        with self._source.read() as session:
            return {table.name: table_copy.count(session, table) for table in TABLES}

    # --- moving ------------------------------------------------------------------------------------------------

    def carry(self, *, refuse: Callable[[tuple[Holder, ...]], None], document: _Documents) -> Move:
        """Copy everything, read it back, and close the old database; see `interfaces_move.DatabaseMove`."""
        opening.upgrade(self._source)
        opening.upgrade(self._target)
        home_id = self._home_id()
        with self._source.write() as source:
            refuse(tuple(self._holders(source)))
            move = self._filled(source, home_id, document)
            self._close_source(source, move)

        return move

    def _filled(self, source: Session, home_id: str, document: _Documents) -> Move:
        """Return the move once the new database holds what *source* has, whoever filled it."""
        with self._target.read() as session:
            noted = home_facts.read_object(session, home_facts.MOVED_FROM)
        if noted.get("home_id") == home_id and _sums_of(noted) == self._expected(source, document):
            return self._verified(_sums_of(noted))
        announced = self._target.transact(lambda target: self._fill(source, target, home_id, document))
        with self._target.read() as session:
            wanted = _sums_of(home_facts.read_object(session, home_facts.MOVED_FROM))
        found = self._sums()
        different = [name for name, total in wanted.items() if found[name] != total]
        if different:
            raise DatabaseError(
                f"the copy in {self._target.name} is not the same in {', '.join(different)}: the old database is as it "
                "was and in use; see that nobody works with the new one, and move again"
            )

        return Move(source=self._source.name, target=self._target.name, tables=wanted, announced=announced)

    def _fill(self, source: Session, target: Session, home_id: str, document: _Documents) -> int:
        """Copy every table in one transaction of the new database, and return how many runs were told of."""
        target.run("LOCK TABLE home_facts IN EXCLUSIVE MODE")  # one mover at a time
        self._refuse_used(target, home_facts.read_object(target, home_facts.MOVED_FROM), home_id=home_id)
        target.run(f"TRUNCATE {', '.join(table.name for table in models.metadata.sorted_tables)}")
        sums: dict[str, TableSum] = {}
        for table in TABLES:
            found, batch = Sum(), []
            for row in _rows(source, table, document):
                found.add(row)
                batch.append(row)
                if len(batch) == AT_ONCE:
                    table_copy.insert_rows(target, table, batch)
                    batch = []
            table_copy.insert_rows(target, table, batch)
            sums[table.name] = found.result()
        table_copy.raise_sequences(target, {name: int(last) for name, last in source.all(_SEQUENCES)})
        announced = 0
        while told := announcing.announce_missing(self._target, target):
            announced += told
        self._note(target, home_facts.MOVED_FROM, {"home_id": home_id, "source": self._source.name}, sums)

        return announced

    def _refuse_used(self, target: Session, noted: dict[str, Any], *, home_id: str = "") -> None:
        """Raise DatabaseError unless the new database is empty, or as a move of this home left it."""
        mine = home_id or self._known_home_id()
        if not noted:
            used = [t.name for t in (*TABLES, models.runners) if table_copy.count(target, t)]
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
        opening.upgrade(self._target)
        with self._source.read() as session:
            noted = home_facts.read_object(session, home_facts.MOVED_TO)
        with self._target.read() as session:
            came = home_facts.read_object(session, home_facts.MOVED_FROM)
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
        for row in source.all(self._source.spell(statements.SALVAGE_STATES), clock):
            if row[4] and row[5] > 0.0:
                yield Holder(what=f"workflow {row[0]}", owner=OwnerRecord.from_text(row[4]))
        for row in source.all(self._source.spell(run_statements.RUNS_LIVE), clock):
            if row[9] > 0.0:
                yield Holder(what=f"run {row[0]}", owner=OwnerRecord.from_text(row[8]))
        for row in source.all(self._source.spell(schedule_sql.SCHEDULE_ALL), clock):
            if row[7] and row[9] > 0.0:
                yield Holder(what=f"schedule entry {row[0]}", owner=OwnerRecord.from_text(row[7]))
        for (owner,) in source.all(self._source.spell(_RUNNERS_HEARD), clock):
            yield Holder(what="worker", owner=OwnerRecord.from_text(owner))

    def _expected(self, source: Session, document: _Documents) -> dict[str, TableSum]:
        sums = {}
        for table in TABLES:
            found = Sum()
            for row in _rows(source, table, document):
                found.add(row)
            sums[table.name] = found.result()

        return sums

    def _sums(self, session: Session | None = None) -> dict[str, TableSum]:
        if session is not None:
            return {table.name: table_copy.sum_up(session, table) for table in TABLES}
        with self._target.read() as own:
            return {table.name: table_copy.sum_up(own, table) for table in TABLES}

    def _known_home_id(self) -> str:
        with self._source.read() as session:
            return home_facts.read(session, home_facts.HOME_ID)

    def _home_id(self) -> str:
        """Return what tells this home from others, made before anything is copied: a move that is cut off knows it."""
        known = self._known_home_id()
        if known:
            return known
        made = self._clock.token()
        with self._source.write() as session:
            home_facts.write(session, home_facts.HOME_ID, made, moment=timestamps.to_text(self._clock.now()))

        return made

    def _close_source(self, source: Session, move: Move) -> None:
        """Mark the old database, and refuse what processes that have it open would still write."""
        self._note(source, home_facts.MOVED_TO, {"target": self._target.name}, move.tables)
        said = f"this database has moved to {self._target.name}".replace("'", "''")
        for table in models.metadata.sorted_tables:
            for change in ("INSERT", "UPDATE", "DELETE"):
                source.run(
                    f"CREATE TRIGGER moved_{table.name}_{change.lower()} BEFORE {change} ON {table.name}"
                    f" BEGIN SELECT RAISE(ABORT, '{said}'); END"
                )

    def _note(self, session: Session, name: str, facts: dict[str, str], sums: Mapping[str, TableSum]) -> None:
        moment = timestamps.to_text(self._clock.now())
        tables = {table: [total.rows, total.digest] for table, total in sums.items()}
        home_facts.write(session, name, json.dumps({**facts, "at": moment, "tables": tables}), moment=moment)


def _rows(source: Session, table: Table, document: _Documents) -> Iterator[dict[str, object]]:
    """Yield the rows of *table* as they are on the other side, with the documents in them."""
    for row in table_copy.read_rows(source, table):
        after = table_copy.carried(table, row)
        found = document(str(row["adw_id"])) if table is models.workflow_states else None
        if found is not None:
            after |= {"body": found.body, "revision": found.revision, "schema_version": CURRENT_VERSION}
        yield after


def _sums_of(noted: Mapping[str, Any]) -> dict[str, TableSum]:
    tables: Mapping[str, Row] = noted.get("tables") or {}

    return {name: TableSum(rows=rows, digest=digest) for name, (rows, digest) in tables.items()}
