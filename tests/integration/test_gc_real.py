"""Orphans are found with the reason why they are ones, removed only on request, and work is salvaged first."""

from __future__ import annotations

import os
import shutil

import pytest

from adws.adw_modules import default_home
from adws.adw_modules.checkpoint import CheckpointManager
from adws.adw_modules.errors import NotOurs, UsageError, WorkflowBusy
from adws.adw_modules.git import git as git_module
from adws.adw_modules.rollback.plan import RollbackOptions
from tests.integration.tidy_lab import ADW_ID, TidyHome, a_process, branch_of, git, in_database

OTHER = "5e6f7a8b"
GHOST = "99999999"
WISHES = RollbackOptions(reason="x")


@pytest.fixture
def lab(tmp_path) -> TidyHome:
    return TidyHome(tmp_path.resolve() / "home")


def kinds(app, **options) -> list[str]:
    return [orphan.kind for orphan in app.collector.find(**options)]


def collect(app):
    collector = app.collector
    return {(done.orphan.kind, done.orphan.name): done for done in collector.remove(collector.find())}


def lose_workflow(lab: TidyHome, app, adw_id: str = ADW_ID) -> None:
    """Take away all that says that there was such a workflow."""
    if app.settings.store == "files":
        app.projection.flush()
    shutil.rmtree(lab.path / "state" / adw_id)
    in_database(lab, "DELETE FROM workflow_states WHERE adw_id = ?", adw_id)


def test_a_home_at_work_has_no_orphans(lab):
    with lab.open() as app:
        lab.make(app)
        lab.make(app, OTHER, state="failed")
        app.ports.free(OTHER)
        app.quotas.release(OTHER)

        assert app.collector.find() == ()


def test_everything_of_a_workflow_whose_document_is_gone_is_found_and_only_removed_on_request(lab):
    with lab.open() as app:
        issue = lab.make(app)
        lose_workflow(lab, app)

        result = kinds(app)

        assert result == ["pull_request", "remote_branch", "worktree", "branch", "port", "port", "quota", "lock"]
        assert lab.tree().exists()

        removed = collect(app)

        assert [done.detail for done in removed.values() if not done.is_gone] == []
        assert (lab.tree().exists(), app.ports.all(), app.locks.all()) == (False, (), ())
        assert lab.heads() == lab.remote_heads() == {"main"}
        assert app.forge.pull_requests_of(branch_of(ADW_ID, issue))[0].state == "closed"
        assert app.collector.find() == ()
        patch = next((lab.path / "state" / ".salvage").iterdir())
        assert "not committed" in patch.read_text()
        assert git(lab.path, "rev-parse", f"refs/adw/salvage/{ADW_ID}")


def keep_checkpoint(app, adw_id: str) -> None:
    fence = app.leases.read(adw_id).fence
    CheckpointManager(app.checkpoints).save_checkpoint(f"{adw_id}/build", {"step": 1}, fence=fence)


def test_checkpoints_of_a_workflow_that_is_over_or_gone_are_orphans_and_no_others(lab):
    with lab.open() as app, default_home.using(app):
        for adw_id, state in ((ADW_ID, "failed"), (OTHER, "abandoned"), (GHOST, "failed")):
            lab.make(app, adw_id, state=state)
            keep_checkpoint(app, adw_id)
        mine = CheckpointManager(app.checkpoints)
        mine.save_checkpoint(f"{GHOST}/mine", {"of": "a library user"})
        lose_workflow(lab, app, GHOST)

        result = [(orphan.adw_id, orphan.why) for orphan in app.collector.find() if orphan.kind == "checkpoint"]
        # What an abandoned workflow left goes with its rollback as a whole, and its checkpoints after that.
        assert result == [(GHOST, "there is no such workflow")]
        removed = collect(app)
        collect(app)

        assert removed["checkpoint", GHOST].detail == "1 deleted"
        assert app.checkpoints.workflows() == (ADW_ID,), "a failed workflow may go on"
        assert mine.load_checkpoint(f"{GHOST}/mine") == {"of": "a library user"}


