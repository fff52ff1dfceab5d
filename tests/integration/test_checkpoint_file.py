"""The checkpoint of a command: carried over by file and by database, kept after any end, gone with the phase."""

from __future__ import annotations

import json
import os
import stat
from types import SimpleNamespace

import pytest

from adws.adw_modules.checkpoint import CheckpointManager, PastCheckpoints, task_of
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.document import PhaseRecord
from adws.adw_modules.engine.runner_command import CommandRunner
from adws.adw_modules.errors import DatabaseUnavailable
from adws.adw_modules.phase import Order, PhaseContext, Suspended
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.process.tree import GRACE_SECONDS
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.workflow.model import PhaseSpec, Timeouts
from adws.testing import FakeClock
from tests.contracts.worlds import FIRST, make_document
from tests.homes import NO_SANDBOX, lab_home
from tests.integration.process_lab import LabOrders

SECRET = "correct-horse-battery"
#: Counts its attempts in its checkpoint.
COUNT = """
n=$(tr -dc 0-9 2>/dev/null < "$ADW_CHECKPOINT_FILE")
echo "saw ${n:-nothing}"
echo "{\\"n\\": $((${n:-0} + 1))}" > "$ADW_CHECKPOINT_FILE"
"""
TASK = task_of(FIRST, "build")


class World:
    """Attempts at one phase, each by a runner of its own; between them anything may happen."""

    def __init__(self, place, *, manager=True):
        self.cwd, self.folder = place / "work", place / "state"
        self.cwd.mkdir()
        self.folder.mkdir()
        self.clock = FakeClock()
        home = lab_home(clock=self.clock)
        with home.ownership.create(make_document(FIRST)):
            pass
        self.store = home.checkpoints
        self.manager = CheckpointManager(self.store, clock=self.clock) if manager else None
        self.orders = LabOrders()
        self.said: list[str] = []
        self.attempts: list[dict] = []

    def context(self, round_number=1) -> PhaseContext:
        """Begin an attempt."""
        self.clock.advance(10.0)
        self.attempts.append({"number": len(self.attempts) + 1, "round": round_number, "started_at": self.now})
        return PhaseContext(
            document=self.document,
            phase="build",
            attempt_number=len(self.attempts),
            round=round_number,
            cwd=self.cwd,
            folder=self.folder,
            orders=self.orders,
            record_process=lambda _record: None,
            say=self.said.append,
        )

    @property
    def now(self):
        return self.clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    @property
    def document(self):
        record = PhaseRecord(name="build", state="building", attempts=self.attempts)
        return make_document(FIRST, phases=[record], fence=1)

    def end_phase(self):
        """Do what follows once the success of the phase is stored."""
        spec = PhaseSpec(name="build", state="building", runner="command", shell="true")
        home = SimpleNamespace(checkpoint_manager=self.manager, folder_of=lambda _adw_id: self.folder)
        PastCheckpoints(home).forget(self.document, spec, 1)

    @property
    def runner(self):
        return CommandRunner(
            SimpleNamespace(
                clock=self.clock,
                processes=SystemProcesses(clock=SystemClock()),
                redactor=Redactor([SECRET]),
                env={"PATH": os.environ["PATH"]},
                settings=SimpleNamespace(grace_seconds=GRACE_SECONDS),
                checkpoint_manager=self.manager,
                sandboxes=NO_SANDBOX,
            )
        )

    def run(self, shell, *, round_number=1, **fields):
        spec = PhaseSpec(name="build", state="building", runner="command", shell=shell, **fields)
        return self.runner.run(spec, self.context(round_number))

    def file(self, attempt):
        return self.folder / "phases" / "build" / f"attempt-{attempt}.checkpoint.json"

    def left(self, attempt):
        return json.loads(self.file(attempt).read_text())

    @property
    def stored(self):
        return self.store.latest(TASK).data if self.store.latest(TASK) else None


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_each_attempt_finds_what_the_one_before_left(world):
    for _ in range(3):
        world.run(f"{COUNT} exit 1")

    assert world.said == ["saw nothing", "saw 1", "saw 2"]
    assert (world.stored, world.left(3)) == ({"n": 3}, {"n": 3})
    assert stat.S_IMODE(world.file(3).stat().st_mode) & 0o077 == 0


def test_it_is_saved_after_an_order(world):
    def order_when_it_has_counted():
        if "counted" in world.said:
            world.orders.order = Order(kind="drain")

    world.orders.on_look = order_when_it_has_counted

    assert world.run(f"{COUNT} echo counted; sleep 1000") == Suspended(reason="drain")
    assert world.stored == {"n": 1}


