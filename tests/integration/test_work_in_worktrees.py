"""Whole workflows in real worktrees: committed, shipped, cleaned up, and the main checkout untouched."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import LeaseLost
from adws.adw_modules.git import git as git_module
from adws.adw_modules.rollback.plan import RollbackOptions
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.adw_modules.workflow.model import WorkflowSpec
from adws.testing import MemoryOrders
from tests.integration.work_lab import BUILD, PLAN, SHIP, git, make_work_lab, step


@pytest.fixture
def lab(tmp_path):
    return make_work_lab(tmp_path, ADW_GIT_AUTHOR="Robot <robot@example.com>")


def test_an_issue_becomes_a_draft_pull_request_and_nothing_else_is_left(lab):
    before = lab.main_checkout()
    adw_id = lab.start()

    lab.work()

    document = lab.document(adw_id)
    branch = f"feature-issue-1-adw-{adw_id}-add-fine-thing"
    assert (document.current_state, document.branch_name, document.worktree_path) == ("completed", branch, None)
    assert lab.subjects(branch, lab.remote) == ["feat: Add a fine thing (#1)"] * 2
    assert git(lab.remote, "log", "-1", "--format=%an <%ae>", branch) == "Robot <robot@example.com>"
    with lab.open() as app:
        [pull] = app.forge.pull_requests_of(branch)
        [comment] = app.forge.comments(1)
        assert (pull.title, pull.is_draft, pull.base) == ("feature: #1 - Add a fine thing", True, "main")
        assert "**completed**" in comment.body
        assert f"#{pull.number}" in comment.body
        assert app.ports.all() == ()
        assert app.quotas.workflows() == ()
    assert document.pr_number == pull.number
    assert len(lab.worktrees()) == 1
    assert lab.main_checkout() == before
    assert {item.outcome for item in document.resources if item.kind in {"worktree", "port"}} == {"undone"}
    assert not [item for item in document.resources if item.outcome == "intended"]


def test_what_is_known_about_a_worktree_is_not_asked_of_git_again(lab, monkeypatch):
    """
    The number of git processes of each phase: the first makes the worktree, the checks change nothing.
    """
    asked: list[str] = []
    capture = git_module.capture
    monkeypatch.setattr(git_module, "capture", lambda argv, **rest: asked.append(argv[-1]) or capture(argv, **rest))
    used: dict[str, int] = {}
    attempt = WorkSession.attempt

    def counted(session, **options):
        before = len(asked)
        outcome = attempt(session, **options)
        used[session.running()[0].name] = len(asked) - before
        return outcome

    monkeypatch.setattr(WorkSession, "attempt", counted)
    adw_id = lab.start(PLAN, BUILD, step("lint", "true", "linting"), step("test", "true", "testing"), SHIP)

    lab.work()

    assert lab.document(adw_id).current_state == "completed"
    limits = {"plan": 26, "build": 8, "lint": 5, "test": 5, "ship": 25}
    assert {phase: number for phase, number in used.items() if number > limits[phase]} == {}


def test_a_process_is_told_its_ports_and_has_the_ignored_files(tmp_path):
    lab = make_work_lab(tmp_path, ADW_WORKTREE_SETUP="sh -c 'cat .env > set-up.txt'")
    (lab.home / ".env").write_text("KEY=value\n")
    said = "echo $ADW_BACKEND_PORT $ADW_FRONTEND_PORT $PORT > ports.txt; cat .ports.env >> ports.txt"
    adw_id = lab.start(step("plan", said, "planning"))

    lab.work()

    document = lab.document(adw_id)
    tree = Path(document.worktree_path)
    lines = (tree / "ports.txt").read_text().splitlines()
    backend, frontend, port = lines[0].split()
    assert (backend, f"BACKEND_PORT={backend}", f"FRONTEND_PORT={frontend}") == (port, lines[1], lines[2])
    assert (tree / "set-up.txt").read_text() == "KEY=value\n"
    assert ".ports.env" not in git(tree, "ls-files")
    assert ".env" not in git(tree, "ls-files").split()


def test_a_workflow_that_goes_on_needs_no_remote(lab):
    """
    The network is gone when the second phase is retried, and the worktree with it.
    """
    marker = lab.home.parent / "once"
    once = f"test -e {marker} || {{ touch {marker}; exit 1; }}; cat plan.md > built.md"
    adw_id = lab.start(PLAN, step("build", once, "building", max_attempts=1))
    lab.work()
    document = lab.document(adw_id)
    assert document.current_state == "failed"
    shutil.rmtree(document.worktree_path)
    git(lab.home, "checkout", "-q", "--detach")
    git(lab.home, "remote", "set-url", "origin", "file:///nowhere")

    with lab.open() as app:
        app.control.resume(adw_id, by="ada", grant=1)
        app.worker(WorkerOptions(once=True)).run()

    document = lab.document(adw_id)
    assert document.current_state == "completed"
    assert (Path(document.worktree_path) / "built.md").read_text() == "steps\n"


def move_base(lab, content: str) -> None:
    """Let a colleague push to main."""
    other = lab.home.parent / "colleague"
    if not other.exists():
        git(lab.home.parent, "clone", "-q", str(lab.remote), str(other))
    git(other, "pull", "-q")
    (other / "app.py").write_text(content)
    (other / "colleague.txt").write_text(content)
    git(other, "add", "-A")
    git(other, "commit", "-q", "-m", "Meanwhile")
    git(other, "push", "-q", "origin", "main")


def test_work_is_rebased_onto_a_base_that_moved(lab):
    adw_id = lab.start(PLAN, replace(BUILD, shell="echo built > built.txt"), SHIP)
    with lab.open() as app:
        app.control.pause(adw_id, by="ada")
    document = lab.document(adw_id)
    assert document.current_state == "paused"
    with lab.open() as app:
        app.control.resume(adw_id, by="ada")
    move_base(lab, "print('theirs')\n")

    lab.work()

    branch = lab.document(adw_id).branch_name
    assert git(lab.remote, "show", f"{branch}:colleague.txt") == "print('theirs')"
    assert git(lab.remote, "merge-base", branch, "main") == git(lab.remote, "rev-parse", "main")


def test_a_conflict_goes_back_to_build_and_then_ships(lab):
    go = lab.home.parent / "moved"
    conflict = f"test -e {go} && git fetch -q origin main && git reset -q --hard origin/main; echo built >> app.py"
    slow = step("review", f"test -e {go} || touch {go}-asked", "reviewing")
    adw_id = lab.start(PLAN, replace(BUILD, shell=conflict), slow, replace(SHIP, needs=("plan", "build", "review")))
    marker = go.with_name("moved-asked")

    # The base moves while the first review runs.
    with lab.open() as app:
        real = app.commands.run

        def run(phase, context):
            report = real(phase, context)
            if phase.name == "review" and marker.exists() and not go.exists():
                move_base(lab, "print('theirs')\n")
                go.touch()
            return report

        app.commands.run = run
        app.worker(WorkerOptions(once=True, recover_seconds=3600.0)).run()

    document = lab.document(adw_id)
    assert (document.current_state, document.reworks) == ("completed", 1)
    assert git(lab.remote, "show", f"{document.branch_name}:app.py") == "print('theirs')\nbuilt"


def test_merging_goes_through_the_forge_and_never_through_the_main_checkout(tmp_path):
    lab = make_work_lab(tmp_path, ADW_SHIP_PULL_REQUEST="squash", ADW_SHIP_LABELS="adw")
    before = lab.main_checkout()
    adw_id = lab.start()

    lab.work()

    document = lab.document(adw_id)
    assert (document.current_state, document.pr_merged) == ("completed", True)
    assert "built" in git(lab.remote, "show", "main:app.py")
    assert lab.main_checkout() == before


def test_without_worktrees_work_is_done_in_place(tmp_path):
    lab = make_work_lab(tmp_path, ADW_WORKTREE_ENABLED="false")
    lab.env["ADW_FORGE_KIND"] = "none"
    with lab.open() as app:
        spec = WorkflowSpec(name="tried", phases=(PLAN, replace(SHIP, needs=("plan",), on_rework="")))
        adw_id = app.workflow_creator.start(NewWorkflow(issue_number=5, spec=spec)).adw_id

    lab.work()

    document = lab.document(adw_id)
    assert document.current_state == "completed"
    assert "works in place" in document.warnings[0]
    assert (lab.home / "plan.md").read_text() == "steps\n"
    assert len(lab.worktrees()) == 1
    assert document.resources == []


def _session(app, owned):
    return WorkSession(app, owned, MemoryOrders())


def test_a_rollback_finds_the_branch_that_a_killed_attempt_made(lab):
    adw_id = lab.start(PLAN)

    class Killed:
        """To the document, work that ends like this and a process that is gone are the same."""

        def check(self, phase):
            return ""

        def run(self, phase, context):
            git(context.cwd, "branch", f"spike-{adw_id}")
            raise LeaseLost("its process died")

    with lab.open() as app, app.ownership.own(adw_id) as owned:
        app.phase_runners = {"command": Killed()}
        with pytest.raises(LeaseLost):
            _session(app, owned).attempt()
    assert f"spike-{adw_id}" in lab.branches()

    with lab.open() as app:
        report = app.rollbacks.rollback(adw_id, RollbackOptions(reason="not wanted"))

    assert (report.is_complete, lab.branches()) == (True, ["main"])


def test_a_home_inside_the_repository_works_in_that_directory_of_the_worktree(lab):
    inner = lab.home / "service"
    inner.mkdir()
    (inner / "keep.txt").write_text("x\n")
    git(lab.home, "add", "service/keep.txt")
    git(lab.home, "commit", "-q", "-m", "A service", "--", "service/keep.txt")
    git(lab.home, "push", "-q", "origin", "main")
    small = replace(lab, home=inner, env={**lab.env, "ADW_FORGE_KIND": "none"})
    with small.open() as app:
        spec = WorkflowSpec(name="tried", phases=(PLAN,))
        adw_id = app.workflow_creator.start(NewWorkflow(issue_number=5, spec=spec)).adw_id

    small.work()

    document = small.document(adw_id)
    assert document.current_state == "completed"
    assert git(Path(document.worktree_path), "show", "--name-only", "--format=", "HEAD") == "service/plan.md"
