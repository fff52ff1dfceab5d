"""
`adw run` where something is missing: it is refused in one sentence that says what to do, and nothing is created.

GitHub is a server here that knows one token; the remote is served over HTTP by git itself.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from adws import app as app_module
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.config import load as config_load
from adws.testing import MemoryForge
from tests import sampling
from tests.fault_forge import FaultForge
from tests.git_http import serving_git
from tests.integration.agent_lab import FakeAgent

TOML = """
[github]
repository = "acme/widget"
[quota]
min_free_disk = "1 MiB"
min_free_memory = "1 MiB"
"""


def git(cwd: Path, *args: str) -> None:
    done = subprocess.run(["git", *args], cwd=cwd, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@dataclass
class Place:
    """A repository in which the default workflow can be started for issue 1, until the test spoils something."""

    home: Path
    forge: MemoryForge
    agent: FakeAgent
    remote: Path
    env: dict[str, str]
    open_blocks: ExitStack
    args: tuple[str, ...] = ("run", "1")

    def set_origin(self, url: str) -> None:
        git(self.home, "remote", "set-url", "origin", url)

    def serve_without_push(self) -> None:
        self.set_origin(self.open_blocks.enter_context(serving_git(self.remote, "acme/widget", may_push=False)))

    def issue(self, **changes: object) -> None:
        self.forge._site.issues[1] = replace(self.forge._site.issues[1], **changes)

    def everything(self) -> dict[str, object]:
        """Return every file and directory of the home and of the remote, and what is on the forge."""
        files = {str(path): path.lstat().st_mtime_ns for top in (self.home, self.remote) for path in top.rglob("*")}
        return {**files, "calls": list(self.forge.calls)}


@pytest.fixture
def place(tmp_path, home):
    remote = tmp_path.resolve() / "remote.git"
    forge = MemoryForge("acme/widget")
    forge.create_issue("Add a door", "The house has none.")
    with ExitStack() as blocks:
        server = blocks.enter_context(FaultForge(forge))
        origin = blocks.enter_context(serving_git(remote, "acme/widget"))
        git(tmp_path, "init", "-q", "--bare", "-b", "main", str(remote))
        git(home, "remote", "add", "origin", origin)
        git(home, "push", "-q", "origin", "HEAD:main")
        (home / "adw.toml").write_text(TOML)
        agent = FakeAgent(tmp_path / "agent")
        env = {
            "ADW_GITHUB_API_URL": server.url,
            "ADW_GITHUB_TOKEN": "tok_bot",
            "ADW_AGENT_PROGRAMS": f"claude={agent.program}",
        }
        yield Place(home=home, forge=forge, agent=agent, remote=remote, env=env, open_blocks=blocks)


def test_a_repository_in_which_nothing_is_missing_is_not_refused(place, adw):
    before = place.everything()

    done = adw("run", "1", "--dry-run", env=place.env)

    assert (done.rc, done.stderr) == (0, "")
    assert place.everything() == before


#: What is spoiled -> words of the sentence that says so.
SPOILED: dict[str, tuple[Callable[[Place], object], tuple[str, ...]]] = {
    "no token": (
        lambda place: place.env.update(ADW_GITHUB_TOKEN=""),
        ("there is no token for acme/widget on GitHub", "export ADW_GITHUB_TOKEN", 'kind = "none"'),
    ),
    "a token that GitHub does not know": (
        lambda place: place.env.update(ADW_GITHUB_TOKEN="tok_old"),
        ("GitHub does not accept our token", "Bad credentials", "make a new token"),
    ),
    "a repository that the token does not see": (
        lambda place: (
            (place.home / "adw.toml").write_text(TOML.replace("acme/widget", "acme/gone")),
            place.set_origin("https://127.0.0.1/acme/gone.git"),
        ),
        ("GitHub shows us no repository acme/gone", "correct github.repository"),
    ),
    "the origin of another repository": (
        lambda place: place.set_origin("https://ada:secret-of-ada@github.com/somebody/else.git"),
        ("the remote origin is https://***@github.com/somebody/else.git", "git remote set-url origin http"),
    ),
    "an origin on this disk": (
        lambda place: place.set_origin(str(place.remote)),
        ("but pull requests are opened from http://127.0.0.1", "git remote set-url origin"),
    ),
    "no origin": (
        lambda place: git(place.home, "remote", "remove", "origin"),
        ("there is no remote origin to push to", "git remote add origin http://127.0.0.1"),
    ),
    "an origin that is not there": (
        lambda place: place.remote.rename(place.remote.with_name("moved.git")),
        ("cannot be reached", "not found", "git remote set-url origin URL"),
    ),
    "an origin that takes no push": (
        lambda place: place.serve_without_push(),
        ("The requested URL returned error: 403", "your access to it"),
    ),
    "no agent": (
        lambda place: place.agent.program.unlink(),
        ("have no runner", "say where it is with agent.programs"),
    ),
    "an agent that is not logged in": (
        lambda place: (place.agent.place / "logged-out").touch(),
        ("claude is not logged in", "and log in"),
    ),
    "an issue that is closed": (lambda place: place.issue(state="closed"), ("issue 1 is closed: open it again first",)),
    "an issue that is not there": (
        lambda place: setattr(place, "args", ("run", "99")),
        ("there is no issue 99 in acme/widget",),
    ),
    "an issue without a text": (
        lambda place: place.issue(title=" ", body="<!-- nothing -->"),
        ("nobody said what the goal is: issue 1 has no text", "give --title and --body"),
    ),
    "no forge and no text": (
        lambda place: place.env.update(ADW_FORGE_KIND="none"),
        ("nobody said what the goal is: there is no forge to read issue 1 from", "give --title and --body"),
    ),
    "a disk that is full": (
        lambda place: place.env.update(ADW_QUOTA_MIN_FREE_DISK="1000000 GiB"),
        ("the quota disk is used up", "make room, or lower quota.min_free_disk"),
    ),
    "no git repository": (
        lambda place: (place.home / ".git").rename(place.home / "not-git"),
        ("is in no git repository: run adw inside one", "adw run --in-place"),
    ),
    "a repository of another user": (
        lambda place: place.env.update(
            GIT_TEST_ASSUME_DIFFERENT_OWNER="1", ADW_GIT_ENV="GIT_TEST_ASSUME_DIFFERENT_OWNER"
        ),
        ("git does not trust the repository", "dubious ownership", "git config --global --add safe.directory"),
    ),
    "--in-place in a repository": (
        lambda place: setattr(place, "args", ("run", "1", "--in-place")),
        ("is in a git repository", "leave --in-place out"),
    ),
}


@pytest.mark.parametrize(("what", "where"), sampling.each_value_once(list(SPOILED), ["here", "detached"]))
def test_a_start_that_cannot_succeed_is_one_sentence_and_creates_nothing(place, adw, what, where):
    spoil, words = SPOILED[what]
    more = ["--detach"] if where == "detached" else []
    spoil(place)
    before = place.everything()

    done = adw(*place.args, *more, env=place.env)

    assert done.rc in {1, 2}
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert all(word in line for word in words), line
    assert "secret-of-ada" not in line
    assert place.everything() == before


@pytest.mark.parametrize("what", ["no token", "the origin of another repository", "no agent", "a disk that is full"])
def test_the_doctor_says_what_a_start_would_say(place, adw, what):
    SPOILED[what][0](place)

    findings = adw("doctor", "--json", env=place.env).json()["findings"]

    [told] = [one for one in findings if one["area"] == "start"]
    assert told["level"] == "problem"
    assert SPOILED[what][1][0] in told["what"]


def test_the_doctor_gives_gits_own_advice_about_a_repository_of_another_user(place, adw):
    done = adw(
        "doctor",
        "--json",
        env={**place.env, "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1", "ADW_GIT_ENV": "GIT_TEST_ASSUME_DIFFERENT_OWNER"},
    )

    [told] = [one for one in done.json()["findings"] if one["area"] == "git" and one["level"] == "problem"]
    assert f"git config --global --add safe.directory {place.home}" in told["what"]


def test_a_home_in_no_repository_works_in_place_when_that_is_said(adw, home):
    (home / ".git").rename(home / "not-git")
    (home / "adw.toml").write_text('[[workflows.short.phases]]\nname = "build"\nshell = "echo built > built"\n')

    done = adw("run", "1", "--workflow", "short", "--in-place", "--json")

    assert (done.rc, done.json()["state"]) == (0, "completed")
    assert (home / "built").read_text() == "built\n"


@pytest.mark.parametrize(
    "origin", ["git@github.com:Acme/Widget.git", "ssh://git@ssh.github.com:443/acme/widget", "work:acme/widget.git"]
)
def test_every_way_to_write_the_address_of_the_repository_is_its_origin(place, adw, origin):
    place.set_origin(origin)
    place.env.pop("ADW_GITHUB_API_URL")
    # Nobody is asked: the quota, which is looked at after the origin, refuses it.
    done = adw("run", "1", env={**place.env, "ADW_QUOTA_MIN_FREE_DISK": "1000000 GiB"})

    assert "the quota disk is used up" in done.stderr


def test_the_local_forge_wants_its_own_remote(place, adw):
    (place.home / "adw.toml").write_text(TOML.replace("[github]", '[forge]\nkind = "local"\n[github]'))
    adw("doctor", env=place.env)  # makes nothing
    issues = place.home / "state" / "local.forge" / "issues"
    issues.mkdir(parents=True)
    (issues / "1.json").write_text(json.dumps({"title": "Add a door", "body": "", "state": "open"}))

    done = adw("run", "1", env=place.env)

    wanted = place.home / "state" / "local.forge" / "remote.git"
    assert (done.rc, done.stdout) == (1, "")
    assert f"git remote set-url origin {wanted}" in done.stderr
    assert not (place.home / "state" / "adw.db").exists()


def test_an_issue_that_had_no_text_is_read_again_on_retry(place, adw):
    place.agent.plays({"do": ["echo hello > plan.md"], "result_file": {"success": True}})
    workflow = '[[workflows.look.phases]]\nname = "plan"\nrunner = "agent"\nprompt = "look.md"\n'
    (place.home / "adw.toml").write_text(TOML + workflow)
    (place.home / "look.md").write_text("Do this:\n\n{{goal}}\n")
    settings = config_load.load(env={**place.env, "ADW_HOME": str(place.home)}, cwd=place.home)
    with app_module.open_home(settings) as opened:  # as an older adw started it: without a look at anything
        new = NewWorkflow(issue_number=1, spec=opened.workflows.get("look"), repository="acme/widget")
        adw_id = opened.workflow_creator.start(new).adw_id
    assert adw("worker", "--once", env=place.env).rc == 0
    assert adw("status", adw_id, "--json", env=place.env).json()["state"] == "failed"

    done = adw("retry", adw_id, "--json", env=place.env)

    assert (done.rc, done.json()["state"]) == (0, "completed"), done.stderr
    assert "The house has none." in place.agent.calls[-1]["prompt"]
    assert "issue_read" in adw("events", adw_id, env=place.env).stdout
