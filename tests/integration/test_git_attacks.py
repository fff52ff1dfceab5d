"""
adw's git, after a phase or a gate has written into the git directory that all worktrees share.

Each attack goes through an agent that leaves a script for a later command, a command, a Python function, a step and a
gate. It is named and stops the workflow. When a person lets it stay, adw's git neither runs it nor shows anybody the
token.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from adws.adw_modules.workflow.model import Gate, PhaseSpec, StepSpec
from tests import sampling, warm
from tests.integration import git_servers
from tests.integration.agent_lab import FakeAgent
from tests.integration.git_lab import persons_config
from tests.integration.work_lab import BUILD, CLEAN, PLAN, QUICK, SHIP, git, make_work_lab, step

TOKEN = "ghp_Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4zA7b0"
#: What the worker's environment has that no git needs.
SECRETS = {
    "ADW_GITHUB_TOKEN": TOKEN,
    "ADW_WEBHOOK_SECRET": "whsec-0123456789abcdef",
    "AWS_SECRET_ACCESS_KEY": "aws-0123456789abcdef",
    "PGPASSWORD": "pg-0123456789abcdef",
    "OPENAI_API_KEY": "sk-0123456789abcdef",
}
CARRIERS = ("agent", "command", "python", "steps", "gate")


class World:
    """A home, an attacker's script, and its results."""

    def __init__(self, place: Path, monkeypatch) -> None:
        self.place = place
        self.agent = FakeAgent(place / "agent")
        for name, value in SECRETS.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file:https:ssh")
        self.lab = make_work_lab(
            place,
            ADW_AGENT_PROGRAMS=f"claude={self.agent.program}",
            ADW_ADVISOR_USE="off",
            ADW_GITHUB_TOKEN=TOKEN,
        )
        self.attack_script = place / "attack.sh"
        self.evil = place / "evil"
        self.evil.write_text(f"#!/bin/sh\nenv > {place}/ran\nexit 1\n")
        self.evil.chmod(self.evil.stat().st_mode | stat.S_IXUSR)
        self.adw_id = ""

    @property
    def ran(self) -> str:
        """What the attacker's program found in its environment, "" when it was not run."""
        path = self.place / "ran"
        return path.read_text() if path.exists() else ""

    def attack(self, carrier: str, *lines: str) -> None:
        """Run a workflow in which *carrier* runs *lines* of shell in the worktree."""
        self.attack_script.write_text("\n".join(["set -e", *lines]) + "\n")
        run = f"sh {self.attack_script}"
        test = step("test", "true", "testing", max_attempts=2)
        build = BUILD
        if carrier == "agent":
            self.agent.plays({"do": [f"cp {self.attack_script} check.sh", "echo built >> app.py"], "answer": "Built."})
            build = PhaseSpec(name="build", state="building", runner="agent", prompt="build", retry=QUICK)
            test = replace(test, shell="sh check.sh")
        elif carrier == "command":
            test = replace(test, shell=run)
        elif carrier == "python":
            module = f"attacker_{abs(hash(self.place))}"  # Python keeps a module that it imported once
            (self.lab.home / f"{module}.py").write_text(
                "import subprocess\n\n\ndef work(context):\n"
                f"    subprocess.run(['sh', {str(self.attack_script)!r}], cwd=context.cwd, check=True)\n"
            )
            test = PhaseSpec(
                name="test", state="testing", runner="python", call=f"{module}:work", retry=QUICK, max_attempts=2
            )
        elif carrier == "steps":
            evil = StepSpec(name="evil", tool="command", inputs={"shell": run})
            test = PhaseSpec(name="test", state="testing", runner="steps", steps=(evil,), retry=QUICK, max_attempts=2)
        else:
            test = replace(test, gates=(Gate(kind="command", shell=run),))
        self.adw_id = self.lab.start(PLAN, build, test, SHIP, CLEAN)
        self.lab.work()

    def let_it_stay(self) -> None:
        """Be the person who continues with it as it is."""
        with self.lab.open() as app:
            app.control.resume(self.adw_id, by="ada", grant=1)
        self.lab.work()

    @property
    def document(self):
        return self.lab.document(self.adw_id)

    def error(self, phase: str = "test") -> str:
        record = next(one for one in self.document.phases if one.name == phase)
        assert record.attempts, [one.last_failure_reason for one in self.document.phases]
        return (record.attempts[-1].error or {}).get("message", "")


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def write_config(*entries: str) -> list[str]:
    """Return lines of shell that write into the configuration that all worktrees share."""
    return [f'git config --file "$(git rev-parse --git-common-dir)/config" {entry}' for entry in entries]


