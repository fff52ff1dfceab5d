"""
Real workers on a home full of small workflows, killed and kept running by a supervisor; and what must be true after.

Every command of a workflow holds a file lock while it runs and writes down when it began and ended: so two commands of
one workflow at the same time, and an attempt that ran twice, are seen, whatever the documents say.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from adws import app as app_module
from adws.adw_modules.document import PhaseRecord
from adws.adw_modules.events import Event
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.workflow.model import PhaseSpec, RetrySpec, WorkflowSpec
from adws.config import load as config_load
from tests import warm

ROOT = Path(__file__).parents[2]
ADW = str(Path(sysconfig.get_path("scripts")) / "adw")
#: Far more than anything here takes; nobody waits for it unless something is broken.
PATIENCE = 120.0
#: More than any sequence of kills can use up: a storm is no reason to give up.
MAX_ATTEMPTS = 100
#: Workers that end by themselves: after so many something is wrong with all of them.
MANY = 20
#: Seconds between two looks.
LOOK = 0.02

RETRY = RetrySpec(strategy="fixed", base_seconds=0.05, max_seconds=0.05)
PHASES = {"plan": "planning", "build": "building", "test": "testing", "review": "reviewing"}
#: Some first attempts are long: what a dead worker left running is still there when its workflow goes on.
_SCRIPT = """\
exec 9>>"$ADW_ID.lock"
flock -n 9 || echo "$ADW_ID overlap $ADW_PHASE $ADW_ATTEMPT" >> ran.log
echo "$ADW_ID began $ADW_PHASE $ADW_ATTEMPT" >> ran.log
case "$ADW_PHASE.$ADW_ATTEMPT.$((ADW_ISSUE_NUMBER % 4))" in
plan.1.1) sleep 6 ;;
*) sleep {seconds} 9>&- ;;
esac
echo "{{\\"attempt\\": $ADW_ATTEMPT}}" > "$ADW_RESULT_FILE"
echo "$ADW_ID ended $ADW_PHASE $ADW_ATTEMPT" >> ran.log
"""


def definition(seconds: float) -> WorkflowSpec:
    """Return the workflow that is carried through the storm; each of its phases takes *seconds*."""
    shell = _SCRIPT.format(seconds=seconds)
    rest = {"runner": "command", "shell": shell, "max_attempts": MAX_ATTEMPTS, "retry": RETRY}

    return WorkflowSpec(
        name="storm", phases=tuple(PhaseSpec(name=name, state=state, **rest) for name, state in PHASES.items())
    )


@dataclass(kw_only=True)
class StormHome:
    """A home, and how workers are started in it."""

    path: Path
    env: dict[str, str]
    ids: list[str] = field(default_factory=list)

    @property
    def full_env(self) -> dict[str, str]:
        """The variables of a command in this home."""
        return {**os.environ, **self.env, "ADW_HOME": str(self.path), "PYTHONPATH": str(ROOT)}

    def open(self) -> app_module.Home:
        """Open it as the command line does."""
        return app_module.open_home(config_load.load(env=self.full_env, cwd=self.path))

    def start(self, app: app_module.Home, count: int, *, seconds: float) -> None:
        """Accept *count* more workflows."""
        spec = definition(seconds)
        for number in range(len(self.ids) + 1, len(self.ids) + count + 1):
            self.ids.append(
                app.workflow_creator.start(NewWorkflow(issue_number=number, max_total_attempts=None, spec=spec)).adw_id
            )

    def worker(self) -> subprocess.Popen[bytes]:
        """Start a worker as a person would; what it says goes to a file."""
        with (self.path / "workers.log").open("ab") as log:
            command = [ADW, "worker", "--concurrency", "2"]
            return warm.Popen(command, cwd=self.path, env=self.full_env, stdout=log, stderr=log)

    def adw(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [ADW, *args], cwd=self.path, env=self.full_env, capture_output=True, text=True, check=False
        )

    def lines(self) -> int:
        """Return how many beginnings and ends the commands have written down."""
        ran = self.path / "ran.log"

        return ran.read_text().count("\n") if ran.exists() else 0

    def said(self) -> str:
        """Return the last words of the workers."""
        return (self.path / "workers.log").read_text(errors="replace")[-3000:]


def make_home(path: Path, *, url: str = "") -> StormHome:
    """Return an empty home whose workers notice soon what others left; with *url* all of it is in that database."""
    (path / "adw.toml").write_text("[worktree]\nenabled = false\n")
    env = {
        # Of workers with a run: a storm is no reason to think that it is poison. Each phase has a limit of its own.
        "ADW_LIMITS_MAX_ATTEMPTS": "1000",
        "ADW_LEASE_TTL_SECONDS": "6",
    }
    shared = {"ADW_DATABASE_URL": url, "ADW_STATE_STORE": "database"} if url else {}

    return StormHome(path=path, env=env | shared)


# --- workers and who looks after them --------------------------------------------------------------------------


@dataclass(kw_only=True)
class Slot:
    """A place for a worker: when one ends, another is started."""

    process: subprocess.Popen[bytes]
    kill_at: float | None = None  #: Clock.monotonic; None: not before it is at work
    give_up_at: float | None = None  #: then it is killed although it has nothing to do; None: it is not ready yet


class Supervisor:
    """Keeps workers running, and kills them when it is told to."""

    def __init__(self, home: StormHome, *, workers: int, rng: random.Random) -> None:
        self._home = home
        self._rng = rng
        self._slots = [self._slot() for _ in range(workers)]
        self.kills = 0
        self.kills_at_work = 0
        self.ends: list[int] = []  #: exit codes of workers that ended by themselves

    def _slot(self) -> Slot:
        """Start a worker, to be killed while it starts or some time after it has begun to work."""
        started = time.monotonic()
        kill_at = started + self._rng.uniform(0.0, 1.0) if self._rng.random() < 0.3 else None

        return Slot(process=self._home.worker(), kill_at=kill_at)

    def storm(self, kills: int, *, feed: Callable[[int], None]) -> None:
        """Kill *kills* times, at random instants; *feed* is told before each how many there were."""
        end = time.monotonic() + PATIENCE + 5.0 * kills
        while self.kills < kills:
            assert time.monotonic() < end, f"only {self.kills} kills: {self._home.said()}"
            feed(self.kills)
            self.look_after()
            for number, slot in enumerate(self._slots):
                if self.kills < kills and self._is_due(slot):
                    self._slots[number] = self._kill(slot)
            self._wait(LOOK)

    def _is_due(self, slot: Slot) -> bool:
        now, pid = time.monotonic(), slot.process.pid
        if slot.kill_at is not None:
            return now >= slot.kill_at
        if slot.give_up_at is None and catches_sigterm(pid):
            slot.give_up_at = now + 8.0
        if is_at_work(pid) or (slot.give_up_at is not None and now > slot.give_up_at):
            slot.kill_at = now + self._rng.uniform(0.0, 0.75)  # in its first phases, or between two

        return False

    def _kill(self, slot: Slot) -> Slot:
        self.kills_at_work += is_at_work(slot.process.pid)
        slot.process.kill()
        slot.process.wait()
        self.kills += 1

        return self._slot()

    def look_after(self) -> None:
        """Start a worker for each that ended by itself."""
        for number, slot in enumerate(self._slots):
            code = slot.process.poll()
            if code is not None:
                self.ends.append(code)
                assert len(self.ends) < MANY, f"workers end by themselves again and again: {self._home.said()}"
                self._slots[number] = self._slot()

    def is_ready(self) -> bool:
        """Say whether every worker listens for signals: then it has opened its database."""
        return all(slot.process.poll() is None and catches_sigterm(slot.process.pid) for slot in self._slots)

    def until(self, what: Callable[[], bool], why: Callable[[], str]) -> None:
        """Keep the workers running until something is so; fail when for long no command began or ended meanwhile."""
        end, seen = time.monotonic() + PATIENCE, -1
        while not what():
            if (lines := self._home.lines()) != seen:
                end, seen = time.monotonic() + PATIENCE, lines
            assert time.monotonic() < end, f"{why()}\n{self._home.said()}"
            self.look_after()
            self._wait(0.1)

    def _wait(self, seconds: float) -> None:
        """Wait until a worker ends, at most that long."""
        watched = [os.pidfd_open(slot.process.pid) for slot in self._slots if slot.process.returncode is None]
        try:
            select.select(watched, [], [], seconds)
        finally:
            for fd in watched:
                os.close(fd)

    def drain(self) -> list[int]:
        """Tell the workers to end, and return how they did."""
        for slot in self._slots:
            self._wait_for_ear(slot.process)
            slot.process.send_signal(signal.SIGTERM)

        return [slot.process.wait(timeout=PATIENCE) for slot in self._slots]

    def _wait_for_ear(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until a worker that has just begun listens for signals: before that SIGTERM simply ends it."""
        while process.poll() is None and not catches_sigterm(process.pid):
            self._wait(LOOK)

    def kill_all(self) -> None:
        """Leave none behind, whatever went wrong."""
        for slot in self._slots:
            slot.process.kill()
            slot.process.wait()