def test_what_a_workflow_made_is_no_orphan_while_the_database_has_a_copy_of_its_lost_document(lab):
    with lab.open() as app:
        lab.make(app)
        app.projection.flush()
        shutil.rmtree(lab.path / "state" / ADW_ID)

        assert app.collector.find() == ()
        assert [(broken.invariant, broken.where) for broken in app.verifier.check()] == [(1, ADW_ID)]


def test_a_branch_that_is_left_on_the_remote_alone_is_found_and_removed_on_request(lab):
    """
    Something pushed it again after the rollback; the commit is known here because it was salvaged.
    """
    with lab.open() as app:
        branch = branch_of(ADW_ID, lab.make(app))
        tip = git(lab.path, "rev-parse", branch)
        app.rollbacks.rollback(ADW_ID, WISHES)
        git(lab.path, "push", "-q", "origin", f"{tip}:refs/heads/{branch}")

        (orphan,) = app.collector.find()

        assert (orphan.kind, orphan.name, orphan.adw_id) == ("remote_branch", branch, ADW_ID)
        assert orphan.why == "its workflow is rolled back"
        assert branch in lab.remote_heads()
        assert collect(app)["remote_branch", branch].is_gone
        assert lab.remote_heads() == {"main"}
        assert app.collector.find() == ()


def test_the_pull_request_of_a_branch_that_is_left_on_the_remote_alone_goes_with_it(lab):
    with lab.open() as app:
        branch = branch_of(ADW_ID, lab.make(app))
        tip = git(lab.path, "rev-parse", branch)
        lose_workflow(lab, app)
        app.ports.free(ADW_ID)
        app.quotas.release(ADW_ID)
        app.git.remove_worktree(lab.tree(), reason=git_module.lock_reason(ADW_ID))
        app.git.save_ref(f"refs/adw/salvage/{ADW_ID}.2", tip)
        app.git.delete_branch(branch, expected=tip)

        assert kinds(app) == ["pull_request", "remote_branch", "lock"]
        collect(app)
        assert app.forge.pull_requests_of(branch)[0].state == "closed"
        assert lab.remote_heads() == {"main"}


def test_commits_of_somebody_else_on_a_branch_of_the_remote_are_left(lab, tmp_path):
    with lab.open() as app:
        branch = branch_of(ADW_ID, lab.make(app))
        app.rollbacks.rollback(ADW_ID, WISHES)
        theirs = push_from_elsewhere(lab, tmp_path, branch)

        (done,) = collect(app).values()

        assert (done.orphan.kind, done.is_gone) == ("remote_branch", False)
        assert "somebody else pushed it" in done.detail
        assert git(lab.remote, "rev-parse", branch) == theirs


def test_a_branch_of_another_home_on_the_shared_remote_is_told_of_and_no_orphan(lab, tmp_path):
    branch = branch_of(GHOST, 9)
    push_from_elsewhere(lab, tmp_path, branch)
    with lab.open() as app:
        lab.make(app)
        collector = app.collector

        assert collector.find() == ()
        (said,) = collector.problems
        assert branch in said
        assert "this home does not know" in said


def test_a_remote_that_is_away_is_told_of_and_the_rest_is_found(lab):
    with lab.open() as app:
        lab.make(app, state="abandoned")
        lab.remote.rename(lab.remote.with_name("away.git"))
        collector = app.collector

        assert [orphan.kind for orphan in collector.find()] == ["workflow"]
        assert "the branches of the remote could not be asked for" in collector.problems[0]


def push_from_elsewhere(lab: TidyHome, tmp_path, branch: str) -> str:
    """Let somebody else push a commit to a branch; return the commit."""
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(lab.remote), str(clone))
    git(clone, "commit", "-q", "--allow-empty", "-m", "Mine")
    git(clone, "push", "-q", "origin", f"HEAD:refs/heads/{branch}")
    return git(clone, "rev-parse", "HEAD")


