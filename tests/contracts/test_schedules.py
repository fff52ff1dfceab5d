"""The schedule and the notifications keep their contract in SQLite and in PostgreSQL."""

from __future__ import annotations

import pytest

from adws.adw_modules.db import connection
from adws.adw_modules.schedule.store import NotificationStore, ScheduleStore
from tests.contracts.schedule_contract import ScheduleContract


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def place(request):
    return request.param


class TestSchedules(ScheduleContract):
    @pytest.fixture
    def database(self, request, place):
        url = request.getfixturevalue("sqlite_url" if place == "sqlite" else "pg_url")
        return request.getfixturevalue("open_db")(url)

    @pytest.fixture
    def notifications(self, database, clock):
        return NotificationStore(database, clock=clock)

    @pytest.fixture
    def schedule(self, database, clock):
        return ScheduleStore(database, clock=clock)

    @pytest.fixture
    def let_claims_end(self, database, clock):
        def end():
            clock.advance(61.0)
            if database.dialect == "postgresql":
                with database.write() as session:
                    session.run("UPDATE schedule SET claim_until = claim_until - 61")
                    session.run("UPDATE notifications SET claim_until = claim_until - 61")

        return end

    @pytest.fixture
    def store_events(self, database):
        def store(new):
            with database.write() as session:
                session.run_each(connection.EVENT_INSERT, [connection.event_params(event) for event in new])

        return store
