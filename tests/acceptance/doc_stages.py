"""
The places where the commands of pages are typed: for each page a home in which they make sense.

What a page shows as an id (`1a2b3c4d`), an address or a directory is replaced by what is there.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from adws.adw_modules.forge.model import NewPullRequest, PullRequest
from adws.sample import agent, texts
from adws.testing import FakeClock, MemoryForge
from tests import warm
from tests.acceptance import cli_lab
from tests.fault_forge import FaultForge
from tests.git_http import serving_git

#: The id that pages show.
SHOWN_ID = "1a2b3c4d"

#: What asks for an id that is known only when the work is done.
ASK_FOR_ID = '"$(adw list --json | grep -om1 \'"adw_id": "[0-9a-f]*\' | cut -d \'"\' -f 4)"'

#: A workflow that asks a person, and one that failed: its command works once there is a file `fixed`.
SHOP = """
[worktree]
enabled = false

[workflows.release]
[[workflows.release.phases]]
name = "build"
command = ["make", "all"]
[[workflows.release.phases]]
name = "review"
shell = "make report"
gate = "human"

[workflows.fragile]
[[workflows.fragile.phases]]
name = "build"
shell = "echo building; test -e fixed || no-such-program"
max_attempts = 3
"""


@dataclass
class Stage:
    """Where the commands of a page are typed."""

    home: Path
    env: dict[str, str] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)  #: what the page shows -> what is there
    close: list[Callable[[], object]] = field(default_factory=list)

    def adw(self, *words: str, rc: int = 0) -> str:
        """Type a command that the page does not show."""
        done = warm.run(
            [cli_lab.ADW, *words],
            cwd=self.home,
            env={**os.environ, **self.env, "ADW_HOME": str(self.home)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout

    def run(self, workflow: str, issue: int, *more: str, rc: int = 0) -> str:
        """Run a workflow and return its id."""
        return json.loads(self.adw("run", str(issue), "--workflow", workflow, "--json", *more, rc=rc))["adw_id"]


def shop(tmp_path: Path) -> Stage:
    """Return a home with the workflows above, and a `make` that always succeeds."""
    home = tmp_path.resolve() / "shop"
    home.mkdir()
    (home / "adw.toml").write_text(SHOP)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "make").write_text("#!/bin/sh\necho made $1\n")
    (bin_ / "make").chmod(0o755)
    path = f"{bin_}:{warm.bin_dir()}:{Path(cli_lab.ADW).parent}:{os.environ['PATH']}"
    return Stage(home=home, env={"PATH": path, "ADW_HOME": str(home)})


def failed(tmp_path: Path) -> Stage:
    """Return a home whose shown workflow has failed, and succeeds when it is retried."""
    stage = shop(tmp_path)
    stage.shown[SHOWN_ID] = stage.run("fragile", 7, rc=1)
    (stage.home / "fixed").touch()
    return stage


def older(tmp_path: Path) -> Stage:
    """Return a home beside what an older ADW set-up left."""
    stage = shop(tmp_path)
    folder = stage.home / "agents" / "77c90e61"
    folder.mkdir(parents=True)
    old = {"adw_id": "77c90e61", "issue_number": "12", "branch_name": None, "all_adws": ["adw_plan_iso"]}
    (folder / "adw_state.json").write_text(json.dumps(old))
    return stage


def moving(tmp_path: Path, empty_pg_url: str) -> Stage:
    """Return a home that can move to an empty PostgreSQL."""
    stage = failed(tmp_path)
    stage.shown["postgresql://adw@db.example.com/adw"] = f"'{empty_pg_url}'"
    return stage


def served(tmp_path: Path) -> Stage:
    """Return a home with a server at the address that the page shows."""
    stage = failed(tmp_path)
    port = _free_port()
    stage.env |= {"ADW_WEB_TOKEN": "t" * 32, "ADW_WEB_PORT": str(port)}
    stage.shown["http://127.0.0.1:8001"] = f"http://127.0.0.1:{port}"
    server = warm.Popen(
        [cli_lab.ADW, "--home", str(stage.home), "serve", "--workers", "0"],
        env={**os.environ, **stage.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stage.close += [server.kill, server.wait, server.stdout.close]
    assert "adw serves" in server.stdout.readline()
    return stage


def dashboard(tmp_path: Path) -> Stage:
    """Return a home whose server is ended when a link was asked for."""
    stage = failed(tmp_path)
    stage.shown["adw serve\n"] = "adw serve --port 0 --workers 0 > served.txt &\n"
    stage.shown["adw dashboard "] = "adw dashboard; kill $!; wait || true "
    return stage


def tutorial(tmp_path: Path) -> Stage:
    """Return a directory with a clone called greet; its GitHub is a server here, its agent that of the demo."""
    stage = shop(tmp_path)
    (stage.home / "adw.toml").unlink()
    clone, remote = stage.home / "greet", tmp_path / "remote.git"
    clone.mkdir()
    git_server = serving_git(remote, "acme/greet")
    origin = git_server.__enter__()
    stage.close.append(lambda: git_server.__exit__(None, None, None))
    # Its test holds before the work and after it, as a repository is that somebody starts with.
    test = 'from greet import greet\n\nassert greet("Ada").startswith("Hello, Ada")\n'
    for name, text in (("greet.py", texts.GREET), ("test_greet.py", test), (".gitignore", texts.IGNORED)):
        (clone / name).write_text(text)
    (clone / "Makefile").write_text(f"test:\n\t{sys.executable} -m unittest --quiet\n")
    for command in (
        ["init", "--quiet", "--initial-branch", "main"],
        ["add", "."],
        ["commit", "--quiet", "--message", "Begin"],
        ["remote", "add", "origin", origin],
        ["init", "--quiet", "--bare", "--initial-branch", "main", str(remote)],
        ["push", "--quiet", "origin", "main"],
    ):
        subprocess.run(["git", *command], cwd=clone, check=True, capture_output=True)
    (tmp_path / "bin" / "make").unlink()  # the real one runs the tests
    agent_folder = tmp_path / "agent"
    agent_folder.mkdir()
    words = [sys.executable, "-I", "-S", str(agent.__file__), str(agent_folder), "0"]
    claude = tmp_path / "bin" / "claude"
    claude.write_text(texts.AGENT_STARTER.format(arguments=shlex.join(words)))
    claude.chmod(0o755)
    place = _ForgeOfRemote(remote)
    while place.create_issue(texts.ISSUE_TITLE, texts.ISSUE_BODY, labels=("adw",), author="ada").number < 42:
        pass
    server = FaultForge(place).__enter__()
    stage.close.append(lambda: server.__exit__(None, None, None))
    stage.env |= {"ADW_HOME": "", "ADW_GITHUB_API_URL": server.url, "ADW_GITHUB_TOKEN": "tok_bot"}
    stage.shown["adw demo\n"] = f"adw demo --directory {tmp_path / 'demo'}\n"
    stage.shown["adw init --yes"] = "adw init --yes --repository acme/greet"  # the remote is on this disk
    stage.shown[SHOWN_ID] = ASK_FOR_ID
    return stage


#: An agent as examples/own_agent.md supposes one; with the key "fails-first" its first task fails.
HOUSE_AGENT = """#!/usr/bin/env python3
import json, os, pathlib, sys
asked = pathlib.Path("asked.jsonl")
session = sys.argv[2] if sys.argv[1:2] == ["--session"] else ""
is_first = not asked.exists()
with asked.open("a") as log:
    log.write(json.dumps({"session": session, "task": sys.stdin.read()}) + "\\n")
