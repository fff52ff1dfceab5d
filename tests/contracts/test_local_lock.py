"""The local locks keep their contract."""

from __future__ import annotations

import pytest

from adws.adw_modules.ownership.ownership import LocalLock
from tests import forked
from tests.contracts.local_lock_contract import LocalLockContract


class TestFileLocalLock(LocalLockContract):
    @pytest.fixture
    def lock(self, tmp_path):
        return LocalLock(tmp_path / "state")

    @pytest.fixture
    def other(self, tmp_path):
        return LocalLock(tmp_path / "state")

    def test_a_child_forked_while_another_thread_looks_can_use_it(self, lock):
        with lock._guard:  # as a thread has it that the child does not have
            child = forked.start(lambda: _take_or_fail(lock))
        assert forked.is_well(child)


def _take_or_fail(lock) -> None:
    assert lock._guard.acquire(timeout=1.0), "nobody is left to free it"
    lock._guard.release()
    assert lock.try_hold("1a2b3c4d")