@contextmanager
def at_github(world, tmp_path, monkeypatch):
    """Let the remote be at a server that stands for GitHub, which the person's own configuration leads to."""
    served = tmp_path / "served" / "acme"
    served.mkdir(parents=True)
    (served / "widget.git").symlink_to(world.lab.remote)
    git(world.lab.remote, "config", "http.receivepack", "true")
    with git_servers.running(tmp_path, tmp_path / "served", TOKEN) as servers:
        persons_config(tmp_path, monkeypatch, servers.config)
        git(world.lab.home, "remote", "set-url", "origin", f"https://{git_servers.HOST}/acme/widget.git")
        yield servers


@pytest.mark.parametrize("carrier", sampling.share(CARRIERS, 0))
def test_the_token_goes_to_no_other_server(world, tmp_path, monkeypatch, carrier):
    with at_github(world, tmp_path, monkeypatch) as servers:
        world.attack(
            carrier,
            *write_config(
                f"http.https://{git_servers.HOST}/.sslVerify false",
                f"http.curloptResolve {git_servers.HOST}:443:{git_servers.THIEF_IP}",
            ),
        )

        assert servers.thief == []
        assert world.document.current_state == "failed"
        assert "http.curloptresolve (new)" in world.error()
        assert "http.https://github.com/.sslverify (new)" in world.error()

        world.let_it_stay()

        assert servers.thief == []
    assert servers.github, "it was asked, with the token, by the configuration of the person"
    assert world.document.current_state == "completed"
    assert world.document.branch_name in git(world.lab.remote, "for-each-ref", "--format=%(refname:short)")


def test_the_credential_helper_of_the_person_is_asked_and_that_of_the_repository_is_not(world, tmp_path, monkeypatch):
    helper = f"!f() {{ echo username=x-access-token; echo password={TOKEN}; }}; f"
    del world.lab.env["ADW_GITHUB_TOKEN"]
    with at_github(world, tmp_path, monkeypatch) as servers:
        persons_config(tmp_path, monkeypatch, f'{servers.config}[credential]\n helper = "{helper}"\n')
        git(world.lab.home, "config", "credential.helper", str(world.evil))
        world.adw_id = world.lab.start(PLAN, BUILD, SHIP, CLEAN)
        world.lab.work()

    assert world.ran == ""
    assert world.document.current_state == "completed"


@pytest.mark.parametrize("carrier", sampling.share(CARRIERS, 1))
def test_no_transport_of_the_repository_is_run(world, tmp_path, monkeypatch, carrier):
    """
    The remote needs ssh, as the person's own configuration has it: here a script that leads to this machine.
    """
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    persons_config(tmp_path, monkeypatch, f"[core]\n sshCommand = {ssh}\n")
    git(world.lab.home, "remote", "set-url", "origin", f"ssh://git@example.invalid{world.lab.remote}")

    world.attack(
        carrier,
        *write_config(
            f"remote.origin.uploadpack {world.evil}",
            f"remote.origin.receivepack {world.evil}",
            f"core.sshCommand {world.evil}",
            f"core.fsmonitor {world.evil}",
            f"credential.helper {world.evil}",
            f"diff.external {world.evil}",
            f"core.hooksPath {tmp_path}",
        ),
    )

    assert world.ran == ""
    assert world.document.current_state == "failed"
    for key in ("remote.origin.uploadpack", "core.sshcommand"):
        assert f"{key} (new)" in world.error()

    world.let_it_stay()

    assert world.ran == ""
    assert world.document.current_state == "completed"
    assert world.document.branch_name in git(world.lab.remote, "for-each-ref", "--format=%(refname:short)")


