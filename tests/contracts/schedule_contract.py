"""
What every store of the schedule and of notifications must keep.

`leave(place)` moves the ends of claims back, where the clock that measures them cannot be turned.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from adws.adw_modules import timestamps
from adws.adw_modules.events import Event
from adws.adw_modules.schedule.store import Notice
from tests.contracts.worlds import make_owner

FIRST_DUE, NEXT_DUE = "2026-01-31T09:00:00.000000Z", "2026-01-31T09:05:00.000000Z"
SINCE = "2026-01-31T08:00:00.000000Z"


def notice(key: str = "1a2b3c4d.7.0", **changes) -> Notice:
    fields = {"kind": "failed", "title": "it failed", "text": "why", "adw_id": "1a2b3c4d", "channels": ("command",)}

    return Notice(key=key, **{**fields, **changes})


class ScheduleContract:
    """The fixtures `schedule`, `notifications` and `let_claims_end` are those of the place."""

    def claim(self, schedule, *, name="quota", due=FIRST_DUE, seen="", who="one", dead_token=None):
        return schedule.claim(
            name,
            spec="*/5 * * * *",
            due=due,
            seen=seen,
            owner=make_owner(who),
            ttl_seconds=60.0,
            dead_token=dead_token,
        )

    def test_an_entry_is_claimed_once_for_a_tick(self, schedule):
        assert self.claim(schedule) is not None
        assert self.claim(schedule, who="two") is None

    def test_what_is_claimed_is_seen_with_its_owner_and_its_end(self, schedule):
        tick = self.claim(schedule)

        (row,) = schedule.rows()

        assert (row.name, row.spec, row.last_due, row.status) == ("quota", "*/5 * * * *", "", "")
        assert row.owner == make_owner("one").to_text()
        assert row.token == tick.token
        assert 0.0 < row.seconds_left <= 60.0

    def test_a_tick_that_was_done_is_not_done_again(self, schedule):
        schedule.finish(self.claim(schedule), status="done", outcome="all is well")

        assert self.claim(schedule, who="two") is None
        (row,) = schedule.rows()
        assert (row.last_due, row.status, row.outcome, row.owner) == (FIRST_DUE, "done", "all is well", "")
        assert row.last_run

    def test_the_next_tick_is_for_whoever_has_seen_the_last_one(self, schedule):
        schedule.finish(self.claim(schedule), status="done", outcome="")

        assert self.claim(schedule, due=NEXT_DUE, seen=FIRST_DUE, who="two") is not None

    def test_entries_do_not_stand_in_each_others_way(self, schedule):
        assert self.claim(schedule, name="gc") is not None
        assert self.claim(schedule, name="quota") is not None
        assert [row.name for row in schedule.rows()] == ["gc", "quota"]

    def test_a_claim_that_has_ended_is_taken_over_and_the_tick_is_not_lost(self, schedule, let_claims_end):
        old = self.claim(schedule)
        let_claims_end()

        new = self.claim(schedule, who="two")

        assert new.token > old.token
        assert not schedule.finish(old, status="done", outcome="late")
        assert not schedule.renew(old, ttl_seconds=60.0)
        assert schedule.finish(new, status="done", outcome="in time")
        assert schedule.rows()[0].outcome == "in time"

    def test_the_claim_of_a_dead_owner_needs_not_be_waited_for(self, schedule):
        dead = self.claim(schedule)

        assert self.claim(schedule, who="two", dead_token=dead.token - 1) is None
        assert self.claim(schedule, who="two", dead_token=dead.token) is not None

    def test_a_claim_can_be_prolonged(self, schedule):
        tick = self.claim(schedule)

        assert schedule.renew(tick, ttl_seconds=3600.0)
        assert schedule.rows()[0].seconds_left > 3000.0

    def test_what_an_entry_remembers_is_there_the_next_time(self, schedule):
        schedule.finish(self.claim(schedule), status="done", outcome="", memo={"exceeded": ["disk"]})
        again = self.claim(schedule, due=NEXT_DUE, seen=FIRST_DUE)
        assert again.memo == {"exceeded": ["disk"]}

        schedule.finish(again, status="failed", outcome="it broke")
        assert schedule.rows()[0].memo == {"exceeded": ["disk"]}

    def test_what_is_told_comes_with_the_end_of_the_tick_or_not_at_all(self, schedule, notifications, let_claims_end):
        old = self.claim(schedule)
        let_claims_end()
        new = self.claim(schedule, who="two")

        schedule.finish(old, status="done", outcome="", notices=[notice("lost")])
        assert notifications.page() == ()

        schedule.finish(new, status="done", outcome="", notices=[notice("kept")])
        assert [row.key for row in notifications.page()] == ["kept"]

    def test_of_many_crons_at_once_one_gets_the_tick(self, schedule):
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(lambda number: self.claim(schedule, who=str(number)), range(16)))

        assert sum(tick is not None for tick in got) == 1

    # --- notifications -----------------------------------------------------------------------------------------

    def test_a_notice_is_one_row_for_each_channel_and_only_once(self, notifications):
        two = notice(channels=("command", "comment"))

        assert notifications.add([two]) == 2
        assert notifications.add([two, notice(channels=("http",))]) == 1
        assert [row.channel for row in notifications.page()] == ["http", "comment", "command"]
        assert notifications.page(limit=1)[0].status == "pending"

    def test_the_oldest_is_taken_first_and_by_one(self, notifications):
        notifications.add([notice("a"), notice("b")])

        taken = [notifications.take(ttl_seconds=60.0) for _ in range(3)]

        assert [row and row.key for row in taken] == ["a", "b", None]
        assert [row.attempts for row in taken[:2]] == [1, 1]

    def test_what_was_sent_is_not_taken_again(self, notifications, let_claims_end):
        notifications.add([notice()])
        row = notifications.take(ttl_seconds=60.0)

        assert notifications.settle(row, status="sent")
        let_claims_end()

        assert notifications.take(ttl_seconds=60.0) is None
        (kept,) = notifications.page()
        assert (kept.status, bool(kept.sent_at)) == ("sent", True)

    def test_what_failed_comes_again_when_its_time_has_come(self, notifications, clock):
        notifications.add([notice()])
        later = timestamps.to_text(clock.now() + timedelta(seconds=60))

        notifications.settle(notifications.take(ttl_seconds=60.0), status="pending", error="refused", not_before=later)
        assert notifications.take(ttl_seconds=60.0) is None
        clock.advance(61.0)

        again = notifications.take(ttl_seconds=60.0)
        assert (again.attempts, again.error) == (2, "refused")

    def test_what_whoever_took_it_died_with_is_taken_again_and_its_late_word_counts_nothing(
        self, notifications, let_claims_end
    ):
        notifications.add([notice()])
        old = notifications.take(ttl_seconds=60.0)
        let_claims_end()

        new = notifications.take(ttl_seconds=60.0)

        assert new.attempts == 2
        assert not notifications.settle(old, status="given_up")
        assert notifications.settle(new, status="sent")
        assert not notifications.settle(new, status="given_up")

    def test_of_many_at_once_each_row_is_taken_by_one(self, notifications):
        notifications.add([notice(str(number)) for number in range(12)])
        with ThreadPoolExecutor(6) as pool:
            taken = list(pool.map(lambda _: notifications.take(ttl_seconds=60.0), range(24)))

        keys = [row.key for row in taken if row is not None]
        assert sorted(keys, key=int) == [str(number) for number in range(12)]

    def test_old_ones_are_forgotten_unless_they_still_have_to_be_sent(self, notifications, clock):
        notifications.add([notice("sent"), notice("waiting")])
        notifications.settle(notifications.take(ttl_seconds=60.0), status="sent")
        clock.advance(100.0)

        assert notifications.forget_before(timestamps.to_text(clock.now())) == 1
        assert [row.key for row in notifications.page()] == ["waiting"]

    # --- events ------------------------------------------------------------------------------------------------

    def pick(self, event: Event) -> Notice | None:
        return notice(event.event_id) if event.event_type == "phase_failed" else None

    def event(self, number: int, event_type="phase_failed", created_at="2026-01-31T09:00:00.000000Z") -> Event:
        return Event(
            event_type=event_type,
            adw_id="1a2b3c4d",
            event_id=f"1a2b3c4d.{number}.0",
            revision=number,
            created_at=created_at,
            execution_id="1a2b3c4d",
        )

    def test_each_event_is_handed_over_once(self, notifications, store_events):
        store_events([self.event(1), self.event(2, "phase_completed"), self.event(3)])
        assert notifications.gather(self.pick, since=SINCE) == 2
        assert notifications.gather(self.pick, since=SINCE) == 0

        store_events([self.event(4)])
        assert notifications.gather(self.pick, since=SINCE) == 1
        assert [row.key for row in notifications.page()] == ["1a2b3c4d.4.0", "1a2b3c4d.3.0", "1a2b3c4d.1.0"]

    def test_the_first_look_leaves_alone_what_is_long_past(self, notifications, store_events):
        store_events([self.event(1, created_at="2025-01-01T00:00:00.000000Z"), self.event(2)])

        assert notifications.gather(self.pick, since=SINCE) == 1
        assert [row.key for row in notifications.page()] == ["1a2b3c4d.2.0"]

    def test_events_of_a_home_where_nothing_happened_yet_are_handed_over_later(self, notifications, store_events):
        assert notifications.gather(self.pick, since=SINCE) == 0
        store_events([self.event(1)])

        assert notifications.gather(self.pick, since=SINCE) == 1

    def test_what_cannot_be_picked_is_not_passed_over(self, notifications, store_events):
        store_events([self.event(1)])

        def broken(event: Event) -> Notice | None:
            raise RuntimeError(event.event_id)

        with contextlib.suppress(RuntimeError):
            notifications.gather(broken, since=SINCE)

        assert notifications.gather(self.pick, since=SINCE) == 1

    def test_however_many_look_at_once_each_event_makes_one_row(self, notifications, store_events):
        store_events([self.event(number) for number in range(1, 1201)])

        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda _: notifications.gather(self.pick, since=SINCE), range(4)))

        assert sum(made) == 1200
        assert len(notifications.page(limit=2000)) == 1200
