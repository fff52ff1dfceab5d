"""
Bringing a schema to the present revision with Alembic, in one transaction and one process at a time.

A process that waited for the lock checks the revision again: the one before it may have done the work. A step that
fails leaves the schema as it was.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy.pool import NullPool

from adws.adw_modules.db import connection as db_connection
from adws.adw_modules.db import opening, schema, sqlite
from adws.adw_modules.db.connection import Database
from adws.adw_modules.db.opening import Upgrade
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.errors import DatabaseError, SchemaMismatch

#: "adw" as a number: the advisory lock that upgraders of one PostgreSQL database wait for.
ADVISORY_LOCK = 0x616477


def upgrade(database: Database) -> Upgrade:
    """Run every step that is missing, and say what was done."""
    if isinstance(database, SqliteDatabase):
        return _upgrade_sqlite(database)

    with engine(database).connect() as connection, connection.begin():
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
        result = _found(connection, database.name)
        backup = None
        if result != db_connection.HEAD:
            with _whole(database.name):
                backup = None if result is None else keep_tables(connection, result)
            run_steps(connection, database.name)
        _bring_up_jobs(connection, database.name)

    return Upgrade(found=result, now=db_connection.HEAD, backup=backup and f"the tables {backup}*")


def _bring_up_jobs(connection: sa.Connection, name: str) -> None:
    # Late: it needs the driver, which users of SQLite do not have.
    jobs = importlib.import_module("adws.adw_modules.db.procrastinate_schema")
    jobs.catch_up(connection.connection.driver_connection, name)


def _upgrade_sqlite(database: SqliteDatabase) -> Upgrade:
    sqlite.make_file(database.path)
    with database.turn.held():
        with closing(database.connect()) as plain:
            # Kept in the file for ever. Set under the lock: two first openers would be in each other's way.
            plain.execute("PRAGMA journal_mode = WAL").fetchall()
        with engine(database).connect() as connection, connection.begin():
            result = _found(connection, database.name)
            if result == db_connection.HEAD:
                return Upgrade(found=result, now=result)
            backup = None if result is None else str(_keep_copy(database, result))
            run_steps(connection, database.name)

    return Upgrade(found=result, now=db_connection.HEAD, backup=backup)


def keep_tables(connection: sa.Connection, found: str) -> str:
    """
    Copy every table of adw as it is before an upgrade, beside itself; return what the names of the copies begin with.

    In the transaction of the upgrade: there is a copy if and only if there was an upgrade. The tables of Procrastinate
    are left out, because what they say follows from the runs.
    """
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


@contextmanager
def _whole(name: str) -> Iterator[None]:
    """Say of an error inside the block that nothing was changed."""
    try:
        yield
    except sa.exc.SQLAlchemyError as exc:
        raise DatabaseError(f"the database {name} could not be upgraded: {exc}; it is as it was before") from exc


def run_steps(connection: sa.Connection, name: str, target: str = "head") -> None:
    """Run every missing step up to *target* inside the transaction of *connection*."""
    config = Config()
    # By package, not by path: a path with a percent sign would have to be escaped.
    config.set_main_option("script_location", "adws.adw_modules.db:migrations")
    scripts = ScriptDirectory.from_config(config)

    def missing(revision: Any, context: Any) -> Any:
        del context

        return scripts._upgrade_revs(target, revision)  # noqa: SLF001 - what `alembic upgrade` itself calls; no public name

    with EnvironmentContext(config, scripts, fn=missing) as environment:
        environment.configure(connection=connection, transactional_ddl=True)
        with _whole(name):
            environment.run_migrations()


def engine(database: Database) -> sa.Engine:
    """Return an engine over the database's own driver connections; a SQLite one begins with BEGIN IMMEDIATE."""
    if not isinstance(database, SqliteDatabase):
        server: Any = database
        return sa.create_engine(
            "postgresql+psycopg://", creator=lambda: server.connect(autocommit=False), poolclass=NullPool
        )
    made = sa.create_engine("sqlite://", creator=database.connect, poolclass=NullPool)

    @sa.event.listens_for(made, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return made


def _found(connection: sa.Connection, name: str) -> str | None:
    """Return the revision that is there now; raise SchemaMismatch when adw cannot start from it."""
    tables = set(sa.inspect(connection).get_table_names())
    if "alembic_version" not in tables:
        if "workflow_states" in tables:
            raise SchemaMismatch(f"the database {name} has a table workflow_states that adw did not make: use another")
        return None
    result: str | None = connection.execute(sa.text(db_connection.READ_VERSION)).scalar()
    opening.refuse_unknown(name, result)

    return result


def _keep_copy(database: SqliteDatabase, found: str) -> Path:
    """Keep the database as it is before an upgrade, beside itself, and return where."""
    target = database.path.with_name(f"{database.path.name}.before-{found}.bak")
    number = 1
    while target.exists():  # an upgrade before this one did not get through
        number += 1
        target = database.path.with_name(f"{database.path.name}.before-{found}.{number}.bak")
    database.copy_to(target)

    return target
