"""`adw worker` on PostgreSQL: hears of runs by Procrastinate, keeps the schedule, and leaves nothing when it ends."""

from __future__ import annotations

import signal
import time

import psycopg
import pytest

from tests.acceptance import cli_lab
from tests.acceptance.cli_lab import Beside

pytestmark = pytest.mark.postgres

PATIENCE_SECONDS = 60.0


@pytest.fixture
def home(tmp_path, pg_url, monkeypatch):
    monkeypatch.setenv("ADW_DATABASE_URL", pg_url)
    return cli_lab.make_home(tmp_path)


@pytest.fixture
def look(pg_url):
    def read(sql: str) -> list[tuple]:
        with psycopg.connect(pg_url, autocommit=True) as connection:
            return connection.execute(sql).fetchall()

    return read


def until(condition) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def test_a_worker_hears_of_runs_keeps_the_schedule_and_leaves_nothing_behind(adw, home, look):
    with Beside(home, "worker", "--concurrency", "2") as worker:
        worker.line("worker is ready", of="stderr")
        ids = [
            adw("run", str(issue), "--workflow", "short", "--detach", "--json").json()["adw_id"] for issue in (7, 8, 9)
        ]
        until(lambda: look("SELECT count(*) FROM runs WHERE state = 'completed'") == [(3,)])
        until(lambda: ("recover", "done") in look("SELECT name, status FROM schedule"))
        worker.process.send_signal(signal.SIGTERM)
        assert worker.end() == 0

    assert {adw("status", adw_id, "--json").json()["state"] for adw_id in ids} == {"completed"}
    assert "Traceback" not in worker.stderr
    assert "procrastinate" not in worker.stderr.lower()
    assert look("SELECT task_name, status FROM procrastinate_jobs WHERE status <> 'todo'") == []
    assert look("SELECT id FROM procrastinate_workers") == []


def test_a_worker_that_works_once_leaves_the_schedule_alone(adw, home, look):
    adw("run", "7", "--workflow", "short", "--detach")

    done = adw("worker", "--once", "--json")

    assert (done.rc, done.json()["completed"]) == (0, 1)
    assert look("SELECT name FROM schedule") == []