def test_an_abandoned_workflow_is_rolled_back_as_a_whole(lab):
    with lab.open() as app:
        lab.make(app, state="abandoned")

        orphans = app.collector.find()
        removed = collect(app)

        assert [(orphan.kind, orphan.name) for orphan in orphans] == [("workflow", ADW_ID)]
        assert removed["workflow", ADW_ID].is_gone
        assert app.store.load(ADW_ID).document.current_state == "rolled_back"
        assert app.verifier.check() == ()


def test_what_was_kept_on_request_is_no_orphan(lab):
    with lab.open() as app:
        lab.make(app)
        app.rollbacks.rollback(ADW_ID, RollbackOptions(reason="x", keep_branch=True))

        assert app.collector.find() == ()
        assert app.verifier.check() == ()
        assert len(lab.heads()) == 2


def test_a_process_that_no_workflow_needs_is_ended_and_no_other(lab, tmp_path):
    with lab.open() as app:
        lab.make(app)
        other = {"state_dir": tmp_path / "other", "token": "u" * 32}
        with a_process(lab, GHOST) as ghost, a_process(lab, GHOST, **other) as stranger:
            removed = collect(app)

            assert [kind for kind, _ in removed] == ["process"]
            assert ghost.wait(timeout=20) != 0
            assert stranger.poll() is None


def test_a_worktree_that_somebody_else_locked_is_none_of_ours(lab):
    with lab.open() as app:
        lab.make(app)
        git(lab.path, "worktree", "add", "-q", "--lock", "--reason", "mine", "-b", "mine", str(lab.tree("mine")))

        assert app.collector.find() == ()


def test_a_half_written_file_that_nobody_writes_any_more_is_removed(lab):
    with lab.open() as app:
        lab.make(app)
        temp = lab.path / "state" / ADW_ID / ".adw_state.json.tmp.1"
        temp.write_text("half")

        assert kinds(app) == []
        os.utime(temp, (0, 0))
        assert kinds(app) == ["temp"]
        collect(app)
        assert not temp.exists()


def test_a_lock_of_a_workflow_that_is_over_is_released(lab):
    with lab.open() as app:
        issue = lab.make(app)
        app.rollbacks.rollback(ADW_ID, WISHES)
        app.locks.acquire(issue, ADW_ID)

        assert kinds(app) == ["lock"]
        collect(app)
        assert app.locks.all() == ()


def test_one_that_cannot_be_removed_does_not_keep_the_others(lab):
    with lab.open() as app:
        lab.make(app)
        lose_workflow(lab, app)
        collector = app.collector
        orphans = collector.find()
        git(lab.path, "worktree", "unlock", str(lab.tree()))
        git(lab.path, "worktree", "lock", "--reason", "mine now", str(lab.tree()))

        removed = {done.orphan.kind: done for done in collector.remove(orphans)}

        assert (removed["worktree"].is_gone, removed["port"].is_gone) == (False, True)
        assert "mine now" in removed["worktree"].detail
        assert lab.tree().exists()


def test_a_forge_that_does_not_answer_is_told_of(lab):
    with lab.open() as app:
        lab.make(app)
        lose_workflow(lab, app)

        class Away:
            repository = ""

            def pull_requests_of(self, *_args, **_keywords):
                raise UsageError("no answer")

        app.forge_if_any = Away()
        collector = app.collector

        assert "pull_request" not in [orphan.kind for orphan in collector.find()]
        assert "could not be asked for" in collector.problems[0]


def test_somebody_who_began_to_work_meanwhile_is_left_alone(lab):
    with lab.open() as app:
        lab.make(app, state="abandoned")
        collector = app.collector
        orphans = collector.find()
        with lab.open() as other, other.ownership.own(ADW_ID):
            removed = collector.remove(orphans)

        assert [done.detail for done in removed] == ["somebody works on its workflow now"]


# --- adopting --------------------------------------------------------------------------------------------------


