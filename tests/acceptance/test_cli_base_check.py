"""`adw run` runs the gates on the commit that work starts from, before an agent is paid."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.integration.agent_lab import FakeAgent
from tests.integration.work_lab import git

PASSED = {"result_file": {"success": True, "summary": "fine"}}
BUILT = {"do": ["echo 'x = 1' > app.py"], "answer": "Built."}
#: A linter: red for every file that has a word in it.
LINTER = "#!/bin/sh\n! grep -n BAD *.py && exit 0; echo 'Found errors.'; exit 1\n"
FLOW = """
[phases.lint]
gates = [{ command = ["./linter"] }]

[workflows.small]
[[workflows.small.phases]]
name = "build"
prompt = "build"
[[workflows.small.phases]]
name = "test"
prompt = "test"
on_rework = "build"
gates = [{ command = ["./linter"] }, { shell = "test -e app.py" }]
"""


@pytest.fixture
def agent(tmp_path, monkeypatch) -> FakeAgent:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-a-real-key")
    agent = FakeAgent(tmp_path / "agent")
    monkeypatch.setenv("ADW_AGENT_PROGRAMS", f"claude={agent.program}")
    return agent


@pytest.fixture
def repository(home, agent) -> Path:
    """A repository with a red linter: what is on main is not what it should be."""
    del agent
    (home / "linter").write_text(LINTER)
    (home / "linter").chmod(0o755)
    (home / "app.py").write_text("x = BAD\n")
    (home / "other.py").write_text("y = BAD\n")
    (home / ".gitignore").write_text("state/\ntrees/\nforge/\n.ports.env\n")
    (home / "adw.toml").write_text(FLOW)
    git(home, "add", ".")
    git(home, "commit", "-q", "-m", "Red")
    return home


def run(adw, *args: str, **env: str):
    return adw("run", "7", "--workflow", "small", "--title", "Do it", "--json", *args, env=env)


def fix(repository: Path) -> None:
    for name in ("app.py", "other.py"):
        (repository / name).write_text("z = 1\n")
    git(repository, "commit", "-q", "-a", "-m", "Green")


def made(repository: Path) -> list[str]:
    """What a start would have made: documents, branches, worktrees."""
    documents = [str(path) for path in (repository / "state").glob("*/adw_state.json")]
    branches = git(repository, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()
    worktrees = git(repository, "worktree", "list").splitlines()[1:]

    return [*documents, *branches[1:], *worktrees]


def test_a_red_base_is_refused_in_one_sentence_before_anything_is_made(adw, repository, agent):
    done = run(adw)

    assert done.rc == 1
    assert done.stderr.count("adw: ") == 1
    [sentence] = [line for line in done.stderr.splitlines() if line.startswith("adw: ")]
    assert "the gate `./linter` is red on the base commit" in sentence
    assert "gates.base" in sentence
    assert "other.py:1:y = BAD" in done.stderr, "its output is shown"
    assert made(repository) == []
    assert agent.calls == []


def test_a_base_that_was_fixed_is_checked_again_and_worked_on(adw, repository, agent):
    agent.plays(BUILT, PASSED)
    assert run(adw).rc == 1
    fix(repository)

    done = run(adw)

    assert done.rc == 0, done.stderr
    assert len(agent.calls) == 2


def test_a_tool_that_was_installed_makes_the_same_base_green(adw, repository, agent, tmp_path, monkeypatch):
    fix(repository)
    agent.plays(BUILT, PASSED)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (repository / "adw.toml").write_text(FLOW.replace('["./linter"]', '["my-linter"]'))
    missing = run(adw)
    (tmp_path / "my-linter").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "my-linter").chmod(0o755)

    done = run(adw)

    assert missing.rc == 1
    assert "my-linter" in missing.stderr
    assert done.rc == 0, done.stderr


def test_a_green_base_is_checked_once_for_each_commit(adw, repository, agent):
    fix(repository)
    (repository / "linter").write_text("#!/bin/sh\necho ran >> $HOME/ran\n")
    git(repository, "commit", "-q", "-a", "-m", "Count")
    agent.plays(BUILT, PASSED, BUILT, PASSED)
    home = {"HOME": str(repository.parent)}

    first = run(adw, **home)
    second = adw("run", "8", "--workflow", "small", "--title", "Do it", "--json", env=home)

    assert (first.rc, second.rc) == (0, 0), second.stderr
    # Once on the base, and once after the tests of each of the two.
    assert (repository.parent / "ran").read_text().count("ran") == 3


@pytest.mark.parametrize("where", ["setting", "workflow", "gate"])
def test_a_red_base_is_not_checked_where_that_is_asked_for(adw, repository, agent, where):
    agent.plays({"do": ["echo 'x = 1' > app.py", "echo 'y = 1' > other.py"]}, PASSED)
    text = {
        "setting": FLOW + '\n[gates]\nbase = "ignore"\n',
        "workflow": FLOW.replace("[workflows.small]\n", '[workflows.small]\nbase = "ignore"\n'),
        "gate": FLOW.replace('["./linter"] }, ', '["./linter"], base = "ignore" }, '),
    }
    (repository / "adw.toml").write_text(text[where])

    done = run(adw)

    assert done.rc == 0, done.stderr
    assert len(agent.calls) == 2, "the issue was to make it green"


def test_a_check_that_is_stopped_on_order_suspends_the_attempt(adw, repository, agent):
    place = repository.parent
    os.mkfifo(place / "never")
    (repository / "linter").write_text(
        f"#!/bin/sh\n{warm.ADW} --home {repository} pause $ADW_ID &\nexec cat {place}/never\n"
    )
    git(repository, "commit", "-q", "-a", "-m", "Pause")
    assert run(adw, "--detach").rc == 0

    done = adw("worker", "--once")

    assert done.rc == 0, done.stderr
    [document] = [json.loads(path.read_text()) for path in (repository / "state").glob("*/adw_state.json")]
    assert document["current_state"] == "paused"
    assert [attempt["status"] for attempt in document["phases"][0]["attempts"]] == ["suspended"]
    assert agent.calls == []
    assert not (repository / "state/.base/tree").exists()


def test_with_compare_only_new_failures_count(adw, repository, agent):
    (repository / "adw.toml").write_text(FLOW + '\n[gates]\nbase = "compare"\n')
    worse = {"do": ["printf 'x = 1\\ny = BAD\\nz = BAD\\n' > app.py"], "answer": "Built."}
    agent.plays(worse, PASSED, BUILT, PASSED)

    done = run(adw)

    assert done.rc == 0, done.stderr
    _, _, rebuild, _ = [call["prompt"] for call in agent.calls]
    assert "app.py:2:y = BAD" in rebuild, "what is new is a reason to build again"
    assert "app.py:3:z = BAD" in rebuild
    assert len(agent.calls) == 4, "what was there before is not"


def test_nothing_of_the_check_is_left(adw, repository, agent):
    fix(repository)
    agent.plays(BUILT, PASSED)
    done = run(adw)
    assert done.rc == 0, done.stderr

    worktrees = git(repository, "worktree", "list").splitlines()

    assert len(worktrees) == 2, "the main checkout and the workflow's own"
    assert not (repository / "state/.base/tree").exists()
    assert git(repository, "status", "--porcelain") == ""


def test_the_setting_is_checked(adw, repository):
    (repository / "adw.toml").write_text(FLOW + '\n[gates]\nbase = "maybe"\n')

    done = run(adw)

    assert done.rc == 2
    assert "require" in done.stderr


def test_a_killed_check_leaves_nothing_that_keeps_the_next_one_from_working(adw, repository, agent):
    fix(repository)
    (repository / "linter").write_text(
        "#!/bin/sh\ntest -e $HOME/killed && exit 0\n> $HOME/killed; kill -9 $(cat $HOME/run)\n"
    )
    git(repository, "commit", "-q", "-a", "-m", "Kill")
    agent.plays(BUILT, PASSED)
    place = repository.parent
    line = f"echo $$ > {place}/run; exec adw run 7 --workflow small --title x"
    killed = subprocess.run(
        ["/bin/sh", "-c", line], cwd=repository, env=environment(place, repository), capture_output=True, check=False
    )
    assert killed.returncode == -9, killed.stderr

    done = run(adw, HOME=str(place))

    assert done.rc == 0, done.stderr
    assert not (repository / "state/.base/tree").exists()


def environment(place: Path, repository: Path) -> dict[str, str]:
    folder = str(Path(warm.ADW).parent)
    return {**os.environ, "HOME": str(place), "ADW_HOME": str(repository), "PATH": f"{folder}:{os.environ['PATH']}"}


def test_a_set_up_that_fails_is_named_as_such(adw, repository, agent):
    (repository / "adw.toml").write_text(FLOW + '\n[worktree]\nsetup = "./no-set-up"\n')
    (repository / "no-set-up").write_text("#!/bin/sh\nexit 3\n")
    (repository / "no-set-up").chmod(0o755)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "Set up")

    done = run(adw)

    assert done.rc == 1
    assert "the set-up command './no-set-up' of the worktree failed" in done.stderr
    assert made(repository) == []
    assert agent.calls == []
