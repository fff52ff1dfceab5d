"""Leases, locks, requests, registry, lists and events keep their contracts: in SQLite and in PostgreSQL."""

from __future__ import annotations

import pytest

from adws.testing import FakeClock
from tests.contracts.catalogue_contract import CatalogueContract
from tests.contracts.event_log_contract import EventLogContract
from tests.contracts.lease_contract import LeaseContract
from tests.contracts.lock_contract import LockContract
from tests.contracts.lost_run_contract import LostRunContract
from tests.contracts.mass_lease_contract import MassLeaseContract
from tests.contracts.registry_contract import RegistryContract
from tests.contracts.report_contract import ReportContract
from tests.contracts.request_contract import RequestContract
from tests.contracts.run_queue_contract import RunQueueContract
from tests.contracts.run_terms_contract import RunTermsContract
from tests.contracts.runner_contract import RunnerContract
from tests.contracts.session_contract import SessionContract
from tests.contracts.worlds import World, database_world

PLACES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgres))


@pytest.fixture(params=PLACES)
def world(request, clock: FakeClock) -> World:
    """The parts under test, once for each place they can live in."""
    return make_world(request, clock, repository="")


@pytest.fixture(params=PLACES)
def home_world(request, clock: FakeClock) -> World:
    """The parts of a home whose own repository is set, and spelled as people spell it."""
    return make_world(request, clock, repository="Acme/Widget")


def make_world(request, clock: FakeClock, *, repository: str) -> World:
    url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "pg_url")

    return database_world(request.getfixturevalue("open_db")(url), clock, repository=repository)


class TestLeases(LeaseContract):
    pass


class TestIssueLocks(LockContract):
    pass


class TestRequests(RequestContract):
    pass


class TestRegistry(RegistryContract):
    pass


class TestCatalogue(CatalogueContract):
    pass


class TestEventLog(EventLogContract):
    pass


class TestRunQueue(RunQueueContract):
    pass


class TestLostRuns(LostRunContract):
    pass


class TestRunTerms(RunTermsContract):
    pass


class TestRunners(RunnerContract):
    pass


class TestSessions(SessionContract):
    pass


class TestMassLeases(MassLeaseContract):
    pass


class TestReports(ReportContract):
    pass
