"""What only a store in a database shows: rows made beforehand, one transaction with the events, old and bad bodies."""

from __future__ import annotations

import json

import pytest

from adws.adw_modules.db.listing import EventLog
from adws.adw_modules.errors import (
    DatabaseError,
    NewerVersion,
    StateCorrupt,
    StateExists,
    StateNotFound,
    StateUnserialisable,
    UsageError,
)
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import LoadNotice, PageQuery
from adws.adw_modules.ownership.issue_locks import WorkflowRegistry
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.store.database import DatabaseStateStore
from tests.contracts.projection_contract import projected, projection_on
from tests.contracts.worlds import FIRST, SECOND, database_world, make_document, make_owner

SECRET = "ghp_0123456789abcdefghijABCDEFGHIJ012345"


@pytest.fixture
def world(database, clock):
    return database_world(database, clock)


def set_body(database, body: str, *, revision: int = 1) -> None:
    with database.write() as session:
        session.run("UPDATE workflow_states SET body = :body, revision = :revision", locals())


# --- rows made by the registry ---------------------------------------------------------------------------------


def test_a_registered_workflow_has_no_document_yet(world):
    world.registry.register(make_document(), make_owner(), ttl_seconds=30.0)

    assert not world.store.exists(FIRST)
    assert list(world.store.ids()) == []
    with pytest.raises(StateNotFound):
        world.store.load(FIRST)
    with pytest.raises(StateNotFound):
        world.store.save(make_document(), fence=1)


def test_only_who_registered_a_workflow_writes_its_first_document(world):
    """
    Else a second process that chose the same id would fill the row that belongs to the first.
    """
    lease = world.registry.register(make_document(), make_owner(), ttl_seconds=30.0)
    with pytest.raises(StateExists):
        world.store.create(make_document())
    assert not world.store.exists(FIRST)

    assert world.store.create(make_document(fence=lease.fence)).revision == 1


def test_creating_keeps_the_lease_that_was_registered(world):
    lease = world.registry.register(make_document(), make_owner(), ttl_seconds=30.0)
    world.store.create(make_document(fence=lease.fence))

    world.leases.renew(lease, ttl_seconds=30.0)
    assert world.leases.read(FIRST).fence == 1


def test_a_workflow_that_has_a_document_is_not_unregistered(world):
    lease = world.registry.register(make_document(), make_owner(), ttl_seconds=30.0)
    world.store.create(make_document(fence=lease.fence))

    world.registry.unregister(lease)

    assert world.store.exists(FIRST)
    assert world.locks.holder(42, "acme/widget").adw_id == FIRST


def test_events_of_the_registration_are_stored_once_and_go_with_it(world):
    created = [Event(event_type="workflow_created")]
    lease = world.registry.register(make_document(), make_owner(), ttl_seconds=30.0, events=created)
    assert [event.event_id for event in world.events.of_workflow(FIRST)] == [f"{FIRST}.1.0"]
    world.registry.unregister(lease)
    assert world.events.of_workflow(FIRST) == ()

    lease = world.registry.register(make_document(), make_owner(), ttl_seconds=30.0, events=created)
    world.store.create(make_document(fence=lease.fence), events=created)
    assert len(world.events.of_workflow(FIRST)) == 1


def test_a_takeover_shuts_the_former_owner_out_without_further_ado(world):
    lease = world.registry.register(make_document(), make_owner("one"), ttl_seconds=30.0)
    document = world.store.create(make_document(fence=lease.fence))
    world.let_pass(30.0)
    taken = world.leases.take(FIRST, make_owner("two"), ttl_seconds=30.0)

    with pytest.raises(Exception, match="was taken over: fence 1 is no longer valid; the present owner has 2"):
        world.store.save(document, fence=lease.fence)
    assert world.store.save(document, fence=taken.lease.fence).fence == 2


# --- documents of the other home -------------------------------------------------------------------------------


def test_a_copy_of_a_file_is_no_document_of_this_store(world, database, clock):
    projection = projection_on(database)
    projection.update(projected(3))

    assert not world.store.exists(FIRST)
    assert list(world.store.ids()) == []
    with pytest.raises(StateNotFound):
        world.store.save(make_document(revision=3), fence=1)
    with pytest.raises(StateExists):
        world.store.create(make_document())
    assert projection.copy_of(FIRST) == projected(3).body


def test_a_row_registered_for_a_file_is_not_filled_by_this_store(world, database, clock):
    registry = WorkflowRegistry(database, clock=clock, home="files")
    lease = registry.register(make_document(), make_owner(), ttl_seconds=30.0)

    with pytest.raises(StateExists):
        world.store.create(make_document(fence=lease.fence))


