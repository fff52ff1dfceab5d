"""Processes are known by machine, boot, namespace, pid and start time: tried on real and on made-up /proc trees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from adws.adw_modules.interfaces import OwnerRecord, Verdict
from adws.adw_modules.process.identity import SystemProcesses, parse_stat


class Tokens:
    """The one thing of a clock that an owner record needs."""

    def __init__(self) -> None:
        self._count = 0

    def token(self) -> str:
        self._count += 1
        return f"{self._count:032x}"


class FakeProc:
    """A /proc that can be rebooted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine_file = root / "machine-id"
        self.machine_file.parent.mkdir(parents=True)
        self.machine_file.write_text("0123456789abcdef\n")
        self.boot("boot-1")
        self.process(1, start_ticks=1)
        self.process(os.getpid(), start_ticks=77)
        (root / "self").symlink_to(str(os.getpid()))

    def boot(self, boot_id: str) -> None:
        place = self.root / "sys/kernel/random"
        place.mkdir(parents=True, exist_ok=True)
        (place / "boot_id").write_text(boot_id + "\n")

    def process(self, pid: int, *, start_ticks: int, state: str = "S", command: str = "python") -> None:
        place = self.root / str(pid)
        (place / "ns").mkdir(parents=True, exist_ok=True)
        (place / "stat").write_text(f"{pid} ({command}) {state} " + "0 " * 18 + f"{start_ticks} 0 0\n")
        self.namespace(pid, "pid:[100]")

    def namespace(self, pid: int, name: str) -> None:
        link = self.root / str(pid) / "ns/pid"
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def gone(self, pid: int) -> None:
        (self.root / str(pid) / "stat").unlink()

    def processes(self, host: str = "builder") -> SystemProcesses:
        return SystemProcesses(clock=Tokens(), host=host, root=self.root, machine_file=self.machine_file)


@pytest.fixture
def proc(tmp_path):
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def owner(proc) -> OwnerRecord:
    proc.process(4711, start_ticks=5000)
    return replace(proc.processes().me("worker"), pid=4711, start_ticks=5000)


@pytest.fixture
def system():
    return SystemProcesses(clock=Tokens())


def test_this_process_is_alive(system):
    assert system.verdict(system.me("cli")) is Verdict.ALIVE


def test_every_record_has_a_token_of_its_own(system):
    assert system.me("cli").token != system.me("cli").token


def test_a_forked_child_is_another_owner_than_its_parent(system):
    parent = system.me("cli")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, system.me("cli").to_text().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        result = OwnerRecord.from_text(answer.read())
    os.waitpid(child, 0)

    assert result is not None
    assert (result.pid, result.boot_id, result.machine) == (child, parent.boot_id, parent.machine)
    assert result.start_ticks >= parent.start_ticks


def test_what_could_not_be_read_of_ourselves_is_looked_for_again(proc):
    processes = proc.processes()
    (proc.root / str(os.getpid()) / "stat").write_text("")
    assert processes.me("cli").start_ticks == 0

    proc.process(os.getpid(), start_ticks=77)

    assert [processes.me("cli").start_ticks, processes.me("cli").start_ticks] == [77, 77]


def test_a_killed_process_is_dead_before_and_after_it_is_collected(system):
    child = subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    with child:
        child.stdout.readline()
        record = replace(system.me("worker"), pid=child.pid, start_ticks=system.observe(child.pid).start_ticks)
        assert system.verdict(record) is Verdict.ALIVE

        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert system.verdict(record) is Verdict.ALIVE, "a stopped process lives"

        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert system.verdict(record) is Verdict.DEAD, "a zombie is dead"

    assert system.verdict(record) is Verdict.DEAD


def test_a_restart_of_the_machine_has_its_own_name(proc):
    processes = proc.processes()
    assert processes.boot_id == "boot-1"

    proc.boot("boot-2")
    assert processes.boot_id == "boot-2"


def hide_others(proc):
    proc.gone(4711)
    (proc.root / "1").rename(proc.root / "hidden")


def enter_namespace(proc):
    proc.gone(4711)
    proc.namespace(os.getpid(), "pid:[200]")


def show_the_host(proc):
    """With the /proc of the host in a container, our own number there is another process."""
    proc.gone(4711)
    (proc.root / "self").unlink()
    (proc.root / "self").symlink_to("1")


def clone_the_machine(proc):
    proc.gone(4711)
    proc.machine_file.write_text("another machine\n")


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        pytest.param(lambda proc: None, Verdict.ALIVE, id="runs"),
        pytest.param(lambda proc: proc.boot("boot-2"), Verdict.DEAD, id="reboot"),
        pytest.param(lambda proc: proc.process(4711, start_ticks=5001), Verdict.DEAD, id="reused-pid"),
        pytest.param(lambda proc: proc.process(4711, start_ticks=5000, state="Z"), Verdict.DEAD, id="zombie"),
        pytest.param(lambda proc: proc.gone(4711), Verdict.DEAD, id="gone"),
        pytest.param(hide_others, Verdict.UNKNOWN, id="others-are-hidden"),
        pytest.param(enter_namespace, Verdict.UNKNOWN, id="another-pid-namespace"),
        pytest.param(show_the_host, Verdict.UNKNOWN, id="proc-of-another-namespace"),
        pytest.param(clone_the_machine, Verdict.UNKNOWN, id="another-machine-of-that-name"),
        pytest.param(
            lambda proc: (proc.root / "4711/stat").write_text("4711 (pyth"), Verdict.UNKNOWN, id="torn-stat-line"
        ),
    ],
)
def test_an_owner_is_judged_by_all_that_is_known_of_it(proc, owner, change, verdict):
    change(proc)

    assert proc.processes().verdict(owner) is verdict


def test_a_machine_with_the_same_identity_and_another_name_is_another_machine(proc, owner):
    proc.gone(4711)

    assert proc.processes(host="other-name").verdict(owner) is Verdict.UNKNOWN


def test_without_proc_nothing_is_known(tmp_path):
    """As on macOS: a record can be made, and its owner is never called alive or dead."""
    processes = SystemProcesses(clock=Tokens(), root=tmp_path / "none", machine_file=tmp_path / "no-machine-id")
    record = processes.me("cli")

    assert (record.pid, record.boot_id, record.start_ticks) == (os.getpid(), "", 0)
    assert processes.verdict(record) is Verdict.UNKNOWN


@pytest.mark.parametrize("pid", [0, -1])
def test_a_pid_that_no_process_can_have_proves_nothing(proc, owner, pid):
    assert proc.processes().verdict(replace(owner, pid=pid)) is Verdict.UNKNOWN


@pytest.mark.parametrize("command", ["python", "a b c", ") R 1 2 3 (", ":-) Z 9"])
def test_the_start_time_is_found_whatever_the_command_is_called(proc, command):
    proc.process(4711, start_ticks=5000, command=command)
    stat = parse_stat((proc.root / "4711/stat").read_text())

    assert (stat.pid, stat.start_ticks, stat.is_zombie) == (4711, 5000, False)


def test_no_record_is_unknown(system):
    assert system.verdict(None) is Verdict.UNKNOWN


def test_children_of_a_process_that_ends_while_it_is_looked_at_are_none(system, monkeypatch):
    """
    Its directory was there a moment ago: the next look raises, and that is no failure of the attempt.
    """

    def gone(*_args):
        raise ProcessLookupError

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", gone)
        patch.setattr(os, "scandir", gone)

        assert system.children(os.getpid()) == set()
