"""
The workflows that come with adw, and the names people know them by.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.identifiers import hint, meant, nearest
from adws.adw_modules.workflow.checks import check_workflow
from adws.adw_modules.workflow.library import ALIASES, built_in_names, built_ins
from adws.adw_modules.workflow.model import AGENT, RUNNERS

#: What the ADW scripts of these names run, one after the other.
SCRIPTS = {
    "adw_plan_iso": "plan",
    "adw_build_iso": "build",
    "adw_lint_iso": "lint",
    "adw_test_iso": "test",
    "adw_review_iso": "review",
    "adw_document_iso": "document",
    "adw_ship_iso": "ship",
    "adw_cleanup_iso": "clean",
    "adw_patch_iso": "plan build",
    "adw_plan_build_iso": "plan build",
    "adw_plan_build_test_iso": "plan build test",
    "adw_lightweight_iso": "plan build test",
    "adw_plan_build_test_review_iso": "plan build test review",
    "adw_plan_build_review_iso": "plan build review",
    "adw_plan_build_document_iso": "plan build document",
    "adw_sdlc_iso": "plan build test review document",
    "adw_sdlc_zte_iso": "plan build test review document",
    "adw_sdlc_ZTE_iso": "plan build test review document ship",
    "adw_sdlc_complete_iso": "plan build lint test review document ship clean",
    "adw_sdlc_complete_zte_iso": "plan build lint test review document ship clean",
    "adw_sdlc_complete_ZTE_iso": "plan build lint test review document ship clean",
    "adw_sdlc_from_build_iso": "build lint test review document ship clean",
}


def phases_of(spec):
    return " ".join(phase.name for phase in spec.phases)


@pytest.mark.parametrize(("script", "phases"), SCRIPTS.items())
def test_a_known_name_keeps_its_shape_with_and_without_iso(script, phases):
    known = built_ins()

    assert phases_of(known[ALIASES[script]]) == phases
    assert ALIASES[script.removesuffix("_iso")] == ALIASES[script]


def test_shipping_without_a_look_has_to_be_asked_for_in_capitals():
    known = built_ins()
    shipping = {name for name in ALIASES if "ship" in phases_of(known[ALIASES[name]]) and "zte" in name.lower()}

    assert {name for name in shipping if "complete" not in name} == {"adw_sdlc_ZTE_iso", "adw_sdlc_ZTE"}


@pytest.mark.parametrize("name", built_in_names())
def test_a_built_in_is_sound_once_there_is_an_agent(name):
    spec = built_ins()[name]

    assert check_workflow(spec, runners=(AGENT, *RUNNERS), has_file=lambda _name: True) == []
    assert spec.name == name
    assert spec.source == "built in"
    assert spec.description.endswith(".")


def test_ship_needs_every_phase_before_it_and_only_the_clean_up_may_fail():
    for spec in built_ins().values():
        if ship := spec.phase("ship"):
            assert ship.needs == tuple(phase.name for phase in spec.phases[: spec.phases.index(ship)])
        assert {phase.name for phase in spec.phases if not phase.is_required} <= {"clean"}


def test_built_in_phases_have_the_runner_prompt_and_rework_of_their_name():
    known = built_ins()

    assert [(phase.name, phase.runner, phase.prompt, phase.on_rework) for phase in known["sdlc"].phases] == [
        ("plan", AGENT, "plan", ""),
        ("build", AGENT, "build", ""),
        ("lint", AGENT, "lint", ""),
        ("test", AGENT, "test", "build"),
        ("review", AGENT, "review", "build"),
        ("document", AGENT, "document", ""),
        ("ship", "ship", "", "build"),
        ("clean", "clean", "", ""),
    ]
    assert known["patch"].phase("plan").prompt == "patch"
    assert known["ship"].phase("ship").on_rework == known["test"].phase("test").on_rework == ""


def test_an_overlay_is_laid_over_every_phase_of_its_name():
    known = built_ins({"plan": {"runner": "command", "command": ("make", "plan")}})

    for name in ("sdlc", "plan_build", "patch", "plan"):
        plan = known[name].phase("plan")
        assert (plan.runner, plan.command, plan.prompt) == ("command", ("make", "plan"), "")
    assert known["sdlc"].phase("build").runner == AGENT


def test_ship_does_not_need_a_phase_that_was_made_optional():
    spec = built_ins({"lint": {"is_required": False}})["sdlc"]

    assert spec.phase("ship").needs == ("plan", "build", "test", "review", "document")
    assert check_workflow(spec, runners=(AGENT, *RUNNERS), has_file=lambda _name: True) == []


# --- spelling --------------------------------------------------------------------------------------------------


def test_a_name_that_is_nearly_right_is_offered_and_otherwise_all_are():
    known = ("command", "python")

    assert nearest("comand", known) == "command"
    assert nearest("zzz", known) == ""
    assert meant("comand", known) == ", did you mean command?"
    assert meant("zzz", known) == ""
    assert hint("comand", known) == ", did you mean command?"
    assert hint("zzz", known) == "; there are: command, python"
    assert hint("zzz", known, "the keys are") == "; the keys are: command, python"
