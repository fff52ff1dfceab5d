"""The local lock of files keeps the contract."""

from __future__ import annotations

import pytest

from adws.adw_modules.local_lock import FileLocalLock
from tests.contracts.local_lock_contract import LocalLockContract


class TestFileLocalLock(LocalLockContract):
    @pytest.fixture
    def lock(self, tmp_path):
        return FileLocalLock(tmp_path / "state")

    @pytest.fixture
    def other(self, tmp_path):
        return FileLocalLock(tmp_path / "state")
