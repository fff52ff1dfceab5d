"""
Opening a database by its URL, with the schema that this version of adw needs.

One query reads the schema's revision. SQLAlchemy and Alembic are loaded only if it differs, because importing them
takes longer than most commands run. A new database is created complete from `db/schema.py`; an older one is migrated by
the steps in `migrations/versions`, in one transaction and by one process at a time. A failed step leaves the schema
unchanged.
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

#: Every revision ever released, oldest first; a test compares this with the migration scripts.
KNOWN = ("0001",)
#: The revision this version of adw uses.
HEAD = KNOWN[-1]

#: "adw" and "adwj" as numbers: advisory locks for upgrading adw's own tables and the tables of Procrastinate in one
#: PostgreSQL database.
ADVISORY_LOCK, PROCRASTINATE_LOCK = 0x616477, 0x6164776A


@dataclass(frozen=True, kw_only=True, slots=True)
class Upgrade:
    """The result of a schema upgrade."""

    found: str | None  #: revision before; None: the database was new
    now: str
    backup: str | None = None  #: location of the copy made before the upgrade, if there was data to lose


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
    Return the database at *url*, created or upgraded if necessary; only tests turn *is_synced* off.

    Raises SchemaMismatch for an unknown schema, and DatabaseMoved for a database that is no longer in use.
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
    """Return the database at *url* unchanged, whatever its schema."""
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
    Upgrade the schema to this version's revision.

    Raises SchemaMismatch if its revision is unknown, and DatabaseMoved if the database has moved.
    """
    found = database.schema_version()
    refuse_unknown(database.name, found)
    if found is not None and database.dialect == "sqlite":  # only SQLite databases move
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
    """Raise SchemaMismatch if *found* is a revision that this version of adw cannot start from."""
    if found is None or found in KNOWN:
        return

    raise SchemaMismatch(
        f"the database {name} has schema {found}, this adw knows up to {HEAD}: "
        "upgrade adw, bring back a backup that this version made, or move that database away and make a new one "
        "with adw db rebuild, which fills it from the documents"
    )


# --- making and upgrading --------------------------------------------------------------------------------------


def _change_schema(database: Database) -> Upgrade:
    """Create the schema, or run every missing step, in one transaction."""
    import sqlalchemy as sa

    name, backup = database.name, None
    with ExitStack() as stack:
        if isinstance(database, SqliteDatabase):
            sqlite.make_file(database.path)
            stack.enter_context(database.writer_lock.held())
            with closing(database.connect()) as plain:
                # The file keeps this setting. It is made under the lock, as two first openers would conflict.
                plain.execute("PRAGMA journal_mode = WAL").fetchall()
        connection = stack.enter_context(engine(database).begin())
        if not isinstance(database, SqliteDatabase):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
        found = _revision(connection, name)  # again: another process may have done the work meanwhile
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
    """Return an engine over the database's own driver connections; on SQLite it begins with BEGIN IMMEDIATE."""
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
    """Return the current revision; raise SchemaMismatch if adw cannot start from it."""
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
        # Passed as it is: `::` is a cast here, not a parameter.
        connection.exec_driver_sql(view.create(connection.dialect.name))
    MigrationContext.configure(connection).stamp(_scripts(), "head")


def _run_steps(connection: sa.Connection) -> None:
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext

    scripts = _scripts()

    def missing(revision: Any, context: Any) -> Any:
        del context

        return scripts._upgrade_revs("head", revision)  # noqa: SLF001 - what `alembic upgrade` calls; not public

    with EnvironmentContext(Config(), scripts, fn=missing) as environment:
        environment.configure(connection=connection, transactional_ddl=True)
        environment.run_migrations()


def _scripts() -> Any:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    # By package rather than path: a percent sign in a path would have to be escaped.
    config.set_main_option("script_location", "adws.adw_modules.db:migrations")

    return ScriptDirectory.from_config(config)


def _keep_copy(database: SqliteDatabase, found: str) -> Path:
    """Copy the database beside itself before an upgrade, and return the copy's path."""
    target = database.path.with_name(f"{database.path.name}.before-{found}.bak")
    number = 1
    while target.exists():  # an earlier upgrade failed
        number += 1
        target = database.path.with_name(f"{database.path.name}.before-{found}.{number}.bak")
    database.copy_to(target)

    return target


