"""
Cut the power under workers that carry workflows through worktrees, and look at what is shipped afterwards.

Run by test_crash_worktrees.py as a program of its own, so that forking is safe. The home, its repository and its
worktrees are on an ext4 of default make; the remote is not, it stands for another machine. A cut is the shutdown of
the file system, then every process that uses it is killed, then it is mounted again. In half of the cases the next
worker also finds another boot id. Prints one JSON object; `problems` is empty when all is well.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from adws import app as app_module
from adws.adw_modules.document import FrozenIssue
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.adw_modules.workflow.model import PhaseSpec, RetrySpec, WorkflowSpec
from adws.adw_modules.workspace import power_loss
from adws.config import load as config_load
from tests.crash.driver import cut_power, has_ended, mount, unmount
from tests.crash.engine_driver import UNEXPECTED

FILES = 10
OLD, NEW = "old line\n" * 40, "new line\n" * 40
#: How long each phase takes after it wrote its files, so that cuts fall into every part of the work.
WORK_SECONDS = 0.15
#: Seconds from the worktree to the end of a workflow that nobody cuts, and a little more.
WHOLE_SECONDS = 2.5
#: A run that is due later than this waits for something that the lab does not have.
SOON_SECONDS = 5.0
BUILD = f"""
import pathlib, time
for number in range({FILES}):
    pathlib.Path(f"old{{number}}.txt").write_text({NEW!r})
    pathlib.Path(f"new{{number}}.txt").write_text({NEW!r})
