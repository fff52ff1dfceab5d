"""
The one comment on an issue: made once, edited in place, and never a reason to fail.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from adws.adw_modules.engine.runner_ship import COMMENT, StatusComment
from adws.adw_modules.errors import ConfigError, ForgeUnavailable, LeaseLost
from adws.adw_modules.forge.effects import ForgeEffects
from adws.testing import MemoryForge
from tests.unit.engine_cases import ADW_ID, World, spec_of


class Desk:
    """A workflow, a forge, and the comment between them."""

    def __init__(self, **fields) -> None:
        self.world = World(spec_of("plan", "build"), **fields)
        self.forge = MemoryForge(clock=self.world.clock)
        self.issue = self.forge.create_issue("Add a fine thing").number
        self.error: Exception | None = None
        self.sticky = StatusComment(
            SimpleNamespace(has_forge=True, forge_effects=self._open, clock=self.world.clock, host="here")
        )

    def _open(self):
        if self.error is not None:
            raise self.error
        return ForgeEffects(self.forge, clock=self.world.clock, key=b"key")

    def update(self):
        with self.world.session() as session:
            self.sticky.update(session)

    @property
    def comments(self):
        return self.forge.comments(self.issue)

    @property
    def effect(self):
        return next((item for item in self.world.document.resources if item.key == COMMENT), None)


@pytest.fixture
def desk():
    return Desk(issue_number=1)


def test_there_is_one_comment_and_it_is_edited_in_place(desk):
    desk.update()
    [first] = desk.comments
    desk.world.attempt()
    desk.update()

    [second] = desk.comments
    assert first.comment_id == second.comment_id == desk.effect.undo["comment_id"]
    assert "| plan | queued |" in first.body
    assert "| plan | complete |" in second.body
    assert ADW_ID in second.body


@pytest.mark.parametrize("is_after", [False, True])
def test_a_crash_around_the_first_comment_leaves_one(desk, is_after):
    real = desk.forge.create_comment

    def dying(*args):
        desk.forge.create_comment = real
        if is_after:
            real(*args)
        raise LeaseLost("its process died")

    desk.forge.create_comment = dying
    with pytest.raises(LeaseLost):
        desk.update()
    assert desk.effect.outcome == "intended"

    desk.update()

    assert len(desk.comments) == 1
    assert desk.effect.outcome == "made"


def test_one_that_a_person_deleted_is_posted_again(desk):
    desk.update()
    [first] = desk.comments
    desk.forge.delete_comment(first.comment_id)

    desk.update()

    [again] = desk.comments
    assert desk.effect.undo["comment_id"] == again.comment_id != first.comment_id


@pytest.mark.parametrize("error", [ForgeUnavailable("it is down"), ConfigError("no forge is configured")])
def test_trouble_is_noted_and_fails_nothing(desk, error):
    desk.error = error

    desk.update()

    [event] = desk.world.events("comment_failed")
    assert event.data == {"why": str(error)}


def test_a_workflow_without_an_issue_has_no_comment():
    desk = Desk(issue_number=None)

    desk.update()

    assert desk.forge.calls == [call for call in desk.forge.calls if "comment" not in call]
    assert desk.effect is None
