"""A forge of files and a bare repository: safe for several processes, and honest about what git says."""

from __future__ import annotations

import errno
import json
import subprocess
from pathlib import Path

import pytest

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.errors import (
    ForgeRefused,
    LockUnavailable,
    StateCorrupt,
    StateWriteFailed,
    UnsafePath,
)
from adws.adw_modules.forge import local
from adws.adw_modules.forge.local import REMOTE_NAME, BareRepository, LocalForge
from adws.adw_modules.forge.model import NewPullRequest
from tests import forked

NEW = NewPullRequest(title="feature: #1 - Door", body="Door\n\nCloses #1", head="work", base="main", is_draft=False)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "forge"


def open_forge(root, *, git_class=BareRepository, clock=None):
    real = SystemClock()
    git = git_class(root / REMOTE_NAME)
    forge = LocalForge(root, repository="acme/widget", git=git, clock=clock or real, scrub=str)
    forge.prepare()
    return forge


@pytest.fixture
def forge(root):
    return open_forge(root)


@pytest.fixture
def clone(tmp_path, forge):
    """The checkout of a person, with a branch `work` that is pushed."""
    place = tmp_path / "clone"
    place.mkdir()
    git = _git_in(place)
    git("init", "-q", "-b", "main")
    (place / "file").write_text("one\n")
    git("add", "-A")
    git("commit", "-q", "-m", "Begin")
    git("remote", "add", "origin", forge.remote_url())
    git("push", "-q", "origin", "main")
    commit(place, "work", "door", "open\n")
    return place


