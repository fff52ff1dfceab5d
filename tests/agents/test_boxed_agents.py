"""Claude Code and Codex themselves in each sandbox, with a model on this machine: they work, and their talk goes on."""

from __future__ import annotations

import pytest

from tests.agents import real_agents
from tests.agents.stub_model import StubModel
from tests.agents.test_real_agents import RealWorld, files_of, hanging_in_build
from tests.integration.process_lab import is_alive
from tests.integration.test_sandboxed_agent import BACKENDS, why_missing
from tests.integration.work_lab import make_work_lab


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
