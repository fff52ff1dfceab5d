"""
Where the work of a workflow is, and who can go on with it.
"""

from __future__ import annotations

import pytest

from adws.adw_modules import effects
from adws.adw_modules.document import Resource
from adws.adw_modules.effects import Published
from tests.unit.engine_cases import ADW_ID, document_of, draft_of, spec_of, types

BRANCH = f"feature-adw-{ADW_ID}-it"
KEY = f"branch:{BRANCH}"
REF = f"refs/adw/wip/{ADW_ID}"


def effect(key: str, kind: str, outcome: str = "made", host: str | None = "alpha", **undo) -> Resource:
    return Resource(key=key, kind=kind, outcome=outcome, host=host, undo=undo)


def tree(host: str = "alpha", **changes) -> Resource:
    return effect("worktree", "worktree", host=host, path="/trees/x").model_copy(update=changes)


def branch(sha: str = "c1", host: str = "alpha", **changes) -> Resource:
    return effect(KEY, "branch", host=host, branch=BRANCH, base="main", start="c0", sha=sha).model_copy(update=changes)


def wip(sha: str = "c1", outcome: str = "made", **undo) -> Resource:
    return effect("wip", "wip_ref", outcome, None, ref=REF, sha=sha, **undo)


def document(*resources: Resource, **fields):
    return document_of(spec_of("plan"), resources=list(resources), branch_name=BRANCH, **fields)


# --- where it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resources", "where"),
    [
        ((), ""),
        ((tree(), branch()), "alpha"),
        ((branch(),), "alpha"),
        ((tree(outcome="undone"), branch()), "alpha"),
        ((tree(outcome="undone"),), ""),
        ((tree(host=None), branch(host=None)), ""),
    ],
)
def test_the_work_is_where_its_worktree_or_else_its_branch_is(resources, where):
    assert effects.host_of_work(document(*resources)) == where


def test_the_branch_is_the_one_in_use_or_else_the_one_that_was_left_last():
    left = [branch(key=f"{KEY} on {host}", host=host) for host in ("alpha", "beta")]

    assert effects.branch_of_work(document()) is None
    assert effects.branch_of_work(document(*left)).host == "beta"
    assert effects.branch_of_work(document(*left, branch(host="gamma"))).host == "gamma"
    assert effects.branch_of_work(document(*left, branch(host="gamma", outcome="gone"))).host == "beta"


# --- who can go on ---------------------------------------------------------------------------------------------


def test_work_is_bound_to_its_host_unless_its_last_commit_is_known_to_be_on_the_remote():
    for resources, only in [
        ((tree(), branch(), wip()), ""),
        ((tree(), branch()), "alpha"),
        ((tree(), branch(sha="c2"), wip()), "alpha"),
        ((tree(), branch(sha="c2"), wip(intended={"sha": "c2"})), "alpha"),
        ((tree(), branch(), wip(outcome="intended")), "alpha"),
        ((tree(), branch(sha="c0")), ""),
        ((tree(),), ""),
        ((tree(host="beta"), branch(host="beta")), ""),
        ((tree(), branch(), effect("remote_branch:x", "remote_branch", branch=BRANCH, sha="c1")), ""),
        ((tree(), branch(), effect("remote_branch:x", "remote_branch", branch="another", sha="c1")), "alpha"),
    ]:
        assert effects.bound_to(document(*resources), host="beta") == only, resources


def test_the_ref_with_the_last_commit_comes_first_and_says_what_it_may_be_at():
    shipped = effect("remote_branch:x", "remote_branch", branch=BRANCH, sha="c2")
    result = effects.published(document(tree(), branch(sha="c2"), wip(intended={"sha": "c9"}), shipped))

    assert result == (
        Published(ref=f"refs/heads/{BRANCH}", sha="c2", commits=("c2",)),
        Published(ref=REF, sha="c1", commits=("c1", "c9")),
    )


def test_what_was_never_pushed_or_is_taken_away_is_no_place_to_go_on_from():
    assert effects.published(document(wip(outcome="undone"))) == ()
    assert effects.published(document(wip(sha=""))) == ()


# --- moving ----------------------------------------------------------------------------------------------------


def test_a_move_leaves_what_is_on_the_former_host_under_its_name():
    draft = draft_of(document(tree(), branch(), wip(), effect("port:1", "port", port=1), worktree_path="/trees/x"))

    effects.move(draft, here="beta")

    assert [entry.key for entry in draft.document.resources] == [
        "worktree on alpha",
        f"{KEY} on alpha",
        "wip",
        "port:1",
    ]
    assert draft.document.worktree_path is None
    assert types(draft) == ["work_moved"]
    assert draft.events[0].data == {"from": "alpha", "to": "beta", "commit": "c1"}


def test_a_move_touches_neither_what_is_here_nor_what_is_over_nor_what_was_left_before():
    before = [
        tree(),
        effect("branch:mine", "branch", host="beta", branch="mine"),
        effect("branch:over", "branch", "undone", branch="over"),
        tree(host="gamma", key="worktree on gamma"),
        effect("branch:old", "branch", host=None, branch="old"),
    ]
    draft = draft_of(document(*before))

    effects.move(draft, here="beta")

    keys = [entry.key for entry in draft.document.resources]
    assert keys == ["worktree on alpha", "branch:mine", "branch:over", "worktree on gamma", "branch:old"]
    assert draft.events[0].data["commit"] is None


def test_a_second_stay_on_a_host_takes_the_place_of_the_first_which_is_over():
    draft = draft_of(document(tree(key="worktree on alpha", outcome="undone"), tree()))

    effects.move(draft, here="beta")

    assert [(entry.key, entry.outcome) for entry in draft.document.resources] == [("worktree on alpha", "made")]


# --- what was left ---------------------------------------------------------------------------------------------


def test_what_is_left_on_a_host_is_what_nobody_will_use_there_again():
    left = [
        tree(key="worktree on alpha"),
        branch(key=f"{KEY} on alpha"),
        tree(key="worktree on alpha 2", outcome="forgotten"),
        tree(key="worktree on beta", host="beta"),
        tree(),
        effect("port:1 on alpha", "port"),
        effect("x on alpha", "branch", "undone"),
    ]

    result = effects.left_on(document(*left), "alpha")

    assert [one.key for one in result] == ["worktree on alpha 2", f"{KEY} on alpha", "worktree on alpha"]


def test_the_worktree_of_a_workflow_that_is_completed_is_left_wherever_it_is_and_its_branch_is_kept():
    done = document(tree(), branch(), current_state="completed")

    assert [one.key for one in effects.left_on(done, "alpha")] == ["worktree"]
