"""The projection keeps its contract on both databases, and what only a database can show."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from adws.adw_modules.errors import DatabaseUnavailable
from adws.adw_modules.store.projection import Projection
from tests import forked
from tests.contracts.projection_contract import ProjectionContract, projected, projection_on
from tests.contracts.worlds import FIRST, SECOND, database_world, make_document, make_owner

#: Longer than any test: what is committed here was committed by `flush` or `close`.
NEVER_SECONDS = 3600.0


class BrokenDatabase:
    """A database whose writes fail until it is mended."""

    def __init__(self, database):
        self._database = database
        self.is_broken = True
        self.tries = 0

    def __getattr__(self, name):
        return getattr(self._database, name)

    @contextmanager
    def write(self):
        self.tries += 1
        if self.is_broken:
            raise DatabaseUnavailable("the database is away")
        with self._database.write() as session:
            yield session

    def transact(self, work):
        with self.write() as session:
            return work(session)


@pytest.fixture
def world(database, clock):
    return database_world(database, clock)


@pytest.fixture
def projection(database, clock):
    made = projection_on(database, interval_seconds=NEVER_SECONDS)
    yield made
    made.close()


class TestProjection(ProjectionContract):
    def test_it_never_touches_the_lease(self, projection, world, database, clock):
        registry = type(world.registry)(database, clock=clock, home="files")
        registry.register(make_document(), make_owner(), ttl_seconds=30.0)
        before = world.leases.read(FIRST)

        projection.submit(projected(1, fence=7))
        projection.flush()

        after = world.leases.read(FIRST)
        assert (after.owner, after.fence, after.taken_at) == (before.owner, 1, before.taken_at)
        assert after.seconds_left == pytest.approx(before.seconds_left, abs=1.0)

    def test_a_row_that_was_lost_comes_back_with_the_fence_of_the_document(self, projection, world):
        projection.submit(projected(9, fence=7))
        projection.flush()

        taken = world.leases.take(FIRST, make_owner(), ttl_seconds=30.0)
        assert taken.lease.fence == 8, "tokens go on above those that were given out"

    def test_a_document_that_lives_in_the_database_is_never_written_over(self, projection, world):
        created = world.store.create(make_document())

        projection.submit(projected(9))
        projection.flush()

        assert world.store.load(FIRST).document == created
        assert projection.copy_of(FIRST) is None


def test_a_write_is_committed_without_being_asked_for(database, clock):
    """
    The thread does what flush does, after the interval.
    """
    projection = projection_on(database, interval_seconds=0.001)
    projection.submit(projected(1))
    thread = projection._thread
    while projection.confirmed_revision(FIRST) == 0:
        assert thread.is_alive()
        threading.Event().wait(0.001)  # the end of this is the thread's commit, or the time limit of the test

    assert projection.copy_of(FIRST) == projected(1).body
    projection.close()
    assert not thread.is_alive()


def test_no_thread_runs_before_the_first_write(projection):
    assert projection._thread is None
    projection.flush()
    assert projection._thread is None
    projection.submit(projected(1))
    assert projection._thread.daemon


def test_closing_commits_what_is_left(database, clock):
    projection = projection_on(database, interval_seconds=NEVER_SECONDS)
    projection.submit(projected(3))

    projection.close()

    assert projection.copy_of(FIRST) == projected(3).body
    projection.submit(projected(4))
    projection.close()
    assert projection.copy_of(FIRST) == projected(4).body, "it works on after a close"


def test_a_database_that_is_away_stops_no_step_and_loses_nothing(database, clock, world):
    broken = BrokenDatabase(database)
    projection = projection_on(broken, interval_seconds=NEVER_SECONDS)
    projection.submit(projected(1))
    with pytest.raises(DatabaseUnavailable, match="away"):
        projection.flush()
    projection.submit(projected(2))
    projection.submit(projected(1, SECOND))
    with pytest.raises(DatabaseUnavailable):
        projection.flush()
    assert projection.confirmed_revision(FIRST) == 0

    broken.is_broken = False
    projection.flush()

    assert projection.confirmed_revision(FIRST) == 2
    assert projection.copy_of(SECOND) == projected(1, SECOND).body
    assert [event.event_id for event in world.events.of_workflow(FIRST)] == [f"{FIRST}.1.0", f"{FIRST}.2.0"]
    projection.close()


def test_trouble_is_logged_once_and_tried_again(database, clock, caplog):
    broken = BrokenDatabase(database)
    projection = projection_on(broken, interval_seconds=0.001)
    with caplog.at_level(logging.WARNING, logger="adw.projection"):
        projection.submit(projected(1))
        while broken.tries < 3:
            threading.Event().wait(0.001)
        broken.is_broken = False
        while projection.confirmed_revision(FIRST) == 0:
            threading.Event().wait(0.001)
    projection.close()

    told = [record for record in caplog.records if record.action == "projection_failed"]
    assert len(told) == 1
    assert "the database is away" in told[0].getMessage()


def test_closing_while_the_database_is_away_is_logged_and_raises_nothing(database, clock, caplog):
    projection = projection_on(BrokenDatabase(database), interval_seconds=NEVER_SECONDS)
    projection.submit(projected(1))

    projection.close()

    assert [record.action for record in caplog.records] == ["projection_behind"]


def test_memory_is_bounded_and_what_was_let_go_is_not_confirmed(database, clock):
    """
    A write too many is left to the document's outbox; confirming a later one would empty that outbox.
    """
    projection = projection_on(database, interval_seconds=NEVER_SECONDS, max_waiting_events=10)
    for revision in range(1, 21):
        projection.submit(projected(revision))
    projection.submit(projected(1, SECOND, events=0))
    projection.flush()

    assert projection.copy_of(FIRST) == projected(10).body
    assert projection.confirmed_revision(FIRST) == 0
    assert projection.confirmed_revision(SECOND) == 1
    projection.submit(projected(21))
    projection.flush()
    assert projection.copy_of(FIRST) == projected(21).body
    assert projection.confirmed_revision(FIRST) == 0
    projection.close()


def whole(revision: int, *, since: int):
    """Return a write that brings its whole outbox: the events of the revisions from *since* on."""
    events = tuple(event for number in range(since, revision + 1) for event in projected(number).events)
    body = json.dumps({"adw_id": FIRST, "revision": revision, "outbox": [event.to_json() for event in events]})

    return replace(projected(revision), body=body.encode(), events=events)


def gapped(database, clock) -> Projection:
    """Return a projection that has let revision 3 go."""
    projection = projection_on(database, interval_seconds=NEVER_SECONDS, max_waiting_events=2)
    for revision in (1, 2, 3):
        projection.submit(projected(revision))
    projection.flush()
    assert projection.confirmed_revision(FIRST) == 0

    return projection


def test_a_write_that_brings_its_whole_outbox_makes_up_for_what_was_let_go(database, clock, world):
    projection = gapped(database, clock)
    projection.submit(whole(4, since=3))
    assert projection.confirmed_revision(FIRST) == 0, "not before it is committed"
    projection.flush()
    assert projection.confirmed_revision(FIRST) == 4
    assert len(world.events.of_workflow(FIRST)) == 4

    projection.submit(projected(5))
    projection.flush()
    assert projection.confirmed_revision(FIRST) == 5
    projection.close()


def test_a_write_that_brings_a_part_of_its_outbox_does_not_make_up_for_what_was_let_go(database, clock):
    projection = gapped(database, clock)
    projection.submit(replace(whole(4, since=3), events=projected(4).events))
    projection.flush()

    assert projection.confirmed_revision(FIRST) == 0
    projection.close()


def test_what_is_let_go_after_a_whole_outbox_is_missing_all_the_same(database, clock):
    projection = gapped(database, clock)
    projection.submit(whole(4, since=3))
    projection.submit(projected(5))
    projection.flush()

    assert projection.confirmed_revision(FIRST) == 0
    projection.close()


def test_a_forked_child_projects_its_own_writes_and_not_its_parents(database, clock, world):
    projection = projection_on(database, interval_seconds=NEVER_SECONDS)
    projection.submit(projected(1))

    def work() -> None:
        assert projection._thread is None
        projection.submit(projected(1, SECOND))
        projection.flush()
        assert projection.copy_of(SECOND) is not None
        assert projection.copy_of(FIRST) is None

    assert forked.is_well(forked.start(work))

    projection.close()

    assert projection.copy_of(FIRST) == projected(1).body
    assert projection.copy_of(SECOND) == projected(1, SECOND).body
