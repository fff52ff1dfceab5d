"""Lock rows of before: other spellings of a repository, and rows from when the home had no repository of its own."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import IssueLocked
from adws.adw_modules.interfaces import IssueLock
from adws.adw_modules.maintenance import check
from adws.adw_modules.ownership.issue_locks import insert_lock
from adws.testing import FakeProcesses
from tests.contracts.worlds import FIRST, MOMENT, SECOND, database_world, make_document, make_owner

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def old_row(database):
    """Put a lock row into the table as an older adw did: with whatever the document said."""

    def put(repository: str, adw_id: str = FIRST, acquired_at: str = MOMENT) -> None:
        lock = IssueLock(repository=repository, issue_number=42, adw_id=adw_id, acquired_at=acquired_at)
        with database.write() as session:
            insert_lock(session, lock)

    return put


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("Acme/Widget", "acme/widget"),
        ("https://github.com/Acme/Widget.git", "ACME/widget"),
        ("some where", "some where"),
    ],
)
def test_a_row_with_an_old_spelling_is_found_kept_and_released(database, clock, old_row, stored, asked):
    old_row(stored)
    locks = database_world(database, clock).locks

    assert locks.holder(42, asked).adw_id == FIRST
    assert locks.verify(42, FIRST, asked) is True
    assert [lock.adw_id for lock in locks.all()] == [FIRST]
    assert locks.release(42, SECOND, asked) is False
    assert locks.release(42, FIRST, asked) is True
    assert locks.all() == ()


def test_a_row_with_an_old_spelling_lets_no_second_workflow_in(database, clock, old_row):
    old_row("Acme/Widget")
    world = database_world(database, clock)

    assert world.locks.acquire(42, SECOND, "acme/widget") is False
    with pytest.raises(IssueLocked, match=FIRST):
        world.registry.register(make_document(SECOND), make_owner(), ttl_seconds=30.0)


def test_a_row_from_before_the_home_had_a_repository_is_still_its_own(database, clock, old_row):
    old_row("")
    locks = database_world(database, clock, repository="acme/widget").locks

    assert locks.acquire(42, SECOND, "acme/widget") is False
    assert locks.release(42, FIRST, "acme/widget") is True
    assert locks.acquire(42, SECOND, "") is True


def test_of_two_rows_that_are_of_one_issue_now_the_older_holds_and_each_can_be_released(database, clock, old_row):
    old_row("acme/widget", SECOND, "2026-02-01T00:00:00.000000Z")
    old_row("", FIRST)
    locks = database_world(database, clock, repository="acme/widget").locks

    assert locks.holder(42).adw_id == FIRST
    assert locks.verify(42, SECOND, "acme/widget") is False
    assert locks.release(42, SECOND) is True
    assert [lock.adw_id for lock in locks.all()] == [FIRST]


@pytest.mark.parametrize("repository", ["acme/widget", "ACME/widget", ""])
def test_the_write_that_ends_a_workflow_frees_its_issue_however_the_repository_is_spelled(
    database, clock, old_row, repository
):
    world = database_world(database, clock, repository="acme/widget")
    document = make_document(repository=repository)
    lease = world.registry.register(document, make_owner(), ttl_seconds=30.0)
    stored = world.store.create(document.model_copy(update={"fence": lease.fence}))

    world.store.save(stored.model_copy(update={"current_state": "abandoned"}), fence=lease.fence)

    assert world.locks.all() == ()


def test_a_check_knows_every_name_of_the_homes_repository(database, clock, old_row):
    world = database_world(database, clock, repository="acme/widget")
    world.store.create(make_document(repository="", fence=0))
    world.store.create(make_document(SECOND, repository="ACME/Widget", fence=0))
    old_row("Acme/Widget")

    problems = check.find_problems(
        database,
        home="database",
        documents=lambda: {adw_id: world.store.load(adw_id) for adw_id in (FIRST, SECOND)},
        processes=FakeProcesses(clock.token),
        repository="acme/widget",
    )

    assert [(problem.adw_id, problem.text) for problem in problems] == [
        (SECOND, f"it is unfinished, and its issue 42 of ACME/Widget is locked for workflow {FIRST}")
    ]
