"""The schedule and the notifications keep their contract in memory, in SQLite and in PostgreSQL."""

from __future__ import annotations

import pytest

from adws.adw_modules.db import rows, statements
from adws.adw_modules.db.notifications import DatabaseNotifications
from adws.adw_modules.db.schedule import DatabaseSchedule
from adws.testing import MemoryNotifications, MemorySchedule
from tests.contracts.schedule_contract import ScheduleContract


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def place(request):
    return request.param


class TestSchedules(ScheduleContract):
    @pytest.fixture
    def database(self, request, place):
        if place == "memory":
            return None
        url = request.getfixturevalue("sqlite_url" if place == "sqlite" else "pg_url")
        return request.getfixturevalue("open_db")(url)

    @pytest.fixture
    def events(self):
        return []

    @pytest.fixture
    def notifications(self, database, events, clock):
        if database is None:
            return MemoryNotifications(clock, lambda: events)
        return DatabaseNotifications(database, clock=clock)

    @pytest.fixture
    def schedule(self, database, notifications, clock):
        if database is None:
            return MemorySchedule(clock, notifications)
        return DatabaseSchedule(database, clock=clock)

    @pytest.fixture
    def let_claims_end(self, database, clock):
        def end():
            clock.advance(61.0)
            if database is not None and database.dialect == "postgresql":
                with database.write() as session:
                    session.run("UPDATE schedule SET claim_until = claim_until - 61")
                    session.run("UPDATE notifications SET claim_until = claim_until - 61")

        return end

    @pytest.fixture
    def store_events(self, database, events):
        def store(new):
            events.extend(new)
            if database is not None:
                with database.write() as session:
                    session.run_each(statements.EVENT_INSERT, [rows.event_params(event) for event in new])

        return store