def _git_in(place):
    def git(*args):
        done = subprocess.run(["git", *args], cwd=place, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    return git


def commit(place, branch, name, text):
    git = _git_in(place)
    git("switch", "-q", *([] if git("branch", "--list", branch) else ["-c"]), branch)
    (place / name).write_text(text)
    git("add", "-A")
    git("commit", "-q", "-m", f"Write {name}")
    git("push", "-q", "origin", branch)
    git("switch", "-q", "main")
    return git("rev-parse", branch)


def in_main(forge, name):
    shown = ["git", f"--git-dir={forge.remote_url()}", "show", f"main:{name}"]
    return subprocess.run(shown, capture_output=True, text=True, check=False).stdout


def commits_of_main(forge):
    counted = ["git", f"--git-dir={forge.remote_url()}", "rev-list", "--count", "main"]
    return int(subprocess.run(counted, capture_output=True, text=True, check=True).stdout)


# --- files


def test_two_processes_give_no_number_twice(root, forge):
    forge.create_issue("First")

    def work():
        mine = open_forge(root)
        for i in range(15):
            mine.create_issue(f"Issue {i}")
            mine.create_comment(1, f"comment {i}")
            mine.add_labels(1, (f"label-{i % 3}",))

    children = [forked.start(work) for _ in range(3)]
    ends = [forked.is_well(child) for child in children]
    assert all(ends)

    assert sorted(one.number for one in forge.issues(limit=100)) == list(range(1, 47))
    assert [one.comment_id for one in forge.comments(1)] == list(range(1, 46))
    assert set(forge.issue(1).labels) == {"label-0", "label-1", "label-2"}


def test_an_issue_written_by_hand_is_an_issue(root, forge):
    (root / "issues" / "7.json").write_text(json.dumps({"title": "By hand", "comments": [{"id": 3, "body": "b"}]}))

    issue = forge.issue(7)

    assert (issue.title, issue.state, issue.labels) == ("By hand", "open", ())
    assert forge.create_issue("Next").number == 8
    assert forge.create_comment(7, "next").comment_id == 4
    assert len(forge.comments(7, since="1999-01-01T00:00:00Z")) == 1


def test_who_may_do_what_stands_in_a_file(root, forge):
    forge.create_issue("One")
    counts = json.loads((root / "forge.json").read_text())
    (root / "forge.json").write_text(json.dumps({**counts, "people": {"alice": "write", "bob": 3}}))

    assert [forge.permission(name) for name in ("adw", "alice", "bob", "eve")] == ["admin", "write", "none", "none"]
    forge.create_issue("Two")
    assert forge.permission("alice") == "write"


def test_files_are_for_their_owner_alone_and_nothing_else_is_left(root, forge):
    forge.create_issue("One")
    forge.create_comment(1, "a")

    assert (root / "issues" / "1.json").stat().st_mode & 0o777 == 0o600
    assert {path.name for path in root.iterdir()} == {".lock", "forge.json", "issues", "pulls", REMOTE_NAME}
    assert [path.name for path in (root / "issues").iterdir()] == ["1.json"]


def test_a_disk_that_is_full_leaves_the_old_file(root, forge, monkeypatch):
    forge.create_issue("One")

    def no_space(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(local.os, "rename", no_space)
        with pytest.raises(StateWriteFailed, match="the old revision is intact"):
            forge.add_labels(1, ("adw",))

    assert forge.issue(1).labels == ()
    assert [path.name for path in (root / "issues").iterdir()] == ["1.json"]


# --- pull requests


def test_a_merge_changes_the_remote_and_no_checkout(forge, clone):
    forge.create_issue("Door")
    git = _git_in(clone)
    before = git("rev-parse", "HEAD"), git("status", "--porcelain")
    pull = forge.create_pull_request(NEW)

    merged = forge.merge_pull_request(pull.number, sha=pull.head_sha)

    assert merged.is_merged
    assert in_main(forge, "door") == "open\n"
    assert commits_of_main(forge) == 2
    assert (git("rev-parse", "HEAD"), git("status", "--porcelain")) == before
    assert not (clone / "door").exists()
    assert forge.issue(1).state == "closed", "the pull request says that it closes it"


def test_what_was_merged_by_hand_is_merged(forge, clone):
    pull = forge.create_pull_request(NEW)
    _git_in(clone)("push", "-q", "origin", "work:main")

    result = forge.pull_request(pull.number)

    assert (result.state, result.is_merged) == ("closed", True)
    assert forge.merge_pull_request(pull.number, sha=pull.head_sha).is_merged
    assert commits_of_main(forge) == 2


class DiesAfterTheMove(BareRepository):
    def move(self, branch, commit, *, expected):
        super().move(branch, commit, expected=expected)
        raise KeyboardInterrupt


class DiesBeforeTheMove(BareRepository):
    def move(self, branch, commit, *, expected):
        raise KeyboardInterrupt


@pytest.mark.parametrize("dying", [DiesAfterTheMove, DiesBeforeTheMove])
def test_a_merge_that_was_cut_off_is_finished_once(root, forge, clone, dying):
    pull = forge.create_pull_request(NEW)
    with pytest.raises(KeyboardInterrupt):
        open_forge(root, git_class=dying).merge_pull_request(pull.number, sha=pull.head_sha)

    assert forge.pull_request(pull.number).is_merged == (dying is DiesAfterTheMove)
    assert forge.merge_pull_request(pull.number, sha=pull.head_sha).is_merged
    assert commits_of_main(forge) == 2


def test_a_conflict_is_refused_and_changes_nothing(forge, clone):
    commit(clone, "other", "door", "shut\n")
    pull = forge.create_pull_request(NEW)
    other = forge.create_pull_request(NewPullRequest(title="T", body="", head="other", base="main", is_draft=False))
    forge.merge_pull_request(other.number, sha=other.head_sha)

    with pytest.raises(ForgeRefused, match="work conflicts with main"):
        forge.merge_pull_request(pull.number, sha=pull.head_sha)

    assert in_main(forge, "door") == "shut\n"
    assert forge.pull_request(pull.number).state == "open"


def test_a_base_that_moved_in_between_is_not_overwritten(root, forge, clone):
    class Slow(BareRepository):
        def move(self, branch, commit_, *, expected):
            commit(clone, "main", "file", "two\n")
            return super().move(branch, commit_, expected=expected)

    pull = forge.create_pull_request(NEW)

    with pytest.raises(ForgeRefused, match="main moved meanwhile"):
        open_forge(root, git_class=Slow).merge_pull_request(pull.number, sha=pull.head_sha)

    assert in_main(forge, "file") == "two\n"
    assert not forge.pull_request(pull.number).is_merged


# --- git


def test_hooks_and_settings_of_others_do_not_run(root, forge, clone):
    hook = root / REMOTE_NAME / "hooks" / "reference-transaction"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    pull = forge.create_pull_request(NEW)

    assert forge.merge_pull_request(pull.number, sha=pull.head_sha).is_merged


def test_no_merge_driver_of_the_remote_is_run(forge, clone, tmp_path):
    """
    The remote is a directory of this machine: a phase can write its configuration.
    """
    commit(clone, "other", "door", "shut\n")
    remote = Path(forge.remote_url())
    (remote / "info").mkdir(exist_ok=True)
    (remote / "info" / "attributes").write_text("* merge=evil\n")
    with (remote / "config").open("a") as config:
        config.write(f'[merge "evil"]\n\tdriver = touch {tmp_path}/ran\n')
    pull = forge.create_pull_request(NEW)
    other = forge.create_pull_request(NewPullRequest(title="T", body="", head="other", base="main", is_draft=False))
    forge.merge_pull_request(other.number, sha=other.head_sha)

    with pytest.raises(ForgeRefused, match="work conflicts with main"):
        forge.merge_pull_request(pull.number, sha=pull.head_sha)
    assert not (tmp_path / "ran").exists()


def test_a_way_to_merge_that_there_is_not_is_refused(forge, clone):
    pull = forge.create_pull_request(NEW)

    with pytest.raises(ForgeRefused, match="by squash or merge, not by rebase"):
        forge.merge_pull_request(pull.number, sha=pull.head_sha, method="rebase")


def test_a_base_that_is_gone_is_told(forge, clone):
    _git_in(clone)("push", "-q", "origin", "main:release")
    pull = forge.create_pull_request(NewPullRequest(title="T", body="", head="work", base="release", is_draft=False))
    _git_in(clone)("push", "-q", "origin", ":release")

    with pytest.raises(ForgeRefused, match="the branch release is gone"):
        forge.merge_pull_request(pull.number, sha=pull.head_sha)


@pytest.mark.parametrize("text", ["{", "[]", '"text"', "\x00", '{"title": 7}', '{"comments": "none"}'])
def test_a_file_that_is_no_issue_is_told_by_its_name(root, forge, text):
    (root / "issues" / "7.json").write_text(text)

    with pytest.raises(StateCorrupt, match=r"issues/7\.json is corrupt"):
        forge.issue(7)


def test_links_and_directories_in_the_way_are_not_followed(tmp_path, root, forge):
    (tmp_path / "elsewhere").write_text("{}")
    (root / "issues" / "1.json").symlink_to(tmp_path / "elsewhere")
    (root / ".lock").unlink()
    (root / ".lock").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UnsafePath):
        forge.issue(1)
    with pytest.raises(LockUnavailable):
        forge.create_issue("Two")
