"""
Work on the remote before its result is written: pushed once, found again after a crash, and taken away in the end.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import GitUnreachable, LeaseLost, WorkElsewhere
from adws.adw_modules.phase import Failed, RetryAt
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.workspace.relocation import Publisher
from adws.adw_modules.workspace.workspace import Workspace
from tests.unit.engine_cases import ADW_ID, spec_of
from tests.unit.space_cases import BRANCH, SpaceWorld, writing

REF = f"refs/adw/wip/{ADW_ID}"


class Suspicious(Redactor):
    """Takes a line for a secret that says so."""

    def has_secret(self, text: str) -> bool:
        return "secret" in text


class SharedWorld(SpaceWorld):
    """A workflow on a machine that shares its database with others."""

    def __init__(self, *phases, host: str = "testhost", **options) -> None:
        self.host = host
        self.options = options
        super().__init__(spec_of(*phases))

    def enter(self, host: str = "") -> None:
        super().enter(host=host or self.host)
        settings = self.engine.settings
        settings.is_shared, settings.ship_allow_paths = True, ()
        settings.workspace_publish_work = self.options.get("publish_work", "when_shared")
        self.engine.redactor = Suspicious()
        self.engine.publisher = Publisher(self.engine)
        self.space = self.engine.workspace = Workspace(self.engine)

    def go_to(self, host: str) -> None:
        """Let a worker of another machine have the workflow: it has the remote, and none of our worktrees."""
        self.git.trees, self.git.files = {}, {}
        self.git.heads = {"main": "c0"}
        self.enter(host)

    def admit(self) -> None:
        with self.session() as session:
            self.space.admit(session)


def building(**options) -> SharedWorld:
    world = SharedWorld("plan", "build", **options)
    world.runner.add("plan", writing(lambda: world, plan="steps"))
    world.runner.add("build", writing(lambda: world, app="built"))
    return world


def told(world, name: str) -> list:
    return [event.data for event in world.events() if event.event_type == name]


# --- there -----------------------------------------------------------------------------------------------------


def test_what_a_phase_committed_is_on_the_remote_before_the_document_has_it():
    world = building()
    seen = []
    push = world.git.push_ref

    def looking(*args, **keywords):
        branch, wip = world.effect(f"branch:{BRANCH}"), world.effect("wip")
        seen.append((branch.undo["sha"], wip.outcome, wip.undo["intended"]))
        return push(*args, **keywords)

    world.git.push_ref = looking
    world.attempt()

    assert seen == [("c0", "intended", {"sha": "c1"})]
    assert world.git.own == {REF: "c1"}
    assert world.effect(f"branch:{BRANCH}").undo["sha"] == "c1"
    assert (world.effect("wip").outcome, world.effect("wip").host) == ("made", None)


@pytest.mark.parametrize("is_after", [False, True])
def test_a_push_whose_end_nobody_saw_is_looked_up_and_not_made_twice(is_after):
    world = building()
    push = world.git.push_ref

    def cut_off(*args, **keywords):
        world.git.push_ref = push
        if is_after:
            push(*args, **keywords)
        raise LeaseLost("taken over")

    world.git.push_ref = cut_off
    with pytest.raises(LeaseLost):
        world.attempt()

    world.attempt()

    assert world.git.log == ["push c1"]
    assert world.git.own[REF] == world.effect("wip").undo["sha"] == world.effect(f"branch:{BRANCH}").undo["sha"]


# --- when it cannot be there -----------------------------------------------------------------------------------


def unreachable(world) -> None:
    world.git.push_answer = GitUnreachable("the remote origin cannot be reached: connection reset")


def rejected(world) -> None:
    world.git.push_answer = "rejected"


def foreign(world) -> None:
    world.git.own[REF] = "c77"


def without_remote(world) -> None:
    world.git.remote = None


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        (unreachable, "cannot be reached"),
        (rejected, "refused the push"),
        (foreign, "which this workflow did not put there"),
        (without_remote, "there is no remote origin"),
    ],
)
def test_what_cannot_be_pushed_is_work_of_its_host_alone_until_a_later_phase_brings_it_there(trouble, why):
    world = building()
    trouble(world)

    world.attempt()

    [said] = told(world, "work_not_published")
    assert (said["host"], said["head"]) == ("testhost", "c1")
    assert why in said["why"]
    world.enter("another")
    with pytest.raises(WorkElsewhere, match="is on testhost and not on the remote") as refused:
        world.admit()
    assert refused.value.host == "testhost"
    world.enter()
    world.git.push_answer, world.git.remote = None, {"main": "c0"}
    world.git.own.pop(REF, None)
    world.attempt()
    assert world.git.own == {REF: "c2"}


def test_nothing_is_pushed_where_the_settings_say_so():
    world = building(publish_work="never")

    world.attempt()

    assert world.git.own == {}
    assert told(world, "work_not_published")[0]["why"] == "workspace.publish_work is never"


def test_where_it_has_to_be_there_an_attempt_fails_that_could_not_bring_it_there():
    world = building(publish_work="always")
    unreachable(world)

    assert isinstance(world.attempt(), RetryAt)
    assert told(world, "work_not_published") == []


# --- here ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [None, "c0"], ids=["gone", "of-somebody-else"])
def test_a_commit_that_is_not_on_the_remote_any_more_is_missed_in_one_sentence(there):
    world = building()
    world.attempt()
    world.go_to("another")
    del world.git.own[REF]
    if there:
        world.git.own[REF] = there

    failed = world.attempt()

    assert isinstance(failed, Failed | RetryAt)
    said = world.record("build").last_failure_reason
    assert "is on testhost, and its last commit c1 is not on the remote origin: start a worker on testhost" in said
    assert "--forget-host testhost" in said


# --- over ------------------------------------------------------------------------------------------------------


def test_a_ref_that_somebody_else_moved_is_kept_and_one_that_is_gone_is_gone():
    for there, outcome in (("c0", "kept"), (None, "gone")):
        world = building()
        world.attempt()
        world.git.own.pop(REF)
        if there:
            world.git.own[REF] = there
        with world.session() as session:
            Publisher(world.engine).withdraw(session)

        assert world.effect("wip").outcome == outcome
