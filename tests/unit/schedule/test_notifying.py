"""People are told of each transition once by each channel, and nothing that goes wrong with it goes further."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.db import connection
from adws.adw_modules.errors import DatabaseUnavailable, NotifyFailed
from adws.adw_modules.events import Event
from adws.adw_modules.schedule.notify import Notifier, NotifyThread
from tests.homes import lab_home
from tests.unit.setting_cases import settings_with


class Post:
    """A channel that notes what it was given, and fails when it is told to."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.titles: list[str] = []

    def send(self, row) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.titles.append(row.title)


class Lab:
    def __init__(self) -> None:
        self.parts = lab_home()
        self.clock, self.book = self.parts.clock, self.parts.notifications
        self.happened = 0
        self.post = Post()
        self.flushed = 0

    def notifier(self, **changes) -> Notifier:
        return self.home(**changes).notifier

    def home(self, *, channels=None, notifier=Notifier, **settings: str) -> SimpleNamespace:
        """Return what the notifier is in; *settings* are those of the home and their texts."""
        place = SimpleNamespace(
            clock=self.clock,
            settings=settings_with(**settings),
            channels={"http": self.post} if channels is None else channels,
            notifications=self.book,
            flush_projection=self.flush,
        )
        place.notifier = notifier(place)
        return place

    def flush(self) -> None:
        self.flushed += 1

    def happen(self, status: str, adw_id: str = "1a2b3c4d", *, ago: float = 0.0) -> None:
        moment = timestamps.to_text(self.clock.now() - timedelta(seconds=ago))
        event = Event(
            event_type="state_changed",
            adw_id=adw_id,
            event_id=f"{adw_id}.{self.happened}.0",
            created_at=moment,
            status=status,
        )
        self.happened += 1
        with self.parts.database.write() as session:
            session.run_each(connection.EVENT_INSERT, [connection.event_params(event)])

    def go(self, notifier: Notifier):
        notifier.gather()
        return notifier.send()


@pytest.fixture
def lab():
    return Lab()


def test_each_transition_is_told_once_over_restarts(lab):
    lab.happen("failed")
    lab.go(lab.notifier())
    lab.happen("completed")
    lab.go(lab.notifier())
    lab.go(lab.notifier())

    assert lab.post.titles == ["workflow 1a2b3c4d failed", "workflow 1a2b3c4d is completed"]


def test_the_first_look_tells_of_the_last_hour_only_and_not_of_what_is_switched_off(lab):
    lab.happen("failed", "longago0", ago=7200.0)
    lab.happen("failed", "justnow0", ago=60.0)
    lab.happen("completed")

    lab.go(lab.notifier(notify_events="failed"))

    assert lab.post.titles == ["workflow justnow0 failed"]


@pytest.mark.parametrize("error", [NotifyFailed("no answer"), ValueError("a bug")], ids=["expected", "bug"])
def test_what_could_not_be_sent_is_tried_again_later_and_holds_nothing_else_up(lab, error):
    lab.post.errors = [error]
    lab.happen("failed")
    lab.happen("completed")

    assert (lab.go(lab.notifier())["pending"], lab.post.titles) == (1, ["workflow 1a2b3c4d is completed"])
    assert lab.go(lab.notifier())["sent"] == 0
    lab.clock.advance(61.0)

    assert lab.go(lab.notifier())["sent"] == 1
    assert lab.post.titles[-1] == "workflow 1a2b3c4d failed"


def test_after_a_few_tries_a_notice_is_given_up_with_its_reason(lab):
    lab.post.errors = [NotifyFailed("no answer")] * 99
    lab.happen("failed")
    for _ in range(10):
        lab.go(lab.notifier())
        lab.clock.advance(3600.0)

    (row,) = lab.book.page()
    assert (row.status, row.attempts, row.error) == ("given_up", 5, "no answer")
    assert len(lab.post.errors) == 94


def test_a_notice_that_kills_whoever_sends_it_is_given_up_too(lab):
    lab.happen("failed")
    lab.notifier().gather()
    for _ in range(5):
        lab.book.take(ttl_seconds=10.0)  # and never a word again
        lab.clock.advance(11.0)

    sent = lab.notifier().send()

    assert (sent["given_up"], lab.post.titles) == (1, [])
    assert "died" in lab.book.page()[0].error


def test_what_was_for_a_channel_that_is_gone_is_given_up(lab):
    lab.happen("failed")
    lab.notifier().gather()

    assert lab.notifier(channels={"command": lab.post}).send()["given_up"] == 1


def test_a_flood_is_sent_in_portions(lab):
    for number in range(60):
        lab.happen("failed", f"flood{number:03}")

    notifier = lab.notifier()

    assert [lab.go(notifier)["sent"], lab.go(notifier)["sent"]] == [50, 10]


def test_work_is_told_about_beside_it_and_never_hears_of_trouble(lab):
    class Gone(Notifier):
        def gather(self) -> int:
            raise DatabaseUnavailable("gone")

    broken = NotifyThread(lab.home(notifier=Gone))
    broken.poke()
    broken.close()

    lab.happen("failed")
    beside = NotifyThread(lab.home())
    beside.poke()
    beside.close()

    assert lab.post.titles == ["workflow 1a2b3c4d failed"]


def test_what_happens_while_the_last_notices_are_sent_is_told_too(lab):
    class Last(Notifier):
        def send(self):
            sent = super().send()
            if not beside._is_closing:  # the process ends now, and its last workflow with it
                beside._is_closing = True
                lab.happen("failed", "5e6f7a8b")
                beside.poke()
            return sent

    lab.happen("failed")
    beside = NotifyThread(lab.home(notifier=Last))
    beside.poke()
    beside._thread.join()

    assert lab.post.titles == ["workflow 1a2b3c4d failed", "workflow 5e6f7a8b failed"]
