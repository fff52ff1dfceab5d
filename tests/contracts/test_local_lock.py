"""The local locks keep their contract."""

from __future__ import annotations

import pytest

from adws.adw_modules.ownership.local_lock import LocalLock
from tests import forked
from tests.contracts.local_lock_contract import LocalLockContract


class TestFileLocalLock(LocalLockContract):
    @pytest.fixture
    def lock(self, tmp_path):
        return LocalLock(tmp_path / "state")

    @pytest.fixture
    def other(self, tmp_path):
        return LocalLock(tmp_path / "state")

    def test_a_forked_child_can_use_it_and_holds_and_frees_nothing_of_its_parent(self, lock, other):
        lock.try_hold("1a2b3c4d")

        with lock._guard:  # as a thread has it that the child does not have
            child = forked.start(lambda: _work_in_child(lock))

        assert forked.is_well(child)
        assert lock.is_held("1a2b3c4d")
        assert not other.try_hold("1a2b3c4d"), "the child did not free what its parent holds"
        assert other.try_hold("5e6f7a8b"), "what the child held is free with its end"


def _work_in_child(lock) -> None:
    lock.let_go("1a2b3c4d")
    assert not lock.try_hold("1a2b3c4d")
    assert lock.is_held("1a2b3c4d")
    assert lock.try_hold("5e6f7a8b")
