"""Checkpoints keep their contract in memory, in SQLite and in PostgreSQL."""

from __future__ import annotations

import pytest

from adws.adw_modules.db.checkpoints import DatabaseCheckpoints
from adws.testing import MemoryCheckpoints
from tests.contracts.checkpoint_contract import CheckpointContract
from tests.contracts.worlds import database_world, memory_world


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def place(request):
    return request.param


class TestCheckpoints(CheckpointContract):
    @pytest.fixture
    def database(self, request, place):
        if place == "memory":
            return None
        url = request.getfixturevalue("sqlite_url" if place == "sqlite" else "pg_url")
        return request.getfixturevalue("open_db")(url)

    @pytest.fixture
    def world(self, database, clock):
        return memory_world(clock) if database is None else database_world(database, clock)

    @pytest.fixture
    def checkpoints(self, database, world, clock):
        if database is None:
            return MemoryCheckpoints(clock, world.leases)
        return DatabaseCheckpoints(database, clock=clock)
