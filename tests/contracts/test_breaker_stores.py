"""Breakers keep their contract: in memory, in SQLite and in PostgreSQL."""

from __future__ import annotations

import pytest

from adws.adw_modules.circuit_breaker import DatabaseBreakers, MemoryBreakers
from tests.contracts.breaker_contract import BreakerContract


class TestBreakers(BreakerContract):
    @pytest.fixture(params=("memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)))
    def breakers(self, request):
        if request.param == "memory":
            return MemoryBreakers()
        url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "pg_url")
        return DatabaseBreakers(request.getfixturevalue("open_db")(url))
