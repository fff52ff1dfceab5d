"""
Effects are meant before they are made, looked for after a crash, and never made twice.
"""

from __future__ import annotations

import pytest

from adws.adw_modules import effects
from adws.adw_modules.effects import Effect, Ledger
from adws.adw_modules.errors import ForgeUnavailable, GitError, GitUnreachable, LeaseLost
from tests.unit.engine_cases import ADW_ID, World, document_of, draft_of, spec_of, types


class Outside:
    """Something outside that can be made once."""

    def __init__(self) -> None:
        self.there: list[str] = []
        self.seen: list[str | None] = []
        self.error: Exception | None = None
        self.is_late = False  #: the error comes after the effect

    def find(self):
        return {"where": self.there[0]} if self.there else None

    def act(self):
        if self.error is not None and not self.is_late:
            raise self.error
        self.there.append("x")
        if self.error is not None:
            raise self.error
        return {"where": "x"}


@pytest.fixture
def world():
    return World(spec_of("plan"))


def make(world, outside, **more):
    with world.session() as session:
        return Ledger(session, host="here").make(
            "thing", "directory", undo={"name": "n"}, find=outside.find, act=outside.act, **more
        )


def outcome(world, key="thing"):
    result = effects.effect(world.document, key)
    return result.outcome if result else None


def test_an_effect_is_made_once_and_its_facts_are_kept(world):
    outside = Outside()

    first = make(world, outside, fields=lambda facts: {"plan_file": facts["where"]})
    second = make(world, outside)

    assert first == second == {"name": "n", "where": "x"}
    assert outside.there == ["x"]
    assert world.document.plan_file == "x"
    assert effects.effect(world.document, "thing").host == "here"


def test_what_is_there_already_is_adopted(world):
    outside = Outside()
    outside.there.append("y")

    assert make(world, outside) == {"name": "n", "where": "y"}

    assert outside.there == ["y"]
    assert outcome(world) == "adopted"


@pytest.mark.parametrize("error", [ForgeUnavailable("lost"), GitUnreachable("lost"), LeaseLost("gone")])
def test_an_act_whose_answer_was_lost_stays_meant_and_is_found_again(world, error):
    outside = Outside()
    outside.error, outside.is_late = error, True
    with pytest.raises(type(error)):
        make(world, outside)
    assert outcome(world) == "intended"
    outside.error = None

    make(world, outside)

    assert outside.there == ["x"]
    assert outcome(world) == "adopted"


def test_an_act_that_was_refused_is_over_with_all_that_goes_with_it(world):
    outside = Outside()
    outside.error = GitError("no")
    also = [Effect(key="other", kind="branch")]
    with pytest.raises(GitError):
        make(world, outside, also=also)

    assert (outcome(world), outcome(world, "other")) == ("failed", "failed")
    assert effects.effect(world.document, "thing").undo["error"] == "no"
    outside.error = None
    make(world, outside, also=also)
    assert (outcome(world), outcome(world, "other")) == ("made", "made")


def test_what_goes_with_it_and_is_there_already_is_not_meant_again(world):
    world.change(lambda draft: effects.observe(draft, Effect(key="other", kind="branch", outcome="observed")))

    make(world, Outside(), also=[Effect(key="other", kind="branch")])

    assert outcome(world, "other") == "observed"


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("there", [None, "old", "new"])
def test_a_push_keeps_what_was_and_what_will_be_until_it_is_over(world, there, is_known):
    seen = []
    if is_known:
        world.change(
            lambda draft: effects.observe(draft, Effect(key="r", kind="ref", outcome="made", undo={"sha": "old"}))
        )

    with world.session() as session:
        ledger = Ledger(session, host="here")
        ledger.push(
            "r",
            "ref",
            undo={"ref": "r"},
            head="new",
            there=there,
            act=lambda: seen.append(effects.effect(world.document, "r").undo),
        )
        ledger.note("r", {"more": 1})

    was = "old" if is_known else there or ""
    name = {} if is_known else {"ref": "r"}
    assert seen == ([] if there == "new" else [{**name, "sha": was, "intended": {"sha": "new"}}])
    assert effects.effect(world.document, "r").undo == {**name, "sha": "new", "intended": None, "more": 1}


def test_what_is_undone_is_not_there_and_can_be_made_again(world):
    outside = Outside()
    make(world, outside)
    with world.session() as session:
        Ledger(session, host="here").undone("thing")
        assert Ledger(session, host="here").facts("thing") is None
    outside.there.clear()

    make(world, outside)

    assert outside.there == ["x"]


def test_warnings_are_written_once_and_a_merge_for_good(world):
    with world.session() as session:
        ledger = Ledger(session, host="here")
        ledger.warn("careful")
        ledger.warn("careful")
        ledger.set_fields(plan_file="p.md")
        ledger.mark_merged()

    assert world.document.warnings == ["careful"]
    assert world.document.plan_file == "p.md"
    assert world.document.pr_merged


# --- the rules -------------------------------------------------------------------------------------------------


def test_the_newest_open_effect_comes_first():
    draft = draft_of(document_of(spec_of("plan")))
    effects.intend(draft, Effect(key="a", kind="branch"), Effect(key="b", kind="branch"))
    effects.settle(draft, "a", "made")
    effects.intend(draft, Effect(key="c", kind="branch"))
    effects.settle(draft, "b", "undone")

    assert [item.key for item in effects.open_effects(draft.document)] == ["c", "a"]
    assert [item.key for item in effects.effects(draft.document)] == ["a", "b", "c"]


def test_an_effect_becomes_those_whose_keys_were_not_known():
    draft = draft_of(document_of(spec_of("plan")))
    effects.intend(draft, Effect(key="ports", kind="port", undo={"adw_id": ADW_ID}))

    effects.become(draft, "ports", Effect(key="port:1", kind="port", outcome="made", undo={"port": 1}))

    assert [(item.key, item.outcome) for item in effects.effects(draft.document)] == [("port:1", "made")]
    assert types(draft) == ["effect_intended", "effect_settled"]


def test_what_is_observed_twice_is_kept_once():
    draft = draft_of(document_of(spec_of("plan")))
    effects.observe(draft, Effect(key="r", kind="ref", outcome="observed"))
    effects.observe(draft, Effect(key="r", kind="ref", outcome="observed"))

    assert len(draft.document.resources) == 1
    assert types(draft) == ["effect_observed"]
    assert effects.effect(draft.document, "nothing") is None
