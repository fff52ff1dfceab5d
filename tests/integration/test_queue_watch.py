"""Detecting commits to SQLite: from processes, threads, and after a restore."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from adws.adw_modules.db.sqlite import CommitWatcher
from adws.adw_modules.maintenance.rebuild import Reconstruction
from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.queue.store import RunStore
from tests import forked
from tests.contracts.worlds import FIRST, SECOND, make_owner

TTL = 30.0


@pytest.fixture
def database(sqlite_url, open_db):
    return open_db(sqlite_url)


def queue_on(database, clock) -> RunStore:
    return RunStore(database, clock=clock)


def test_a_watch_says_once_that_something_changed(database, clock):
    queue, watch = queue_on(database, clock), CommitWatcher(database)
    assert watch.has_changed() is True, "the first look"
    assert watch.has_changed() is False

    def claimed():
        return queue.claim(make_owner(), ttl_seconds=TTL)

    for change in (
        lambda: queue.enqueue(NewRun(adw_id=FIRST)),
        lambda: queue.requeue(claimed()),
        lambda: queue.take_back(claimed(), reason="gone"),
        lambda: queue.ask_to_stop(claimed().run_id),
    ):
        change()
        assert watch.has_changed() is True
        assert watch.has_changed() is False
    watch.close()
    assert watch.has_changed() is True, "what happened while it was closed was not seen"
    watch.close()


def test_a_watch_sees_what_this_and_another_process_commit(database, clock):
    queue = queue_on(database, clock)
    watch = CommitWatcher(database)
    watch.has_changed()

    queue.enqueue(NewRun(adw_id=FIRST))
    assert watch.has_changed()

    script = f"import sqlite3; sqlite3.connect({database.name!r}).executescript('DELETE FROM runs')"
    subprocess.run([sys.executable, "-c", script], check=True)
    assert watch.has_changed()
    watch.close()


def test_a_watch_leaves_the_connection_of_its_parent_alone_in_a_forked_child(database, clock):
    queue = queue_on(database, clock)
    watch = CommitWatcher(database)
    watch.has_changed()

    def look() -> None:
        assert watch.has_changed() is True, "it cannot check, and the query that follows says why"
        assert watch.has_changed() is True
        assert watch._connection is not None

    assert forked.is_well(forked.start(look))
    assert watch.has_changed() is False
    queue.enqueue(NewRun(adw_id=SECOND))
    assert watch.has_changed()
    assert database.integrity_problems() == []
    watch.close()


def test_a_watch_sees_a_database_that_was_put_in_the_place_of_the_old_one(sqlite_url, open_db, clock, tmp_path):
    database = open_db(sqlite_url)
    queue = queue_on(database, clock)
    watch = CommitWatcher(database)
    watch.has_changed()
    open_db(sqlite_url).copy_to(tmp_path / "copy.db")
    watch.has_changed()
    assert watch.has_changed() is False

    restore = Reconstruction(sqlite_url, clock=clock, boot_id="boot-1")
    restore.install(str(tmp_path / "copy.db"))
    restore.close()

    assert watch.has_changed() is True
    assert watch.has_changed() is False
    queue.enqueue(NewRun(adw_id=FIRST))
    assert watch.has_changed() is True, "it looks at the new one"


def test_a_watch_that_cannot_look_says_that_there_may_be_something(sqlite_url, open_db, clock, tmp_path):
    watch = CommitWatcher(open_db(sqlite_url))
    watch.has_changed()
    (tmp_path / "adw.db").rename(tmp_path / "away.db")

    assert [watch.has_changed(), watch.has_changed()] == [True, True]

    (tmp_path / "away.db").rename(tmp_path / "adw.db")
    assert [watch.has_changed(), watch.has_changed()] == [True, False]


def test_a_thread_is_woken_by_a_run(database, clock):
    queue = queue_on(database, clock)
    watch, got = CommitWatcher(database), []
    watch.has_changed()

    def wait() -> None:
        tick = threading.Event()
        if any(watch.has_changed() or tick.wait(0.005) for _ in range(2000)):
            got.append(queue.claim(make_owner(), ttl_seconds=TTL))

    waiting = threading.Thread(target=wait)
    waiting.start()
    queue.enqueue(NewRun(adw_id=FIRST))
    waiting.join()

    assert [run.adw_id for run in got] == [FIRST]
    watch.close()
