"""The workers beside the server: started, started again with patience, ended."""

from __future__ import annotations

import pytest

from adws.testing import FakeClock
from adws.web import server
from adws.web.server import LONGEST_WAIT_SECONDS, STEADY_SECONDS, Supervisor


class FakeChild:
    """A worker that ends when the test says so."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None
        self.told: list[str] = []

    def exit_code(self) -> int | None:
        return self.code

    def ask_to_end(self) -> None:
        self.told.append("end")

    def kill(self) -> None:
        self.told.append("kill")
        self.code = -9


class Lab:
    def __init__(self, count: int = 1) -> None:
        self.clock = FakeClock()
        self.children: list[FakeChild] = []
        self.trouble: OSError | None = None
        self.said: list[str] = []
        self.supervisor = Supervisor(self._start, count=count, clock=self.clock, say=self.said.append)

    def _start(self) -> FakeChild:
        if self.trouble:
            raise self.trouble
        self.children.append(FakeChild(len(self.children) + 1))
        return self.children[-1]

    def watch(self, seconds: float, step: float = 0.5) -> None:
        """Let time pass, with a look at the workers every now and then."""
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self.supervisor.tick()
            self.clock.advance(step)


def test_a_worker_that_ended_is_started_again_and_the_others_are_left_alone():
    lab = Lab(2)
    lab.supervisor.tick()
    lab.children[0].code = 3
    lab.supervisor.tick()
    assert lab.supervisor.counts() == (2, 1)

    lab.watch(2)

    assert lab.supervisor.counts() == (2, 2)
    assert len(lab.children) == 3
    assert "worker 1 ended with 3" in lab.said[0]


def test_a_worker_that_keeps_ending_is_not_started_in_a_tight_loop():
    """A minute apart in the end: in an hour 65 starts at most, not thousands."""
    lab = Lab()
    for _ in range(7200):
        lab.supervisor.tick()
        if lab.children:
            lab.children[-1].code = 1
        lab.clock.advance(0.5)

    assert 60 <= len(lab.children) <= 70


def test_a_worker_that_cannot_be_started_is_retried_with_the_same_delays():
    lab = Lab()
    lab.trouble = OSError(12, "Cannot allocate memory")
    lab.watch(10)
    assert lab.said[0] == "worker 1 could not be started: Cannot allocate memory; it is started again in 1 s"
    assert 2 <= len(lab.said) <= 5
    lab.trouble = None
    lab.watch(LONGEST_WAIT_SECONDS)

    assert lab.supervisor.counts() == (1, 1)


def test_a_worker_that_was_well_for_long_is_started_again_soon():
    lab = Lab()
    for _ in range(5):
        lab.watch(LONGEST_WAIT_SECONDS + 1)
        lab.children[-1].code = 1
        lab.supervisor.tick()

    assert {line.rpartition(" in ")[2] for line in lab.said} == {"1 s"}
    assert STEADY_SECONDS <= LONGEST_WAIT_SECONDS


def test_told_to_end_every_worker_is_asked_once_and_none_is_started():
    lab = Lab(2)
    lab.supervisor.tick()
    lab.supervisor.drain()
    lab.children[0].code = 0
    lab.watch(100)

    assert [child.told for child in lab.children] == [["end"], ["end"]]
    assert lab.supervisor.counts() == (2, 1)
    assert lab.said == []


def test_killed_all_are_gone():
    lab = Lab(2)
    lab.supervisor.tick()
    lab.supervisor.kill()
    lab.watch(5)

    assert lab.supervisor.counts() == (2, 0)
    assert [child.told for child in lab.children] == [["kill"], ["kill"]]


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("127.0.0.1", 8001, "http://127.0.0.1:8001"),
        ("0.0.0.0", 80, "http://127.0.0.1:80"),
        ("::", 80, "http://[::1]:80"),
        ("::1", 80, "http://[::1]:80"),
        ("build-1", 80, "http://build-1:80"),
    ],
)
def test_people_get_an_address_that_leads_somewhere(host, port, address):
    assert server.url_for_people(server.url_of(host, port)) == address
