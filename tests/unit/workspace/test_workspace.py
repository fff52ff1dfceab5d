"""
The place a workflow works in: made through the ledger, checked, secured after each phase, released.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from adws.adw_modules import effects
from adws.adw_modules.document import Resource
from adws.adw_modules.errors import GitError, GitUnreachable, LeaseLost
from adws.adw_modules.phase import Done, Failed, RetryAt
from tests.unit.engine_cases import ADW_ID, BROKEN, WELL, phase, spec_of
from tests.unit.space_cases import BRANCH, TREE, MemoryGit, SpaceWorld


def world_of(*phases, scripts=None, **fields) -> SpaceWorld:
    return SpaceWorld(spec_of(*phases), scripts, **fields)


def editing(git: MemoryGit, **files: str):
    def run(context):
        git.files[context.cwd].update(files)
        return WELL

    return run


# --- worktree and branch ---------------------------------------------------------------------------------------


def test_a_phase_works_in_a_worktree_on_a_branch_of_its_own():
    world = world_of("plan")

    world.attempt()

    [call] = world.runner.calls
    assert call.context.cwd == TREE
    assert (world.document.worktree_path, world.document.branch_name) == (str(TREE), BRANCH)
    assert world.git.trees[TREE].lock_reason == f"adw {ADW_ID}"
    assert world.effect("worktree").undo == {
        "path": str(TREE),
        "branch": BRANCH,
        "reason": f"adw {ADW_ID}",
        "sha": "c0",
        "boot_id": "boot-1",
        "mount": "",
        "is_filled": True,
    }
    assert world.effect(f"branch:{BRANCH}").undo == {"branch": BRANCH, "base": "main", "start": "c0", "sha": "c0"}
    assert world.git.filled == [TREE]


def test_both_are_meant_before_they_are_made():
    world = world_of("plan")
    seen = []
    add = world.git.add_worktree

    def looking(*args, **keywords):
        seen.append({item.key: item.outcome for item in world.document.resources if item.kind != "port"})
        return add(*args, **keywords)

    world.git.add_worktree = looking
    world.attempt()

    assert seen == [{"worktree": "intended", f"branch:{BRANCH}": "intended"}]


def test_a_branch_of_an_older_tool_is_gone_on_with_though_the_remote_is_down():
    world = world_of("build", branch_name="feature-issue-42-old")
    world.git.commits["c9"] = {"app.py": "older work"}
    world.git.heads["feature-issue-42-old"] = "c9"
    world.git.is_offline = True

    assert isinstance(world.attempt(), Done)

    assert world.git.files[TREE] == {"app.py": "older work"}
    facts = {"branch": "feature-issue-42-old", "base": "main", "start": "", "sha": "c9"}
    assert world.effect("branch:feature-issue-42-old").undo == facts


def test_without_branch_and_commit_the_attempt_fails_and_says_what_to_do():
    world = world_of("plan", "build")
    world.runner.add("plan", editing(world.git, plan="steps"))
    world.attempt()
    world.git.trees.pop(TREE)
    world.git.commits.pop(world.git.heads.pop(BRANCH))

    world.attempt()

    assert "are gone: restore the branch" in world.record("build").last_failure_reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"branch": "other"}, f"is on other, not on {BRANCH}: git -C"),
        ({"branch": ""}, "is on no branch"),
        ({"lock_reason": "adw 99999999"}, f"belongs to adw 99999999, not to {ADW_ID}"),
        ({"lock_reason": ""}, "belongs to nobody"),
    ],
)
def test_a_worktree_that_is_something_else_now_is_left_alone(change, words):
    world = world_of("plan", "build")
    world.attempt()
    world.git.heads["other"] = "c0"
    before = world.git.trees[TREE] = replace(world.git.trees[TREE], **change)

    world.attempt()

    assert words in world.record("build").last_failure_reason
    assert world.git.trees[TREE] == before
    assert [call.phase for call in world.runner.calls] == ["plan"]


# --- after a crash ---------------------------------------------------------------------------------------------


def crash_in(world, name, *, is_after: bool):
    """Die in the middle of a call of git, once."""
    real = getattr(world.git, name)

    def dying(*args, **keywords):
        setattr(world.git, name, real)
        if is_after:
            real(*args, **keywords)
        raise LeaseLost("its process died")

    setattr(world.git, name, dying)
    with pytest.raises(LeaseLost):
        world.attempt()


@pytest.mark.parametrize("is_after", [False, True])
def test_a_crash_while_the_worktree_is_made_neither_loses_nor_doubles_it(is_after):
    world = world_of("plan")
    crash_in(world, "add_worktree", is_after=is_after)
    assert world.effect("worktree").outcome == "intended"
    world.git.move_base(**{"new.py": "x"})

    world.attempt()

    assert world.state == "completed"
    assert len(world.git.trees) == 1
    assert world.effect("worktree").outcome == ("adopted" if is_after else "made")
    assert world.effect(f"branch:{BRANCH}").undo["start"] == "c0"  # as it was meant, not as the base is now


# --- after a phase ---------------------------------------------------------------------------------------------


def test_what_a_phase_changed_is_committed():
    world = world_of("plan", "build")
    world.runner.add("plan", editing(world.git, plan="steps"))

    world.attempt()

    head = world.git.heads[BRANCH]
    assert world.git.messages[head].splitlines()[0] == "feat: Add a fine thing (#42)"
    assert world.effect(f"branch:{BRANCH}").undo["sha"] == head
    [event] = world.events("work_committed")
    assert event.data == {"head": head, "commit": head}


def test_a_change_outside_the_allowed_paths_fails_the_attempt_and_names_the_files():
    world = world_of(phase("document", allowed_paths=("docs/", "*.md")))
    world.runner.add("document", editing(world.git, **{"docs/a.txt": "x", "README.md": "x", "app.py": "two"}))

    world.attempt()

    assert world.record("document").last_failure_reason == (
        "document changed files outside its allowed_paths: app.py; they are as they were before, "
        "and phases/document/attempt-1.put-back.patch has what was changed: keep off them, or allow it"
    )
    assert world.git.heads[BRANCH] == "c0"
    assert world.git.files[TREE] == {"docs/a.txt": "x", "README.md": "x", "app.py": "one"}
    assert world.kept == ["app.py: two\n"]


@pytest.mark.parametrize("is_crash", [False, True], ids=["failed", "cut-off"])
def test_what_an_earlier_attempt_left_outside_the_allowed_paths_is_put_back_first(is_crash):
    world = world_of(phase("document", allowed_paths=("docs/",)))

    def straying(context):
        world.git.files[context.cwd].update({"app.py": "two", "new.txt": "x", "docs/half.md": "half"})
        raise LeaseLost("its process died") if is_crash else BROKEN

    world.runner.add("document", straying, WELL)
    if is_crash:
        with pytest.raises(LeaseLost):
            world.attempt()
    else:
        assert isinstance(world.attempt(), RetryAt)
        world.clock.advance(3600)

    said = []
    assert isinstance(world.attempt(say=lambda _id, line: said.append(line)), Done)

    assert world.git.commits[world.git.heads[BRANCH]] == {"app.py": "one", "docs/half.md": "half"}
    assert world.kept == ["app.py: two\nnew.txt: x\n"]
    assert said[0].startswith("an earlier attempt changed files outside allowed_paths: app.py, new.txt; they are as")


def test_refs_that_appear_during_a_phase_are_observed():
    world = world_of("plan")

    def making(_context):
        world.git.heads["spike"] = "c0"
        world.git.heads["feature-issue-9-adw-99999999-other"] = "c0"
        world.git.extra_refs["refs/tags/v1"] = "c0"
        world.git.extra_refs["refs/adw/salvage/x"] = "c0"
        world.git.remote[BRANCH] = "c0"
        return WELL

    world.runner.add("plan", making)
    world.attempt()

    seen = {item.key: item.undo for item in world.document.resources if item.outcome == "observed"}
    assert seen == {
        "branch:spike": {"ref": "refs/heads/spike", "sha": "c0", "phase": "plan", "branch": "spike"},
        "ref:refs/tags/v1": {"ref": "refs/tags/v1", "sha": "c0", "phase": "plan"},
        f"remote_branch:{BRANCH}": {"branch": BRANCH, "sha": "c0", "remote": "origin"},
    }


def spike(world, *, ends):
    """A phase whose tool makes refs, and that then ends with an error."""

    def run(_context):
        world.git.heads[f"spike-{ADW_ID}"] = "c0"
        world.git.heads["spike"] = "c0"
        world.git.heads[f"feature-issue-9-adw-99999999-like-{ADW_ID}"] = "c0"
        world.git.remote[BRANCH] = "c0"
        raise ends

    return run


def observed(world) -> set[str]:
    return {item.key for item in world.document.resources if item.outcome == "observed"}


def test_refs_of_an_attempt_that_was_cut_off_are_observed_by_their_names():
    """
    The next attempt has nothing to compare with: of `spike` nobody can say any more who made it.
    """
    world = world_of("plan")
    world.runner.add("plan", spike(world, ends=LeaseLost("its process died")), WELL)
    with pytest.raises(LeaseLost):
        world.attempt()
    world.enter()

    assert isinstance(world.attempt(), Done)

    assert observed(world) == {f"branch:spike-{ADW_ID}", f"remote_branch:{BRANCH}"}
    assert world.effect(f"branch:spike-{ADW_ID}").undo["phase"] == "plan"


# --- ports -----------------------------------------------------------------------------------------------------


def test_ports_are_held_and_handed_over_while_a_phase_runs():
    world = world_of("plan", "build")
    seen = []

    def looking(context):
        seen.append((dict(context.env), world.ports.is_held(ADW_ID)))
        return WELL

    world.runner.add("plan", looking)
    world.attempt()

    backend, frontend = world.document.backend_port, world.document.frontend_port
    names = {"ADW_BACKEND_PORT": str(backend), "ADW_FRONTEND_PORT": str(frontend), "PORT": str(backend)}
    assert seen == [(names, False)]
    assert world.ports.is_held(ADW_ID)
    assert world.effect(f"port:{backend}").undo == {"port": backend, "purpose": "backend"}
    assert world.effect("ports") is None


def test_a_crash_while_ports_are_taken_leaves_enough_to_free_them():
    world = world_of("plan")
    real = world.ports.take

    def dying(*args, **keywords):
        world.ports.take = real
        real(*args, **keywords)
        raise LeaseLost("its process died")

    world.ports.take = dying
    with pytest.raises(LeaseLost):
        world.attempt()
    [result] = effects.open_effects(world.document)
    assert result == Resource(key="ports", kind="port", host="testhost", undo={"adw_id": ADW_ID})

    world.attempt()
    assert len(world.ports.all()) == 2


# --- quotas ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "end", "used"),
    [
        (GitUnreachable("the remote cannot be reached"), RetryAt, 0),
        (GitError("the worktree cannot be made"), Failed, 1),
    ],
    ids=["outage", "failure"],
)
def test_a_phase_that_cannot_be_prepared_is_classified_and_counts_unless_the_remote_is_away(error, end, used):
    world = world_of(phase("plan", max_attempts=1))

    def failing(_branch):
        raise error

    world.git.fetch = failing

    outcome = world.attempt()

    assert isinstance(outcome, end)
    assert world.record("plan").attempts_used == used
    assert world.record("plan").attempts[-1].error["category"] == "transient"
    assert world.runner.calls == []


def test_the_ports_it_had_before_come_first():
    world = world_of("plan", "build")
    usual = world.ports.take(ADW_ID).backend
    world.ports.free(ADW_ID)
    world.occupy(usual)
    world.attempt()
    had = world.document.backend_port
    assert had != usual
    with world.session() as session:
        world.space.release(session)
    world.vacate()

    world.attempt()

    assert world.document.backend_port == had
