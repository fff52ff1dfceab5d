"""Ports and quotas keep their contracts: with real sockets, in SQLite and in PostgreSQL."""

from __future__ import annotations

import socket

import pytest

from adws.adw_modules.resources.ports import Ports
from adws.adw_modules.resources.quotas import Limits, Quotas
from tests.contracts.port_contract import PortContract
from tests.contracts.quota_contract import QuotaContract
from tests.contracts.worlds import make_owner
from tests.homes import free_range

PLACES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgres))


@pytest.fixture(params=PLACES)
def place(request):
    return request.param


@pytest.fixture
def database(request, place):
    return request.getfixturevalue("open_db")(request.getfixturevalue("sqlite_url" if place == "sqlite" else "pg_url"))


class TestPorts(PortContract):
    @pytest.fixture
    def port_range(self):
        return free_range(3)

    @pytest.fixture
    def ports(self, database, clock, port_range):
        made = Ports(database, clock=clock, me=make_owner(), ports=port_range)
        yield made
        made.close()

    @pytest.fixture
    def occupy(self):
        sockets = []

        def listen(port: int) -> None:
            stranger = socket.create_server(("127.0.0.1", port))
            sockets.append(stranger)

        yield listen
        for stranger in sockets:
            stranger.close()


class TestQuotas(QuotaContract):
    @pytest.fixture
    def quotas(self, database, clock, tmp_path):
        limits = Limits(min_free_disk=1, min_free_memory=1, max_runs=3)
        return Quotas(database, clock=clock, trees=tmp_path / "trees", host="testhost", limits=limits)