def test_a_worktree_without_a_workflow_gets_a_paused_one_that_can_be_rolled_back(lab):
    with lab.open() as app:
        branch = branch_of(GHOST, 7)
        app.git.add_worktree(lab.tree(GHOST), branch=branch, start="main", reason=git_module.lock_reason(GHOST))
        assert app.verifier.check() != ()

        done = app.adoption.adopt(str(lab.tree(GHOST)))

        document = app.store.load(GHOST).document
        assert (done.adw_id, done.is_new, document.current_state) == (GHOST, True, "paused")
        assert (document.issue_number, document.branch_name) == (7, branch)
        assert "adw resume" in (document.pause_reason or "")
        assert app.verifier.check() == ()
        assert app.collector.find() == ()
        assert app.rollbacks.rollback(GHOST, WISHES).is_complete
        assert not lab.tree(GHOST).exists()


def test_a_worktree_goes_back_to_its_workflow_by_its_id(lab):
    with lab.open() as app:
        lab.make(app, state="failed")
        with app.ownership.own(ADW_ID) as owned:
            kept = [entry for entry in owned.document.resources if entry.kind not in {"worktree", "branch"}]
            owned.save(owned.document.model_copy(update={"resources": kept, "worktree_path": None}))

        done = app.adoption.adopt(ADW_ID)

        document = app.store.load(ADW_ID).document
        assert (done.is_new, done.state) == (False, "failed")
        assert document.worktree_path == str(lab.tree())
        assert {entry.key for entry in document.resources if entry.outcome == "adopted"} == {
            "worktree",
            f"branch:{document.branch_name}",
        }


def test_a_worktree_of_an_older_tool_is_locked_when_it_is_adopted(lab):
    with lab.open() as app:
        branch = branch_of(GHOST, 7)
        git(lab.path, "worktree", "add", "-q", "-b", branch, str(lab.tree(GHOST)))

        app.adoption.adopt(GHOST)

        assert [tree.lock_reason for tree in app.git.worktrees()] == [f"adw {GHOST}"]


def test_what_cannot_be_adopted_is_refused_with_a_reason(lab):
    with lab.open() as app:
        lab.make(app)
        with pytest.raises(UsageError, match="there is no worktree for nothing"):
            app.adoption.adopt("nothing")
        git(lab.path, "worktree", "add", "-q", "--lock", "--reason", "mine", "-b", "mine", str(lab.tree("mine")))
        with pytest.raises(NotOurs, match="locked with 'mine'"):
            app.adoption.adopt(str(lab.tree("mine")))
        git(lab.path, "worktree", "add", "-q", "--detach", str(lab.tree("loose")))
        with pytest.raises(UsageError, match="on no branch"):
            app.adoption.adopt("loose")
        git(lab.path, "worktree", "add", "-q", "-b", "gone", str(lab.tree("gone")))
        shutil.rmtree(lab.tree("gone"))
        with pytest.raises(UsageError, match="nothing to adopt"):
            app.adoption.adopt("gone")


# --- somebody works on it --------------------------------------------------------------------------------------


def test_a_live_owner_is_asked_to_stop_and_then_it_is_rolled_back(lab, monkeypatch):
    with lab.open() as app, lab.open() as owner:
        lab.make(app)
        working = owner.ownership.own(ADW_ID)
        working.__enter__()

        def owner_obeys(_seconds: float) -> None:
            request = owner.requests.open_for(ADW_ID)[0]
            assert (request.kind, request.payload["reason"]) == ("rollback", "x")
            working.__exit__(None, None, None)

        said: list[str] = []
        monkeypatch.setattr(app.clock, "sleep", owner_obeys)

        report = app.rollbacks.rollback(ADW_ID, WISHES, wait_seconds=30.0, say=said.append)

        assert report.is_complete
        assert "to stop" in said[0]
        assert app.requests.open_for(ADW_ID) == ()


def test_an_owner_who_does_not_let_go_in_time_keeps_the_request(lab):
    with lab.open() as app, lab.open() as owner:
        lab.make(app)
        with owner.ownership.own(ADW_ID), pytest.raises(WorkflowBusy):
            app.rollbacks.rollback(ADW_ID, WISHES, wait_seconds=0.0)

        assert [request.kind for request in app.requests.open_for(ADW_ID)] == ["rollback"]
