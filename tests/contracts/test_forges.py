"""Every forge keeps the contract: in memory, in files, and GitHub's on two servers that stand in for it."""

from __future__ import annotations

import itertools
import subprocess

import pytest

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.forge.github import GitHubAccess, GitHubForge
from adws.adw_modules.forge.local import REMOTE_NAME, BareRepository, LocalForge
from adws.adw_modules.redaction.redactor import Redactor
from adws.testing import FakeClock, MemoryForge
from tests.contracts.forge_contract import SECRET, ForgeContract, ForgeWorld
from tests.emulator import Emulator
from tests.fault_forge import FaultForge

scrub = Redactor([SECRET]).redact_text


class TestMemoryForge(ForgeContract):
    @pytest.fixture
    def world(self):
        forge = MemoryForge(clock=FakeClock(), scrub=scrub)
        return ForgeWorld(forge=forge, create_issue=_issues_of(forge), push=forge.push)


class TestLocalForge(ForgeContract):
    @pytest.fixture
    def world(self, tmp_path):
        clock = SystemClock()
        root = tmp_path / "forge"
        git = BareRepository(root / REMOTE_NAME)
        forge = LocalForge(root, repository="acme/widget", git=git, clock=clock, scrub=scrub)
        forge.prepare()
        push = _pusher(tmp_path / "clone", git.path)
        return ForgeWorld(forge=forge, create_issue=_issues_of(forge), push=push)


class TestGitHubForgeOnTheFaultServer(ForgeContract):
    @pytest.fixture
    def world(self):
        place = MemoryForge(clock=FakeClock())
        access_of = _access("tok_bot")
        with FaultForge(place) as server:
            forge = GitHubForge(place.repository, access_of(server.url), clock=FakeClock(), scrub=scrub)
            yield ForgeWorld(forge=forge, create_issue=_issues_of(place), push=place.push)
            forge.close()


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    with Emulator.start(tmp_path_factory.mktemp("emulator")) as emulator:
        yield emulator


class TestGitHubForgeOnTheEmulator(ForgeContract):
    @pytest.fixture
    def world(self, emulator):
        repository = emulator.new_repository()
        forge = GitHubForge(repository, _access(emulator.token)(emulator.url), clock=SystemClock(), scrub=scrub)
        yield ForgeWorld(
            forge=forge,
            create_issue=lambda title, body="", labels=(): emulator.create_issue(repository, title, body, labels),
            push=lambda branch: emulator.push(repository, branch),
            can=frozenset(),
        )
        forge.close()


def _issues_of(forge):
    return lambda title, body="", labels=(): forge.create_issue(title, body, labels=labels).number


def _access(token):
    return lambda url: GitHubAccess(token=token, api_url=url, timeout_seconds=10.0, seconds_between_writes=0.0)


def _pusher(clone, remote):
    """Return what makes a commit on a branch and pushes it, as a person would."""

    def git(*args):
        done = subprocess.run(["git", *args], cwd=clone, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    clone.mkdir()
    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "Begin")
    git("remote", "add", "origin", str(remote))
    git("push", "-q", "origin", "main")
    counter = itertools.count()

    def push(branch):
        known = git("branch", "--list", branch)
        git("switch", "-q", branch) if known else git("switch", "-q", "-c", branch, "main")
        (clone / f"file-{branch.replace('/', '-')}").write_text(f"{next(counter)}\n")
        git("add", "-A")
        git("commit", "-q", "-m", f"Work on {branch}")
        git("push", "-q", "origin", branch)
        return git("rev-parse", "HEAD")

    return push
