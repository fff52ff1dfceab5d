"""Real workers on real files: drained, killed, asked by other processes, recovered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adws import app as app_module
from adws.adw_modules.queue import workers
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.config import load as config_load
from adws.testing import FakeClock
from tests import warm
from tests.integration.ownership_worker import OffsetClock
from tests.integration.process_lab import is_alive

pytestmark = pytest.mark.filterwarnings("error")

ADW = str(Path(sysconfig.get_path("scripts")) / "adw")
#: Far more than anything here takes; nobody waits for it unless something is broken.
PATIENCE = 60.0

#: A command that says who it is, starts a child in a group of its own, and then sleeps longer than any test.
LONG = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
with open(os.environ["ADW_ID"] + ".pids.tmp", "w") as told:
    told.write(f"{os.getpid()} {child.pid}")
os.rename(os.environ["ADW_ID"] + ".pids.tmp", os.environ["ADW_ID"] + ".pids")
time.sleep(120)
"""
#: Ends when the other one is there too.
MEET = """
import os, pathlib, sys, time
pathlib.Path(os.environ["ADW_ID"] + ".here").touch()
end = time.monotonic() + 60
while len(list(pathlib.Path().glob("*.here"))) < 2:
    if time.monotonic() > end:
        sys.exit("nobody came")
    time.sleep(0.01)
"""


def toml(**shells: str) -> str:
    """Definitions of one phase each; the name of a workflow is the name of its script."""
    return "\n".join(
        f'[[workflows.{name}.phases]]\nname = "build"\nrunner = "command"\n'
        f"command = {json.dumps([sys.executable, f'{name}.py'])}\n"
        for name in shells
    )


@pytest.fixture
def home(home: Path) -> Path:
    scripts = {"long": LONG, "meet": MEET, "quick": "print('done')", "broken": "import sys; sys.exit('no')"}
    for name, script in scripts.items():
        (home / f"{name}.py").write_text(script)
    (home / "adw.toml").write_text(toml(**scripts) + "\n[worktree]\nenabled = false\n")
    return home


@contextmanager
def opened(home: Path, *, offset: float = 0.0) -> Iterator[app_module.Home]:
    settings = config_load.load(env={"ADW_HOME": str(home)}, cwd=home)
    with app_module.open_home(settings, role="cli", wrap_clock=lambda _clock: OffsetClock(offset)) as app:
        yield app


@pytest.fixture
def app(home):
    with opened(home) as app:
        yield app


def start(app: app_module.Home, name: str, issue: int) -> str:
    return app.workflow_creator.start(NewWorkflow(issue_number=issue, spec=app.workflows.get(name))).adw_id


@pytest.fixture
def worker(home: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a worker as a person would; at the end it is drained, with what it runs."""
    started: list[subprocess.Popen[str]] = []

    def begin(*args: str) -> subprocess.Popen[str]:
        process = warm.Popen(
            [ADW, "worker", *args],
            cwd=home,
            env={**os.environ, "ADW_HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.terminate()
        if process.stdout is not None and not process.stdout.closed:
            process.communicate(timeout=PATIENCE)


def until(what: Callable[[], object], why: str) -> object:
    """Return what *what* answers, as soon as that is something; a broken worker ends this with *why*."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        result = what()
        if result:
            return result
        time.sleep(0.01)
    raise AssertionError(why)


def pids_of(home: Path, adw_id: str) -> list[int]:
    file = home / f"{adw_id}.pids"
    until(file.exists, "its command has not begun")
    return [int(pid) for pid in file.read_text().split()]


def attempts(app: app_module.Home, adw_id: str) -> list[str]:
    record = app.store.load(adw_id).document.phases[0]
    return [attempt.status for attempt in record.attempts]


def about_work(steps: list[dict[str, str]]) -> list[str]:
    """Return the actions without those that bring the copy of a document up: a killed worker leaves it behind."""
    return [step["action"] for step in steps if step["action"] != "project"]


def run_of(app: app_module.Home, adw_id: str):
    return app.runs.of_workflow(adw_id)[0]


# --- drain and death -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_worker_that_is_told_to_end_leaves_nothing_running_and_burns_nothing(app, home, worker, number, code):
    adw_id = start(app, "long", 1)
    process = worker()
    pids = pids_of(home, adw_id)

    process.send_signal(number)
    _, complaints = process.communicate(timeout=PATIENCE)

    assert process.returncode == code, complaints
    assert attempts(app, adw_id) == ["suspended"]
    assert app.store.load(adw_id).document.phases[0].attempts_used == 0
    assert run_of(app, adw_id).state is RunState.PENDING
    assert [pid for pid in pids if is_alive(pid)] == []
    assert app.leases.read(adw_id).owner is None


def test_the_command_of_a_killed_worker_is_ended_before_anything_else(app, adw, home, worker):
    adw_id = start(app, "long", 1)
    process = worker()
    pids = pids_of(home, adw_id)
    process.kill()
    process.wait(timeout=PATIENCE)
    assert all(map(is_alive, pids)), "nobody has told it to end"

    planned = adw("admin", "recover", "--dry-run", "--json").json()["steps"]
    assert about_work(planned) == ["interrupt", "requeue"]
    assert all(map(is_alive, pids)), "a dry run changes nothing"
    assert attempts(app, adw_id) == ["running"]

    done = adw("admin", "recover", "--json")

    assert about_work(done.json()["steps"]) == ["interrupt", "requeue"], done.stderr
    assert [pid for pid in pids if is_alive(pid)] == []
    assert attempts(app, adw_id) == ["interrupted"]
    assert run_of(app, adw_id).state is RunState.PENDING
    assert adw("admin", "recover").stdout == "there is nothing to recover\n"


# --- asked by other processes ----------------------------------------------------------------------------------


# --- several -----------------------------------------------------------------------------------------------------


# --- the database ------------------------------------------------------------------------------------------------


class CountingClock(FakeClock):
    """A clock whose waits take no time, that lets a worker say that it lives, and drains it after a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.drain: Callable[[], None] = lambda: None
        self.look: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.monotonic() >= 1059.0:
            self.drain()
        else:
            self.look()


def test_a_minute_without_work_costs_a_sign_of_life_every_ten_seconds_and_a_look_after_each(home, monkeypatch):
    """
    A sign of life is one small write. It wakes whoever watches the file, for three reads that find nothing.
    """
    monkeypatch.setattr(workers, "LOOK_SECONDS", 3600.0)  # its thread lives by another clock: `look` below does it
    settings = config_load.load(env={"ADW_HOME": str(home)}, cwd=home)
    clock = CountingClock()
    asked: list[str] = []
    with app_module.open_home(settings, wrap_clock=lambda _clock: clock) as app:
        made = app.worker(WorkerOptions(recover_seconds=600.0))
        clock.drain, clock.look = made.drain, made._presence.look
        for name in ("read", "transact"):
            plain = getattr(app.database, name)
            monkeypatch.setattr(
                app.database, name, lambda *args, name=name, plain=plain: (asked.append(name), plain(*args))[1]
            )
        made._recovered_at = clock.monotonic()  # counted without the recovery of the start

        made.run()

    assert len(clock.slept) > 1900, "it looked at the watch every 30 ms"
    beats = 5
    assert asked.count("transact") == 2 + beats + 1, "it registers, says that it lives, and says goodbye"
    assert asked.count("read") <= 3 * (beats + 3), "each one, the start and each half minute: a look"
