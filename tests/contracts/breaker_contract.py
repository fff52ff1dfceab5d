"""What every BreakerStore keeps."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from adws.adw_modules.circuit_breaker import BreakerRow, Permit

FULL = BreakerRow(
    name="anthropic",
    state="half_open",
    failures=7,
    generation=4,
    opened_at="2026-01-31T09:00:00.000000Z",
    reopens_at="2026-01-31T09:01:00.000000Z",
    reason="overloaded: 529 \N{LATIN SMALL LETTER E WITH ACUTE} 'quoted' -- ;",
    permits=(
        Permit(token="a" * 32, generation=4, expires_at="2026-01-31T09:02:00.000000Z"),
        Permit(token="b" * 32, generation=4, expires_at="2026-01-31T09:03:00.000000Z"),
    ),
    settings={"failure_threshold": 5, "reset_timeout_seconds": 60.0, "half_open_max_attempts": 2},
    changed_at="2026-01-31T09:01:30.000000Z",
)


class BreakerContract:
    """Mix in and give `breakers`, an empty store."""

    def test_a_breaker_that_nothing_happened_to_is_not_there(self, breakers):
        assert breakers.read("github") is None
        assert breakers.all() == ()

    def test_everything_about_a_breaker_comes_back(self, breakers):
        assert breakers.change("anthropic", lambda _row: FULL) == FULL

        assert breakers.read("anthropic") == FULL
        assert breakers.all() == (FULL,)

    def test_the_rule_gets_a_new_breaker_the_first_time_and_the_stored_one_after(self, breakers):
        given = []

        def count(row: BreakerRow) -> BreakerRow:
            given.append(row)
            return replace(row, failures=row.failures + 1)

        breakers.change("git", count)
        breakers.change("git", count)

        assert given == [BreakerRow(name="git"), BreakerRow(name="git", failures=1)]
        assert breakers.read("git").failures == 2

    def test_a_rule_that_changes_nothing_leaves_nothing(self, breakers):
        assert breakers.change("git", lambda row: row) == BreakerRow(name="git")

        assert breakers.read("git") is None

    def test_what_a_rule_raises_leaves_the_breaker_as_it_is(self, breakers):
        breakers.change("git", lambda row: replace(row, failures=1))

        def broken(row: BreakerRow) -> BreakerRow:
            raise LookupError(row.name)

        with pytest.raises(LookupError, match="git"):
            breakers.change("git", broken)
        with pytest.raises(LookupError, match="other"):
            breakers.change("other", broken)

        assert breakers.read("git").failures == 1
        assert breakers.read("other") is None

    def test_breakers_are_listed_by_name_whatever_the_language_of_the_server(self, breakers):
        for name in ("openai", "Zed", "anthropic", "a-b", "ab"):
            breakers.change(name, lambda row: replace(row, failures=1))

        assert [row.name for row in breakers.all()] == ["Zed", "a-b", "ab", "anthropic", "openai"]

    def test_changes_of_one_breaker_leave_the_others_alone(self, breakers):
        breakers.change("git", lambda row: replace(row, failures=3))
        breakers.change("github", lambda row: replace(row, failures=4))

        assert (breakers.read("git").failures, breakers.read("github").failures) == (3, 4)

    def test_no_change_is_lost_when_many_threads_change_one_breaker(self, breakers):
        start = threading.Barrier(6)

        def compete() -> None:
            start.wait()
            for _ in range(5):
                breakers.change("git", lambda row: replace(row, failures=row.failures + 1))

        threads = [threading.Thread(target=compete) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert breakers.read("git").failures == 30
