"""Database files that are moved, replaced or out of reach: no log is played into another database."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from adws.adw_modules import durable_file
from adws.adw_modules.db import sqlite
from adws.adw_modules.db.migrate import open_database
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.errors import DatabaseUnavailable
from adws.adw_modules.maintenance.rebuild import Reconstruction


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "home" / "adw.db"


@pytest.fixture
def reconstruction(path, clock):
    made = Reconstruction(f"sqlite:///{path}", clock=clock)
    yield made
    made.close()


def lock_issue(database, number: int) -> None:
    with database.write() as session:
        session.run("INSERT INTO adw_locks VALUES ('', :number, '1a2b3c4d', '')", {"number": number})


def issues(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as plain:
        return [row[0] for row in plain.execute("SELECT issue_number FROM adw_locks ORDER BY issue_number")]


def test_a_log_that_a_cut_short_run_left_is_moved_before_another_database_is_installed(path, clock, reconstruction):
    database = open_database(f"sqlite:///{path}", clock=clock)
    lock_issue(database, 1)
    backup = path.with_name("backup.db")
    database.copy_to(backup)
    lock_issue(database, 2)
    log = path.with_name("adw.db-wal").read_bytes()
    database.close()
    path.unlink()  # moved by a run that was killed before it came to the log
    path.with_name("adw.db-wal").write_bytes(log)

    reconstruction.install(str(backup))
    reconstruction.close()

    assert issues(path) == [1]
    (kept,) = path.parent.glob("adw.db.before-restore-*")
    assert (kept.name.endswith("-wal"), kept.read_bytes()) == (True, log)


def test_setting_aside_tells_where_the_files_are_and_makes_it_durable(path, clock, reconstruction, monkeypatch):
    synced = []
    monkeypatch.setattr(durable_file, "sync_directory_at", synced.append)
    open_database(f"sqlite:///{path}", clock=clock).close()
    path.with_name("adw.db-wal").write_bytes(b"log")

    first = Path(reconstruction.set_aside())
    path.with_name("adw.db-wal").write_bytes(b"another log")
    second = Path(reconstruction.set_aside())

    assert first.exists()
    assert first.with_name(f"{first.name}-wal").read_bytes() == b"log", "never written over"
    assert second.read_bytes() == b"another log"
    assert reconstruction.set_aside() is None
    assert synced == [str(path.parent)] * 2


def test_a_database_that_came_meanwhile_is_not_taken_for_a_lost_one(path, clock, reconstruction):
    assert reconstruction.salvage().is_missing
    database = open_database(f"sqlite:///{path}", clock=clock)
    lock_issue(database, 1)

    assert reconstruction.set_aside_left_overs() is None

    with database.read() as session:
        assert session.one("SELECT count(*) FROM adw_locks") == (1,)
    database.close()
    assert path.exists()


def test_a_place_where_nothing_was_left_stays_as_it_is(path, reconstruction):
    assert reconstruction.set_aside_left_overs() is None
    assert not path.with_name("adw.db.write-lock").exists()


def test_readers_see_the_database_that_was_put_in_place(path, clock):
    database = open_database(f"sqlite:///{path}", clock=clock)
    lock_issue(database, 1)
    database.copy_to(path.with_name("copy.db"))
    lock_issue(database, 2)
    with database.read() as session:
        assert session.one("SELECT count(*) FROM adw_locks") == (2,)

    path.with_name("copy.db").replace(path)
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink()

    with database.read() as session:
        assert session.one("SELECT count(*) FROM adw_locks") == (1,)
    database.close()


def test_a_directory_that_may_not_be_read_is_named_in_one_sentence(path, clock, reconstruction, monkeypatch):
    look = os.stat

    def refuse(found, *args, **options):
        if os.fspath(found) == str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return look(found, *args, **options)

    monkeypatch.setattr(sqlite.os, "stat", refuse)

    for ask in (SqliteDatabase(path, clock=clock).schema_version, reconstruction.salvage):
        with pytest.raises(DatabaseUnavailable, match=r"adw\.db: Permission denied;.*directory may be read"):
            ask()
