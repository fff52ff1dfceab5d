"""
One workflow phase by phase: plan, look at it, build, and so on up to the pull request, by commands of their own.

The home is a real repository with a local forge; its phases are shell commands that leave a line in the worktree.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from adws.adw_modules.workflow.library import built_in_names
from tests import warm
from tests.integration.work_lab import git, make_work_lab

TOML = """
[forge]
kind = "local"
[quota]
min_free_disk = "1 MiB"
min_free_memory = "1 MiB"
[phases.plan]
shell = "mkdir -p specs; echo plan >> specs/plan.md"
[phases.build]
shell = "cat specs/plan.md >/dev/null && echo build >> built.txt"
[phases.lint]
shell = "echo lint >> seen.txt"
[phases.test]
shell = "cat built.txt"
[phases.review]
shell = "cat built.txt"
[phases.document]
shell = "echo document >> manual.md"
[[workflows.held.phases]]
name = "build"
shell = "true"
gate = "human"
"""
#: Every built-in workflow once: the plan, the chains, and then phase by phase up to a ship of its own.
ALL = (
    "plan",
    "patch",
    "plan_build",
    "plan_build_test",
    "plan_build_review",
    "plan_build_test_review",
    "plan_build_document",
    "plan_build_test_review_document",
    "sdlc_from_build",
    "sdlc_ZTE",
    "sdlc",
    "build",
    "lint",
    "test",
    "review",
    "document",
    "clean",
    "ship",
)
#: Those that go on with the work of an earlier workflow.
DEPENDENT = ("build", "lint", "test", "review", "document", "ship", "clean", "sdlc_from_build")


class Lab:
    """A home with an issue, and the commands in it."""

    def __init__(self, place) -> None:
        self.lab = make_work_lab(place)
        self.home, self.remote = self.lab.home, self.lab.remote
        (self.home / "adw.toml").write_text(TOML)
        self.issue = self.new_issue()

    def new_issue(self) -> int:
        with self.lab.open() as app:
            return app.forge.create_issue("Add a fine thing", "Please.").number

    def adw(self, *args: object) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "ADW_HOME": str(self.home)}
        command = [warm.ADW, *map(str, args)]
        return warm.run(command, cwd=self.home, env=env, capture_output=True, text=True, timeout=120)

    def done(self, *args: object) -> dict:
        """Run a command that must end well and return what it says to programs."""
        done = self.adw(*args, "--json")
        assert done.returncode == 0, (args, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def refused(self, *args: object) -> str:
        """Run a command that must be refused in one sentence, and return that."""
        before = self.documents()
        done = self.adw(*args)
        assert (done.returncode in {1, 2}, done.stdout) == (True, ""), (args, done.stdout)
        assert done.stderr.count("\n") == 1, done.stderr
        assert self.documents() == before
        return done.stderr

    def run(self, workflow: str, *args: object) -> dict:
        return self.done("run", self.issue, "--workflow", workflow, *args)

    def documents(self) -> dict[str, dict]:
        result = [json.loads(path.read_text()) for path in self.home.glob("state/*/adw_state.json")]
        return {one["adw_id"]: one for one in result}

    def document(self, adw_id: str) -> dict:
        return self.documents()[adw_id]

    def pulls(self) -> list[dict]:
        with self.lab.open() as app:
            files = (app.settings.local_forge_dir / "pulls").glob("*.json")
        return [{**json.loads(file.read_text()), "number": int(file.stem)} for file in sorted(files)]

    def locks(self) -> list[dict]:
        return self.done("admin", "locks")["locks"]


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def test_plan_build_test_review_document_and_ship_are_separate_commands_with_one_id(lab):
    adw_id = lab.run("adw_plan_iso")["adw_id"]
    assert lab.locks() == []
    branch = lab.document(adw_id)["branch_name"]

    for name in ("build", "test", "review", "document"):
        end = lab.run(f"adw_{name}_iso", "--id", adw_id)
        assert (end["adw_id"], end["state"]) == (adw_id, "completed")
        worktree = lab.home / "trees" / adw_id
        assert (worktree / "specs/plan.md").read_text() == "plan\n"
        assert (worktree / "built.txt").read_text() == "build\n"
    assert lab.pulls() == []
    lab.done("resume", f"adw-{adw_id}", "--workflow", "ship")

    assert list(lab.documents()) == [adw_id]
    made = lab.document(adw_id)
    assert (made["branch_name"], made["current_state"], made["workflow"]["name"]) == (branch, "completed", "ship")
    assert [(one["name"], one["status"]) for one in made["phases"]] == [
        (name, "complete") for name in ("plan", "build", "test", "review", "document", "ship")
    ]
    [pull] = lab.pulls()
    assert (pull["number"], pull["head"]) == (made["pr_number"], branch)
    assert lab.lab.phases(branch, lab.remote) == ["document", "build", "plan"]
    assert lab.locks() == []
    assert lab.adw("admin", "verify").stdout == "all 11 invariants hold\n"


def test_every_built_in_workflow_is_run_on_one_issue_with_one_id_up_to_a_shipped_pull_request(lab):
    assert sorted(ALL) == sorted(built_in_names())
    adw_id = lab.run(ALL[0])["adw_id"]

    for name in ALL[1:]:
        end = lab.run(name, "--id", adw_id)
        assert (end["adw_id"], end["state"]) == (adw_id, "completed"), name
        assert lab.adw("admin", "verify").stdout == "all 11 invariants hold\n", name

    made = lab.document(adw_id)
    [pull] = lab.pulls()
    assert (list(lab.documents()), pull["number"], pull["state"]) == ([adw_id], made["pr_number"], "open")
    head = git(lab.remote, "rev-parse", made["branch_name"])
    assert head == git(lab.home, "rev-parse", made["branch_name"])
    assert [one["name"] for one in made["workflow"]["earlier"]] == [*ALL[:-1]]
    builds = git(lab.remote, "show", f"{head}:built.txt").splitlines()
    assert len(builds) == len([name for name in ALL if "build" in name or "sdlc" in name or name == "patch"])


def test_a_workflow_that_goes_on_with_earlier_work_finds_the_last_one_of_the_issue(lab):
    adw_id = lab.run("plan")["adw_id"]

    assert lab.run("adw_build_iso")["adw_id"] == adw_id
    assert lab.run("test", "--detach")["adw_id"] == adw_id
    assert [one["adw_id"] for one in lab.locks()] == [adw_id]
    assert lab.adw("worker", "--once").returncode == 0
    assert [one["status"] for one in lab.document(adw_id)["phases"]] == ["complete"] * 3


@pytest.mark.parametrize("name", DEPENDENT)
def test_a_workflow_that_goes_on_with_earlier_work_is_refused_where_there_is_none(lab, name):
    said = lab.refused("run", lab.issue, "--workflow", name)

    assert f"{name} continues the work of an earlier workflow, and issue {lab.issue} has none" in said
    assert f"adw run {lab.issue} --workflow plan" in said


def test_the_worktree_is_made_again_from_the_branch_when_it_was_removed_or_released(lab):
    adw_id = lab.run("plan")["adw_id"]
    git(lab.home, "worktree", "unlock", f"trees/{adw_id}")
    git(lab.home, "worktree", "remove", f"trees/{adw_id}")
    lab.run("build", "--id", adw_id)
    shutil.rmtree(lab.home / "trees" / adw_id)
    lab.run("ship", "--id", adw_id)
    assert not (lab.home / "trees" / adw_id).exists(), "its branch is pushed, so its worktree is released"

    lab.run("build", "--id", adw_id)
    assert (lab.home / "trees" / adw_id / "built.txt").read_text() == "build\nbuild\n"
    lab.run("sdlc_from_build", "--id", adw_id)

    [pull] = lab.pulls()
    assert git(lab.remote, "show", f"{pull['head']}:built.txt") == "build\nbuild\nbuild"


def test_a_workflow_is_not_carried_on_while_another_one_has_its_issue(lab):
    adw_id = lab.run("plan")["adw_id"]
    other = lab.run("held", "--again")["adw_id"]

    said = lab.refused("run", lab.issue, "--workflow", "build", "--id", adw_id)
    assert f"issue {lab.issue} belongs to workflow {other}" in said
    assert [one["adw_id"] for one in lab.locks()] == [other]

    lab.done("abandon", other)
    assert lab.run("build", "--id", adw_id)["state"] == "completed"
    assert lab.locks() == []


def test_an_id_is_only_taken_for_the_issue_that_it_owned(lab):
    adw_id = lab.run("plan")["adw_id"]
    other = lab.new_issue()

    said = lab.refused("run", other, "--workflow", "build", "--id", adw_id)
    assert f"workflow {adw_id} may not continue on issue {other}: its document names issue {lab.issue}" in said
    assert "00000000" in lab.refused("run", lab.issue, "--workflow", "build", "--id", "00000000")


def test_nothing_completes_with_nothing_done(lab):
    without_plan = TOML.replace("mkdir -p specs; echo plan >> specs/plan.md", "true")
    (lab.home / "adw.toml").write_text(without_plan.replace("cat specs/plan.md >/dev/null && ", ""))
    adw_id = lab.run("plan")["adw_id"]

    assert f"workflow {adw_id} has nothing to ship" in lab.refused("run", lab.issue, "--workflow", "adw_ship_iso")
    assert "nothing to clean up" in lab.refused("run", lab.issue, "--workflow", "clean", "--id", adw_id)
    assert lab.document(adw_id)["current_state"] == "completed"
    assert lab.locks() == []

    lab.done("resume", adw_id, "--workflow", "build")  # as the refusal to ship advises
    lab.run("ship", "--id", adw_id)
    assert len(lab.pulls()) == 1


def test_what_was_checked_before_the_work_was_built_again_is_checked_again_before_it_ships(lab):
    adw_id = lab.run("plan_build_test")["adw_id"]
    lab.run("build", "--id", adw_id)

    said = lab.refused("run", lab.issue, "--workflow", "ship", "--id", adw_id)
    assert (
        f"workflow {adw_id} does not ship before it is complete: test (the work was changed after it: do it again)"
        in said
    )
    assert lab.pulls() == []

    lab.run("test", "--id", adw_id)
    lab.run("ship", "--id", adw_id)
    assert len(lab.pulls()) == 1


def test_a_phase_that_failed_is_tried_again_by_naming_its_workflow_again(lab):
    adw_id = lab.run("plan")["adw_id"]
    (lab.home / "adw.toml").write_text(TOML.replace('"cat built.txt"', '"exit 3"\nmax_attempts = 1'))
    lab.run("build", "--id", adw_id)
    assert lab.adw("run", lab.issue, "--workflow", "test", "--id", adw_id).returncode == 1
    (lab.home / "adw.toml").write_text(TOML)

    said = lab.refused("run", lab.issue, "--workflow", "review", "--id", adw_id)
    assert f"workflow {adw_id} is failed in test, which review does not have: adw retry {adw_id}" in said
    assert lab.run("plan_build_test_review", "--id", adw_id)["state"] == "completed"

    made = lab.document(adw_id)
    assert [(one["name"], one["round"]) for one in made["phases"]] == [
        ("plan", 1),
        ("build", 1),
        ("test", 2),
        ("review", 1),
    ]
    assert made["retry_count"] == 0


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(lab):
    adw_id = lab.run("plan")["adw_id"]
    before = lab.documents()

    end = lab.done("run", lab.issue, "--workflow", "sdlc_from_build", "--id", adw_id, "--dry-run")

    assert end["plan"] == (
        f"workflow {adw_id} continues with sdlc_from_build (build lint test review document ship clean)"
    )
    assert (lab.documents(), lab.locks()) == (before, [])


@pytest.mark.parametrize("option", [("--title", "Other"), ("--again",), ("--in-place",)])
def test_options_of_a_start_are_refused_when_a_workflow_is_carried_on(lab, option):
    adw_id = lab.run("plan")["adw_id"]

    assert option[0] in lab.refused("run", lab.issue, "--workflow", "build", "--id", adw_id, *option)


@pytest.mark.parametrize("ending", ["abandon", "rollback"])
def test_what_was_given_up_is_not_carried_on(lab, ending):
    adw_id = lab.run("held")["adw_id"]
    lab.done(ending, adw_id)

    said = lab.refused("run", lab.issue, "--workflow", "build")
    assert f"workflow {adw_id} is {'abandoned' if ending == 'abandon' else 'rolled_back'}" in said


def test_a_rollback_undoes_what_all_runs_of_a_workflow_made_and_nothing_else(lab):
    other_issue = lab.new_issue()
    other = lab.done("run", other_issue, "--workflow", "sdlc_ZTE")["adw_id"]
    kept = lab.document(other)
    main_before = lab.lab.main_checkout()
    adw_id = lab.run("plan")["adw_id"]
    for name in ("build", "ship", "build", "sdlc_from_build", "build"):
        lab.run(name, "--id", adw_id)
    made = lab.document(adw_id)
    assert made["branch_name"] in lab.lab.branches()

    lab.done("rollback", adw_id)

    assert sorted(lab.lab.branches()) == sorted(["main", kept["branch_name"]])
    heads = git(lab.remote, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()
    assert sorted(heads) == sorted(["main", kept["branch_name"]])
    assert {pull["number"]: pull["state"] for pull in lab.pulls()} == {
        kept["pr_number"]: "open",
        made["pr_number"]: "closed",
    }
    assert not (lab.home / "trees" / adw_id).exists()
    assert (lab.document(other), lab.lab.main_checkout()) == (kept, main_before)
    assert lab.document(adw_id)["current_state"] == "rolled_back"
    assert lab.adw("admin", "verify").stdout == "all 11 invariants hold\n"
    assert lab.adw("admin", "gc").stdout == "there is nothing left over\n"
