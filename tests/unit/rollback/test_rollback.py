"""A rollback leaves nothing but what was kept, can be killed anywhere, and touches nothing that is not ours."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from adws.adw_modules import default_home
from adws.adw_modules.document import RollbackRecord
from adws.adw_modules.errors import ForgeBusy, GitError, PullRequestMerged, UsageError, WorkflowBusy
from adws.adw_modules.process.tree import ProcessEnding
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.rollback import steps
from adws.adw_modules.rollback.plan import RollbackOptions
from adws.adw_modules.rollback.run import WorkflowRollback, mark_workflow_rolled_back
from tests.unit.engine_cases import ADW_ID
from tests.unit.rollback_cases import (
    BRANCH,
    HEAD,
    OTHER_SHA,
    START,
    Killed,
    Killer,
    RollbackHome,
    RollbackWorld,
    effect,
    ledger,
)

STATES = ["pending", "planning", "building", "shipping", "cleaning", "completed", "failed", "paused", "abandoned"]
FORCED = RollbackOptions(reason="x", force=True)


@pytest.fixture
def world(tmp_path) -> RollbackWorld:
    return RollbackWorld(tmp_path)


def world_with(tmp_path, kind: str, changes: dict) -> RollbackWorld:
    """A workflow whose ledger entry of one kind differs."""
    made = [entry.model_copy(update=changes) if entry.kind == kind else entry for entry in ledger(tmp_path)]
    return RollbackWorld(tmp_path, resources=made)


def statuses(report):
    return {step.key: step.status for step in report.steps}


def detail(report, key):
    return next(step.detail for step in report.steps if step.key == key)


# --- the whole -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_nothing_is_left_of_a_workflow_from_whatever_state(tmp_path, state):
    world = RollbackWorld(tmp_path, state=state)

    report = world.roll_back()

    left = world.what_is_left()
    assert report.is_complete
    assert report.blocked_by == []
    assert (left["heads"], left["remote"]) == ({"main": START}, {"main": START})
    assert (left["trees"], left["ports"], left["directories"], left["locks"]) == ({}, {}, [], [])
    assert (left["pulls"], left["labels"]) == ({7: "closed"}, {42: {"bug"}})
    assert (left["state"], left["open"]) == ("rolled_back", [])
    assert world.released == [ADW_ID]


def test_an_active_workflow_passes_through_abandoned_and_its_issue_is_freed_once(world, monkeypatch):
    locks, asked = world.home.parts.locks, []
    release = locks.release
    monkeypatch.setattr(locks, "release", lambda *args, **more: asked.append(args) or release(*args, **more))

    world.roll_back()

    history = world.home.document().state_history
    moves = [(move.from_state, move.to_state) for move in history]
    assert moves[-2:] == [("building", "abandoned"), ("abandoned", "rolled_back")]
    assert history[-2].metadata["rollback"] is True
    assert (len(asked), world.what_is_left()["locks"]) == (1, [])


def test_a_second_rollback_changes_nothing(world):
    world.roll_back()
    before, moments = world.what_is_left(), len(world.killer.moments)

    report = world.roll_back()

    assert report.is_complete
    assert world.what_is_left() == before
    assert len(world.killer.moments) == moments
    assert statuses(world.plan())["worktree"] == "done", "a dry run shows what was done"


def test_what_is_kept_for_safety_is_there_and_listed(world):
    report = world.roll_back()

    assert world.git.saved == {f"refs/adw/salvage/{ADW_ID}": HEAD}
    patch = world.root / "state" / ADW_ID / "salvage.patch"
    assert patch.read_bytes() == world.git.patch
    assert patch.stat().st_mode & 0o777 == 0o600
    assert f"refs/adw/salvage/{ADW_ID}" in report.kept[0]
    assert "salvage.patch" in report.kept[0]


def test_a_branch_without_commits_of_its_own_needs_no_salvage(world):
    world.git.heads[BRANCH] = world.git.remote[BRANCH] = START
    world.git.patch = b""
    world.forge.pulls[7] = replace(world.forge.pulls[7], head_sha=START)
    with world.home.parts.ownership.own(ADW_ID) as owned:
        made = [
            entry.model_copy(update={"undo": {**entry.undo, "sha": START}}) if "sha" in entry.undo else entry
            for entry in owned.document.resources
        ]
        owned.save(owned.document.model_copy(update={"resources": made}))

    report = world.roll_back()

    assert (report.is_complete, world.git.saved, report.kept) == (True, {}, [])


def test_the_branch_is_kept_on_request(world):
    report = world.roll_back(RollbackOptions(reason="x", keep_branch=True))

    assert report.is_complete
    assert (world.git.heads[BRANCH], world.git.remote[BRANCH]) == (HEAD, HEAD)
    assert world.git.trees == {}
    outcomes = dict(world.what_is_left()["outcomes"])
    assert (outcomes[f"branch:{BRANCH}"], outcomes[f"remote_branch:{BRANCH}"]) == ("kept", "kept")


def test_a_dry_run_says_what_would_be_done_and_does_nothing(world):
    before = world.what_is_left()

    report = world.plan()

    assert world.what_is_left() == before
    assert (report.is_dry_run, report.is_complete) == (True, False)
    assert set(statuses(report).values()) == {"planned"}
    assert report.to_json()["dry_run"] is True


def test_the_comments_tell_what_happened_and_cannot_start_anything(world):
    world.roll_back(RollbackOptions(reason="@team adw_plan_iso closes #42"))

    sticky, summary = (comment.body for comment in world.forge.said[42])
    closing = world.forge.said[7][0].body
    assert "rolled back" in sticky.splitlines()[0]
    assert "**Undone:**" in summary
    assert "was rolled back" in closing
    for body in (sticky, summary, closing):
        assert body.startswith("[adw]")
        assert "<!-- adw:v1 " in body
        assert "adw_plan_iso" not in body
        assert "@team" not in body
        assert str(world.root) not in body


def test_runs_and_requests_that_wait_are_over(world):
    run = world.home.runs.enqueue(NewRun(adw_id=ADW_ID))
    request = world.home.requests.ask(ADW_ID, "pause")

    world.roll_back()

    assert world.home.runs.get(run.run_id).state is RunState.STOPPED
    assert world.home.requests.get(request.request_id).outcome == "the workflow is rolled back"


# --- killed anywhere -------------------------------------------------------------------------------------------


def test_a_rollback_killed_before_or_after_any_act_ends_the_same_when_it_is_run_again(tmp_path):
    """
    Each write and each act on the world is a moment before and after which the process may die.
    """
    whole = RollbackWorld(tmp_path / "whole")
    whole.roll_back()
    expected, moments = whole.what_is_left(), len(whole.killer.moments)
    assert moments > 60

    for moment in range(moments):
        world = RollbackWorld(tmp_path / f"at{moment}", killer=Killer(moment))
        with pytest.raises(Killed):
            world.roll_back()
        world.die()
        world.killer.strike_at = None

        report = world.roll_back()

        assert report.is_complete, world.killer.moments[moment]
        assert world.what_is_left() == expected, world.killer.moments[moment]
        assert (world.root / "state" / ADW_ID / "salvage.patch").exists()


def test_a_rollback_that_was_begun_lets_nothing_else_happen(world):
    world.forge.is_reachable = False
    world.roll_back()

    with pytest.raises(UsageError, match="a rollback of 1a2b3c4d was begun"):
        world.home.control.resume(ADW_ID, by="me")


# --- the network is down, things are gone -----------------------------------------------------------------------


def test_without_a_network_the_rest_is_done_and_the_pull_request_stays_on_the_list(world):
    world.forge.is_reachable = world.git.is_reachable = False

    report = world.roll_back()

    result = statuses(report)
    assert not report.is_complete
    assert {key for key, status in result.items() if status == "blocked"} == {
        "pull_request",
        f"remote_branch:{BRANCH}",
        "label:adw",
        "comment",
    }
    assert (world.git.trees, world.ports.rows, world.git.heads) == ({}, {}, {"main": START})
    assert "close pull request #7: the forge did not answer" in world.home.document().rollback.blocked_by[0]

    world.forge.is_reachable = world.git.is_reachable = True
    assert world.roll_back().is_complete
    assert world.what_is_left()["comments"] == {42: 2, 7: 1}


def test_a_step_is_retried_before_it_is_given_up(world):
    answers = [ForgeBusy(1.0), ForgeBusy(1.0)]
    close = world.forge.close_pull_request

    def busy(number):
        if answers:
            raise answers.pop()
        return close(number)

    world.forge.close_pull_request = busy

    assert world.roll_back().is_complete
    assert len(world.home.clock.slept) == 2


def test_what_is_not_worth_a_retry_is_not_retried(world):
    world.git.remove_worktree = lambda *_args, **_keywords: (_ for _ in ()).throw(PermissionError(13, "denied"))

    report = world.roll_back()

    assert statuses(report)["worktree"] == "blocked"
    assert "waits for: remove the worktree" in detail(report, f"branch:{BRANCH}")
    assert world.home.clock.slept == []


def test_everything_may_be_gone_already(world):
    world.git.trees.clear()
    world.git.heads.pop(BRANCH)
    world.git.remote.pop(BRANCH)
    world.forge.pulls[7] = replace(world.forge.pulls[7], state="closed")
    world.ports.rows.clear()

    report = world.roll_back()

    assert report.is_complete
    assert world.forge.said[7] == []
    assert {statuses(report)[key] for key in ("worktree", "pull_request", "ports")} == {"gone"}


def test_a_half_made_worktree_is_removed_though_nothing_can_be_salvaged(tmp_path):
    world = world_with(tmp_path, "worktree", {"outcome": "intended"})
    world.git.patch_of_changes = lambda _path: (_ for _ in ()).throw(GitError("not a git repository"))

    report = world.roll_back()

    assert (report.is_complete, world.git.trees) == (True, {})


def test_work_that_cannot_be_salvaged_keeps_its_worktree_until_force_says_otherwise(world):
    world.git.patch_of_changes = lambda _path: (_ for _ in ()).throw(GitError("index file corrupt"))

    report = world.roll_back()

    assert statuses(report)["salvage"] == "blocked"
    assert (bool(world.git.trees), BRANCH in world.git.heads) == (True, True)

    assert world.roll_back(FORCED).is_complete
    assert world.git.trees == {}


def test_a_pull_request_that_was_only_meant_is_found_by_its_mark(tmp_path):
    world = world_with(tmp_path, "pull_request", {"outcome": "intended", "undo": {"branch": BRANCH}})

    world.roll_back()

    assert world.forge.pulls[7].state == "closed"


@pytest.mark.parametrize("fields", [{"body": "made by a person"}, {"author": "stranger"}], ids=["no-mark", "copied"])
def test_a_pull_request_without_our_mark_and_name_is_not_the_one_that_was_meant(tmp_path, fields):
    world = world_with(tmp_path, "pull_request", {"outcome": "intended", "undo": {"branch": BRANCH}})
    world.forge.pulls[7] = replace(world.forge.pulls[7], **fields)

    report = world.roll_back()

    assert world.forge.pulls[7].state == "open"
    assert statuses(report)["pull_request"] == "gone"


# --- not ours --------------------------------------------------------------------------------------------------


def test_a_merged_pull_request_stops_it_before_anything_is_touched(world):
    world.forge.pulls[7] = replace(world.forge.pulls[7], is_merged=True, state="closed")
    before = world.what_is_left()

    with pytest.raises(PullRequestMerged, match="pull request #7 is merged, which is not undone"):
        world.roll_back()
    with pytest.raises(PullRequestMerged):
        world.plan()

    assert world.what_is_left() == before
    assert world.home.document().rollback is None


def test_a_merge_that_the_document_knows_of_stops_it_without_a_forge(tmp_path):
    world = RollbackWorld(tmp_path, pr_merged=True)
    world.forge.is_reachable = False

    with pytest.raises(PullRequestMerged):
        world.roll_back()


def test_a_merge_after_it_was_begun_stops_what_comes_after_it(world):
    asked = []
    find = world.forge.pull_request

    def merged_on_the_second_look(number):
        asked.append(number)
        result = find(number)
        return replace(result, is_merged=True, state="closed") if len(asked) > 1 else result

    world.forge.pull_request = merged_on_the_second_look

    with pytest.raises(PullRequestMerged):
        world.roll_back()

    assert (world.git.remote[BRANCH], bool(world.git.trees)) == (HEAD, True)
    assert world.home.state() == "abandoned"
    assert "is merged" in world.home.document().rollback.blocked_by[0]


def test_a_remote_branch_with_commits_of_others_is_left_with_its_pull_request(world):
    world.git.remote[BRANCH] = OTHER_SHA
    world.forge.pulls[7] = replace(world.forge.pulls[7], head_sha=OTHER_SHA)

    report = world.roll_back()

    assert (world.git.remote[BRANCH], world.forge.pulls[7].state) == (OTHER_SHA, "open")
    assert report.is_complete
    assert "commits of others" in detail(report, "pull_request")
    assert "which adw did not push" in detail(report, f"remote_branch:{BRANCH}")
    assert any("delete the remote branch" in line for line in report.kept)


@pytest.mark.parametrize(
    "changes",
    [
        {"undo": {"branch": BRANCH, "sha": START, "intended": {"sha": HEAD}}},
        {"outcome": "intended", "undo": {"branch": BRANCH}},
    ],
    ids=["a-later-push", "the-first-push"],
)
def test_a_push_that_was_cut_off_is_still_ours(tmp_path, changes):
    world = world_with(tmp_path, "remote_branch", changes)

    world.roll_back()

    assert BRANCH not in world.git.remote


@pytest.mark.parametrize("is_in_our_worktree", [True, False])
def test_commits_that_nobody_wrote_down_are_ours_only_in_our_own_worktree(world, is_in_our_worktree):
    world.git.heads[BRANCH] = OTHER_SHA
    if not is_in_our_worktree:
        world.git.trees.clear()

    report = world.roll_back()

    assert report.is_complete
    assert (BRANCH in world.git.heads) is not is_in_our_worktree
    assert is_in_our_worktree or "commits that adw did not make" in detail(report, f"branch:{BRANCH}")
    assert world.git.saved == {f"refs/adw/salvage/{ADW_ID}": OTHER_SHA}


@pytest.mark.parametrize("is_there_before", [True, False], ids=["moves", "appears"])
def test_a_branch_that_moves_or_appears_after_the_salvage_is_left(world, is_there_before):
    remove = world.git.remove_worktree
    if not is_there_before:
        world.git.heads.pop(BRANCH)

    def then_somebody_commits(path, *, reason, is_recorded=False):
        done = remove(path, reason=reason)
        world.git.heads[BRANCH] = OTHER_SHA
        return done

    world.git.remove_worktree = then_somebody_commits

    report = world.roll_back()

    assert world.git.heads[BRANCH] == OTHER_SHA
    assert statuses(report)[f"branch:{BRANCH}"] == "left"


def test_a_worktree_that_somebody_else_locked_is_left(world):
    path = next(iter(world.git.trees))
    world.git.trees[path] = (BRANCH, "mine, hands off")

    report = world.roll_back()

    assert world.git.trees[path] == (BRANCH, "mine, hands off")
    assert statuses(report)["worktree"] == "left"


def test_a_worktree_of_an_older_tool_has_no_lock_and_is_removed(tmp_path):
    made = [
        effect("worktree:x", "worktree", "adopted", host="", path=str(tmp_path / "trees" / ADW_ID))
        if entry.kind == "worktree"
        else entry
        for entry in ledger(tmp_path)
    ]
    world = RollbackWorld(tmp_path, resources=made)
    world.git.trees = {path: (branch, "") for path, (branch, _) in world.git.trees.items()}

    assert world.roll_back().is_complete
    assert world.git.trees == {}


@pytest.mark.parametrize("name", ["main", "master", ""])
def test_the_branch_that_everything_starts_from_is_never_deleted(tmp_path, name):
    made = [
        effect("branch:x", "branch", branch=name, start=START, sha=START),
        effect("remote_branch:x", "remote_branch", branch=name, sha=START),
    ]
    world = RollbackWorld(tmp_path, resources=made)

    report = world.roll_back()

    assert world.git.heads["main"] == world.git.remote["main"] == START
    assert statuses(report)["branch:x"] == statuses(report)["remote_branch:x"] == "left"


def test_a_branch_that_only_appeared_is_left_unless_it_carries_our_id(tmp_path):
    made = [
        effect("branch:somebody", "branch", "observed", branch="somebody"),
        effect(f"branch:try-{ADW_ID}", "branch", "observed", branch=f"try-{ADW_ID}"),
        effect("ref:refs/tags/v1", "ref", "observed", ref="refs/tags/v1"),
        effect("label:x", "label"),
    ]
    world = RollbackWorld(tmp_path, resources=made)
    world.git.heads |= {"somebody": HEAD, f"try-{ADW_ID}": HEAD}

    report = world.roll_back()

    assert set(world.git.heads) == {"main", "somebody", BRANCH}
    assert statuses(report)["ref:refs/tags/v1"] == statuses(report)["label:x"] == "left"
    assert report.is_complete


def test_who_else_listens_on_our_port_is_left_and_reported(tmp_path, monkeypatch):
    world = RollbackWorld(tmp_path)
    world.ports.rows = {9100: ADW_ID, 9200: "somebody"}
    monkeypatch.setattr(steps, "is_free", lambda port: port not in {9100, 9200})

    report = world.roll_back()

    assert world.ports.rows == {9200: "somebody"}
    assert "9200 is used by somebody else, who is left alone" in detail(report, "ports")


def test_what_is_on_another_machine_blocks_and_says_where_to_go(tmp_path):
    made = [
        entry.model_copy(update={"host": "there"}) if entry.kind == "worktree" else entry for entry in ledger(tmp_path)
    ]
    world = RollbackWorld(tmp_path, resources=made)

    report = world.roll_back()

    assert "it is on there: run adw rollback 1a2b3c4d there" in detail(report, "worktree")


def test_what_a_home_without_forge_or_git_cannot_undo_stays_on_the_list(world, tmp_path):
    report = world.roll_back(forge_if_any=None)
    assert "no forge is configured" in detail(report, "pull_request")
    assert not report.is_complete

    made = [effect("port:9100", "port", port=9100)]
    assert RollbackWorld(tmp_path / "two", resources=made, worktree=None).roll_back(git_if_any=None).is_complete


# --- processes -------------------------------------------------------------------------------------------------


def test_processes_that_cannot_be_ended_keep_the_worktree(world):
    world.ending = ProcessEnding(evidence="it runs", left=("77 (agent)",))

    report = world.roll_back()

    assert "77 (agent)" in detail(report, "processes")
    assert world.git.trees
    assert statuses(report)[f"remote_branch:{BRANCH}"] == "done"


def test_a_process_of_another_machine_blocks_unless_forced(tmp_path):
    world = RollbackWorld(tmp_path, resources=[effect("process:1", "process", token="u" * 32)])
    world.ending = ProcessEnding(evidence="it was started on there, which is not this machine: nothing was signalled")

    report = world.roll_back()

    assert "--force goes on without that proof" in detail(report, "processes")
    assert world.roll_back(FORCED).is_complete


def test_a_workflow_that_somebody_works_on_is_not_touched(world):
    world.home.hold()

    with pytest.raises(WorkflowBusy):
        world.roll_back()


# --- for scripts -----------------------------------------------------------------------------------------------


def test_the_class_of_scripts_needs_a_reason_rolls_back_and_logs(world, caplog):
    caplog.set_level(logging.INFO)
    with default_home.using(RollbackHome(world)):
        with pytest.raises(UsageError, match="say why"):
            WorkflowRollback(ADW_ID).rollback("  ")
        assert WorkflowRollback(ADW_ID, logging.getLogger("x")).rollback("why").is_complete
    assert "Rollback ended" in caplog.text


def test_a_workflow_is_marked_with_the_error_message_as_the_reason(world):
    report = mark_workflow_rolled_back(adw_id=ADW_ID, error_message="the build is broken", home=RollbackHome(world))

    document = world.home.document()
    assert (report.is_complete, document.current_state) == (True, "rolled_back")
    assert document.state_history[-1].metadata["reason"] == "the build is broken"


def test_a_document_with_an_old_record_of_a_rollback_can_be_rolled_back(tmp_path):
    world = RollbackWorld(tmp_path, state="failed")
    with world.home.parts.ownership.own(ADW_ID) as owned:
        owned.save(owned.document.model_copy(update={"rollback": RollbackRecord(steps=[{"odd": 1}])}))

    assert world.roll_back().is_complete
    assert world.home.document().rollback.reason == "the plan was wrong"
