"""Procrastinate as the dispatcher: its jobs, dead and frozen workers, a server that restarts, and lost wake-ups."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.db.migrate import open_database
from adws.adw_modules.db.postgres import PostgresDatabase
from adws.adw_modules.errors import SchemaMismatch
from adws.adw_modules.queue import store as queue_store
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.queue.procrastinate import POLL_SECONDS, SWEEP_LOCK, ProcrastinateDispatcher, ProcrastinateTimes
from adws.adw_modules.queue.store import RunStore
from adws.testing import FakeClock
from tests.contracts.dispatch_contract import PATIENCE_SECONDS, be_quiet, is_heard
from tests.contracts.worlds import FIRST, SECOND, THIRD, make_owner
from tests.crash.storm_postgres import running_server
from tests.integration import dispatch_worker

pytestmark = pytest.mark.postgres

TTL = 30.0


@pytest.fixture
def clock(seed):
    """A clock that stands still: a listener says yes only when it was told of a run."""
    return FakeClock(datetime.now(UTC), seed=seed)


@pytest.fixture
def database(pg_url, open_db):
    return open_db(pg_url)


@pytest.fixture
def queue(database, clock):
    return RunStore(database, clock=clock)


@pytest.fixture
def listen(database, clock):
    def make(name: str = "one", *, places: int = 1, tick=None, **times: float):
        dispatcher = ProcrastinateDispatcher(database, clock=clock, times=ProcrastinateTimes(**times), tick=tick)
        return dispatcher.listen(make_owner(name), places=places)

    return make


def jobs(database, columns: str = "args, status", *, queue: str = queue_store.QUEUE) -> list[tuple]:
    with database.read() as session:
        return session.all(
            f"SELECT {columns} FROM procrastinate_jobs WHERE queue_name = :queue ORDER BY id", {"queue": queue}
        )


def until(condition: Callable[[], object]) -> object:
    """Wait until the condition holds, and return what it said."""
    deadline, tick = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        tick.wait(0.01)

    raise AssertionError("what was waited for did not come")


def hint(listener) -> int:
    """Wait for the run that the listener is told of."""
    return until(lambda: listener.heard() if listener.hear(0.01) else None)


# --- jobs ------------------------------------------------------------------------------------------------------


def test_a_job_carries_the_id_of_a_run_and_no_lock(database, queue, clock):
    due = timestamps.to_text(clock.now() + timedelta(hours=1))
    now = queue.enqueue(NewRun(adw_id=FIRST, priority=7, payload={"secret": "s"}, asked_by="ada"))
    later = queue.enqueue(NewRun(adw_id=SECOND, not_before=due))

    result = jobs(database, "task_name, args, priority, lock, queueing_lock, scheduled_at")

    assert result == [
        ("adw.run", {"run_id": now.run_id}, 7, None, None, None),
        ("adw.run", {"run_id": later.run_id}, 0, None, None, timestamps.parse(due)),
    ]


def test_only_a_run_that_begins_to_wait_is_told_of(database, queue):
    run = queue.enqueue(NewRun(adw_id=FIRST))
    assert queue.enqueue(NewRun(adw_id=FIRST)).run_id == run.run_id
    assert len(jobs(database)) == 1, "it waited already"
    run = queue.begin(queue.claim(make_owner(), ttl_seconds=TTL))
    queue.renew(run, ttl_seconds=TTL)
    assert len(jobs(database)) == 1

    queue.requeue(run)
    assert len(jobs(database)) == 2
    run = queue.claim(make_owner(), ttl_seconds=TTL)
    queue.take_back(run, reason="gone")
    assert len(jobs(database)) == 3
    run = queue.claim(make_owner(), ttl_seconds=TTL)
    queue.ask_to_stop(run.run_id)
    queue.requeue(run)
    assert len(jobs(database)) == 3, "it is stopped, and does not wait"


def test_a_job_lasts_as_long_as_the_work_and_is_deleted_then(database, queue, listen):
    run = queue.enqueue(NewRun(adw_id=FIRST))
    with listen() as listener:
        assert hint(listener) == run.run_id
        assert jobs(database) == [({"run_id": run.run_id}, "doing")]
        queue.claim(make_owner(), ttl_seconds=TTL)  # a run that waits is told of anew when the minute is over
        listener.done(run.run_id)
        until(lambda: not jobs(database))


def test_a_worker_is_told_of_no_more_runs_than_it_has_places(database, queue, listen):
    for adw_id in (FIRST, SECOND, THIRD):
        queue.enqueue(NewRun(adw_id=adw_id))
    with listen(places=2) as listener:
        first, second = hint(listener), hint(listener)
        assert listener.heard() is None
        assert [status for _, status in jobs(database)] == ["doing", "doing", "todo"]
        listener.done(first)
        assert hint(listener) not in {first, second}


def test_the_same_run_can_be_told_of_twice(database, queue, listen):
    run = queue.enqueue(NewRun(adw_id=FIRST))
    queue.requeue(queue.claim(make_owner(), ttl_seconds=TTL))
    with listen(places=2) as listener:
        assert [hint(listener), hint(listener)] == [run.run_id, run.run_id]
        queue.claim(make_owner(), ttl_seconds=TTL)
        listener.done(run.run_id)
        until(lambda: len(jobs(database)) == 1)
        listener.done(run.run_id)
        until(lambda: not jobs(database))


def test_what_was_not_taken_up_goes_back_and_what_was_is_ended(database, queue, listen):
    for adw_id in (FIRST, SECOND):
        queue.enqueue(NewRun(adw_id=adw_id))
    with listen(places=2) as listener:
        taken = hint(listener)
        until(lambda: [status for _, status in jobs(database)] == ["doing", "doing"])
        assert is_heard(listener)

    left = jobs(database)
    assert [status for _, status in left] == ["todo"]
    assert left[0][0] != {"run_id": taken}
    with database.read() as session:
        assert session.all("SELECT id FROM procrastinate_workers") == []


# --- the net ---------------------------------------------------------------------------------------------------


def test_without_being_told_a_listener_says_yes_every_quarter_of_a_second(listen, clock):
    with listen() as listener:
        assert [listener.hear(0.0), listener.hear(0.0)] == [True, False]
        clock.advance(POLL_SECONDS - 0.01)
        assert listener.hear(0.0) is False
        clock.advance(0.02)
        assert [listener.hear(0.0), listener.hear(0.0)] == [True, False]


def test_a_run_whose_notification_never_came_is_heard_of(database, queue, listen):
    """
    As behind a pooler that swallows notifications.
    """
    with listen(places=2) as listener:
        for number in range(5):
            with database.write() as session:
                session.run("SET LOCAL session_replication_role = replica")  # no trigger notifies
                run = queue.enqueue_in(session, NewRun(adw_id=f"{number:08x}"))
            assert hint(listener) == run.run_id
            queue.finish(queue.claim(make_owner(), ttl_seconds=TTL), RunState.COMPLETED)
            listener.done(run.run_id)


def test_no_wake_up_is_lost_for_long(queue, listen):
    """
    Each of forty runs is stored as soon as the one before was heard of, and there are places to spare.

    So a notification can come while a job is fetched, and is dropped. Nothing but Procrastinate tells of them here.
    """
    with listen(places=4) as listener:
        be_quiet(listener)
        for number in range(40):
            run = queue.enqueue(NewRun(adw_id=f"{number:08x}"))
            assert hint(listener) == run.run_id
            queue.finish(queue.claim(make_owner(), ttl_seconds=TTL), RunState.COMPLETED)
            listener.done(run.run_id)


# --- sweeping --------------------------------------------------------------------------------------------------


def test_a_sweep_gives_up_the_jobs_of_the_dead_only_and_tells_of_their_runs_anew(database, queue, listen):
    with listen(stalled=3600.0) as dead:  # it does not notice by itself that it was given up
        run = queue.enqueue(NewRun(adw_id=FIRST))
        assert hint(dead) == run.run_id
        old = jobs(database, "id")
        with listen("two") as other:
            second = queue.enqueue(NewRun(adw_id=SECOND))
            assert hint(other) == second.run_id
            with database.write() as session:  # not before: the other one sweeps by itself when a minute begins
                session.run(
                    "UPDATE procrastinate_workers SET last_heartbeat = last_heartbeat - interval '1 hour'"
                    " WHERE id = (SELECT worker_id FROM procrastinate_jobs WHERE id = :id)",
                    {"id": old[0][0]},
                )

            other.sweep()
            assert other.sweep() == 0

            assert {args["run_id"]: status for args, status in jobs(database)} == {
                run.run_id: "todo",
                second.run_id: "doing",
            }
            assert old[0] not in jobs(database, "id"), "a job is never handed on: its former worker could end it"
            other.done(second.run_id)
            assert hint(other) == run.run_id


def test_a_waiting_run_that_nobody_was_told_of_is_told_of(database, queue, listen):
    """
    After a copy of the runs alone, or when a worker could not claim what it was told of.
    """
    for adw_id in (FIRST, SECOND, THIRD):
        queue.enqueue(NewRun(adw_id=adw_id))
    queue.finish(queue.claim(make_owner(), ttl_seconds=TTL), RunState.COMPLETED)
    with database.write() as session:
        session.run("DELETE FROM procrastinate_jobs WHERE CAST(args ->> 'run_id' AS bigint) < 3")
    with listen() as listener:
        assert hint(listener) == 3
        # The listener sweeps by itself, too, and only one does at a time: whoever it is, it is told of once.
        until(lambda: listener.sweep() or len(jobs(database)) > 1)
        listener.sweep()
        assert [args["run_id"] for args, _ in jobs(database)] == [3, 2]
        listener.done(3)
        assert hint(listener) == 2


def test_only_one_sweeps_at_a_time(database, queue, listen):
    queue.enqueue(NewRun(adw_id=FIRST))
    with database.write() as session:
        session.run("DELETE FROM procrastinate_jobs")
    with listen() as listener, database.write() as session:
        session.one("SELECT pg_advisory_xact_lock(:key)", {"key": SWEEP_LOCK})
        assert listener.sweep() == 0
        assert jobs(database) == []


def test_ends_that_were_left_over_are_pruned(database, queue, listen):
    queue.claim(make_owner(), ttl_seconds=TTL, run_id=queue.enqueue(NewRun(adw_id=FIRST)).run_id)
    with database.write() as session:
        session.run("UPDATE procrastinate_jobs SET status = 'failed'")
    with listen() as listener:
        listener.sweep()

    assert jobs(database) == []


def test_the_schedule_is_looked_at_by_a_worker_whose_places_are_taken(queue, listen):
    run = queue.enqueue(NewRun(adw_id=FIRST))
    ticked = threading.Event()
    with listen(tick=ticked.set) as listener:
        assert hint(listener) == run.run_id
        assert ticked.wait(PATIENCE_SECONDS)


def test_a_schedule_that_breaks_leaves_the_listener_as_it_is(queue, listen):
    broken = threading.Event()

    def tick() -> None:
        broken.set()
        raise ZeroDivisionError

    with listen(tick=tick) as listener:
        assert broken.wait(PATIENCE_SECONDS)
        run = queue.enqueue(NewRun(adw_id=FIRST))
        assert hint(listener) == run.run_id


# --- trouble ---------------------------------------------------------------------------------------------------


@pytest.fixture
def process(pg_url):
    """A worker of another process, whose heartbeat is missed after a second."""
    with subprocess.Popen(
        [sys.executable, dispatch_worker.__file__, pg_url, "1.0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as made:
        yield made
        made.kill()


def freeze(process: subprocess.Popen, database) -> None:
    """Freeze it between two transactions: the locks of one would last until the server ends it, a minute later."""

    def is_frozen() -> bool:
        process.send_signal(signal.SIGSTOP)
        with database.read() as session:
            (left,) = session.one(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
            )
        if left:
            process.send_signal(signal.SIGCONT)
        return left == 0

    until(is_frozen)


def test_a_frozen_worker_is_replaced_and_changes_nothing_when_it_comes_back(process, database, queue, listen):
    assert process.stdout.readline() == "ready\n"
    run = queue.enqueue(NewRun(adw_id=FIRST))
    assert process.stdout.readline() == f"claimed {run.run_id} 1\n"
    freeze(process, database)
    with listen("two", stalled=1.0) as other:
        until(lambda: other.sweep() or not jobs(database))
        (lost,) = queue.live()
        queue.take_back(lost, reason="its worker is frozen")
        assert hint(other) == run.run_id
        mine = queue.begin(queue.claim(make_owner("two"), ttl_seconds=TTL))
        before = queue.get(run.run_id)

        process.send_signal(signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()

        assert process.stdout.readline().startswith("lost ")
        assert (queue.get(run.run_id).state, queue.get(run.run_id).token) == (RunState.RUNNING, 2)
        assert before.updated_at == queue.get(run.run_id).updated_at
        assert ({"run_id": run.run_id}, "doing") in jobs(database), "it ended the job of the other"
        queue.finish(mine, RunState.COMPLETED)
        other.done(run.run_id)
    second = queue.enqueue(NewRun(adw_id=SECOND))
    assert process.stdout.readline() == f"claimed {second.run_id} 1\n", "it hears again"


def test_a_listener_goes_on_when_its_server_restarts(clock):
    with running_server() as server:
        database = open_database(server.url, clock=clock)
        queue = RunStore(database, clock=clock)
        with ProcrastinateDispatcher(database, clock=clock).listen(make_owner(), places=2) as listener:
            run = queue.enqueue(NewRun(adw_id=FIRST))
            assert hint(listener) == run.run_id
            queue.claim(make_owner(), ttl_seconds=TTL)
            for mode, adw_id in (("immediate", SECOND), ("fast", THIRD)):
                server.restart(mode)
                later = queue.enqueue(NewRun(adw_id=adw_id))
                assert hint(listener) == later.run_id, "the work on the first one goes on meanwhile"
                queue.claim(make_owner(), ttl_seconds=TTL)
                listener.done(later.run_id)
            listener.done(run.run_id)
            until(lambda: listener.sweep() == 0 and len(jobs(database)) <= 3)
        database.close()


def test_a_listener_ends_while_its_server_is_away(clock):
    with running_server() as server:
        database = open_database(server.url, clock=clock)
        with ProcrastinateDispatcher(database, clock=clock).listen(make_owner(), places=1) as listener:
            RunStore(database, clock=clock).enqueue(NewRun(adw_id=FIRST))
            hint(listener)
            server.stop()
        database.close()
        server.restart("immediate")

    assert "adw-dispatch" not in {thread.name for thread in threading.enumerate()}


def test_a_server_that_is_away_is_said_to_be_away_once_and_in_a_sentence(clock, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "adw.dispatch")
    away = PostgresDatabase(f"postgresql://nobody@/none?host={tmp_path}", clock=clock)

    def losses() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.getMessage() == "The dispatcher lost the database"]

    with ProcrastinateDispatcher(away, clock=clock).listen(make_owner(), places=1):
        until(lambda: len(losses()) >= 3)

    assert [record.levelname for record in losses()[:3]] == ["WARNING", "DEBUG", "DEBUG"]
    assert losses()[0].exc_info is None
    assert losses()[0].why.startswith("cannot reach the database")


def test_jobs_of_a_newer_procrastinate_end_the_worker_with_a_sentence(empty_pg_url, open_db, clock):
    database = open_db(empty_pg_url)
    with database.write() as session:
        session.run("COMMENT ON TABLE procrastinate_jobs IS 'made by adw, up to 99.00.00_01_later'")
    dispatcher = ProcrastinateDispatcher(database, clock=clock)

    def hear(listener) -> None:
        until(lambda: listener.hear(0.01) and False)

    with (
        dispatcher.listen(make_owner(), places=1) as listener,
        pytest.raises(SchemaMismatch, match=r"newer Procrastinate .*pip install"),
    ):
        hear(listener)
