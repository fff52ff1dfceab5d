"""
Shipping: closed unless all is complete, checked, on top of its base, pushed with lease, put up once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from adws.adw_modules.engine.runner_command import CleanRunner
from adws.adw_modules.engine.runner_ship import ShipRunner
from adws.adw_modules.errors import ForgeUnavailable, GitUnreachable, LeaseLost, NotOurs
from adws.adw_modules.git.change_policy import DiffRules
from adws.adw_modules.phase import Done, Failed, RetryAt
from adws.adw_modules.workflow.model import Gate
from adws.testing import MemoryForge
from tests.unit.engine_cases import ADW_ID, WELL, phase, spec_of
from tests.unit.space_cases import BRANCH, TREE, MemoryGit, SpaceWorld

BUILD = phase("build")
SHIP = phase("ship", runner="ship", needs=("build",), on_rework="build")
CLEAN = phase("clean", runner="clean", is_required=False)
REMOTE = f"remote_branch:{BRANCH}"


class Yard(SpaceWorld):
    """A workflow that builds and ships, with or without a forge."""

    def __init__(self, *phases, forge: MemoryForge | None = None, options=None, rules=None, **fields) -> None:
        git = fields.pop("git", None) or MemoryGit()
        self.forge = forge
        runners = {"clean": CleanRunner(git)}
        super().__init__(spec_of(*(phases or (BUILD, SHIP))), git=git, runners=runners, **fields)
        engine = self.engine
        engine.has_forge, engine.forge, engine.forge_key = forge is not None, forge, b"key"
        engine.settings = SimpleNamespace(
            **vars(engine.settings),
            **{"ship_draft": True, "ship_labels": (), "ship_merge": "no", **(options or {})},
            ship_squash=False,
            ship_plan_file=False,
            ship_allow_workflow_files=False,
            ship_allow_agent_files=False,
            ship_allow_paths=None,
            **{"ship_max_files": DiffRules().max_files, "ship_max_lines": DiffRules().max_lines, **(rules or {})},
        )
        engine.phase_runners["ship"] = ShipRunner(engine)
        self.runner.add("build", self.building)
        real = git.push

        def push(*args, **keywords):
            answer = real(*args, **keywords)
            if not answer and forge is not None:
                forge.push(BRANCH, git.heads[BRANCH])
            return answer

        git.push = push

    def building(self, context):
        self.git.files[context.cwd]["feature.py"] = f"round {context.round}"
        return WELL

    def run(self, most: int = 12):
        for _ in range(most):
            outcome = self.attempt()
            if not hasattr(outcome, "phase") or isinstance(outcome, Failed) or hasattr(outcome, "at"):
                return outcome
        raise AssertionError("it does not end")

    @property
    def shipped(self):
        return self.record("ship").result


@pytest.fixture
def forge():
    made = MemoryForge()
    for _ in range(42):
        made.create_issue("Add a fine thing")
    return made


def crash_once(place, name, *, is_after):
    real = getattr(place, name)

    def dying(*args, **keywords):
        setattr(place, name, real)
        if is_after:
            real(*args, **keywords)
        raise LeaseLost("its process died")

    setattr(place, name, dying)


# --- without a forge -------------------------------------------------------------------------------------------


def test_without_a_forge_the_branch_is_pushed():
    yard = Yard()

    assert yard.run() == Done(state="completed")

    head = yard.git.heads[BRANCH]
    assert yard.git.remote[BRANCH] == head
    assert yard.shipped == {"success": True, "pushed": True, "merged": False, "branch": BRANCH, "head": head}
    assert yard.effect(REMOTE).undo == {"branch": BRANCH, "remote": "origin", "sha": head, "intended": None}


def test_without_a_remote_it_succeeds_with_a_warning_that_says_so():
    git = MemoryGit()
    git.remote = None
    yard = Yard(git=git)

    outcome = yard.run()

    assert isinstance(outcome, Done)
    [warning] = outcome.warnings
    assert "nothing was pushed: there is no remote origin" in warning
    assert yard.shipped["pushed"] is False


def test_in_place_it_succeeds_with_a_warning():
    yard = Yard()
    yard.engine.has_worktrees = False

    assert "this home works in place" in yard.run().warnings[0]


def test_work_that_changed_nothing_ships_nothing_and_says_so():
    yard = Yard()
    yard.runner._left["build"] = [WELL]

    assert "has no change over main" in yard.run().warnings[0]
    assert BRANCH not in yard.git.remote


# --- what keeps it from leaving --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["skipped", "failed", "queued", "running"])
def test_nothing_ships_before_every_required_phase_is_explicitly_complete(status):
    yard = Yard(BUILD, phase("ship", runner="ship", max_attempts=1))
    yard.attempt()
    real = yard.engine.phase_runners["ship"].run

    def lying(spec, context):
        records = [record.model_copy(update={"status": status}) for record in context.document.phases[:1]]
        told = context.document.model_copy(update={"phases": [*records, *context.document.phases[1:]]})
        return real(spec, replace(context, document=told))

    yard.engine.phase_runners["ship"].run = lying
    outcome = yard.attempt()

    assert isinstance(outcome, Failed)
    assert f"nothing ships before it is complete: build ({status})" in outcome.message
    assert yard.git.pushes == []


@pytest.mark.parametrize(
    ("files", "rules", "words"),
    [
        ({"k.py": "token = 'ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8'"}, {}, "looks like a secret at k.py:1"),
        ({".github/workflows/ci.yml": "on: push"}, {}, "ship.allow_workflow_files"),
        ({".mcp.json": "{}"}, {}, "ship.allow_agent_files"),
        ({"a": "1", "b": "2"}, {"ship_max_files": 1}, "ship.max_files"),
    ],
)
def test_the_diff_gate_keeps_it_here(files, rules, words):
    yard = Yard(rules=rules)
    yard.runner._left["build"] = [lambda context: yard.git.files[context.cwd].update(files) or WELL]

    outcome = yard.run()

    assert isinstance(outcome, Failed)
    assert words in outcome.message
    assert yard.git.pushes == []


def without_ledger(run, spec, context):
    return run(spec, replace(context, effects=None))


def test_without_a_ledger_nothing_is_shipped_or_cleaned():
    for runner in ("ship", "clean"):
        yard = Yard(phase(runner, runner=runner, max_attempts=1))
        made = yard.engine.phase_runners[runner]
        made.run = partial(without_ledger, made.run)
        outcome = yard.attempt()

        assert "the ledger of effects" in outcome.message


# --- the base moved --------------------------------------------------------------------------------------------


def test_work_is_rebased_when_the_base_moved():
    yard = Yard()
    yard.attempt()
    tip = yard.git.move_base(**{"other.py": "theirs"})

    yard.run()

    head = yard.git.remote[BRANCH]
    assert yard.git.commits[head] == {"app.py": "one", "feature.py": "round 1", "other.py": "theirs"}
    assert yard.effect(f"branch:{BRANCH}").undo["start"] == tip


def test_a_conflict_sends_the_work_back_and_ends_with_a_person():
    yard = Yard(max_reworks=2)
    yard.runner.add("build", yard.building, yard.building)
    yard.attempt()
    yard.git.move_base(**{"feature.py": "theirs"})
    yard.git.conflicts = ("feature.py",)

    outcome = yard.run()

    assert isinstance(outcome, Failed)
    assert outcome.reason == "MAX_REWORKS_EXHAUSTED"
    assert yard.runner.numbers("build") == [1, 2, 3]
    assert yard.shipped["conflicts"] == ["feature.py"]
    assert yard.git.pushes == []


# --- pushing ---------------------------------------------------------------------------------------------------


def test_commits_of_others_on_the_branch_are_left_alone():
    yard = Yard(BUILD, phase("ship", runner="ship", max_attempts=1))
    yard.git.remote[BRANCH] = "c0"

    outcome = yard.run()

    assert "has commits of somebody else (c0)" in outcome.message
    assert yard.git.remote[BRANCH] == "c0"


@pytest.mark.parametrize(
    ("reason", "words", "outcome"),
    [
        ("stale", "was changed by somebody else meanwhile", "failed"),
        ("rejected", "refused the push", "failed"),
    ],
)
def test_a_push_that_does_not_work_says_why(reason, words, outcome):
    yard = Yard(BUILD, phase("ship", runner="ship", max_attempts=1))
    yard.git.push_answer = reason

    assert words in yard.run().message
    assert yard.effect(REMOTE).outcome == outcome


def test_a_push_without_an_answer_is_waited_for_and_its_effect_stays_in_doubt():
    yard = Yard(BUILD, phase("ship", runner="ship", max_attempts=1))
    yard.git.push_answer = GitUnreachable("the remote origin cannot be reached: connection reset")

    outcome = yard.run()

    assert isinstance(outcome, RetryAt)
    assert "is not available (network): the remote origin cannot be reached" in outcome.reason
    assert (yard.record("ship").attempts_used, yard.effect(REMOTE).outcome) == (0, "intended")


@pytest.mark.parametrize("is_after", [False, True])
def test_a_crash_around_the_push_neither_loses_nor_doubles_it(is_after):
    yard = Yard()
    yard.attempt()
    crash_once(yard.git, "push", is_after=is_after)
    with pytest.raises(LeaseLost):
        yard.attempt()
    yard.git.move_base(**{"other.py": "theirs"})  # so that another commit is to be pushed than was meant

    assert yard.run() == Done(state="completed")

    assert yard.git.remote[BRANCH] == yard.git.heads[BRANCH]
    assert len(yard.git.pushes) == (2 if is_after else 1)


@pytest.mark.parametrize("is_after", [False, True])
def test_a_crash_around_a_second_push_is_settled_too(is_after):
    yard = Yard(BUILD, phase("ship", runner="ship", gates=(Gate(kind="artifact", artifact="never"),)))
    yard.attempt()
    yard.attempt()  # pushed, and kept back by its gate
    assert yard.git.pushes == [yard.git.heads[BRANCH]]
    yard.git.move_base(**{"other.py": "theirs"})
    crash_once(yard.git, "push", is_after=is_after)
    yard.clock.advance(3600)
    with pytest.raises(LeaseLost):
        yard.attempt()
    yard.clock.advance(3600)

    yard.attempt()

    assert yard.git.remote[BRANCH] == yard.git.heads[BRANCH]
    assert yard.effect(REMOTE).undo["sha"] == yard.git.heads[BRANCH]


def test_what_an_agent_pushed_during_a_phase_is_taken_over():
    yard = Yard()

    def pushing(context):
        yard.building(context)
        yard.git.remote[BRANCH] = yard.git.commit(context.cwd, "by the agent")
        return WELL

    yard.runner._left["build"] = [pushing]

    assert yard.run() == Done(state="completed")
    assert yard.effect(REMOTE).outcome == "observed"


# --- the pull request ------------------------------------------------------------------------------------------


def test_a_draft_pull_request_is_put_up_once(forge):
    yard = Yard(forge=forge, options={"ship_labels": ("adw", "robot")})

    yard.run()

    [result] = forge.pull_requests_of(BRANCH)
    assert (result.title, result.is_draft, result.base) == ("feature: #42 - Add a fine thing", True, "main")
    assert "Closes #42" in result.body
    assert "- build: done" in result.body
    assert f"ADW-Run: {ADW_ID}" in result.body
    assert yard.document.pr_number == yard.shipped["pr_number"] == result.number
    assert yard.effect("pull_request").undo["pr_number"] == result.number
    assert set(forge.labels_of(result.number)) == {"adw", "robot"}
    assert yard.effect(f"label:{result.number}:adw").outcome == "made"
    assert not yard.document.pr_merged


@pytest.mark.parametrize("is_after", [False, True])
def test_a_crash_around_the_pull_request_leaves_one(is_after, forge):
    yard = Yard(forge=forge)
    yard.attempt()
    crash_once(forge, "create_pull_request", is_after=is_after)
    with pytest.raises(LeaseLost):
        yard.attempt()
    assert yard.effect("pull_request").outcome == "intended"

    assert isinstance(yard.run(), Done)

    assert len(forge.pull_requests_of(BRANCH)) == 1


def test_a_lost_answer_leaves_one_pull_request(forge):
    yard = Yard(forge=forge)
    yard.attempt()
    real = forge.create_pull_request

    def losing(new):
        real(new)
        raise ForgeUnavailable("the answer was lost")

    forge.create_pull_request = losing

    assert isinstance(yard.run(), Done)
    assert len(forge.pull_requests_of(BRANCH)) == 1


def test_merging_is_done_by_the_forge_when_asked_for(forge):
    yard = Yard(forge=forge, options={"ship_merge": "squash"})

    yard.run()

    [result] = forge.pull_requests_of(BRANCH)
    assert result.is_merged
    assert yard.shipped["merged"] is True
    assert yard.document.pr_merged


def test_what_is_merged_already_is_shipped(forge):
    yard = Yard(forge=forge, options={"ship_merge": "merge"})
    yard.attempt()
    crash_once(forge, "merge_pull_request", is_after=True)
    with pytest.raises(LeaseLost):
        yard.attempt()

    assert yard.run() == Done(state="completed")

    assert yard.document.pr_merged
    assert yard.record("ship").attempts[-1].report["summary"] == "the pull request is merged already"


def test_a_pull_request_that_a_person_closed_is_not_opened_again(forge):
    yard = Yard(BUILD, phase("ship", runner="ship", max_attempts=2), forge=forge)
    yard.attempt()
    crash_once(forge, "create_pull_request", is_after=True)
    with pytest.raises(LeaseLost):
        yard.attempt()
    [result] = forge.pull_requests_of(BRANCH)
    forge.close_pull_request(result.number)

    outcome = yard.attempt()

    assert f"pull request #{result.number} was closed" in outcome.message
    assert len(forge.pull_requests_of(BRANCH)) == 1


def test_a_forge_without_a_remote_is_a_mistake(forge):
    git = MemoryGit()
    git.remote = None
    yard = Yard(BUILD, phase("ship", runner="ship", max_attempts=1), forge=forge, git=git)

    assert "there is no remote origin with main to push to" in yard.run().message


# --- cleaning up -----------------------------------------------------------------------------------------------


def test_cleaning_removes_the_worktree_and_keeps_branch_and_push():
    yard = Yard(BUILD, SHIP, CLEAN)

    assert yard.run() == Done(state="completed")

    assert yard.git.trees == {}
    assert BRANCH in yard.git.heads
    assert BRANCH in yard.git.remote
    assert yard.document.worktree_path is None
    assert yard.effect("worktree").outcome == "undone"


@pytest.mark.parametrize("is_after", [False, True])
def test_cleaning_that_was_cut_off_is_finished(is_after):
    yard = Yard(BUILD, CLEAN)
    yard.attempt()
    crash_once(yard.git, "remove_worktree", is_after=is_after)
    with pytest.raises(LeaseLost):
        yard.attempt()

    assert yard.run() == Done(state="completed")

    assert yard.git.trees == {}
    assert yard.effect("worktree").outcome == ("gone" if is_after else "undone")


def test_a_worktree_of_somebody_else_is_left_and_the_work_is_done():
    yard = Yard(BUILD, phase("clean", runner="clean", is_required=False, max_attempts=1))
    yard.attempt()
    yard.git.trees[TREE] = replace(yard.git.trees[TREE], lock_reason="adw 99999999")

    outcome = yard.run()

    assert isinstance(outcome, Done)
    assert "clean was passed over" in outcome.warnings[0]
    assert TREE in yard.git.trees


# --- the worktree of a workflow that is completed --------------------------------------------------------------


def release(yard):
    with yard.session() as session:
        yard.engine.workspace.release(session)


def test_a_completed_workflow_whose_branch_is_pushed_releases_its_worktree_and_keeps_its_branch():
    yard = Yard()
    yard.run()

    release(yard)

    assert (yard.git.trees, yard.document.worktree_path, yard.effect("worktree").outcome) == ({}, None, "undone")
    assert yard.git.heads[BRANCH] == yard.git.remote[BRANCH]
    assert [event.data["uncommitted"] for event in yard.events() if event.event_type == "worktree_released"] == [""]
    release(yard)
    assert yard.effect("worktree").outcome == "undone", "it may be repeated"


@pytest.mark.parametrize("is_after", [False, True])
def test_a_crash_around_the_removal_is_made_good_by_the_next_one(is_after):
    yard = Yard()
    yard.run()
    crash_once(yard.git, "remove_worktree", is_after=is_after)
    with pytest.raises(LeaseLost):
        release(yard)

    release(yard)

    assert (yard.git.trees, yard.document.worktree_path) == ({}, None)
    assert yard.effect("worktree").outcome == ("gone" if is_after else "undone")


def test_what_is_not_committed_is_kept_as_a_patch_when_a_worktree_is_released():
    yard = Yard()
    yard.run()
    yard.git.files[Path(yard.document.worktree_path)]["left.txt"] = "made by a gate"

    release(yard)

    assert (yard.git.trees, yard.kept) == ({}, ["left.txt"])


@pytest.mark.parametrize("why", ["setting", "not pushed", "not completed"])
def test_a_worktree_stays_with_work_that_is_nowhere_else(why):
    yard = Yard(BUILD) if why == "not pushed" else Yard()
    if why == "setting":
        yard.engine.settings.worktree_release = False
    if why == "not completed":
        yard.attempt()
    else:
        yard.run()

    release(yard)

    assert len(yard.git.trees) == 1
    assert yard.effect("worktree").outcome == "made"


def test_a_worktree_that_cannot_be_removed_is_named_and_the_workflow_stays_completed():
    yard = Yard()
    yard.run()

    def refuse(*_args, **_keywords):
        raise NotOurs("somebody else has it")

    yard.git.remove_worktree = refuse

    release(yard)

    [told] = [event.data for event in yard.events() if event.event_type == "worktree_kept"]
    assert told["why"] == "somebody else has it"
    assert (yard.state, yard.effect("worktree").outcome) == ("completed", "made")
