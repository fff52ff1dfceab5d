"""Telling open pages that they are old: one look for all, each hears of its topic only, nobody is kept at the end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from adws.adw_modules.errors import DatabaseUnavailable
from adws.web.dashboard import live as dashboard_live
from adws.web.dashboard.live import Live, stream

PATIENCE = 30.0


class Changes:
    """What changed, as a test says."""

    def __init__(self) -> None:
        self.marks_now: dict[str, str] = {}
        self.is_changed = True
        self.looks: list[set[str]] = []
        self.is_broken = False
        self.is_closed = False
        self.looked = threading.Event()

    def has_changed(self) -> bool:
        changed, self.is_changed = self.is_changed, False
        return changed

    def marks(self, topics):
        self.looked.set()
        if self.is_broken:
            raise DatabaseUnavailable("gone")
        self.looks.append(set(topics))
        return {topic: self.marks_now.get(topic, "first") for topic in topics}

    def change(self, topic: str, mark: str) -> None:
        self.marks_now[topic] = mark
        self.is_changed = True

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def changes():
    return Changes()


@pytest.fixture
def live(changes, monkeypatch):
    """One that looks when a test says so, and never by itself."""
    monkeypatch.setattr(Live, "_watch", lambda _self: None)
    return Live(lambda: changes, most=3)


async def heard(said, count: int) -> list[str]:
    return [await asyncio.wait_for(anext(said), PATIENCE) for _ in range(count)]


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario, PATIENCE))


def test_a_listener_is_notified_of_its_own_topic_only(live, changes):
    async def scenario():
        home, one = live.join("home"), live.join("workflow:1")
        live.look()
        assert (home.woken.is_set(), one.woken.is_set()) == (False, False), "woken from the loop, not at once"
        await asyncio.sleep(0)
        assert (home.woken.is_set(), one.woken.is_set()) == (True, True)
        home.woken.clear()
        one.woken.clear()
        changes.change("workflow:1", "second")
        live.look()
        await asyncio.sleep(0)
        assert (home.woken.is_set(), one.woken.is_set()) == (False, True)

    run(scenario())


def test_while_nothing_is_written_nothing_is_read_however_many_listen(live, changes):
    async def scenario():
        for _ in range(3):
            live.join("home")
        live.look()
        for _ in range(5):
            live.look()
        assert changes.looks == [{"home"}]
        changes.change("home", "second")
        live.look()
        assert len(changes.looks) == 2

    run(scenario())


def test_a_topic_that_nobody_had_is_looked_at_though_nothing_was_written(live, changes):
    async def scenario():
        live.join("home")
        live.look()
        live.join("workflow:1")
        live.look()
        assert changes.looks == [{"home"}, {"home", "workflow:1"}]
        assert live.mark_of("workflow:1") == "first"
        assert live.mark_of("workflow:2") == ""

    run(scenario())


def test_a_change_is_not_lost_when_the_database_did_not_answer_right_then(live, changes):
    async def scenario():
        live.join("home")
        live.look()
        changes.change("home", "second")
        changes.is_broken = True
        with pytest.raises(DatabaseUnavailable):
            live.look()
        changes.is_broken = False
        live.look()
        assert live.mark_of("home") == "second"

    run(scenario())


def test_a_stream_says_that_it_is_there_and_ends_with_the_login(live, monkeypatch):
    monkeypatch.setattr(dashboard_live, "HEARTBEAT_SECONDS", 0.0)
    logged_in = [True]

    async def scenario():
        said = stream(live, live.join("home"), lambda: logged_in[0])
        assert await heard(said, 3) == ["retry: 5000\n\n", ": still here\n\n", ": still here\n\n"]
        logged_in[0] = False
        with pytest.raises(StopAsyncIteration):
            await heard(said, 1)
        assert live._listeners == set()

    run(scenario())


def test_a_stream_ends_after_its_time(live, monkeypatch):
    monkeypatch.setattr(dashboard_live, "LONGEST_SECONDS", -1.0)

    async def scenario():
        said = stream(live, live.join("home"), lambda: True)
        await heard(said, 1)
        with pytest.raises(StopAsyncIteration):
            await heard(said, 1)

    run(scenario())


def test_a_listener_whose_loop_is_closed_does_not_disturb_others(live):
    async def scenario():
        live.join("home")

    run(scenario())
    live.look()
    live.drain()