def test_after_kill_9_of_everything_the_file_is_what_is_carried_over(world):
    """
    Nobody saved anything after the attempt: the file of the dead one is there, and newer than what is stored.
    """
    world.run(f"{COUNT} exit 1")
    world.context()
    world.file(2).write_text('{"n": 40}')

    world.run(f"{COUNT} exit 1")

    assert world.said[-1] == "saw 40"
    assert world.stored == {"n": 41}


@pytest.mark.parametrize(
    "torn", ["", '{"n": 4', "[4]", '{"n": NaN}', "\x00" * 20], ids=["empty", "cut", "list", "nan", "zeros"]
)
def test_a_torn_file_is_passed_over_for_the_last_whole_one(world, torn):
    world.run(f"{COUNT} exit 1")
    world.context()
    world.file(2).write_text(torn)

    world.run(f"{COUNT} exit 1")

    assert world.said[-1] == "saw 1"
    assert any("the checkpoint file of attempt 2 cannot be used" in line for line in world.said) is bool(torn)


@pytest.mark.parametrize(
    "script",
    [
        'rm "$ADW_CHECKPOINT_FILE"; ln -s /etc/passwd "$ADW_CHECKPOINT_FILE"',
        'rm "$ADW_CHECKPOINT_FILE"; mkdir "$ADW_CHECKPOINT_FILE"',
        'head -c 1100000 /dev/zero > "$ADW_CHECKPOINT_FILE"',
    ],
    ids=["link", "directory", "too-large"],
)
def test_a_file_that_cannot_be_read_is_told_and_costs_nothing_else(world, script):
    world.run(f"{COUNT} exit 1")
    report = world.run(f"{script}; exit 3")

    assert report.exit_code == 3
    assert "the checkpoint file of attempt 2 cannot be used" in world.said[-1]
    assert world.stored == {"n": 1}
    world.run(f"{COUNT} exit 1")
    assert world.said[-1] == "saw 1"


def test_what_is_stored_of_a_later_attempt_wins_over_an_older_file(world):
    """
    The second attempt was made on another machine, and this one still has the file of the first.
    """
    world.run(f"{COUNT} exit 1")
    world.context()
    world.manager.save_checkpoint(TASK, {"n": 20}, "attempt-2")

    world.run(f"{COUNT} exit 1")

    assert world.said[-1] == "saw 20"


def test_it_stays_after_success_and_goes_when_the_phase_is_over_with_the_files_of_all_attempts(world):
    """
    Who dies before the success is stored goes on from it.
    """
    world.run(f"{COUNT} exit 1")
    world.run(f"{COUNT} exit 1")

    report = world.run(COUNT)

    assert report.ok
    assert (world.stored, world.left(3)) == ({"n": 3}, {"n": 3})
    assert not any("checkpoint" in name for name in report.output_files)
    world.end_phase()
    assert world.stored is None
    assert list(world.folder.glob("**/*checkpoint*")) == []


def test_an_attempt_after_one_whose_work_was_refused_finds_no_file(world):
    world.run(f"{COUNT} exit 1")
    world.run(COUNT)
    world.attempts[-1].update(status="failed", ended_at=world.now, report={"was_done": True})

    world.run(f"{COUNT} exit 1")
    world.run(f"{COUNT} exit 1")

    assert world.said == ["saw nothing", "saw 1", "saw nothing", "saw 1"]


def test_secrets_do_not_stay_in_it(world):
    world.run(f"""echo '{{"key": "{SECRET}"}}' > "$ADW_CHECKPOINT_FILE"; exit 1""")

    assert world.left(1) == world.stored == {"key": MASK}


def test_when_the_database_is_away_the_file_is_enough(world, monkeypatch):
    def refuse(*_args, **_more):
        raise DatabaseUnavailable("the server is gone")

    monkeypatch.setattr(world.store, "add", refuse)
    report = world.run(f"{COUNT} exit 1")
    world.run(f"{COUNT} exit 1")

    assert report.exit_code == 1
    assert world.said[1] == "the checkpoint of attempt 1 is kept in its file only: the server is gone"
    assert world.said[2] == "saw 1"


def test_it_is_saved_after_a_time_out(world):
    world.orders.on_look = lambda: world.clock.advance(100 if "counted" in world.said else 0)

    report = world.run(f"{COUNT} echo counted; sleep 1000", timeouts=Timeouts(wall=60))

    assert (report.error.run.timed_out, world.stored) == ("wall", {"n": 1})
