"""What every LocalLock keeps."""

from __future__ import annotations

import threading

import pytest

from adws.adw_modules.errors import InvalidAdwId


class LocalLockContract:
    """Mix in and give a `lock` and an `other` fixture: two views of the same locks, as of two workers."""

    def test_one_holder_at_a_time(self, lock, other):
        assert lock.try_hold("1a2b3c4d")
        assert not other.try_hold("1a2b3c4d")

        lock.let_go("1a2b3c4d")
        assert other.try_hold("1a2b3c4d")

    def test_a_lock_does_not_nest(self, lock):
        assert lock.try_hold("1a2b3c4d")
        assert not lock.try_hold("1a2b3c4d")

        lock.let_go("1a2b3c4d")
        assert not lock.is_held("1a2b3c4d")

    def test_workflows_do_not_share_a_lock(self, lock, other):
        assert lock.try_hold("1a2b3c4d")
        assert other.try_hold("5e6f7a8b")

    def test_everybody_sees_whether_it_is_held(self, lock, other):
        assert not other.is_held("1a2b3c4d")
        lock.try_hold("1a2b3c4d")
        assert lock.is_held("1a2b3c4d")
        assert other.is_held("1a2b3c4d")
        assert other.is_held("1a2b3c4d"), "looking changes nothing"

        lock.let_go("1a2b3c4d")
        assert not lock.is_held("1a2b3c4d")
        assert not other.is_held("1a2b3c4d")

    def test_letting_go_of_what_is_not_ours_changes_nothing(self, lock, other):
        lock.try_hold("1a2b3c4d")
        other.let_go("1a2b3c4d")

        assert lock.is_held("1a2b3c4d")
        assert not other.try_hold("1a2b3c4d")

    def test_another_thread_may_let_go(self, lock, other):
        lock.try_hold("1a2b3c4d")
        thread = threading.Thread(target=lock.let_go, args=("1a2b3c4d",))
        thread.start()
        thread.join()

        assert other.try_hold("1a2b3c4d")

    def test_of_many_threads_one_gets_it(self, lock):
        start, won = threading.Barrier(8), []

        def compete() -> None:
            start.wait()
            if lock.try_hold("1a2b3c4d"):
                won.append(threading.get_ident())

        threads = [threading.Thread(target=compete) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(won) == 1

    @pytest.mark.parametrize("adw_id", ["../etc", "", "a/b", ".", "x" * 65])
    def test_an_id_that_is_no_name_is_refused(self, lock, adw_id):
        for call in (lock.try_hold, lock.let_go, lock.is_held):
            with pytest.raises(InvalidAdwId):
                call(adw_id)
