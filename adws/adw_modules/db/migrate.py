"""
Opening a database by its URL, with the schema this adw needs.

One query reads the schema's revision. Only when it differs are SQLAlchemy and Alembic loaded: they take longer to
import than most commands take to run. A new database is made whole from `db/schema.py`; an older one is brought up by
the steps in `migrations/versions`, in one transaction and by one process at a time. A step that fails leaves the schema
as it was.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from adws.adw_modules.db import sqlite
from adws.adw_modules.db.connection import PATIENCE_SECONDS, Database, Session
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.errors import DatabaseError, DatabaseMoved, DatabaseUnavailable, SchemaMismatch, UsageError
from adws.adw_modules.interfaces import Clock

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy as sa

    from adws.adw_modules.db.postgres import PostgresDatabase

logger = logging.getLogger("adw.db")

#: Every revision there ever was, oldest first; a test holds this against the migration scripts.
KNOWN = ("0001",)
#: The revision this adw works with.
HEAD = KNOWN[-1]

#: "adw" and "adwj" as numbers: the advisory locks that upgraders of one PostgreSQL database, and those of the tables of
#: Procrastinate in it, wait for.
ADVISORY_LOCK, PROCRASTINATE_LOCK = 0x616477, 0x6164776A


@dataclass(frozen=True, kw_only=True, slots=True)
class Upgrade:
    """What was done to a schema."""

    found: str | None  #: the revision before; None: the database was new
    now: str
    backup: str | None = None  #: where the database as it was before is, when there was something to lose


# --- opening ---------------------------------------------------------------------------------------------------


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

    Raises SchemaMismatch for one that this adw does not know, and DatabaseMoved for one that is not in use any more.
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
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "sqlite":  # sqlite:///relative or sqlite:////absolute
        path = rest.removeprefix("/")
        if not rest.startswith("/") or not path or path.startswith(":memory:"):
            raise UsageError(f"{url} names no file: use sqlite:////absolute/path/adw.db or sqlite:///relative/adw.db")
        return SqliteDatabase(
            Path(path), clock=clock, boot_id=boot_id, patience_seconds=patience_seconds, is_synced=is_synced
        )
    if separator and scheme in {"postgresql", "postgresql+psycopg", "postgres"}:
        try:
            from adws.adw_modules.db.postgres import PostgresDatabase
        except ImportError as exc:
            raise DatabaseUnavailable(
                f"PostgreSQL needs a driver that is missing ({exc}): pip install 'adw[postgres]'"
            ) from exc
        return PostgresDatabase(url, clock=clock)

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
    if found is not None and database.dialect == "sqlite":  # only those move
        target = moved_to(database)
        if target:
            raise moved(database.name, target)
    if found == HEAD:
        return Upgrade(found=found, now=found)
    done = _change_schema(database)
    if done.backup is not None:
        said = {"action": "database_upgraded", "from": done.found, "to": done.now, "backup": done.backup}
        logger.warning("The database was upgraded", extra=said)

    return done


def refuse_unknown(name: str, found: str | None) -> None:
    """Raise SchemaMismatch when *found* is no revision that this adw can start from."""
    if found is None or found in KNOWN:
        return

    raise SchemaMismatch(
        f"the database {name} has schema {found}, this adw knows up to {HEAD}: "
        "upgrade adw, bring back a backup that this version made, or move that database away and make a new one "
        "with adw db rebuild, which fills it from the documents"
    )


# --- making and upgrading --------------------------------------------------------------------------------------


def _change_schema(database: Database) -> Upgrade:
    """Make the schema, or run every step that is missing, in one transaction."""
    import sqlalchemy as sa

    name, backup = database.name, None
    with ExitStack() as stack:
        if isinstance(database, SqliteDatabase):
            sqlite.make_file(database.path)
            stack.enter_context(database.writer_lock.held())
            with closing(database.connect()) as plain:
                # Kept in the file for ever. Set under the lock: two first openers would be in each other's way.
                plain.execute("PRAGMA journal_mode = WAL").fetchall()
        connection = stack.enter_context(engine(database).begin())
        if not isinstance(database, SqliteDatabase):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
        found = _revision(connection, name)  # again: the process before this one may have done the work
        try:
            if found is None:
                _make_schema(connection)
            elif found != HEAD:
                if isinstance(database, SqliteDatabase):
                    backup = str(_keep_copy(database, found))
                else:
                    backup = f"the tables {_keep_tables(connection, found)}*"
                _run_steps(connection)
        except sa.exc.SQLAlchemyError as exc:
            raise DatabaseError(f"the database {name} could not be upgraded: {exc}; it is as it was before") from exc
        if not isinstance(database, SqliteDatabase):
            upgrade_procrastinate(cast("psycopg.Connection[Any]", connection.connection.driver_connection), name)

    return Upgrade(found=found, now=HEAD, backup=backup)


def engine(database: Database) -> sa.Engine:
    """Return an engine over the database's own driver connections; a SQLite one begins with BEGIN IMMEDIATE."""
    import sqlalchemy as sa
    from sqlalchemy.pool import NullPool

    if not isinstance(database, SqliteDatabase):
        server = cast("PostgresDatabase", database)
        return sa.create_engine(
            "postgresql+psycopg://", creator=lambda: server.connect(autocommit=False), poolclass=NullPool
        )
    made = sa.create_engine("sqlite://", creator=database.connect, poolclass=NullPool)

    @sa.event.listens_for(made, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return made


def _revision(connection: sa.Connection, name: str) -> str | None:
    """Return the revision that is there now; raise SchemaMismatch when adw cannot start from it."""
    import sqlalchemy as sa

    tables = set(sa.inspect(connection).get_table_names())
    if "alembic_version" not in tables:
        if "workflow_states" in tables:
            raise SchemaMismatch(f"the database {name} has a table workflow_states that adw did not make: use another")
        return None
    found: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    refuse_unknown(name, found)

    return found


def _make_schema(connection: sa.Connection) -> None:
    from alembic.migration import MigrationContext

    from adws.adw_modules.db import schema

    schema.metadata.create_all(connection, checkfirst=False)
    for view in schema.VIEWS:
        # As it stands: `::` is a cast here, and no name of a parameter.
        connection.exec_driver_sql(view.create(connection.dialect.name))
    MigrationContext.configure(connection).stamp(_scripts(), "head")


def _run_steps(connection: sa.Connection) -> None:
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext

    scripts = _scripts()

    def missing(revision: Any, context: Any) -> Any:
        del context

        return scripts._upgrade_revs("head", revision)  # noqa: SLF001 - what `alembic upgrade` itself calls; no public name

    with EnvironmentContext(Config(), scripts, fn=missing) as environment:
        environment.configure(connection=connection, transactional_ddl=True)
        environment.run_migrations()


def _scripts() -> Any:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    # By package, not by path: a path with a percent sign would have to be escaped.
    config.set_main_option("script_location", "adws.adw_modules.db:migrations")

    return ScriptDirectory.from_config(config)


def _keep_copy(database: SqliteDatabase, found: str) -> Path:
    """Keep the database as it is before an upgrade, beside itself, and return where."""
    target = database.path.with_name(f"{database.path.name}.before-{found}.bak")
    number = 1
    while target.exists():  # an upgrade before this one did not get through
        number += 1
        target = database.path.with_name(f"{database.path.name}.before-{found}.{number}.bak")
    database.copy_to(target)

    return target


def _keep_tables(connection: sa.Connection, found: str) -> str:
    """
    Copy every table of adw as it is before an upgrade, beside itself; return what the names of the copies begin with.

    In the transaction of the upgrade: there is a copy if and only if there was an upgrade. The tables of Procrastinate
    are left out, because what they say follows from the runs.
    """
    import sqlalchemy as sa

    from adws.adw_modules.db import schema

    there = set(sa.inspect(connection).get_table_names())
    names = sorted(there & {*schema.metadata.tables, "alembic_version"})
    beginning, number = f"adw_before_{found}_", 1
    while any(name.startswith(beginning) for name in there):  # somebody went back to it, and upgrades again
        number += 1
        beginning = f"adw_before_{found}x{number}_"
    # Nobody writes between the copy of one table and that of another, nor before the steps are done.
    connection.exec_driver_sql(f"LOCK TABLE {', '.join(names)} IN SHARE ROW EXCLUSIVE MODE")
    for name in names:
        connection.exec_driver_sql(f"CREATE TABLE {beginning}{name} AS TABLE {name}")

    return beginning


# --- the tables of Procrastinate -------------------------------------------------------------------------------
#
# Procrastinate has no table of versions: its steps are SQL files, named so that they sort. The last one that was run is
# kept as the comment of its table of jobs. Tables without that comment are somebody else's, and are left alone.

_MARK = "made by adw, up to "


def ensure_procrastinate(database: PostgresDatabase) -> None:
    """Make or upgrade the tables of Procrastinate on a connection of their own: it may be upgraded without adw."""
    with closing(database.connect(autocommit=False)) as connection, connection.transaction():
        upgrade_procrastinate(connection, database.name)


def upgrade_procrastinate(connection: psycopg.Connection[Any], name: str) -> None:
    """
    Make the tables, or run the steps that are missing, in the transaction of *connection*, one process at a time.

    Raises SchemaMismatch when they are not ours, or when a newer Procrastinate made them.
    """
    files = procrastinate_files()
    steps = sorted(path.stem for path in (files / "migrations").glob("*.sql"))
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [PROCRASTINATE_LOCK])
    found = procrastinate_step(connection, name)
    if found == steps[-1]:
        return
    if found is not None and found > steps[-1]:
        raise SchemaMismatch(
            f"the jobs in the database {name} were made by a newer Procrastinate ({found}, installed is {steps[-1]}): "
            "upgrade it with pip install -U 'adw[postgres]'"
        )
    missing = [files / "migrations" / f"{step}.sql" for step in steps if found is not None and step > found]
    for file in missing or [files / "schema.sql"]:
        # Without parameters: then one message may have many statements, and a percent sign is one.
        connection.execute(file.read_bytes())
    mark_procrastinate(connection, steps[-1])


