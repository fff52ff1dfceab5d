"""
A workflow whose document lives in the database is created in one transaction: document, issue, run and events.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import IssueLocked, StateExists, UsageError
from adws.adw_modules.ownership.issue_locks import DocumentRegistry
from adws.adw_modules.ownership.local_lock import LocalLock
from adws.adw_modules.ownership.ownership import WorkflowOwnership
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.store.database import DatabaseStateStore
from adws.testing import FakeProcesses
from tests.contracts.worlds import FIRST, SECOND, database_world, make_document

PLACES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgres))


@pytest.fixture(params=PLACES)
def database(request, open_db):
    return open_db(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "pg_url"))


@pytest.fixture
def world(database, clock):
    return database_world(database, clock)


@pytest.fixture
def ownership(database, clock, world, tmp_path):
    store = DatabaseStateStore(database, clock=clock)
    return WorkflowOwnership(
        store=store,
        leases=world.leases,
        registry=DocumentRegistry(database, clock=clock, store=store),
        local_lock=LocalLock(tmp_path / "state"),
        processes=FakeProcesses(clock.token),
        clock=clock,
        locks=world.locks,
    )


def test_what_is_left_for_a_worker_is_whole_and_nobody_owns_it(ownership, world):
    stored = ownership.leave(make_document(), run=NewRun(adw_id=FIRST, asked_by="me"))

    assert world.store.load(FIRST).document == stored
    assert stored.revision == 1
    assert world.locks.verify(42, FIRST, "acme/widget")
    assert [(run.state, run.asked_by) for run in world.runs.of_workflow(FIRST)] == [(RunState.PENDING, "me")]
    assert [event.event_type for event in world.events.of_workflow(FIRST)] == ["workflow_created"]
    assert world.leases.read(FIRST).owner is None


def test_it_is_owned_written_and_given_back_like_any_other(ownership, world):
    ownership.leave(make_document())

    with ownership.own(FIRST) as owned:
        saved = owned.save(owned.document)

    assert (saved.revision, saved.fence) == (2, 1)
    assert world.leases.read(FIRST).owner is None


def test_one_commit_makes_all_of_it(ownership, database, monkeypatch):
    commits = []
    transact = database.transact
    monkeypatch.setattr(database, "transact", lambda work: commits.append(work) or transact(work))

    ownership.leave(make_document(), run=NewRun(adw_id=FIRST))

    assert len(commits) == 1


def test_a_locked_issue_is_refused_and_nothing_is_left(ownership, world):
    ownership.leave(make_document())

    with pytest.raises(IssueLocked, match=FIRST):
        ownership.leave(make_document(SECOND), run=NewRun(adw_id=SECOND))

    assert not world.store.exists(SECOND)
    assert world.leases.read(SECOND) is None
    assert world.runs.of_workflow(SECOND) == ()
    assert world.events.of_workflow(SECOND) == ()


def test_a_taken_id_is_refused_and_nothing_is_changed(ownership, world):
    stored = ownership.leave(make_document())

    with pytest.raises(StateExists):
        ownership.leave(make_document(issue_number=43), run=NewRun(adw_id=FIRST))

    assert world.store.load(FIRST).document == stored
    assert world.locks.holder(43, "acme/widget") is None
    assert world.runs.of_workflow(FIRST) == ()


def test_a_workflow_without_an_issue_locks_nothing(ownership, world):
    ownership.leave(make_document(issue_number=None))

    assert world.locks.all() == ()
    assert world.store.exists(FIRST)


def test_the_run_of_another_workflow_is_refused(ownership, world):
    with pytest.raises(UsageError, match=SECOND):
        ownership.leave(make_document(), run=NewRun(adw_id=SECOND))

    assert not world.store.exists(FIRST)