# --- one transaction -------------------------------------------------------------------------------------------


def test_a_document_is_not_stored_without_its_events(sqlite_url, open_db, clock):
    database = open_db(sqlite_url)
    world = database_world(database, clock)
    document = world.store.create(make_document())
    with database.write() as session:
        session.run("CREATE TRIGGER no_events BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'refused'); END")

    with pytest.raises(DatabaseError, match="refused"):
        world.store.save(document, fence=1, events=[Event(event_type="state_set")])

    assert world.store.load(FIRST).document == document


def test_the_outbox_stays_empty_for_the_events_are_in(world):
    document = world.store.create(make_document(), events=[Event(event_type="workflow_created")])
    waiting = document.model_copy(update={"outbox": [{"event_type": "state_set"}]})

    assert world.store.save(waiting, fence=1).outbox == []
    assert world.store.load(FIRST).document.outbox == []


@pytest.mark.parametrize("state", ["completed", "abandoned", "rolled_back"])
def test_the_write_that_ends_a_workflow_frees_its_issue(world, state):
    """
    In one transaction: a crash after it finds no finished workflow that still has its issue.
    """
    document = world.store.create(make_document())
    for number, repository, adw_id in ((42, "acme/widget", FIRST), (42, "", SECOND), (43, "acme/widget", SECOND)):
        assert world.locks.acquire(number, adw_id, repository)

    running = world.store.save(document.model_copy(update={"current_state": "cleaning"}), fence=1)
    assert world.locks.verify(42, FIRST, "acme/widget")
    world.store.save(running.model_copy(update={"current_state": state}), fence=1)

    assert [(lock.issue_number, lock.adw_id) for lock in world.locks.all()] == [(42, SECOND), (43, SECOND)]
    assert not world.locks.release(42, FIRST, "acme/widget"), "who releases it later finds nothing, and that is all"


def test_a_finished_workflow_leaves_the_issue_to_who_has_it_now(world):
    document = world.store.create(make_document())
    world.locks.acquire(42, SECOND, "acme/widget")

    world.store.save(document.model_copy(update={"current_state": "completed"}), fence=1)

    assert world.locks.verify(42, SECOND, "acme/widget")


def test_an_end_that_is_not_committed_leaves_the_state_and_the_issue(sqlite_url, open_db, clock):
    database = open_db(sqlite_url)
    world = database_world(database, clock)
    document = world.store.create(make_document())
    world.locks.acquire(42, FIRST, "acme/widget")
    with database.write() as session:  # from now on a freed issue is only found out to be wrong by the COMMIT itself
        session.run("CREATE TABLE late (adw_id TEXT REFERENCES workflow_states (adw_id) DEFERRABLE INITIALLY DEFERRED)")
        session.run("CREATE TRIGGER freed AFTER DELETE ON adw_locks BEGIN INSERT INTO late VALUES ('nobody'); END")

    with pytest.raises(DatabaseError, match="FOREIGN KEY"):
        world.store.save(document.model_copy(update={"current_state": "completed"}), fence=1)

    assert world.store.load(FIRST).document == document
    assert world.locks.verify(42, FIRST, "acme/widget")


# --- bodies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "empty"),
        ('{"adw_id": "1a2b', "not JSON"),
        ("[]", "not an object"),
        ('{"adw_id": "1a2b3c4d", "revision": 1, "revision": 1}', "twice"),
        ('{"adw_id": "5e6f7a8b", "revision": 1}', "it holds '5e6f7a8b'"),
        ('{"adw_id": "1a2b3c4d", "revision": 7}', "its row says revision 1"),
    ],
    ids=["empty", "torn", "list", "duplicate key", "another workflow", "another revision"],
)
def test_a_bad_body_is_corrupt_and_never_taken_for_absent(world, database, body, reason):
    world.store.create(make_document())
    set_body(database, body)

    for call in (world.store.load, world.store.load):
        with pytest.raises(StateCorrupt, match=reason) as refused:
            call(FIRST)
        assert FIRST in str(refused.value)
    assert world.store.exists(FIRST)
    with pytest.raises(StateExists):
        world.store.create(make_document())