time.sleep({WORK_SECONDS})
"""


class Machine(SystemProcesses):
    """The processes of this machine, which has started as often as the test says."""

    boots = 0

    @property
    def boot_id(self) -> str:
        return f"{super().boot_id}-{self.boots}"


def phase(name: str, state: str, *command: str) -> PhaseSpec:
    """Return a phase that commits what it finds: one that may not write would be saved by having it discarded."""
    retry = RetrySpec(strategy="fixed", base_seconds=0.05, max_seconds=0.05)

    return PhaseSpec(
        name=name, state=state, runner="command", command=command, retry=retry, max_attempts=4, commits=True
    )


def definition(pause: str = "") -> WorkflowSpec:
    """
    Return plan, build, test, document and ship.

    With *pause*, a pipe, the test phase reads a line from it, and the plan phase syncs: then the worktree itself is
    on the disk, and what a cut takes away is the work of build.
    """
    plan = "sync -f ." if pause else f"sleep {WORK_SECONDS}"
    wait = f"read line < {pause}" if pause else f"sleep {WORK_SECONDS}"
    phases = (
        phase("plan", "planning", "sh", "-c", f"seq 100 > plan.md; {plan}"),
        phase("build", "building", sys.executable, "-c", BUILD),
        phase("test", "testing", "sh", "-c", f"date > tested.txt; {wait}"),
        phase("document", "documenting", "sh", "-c", f"seq 200 > notes.md; sleep {WORK_SECONDS}"),
        PhaseSpec(name="ship", state="shipping", runner="ship", retry=RetrySpec(base_seconds=0.05)),
    )

    return WorkflowSpec(name="cut", phases=phases)


class Lab:
    """A home on a file system of its own, whose power is cut."""

    def __init__(self, place: Path, store: str) -> None:
        self.image, self.mount_point, self.remote = place / "disk.img", place / "mnt", place / "remote.git"
        self.home, self.store = self.mount_point / "home", store
        self.mount_point.mkdir(parents=True)
        subprocess.run(["truncate", "-s", "512M", str(self.image)], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self.image)], check=True)
        mount(self.image, self.mount_point)
        self._make_repository()

    def _make_repository(self) -> None:
        subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", str(self.remote)], check=True)
        self.home.mkdir()
        for number in range(FILES):
            (self.home / f"old{number}.txt").write_text(OLD)
        (self.home / ".gitignore").write_text(".ports.env\nstate/\ntrees/\n")
        for command in (
            ("init", "-q", "--initial-branch=main"),
            ("config", "user.name", "Ada"),
            ("config", "user.email", "ada@example.com"),
            ("add", "-A"),
            ("commit", "-q", "-m", "Begin"),
            ("remote", "add", "origin", str(self.remote)),
            ("push", "-q", "origin", "main"),
        ):
            subprocess.run(["git", *command], cwd=self.home, check=True)
        with self.open() as app:
            app.database.close()
        os.sync()

    def open(self) -> app_module.Home:
        env = {
            "ADW_HOME": str(self.home),
            "ADW_STATE_STORE": self.store,
            "ADW_FORGE_KIND": "none",
            "ADW_QUOTA_MAX_WORKTREES": "1000",
            "ADW_QUOTA_MIN_FREE_DISK": "1",
            "ADW_QUOTA_MIN_FREE_MEMORY": "1",
            "ADW_LIMITS_MAX_ATTEMPTS": "1000",  # of workers with a run; each phase has a limit of its own
            "ADW_SANDBOX_MODE": "off",
        }
        app = app_module.open_home(config_load.load(env=env, cwd=self.home), role="worker")
        app.processes = Machine(clock=app.clock)

        return app

    def start(self, number: int, *, pause: str = "") -> str:
        issue = FrozenIssue(title="Add a fine thing", body="Please.")
        with self.open() as app:
            new = NewWorkflow(issue_number=number, max_total_attempts=None, spec=definition(pause), issue=issue)
            return app.workflow_creator.start(new).adw_id

    def work(self, acknowledge: Callable[[str], None] = lambda _phase: None) -> None:
        """Be a worker until nothing is due, retries included; *acknowledge* gets every phase that is complete."""
        with self.open() as app:

            def tell(_document, events) -> None:
                for event in events:
                    if event.event_type == "phase_completed":
                        acknowledge(event.node_name)

            app.tell = tell
            due: float | None = 0.0
            while due is not None and due < SOON_SECONDS:
                app.clock.sleep(due)
                app.worker(WorkerOptions(once=True, recover_seconds=3600.0)).run()
                due = app.runs.seconds_to_next()

    def forked(self) -> tuple[int, int]:
        """Start a worker; return its pid, and the pipe through which it names every phase that is complete."""
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid:
            os.close(write_end)
            return pid, read_end
        try:
            os.close(read_end)
            self.work(lambda name: os.write(write_end, f"{name}\n".encode()))
            os._exit(0)
        except BaseException as exc:  # noqa: BLE001 - a child must not go on as its parent
            # Also after a cut, before it is killed: the file system fails under it.
            os.write(2, f"worker {os.getpid()} broke: {type(exc).__name__}: {exc}\n".encode())
            os._exit(UNEXPECTED)

    def cut(self, pid: int) -> None:
        """Cut the power, end whatever uses the file system, and mount it again."""
        cut_power(self.mount_point)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.end_users()
        unmount(self.mount_point)
        if self.mount_point.is_mount():
            raise RuntimeError(f"{self.mount_point} is still in use: it cannot be mounted again")
        mount(self.image, self.mount_point)

    def end_users(self) -> None:
        """Kill the processes of phases whose worker is gone, known by what they have open on the file system."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid() and self._uses(entry):
                pid = int(entry.name)
                try:
                    watched = os.pidfd_open(pid)
                except ProcessLookupError:
                    continue
                try:
                    signal.pidfd_send_signal(watched, signal.SIGKILL)
                    select.select([watched], [], [], 10)
                except ProcessLookupError:
                    continue
                finally:
                    os.close(watched)

    def _uses(self, process: Path) -> bool:
        try:
            targets = [(process / "cwd").readlink(), *(link.readlink() for link in (process / "fd").iterdir())]
        except OSError:
            return False

        return any(target.is_relative_to(self.mount_point) for target in targets)

    def finish(self) -> str:
        """Let a new worker go on with what there is; return why it broke, "" when it did not."""
        pid, fd = self.forked()
        try:
            if not has_ended(pid, 120):
                os.kill(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        finally:
            os.close(fd)
        self.end_users()

        return "" if code == 0 else f"the next worker ended with {code}"

    def shipped(self, branch: str) -> dict[str, bytes]:
        """Return the files that the remote has on *branch*, with their content."""
        listed = self._git_of_remote("ls-tree", "-r", "--name-only", branch).decode().splitlines()

        return {name: self._git_of_remote("show", f"{branch}:{name}") for name in listed}

    def _git_of_remote(self, *args: str) -> bytes:
        return subprocess.run(["git", *args], cwd=self.remote, check=True, capture_output=True).stdout


def judge(lab: Lab, adw_id: str, acknowledged: list[str], attempts: dict[str, int]) -> tuple[str, list[str]]:
    """Return how a workflow ended whose worker was cut off, and what is wrong with that."""
    with lab.open() as app:
        document = app.store.load(adw_id).document
        broken = [f"{one.where}: {one.what}" for one in app.verifier.check()]
    problems = [f"verify: {what}" for what in broken]
    by_name = {record.name: record for record in document.phases}
    for name in acknowledged:
        record = by_name[name]
        if record.status != "complete" or len(record.attempts) != attempts.get(name, len(record.attempts)):
            problems.append(f"{name} was complete before the cut, and is {record.status} now: a lost phase")
    if document.current_state == "completed":
        files = lab.shipped(document.branch_name or "")
        wanted = {f"{kind}{number}.txt": NEW.encode() for kind in ("old", "new") for number in range(FILES)}
        wanted |= {"plan.md": b"".join(b"%d\n" % n for n in range(1, 101))}
        wanted |= {"notes.md": b"".join(b"%d\n" % n for n in range(1, 201))}
        problems += [f"{name} was shipped empty" for name, content in files.items() if not content]
        problems += [f"{name} was not shipped as it was built" for name in wanted if files.get(name) != wanted[name]]
        return "completed", problems
    reason = next((record.last_failure_reason for record in document.phases if record.status == "failed"), None)
    if document.current_state not in {"failed", "paused"} or not reason:
        problems.append(f"it is {document.current_state}, and nothing says why")

    return f"{document.current_state}: {reason}", problems


def one_cut(lab: Lab, number: int, seconds: float) -> tuple[str, list[str], bool]:
    """Cut the power *seconds* after the worktree appeared; return how it ended, what is wrong, whether it was cut."""
    adw_id = lab.start(number)
    pid, fd = lab.forked()
    tree = lab.home / "trees" / adw_id
    try:
        for _ in range(30_000):
            if tree.exists() or has_ended(pid, 0.002):
                break
        else:
            raise RuntimeError(f"{tree} was not made within a minute")
        was_cut = not has_ended(pid, seconds)
        # What counts was acknowledged before the cut: see `driver.power_cuts`.
        acknowledged = _read_lines(fd)
        if was_cut:
            lab.cut(pid)
        elif code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            raise RuntimeError(f"a worker ended with {code} before it was cut")
    finally:
        os.close(fd)
    with lab.open() as app:
        attempts = {record.name: len(record.attempts) for record in app.store.load(adw_id).document.phases}
    broke = lab.finish() if was_cut else ""
    ended, problems = judge(lab, adw_id, acknowledged, attempts)

    return ended, [*([broke] if broke else []), *problems], was_cut


def _read_lines(fd: int) -> list[str]:
    data = b""
    while select.select([fd], [], [], 0)[0]:
        chunk = os.read(fd, 65536)
        if not chunk:
            break
        data += chunk

    return data.decode().split()


def cuts(lab: Lab, count: int, seed: int) -> dict:
    """Cut the power *count* times, at random moments between the making of a worktree and the end of its workflow."""
    chance = random.Random(seed)
    done, completed, named, problems = 0, 0, [], []
    number = 0
    while done < count:
        number += 1
        seconds = chance.random() * WHOLE_SECONDS
        if chance.random() < 0.5:
            Machine.boots += 1
        ended, wrong, was_cut = one_cut(lab, number, seconds)
        done += was_cut
        if was_cut:
            completed += ended == "completed"
            named += [] if ended == "completed" else [f"cut {done} after {seconds:.2f} s: {ended}"]
        problems += [f"cut {done} after {seconds:.2f} s: {what}" for what in wrong]

    return {"cuts": done, "completed": completed, "named": named, "problems": problems}


def after_phase(lab: Lab, count: int, seed: int) -> dict:
    """Cut the power a moment after phase build was recorded complete, while the next phase runs, *count* times."""
    chance = random.Random(seed)
    completed, problems = 0, []
    for number in range(1, count + 1):
        pause = lab.mount_point.parent / f"pause{number}"
        os.mkfifo(pause)
        adw_id = lab.start(number, pause=str(pause))
        pid, fd = lab.forked()
        try:
            known: list[str] = []
            while "build" not in known:
                if not select.select([fd], [], [], 60)[0] or has_ended(pid, 0):
                    raise RuntimeError(f"build was not completed within a minute: {adw_id} has {known}")
                known += _read_lines(fd)
            has_ended(pid, 0.2 + chance.random() * 0.8)
            lab.cut(pid)
        finally:
            os.close(fd)
        if number % 2:
            Machine.boots += 1
        feeder = os.open(pause, os.O_RDWR)  # from here on the phase finds a line to read
        os.write(feeder, b"go\n" * FILES)
        broke = lab.finish()
        os.close(feeder)
        ended, wrong = judge(lab, adw_id, known, {})
        completed += ended == "completed"
        problems += [f"cut {number}: {what}" for what in (*([broke] if broke else []), *wrong)]

    return {"cuts": count, "completed": completed, "problems": problems}


def main() -> int:
    """Run one command and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("cuts", "after-phase"))
    parser.add_argument("place", type=Path)
    parser.add_argument("store", choices=("files", "database"))
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-sync", action="store_true", help="a build that neither syncs nor compares worktrees")
    given = parser.parse_args()
    logging.getLogger("adw").addHandler(logging.NullHandler())
    if given.without_sync:
        power_loss.sync_file_systems = lambda _paths: None
        power_loss.why_unclean = lambda *_facts: ""
    lab = Lab(given.place, given.store)
    try:
        result = {"cuts": cuts, "after-phase": after_phase}[given.command](lab, given.count, given.seed)
    finally:
        lab.end_users()
        unmount(lab.mount_point)
    sys.stdout.write(json.dumps(result) + "\n")

    return 0


if __name__ == "__main__":
    sys.exit(main())
