"""Deliveries keep their contract: in SQLite and in PostgreSQL."""

from __future__ import annotations

import pytest

from adws.adw_modules.deliveries.store import DeliveryStore
from adws.adw_modules.queue.store import RunStore
from adws.testing import FakeClock
from tests.contracts.delivery_contract import DeliveryContract


class TestDeliveries(DeliveryContract):
    @pytest.fixture
    def clock(self):
        return FakeClock()

    @pytest.fixture(params=("sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)))
    def database(self, request):
        url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "pg_url")
        return request.getfixturevalue("open_db")(url)

    @pytest.fixture
    def runs(self, database, clock):
        return RunStore(database, clock=clock)

    @pytest.fixture
    def deliveries(self, database, clock):
        return DeliveryStore(database, clock=clock)