def procrastinate_step(connection: psycopg.Connection[Any], name: str) -> str | None:
    """Return the last step that was run, None when there are no tables; raise SchemaMismatch for those of others."""
    table, comment = connection.execute(
        "SELECT to_regclass('procrastinate_jobs'), obj_description(to_regclass('procrastinate_jobs'), 'pg_class')"
    ).fetchone() or (None, None)
    if table is None:
        return None
    if not str(comment or "").startswith(_MARK):
        raise SchemaMismatch(
            f"the database {name} has tables of Procrastinate that adw did not make: use another database or schema"
        )

    return str(comment).removeprefix(_MARK)


def mark_procrastinate(connection: psycopg.Connection[Any], step: str) -> None:
    """Write down which step was the last."""
    from psycopg import sql

    text = sql.SQL("COMMENT ON TABLE procrastinate_jobs IS {}").format(sql.Literal(f"{_MARK}{step}"))
    connection.execute(text)


def procrastinate_files() -> Path:
    """Return where the SQL files of the installed Procrastinate are; it is not imported for that."""
    spec = importlib.util.find_spec("procrastinate")
    if spec is None or spec.origin is None:
        raise DatabaseUnavailable("PostgreSQL needs Procrastinate, which is missing: pip install 'adw[postgres]'")

    return Path(spec.origin).parent / "sql"