def _keep_tables(connection: sa.Connection, found: str) -> str:
    """
    Copy every table of adw before an upgrade; return the prefix of the copies' names.

    Part of the upgrade's transaction: the copies exist if and only if the upgrade happened. The tables of Procrastinate
    are left out, because their content follows from the runs.
    """
    import sqlalchemy as sa

    from adws.adw_modules.db import schema

    there = set(sa.inspect(connection).get_table_names())
    names = sorted(there & {*schema.metadata.tables, "alembic_version"})
    beginning, number = f"adw_before_{found}_", 1
    while any(name.startswith(beginning) for name in there):  # it was restored from a copy, and is upgraded again
        number += 1
        beginning = f"adw_before_{found}x{number}_"
    # Nobody may write between the copies of two tables, nor before the steps are done.
    connection.exec_driver_sql(f"LOCK TABLE {', '.join(names)} IN SHARE ROW EXCLUSIVE MODE")
    for name in names:
        connection.exec_driver_sql(f"CREATE TABLE {beginning}{name} AS TABLE {name}")

    return beginning


# --- the tables of Procrastinate -------------------------------------------------------------------------------
#
# Procrastinate has no version table: its steps are SQL files whose names sort. The last step run is stored as the
# comment of its jobs table. Tables without that comment are not ours, and are left alone.

_MARK = "made by adw, up to "


def ensure_procrastinate(database: PostgresDatabase) -> None:
    """Create or upgrade the tables of Procrastinate, which may be upgraded independently of adw."""
    with closing(database.connect(autocommit=False)) as connection, connection.transaction():
        upgrade_procrastinate(connection, database.name)


def upgrade_procrastinate(connection: psycopg.Connection[Any], name: str) -> None:
    """
    Create the tables, or run the missing steps, in the transaction of *connection*, one process at a time.

    Raises SchemaMismatch if the tables are not ours, or were made by a newer Procrastinate.
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
        # Without parameters, one message may have many statements, and a percent sign is literal.
        connection.execute(file.read_bytes())
    mark_procrastinate(connection, steps[-1])


def procrastinate_step(connection: psycopg.Connection[Any], name: str) -> str | None:
    """Return the last step run, or None without tables; raise SchemaMismatch if the tables are not ours."""
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
    """Record the last step run."""
    from psycopg import sql

    text = sql.SQL("COMMENT ON TABLE procrastinate_jobs IS {}").format(sql.Literal(f"{_MARK}{step}"))
    connection.execute(text)


def procrastinate_files() -> Path:
    """Return the directory of the installed Procrastinate's SQL files, without importing it."""
    spec = importlib.util.find_spec("procrastinate")
    if spec is None or spec.origin is None:
        raise DatabaseUnavailable("PostgreSQL needs Procrastinate, which is missing: pip install 'adw[postgres]'")

    return Path(spec.origin).parent / "sql"


# --- facts about the database itself ---------------------------------------------------------------------------
#
# A few texts by name, in the table home_facts. Opening a SQLite database that has moved fails with the new location.
# Processes that still have it open are stopped by a trigger on each table, since their writes would be lost.

#: Names of facts. Both are JSON: target or source, time, and the checksums of all tables.
MOVED_TO, MOVED_FROM = "moved_to", "moved_from"
#: Identifies a home.
HOME_ID = "home_id"


def read_fact(session: Session, name: str) -> str:
    """Return the fact *name*, or "" if it is not stored."""
    row = session.one("SELECT value FROM home_facts WHERE name = :name", {"name": name})

    return "" if row is None else str(row[0])


def read_fact_object(session: Session, name: str) -> dict[str, Any]:
    """Return the fact *name* as a JSON object, empty if it is not stored."""
    fact: dict[str, Any] = json.loads(read_fact(session, name) or "{}")

    return fact


def write_fact(session: Session, name: str, value: str, *, moment: str) -> None:
    """Store the fact *name*, replacing its old value."""
    session.run(
        """
        INSERT INTO home_facts (name, value, changed_at) VALUES (:name, :value, :moment)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value, changed_at = excluded.changed_at
        """,
        {"name": name, "value": value, "moment": moment},
    )


def moved_to(database: Database) -> str:
    """Return where *database* has moved to, or "" if it is in use."""
    with database.read() as session:
        return str(read_fact_object(session, MOVED_TO).get("target") or "")


def moved(name: str, target: str) -> DatabaseMoved:
    """Return the error that says where the database *name* moved to."""
    return DatabaseMoved(
        f"the database {name} has moved to {target}: set database.url (ADW_DATABASE_URL) to that one and state.store "
        "(ADW_STATE_STORE) to database"
    )
