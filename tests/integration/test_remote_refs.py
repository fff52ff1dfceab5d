"""Real git: refs of our own on the remote are made, moved and deleted with a lease, and nothing else there is."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import GitError, NotOurs
from tests.integration.git_lab import Lab, git, make_lab

REF = "refs/adw/wip/1a2b3c4d"


@pytest.fixture
def lab(tmp_path) -> Lab:
    return make_lab(tmp_path)


def commit(lab: Lab, text: str) -> str:
    tree = lab.trees / "1a2b3c4d"
    if not tree.exists():
        lab.add()
    (tree / "app.py").write_text(text)
    made = lab.workplace.commit_all(tree, "Work")
    assert made is not None

    return made


def test_a_ref_is_made_moved_and_deleted_and_no_branch_appears(lab):
    refs, first, second = lab.repository, commit(lab, "one"), commit(lab, "two")
    before = lab.main_checkout()

    assert refs.remote_ref(REF) is None
    assert refs.push_ref(first, REF, expected=None) == ""
    assert refs.push_ref(second, REF, expected=first) == ""

    assert refs.remote_ref(REF) == second
    assert refs.remote_refs("refs/adw/wip/*") == {REF: second}
    assert git(lab.remote, "for-each-ref", "--format=%(refname)", "refs/heads") == "refs/heads/main"
    assert refs.delete_remote_ref(REF, expected=second)
    assert not refs.delete_remote_ref(REF, expected=second)
    assert lab.main_checkout() == before


def test_what_somebody_else_put_there_is_neither_overwritten_nor_deleted(lab):
    refs, first, second = lab.repository, commit(lab, "one"), commit(lab, "two")
    refs.push_ref(second, REF, expected=None)

    assert refs.push_ref(first, REF, expected=None) == "stale"
    assert refs.push_ref(first, REF, expected=first) == "stale"
    with pytest.raises(NotOurs, match="moved to"):
        refs.delete_remote_ref(REF, expected=first)

    assert refs.remote_ref(REF) == second


@pytest.mark.parametrize("ref", ["refs/heads/main", "main", "refs/adw/wip/../../heads/main", "refs/adw/a b"])
def test_nothing_but_refs_of_our_own_is_pushed_or_deleted(lab, ref):
    refs, sha = lab.repository, commit(lab, "one")

    with pytest.raises(GitError):
        refs.push_ref(sha, ref, expected=None)
    with pytest.raises(GitError):
        refs.delete_remote_ref(ref, expected=sha)


def test_a_remote_that_refuses_says_so(lab):
    refs, sha = lab.repository, commit(lab, "one")
    refs.push_ref(sha, REF, expected=None)
    hook = lab.remote / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)

    assert refs.push_ref(commit(lab, "two"), REF, expected=sha) == "rejected"
    with pytest.raises(GitError, match="refused to delete"):
        refs.delete_remote_ref(REF, expected=sha)
