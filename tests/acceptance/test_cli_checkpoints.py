"""kill -9 of a worker in step 4 of 5 or after all: the next one goes on from the last checkpoint, repeating none."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from adws.adw_modules.checkpoint import CheckpointManager
from tests.acceptance import cli_lab
from tests.acceptance.cli_lab import Beside

#: An executor and a function that save after each step; `up` is a pipe that tells the test where they are.
STEPS = """
import pathlib

class Steps:
    waits = True

    def __init__(self):
        self.finished = []

    def resume_from_checkpoint(self, checkpoint):
        self.finished = checkpoint["finished"]

    def execute(self, context):
        for step in range(len(self.finished) + 1, 6):
            note(f"begin {step}")
            if step == 4 and context.attempt_number == 1 and self.waits:
                wait()
            note(f"done {step}")
            self.finished.append(step)
            context.save_checkpoint({"finished": self.finished}, f"step {step}")
        return {"finished": self.finished}

class Quick(Steps):
    waits = False

class Forgetful(Steps):
    resume_from_checkpoint = None

def note(line):
    with open("steps.log", "a") as log:
        log.write(line + "\\n")

def wait():
    pathlib.Path("up").write_text("up\\n")
    pathlib.Path("go").read_text()
"""
#: The same as a command.
COMMAND = """
import json, os, pathlib, sys
from steps import note, wait
file = pathlib.Path(os.environ["ADW_CHECKPOINT_FILE"])
finished = json.loads(file.read_text())["finished"] if file.exists() else []
for step in range(len(finished) + 1, 6):
    note(f"begin {step}")
    if step == 4 and os.environ["ADW_ATTEMPT"] == "1" and "quick" not in sys.argv:
        wait()
    note(f"done {step}")
    finished.append(step)
    new = file.with_name("new")
    new.write_text(json.dumps({"finished": finished}))
    new.rename(file)
pathlib.Path(os.environ["ADW_RESULT_FILE"]).write_text(json.dumps({"finished": finished}))
"""
#: Waits in the first attempt: all of the work is done then, and the end of the phase not stored.
GATE = json.dumps('test "$ADW_ATTEMPT" != 1 || { echo up > up; cat go; }')
WORKFLOWS = f"""
[worktree]
enabled = false
[[workflows.executor.phases]]
name = "build"
runner = "python"
call = "steps:Steps"

[[workflows.forgetful.phases]]
name = "build"
runner = "python"
call = "steps:Forgetful"

[[workflows.command.phases]]
name = "build"
command = [{json.dumps(sys.executable)}, "command.py"]

[[workflows.gated-executor.phases]]
name = "build"
runner = "python"
call = "steps:Quick"
gates = [{{ shell = {GATE} }}]

[[workflows.gated-command.phases]]
name = "build"
command = [{json.dumps(sys.executable)}, "command.py", "quick"]
gates = [{{ shell = {GATE} }}]
"""


@pytest.fixture
def home(tmp_path):
    home = cli_lab.make_home(tmp_path)
    (home / "steps.py").write_text(STEPS)
    (home / "command.py").write_text(COMMAND)
    (home / "adw.toml").write_text(WORKFLOWS)
    return home


def killed_and_gone_on(adw, home, workflow):
    """Kill the worker where it waits, let another one take over, and return the document and what the steps noted."""
    adw_id = adw("run", "7", "--workflow", workflow, "--detach", "--json").json()["adw_id"]
    with Beside(home, "worker", "--once") as first:
        cli_lab.has_begun(home)
        first.process.send_signal(signal.SIGKILL)
        assert first.end() == -signal.SIGKILL

    second = adw("worker", "--once")

    assert second.rc == 0, second.stderr
    return cli_lab.document(home, adw_id), (home / "steps.log").read_text().split("\n")[:-1]


@pytest.mark.parametrize("workflow", ["executor", "command"])
def test_the_next_worker_goes_on_at_the_last_checkpoint(adw, home, workflow):
    document, noted = killed_and_gone_on(adw, home, workflow)

    (build,) = document["phases"]
    assert document["current_state"] == "completed"
    assert [attempt["status"] for attempt in build["attempts"]] == ["interrupted", "succeeded"]
    assert build["result"] == {"finished": [1, 2, 3, 4, 5]}
    assert [line for line in noted if line.startswith("done")] == [f"done {step}" for step in range(1, 6)]
    assert [line for line in noted if line.startswith("begin")] == [f"begin {step}" for step in (1, 2, 3, 4, 4, 5)]
    # Nothing of the checkpoints is left.
    with CheckpointManager(home / "state" / "adw.db") as manager:
        assert manager.list_checkpoints(f"{document['adw_id']}/build") == ()
    assert list(home.glob("state/**/*checkpoint*")) == []


@pytest.mark.parametrize("workflow", ["gated-executor", "gated-command"])
def test_no_step_is_repeated_when_the_worker_dies_between_the_last_one_and_the_end_of_the_phase(adw, home, workflow):
    document, noted = killed_and_gone_on(adw, home, workflow)

    (build,) = document["phases"]
    assert document["current_state"] == "completed"
    assert [attempt["status"] for attempt in build["attempts"]] == ["interrupted", "succeeded"]
    assert build["result"] == {"finished": [1, 2, 3, 4, 5]}
    assert [line for line in noted if line.startswith("begin")] == [f"begin {step}" for step in range(1, 6)]


def test_an_executor_that_cannot_resume_starts_again(adw, home):
    document, noted = killed_and_gone_on(adw, home, "forgetful")

    assert document["current_state"] == "completed"
    done = [line for line in noted if line.startswith("done")]
    assert done == [f"done {step}" for step in (1, 2, 3, 1, 2, 3, 4, 5)]
