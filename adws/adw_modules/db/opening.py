"""
Opening a database by its URL, with the schema this adw needs.

One query tells the schema's revision. Only when it differs are SQLAlchemy and Alembic loaded: they take longer to
import than most commands take to run.
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from pathlib import Path

from adws.adw_modules.db import home_facts, schema_version
from adws.adw_modules.db.session import PATIENCE_SECONDS, Database
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.errors import DatabaseUnavailable, SchemaMismatch, UsageError
from adws.adw_modules.interfaces import Clock

logger = logging.getLogger("adw.db")


@dataclass(frozen=True, kw_only=True, slots=True)
class Upgrade:
    """What was done to a schema."""

    found: str | None  #: the revision before; None: the database was new
    now: str
    backup: str | None = None  #: where the database as it was before is, when there was something to lose


def open_database(url: str, *, clock: Clock, boot_id: str = "", patience_seconds: float = PATIENCE_SECONDS) -> Database:
    """
    Return the database at *url*, made or upgraded when it has to be.

    Raises SchemaMismatch for a newer one, and DatabaseMoved for one that is not in use any more.
    """
    database = connect(url, clock=clock, boot_id=boot_id, patience_seconds=patience_seconds)
    try:
        upgrade(database)
    except BaseException:
        database.close()
        raise

    return database


def connect(url: str, *, clock: Clock, boot_id: str = "", patience_seconds: float = PATIENCE_SECONDS) -> Database:
    """Return the database at *url* as it is, whatever its schema."""
    scheme, found, rest = url.partition("://")
    if found and scheme == "sqlite":
        return SqliteDatabase(_sqlite_path(url, rest), clock=clock, boot_id=boot_id, patience_seconds=patience_seconds)
    if found and scheme in {"postgresql", "postgresql+psycopg", "postgres"}:
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
    found = database.schema_version()
    refuse_unknown(database.name, found)
    if found is not None and found >= home_facts.SINCE:
        home_facts.refuse_moved(database)
    if found == schema_version.HEAD:
        return Upgrade(found=found, now=found)
    # Late: only a schema that differs needs SQLAlchemy and Alembic.
    upgrader = importlib.import_module("adws.adw_modules.db.upgrade")
    done: Upgrade = upgrader.upgrade(database)
    if done.backup is not None:
        said = {"action": "database_upgraded", "from": done.found, "to": done.now, "backup": done.backup}
        logger.warning("The database was upgraded", extra=said)

    return done


def refuse_unknown(name: str, found: str | None) -> None:
    """Raise SchemaMismatch when *found* is no revision that this adw can start from."""
    if found is None or found in schema_version.KNOWN:
        return

    raise SchemaMismatch(
        f"the database {name} has schema {found}, this adw knows up to {schema_version.HEAD}: "
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
        # Late: the driver is an extra, and those who use SQLite do not have it.
        module = importlib.import_module("adws.adw_modules.db.postgres")
    except ImportError as exc:
        raise DatabaseUnavailable(
            f"PostgreSQL needs a driver that is missing ({exc}): pip install 'adw[postgres]'"
        ) from exc
    database: Database = module.PostgresDatabase(url, clock=clock)

    return database