# --- facts about the database itself ---------------------------------------------------------------------------
#
# A few texts by name, in the table home_facts. A SQLite database that has moved says so when it is opened. Processes
# that have it open already run into a trigger on each table: what they would still write would be lost.

#: Names of facts. Both are JSON: where to or from, when, and the sums of all tables.
MOVED_TO, MOVED_FROM = "moved_to", "moved_from"
#: Tells one home from another.
HOME_ID = "home_id"


def read_fact(session: Session, name: str) -> str:
    """Return the fact *name*, "" when it is not known."""
    row = session.one("SELECT value FROM home_facts WHERE name = :name", {"name": name})

    return "" if row is None else str(row[0])


def read_fact_object(session: Session, name: str) -> dict[str, Any]:
    """Return the fact *name*, which is a JSON object; empty when it is not known."""
    fact: dict[str, Any] = json.loads(read_fact(session, name) or "{}")

    return fact


def write_fact(session: Session, name: str, value: str, *, moment: str) -> None:
    """Write the fact *name* down, over what it was."""
    session.run(
        """
        INSERT INTO home_facts (name, value, changed_at) VALUES (:name, :value, :moment)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value, changed_at = excluded.changed_at
        """,
        {"name": name, "value": value, "moment": moment},
    )


def moved_to(database: Database) -> str:
    """Return where *database* has moved to, "" when it is in use."""
    with database.read() as session:
        return str(read_fact_object(session, MOVED_TO).get("target") or "")


def moved(name: str, target: str) -> DatabaseMoved:
    """Return the error that says where the database *name* went."""
    return DatabaseMoved(
        f"the database {name} has moved to {target}: set database.url (ADW_DATABASE_URL) to that one and state.store "
        "(ADW_STATE_STORE) to database"
    )
