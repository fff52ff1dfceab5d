"""Owning workflows from real processes, which are killed, stopped and let run against each other."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adws.adw_modules.errors import Fenced, IssueLocked, WorkflowBusy
from tests.integration import ownership_worker
from tests.integration.ownership_worker import ID, count_up, new_document, ownership

HOMES = pytest.mark.parametrize("home", ["files", "database"])


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def start(root):
    """Start a worker; whatever still runs at the end is ended."""
    running = []

    def run(mode: str, home: str = "files") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, ownership_worker.__file__, str(root), mode, home],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        running.append(process)
        return process

    yield run
    for process in running:
        with process:
            process.kill()


def created(root: Path, home: str):
    owner = ownership(root, home=home)
    with owner.create(new_document()):
        pass
    return owner


@HOMES
def test_a_killed_owner_is_succeeded_at_once(root, start, home):
    owner = created(root, home)
    worker = start("hold", home)
    assert worker.stdout.readline() == "owned\n"
    with pytest.raises(WorkflowBusy, match=rf"worker {worker.pid}@.*\(alive, its lease ends in"), owner.own(ID):
        pass

    worker.kill()
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)

    with owner.own(ID) as owned:
        assert (owned.lease.fence, owned.document.fence) == (3, 3)
        assert owned.document.model_extra["counter"] == 1
        count_up(owned)
    assert owner.store.load(ID).document.model_extra["counter"] == 2


@HOMES
def test_a_stopped_owner_is_succeeded_when_its_lease_is_over(root, start, home):
    created(root, home)
    worker = start("hold", home)
    worker.stdout.readline()
    worker.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)

    with pytest.raises(WorkflowBusy), ownership(root, home=home, offset=29.0).own(ID):
        pass
    with ownership(root, home=home, offset=31.0).own(ID) as owned:
        count_up(owned)
        assert owned.document.model_extra["counter"] == 2

        worker.send_signal(signal.SIGCONT)
        worker.stdin.write("go on\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "Fenced\n"
        count_up(owned)


def test_an_owner_stopped_at_any_call_of_a_write_never_overwrites_its_successor(root, start):
    """
    The write of the stopped owner was done before, and counts, or it is refused: at every place where it can stop.
    """
    created(root, "files")
    worker = start("stop")
    taker = ownership(root, offset=31.0)
    expected, outcomes, reached = 0, [], "stopped"
    while reached == "stopped":
        place = len(outcomes) + 1
        worker.stdin.write(f"{place}\n")
        worker.stdin.flush()
        if _is_stopped(worker):
            with taker.own(ID) as owned:
                count_up(owned)
            expected += 1
            worker.send_signal(signal.SIGCONT)
        first, again, reached = worker.stdout.readline().split()
        expected += (first == "saved") + (again == "saved")
        assert taker.store.load(ID).document.model_extra["counter"] == expected, f"lost an update at place {place}"
        assert again != "saved" or reached == "ran", f"wrote after it was succeeded, stopped at place {place}"
        outcomes.append(first)

    assert (first, again) == ("saved", "saved"), "not stopped, it may write"
    assert len(outcomes) > 20
    assert set(outcomes) == {"Fenced", "saved"}, "places before and after the rename were tried"
    assert not [path for path in (root / ID).iterdir() if ".tmp." in path.name and path.is_file()]


def _is_stopped(worker: subprocess.Popen[str]) -> bool:
    """Wait until *worker* stops, which is True, or answers."""
    while True:
        if os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOHANG) is not None:
            return True
        if select.select([worker.stdout], [], [], 0.001)[0]:
            return False


@HOMES
def test_contending_processes_lose_no_update(root, start, home):
    owner = created(root, home)
    workers = [start("contend", home) for _ in range(8)]
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    assert [worker.stdout.readline() for worker in workers] == ["done\n"] * 8

    document = owner.store.load(ID).document
    assert document.model_extra["counter"] == 160
    assert document.revision == 161, "no update came twice, and no clean hand-over wrote anything"
    assert document.fence == 161


def test_of_two_workflows_for_one_issue_one_is_created(root):
    created(root, "files")
    with pytest.raises(IssueLocked), ownership(root).create(new_document("5e6f7a8b")):
        pass

    assert not ownership(root).store.exists("5e6f7a8b")
    assert [lock.adw_id for lock in ownership(root).release_finished_locks()] == []


def test_a_finished_workflow_frees_its_issue_for_the_next(root):
    owner = created(root, "files")
    with owner.own(ID) as owned:
        owned.save(owned.document.model_copy(update={"current_state": "abandoned"}))
    with ownership(root).create(new_document("5e6f7a8b")) as owned:
        assert owned.document.issue_number == 42


def test_left_overs_of_a_takeover_are_swept_by_the_next_clean_owner(root, start):
    created(root, "files")
    worker = start("hold")
    worker.stdout.readline()
    worker.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
    with ownership(root, offset=31.0).own(ID):
        pass
    assert _tombstones(root) != []

    worker.kill()
    worker.wait()
    with ownership(root, offset=31.0).own(ID):
        pass
    assert _tombstones(root) == []


def _tombstones(root: Path) -> list[Path]:
    return [path for path in (root / ID).iterdir() if path.is_dir()]


def test_a_library_caller_that_kept_an_old_handle_is_refused(root):
    """In one process too: a hung thread whose lease was over comes back."""
    created(root, "files")
    block = ownership(root).own(ID)
    late = block.__enter__()
    with ownership(root, offset=31.0).own(ID) as owned:
        count_up(owned)
    with pytest.raises(Fenced):
        count_up(late)
    block.__exit__(None, None, None)
    assert ownership(root).store.load(ID).document.model_extra["counter"] == 1
