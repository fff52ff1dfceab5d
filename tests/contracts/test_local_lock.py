"""The local locks on disk and in memory keep the contract."""

from __future__ import annotations

import pytest

from adws.adw_modules.local_lock import FileLocalLock
from adws.testing import Machine, MemoryLocalLock
from tests.contracts.local_lock_contract import LocalLockContract


class TestFileLocalLock(LocalLockContract):
    @pytest.fixture
    def lock(self, tmp_path):
        return FileLocalLock(tmp_path / "state")

    @pytest.fixture
    def other(self, tmp_path):
        return FileLocalLock(tmp_path / "state")


class TestMemoryLocalLock(LocalLockContract):
    @pytest.fixture
    def machine(self):
        return Machine()

    @pytest.fixture
    def lock(self, machine):
        return MemoryLocalLock(machine)

    @pytest.fixture
    def other(self, machine):
        return MemoryLocalLock(machine)