def test_an_older_body_is_migrated_in_memory_and_said_so(world, database):
    world.store.create(make_document())
    old = {"adw_id": FIRST, "issue_number": 42, "state_version": "2.0", "current_state": "building", "revision": 1}
    set_body(database, json.dumps({**old, "created_at": "2026-01-31T09:00:00Z", "updated_at": "2026-01-31T09:00:00Z"}))

    loaded = world.store.load(FIRST)

    assert (loaded.document.state_version, loaded.document.current_state) == ("3.0", "building")
    (notice,) = loaded.notices
    assert isinstance(notice, LoadNotice)
    assert notice.kind == "migrated"
    assert notice.reason == "brought from version 2.0 to 3.0 in memory; its next write stores it so"
    assert world.store.load(FIRST).document.state_version == "3.0"
    assert world.store.load(FIRST).notices == loaded.notices
    with database.read() as session:
        assert '"2.0"' in session.one("SELECT body FROM workflow_states")[0], "reading writes nothing"


def test_the_next_write_keeps_an_older_body_in_the_event_that_is_committed_with_it(world, database):
    world.store.create(make_document())
    old = {"adw_id": FIRST, "issue_number": 42, "state_version": "2.0", "current_state": "building", "revision": 1}
    old |= {"created_at": "2026-01-31T09:00:00Z", "updated_at": "2026-01-31T09:00:00Z"}
    set_body(database, json.dumps(old))

    saved = world.store.save(world.store.load(FIRST).document, fence=0)
    again = world.store.save(saved, fence=0)

    assert (saved.revision, again.revision, world.store.load(FIRST).notices) == (2, 3, ())
    with database.read() as session:
        (row,) = session.all("SELECT data FROM events WHERE event_type = 'state_migrated'")
    kept = json.loads(row[0]) if isinstance(row[0], str) else row[0]
    assert kept == {"from": "2.0", "to": "3.0", "document": old}


def test_a_newer_body_is_refused(world, database):
    world.store.create(make_document())
    set_body(database, json.dumps({"adw_id": FIRST, "revision": 1, "state_version": "99.0"}))

    with pytest.raises(NewerVersion):
        world.store.load(FIRST)


def test_more_documents_than_are_read_at_a_time_are_all_found(world, monkeypatch):
    monkeypatch.setattr("adws.adw_modules.store.database._IDS_AT_ONCE", 2)
    wanted = {f"{number:08x}" for number in range(5)}
    for adw_id in wanted:
        world.store.create(make_document(adw_id))

    assert sorted(world.store.ids()) == sorted(wanted)


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}])
def test_an_event_or_a_request_that_is_not_json_is_refused_before_anything_is_stored(world, value):
    document = world.store.create(make_document())

    with pytest.raises(StateUnserialisable, match="data of the event state_set"):
        world.store.save(document, fence=1, events=[Event(event_type="state_set", data={"x": value})])
    with pytest.raises(StateUnserialisable, match="payload of a hint request"):
        world.requests.ask(FIRST, "hint", payload={"x": value})

    assert world.store.load(FIRST).document == document
    assert world.requests.open_for(FIRST) == ()


def test_asking_for_no_events_at_all_is_a_mistake(world):
    with pytest.raises(UsageError, match="at least 1"):
        world.events.of_workflow(FIRST, limit=0)


# --- secrets ---------------------------------------------------------------------------------------------------


def test_no_secret_reaches_the_database(database, clock, world):
    store = DatabaseStateStore(database, clock=clock, scrub=Redactor([SECRET]).scrub_bytes)
    document = make_document(title=f"token {SECRET}", plan_file=f"/x/{SECRET}")
    happened = Event(event_type="state_set", status=f"had {SECRET}", data={"old": {"token": SECRET}})

    stored = store.create(document, events=[happened, Event(event_type="state_changed")])
    stored = store.save(stored.model_copy(update={"branch_name": SECRET}), fence=1, events=[happened])

    with database.read() as session:
        everything = session.all("SELECT * FROM workflow_states") + session.all("SELECT * FROM events")
    assert SECRET not in repr(everything)
    assert store.load(FIRST).document == stored, "what was returned is what was stored"
    assert SECRET not in world.catalogue.page(PageQuery()).rows[0].title
    assert [event.event_id for event in EventLog(database).of_workflow(FIRST)] == [
        f"{FIRST}.1.0",
        f"{FIRST}.1.1",
        f"{FIRST}.2.0",
    ]


def test_registering_stores_no_title_for_its_secrets_are_still_in_it(world, database):
    world.registry.register(make_document(SECOND, title=SECRET), make_owner(), ttl_seconds=30.0)

    with database.read() as session:
        assert SECRET not in repr(session.all("SELECT * FROM workflow_states"))


def test_the_issue_is_freed_however_its_repository_is_spelled(world):
    document = world.store.create(make_document().model_copy(update={"repository": "Acme/Widget"}))
    world.locks.acquire(42, FIRST, "acme/widget")

    world.store.save(document.model_copy(update={"current_state": "completed"}), fence=1)

    assert world.locks.all() == ()
