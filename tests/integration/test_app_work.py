"""The parts that run workflows, put together: what a dead worker left running is ended by who takes over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from adws import app as app_module
from adws.adw_modules.errors import WorkflowBusy
from adws.adw_modules.interfaces import ProcessRecord
from adws.adw_modules.process import tree
from adws.adw_modules.process.tree import ProcessEnding
from adws.config import load as config_load
from tests.integration.process_lab import is_alive

#: Tells its pid through a pipe; when it is asked to end it keeps the document as it is then.
SLOW = """
[worktree]
enabled = false
[[workflows.slow.phases]]
name = "plan"
shell = '''
trap 'cp state/*/adw_state.json seen.json; exit 0' TERM
echo $$ > pipe
sleep 1000 &
wait
'''
"""


@pytest.fixture
def app(home):
    with app_module.open_home(
        config_load.load(env={"ADW_HOME": str(home), "ADW_SANDBOX_MODE": "off"}, cwd=home), role="worker"
    ) as opened:
        yield opened


@pytest.fixture
def left(home):
    """The id of a workflow whose worker was killed in an attempt, and the pid of the command it left running."""
    (home / "adw.toml").write_text(SLOW)
    os.mkfifo(home / "pipe")
    command = [Path(sysconfig.get_path("scripts")) / "adw", "run", "7", "--workflow", "slow"]
    nobody = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=home, env={**os.environ, "ADW_HOME": str(home)}, **nobody) as worker:
        pid = int((home / "pipe").read_text())
        worker.kill()
    (folder,) = (path.parent for path in (home / "state").glob("*/adw_state.json"))
    yield folder.name, pid
    if is_alive(pid):
        os.killpg(pid, signal.SIGKILL)  # it leads a session of its own


def test_what_the_former_owner_left_running_is_ended_before_the_takeover_is_written(app, home, left):
    adw_id, pid = left
    before = json.loads((home / "state" / adw_id / "adw_state.json").read_text())
    assert is_alive(pid)

    with app.ownership.own(adw_id) as owned:
        assert not is_alive(pid)
        assert owned.document.fence > before["fence"]

    seen = json.loads((home / "seen.json").read_text())
    assert (seen["revision"], seen["fence"]) == (before["revision"], before["fence"])


def test_a_workflow_is_not_taken_over_while_what_was_left_cannot_be_ended(app, left, monkeypatch):
    adw_id, _ = left
    revision = app.store.load(adw_id).document.revision
    stuck = ProcessEnding(evidence="pid 77 runs", left=("77 (agent)",))
    monkeypatch.setattr(tree, "end_recorded", lambda *_args, **_options: stuck)

    with pytest.raises(WorkflowBusy, match=r"cannot be ended \(77 \(agent\)\)"), app.ownership.own(adw_id):
        pass

    assert app.store.load(adw_id).document.revision == revision


# --- what is said about it -------------------------------------------------------------------------------------


@pytest.fixture
def record(app):
    """The record of a process that has ended, on this machine."""
    gone = subprocess.Popen(["true"])
    identity = replace(app.processes.me("phase"), pid=gone.pid, start_ticks=1)
    gone.wait()

    return ProcessRecord(token="t" * 32, identity=identity, argv=("true",), started_at="2026-01-31T09:00:00.000000Z")


def test_a_process_that_is_gone_is_said_to_be_gone(app, record):
    said = app.end_process(record.to_json()).describe()

    assert said == f"pid {record.identity.pid} is gone and nothing carries its token"


def test_a_process_of_another_machine_could_not_be_confirmed_dead(app, record):
    elsewhere = replace(record, identity=replace(record.identity, machine="another", host="build-2"))

    said = app.end_process(elsewhere.to_json()).describe()

    assert "could not be confirmed dead: it was started on build-2, which is not this machine" in said


def test_a_record_that_cannot_be_read_confirms_nothing(app):
    said = app.end_process({"identity": "?"}).describe()

    assert "could not be confirmed dead: its record cannot be read" in said


TAKE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from adws import app; from adws.config import load as config
home = Path(sys.argv[1])
env = {"ADW_HOME": str(home), **dict(item.split("=") for item in sys.argv[2:])}
app.open_home(config.load(env=env, cwd=home)).ports.take("dead0001")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_recovery_frees_the_ports_of_a_worker_that_died_and_leaves_those_of_the_living(tmp_path):
    ranges = {"ADW_PORTS_BACKEND_START": "42100"}
    given = [f"{name}={value}" for name, value in ranges.items()]
    subprocess.run([sys.executable, "-c", TAKE_AND_DIE, str(tmp_path), *given], check=False, timeout=60)
    with app_module.open_home(config_load.load(env={"ADW_HOME": str(tmp_path), **ranges}, cwd=tmp_path)) as app:
        app.ports.take("1a2b3c4d")
        assert {row.adw_id for row in app.ports.all()} == {"dead0001", "1a2b3c4d"}

        app.recovery.recover()

        assert {row.adw_id for row in app.ports.all()} == {"1a2b3c4d"}


# --- where phases work -----------------------------------------------------------------------------------------


def test_a_home_below_an_empty_git_directory_works_in_place(tmp_path):
    """
    The sandbox of an agent puts one into each directory that the agent may write to.
    """
    (tmp_path / ".git").mkdir()
    home = tmp_path / "home"
    home.mkdir()

    with app_module.open_home(config_load.load(env={"ADW_HOME": str(home)}, cwd=home)) as app:
        assert not app.has_worktrees