@pytest.mark.parametrize("carrier", sampling.share(CARRIERS, 2))
def test_no_filter_of_the_repository_is_run(world, carrier):
    world.attack(
        carrier,
        "echo '*.py filter=x' > .gitattributes",
        "echo more >> app.py",
        *write_config(f"filter.x.process {world.evil}", f"filter.x.clean {world.evil}"),
    )

    assert world.ran == ""
    assert world.document.current_state == "failed"
    assert "filter.x.process (new)" in world.error()

    world.let_it_stay()

    assert world.ran == ""


@pytest.mark.parametrize("carrier", sampling.share(CARRIERS, 3))
def test_work_is_pushed_to_no_other_remote(world, tmp_path, carrier):
    elsewhere = tmp_path / "elsewhere.git"
    shutil.copytree(world.lab.remote, elsewhere)
    hook = elsewhere / "hooks" / "pre-receive"
    hook.write_text(world.evil.read_text())
    hook.chmod(0o755)

    world.attack(carrier, *write_config(f"remote.origin.url {elsewhere}"))
    assert "remote.origin.url (changed)" in world.error()
    world.let_it_stay()

    assert world.ran == ""
    assert world.document.current_state == "failed"
    assert f"the remote origin is {elsewhere}" in world.error("ship")
    assert f"adw recorded {world.lab.remote}" in world.error("ship")

    git(world.lab.home, "remote", "set-url", "origin", str(world.lab.remote))
    world.let_it_stay()
    assert world.document.current_state == "completed"


def test_a_remote_that_the_person_moved_is_used_after_adw_init(world, tmp_path):
    world.adw_id = world.lab.start(PLAN, BUILD)
    world.lab.work()
    moved = world.lab.remote.rename(tmp_path / "moved.git")
    git(world.lab.home, "remote", "set-url", "origin", str(moved))

    doubt = f"the remote origin is {moved} in the repository's configuration, and adw recorded {world.lab.remote}"
    assert doubt in adw(world.lab.home, "doctor", "--json").stdout
    assert adw(world.lab.home, "init", "--yes").returncode == 0
    assert "the remote origin answers" in adw(world.lab.home, "doctor", "--json").stdout


def adw(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the command, as a person would."""
    env = {**os.environ, "ADW_HOME": str(home)}
    return warm.run([warm.ADW, *args], cwd=home, env=env, capture_output=True, text=True, check=False)


def test_a_worktree_that_leads_to_another_repository_is_not_believed(world, tmp_path):
    """
    The file .git of a worktree is written by the phase: it may name a repository with a configuration of its own.
    """
    other = tmp_path / "other"
    world.attack(
        "command",
        f"git init -q {other}",
        f"git -C {other} config filter.x.clean {world.evil}",
        f"git -C {other} config core.fsmonitor {world.evil}",
        "echo '* filter=x' > .gitattributes",
        f"echo 'gitdir: {other}/.git' > .git",
    )

    assert world.ran == ""
    assert world.document.current_state == "failed"


def test_no_git_of_a_whole_workflow_has_a_secret_in_its_environment(world, tmp_path, monkeypatch):
    """
    A git that writes down its environment and its arguments stands before the real one.
    """
    tools, seen = tmp_path / "tools", tmp_path / "seen"
    tools.mkdir()
    real = shutil.which("git")
    (tools / "git").write_text(f'#!/bin/sh\nenv >> {seen}\necho "$@" >> {seen}\nexec {real} "$@"\n')
    (tools / "git").chmod(0o755)

    with at_github(world, tmp_path, monkeypatch) as servers:
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        world.adw_id = world.lab.start(PLAN, BUILD, SHIP, CLEAN)
        world.lab.work()

    assert world.document.current_state == "completed"
    [shown] = set(servers.github)
    text = seen.read_text()
    assert [name for name, secret in (*SECRETS.items(), ("header", shown.split()[1])) if secret in text] == []
    assert "GIT_DIR=" in text
