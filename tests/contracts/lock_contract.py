"""What every IssueLocks keeps."""

from __future__ import annotations

import threading

import pytest

from adws.adw_modules.errors import InvalidAdwId, UsageError
from adws.adw_modules.interfaces import IssueLock
from tests.contracts.worlds import FIRST, MOMENT, SECOND, THIRD


class LockContract:
    """Mix in and give a `world` fixture."""

    def test_a_free_issue_is_taken(self, world):
        assert world.locks.acquire(42, FIRST, "acme/widget") is True

        assert world.locks.verify(42, FIRST, "acme/widget") is True
        assert world.locks.holder(42, "acme/widget") == IssueLock(
            repository="acme/widget", issue_number=42, adw_id=FIRST, acquired_at=MOMENT
        )

    def test_the_same_workflow_may_ask_again(self, world):
        world.locks.acquire(42, FIRST)
        world.clock.advance(60.0)

        assert world.locks.acquire(42, FIRST) is True
        assert world.locks.holder(42).acquired_at == MOMENT, "it has it since the first time"

    def test_a_wrong_id_never_gets_in(self, world):
        world.locks.acquire(42, FIRST)

        assert world.locks.acquire(42, SECOND) is False
        assert world.locks.verify(42, SECOND) is False
        assert world.locks.holder(42).adw_id == FIRST

    def test_a_lock_has_no_age_at_which_it_ends(self, world):
        world.locks.acquire(42, FIRST)
        world.clock.advance(10 * 365 * 86400.0)

        assert world.locks.acquire(42, SECOND) is False

    def test_release_needs_the_owner(self, world):
        world.locks.acquire(42, FIRST)

        assert world.locks.release(42, SECOND) is False
        assert world.locks.verify(42, FIRST) is True
        assert world.locks.release(42, FIRST) is True
        assert world.locks.holder(42) is None
        assert world.locks.release(42, FIRST) is False, "once"

    def test_a_released_issue_is_free_for_another(self, world):
        world.locks.acquire(42, FIRST)
        world.locks.release(42, FIRST)

        assert world.locks.acquire(42, SECOND) is True

    def test_the_same_number_in_another_repository_is_another_issue(self, world):
        world.locks.acquire(42, FIRST, "acme/widget")

        assert world.locks.acquire(42, SECOND, "acme/gadget") is True
        assert world.locks.acquire(42, THIRD) is True
        assert world.locks.verify(42, FIRST, "acme/gadget") is False
        assert world.locks.release(42, FIRST, "acme/gadget") is False
        assert world.locks.holder(42, "acme/gadget").adw_id == SECOND

    def test_every_spelling_of_a_repository_is_the_same_repository(self, world):
        spellings = ("Acme/Widget", "https://github.com/acme/widget.git", "git@github.com:ACME/widget.git")
        world.locks.acquire(42, FIRST, "acme/widget")

        for spelling in spellings:
            assert world.locks.acquire(42, SECOND, spelling) is False, spelling
            assert world.locks.acquire(42, FIRST, spelling) is True, spelling
            assert world.locks.verify(42, FIRST, spelling) is True, spelling
            assert world.locks.holder(42, spelling).repository == "acme/widget"
        assert len(world.locks.all()) == 1
        assert world.locks.release(42, FIRST, spellings[0]) is True
        assert world.locks.holder(42, "acme/widget") is None

    @pytest.mark.parametrize(("first", "second"), [("", "acme/widget"), ("ACME/widget", "")])
    def test_a_lock_without_a_repository_is_one_of_the_homes_own(self, home_world, first, second):
        locks = home_world.locks
        locks.acquire(42, FIRST, first)

        assert locks.acquire(42, SECOND, second) is False
        assert locks.acquire(42, FIRST, second) is True
        assert locks.verify(42, FIRST, second) is True
        assert locks.holder(42, second).repository == "acme/widget"
        assert locks.acquire(42, SECOND, "acme/gadget") is True, "another repository"
        assert locks.release(42, FIRST, second) is True
        assert locks.holder(42, first) is None

    def test_names_of_one_repository_have_one_key(self, world, home_world):
        for spelling in ("acme/widget", "ACME/Widget", "https://github.com/acme/widget.git"):
            assert world.locks.key(spelling) == home_world.locks.key(spelling) == home_world.locks.key("")
        assert world.locks.key("") == ""
        assert world.locks.key("some where") == "some where", "of an old document"

    def test_what_names_no_repository_is_refused(self, world):
        for call in (world.locks.acquire, world.locks.verify, world.locks.release):
            with pytest.raises(UsageError, match="names no repository"):
                call(42, FIRST, "widget")
        with pytest.raises(UsageError, match="names no repository"):
            world.locks.holder(42, "widget")

    def test_nobody_has_a_free_issue(self, world):
        assert world.locks.holder(42) is None
        assert world.locks.verify(42, FIRST) is False

    def test_all_locks_are_listed_oldest_first(self, world):
        world.locks.acquire(9, THIRD)
        world.clock.advance(1.0)
        world.locks.acquire(3, FIRST)
        world.clock.advance(1.0)
        world.locks.acquire(7, SECOND, "acme/widget")

        assert [lock.adw_id for lock in world.locks.all()] == [THIRD, FIRST, SECOND]

    def test_the_first_locks_are_those_of_the_first_issues(self, world):
        world.locks.acquire(9, THIRD)
        world.locks.acquire(3, FIRST)
        world.locks.acquire(1, SECOND, "acme/widget")

        assert [lock.adw_id for lock in world.locks.first(2)] == [FIRST, THIRD]
        assert world.locks.first(5)[2:] == (world.locks.holder(1, "acme/widget"),)

    def test_of_many_threads_one_gets_the_issue(self, world):
        start, won = threading.Barrier(8), []

        def compete(adw_id: str) -> None:
            start.wait()
            if world.locks.acquire(42, adw_id):
                won.append(adw_id)

        threads = [threading.Thread(target=compete, args=(f"{n:08x}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(won) == 1
        assert world.locks.holder(42).adw_id == won[0]

    def test_an_id_that_is_no_name_is_refused(self, world):
        for call in (world.locks.acquire, world.locks.verify, world.locks.release):
            with pytest.raises(InvalidAdwId):
                call(42, "../etc")