pathlib.Path("plan.md").write_text("say hello")
print(json.dumps({"text": "done", "cost": 0.25, "session": session or "s1"}))
if is_first and os.environ.get("HOUSE_API_KEY") == "fails-first":
    sys.exit("connection reset by peer")
"""


def own_agent(tmp_path: Path) -> Stage:
    """Return a home with house-agent beside it, and without a retry that takes long."""
    stage = shop(tmp_path)
    agent_path = tmp_path / "bin" / "house-agent"
    agent_path.write_text(HOUSE_AGENT)
    agent_path.chmod(0o755)
    stage.shown["~/.local/bin"] = str(tmp_path / "bin")
    stage.shown[SHOWN_ID] = ASK_FOR_ID
    return stage


class _ForgeOfRemote(MemoryForge):
    """A forge in memory that knows the branches of a bare repository."""

    def __init__(self, remote: Path) -> None:
        super().__init__("acme/greet", clock=FakeClock())
        self._remote = remote

    def create_pull_request(self, new: NewPullRequest) -> PullRequest:
        listed = subprocess.run(
            ["git", "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads"],
            cwd=self._remote,
            check=True,
            capture_output=True,
            text=True,
        )
        for line in listed.stdout.splitlines():
            self.push(*line.split())
        return super().create_pull_request(new)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
