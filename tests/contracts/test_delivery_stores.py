"""Deliveries keep their contract: in memory, in SQLite and in PostgreSQL."""

from __future__ import annotations

import pytest

from adws.adw_modules.db.deliveries import DatabaseDeliveries
from adws.adw_modules.db.run_queue import DatabaseRunQueue
from adws.testing import FakeClock, MemoryDeliveries, MemoryRunQueue
from tests.contracts.delivery_contract import DeliveryContract


class TestDeliveries(DeliveryContract):
    @pytest.fixture
    def clock(self):
        return FakeClock()

    @pytest.fixture(params=("memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)))
    def database(self, request):
        if request.param == "memory":
            return None
        url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "pg_url")
        return request.getfixturevalue("open_db")(url)

    @pytest.fixture
    def runs(self, database, clock):
        return MemoryRunQueue(clock) if database is None else DatabaseRunQueue(database, clock=clock)

    @pytest.fixture
    def deliveries(self, database, clock, runs):
        return MemoryDeliveries(clock, runs) if database is None else DatabaseDeliveries(database, clock=clock)
