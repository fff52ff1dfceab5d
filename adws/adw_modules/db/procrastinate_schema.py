"""
The tables of Procrastinate, made and upgraded with ours.

Procrastinate has no table of versions: its steps are SQL files, named so that they sort. The last one that was run is
kept as the comment of its table of jobs. Tables without that comment are somebody else's, and are left alone.
"""

from __future__ import annotations

import importlib.util
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psycopg import sql

from adws.adw_modules.db.postgres import PostgresDatabase
from adws.adw_modules.errors import DatabaseUnavailable, SchemaMismatch

if TYPE_CHECKING:
    import psycopg

#: "adwj" as a number: the advisory lock around making or upgrading the tables.
ADVISORY_LOCK = 0x6164776A

_MARK = "made by adw, up to "
_FIND = "SELECT to_regclass('procrastinate_jobs'), obj_description(to_regclass('procrastinate_jobs'), 'pg_class')"


def catch_up(connection: psycopg.Connection[Any], name: str, files: Path | None = None) -> None:
    """
    Make the tables, or run the steps that are missing, in the transaction of *connection*, one process at a time.

    Raises SchemaMismatch when they are not ours, or when a newer Procrastinate made them.
    """
    files = files or sql_files()
    steps = sorted(path.stem for path in (files / "migrations").glob("*.sql"))
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [ADVISORY_LOCK])
    result = found_step(connection, name)
    if result == steps[-1]:
        return
    if result is None:
        _run(connection, files / "schema.sql")
    else:
        refuse_newer(name, result, steps)
        for step in steps:
            if step > result:
                _run(connection, files / "migrations" / f"{step}.sql")
    mark(connection, steps[-1])


def ensure(database: PostgresDatabase) -> None:
    """Do that on a connection of its own: Procrastinate may be upgraded without adw."""
    with closing(database.connect(autocommit=False)) as connection, connection.transaction():
        catch_up(connection, database.name)


def found_step(connection: psycopg.Connection[Any], name: str) -> str | None:
    """Return the last step that was run, None when there are no tables; raise SchemaMismatch for those of others."""
    table, comment = connection.execute(_FIND).fetchone() or (None, None)
    if table is None:
        return None
    if not str(comment or "").startswith(_MARK):
        raise SchemaMismatch(
            f"the database {name} has tables of Procrastinate that adw did not make: use another database or schema"
        )

    return str(comment).removeprefix(_MARK)


def refuse_newer(name: str, found: str, steps: list[str]) -> None:
    """Raise SchemaMismatch when *found* is later than all that the installed Procrastinate knows."""
    if found > steps[-1]:
        raise SchemaMismatch(
            f"the jobs in the database {name} were made by a newer Procrastinate ({found}, installed is {steps[-1]}): "
            "upgrade it with pip install -U 'adw[postgres]'"
        )


def mark(connection: psycopg.Connection[Any], step: str) -> None:
    """Write down which step was the last."""
    text = sql.SQL("COMMENT ON TABLE procrastinate_jobs IS {}").format(sql.Literal(f"{_MARK}{step}"))
    connection.execute(text)


def sql_files() -> Path:
    """Return where the SQL files of the installed Procrastinate are; it is not imported for that."""
    spec = importlib.util.find_spec("procrastinate")
    if spec is None or spec.origin is None:
        raise DatabaseUnavailable("PostgreSQL needs Procrastinate, which is missing: pip install 'adw[postgres]'")

    return Path(spec.origin).parent / "sql"


def _run(connection: psycopg.Connection[Any], file: Path) -> None:
    # Without parameters: then one message may have many statements, and a percent sign is one.
    connection.execute(file.read_bytes())
