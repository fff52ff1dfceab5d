"""
A phase passes only if its agent and all its gates say so, and what gates leave behind is not part of the work.

Whole workflows with a fake agent, through the real worker, in a real repository.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from adws.adw_modules.workflow.model import Gate, PhaseSpec
from tests.integration.agent_lab import FakeAgent
from tests.integration.work_lab import QUICK, git, make_work_lab, step

BUILD = PhaseSpec(name="build", state="building", runner="agent", prompt="build", retry=QUICK, max_attempts=3)
TEST = PhaseSpec(
    name="test", state="testing", runner="agent", prompt="test", on_rework="build", retry=QUICK, max_attempts=3
)
BUILT = {"do": ["echo built >> app.py"], "answer": "Built."}
FIXED = {"do": ["echo fixed >> app.py"], "answer": "Fixed."}
PASSED = {"result_file": {"success": True, "summary": "all tests passed"}}
#: Says a lot, and is red until the code is fixed; what is wrong stands far from its last line.
RED_UNTIL_FIXED = (
    "grep -q fixed app.py && exit 0; echo test_greeting: expected hello, got bye; seq 1 50; echo 1 failed; exit 1"
)


@pytest.fixture
def agent(tmp_path):
    return FakeAgent(tmp_path / "agent")


@pytest.fixture
def lab(tmp_path, agent, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-a-real-key")
    return make_work_lab(tmp_path, ADW_AGENT_PROGRAMS=f"claude={agent.program}", ADW_GATES_BASE="ignore")


def gated(phase: PhaseSpec, *lines: str) -> PhaseSpec:
    """Return *phase* with gates that run these lines of shell."""
    return replace(phase, gates=tuple(Gate(kind="command", shell=line) for line in lines))


def worked(lab, *phases: PhaseSpec):
    """Carry a workflow as far as it goes; return its document."""
    adw_id = lab.start(*phases)
    lab.work()

    return lab.document(adw_id)


def attempts(document, name: str) -> list[str]:
    return [attempt.status for phase in document.phases if phase.name == name for attempt in phase.attempts]


def committed(lab, document) -> list[str]:
    """The files that the branch of a workflow changes."""
    return git(lab.home, "diff", "--name-only", "main", document.branch_name).splitlines()


def events(lab, document, kind: str) -> list[dict]:
    with lab.open() as app:
        return [event.data for event in app.events.of_workflow(document.adw_id) if event.event_type == kind]


# --- verdicts --------------------------------------------------------------------------------------------------


def test_a_red_gate_of_the_tests_goes_back_to_build_with_all_that_the_gate_said(lab, agent):
    agent.plays(BUILT, PASSED, FIXED, PASSED)

    document = worked(lab, BUILD, gated(TEST, RED_UNTIL_FIXED))

    assert document.current_state == "completed"
    assert (attempts(document, "build"), attempts(document, "test")) == (["succeeded"] * 2, ["failed", "succeeded"])
    _, _, rebuild, retest = [call["prompt"] for call in agent.calls]
    assert "test_greeting: expected hello, got bye" in rebuild, "not only the last line"
    assert "1 failed" in rebuild
    before, _, after = rebuild.partition("\ntest_greeting: expected")
    assert "<<<OUTPUT" in before, "it is fenced"
    assert "OUTPUT>>>" in after
    assert "test_greeting" not in retest, "what was wrong with the work before is not wrong with this"
    [sent] = events(lab, document, "rework_asked")
    assert sent["back_to"] == "build"


def test_a_secret_that_a_gate_prints_does_not_reach_the_prompt(lab, agent):
    agent.plays(BUILT, PASSED, FIXED, PASSED)
    token = "ghp_" + "a1B2" * 9

    document = worked(lab, BUILD, gated(TEST, f"grep -q fixed app.py || {{ echo token {token} x; exit 1; }}"))

    assert document.current_state == "completed"
    assert "token " in agent.calls[2]["prompt"]
    assert token not in agent.calls[2]["prompt"]


def test_a_very_long_output_of_a_gate_is_told_with_its_beginning_and_its_end(lab, agent):
    agent.plays(BUILT, PASSED, FIXED, PASSED)
    noise = "grep -q fixed app.py && exit 0; echo first words; seq 1 200000; echo last words; exit 1"

    worked(lab, BUILD, gated(TEST, noise))

    prompt = agent.calls[2]["prompt"]
    assert "last words" in prompt
    assert len(prompt) < 60_000


def test_the_verdict_of_an_agent_counts_beside_a_gate(lab, agent):
    asks = {"result_file": {"success": False, "rework": True, "summary": "greet() ignores the name"}}
    agent.plays(BUILT, asks, FIXED, PASSED)

    document = worked(lab, BUILD, gated(TEST, "true"))

    assert document.current_state == "completed"
    assert (attempts(document, "build"), attempts(document, "test")) == (["succeeded"] * 2, ["succeeded"] * 2)
    assert "greet() ignores the name" in agent.calls[2]["prompt"]
    assert "write one JSON object to the file" in agent.calls[1]["prompt"], "the agent is asked for its verdict"


def test_an_agent_may_give_its_verdict_in_its_last_answer_beside_a_gate(lab, agent):
    said = '```json\n{"success": false, "rework": true, "summary": "it is wrong"}\n```\n'
    agent.plays(BUILT, {"answer": said}, FIXED, PASSED)

    document = worked(lab, BUILD, gated(TEST, "true"))

    assert document.current_state == "completed"
    assert attempts(document, "build") == ["succeeded"] * 2


def test_a_green_gate_does_not_pass_what_the_agent_says_has_failed(lab, agent):
    agent.plays(BUILT, {"result_file": {"success": False, "summary": "the tests could not be run"}})

    document = worked(lab, BUILD, gated(replace(TEST, max_attempts=1), "true"))

    assert document.current_state == "failed"
    assert "the tests could not be run" in document.phases[1].last_failure_reason


def test_a_phase_without_a_verdict_of_its_agent_does_not_pass_by_its_gate(lab, agent):
    agent.plays(BUILT, {"answer": "Looks good."})

    document = worked(lab, BUILD, gated(replace(TEST, max_attempts=1), "true"))

    assert document.current_state == "failed"
    assert "gave back no result" in document.phases[1].last_failure_reason


def test_an_agent_that_says_it_did_not_succeed_has_not_in_any_phase(lab, agent):
    agent.plays({**BUILT, "result_file": {"success": False, "summary": "half of it is missing"}})

    document = worked(lab, replace(BUILD, max_attempts=1))

    assert document.current_state == "failed"
    assert "half of it is missing" in document.phases[0].last_failure_reason


def test_reworks_for_red_gates_are_bounded_and_then_the_workflow_says_what_is_red(lab, agent):
    agent.plays(BUILT, PASSED, FIXED, PASSED, BUILT, PASSED, FIXED, PASSED)

    document = worked(lab, BUILD, gated(TEST, "echo never green; exit 1"))

    assert (document.current_state, document.terminal_reason) == ("failed", "MAX_REWORKS_EXHAUSTED")
    assert attempts(document, "build") == ["succeeded"] * 4
    assert "never green" in document.phases[1].last_failure_reason


def test_a_gate_that_cannot_be_run_is_no_reason_to_build_again(lab, agent):
    agent.plays(BUILT, PASSED)

    document = worked(lab, BUILD, gated(replace(TEST, max_attempts=1), "no-such-linter-here --check"))

    assert document.current_state == "failed"
    assert attempts(document, "build") == ["succeeded"]


# --- what gates leave ------------------------------------------------------------------------------------------

LEAVES = "mkdir -p cache; echo x > cache/x.pyc; echo spoiled >> app.py; echo y > left.txt"


def test_what_a_gate_leaves_is_not_committed(lab, agent):
    agent.plays({"do": ["echo built >> app.py; echo new > new.py"]}, {**PASSED, "do": ["echo t > test_new.py"]})

    document = worked(lab, gated(BUILD, LEAVES), gated(TEST, LEAVES), step("document", "echo d > d.md", "documenting"))

    assert document.current_state == "completed"
    assert sorted(committed(lab, document)) == ["app.py", "d.md", "new.py", "test_new.py"]
    assert "spoiled" not in git(lab.home, "show", f"{document.branch_name}:app.py")
    assert git(Path(document.worktree_path), "status", "--porcelain") == ""
    told = events(lab, document, "work_discarded")
    assert [one["phase"] for one in told] == ["build", "test"]
    assert sorted(told[0]["files"]) == ["app.py", "cache/x.pyc", "left.txt"]


def test_what_git_ignores_stays_when_leftovers_are_discarded(lab, agent):
    agent.plays(BUILT)

    document = worked(lab, gated(BUILD, "echo secret > .env; echo x > left.txt"))

    tree = Path(document.worktree_path)
    assert (tree / ".env").read_text() == "secret\n"
    assert not (tree / "left.txt").exists()


@pytest.mark.parametrize(
    "phase",
    [
        step("test", "echo log > test.log; echo spoiled >> app.py", "testing"),
        step("lint", "echo log > test.log; echo spoiled >> app.py", "linting"),
        PhaseSpec(name="review", state="reviewing", runner="agent", prompt="review", retry=QUICK),
    ],
    ids=["a test command", "a lint command", "a reviewer"],
)
def test_what_a_phase_that_only_checks_leaves_is_discarded(lab, agent, phase):
    agent.plays(BUILT, {**PASSED, "do": ["echo log > test.log; echo spoiled >> app.py"]})

    document = worked(lab, BUILD, phase, step("document", "echo d > d.md", "documenting"))

    assert document.current_state == "completed"
    assert sorted(committed(lab, document)) == ["app.py", "d.md"]
    assert "spoiled" not in git(lab.home, "show", f"{document.branch_name}:app.py")


def test_what_a_phase_leaves_that_declares_commits_is_committed(lab, agent):
    agent.plays(BUILT)

    document = worked(lab, BUILD, step("lint", "echo formatted >> app.py", "linting", commits=True))

    assert "formatted" in git(lab.home, "show", f"{document.branch_name}:app.py")


def test_the_artifact_gate_of_a_phase_that_only_checks_sees_what_the_phase_left(lab, agent):
    agent.plays(BUILT)
    tested = step("test", "echo fine > test.log", "testing", gates=(Gate(kind="artifact", artifact="test.log"),))

    document = worked(lab, BUILD, tested)

    assert document.current_state == "completed"
    assert committed(lab, document) == ["app.py"]


def test_commits_that_a_gate_makes_are_taken_back_and_kept(lab, agent):
    agent.plays(BUILT)
    commit = "echo x > sneaked.py; git add sneaked.py; git -c user.name=g -c user.email=g@x commit -q -m sneaked"

    document = worked(lab, gated(BUILD, commit), step("document", "echo d > d.md", "documenting"))

    assert sorted(committed(lab, document)) == ["app.py", "d.md"]
    [told] = events(lab, document, "work_discarded")
    assert git(lab.home, "show", f"{told['commits']}:sneaked.py") == "x"


def test_what_a_failed_check_leaves_is_gone_before_the_next_attempt(lab, agent):
    agent.plays(BUILT)
    line = "test ! -e seen || exit 3; echo x > seen; test $ADW_ATTEMPT = 2 || { echo connection reset >&2; exit 1; }"

    document = worked(lab, BUILD, step("test", line, "testing"))

    assert document.current_state == "completed"
    assert attempts(document, "test") == ["failed", "succeeded"]


def test_what_a_person_changed_in_the_worktree_is_part_of_the_work_and_not_discarded(lab, agent):
    agent.plays(BUILT)
    red = step("test", "grep -q fixed app.py || exit 9", "testing", max_attempts=1)
    document = worked(lab, BUILD, red)
    assert document.current_state == "failed"
    with (Path(document.worktree_path) / "app.py").open("a") as file:
        file.write("fixed\n")

    with lab.open() as app:
        app.control.resume(document.adw_id, by="ada", grant=1)
    lab.work()

    document = lab.document(document.adw_id)
    assert document.current_state == "completed"
    assert "fixed" in git(lab.home, "show", f"{document.branch_name}:app.py")


WORKER = """
import sys
from pathlib import Path
from tests.integration.work_lab import WorkLab
WorkLab(home=Path(sys.argv[1]), remote=Path(sys.argv[1]), env=dict(one.split("=", 1) for one in sys.argv[2:])).work()
"""


@pytest.mark.parametrize("where", ["gate", "check"])
def test_what_a_gate_or_a_check_left_that_a_crash_cut_off_is_discarded(lab, agent, where):
    agent.plays(BUILT)
    # The first time the worker is killed in the middle, after something was left.
    line = f"echo x > left.pyc; test -e {lab.home}/crashed && exit 0; echo > {lab.home}/crashed; kill -9 $WORKER"
    crash = f"WORKER=$(cat {lab.home}/worker); {line}"
    phases = (
        [gated(BUILD, crash), step("document", "echo d > d.md", "documenting")]
        if where == "gate"
        else [BUILD, step("test", crash, "testing"), step("document", "echo d > d.md", "documenting")]
    )
    adw_id = lab.start(*phases)
    env = [f"{name}={value}" for name, value in lab.env.items()]
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(lab.home), *env])
    (lab.home / "worker").write_text(f"{worker.pid}\n")
    assert worker.wait(timeout=60) == -signal.SIGKILL

    with lab.open() as app:
        app.recovery.recover()
    lab.work()

    document = lab.document(adw_id)
    assert document.current_state == "completed"
    assert sorted(committed(lab, document)) == ["app.py", "d.md"]
    first = events(lab, document, "work_discarded")[0]
    patch = lab.home / "state" / adw_id / first["patch"]
    assert "left.pyc" in patch.read_text()
