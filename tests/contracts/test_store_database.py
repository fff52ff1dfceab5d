"""The store in a database keeps the contract, on SQLite and on PostgreSQL, with and without a row made beforehand."""

from __future__ import annotations

import pytest

from adws.adw_modules.db.listing import EventLog
from adws.adw_modules.errors import Fenced
from adws.adw_modules.ownership.issue_locks import WorkflowRegistry
from adws.adw_modules.store.database import DatabaseStateStore
from tests.contracts.store_contract import ADW_ID, StoreContract, new_document
from tests.contracts.worlds import make_owner


class TestDatabaseStateStore(StoreContract):
    @pytest.fixture
    def store(self, database, clock):
        return DatabaseStateStore(database, clock=clock)

    def events_of(self, store, adw_id):
        return EventLog(store._database).of_workflow(adw_id)

    def make(self, store, document, events=()):
        """Create without an owner: under a fence only a row that was registered is filled."""
        return store.create(document.model_copy(update={"fence": 0}), events=events)

    def test_under_a_fence_no_row_is_made(self, store):
        with pytest.raises(Fenced):
            store.create(new_document())
        assert not store.exists(ADW_ID)


class TestDatabaseStateStoreBehindTheRegistry(TestDatabaseStateStore):
    """As it is used: the registry makes the row with the first lease, then the store fills it in."""

    def make(self, store, document, events=()):
        registry = WorkflowRegistry(store._database, clock=store._database.clock, home="database")
        lease = registry.register(document, make_owner(), ttl_seconds=30.0)
        return store.create(document.model_copy(update={"fence": lease.fence}), events=events)
