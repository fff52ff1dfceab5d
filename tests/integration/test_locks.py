"""The file lock of a worker on a real disk, between real processes; and issue numbers as people give them."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys

import pytest

from adws.adw_modules import durable_file
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.errors import InvalidAdwId, LockUnavailable, UnsafePath, UsageError
from adws.adw_modules.ownership.issue_locks import acquire_lock, check_issue_number, release_lock, verify_lock_ownership
from adws.adw_modules.ownership.local_lock import LocalLock
from adws.adw_modules.store.files import FileStateStore

HOLD = """
import sys
from pathlib import Path
from adws.adw_modules.ownership.local_lock import LocalLock
lock = LocalLock(Path(sys.argv[1]))
print(lock.try_hold("1a2b3c4d"), flush=True)
sys.stdin.readline()
"""

HOLD_AND_START_A_CHILD = """
import subprocess, sys
from pathlib import Path
from adws.adw_modules.ownership.local_lock import LocalLock
lock = LocalLock(Path(sys.argv[1]))
held = lock.try_hold("1a2b3c4d")
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False)
print(held, child.pid, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def start(root):
    """Start a script with *root*; whatever still runs at the end is ended."""
    running = []

    def run(script: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        return process

    yield run
    for process in running:
        with process:
            process.kill()


def test_the_kernel_frees_the_lock_of_a_killed_holder(root, start):
    holder = start(HOLD)
    assert holder.stdout.readline() == "True\n"
    lock = LocalLock(root)
    assert not lock.try_hold("1a2b3c4d")

    holder.kill()
    holder.wait()

    assert lock.try_hold("1a2b3c4d")


def test_a_stopped_holder_keeps_the_lock(root, start):
    holder = start(HOLD)
    holder.stdout.readline()
    holder.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)

    assert LocalLock(root).is_held("1a2b3c4d")


def test_a_child_that_outlives_its_worker_does_not_keep_the_lock(root, start):
    """An agent inherits descriptors that are not closed on exec; this one must be."""
    holder = start(HOLD_AND_START_A_CHILD)
    held, child = holder.stdout.readline().split()
    assert held == "True"
    os.kill(holder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)

    os.kill(int(child), 0)  # raises when the child has ended, and then this test would show nothing
    assert LocalLock(root).try_hold("1a2b3c4d")


def test_the_lock_file_is_never_unlinked_and_for_its_owner_alone(root):
    """A file unlinked on release lets two processes hold two files of one name."""
    lock, path = LocalLock(root), root / "1a2b3c4d" / ".lock"
    lock.try_hold("1a2b3c4d")
    with path.open() as first:  # kept open: else a new file may get the number of the old one
        lock.let_go("1a2b3c4d")
        lock.is_held("1a2b3c4d")
        lock.try_hold("1a2b3c4d")

        assert os.path.samestat(path.stat(), os.fstat(first.fileno()))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_looking_at_a_lock_makes_no_file(root):
    assert not LocalLock(root).is_held("1a2b3c4d")
    assert not root.exists()


@pytest.mark.parametrize("name", ["1a2b3c4d", "1a2b3c4d/.lock"])
def test_a_symbolic_link_is_refused(root, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (root / name).parent.mkdir(parents=True)
    (root / name).symlink_to(elsewhere if name == "1a2b3c4d" else elsewhere / "victim")

    with pytest.raises(UnsafePath):
        LocalLock(root).try_hold("1a2b3c4d")
    assert list(elsewhere.iterdir()) == []


def test_a_disk_without_flock_is_refused_in_one_sentence(root, monkeypatch):
    """No silent soft lock: that one would outlive its holder."""

    def no_locks(*_: object) -> bool:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", no_locks)

    with pytest.raises(LockUnavailable, match=r"cannot lock .*1a2b3c4d/\.lock: Function not implemented; adw needs"):
        LocalLock(root).try_hold("1a2b3c4d")


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "state").write_text("a file, not a directory")

    with pytest.raises((LockUnavailable, UnsafePath), match="state"):
        LocalLock(tmp_path / "state").try_hold("1a2b3c4d")


def test_the_directory_of_a_new_workflow_is_synced_with_its_document(root, monkeypatch):
    synced = []
    root.mkdir()
    monkeypatch.setattr(durable_file, "sync_directory_at", synced.append)
    LocalLock(root).try_hold("1a2b3c4d")
    assert synced == []

    moment = "2026-01-31T09:00:00.000000Z"
    document = WorkflowDocument(adw_id="1a2b3c4d", issue_number=1, created_at=moment, updated_at=moment)
    FileStateStore(root, clock=SystemClock()).create(document)
    assert synced == [str(root)]


class RecordingLocks:
    """Issue locks that only tell what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str, str]] = []

    def acquire(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        self.asked.append(("acquire", issue_number, adw_id, repository))
        return True

    def verify(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        self.asked.append(("verify", issue_number, adw_id, repository))
        return True

    def release(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        self.asked.append(("release", issue_number, adw_id, repository))
        return True


def test_issue_numbers_may_be_numbers_or_digits_and_repositories_are_kept_apart():
    locks = RecordingLocks()

    assert acquire_lock("42", "1a2b3c4d", locks=locks)
    assert verify_lock_ownership(42, "1a2b3c4d", "octo/cat", locks=locks)
    assert release_lock(42, "1a2b3c4d", None, locks=locks)
    assert locks.asked == [
        ("acquire", 42, "1a2b3c4d", ""),
        ("verify", 42, "1a2b3c4d", "octo/cat"),
        ("release", 42, "1a2b3c4d", ""),
    ]


@pytest.mark.parametrize("number", [0, -1, "", "#42", "4 2", "042", "٤٢", 4.2, None, True, "9" * 19])
def test_what_is_not_an_issue_number_is_refused_in_one_sentence(number):
    with pytest.raises(UsageError, match="is not an issue number: use a whole number from 1 up, such as 42"):
        check_issue_number(number)


@pytest.mark.parametrize("call", [acquire_lock, verify_lock_ownership, release_lock])
def test_no_call_lets_a_bad_id_through(call):
    locks = RecordingLocks()
    with pytest.raises(InvalidAdwId):
        call(42, "../../etc", locks=locks)
    assert locks.asked == []


@pytest.mark.parametrize("module", ["adws.adw_modules.ownership.issue_locks", "adws.adw_modules.process.identity"])
def test_the_calls_do_not_load_sqlalchemy(module):
    script = f"import sys, {module}; print([m for m in ('sqlalchemy', 'alembic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
