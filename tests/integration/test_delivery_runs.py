"""Deliveries that workers of their own carry out: a real database, a real repository, a forge as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.workspace.workspace import Workspace
from tests.integration.delivery_home import DeliveryHome
from tests.integration.work_lab import git


@pytest.fixture
def home(tmp_path):
    return DeliveryHome(tmp_path)


def test_fifty_deliveries_of_one_issue_at_once_start_one_workflow(home):
    with home.lab.open() as app:
        guids = [home.deliver(app, home.request()) for _ in range(50)]

    workers = [home.adw("worker", "--once", "--concurrency", "4") for _ in range(3)]
    ended = [(worker.communicate(timeout=240), worker.returncode) for worker in workers]

    assert [code for _, code in ended] == [0, 0, 0], ended
    with home.lab.open() as app:
        rows = [app.deliveries.get(guid) for guid in guids]
        [adw_id] = app.store.ids()
        assert app.runs.claim(app.processes.me("worker"), ttl_seconds=1.0) is None, "everything is carried out"
        said = [one.body for one in app.forge.comments(home.issue)]
    done = [row for row in rows if row.status == "done"]
    assert {row.status for row in rows} == {"done", "refused"}
    assert {row.adw_id for row in rows} == {adw_id}
    assert len(done) == 1
    assert len([body for body in said if f"`{adw_id}` is at work on this issue already" in body]) == 1


def test_a_label_is_carried_to_a_draft_pull_request_and_a_review_continues_it(home):
    """
    The follow-up is another workflow, on the branch and the pull request of the first, and keeps its marker.
    """
    first = home.carry_out(home.request())
    before = home.document(first.adw_id)
    assert (first.status, before.current_state, before.pr_number is not None) == ("done", "completed", True)
    assert before.worktree_path is None, "its branch is pushed"

    second = home.carry_out(
        home.command("rework", text="rename it", cause="review", number=before.pr_number, answers=False)
    )

    after = home.document(second.adw_id)
    assert (second.status, after.current_state, after.continues) == ("done", "completed", before.adw_id)
    assert (after.branch_name, after.pr_number, after.followups) == (before.branch_name, before.pr_number, 1)
    with home.lab.open() as app:
        [pull] = app.forge.pull_requests_of(before.branch_name)
        assert (pull.state, pull.is_draft) == ("open", True)
        assert pull.head_sha == git(home.lab.remote, "rev-parse", before.branch_name)
        assert "op=pull_request" in pull.body
        assert f"id={before.adw_id}" in pull.body
        assert app.verifier.check() == ()
    made = git(home.lab.remote, "show", f"{before.branch_name}:made.txt").split()
    assert made == [before.adw_id, after.adw_id], "both built on one branch"


@pytest.mark.postgres
@pytest.mark.parametrize("documents", ["files", "database"])
def test_over_postgresql_a_label_a_command_and_a_review_are_carried_out(tmp_path, pg_url, documents):
    home = DeliveryHome(tmp_path, ADW_DATABASE_URL=pg_url, ADW_STATE_STORE=documents)
    with home.lab.open() as app:
        guids = [home.deliver(app, home.request()) for _ in range(4)]

    worker = home.adw("worker", "--once")
    said = worker.communicate(timeout=240)

    assert worker.returncode == 0, said
    with home.lab.open() as app:
        [first] = app.store.ids()
        assert sorted(app.deliveries.get(guid).status for guid in guids) == ["done", *["refused"] * 3]
    told = home.carry_out(home.command("status"))
    assert (told.status, told.outcome) == ("done", f"workflow {first} is completed")
    number = home.document(first).pr_number
    second = home.carry_out(home.command("rework", text="rename it", cause="review", number=number, answers=False))
    after = home.document(second.adw_id)
    assert (second.status, after.current_state, after.continues) == ("done", "completed", first)


def test_a_rollback_of_a_follow_up_keeps_what_the_first_has_made(home):
    first = home.document(home.carry_out(home.request()).adw_id)
    review = home.command("rework", text="rename it", cause="review", number=first.pr_number, answers=False)
    second = home.carry_out(review)

    assert home.carry_out(home.command("rollback", adw_id=second.adw_id)).status == "done"

    document = home.document(second.adw_id)
    assert document.current_state == "rolled_back"
    with home.lab.open() as app:
        assert app.forge.pull_request(first.pr_number).state == "open"
    assert first.branch_name in home.lab.branches()
    assert not [line for line in home.lab.worktrees() if second.adw_id in line]


@pytest.fixture
def keeping(tmp_path, monkeypatch):
    """A home whose completed workflows keep their worktrees, as when a worktree could not be removed."""
    monkeypatch.setattr(Workspace, "_release_worktree", lambda *_: None)

    return DeliveryHome(tmp_path)


def test_a_merge_removes_the_worktree_and_keeps_the_branch(keeping):
    home = keeping
    document = home.document(home.carry_out(home.request()).adw_id)
    tree = Path(document.worktree_path)
    assert tree.is_dir()
    with home.lab.open() as app:
        pull = app.forge.pull_request(document.pr_number)
        app.forge.edit_pull_request(pull.number, is_draft=False)
        app.forge.merge_pull_request(pull.number, sha=pull.head_sha)

    row = home.carry_out(home.command("clean_up", cause="pull_request", number=pull.number, answers=False))

    after = home.document(document.adw_id)
    assert (row.status, row.outcome) == (
        "done",
        f"the pull request of workflow {document.adw_id} is merged: its worktree is removed, its branch kept",
    )
    assert (tree.exists(), after.worktree_path, after.pr_merged) == (False, None, True)
    assert document.branch_name in home.lab.branches()
    again = home.carry_out(home.command("clean_up", cause="pull_request", number=pull.number, answers=False))
    assert again.outcome.endswith("there is no worktree to remove")
    assert home.carry_out(home.command("rollback")).status == "refused"


def test_a_worktree_with_work_that_is_not_committed_is_left(keeping):
    home = keeping
    document = home.document(home.carry_out(home.request()).adw_id)
    (Path(document.worktree_path) / "notes.txt").write_text("mine")
    with home.lab.open() as app:
        pull = app.forge.pull_request(document.pr_number)
        app.forge.edit_pull_request(pull.number, is_draft=False)
        app.forge.merge_pull_request(pull.number, sha=pull.head_sha)

    row = home.carry_out(home.command("clean_up", cause="pull_request", number=pull.number, answers=False))

    assert "not committed" in row.outcome
    assert (Path(document.worktree_path) / "notes.txt").read_text() == "mine"


def test_a_delivery_whose_worker_died_is_taken_up_by_the_next(home):
    with home.lab.open() as app:
        guid = home.deliver(app, home.request())
        dead = home.adw("worker", "--once", "--max-runs", "1")
        dead.communicate(timeout=120)
        app.deliveries.again(guid, asked_by="bob")
        run = app.runs.claim(app.processes.me("worker"), ttl_seconds=0.0)

    home.lab.work()

    with home.lab.open() as app:
        assert app.runs.get(run.run_id).state is RunState.COMPLETED
        assert app.deliveries.get(guid).status == "done"
        assert len(list(app.store.ids())) == 1


def test_answers_name_no_place_of_this_machine_and_start_nothing(home):
    first = home.carry_out(home.request())
    home.carry_out(home.command("status"))

    with home.lab.open() as app:
        said = [one.body for one in app.forge.comments(home.issue)]
    assert len(said) == 2, "the comment that is kept up to date, and the answer"
    assert all(str(home.lab.home) not in body and body.startswith(forge_text.BOT_MARK) for body in said)
    assert all(first.adw_id in body for body in said)
