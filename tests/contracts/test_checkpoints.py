"""Checkpoints keep their contract in SQLite and in PostgreSQL."""

from __future__ import annotations

import pytest

from adws.adw_modules.checkpoint import CheckpointStore
from tests.contracts.checkpoint_contract import CheckpointContract
from tests.contracts.worlds import database_world


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def place(request):
    return request.param


class TestCheckpoints(CheckpointContract):
    @pytest.fixture
    def database(self, request, place):
        url = request.getfixturevalue("sqlite_url" if place == "sqlite" else "pg_url")
        return request.getfixturevalue("open_db")(url)

    @pytest.fixture
    def world(self, database, clock):
        return database_world(database, clock)

    @pytest.fixture
    def checkpoints(self, database, clock):
        return CheckpointStore(database, clock=clock)
