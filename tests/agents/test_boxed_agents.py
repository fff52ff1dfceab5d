"""Claude Code and Codex themselves in each sandbox, with a model on this machine: they work, and their talk goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.agents import real_agents
from tests.agents.stub_model import StubModel
from tests.agents.test_real_agents import RealWorld, files_of, hanging_in_build, tries
from tests.integration.process_lab import is_alive
from tests.integration.test_sandboxed_agent import BACKENDS, why_missing
from tests.integration.work_lab import QUICK, git, make_work_lab


@pytest.fixture(params=[(name, backend) for name in ("claude", "codex") for backend in BACKENDS], ids="-".join)
def boxed(request, tmp_path, monkeypatch):
    name, backend = request.param
    if reason := real_agents.why_missing(name) or why_missing(backend):
        pytest.skip(reason)
    with StubModel() as model:
        for key, value in real_agents.variables(name, tmp_path / "person", model.url).items():
            monkeypatch.setenv(key, value)
        (tmp_path / "person" / ".gitconfig").write_text("[user]\n\tname = adw tests\n\temail = tests@adw.invalid\n")
        (tmp_path / "person" / ".claude").mkdir(exist_ok=True)
        settings = {
            "ADW_AGENT_PROGRAMS": f"{name}={real_agents.program(name)}",
            "ADW_AGENT_NAME": name,
            "ADW_ADVISOR_USE": "off",
            "ADW_SANDBOX_MODE": backend,
            "ADW_SANDBOX_REQUIRED": "true",
            "ADW_SANDBOX_EGRESS": model.url.removeprefix("http://").partition("/")[0],
        }
        yield RealWorld(name=name, model=model, lab=make_work_lab(tmp_path, **settings))


def test_an_agent_plans_and_builds_in_its_box(boxed):
    boxed.run()

    document = boxed.document
    assert document.current_state == "completed", [one.error for record in document.phases for one in record.attempts]
    assert files_of(boxed) == {"stub.txt"}


#: What the model asks for in each phase: a plan, work with a test that is run, a commit, and a report.
STEPS = """\
case $ADW_PHASE in
plan) mkdir -p specs; echo "# Plan" > specs/plan.md ;;
build) echo "import unittest
class T(unittest.TestCase):
    def test(self): self.assertTrue(True)" > test_it.py
    python3 -m unittest -q test_it && git add -A && git commit -qm "Add a test" ;;
document) echo "# It" > README.md ;;
esac
echo '{"success": true, "summary": "done", "findings": []}' > "$ADW_RESULT_FILE"
"""


def test_a_whole_sdlc_with_tests_and_commits_ships_from_its_box(boxed):
    boxed.model.command = STEPS
    with boxed.lab.open() as app:
        spec = app.workflows.get("sdlc")
    boxed.adw_id = boxed.lab.start(*(replace(phase, retry=QUICK) for phase in spec.phases))
    boxed.lab.work()

    document = boxed.document
    assert document.current_state == "completed", [one.error for record in document.phases for one in record.attempts]
    assert "Add a test" in git(boxed.lab.remote, "log", "--format=%s", "--all").splitlines()
    assert {record.name: len(record.attempts) for record in document.phases} == dict.fromkeys(
        ("plan", "build", "lint", "test", "review", "document", "ship", "clean"), 1
    )


def test_an_attempt_after_an_outage_continues_the_conversation(boxed):
    boxed.run("work", *["429"] * tries(boxed.name, 429))

    first, second = boxed.build.attempts
    assert boxed.document.current_state == "completed", second.error
    assert second.agent["is_resumed"]
    assert second.agent["session_id"] == first.agent["session_id"]


def test_after_kill_9_of_the_worker_nothing_runs_and_the_work_goes_on(boxed):
    with hanging_in_build(boxed):  # kill -9 at its end
        pid = boxed.agent_pid()

    with boxed.lab.open() as app:
        app.recovery.recover(every_document=True)
    assert not is_alive(pid)
    boxed.lab.work()

    first, second = boxed.build.attempts
    assert boxed.document.current_state == "completed", second.error
    if boxed.lab.env["ADW_SANDBOX_MODE"] == "bubblewrap" and boxed.name == "claude":
        # It is killed with the worker: when it has not written its conversation down by then, a new one takes over.
        known = second.agent["session_id"] if second.agent["is_resumed"] else second.agent.get("lost_session")
        assert known == first.agent["session_id"], second.agent
        return
    assert second.agent["is_resumed"], second.agent
    assert second.agent["session_id"] == first.agent["session_id"]
