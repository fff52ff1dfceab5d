"""What only a real database shows about notifications: numbers out of order, events made again, a long transaction."""

from __future__ import annotations

import pytest

from adws.adw_modules.db import connection
from adws.adw_modules.events import Event
from adws.adw_modules.schedule.store import Notice, NotificationStore

SINCE = "2026-01-31T08:00:00.000000Z"


def event(number: int, created_at: str = "2026-01-31T09:00:00.000000Z") -> dict:
    made = Event(
        event_type="phase_failed",
        adw_id="1a2b3c4d",
        event_id=f"1a2b3c4d.{number}.0",
        revision=number,
        created_at=created_at,
        execution_id="1a2b3c4d",
    )
    return connection.event_params(made)


def pick(found: Event) -> Notice:
    return Notice(key=found.event_id, kind="failed", title="t", channels=("http",))


def keys(book: NotificationStore) -> list[str]:
    return [row.key for row in reversed(book.page())]


@pytest.mark.postgres
def test_an_event_that_is_committed_after_one_with_a_higher_number_is_not_passed_over(pg_url, open_db, clock):
    """
    PostgreSQL numbers events before their commit. While the lower number is under way, nothing is taken for settled.
    """
    slow, fast = open_db(pg_url), open_db(pg_url)
    book = NotificationStore(open_db(pg_url), clock=clock)
    with slow.write() as session:
        session.run(connection.EVENT_INSERT, event(1))
        with fast.write() as other:
            other.run(connection.EVENT_INSERT, event(2))

        assert book.gather(pick, since=SINCE) == 0

    assert book.gather(pick, since=SINCE) == 2
    assert sorted(keys(book)) == ["1a2b3c4d.1.0", "1a2b3c4d.2.0"]


def test_after_events_were_made_again_new_ones_are_told_and_old_ones_are_not_told_twice(database, clock):
    book = NotificationStore(database, clock=clock)
    with database.write() as session:
        session.run_each(connection.EVENT_INSERT, [event(number) for number in range(1, 6)])
    assert book.gather(pick, since=SINCE) == 5
    with database.write() as session:  # as after a loss: fewer, in another order, with other numbers
        session.run("DELETE FROM events")
        session.run_each(
            connection.EVENT_INSERT,
            [event(9, "2020-01-01T00:00:00.000000Z"), event(5), event(3), event(6)],
        )

    assert book.gather(pick, since=SINCE) == 1
    assert keys(book)[-1] == "1a2b3c4d.6.0"
    assert book.gather(pick, since=SINCE) == 0


def test_when_every_event_is_gone_the_next_ones_are_told(database, clock):
    book = NotificationStore(database, clock=clock)
    with database.write() as session:
        session.run_each(connection.EVENT_INSERT, [event(1), event(2)])
    book.gather(pick, since=SINCE)
    with database.write() as session:
        session.run("DELETE FROM events")
    assert book.gather(pick, since=SINCE) == 0
    with database.write() as session:
        session.run(connection.EVENT_INSERT, event(3))

    assert book.gather(pick, since=SINCE) == 1
