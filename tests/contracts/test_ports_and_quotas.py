"""Ports and quotas keep their contracts: in memory, and with real sockets in SQLite and in PostgreSQL."""

from __future__ import annotations

import socket

import pytest

from adws.adw_modules.db.ports import DatabasePortBook
from adws.adw_modules.db.quota_book import DatabaseQuotaBook
from adws.adw_modules.resources.ports import MachinePorts, PortRange, is_free
from adws.adw_modules.resources.quotas import Limits, MachineQuotas
from adws.testing import MemoryPorts, MemoryQuotas
from tests.contracts.port_contract import PortContract
from tests.contracts.quota_contract import QuotaContract
from tests.contracts.worlds import make_owner

PLACES = ("memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres))


def free_range(count: int) -> PortRange:
    """Return a range in which nothing listens now; other tests look for theirs at the same time, so start anywhere."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = 10_000 + probe.getsockname()[1] % 15_000
    while True:
        found = PortRange(backend_start=first, frontend_start=first + count, count=count)
        if all(is_free(port) for port in range(first, first + 2 * count)):
            return found
        first += 2 * count


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
    def ports(self, request, place, clock, port_range):
        if place == "memory":
            yield MemoryPorts(clock, ports=port_range)
            return
        book = DatabasePortBook(request.getfixturevalue("database"), clock=clock)
        made = MachinePorts(book, me=make_owner(), ports=port_range)
        yield made
        made.close()

    @pytest.fixture
    def occupy(self, place, ports):
        sockets = []

        def listen(port: int) -> None:
            if place == "memory":
                ports.foreign.add(port)
                return
            stranger = socket.create_server(("127.0.0.1", port))
            sockets.append(stranger)

        yield listen
        for stranger in sockets:
            stranger.close()


class TestQuotas(QuotaContract):
    @pytest.fixture
    def quotas(self, request, place, clock, tmp_path):
        if place == "memory":
            return MemoryQuotas(max_runs=3)
        book = DatabaseQuotaBook(request.getfixturevalue("database"), clock=clock)
        limits = Limits(min_free_disk=1, min_free_memory=1, max_runs=3)
        return MachineQuotas(book, trees=tmp_path / "trees", host="testhost", limits=limits)
