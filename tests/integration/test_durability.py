"""Checkpoints, retries and breakers together, in a real database: what a task keeps is there for the next process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from adws.adw_modules.checkpoint import CheckpointManager, CheckpointStore
from adws.adw_modules.circuit_breaker import CircuitBreakerConfig, CircuitBreakerRegistry, DatabaseBreakers
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.document import PhaseRecord
from adws.adw_modules.errors import RetriesExhausted
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.retry_handler import RetryManager, RetryPolicy
from adws.testing import FakeClock
from tests.contracts.worlds import FIRST, database_world, make_document, make_owner

BROKEN = ConnectionError("connection reset by peer")
THREE = RetryPolicy(max_attempts=3, backoff_base_seconds=0.1, jitter=False)


class FiveSteps:
    """A task of five steps that keeps each one, and breaks in front of step 4 the first time."""

    def __init__(self, manager: CheckpointManager) -> None:
        self.manager = manager
        self.done: list[int] = []
        self.began_at: list[int] = []
        self.is_mended = False

    def run(self, checkpoint):
        finished = list(checkpoint["finished"]) if checkpoint else []
        self.began_at.append(len(finished) + 1)
        for step in range(len(finished) + 1, 6):
            if step == 4 and not self.is_mended:
                self.is_mended = True
                raise BROKEN
            self.done.append(step)
            finished.append(step)
            self.manager.save_checkpoint("task", {"finished": finished}, step_name=f"step {step}")
        return {"finished": finished}


@pytest.fixture
def database(database_url, open_db):
    return open_db(database_url)


def test_checkpoint_resume_end_to_end(database):
    """
    Fails at step 4; the retry continues from step 3, and the result has all five steps.
    """
    clock = FakeClock()
    manager = CheckpointManager(CheckpointStore(database, clock=clock), clock=clock)
    task = FiveSteps(manager)

    result = RetryManager(manager, clock=clock).execute_with_retry("task", THREE, task.run)

    assert result == {"finished": [1, 2, 3, 4, 5]}
    assert (task.done, task.began_at) == ([1, 2, 3, 4, 5], [1, 4])
    assert manager.delete_checkpoints("task") == 5


def test_retry_with_circuit_breaker(database):
    """
    Three attempts open the breaker; the next call is blocked at once, also in another process.
    """
    clock, calls = FakeClock(), []
    config = CircuitBreakerConfig(failure_threshold=3)
    breaker = CircuitBreakerRegistry(config, store=DatabaseBreakers(database), clock=clock).get("executor")

    def work():
        calls.append(breaker.can_execute())
        breaker.record_failure()
        raise BROKEN

    with pytest.raises(ConnectionError):
        RetryManager(clock=clock).execute_with_retry("task", THREE, work)

    assert calls == [True, True, True]
    assert not breaker.can_execute()
    other = CircuitBreakerRegistry(config, store=DatabaseBreakers(database), clock=clock).get("executor")
    assert not other.can_execute(), "what one process found out, the others know"
    clock.advance(60.0)
    assert other.can_execute()


def test_checkpoint_persists_across_sessions(database_url, open_db):
    data = {"step": 3, "files": ["a.py", "b.py"], "ratio": 0.25, "note": "h\u00e9llo \U0001f9ea", "none": None}
    first = open_db(database_url)
    CheckpointManager(CheckpointStore(first, clock=SystemClock()), clock=SystemClock()).save_checkpoint(
        "task", data, "third"
    )
    first.close()

    second = open_db(database_url)
    result = CheckpointManager(CheckpointStore(second, clock=SystemClock())).latest("task")

    assert (result.data, result.step_name) == (data, "third")


def test_a_checkpoint_is_there_after_its_process_was_killed_right_after_saving(tmp_path):
    """
    Saved means durable: nothing is closed, flushed or said goodbye to.
    """
    file = tmp_path / "task.db"
    script = textwrap.dedent(f"""
        import os, signal
        import adws
        from adws.adw_modules.checkpoint import CheckpointManager
        manager = CheckpointManager({str(file)!r})
        for step in range(3):
            manager.save_checkpoint("task", {{"step": step}})
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False, timeout=60)

    assert done.returncode == -9
    with CheckpointManager(file) as manager:
        assert manager.load_checkpoint("task") == {"step": 2}


@pytest.mark.parametrize("render", [Path, str, "sqlite:///{}".format], ids=["path", "text", "url"])
def test_a_database_is_named_by_path_or_url(tmp_path, render):
    with CheckpointManager(render(tmp_path / "mine.db"), clock=FakeClock()) as manager:
        manager.save_checkpoint("task", {"a": 1})

    with CheckpointManager(tmp_path / "mine.db") as manager:
        assert manager.load_checkpoint("task") == {"a": 1}


def test_attempts_of_earlier_processes_count(database):
    """
    The number of attempts is one of the task, not of the process.
    """
    clock, calls = FakeClock(), []
    manager = CheckpointManager(CheckpointStore(database, clock=clock), clock=clock)

    def work(checkpoint):
        calls.append(checkpoint)
        manager.save_checkpoint("task", {"tries": (checkpoint or {"tries": 0})["tries"] + 1})
        raise BROKEN

    retries = RetryManager(manager, clock=clock)
    with pytest.raises(ConnectionError):
        retries.execute_with_retry("task", THREE, work, attempts_used=1)
    assert calls == [None, {"tries": 1}], "read again for each attempt"
    with pytest.raises(RetriesExhausted):
        retries.execute_with_retry("task", THREE, work, attempts_used=3)

    assert len(calls) == 2


def test_secrets_are_taken_out_of_what_is_stored(database):
    secret = "correct-horse-battery"
    store = CheckpointStore(database, clock=FakeClock(), scrub=Redactor([secret]).scrub_bytes)
    manager = CheckpointManager(store, clock=FakeClock())

    manager.save_checkpoint("task", {"said": f"the key is {secret}"})

    assert manager.load_checkpoint("task") == {"said": f"the key is {MASK}"}


def test_a_workflow_that_was_started_with_one_attempt_keeps_it_and_may_have_checkpoints(database, clock):
    world = database_world(database, clock)
    world.registry.register(make_document(), make_owner(), ttl_seconds=30.0)
    world.store.create(make_document(phases=[PhaseRecord(name="build", state="building", max_attempts=1)], fence=1))

    (build,) = world.store.load(FIRST).document.phases

    assert (build.max_attempts, build.attempts_used) == (1, 0)
    manager = CheckpointManager(CheckpointStore(database, clock=clock), clock=clock)
    assert manager.load_checkpoint(f"{FIRST}/build") is None
    manager.save_checkpoint(f"{FIRST}/build", {"step": 1}, fence=1)
    assert manager.load_checkpoint(f"{FIRST}/build") == {"step": 1}
