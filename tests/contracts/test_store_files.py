"""The store in files keeps the contract."""

from __future__ import annotations

import pytest

from adws.adw_modules.events import Event
from adws.adw_modules.store.files import FileStateStore
from tests.contracts.store_contract import StoreContract


class TestFileStateStore(StoreContract):
    @pytest.fixture
    def store(self, clock, tmp_path):
        return FileStateStore(tmp_path / "state", clock=clock)

    def events_of(self, store, adw_id):
        return tuple(Event.from_json(entry) for entry in store.load(adw_id).document.outbox)


class TestFileStateStoreThatRemembersNothing(TestFileStateStore):
    """The same store, but each call is made by a new one, as if every step was another process."""

    @pytest.fixture
    def store(self, clock, tmp_path):
        return _Forgetful(lambda: FileStateStore(tmp_path / "state", clock=clock))


class _Forgetful:
    def __init__(self, make):
        self._make = make

    def __getattr__(self, name):
        return getattr(self._make(), name)
