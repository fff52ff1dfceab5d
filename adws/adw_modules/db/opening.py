"""
Opening a database by its URL, with the schema this adw needs.

One query tells the schema's revision. Only when it differs are SQLAlchemy and Alembic loaded: they take longer to
import than most commands take to run.
"""

from __future__ import annotations

import importlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import PATIENCE_SECONDS, Database, Session
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.errors import DatabaseMoved, DatabaseUnavailable, SchemaMismatch, UsageError
from adws.adw_modules.interfaces import Clock

# The message about a database that has moved; apart from the move itself, because every command may show it.


def moved(name: str, target: str) -> DatabaseMoved:
    """Return the error that says where the database *name* went."""
    return DatabaseMoved(
        f"the database {name} has moved to {target}: set database.url (ADW_DATABASE_URL) to that one and state.store "
        "(ADW_STORE) to database"
    )


# What is known about the database itself: a few texts by name, in the table home_facts.
#
# A SQLite database that has moved says so when it is opened. Processes that have it open already run into a trigger on
# each table: what they would still write would be lost.


#: Names of facts. Both are JSON: where to or from, when, and the sums of all tables.
MOVED_TO, MOVED_FROM = "moved_to", "moved_from"
#: Tells one home from another.
HOME_ID = "home_id"
#: The first schema that has facts.
SINCE = "0009"

FACT_READ = "SELECT value FROM home_facts WHERE name = :name"
FACT_SET = """
INSERT INTO home_facts (name, value, changed_at) VALUES (:name, :value, :moment)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, changed_at = excluded.changed_at
"""


def read(session: Session, name: str) -> str:
    """Return the fact *name*, "" when it is not known."""
    row = session.one(FACT_READ, {"name": name})

    return "" if row is None else str(row[0])


def read_object(session: Session, name: str) -> dict[str, Any]:
    """Return the fact *name*, which is a JSON object; empty when it is not known."""
    result: dict[str, Any] = json.loads(read(session, name) or "{}")

    return result


def write(session: Session, name: str, value: str, *, moment: str) -> None:
    """Write the fact *name* down, over what it was."""
    session.run(FACT_SET, {"name": name, "value": value, "moment": moment})


def moved_to(database: Database) -> str:
    """Return where *database* has moved to, "" when it is in use."""
    with database.read() as session:
        result = read_object(session, MOVED_TO)

    return str(result.get("target") or "")


def refuse_moved(database: Database) -> None:
    """Raise DatabaseMoved when what *database* held is somewhere else now; only SQLite databases move."""
    if database.dialect != "sqlite":
        return
    target = moved_to(database)
    if target:
        raise moved(database.name, target)


logger = logging.getLogger("adw.db")


@dataclass(frozen=True, kw_only=True, slots=True)
class Upgrade:
    """What was done to a schema."""

    found: str | None  #: the revision before; None: the database was new
    now: str
    backup: str | None = None  #: where the database as it was before is, when there was something to lose


def open_database(
    url: str,
    *,
    clock: Clock,
    boot_id: str = "",
    patience_seconds: float = PATIENCE_SECONDS,
    is_synced: bool = True,
) -> Database:
    """
    Return the database at *url*, made or upgraded when it has to be; only tests turn *is_synced* off.

    Raises SchemaMismatch for a newer one, and DatabaseMoved for one that is not in use any more.
    """
    database = connect(url, clock=clock, boot_id=boot_id, patience_seconds=patience_seconds, is_synced=is_synced)
    try:
        upgrade(database)
    except BaseException:
        database.close()
        raise

    return database


def connect(
    url: str,
    *,
    clock: Clock,
    boot_id: str = "",
    patience_seconds: float = PATIENCE_SECONDS,
    is_synced: bool = True,
) -> Database:
    """Return the database at *url* as it is, whatever its schema."""
    scheme, result, rest = url.partition("://")
    if result and scheme == "sqlite":
        return SqliteDatabase(
            _sqlite_path(url, rest),
            clock=clock,
            boot_id=boot_id,
            patience_seconds=patience_seconds,
            is_synced=is_synced,
        )
    if result and scheme in {"postgresql", "postgresql+psycopg", "postgres"}:
        return _postgres(url, clock)

    raise UsageError(
        f"{scheme or url!r} is not a database adw knows: use sqlite:////path/to/adw.db or postgresql://user@host/name"
    )


def upgrade(database: Database) -> Upgrade:
    """
    Bring the schema to this adw's revision.

    Raises SchemaMismatch when it is not one that adw knows, and DatabaseMoved when nothing in it is to be changed any
    more.
    """
    result = database.schema_version()
    refuse_unknown(database.name, result)
    if result is not None and result >= SINCE:
        refuse_moved(database)
    if result == connection.HEAD:
        return Upgrade(found=result, now=result)
    # Late: only a schema that differs needs SQLAlchemy and Alembic.
    upgrader = importlib.import_module("adws.adw_modules.db.migrate")
    done: Upgrade = upgrader.upgrade(database)
    if done.backup is not None:
        said = {"action": "database_upgraded", "from": done.found, "to": done.now, "backup": done.backup}
        logger.warning("The database was upgraded", extra=said)

    return done


def refuse_unknown(name: str, found: str | None) -> None:
    """Raise SchemaMismatch when *found* is no revision that this adw can start from."""
    if found is None or found in connection.KNOWN:
        return

    raise SchemaMismatch(
        f"the database {name} has schema {found}, this adw knows up to {connection.HEAD}: "
        "upgrade adw, or bring back a backup that this version made"
    )


def _sqlite_path(url: str, rest: str) -> Path:
    """Return the path in `sqlite:///relative` or `sqlite:////absolute`."""
    path = rest.removeprefix("/")
    if not rest.startswith("/") or not path or path.startswith(":memory:"):
        raise UsageError(f"{url} names no file: use sqlite:////absolute/path/adw.db or sqlite:///relative/adw.db")

    return Path(path)


def _postgres(url: str, clock: Clock) -> Database:
    try:
        # Late: the driver is an extra, and users of SQLite do not have it.
        module = importlib.import_module("adws.adw_modules.db.postgres")
    except ImportError as exc:
        raise DatabaseUnavailable(
            f"PostgreSQL needs a driver that is missing ({exc}): pip install 'adw[postgres]'"
        ) from exc
    database: Database = module.PostgresDatabase(url, clock=clock)

    return database
