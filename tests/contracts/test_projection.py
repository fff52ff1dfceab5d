"""The projection keeps its contract on both databases, and what only a database can show."""

from __future__ import annotations

import logging
from contextlib import contextmanager

import pytest

from adws.adw_modules.db.migrate import open_database
from adws.adw_modules.errors import DatabaseUnavailable
from adws.adw_modules.store.projection import INTERVAL_SECONDS
from adws.testing import FakeClock
from tests.contracts.projection_contract import ProjectionContract, projected, projection_on
from tests.contracts.worlds import FIRST, SECOND, database_world, make_document, make_owner


class BrokenDatabase:
    """A database whose writes fail while it is broken."""

    def __init__(self, database):
        self._database = database
        self.is_broken = True

    def __getattr__(self, name):
        return getattr(self._database, name)

    @property
    def unsynced(self):
        return self

    @contextmanager
    def write(self):
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
def projection(database):
    return projection_on(database)


class TestProjection(ProjectionContract):
    def test_it_never_touches_the_lease(self, projection, world, database, clock):
        registry = type(world.registry)(database, clock=clock, home="files")
        registry.register(make_document(), make_owner(), ttl_seconds=30.0)
        before = world.leases.read(FIRST)

        projection.update(projected(1, fence=7))

        after = world.leases.read(FIRST)
        assert (after.owner, after.fence, after.taken_at) == (before.owner, 1, before.taken_at)
        assert after.seconds_left == pytest.approx(before.seconds_left, abs=1.0)

    def test_revisions_that_follow_at_once_are_committed_together_and_in_order(self, projection, world):
        for number in (1, 2, 3):
            projection.update(projected(number), may_collect=True)
        assert projection.copy_of(FIRST) == projected(1).body, "the first is committed at once"

        projection.flush(FIRST)

        assert projection.copy_of(FIRST) == projected(3).body
        assert [event.event_id for event in world.events.of_workflow(FIRST)] == [f"{FIRST}.{n}.0" for n in (1, 2, 3)]

    def test_a_revision_that_may_not_wait_takes_the_collected_ones_along(self, projection, world):
        for number in (1, 2):
            projection.update(projected(number), may_collect=True)

        projection.update(projected(3))

        assert projection.copy_of(FIRST) == projected(3).body
        assert [event.event_id for event in world.events.of_workflow(FIRST)] == [f"{FIRST}.{n}.0" for n in (1, 2, 3)]

    def test_a_revision_that_comes_later_is_committed_at_once(self, projection, clock):
        projection.update(projected(1), may_collect=True)
        clock.advance(1.0)

        projection.update(projected(2), may_collect=True)

        assert projection.copy_of(FIRST) == projected(2).body

    def test_a_row_that_was_lost_comes_back_with_the_fence_of_the_document(self, projection, world):
        projection.update(projected(9, fence=7))

        taken = world.leases.take(FIRST, make_owner(), ttl_seconds=30.0)
        assert taken.lease.fence == 8, "tokens go on above those that were given out"

    def test_a_document_that_lives_in_the_database_is_never_written_over(self, projection, world):
        created = world.store.create(make_document())

        projection.update(projected(9))

        assert world.store.load(FIRST).document == created
        assert projection.copy_of(FIRST) is None

    def test_events_that_a_dead_process_left_are_stored_by_the_next_one(self, projection, world):
        projection.update(projected(3, since=1))

        assert [event.event_id for event in world.events.of_workflow(FIRST)] == [f"{FIRST}.{n}.0" for n in (1, 2, 3)]

    def test_a_database_that_is_away_stops_no_step_and_loses_nothing(self, database, world, caplog):
        broken = BrokenDatabase(database)
        projection = projection_on(broken)
        with caplog.at_level(logging.WARNING, logger="adw.projection"):
            projection.update(projected(1))
            projection.update(projected(2, since=1))
            projection.update(projected(1, SECOND))
        assert projection.confirmed_revision(FIRST) == 0
        (told,) = caplog.records
        assert (told.action, "the database is away" in told.getMessage()) == ("projection_failed", True)
        with pytest.raises(DatabaseUnavailable, match="away"):
            projection.flush()

        broken.is_broken = False
        projection.flush()

        assert projection.confirmed_revision(FIRST) == 2
        assert projection.copy_of(SECOND) == projected(1, SECOND).body
        assert [event.event_id for event in world.events.of_workflow(FIRST)] == [f"{FIRST}.1.0", f"{FIRST}.2.0"]

    def test_the_next_write_brings_what_an_earlier_one_could_not(self, database, world):
        broken = BrokenDatabase(database)
        projection = projection_on(broken)
        projection.update(projected(1))
        broken.is_broken = False

        projection.update(projected(2, since=1))
        projection.update(projected(3))

        assert [event.revision for event in world.events.of_workflow(FIRST)] == [1, 2, 3]
        projection.flush()
        assert projection.copy_of(FIRST) == projected(3).body

    def test_closing_while_the_database_is_away_is_logged_and_raises_nothing(self, database, caplog):
        projection = projection_on(BrokenDatabase(database))
        projection.update(projected(1))
        caplog.clear()

        projection.close()

        assert [record.action for record in caplog.records] == ["projection_behind"]


def test_a_revision_is_confirmed_when_a_commit_has_waited_for_the_disk(tmp_path):
    """
    A power cut may undo commits that did not wait: until then the events stay in the document, too.
    """
    clock = FakeClock()
    database = open_database(f"sqlite:///{tmp_path / 'adw.db'}", clock=clock)
    projection = projection_on(database)
    projection.update(projected(1))
    assert projection.confirmed_revision(FIRST) == 1, "the first one waits"

    projection.update(projected(2))
    projection.update(projected(1, SECOND))
    assert (projection.confirmed_revision(FIRST), projection.confirmed_revision(SECOND)) == (1, 0)
    assert projection.copy_of(FIRST) == projected(2).body

    clock.advance(INTERVAL_SECONDS)
    projection.update(projected(3))
    assert (projection.confirmed_revision(FIRST), projection.confirmed_revision(SECOND)) == (3, 1)
    database.close()


def test_commits_that_do_not_wait_have_a_connection_of_their_own(tmp_path):
    """
    Off would be unsafe: then a power cut may break the whole database.
    """
    database = open_database(f"sqlite:///{tmp_path / 'adw.db'}", clock=FakeClock())

    def level(one):
        with one.write() as session:
            return session.one("PRAGMA synchronous")[0]

    full, normal = 2, 1
    assert (level(database), level(database.unsynced)) == (full, normal)
    database.close()
