"""`adw init`: what is found is written, what is there is left alone, and what was written works."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adws.adw_modules.agents.base import names
from adws.sample import agent, texts
from tests.acceptance.cli_lab import Terminal, document

WRITTEN = [
    "adw.toml",
    *(f"prompts/{name}.md" for name in ("plan", "build", "lint", "test", "review", "document", "patch")),
    ".gitignore",
]


@pytest.fixture
def path(tmp_path, monkeypatch) -> str:
    """A PATH with git and a scripted agent called `claude`, and no other agent."""
    folder = tmp_path / "programs"
    folder.mkdir()
    words = [sys.executable, "-I", "-S", str(agent.__file__), str(tmp_path), "0"]
    (folder / "claude").write_text(texts.AGENT_STARTER.format(arguments=shlex.join(words)))
    (folder / "claude").chmod(0o755)
    monkeypatch.setenv("ADW_AGENT_PROGRAMS", ", ".join(f"{name}=no-such-agent" for name in names()[1:]))
    value = f"{folder}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", value)
    return value


@pytest.fixture
def repository(home) -> Path:
    """The sample, as somebody has it who never heard of adw."""
    (home / "greet.py").write_text(texts.GREET)
    (home / "test_greet.py").write_text(texts.TEST_GREET)
    (home / "Makefile").write_text(
        f"test:\n\t{sys.executable} test_greet.py\nlint:\n\t{sys.executable} -m py_compile greet.py\n"
    )
    git(home, "add", ".")
    git(home, "commit", "-q", "-m", "A sample")
    return home


def git(home: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=home, capture_output=True, text=True, check=True).stdout


def test_what_is_found_is_written_and_told(adw, repository, path):
    git(repository, "remote", "add", "origin", "git@github.com:Acme/Shop.git")

    done = adw("init", "--yes", env={"ADW_GITHUB_TOKEN": "a-token-that-is-not-shown"})

    assert done.rc == 0, done.stderr
    for fact in (
        "languages       Python",
        "test            make test (Makefile, test)",
        "lint            make lint (Makefile, lint)",
        "default branch  main",
        "remote          origin",
        "GitHub          Acme/Shop",
        "token           env ADW_GITHUB_TOKEN",
        "agents          claude",
    ):
        assert f"  {fact}\n" in done.stdout
    assert [line.removeprefix("wrote ") for line in done.stdout.splitlines() if line.startswith("wrote ")] == WRITTEN
    assert "a-token-that-is-not-shown" not in done.stdout + (repository / "adw.toml").read_text()
    assert (repository / ".gitignore").read_text() == "# what adw makes at run time\n/state/\n/trees/\n.ports.env\n"


def test_what_is_written_can_be_read_by_every_command(adw, repository, path):
    git(repository, "remote", "add", "origin", "https://github.com/acme/shop")
    adw("init", "--yes")

    config, workflow = adw("config", "--json").json(), adw("workflow", "show", "sdlc", "--json").json()

    assert config["github.repository"]["value"] == "acme/shop"
    assert workflow["ready"] is True
    gates = {phase["name"]: phase.get("gates") for phase in workflow["phases"]}
    assert [gate["command"] for gate in gates["test"]] == [["make", "test"]]
    assert [gate["command"] for gate in gates["lint"]] == [["make", "lint"]]


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_a_repository_can_be_worked_on_with_what_was_written(adw, repository, path):
    """
    An agent in PATH needs nothing but what init wrote; the tests that were found send its work back to build.

    They are red before that, because they ask for what the issue asks for: a person says that this is meant.
    """
    adw("init", "--yes")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "Begin with adw")
    started = ("run", "7", "--title", texts.ISSUE_TITLE, "--body", texts.ISSUE_BODY, "--json")
    refused = adw(*started, timeout=120)

    done = adw(*started, timeout=120, env={"ADW_GATES_BASE": "ignore"})

    assert refused.rc == 1
    assert "the gate `make test` is red on the base commit" in refused.stderr
    assert done.rc == 0, done.stdout + done.stderr
    told = document(repository, done.json()["adw_id"])
    assert told["current_state"] == "completed"
    assert {phase["name"]: len(phase["attempts"]) for phase in told["phases"]}["test"] == 2
    assert {phase["name"]: len(phase["attempts"]) for phase in told["phases"]}["build"] == 2
    assert "(name or" in git(repository, "show", f"{told['branch_name']}:greet.py")


def test_a_second_time_nothing_is_written_and_everything_left_is_named(adw, repository, path):
    adw("init", "--yes")
    before = {name: (repository / name).read_bytes() for name in WRITTEN}
    (repository / "adw.toml").write_text('# mine\n[agent]\nname = "claude"\n')

    again = adw("init", "--yes", "--json").json()

    assert again["written"] == []
    assert sorted(again["left"]) == sorted(WRITTEN)
    assert (repository / "adw.toml").read_text().startswith("# mine")
    assert all((repository / name).read_bytes() == before[name] for name in WRITTEN[1:])


def test_what_is_missing_beside_what_is_there_is_written(adw, repository, path):
    (repository / "prompts").mkdir()
    (repository / "prompts/plan.md").write_text("Plan as I say.\n")
    (repository / ".gitignore").write_text("*.pyc\n/state/")

    done = adw("init", "--yes")

    assert "left alone prompts/plan.md: it is there already" in done.stdout
    assert (repository / "prompts/plan.md").read_text() == "Plan as I say.\n"
    assert (
        repository / ".gitignore"
    ).read_text() == "*.pyc\n/state/\n# what adw makes at run time\n/trees/\n.ports.env\n"


def test_a_dry_run_writes_nothing(adw, repository, path):
    before = sorted(str(item) for item in repository.rglob("*") if ".git/" not in str(item))

    done = adw("init", "--dry-run")

    assert "would write adw.toml" in done.stdout
    assert sorted(str(item) for item in repository.rglob("*") if ".git/" not in str(item)) == before


def test_what_is_said_on_the_command_line_is_taken(adw, repository, path):
    told = adw(
        "init", "--test", "make test && true", "--lint", "make lint", "--repository", "acme/shop", "--json"
    ).json()

    assert told["found"]["test"] == {"command": "make test && true", "source": "the command line"}
    assert told["found"]["repository"] == "acme/shop"
    text = (repository / "adw.toml").read_text()
    assert 'gates = [{ shell = "make test && true" }]' in text
    assert 'gates = [{ command = ["make", "lint"] }]' in text


def test_a_directory_of_the_repository_is_not_used_for_state(adw, repository, path):
    (repository / "state").mkdir()
    (repository / "state/machine.py").touch()

    adw("init", "--yes")

    config = adw("config", "--json").json()
    assert config["state.dir"]["value"] == str(repository / ".adw/state")
    assert (repository / ".gitignore").read_text().splitlines()[-2:] == ["/.adw/", ".ports.env"]


def test_a_remote_that_is_not_called_origin_is_used_when_it_is_the_only_one(adw, repository, path):
    git(repository, "remote", "add", "upstream", "git@github.com:acme/shop.git")

    adw("init", "--yes")

    config = adw("config", "--json").json()
    assert (config["git.remote"]["value"], config["github.repository"]["value"]) == ("upstream", "acme/shop")


def test_what_has_to_be_done_next_is_told(adw, home, tmp_path, monkeypatch):
    """
    Without an agent, a token or a command that tests, each is named.
    """
    monkeypatch.setenv("ADW_AGENT_PROGRAMS", ", ".join(f"{name}=no-such-agent" for name in names()))
    git(home, "remote", "add", "origin", "https://github.com/acme/shop")

    told = adw("init", "--yes", "--json").json()

    assert told["found"]["test"] is None
    assert told["next"] == [
        "install claude, or say where it is with agent.programs in adw.toml",
        "export ADW_GITHUB_TOKEN=...    # with gh: export ADW_GITHUB_TOKEN=$(gh auth token)",
        "git add adw.toml prompts .gitignore    # then commit them",
        "adw doctor",
        "adw run ISSUE",
    ]


def test_a_repository_without_a_commit_is_told_to_begin_with_one(adw, tmp_path, path):
    place = tmp_path / "new"
    place.mkdir()
    git(place, "init", "-q")

    told = adw("init", "--yes", "--json", env={"ADW_HOME": str(place)}).json()

    assert told["next"][0].startswith("git commit --allow-empty")


def test_on_a_terminal_only_what_was_not_found_is_asked(home, path):
    (home / "Makefile").write_text("lint:\n\ttrue\n")
    with Terminal(home, "init") as terminal:
        terminal.until("The repository on GitHub")
        terminal.type("acme/shop")
        terminal.until("The command that runs the tests")
        terminal.type("make check")
        code = terminal.end()

    assert code == 0
    assert "checks the style" not in terminal.text
    text = (home / "adw.toml").read_text()
    assert "Found in: your answer." in text
    assert 'gates = [{ command = ["make", "check"] }]' in text
    assert 'repository = "acme/shop"' in text


def test_with_yes_nothing_is_asked_on_a_terminal(home, path):
    with Terminal(home, "init", "--yes") as terminal:
        assert terminal.end() == 0

    assert "No command for test was found" in (home / "adw.toml").read_text()


def test_outside_of_a_repository_nothing_is_written(adw, tmp_path):
    place = tmp_path / "plain"
    place.mkdir()

    done = adw("init", env={"ADW_HOME": str(place)})

    assert done.rc == 1
    assert "is in no git repository" in done.stderr
    assert list(place.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(adw, repository, path):
    (repository / "prompts").write_text("a file")

    done = adw("init", "--yes")

    assert done.rc == 2
    assert "prompts/plan.md cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["not a repository", "acme"])
def test_a_repository_that_is_none_is_refused(adw, home, name):
    done = adw("init", "--repository", name)

    assert done.rc == 2
    assert "names no repository" in done.stderr
    assert not (home / "adw.toml").exists()
