"""Workers killed again and again, and a database that is restarted under them: no workflow is lost or done twice."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests import sampling
from tests.crash import storm_lab, storm_postgres
from tests.crash.storm_lab import PHASES, StormHome, Supervisor

#: It tells whether two commands of one workflow ever ran at the same time.
pytestmark = pytest.mark.skipif(not shutil.which("flock"), reason="flock is not installed")

WORKERS = 3
#: Workflows for each restart of the database.
FOR_EACH_RESTART = 4


#: In the ordinary run workers on PostgreSQL live through its restarts, and through kills in the soak.
PLACES = sampling.some(["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)], 1)


@pytest.fixture(params=PLACES)
def storm_home(request, home: Path) -> StormHome:
    """A home with documents in files and SQLite, or with all of it in PostgreSQL."""
    return storm_lab.make_home(home, url=request.getfixturevalue("pg_url") if request.param == "postgresql" else "")


@pytest.mark.timeout(1800)
def test_workers_that_are_killed_lose_nothing_and_do_nothing_twice(storm_home, seed, repeat):
    """
    200 kills over 300 workflows: each phase has one committed result, made by the attempt that has it.
    """
    kills, workflows = repeat(2, 200), repeat(4, 300)
    with storm_home.open() as app:
        made = Supervisor(storm_home, workers=WORKERS, rng=random.Random(seed))

        def feed(killed: int) -> None:
            """Accept workflows as the storm goes on, so that there is work to its end."""
            due = min(workflows, workflows * (killed + 1) // kills + WORKERS)
            storm_home.start(app, due - len(storm_home.ids), seconds=0.1)

        try:
            made.storm(kills, feed=feed)
            _finish(made, storm_home)
            codes = made.drain()
        finally:
            made.kill_all()

    problems = storm_lab.problems_of(storm_home)
    assert problems == [], "\n".join([*problems, storm_home.said()])
    assert (made.ends, codes) == ([], [0] * WORKERS), storm_home.said()
    assert len(storm_home.ids) == workflows
    assert made.kills_at_work >= kills // 4, "hardly anybody was killed at work: nothing was tested"


@pytest.mark.postgres
@pytest.mark.timeout(1800)
def test_workers_outlive_restarts_of_the_database_and_lose_nothing(home, seed, repeat):
    """
    5 restarts of PostgreSQL under load, by turns in order and as a crash: all workflows finish, each phase once.
    """
    restarts, rng = repeat(1, 5), random.Random(seed)
    lines = 2 * len(PHASES) * FOR_EACH_RESTART  #: that workflows for one restart write
    with storm_postgres.running_server() as server:
        storm_home = storm_lab.make_home(home, url=server.url)
        with storm_home.open() as app:
            storm_home.start(app, FOR_EACH_RESTART * (restarts + 1), seconds=0.1)
        made = Supervisor(storm_home, workers=WORKERS, rng=rng)
        try:
            made.until(made.is_ready, lambda: "a worker does not get ready")
            for number in range(restarts):
                begun = lines * number + rng.randint(1, lines)
                made.until(lambda: storm_home.lines() >= begun, lambda: "no work is done")  # noqa: B023 - asked at once
                server.restart("immediate" if number % 2 == 0 else "fast")
            _finish(made, storm_home)
            codes = made.drain()
        finally:
            made.kill_all()
        problems = storm_lab.problems_of(storm_home)

    assert problems == [], "\n".join([*problems, storm_home.said()])
    assert (made.ends, codes) == ([], [0] * WORKERS), storm_home.said()


def _finish(made: Supervisor, storm_home: StormHome) -> None:
    """Let the workers do what is left."""
    left = list(storm_home.ids)
    with storm_home.open() as app:

        def is_finished() -> bool:
            while left and storm_lab.is_completed(app, left[-1]):
                left.pop()
            return not left

        made.until(is_finished, lambda: f"not finished: {left}")
