"""After a crash only what is proven to be of a recorded process is ended, and what was found is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.interfaces import ProcessRecord
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.process.tree import TOKEN_VARIABLE, ProcessEnding, ProcessTree, end_recorded
from adws.testing import FakeClock
from tests.integration.process_lab import is_alive

#: Says "ready", and ignores what asks it to end.
#: Starts a daemon that ignores what asks it to end, and says its pid.
PARENT = """
import os, signal
ready, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, {handler})
    os.write(tell, str(os.getpid()).encode())
    while True:
        signal.pause()
print(int(os.read(ready, 20)), flush=True)
{then}
"""


class HastyClock(FakeClock):
    """A clock on which a second passes whenever it is looked at."""

    def monotonic(self) -> float:
        self.advance(1)
        return super().monotonic()


@dataclass
class Crashed:
    """Processes as a dead adw left them, and the record of the first."""

    processes: SystemProcesses = field(default_factory=lambda: SystemProcesses(clock=SystemClock()))
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *argv: str) -> ProcessRecord:
        identity = self.processes.me("process")
        child = subprocess.Popen(
            argv,
            env={**os.environ, TOKEN_VARIABLE: identity.token},
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.children.append(child)
        seen = self.processes.observe(child.pid)

        return ProcessRecord(
            token=identity.token,
            identity=replace(identity, pid=child.pid, start_ticks=seen.start_ticks),
            argv=argv,
            started_at="2026-01-31T09:00:00.000000Z",
        )

    def line(self) -> str:
        return self.children[-1].stdout.readline().strip()

    def echo(self, text: str) -> str:
        """Return what the last process, a `cat`, makes of *text*: a signal that was sent before ends it first."""
        self.children[-1].stdin.write(f"{text}\n")
        self.children[-1].stdin.flush()
        return self.line()

    def end(self, record: ProcessRecord, **changes) -> ProcessEnding:
        parts = {"clock": FakeClock(), "processes": self.processes, **changes}
        return end_recorded(record, **parts)

    def clear(self) -> None:
        for child in self.children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


@pytest.fixture
def crashed() -> Iterator[Crashed]:
    world = Crashed()
    yield world
    world.clear()


def test_a_recorded_process_that_still_runs_is_asked_to_end(crashed):
    record = crashed.start("sleep", "1000")

    ending = crashed.end(record)

    assert ending.is_certain
    assert ending.ended == (f"{record.identity.pid} (sleep)",)
    assert ending.left == ()
    assert crashed.children[0].wait() == -signal.SIGTERM


@pytest.mark.parametrize("then", ["", "input()"], ids=["its-leader-is-gone", "its-leader-runs"])
def test_a_daemon_in_another_session_is_ended_too(crashed, then):
    record = crashed.start(sys.executable, "-c", PARENT.format(handler="signal.SIG_IGN", then=then))
    daemon = int(crashed.line())
    if not then:
        crashed.children[0].wait()

    ending = crashed.end(record, clock=HastyClock(), grace_seconds=3)

    assert ending.is_certain
    assert not is_alive(daemon)
    assert any(name.startswith(f"{daemon} ") for name in ending.ended)
    assert ("gone" in ending.evidence) == (not then)


def test_a_process_that_is_gone_is_certain_and_nothing_is_ended(crashed):
    record = crashed.start("true")
    crashed.children[0].wait()

    ending = crashed.end(record)

    assert (ending.is_certain, ending.ended, ending.left) == (True, (), ())


def test_a_reused_pid_is_never_signalled(crashed):
    """
    Somebody else has the number now: the start time is another, and the token too.
    """
    record = crashed.start("sleep", "1000")
    stranger = replace(record, token="e" * 32, identity=replace(record.identity, start_ticks=1))

    ending = crashed.end(stranger)

    assert ending.ended == ()
    assert is_alive(record.identity.pid)


def test_a_number_that_changed_hands_after_the_look_is_not_signalled(crashed):
    """
    Between the look and the signal a process may end and its number be given away: the start time is looked at again.
    """
    record = crashed.start("cat")
    tree = ProcessTree(crashed.processes, record.identity, token=record.token)
    (member,) = tree.members()

    tree.ask([replace(member, start_ticks=member.start_ticks + 1)])
    assert crashed.echo("still here") == "still here"

    tree.ask([member])
    assert crashed.children[0].wait() == -signal.SIGTERM


def test_a_leader_that_somebody_else_collected_is_not_signalled_by_its_group(crashed):
    record = crashed.start("cat")
    tree = ProcessTree(crashed.processes, record.identity, token=record.token, is_child=True)

    tree.leader_is_lost()
    tree.ask_group()

    assert crashed.echo("still here") == "still here"


#: No process has it: it is above the largest there can be.
NO_PID = 2**22 + 1


def test_who_was_there_before_the_leader_does_not_belong_to_it(crashed):
    record = crashed.start("sleep", "1000")
    later = replace(record.identity, pid=NO_PID, start_ticks=record.identity.start_ticks + 1)

    assert ProcessTree(crashed.processes, later, token=record.token).members() == ()


def test_the_session_of_a_leader_that_is_gone_proves_nothing(crashed):
    """
    Its number may be the session of somebody else by now.
    """
    record = crashed.start("sleep", "1000")
    stranger = replace(record, token="e" * 32, identity=replace(record.identity, start_ticks=2))

    assert ProcessTree(crashed.processes, stranger.identity, token=stranger.token).members() == ()


@pytest.mark.parametrize(
    ("change", "is_certain", "words"),
    [
        ({"machine": "f" * 32}, False, "not this machine"),
        ({"machine": ""}, False, "not this machine"),
        ({"boot_id": "another"}, True, "started again"),
        ({"boot_id": ""}, False, "cannot be told"),
        ({"pid_namespace": "pid:[1]"}, False, "namespace"),
        ({"start_ticks": 0}, False, "not say enough"),
        ({"pid": 1}, False, "not say enough"),
    ],
)
def test_nothing_is_signalled_unless_machine_boot_and_namespace_are_those_of_the_record(
    crashed, change, is_certain, words
):
    record = crashed.start("sleep", "1000")

    ending = crashed.end(replace(record, identity=replace(record.identity, **change)))

    assert (ending.is_certain, ending.ended) == (is_certain, ())
    assert words in ending.evidence
    assert is_alive(record.identity.pid)


def test_a_short_token_finds_nobody(crashed):
    record = crashed.start("sleep", "1000")

    assert "not say enough" in crashed.end(replace(record, token="")).evidence
    assert is_alive(record.identity.pid)


def test_without_proc_nothing_recorded_is_signalled(crashed, tmp_path):
    record = crashed.start("sleep", "1000")
    blind = SystemProcesses(clock=SystemClock(), root=tmp_path)

    ending = crashed.end(record, processes=blind)

    assert (ending.is_certain, ending.ended) == (False, ())
    assert is_alive(record.identity.pid)


def test_adw_never_ends_itself_nor_what_it_runs_in(crashed):
    """
    A recovery that is run by hand inside of an agent must not end its own shell.
    """
    me = crashed.processes.me("process")
    record = ProcessRecord(token=me.token, identity=me, argv=(), started_at="")
    parent = crashed.processes.stat(os.getppid())
    above = replace(record, identity=replace(me, pid=parent.pid, start_ticks=parent.start_ticks))
    crashed.start("cat")

    assert "this process" in crashed.end(record).evidence
    assert "this process" in crashed.end(above).evidence
    assert crashed.echo("still there") == "still there"
    assert os.getpid() not in {s.pid for s in ProcessTree(crashed.processes, above.identity, token=me.token).members()}
    assert not crashed.end(record).is_certain