def is_at_work(pid: int) -> bool:
    """Say whether the process runs the command of a phase; it also asks git, while it starts."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
            if any(b"\0ADW_PHASE=" in Path(f"/proc/{child}/environ").read_bytes() for child in children):
                return True
        except OSError:
            continue  # the thread or the child has ended

    return False


def catches_sigterm(pid: int) -> bool:
    """Say whether the process has a handler for SIGTERM."""
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1))


# --- what must be true -----------------------------------------------------------------------------------------


def is_completed(app: app_module.Home, adw_id: str) -> bool:
    """Say whether a workflow has come to its end."""
    return app.store.load(adw_id).document.current_state == "completed"


def problems_of(home: StormHome) -> list[str]:
    """Return everything that is wrong after the storm, when no worker is left."""
    orphans = disallowed_changes(home.path)  # first: the commands below are none
    home.adw("admin", "recover")  # the last kill may have come after the last write, and no worker has looked since
    ran: dict[str, list[str]] = {adw_id: [] for adw_id in home.ids}
    for line in (home.path / "ran.log").read_text().splitlines():
        adw_id, told = line.split(" ", 1)
        ran[adw_id].append(told)
    problems = [f"still running: {orphan}" for orphan in orphans]
    with home.open() as app:
        stored = sorted(app.store.ids())
        if stored != sorted(home.ids):
            problems.append(f"{len(home.ids)} workflows were accepted, {len(stored)} are stored")
        for adw_id in home.ids:
            problems += [f"{adw_id}: {problem}" for problem in _of_workflow(app, adw_id, ran[adw_id])]
        problems += [f"issue {lock.issue_number} is still locked" for lock in app.locks.all()]
    left = home.adw("admin", "recover")
    if left.returncode or not left.stdout.startswith("there is nothing to recover"):
        problems.append(f"adw admin recover: {left.stdout}{left.stderr}")
    verified = home.adw("admin", "verify")
    if verified.returncode:
        problems.append(f"adw admin verify: {verified.stdout}{verified.stderr}")

    return problems


def _of_workflow(app: app_module.Home, adw_id: str, ran: list[str]) -> Iterator[str]:
    document = app.store.load(adw_id).document
    events = app.events.of_workflow(adw_id, limit=100_000)
    if document.current_state != "completed":
        yield f"it is {document.current_state}: {document.terminal_reason}"
    attempts = [attempt for record in document.phases for attempt in record.attempts]
    if any(after.fence < before.fence for before, after in pairwise(attempts)):
        yield f"the fences of its attempts go back: {[attempt.fence for attempt in attempts]}"
    yield from (f"ran beside another command: {told}" for told in ran if told.startswith("overlap"))
    yield from (f"happened {count} times: {told}" for told, count in Counter(ran).items() if count > 1)
    for record in document.phases:
        yield from _of_phase(record, [event for event in events if event.node_name == record.name], ran)
    runs = app.runs.of_workflow(adw_id)
    # STOPPED: its worker was killed after the last write of the document, and recovery closed the run.
    if any(run.state not in {RunState.COMPLETED, RunState.STOPPED} for run in runs):
        yield f"its runs: {[(run.run_id, run.state.value, run.reason) for run in runs]}"


def _of_phase(record: PhaseRecord, events: list[Event], ran: list[str]) -> Iterator[str]:
    """Hold the attempts of a phase, its events and what really ran against each other."""
    name, numbers = record.name, [attempt.number for attempt in record.attempts]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"{name} has the attempts {numbers}"
    statuses = [attempt.status for attempt in record.attempts]
    if statuses.count("succeeded") != 1 or statuses[-1] != "succeeded" or "running" in statuses:
        yield f"{name} ended with {statuses}"
    if record.result != {"attempt": numbers[-1]}:
        yield f"{name} has the result {record.result} after {len(numbers)} attempts"
    told = Counter(event.event_type for event in events)
    if (told["attempt_succeeded"], told["phase_completed"]) != (1, 1):
        yield f"{name} succeeded {told['attempt_succeeded']} times, completed {told['phase_completed']} times"
    ended = sum(told[f"attempt_{how}"] for how in ("succeeded", "failed", "interrupted", "suspended"))
    if (told["attempt_started"], ended) != (len(numbers), len(numbers)):
        yield f"{name}: {len(numbers)} attempts, the events tell {dict(told)}"
    really = [line.split() for line in ran if line.split()[1] == name]
    if really[-2:] != [["began", name, str(numbers[-1])], ["ended", name, str(numbers[-1])]]:
        yield f"{name}: attempt {numbers[-1]} was committed, but what ran is {really}"


def disallowed_changes(home: Path) -> list[str]:
    """Return the processes that work in *home* or were started for it, apart from this one."""
    result = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            is_ours = (
                str(home) in str((entry / "cwd").readlink()) or str(home).encode() in (entry / "environ").read_bytes()
            )
            if is_ours:
                result.append(f"{entry.name} {(entry / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
        except OSError:
            continue  # ended meanwhile, or it is the kernel's

    return result
