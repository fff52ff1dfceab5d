"""The model of an attempt: the advisor's, then the phase's own by attempt, then the workflow's, then the usual one."""

from __future__ import annotations

import pytest

from adws.adw_modules.agents.prices import another_model, ladder_of, model_for
from tests.unit.engine_cases import attempt, document_of, phase, records_of, spec_of


def chosen(*, options=None, used=0, ordered=None, runner="claude", usual="", sets=None, **fields) -> str:
    spec = spec_of(phase("build", runner=runner, options=options or {}))
    record = records_of(spec)[0].changed(attempts_used=used, model=ordered)
    return model_for(document_of(spec, **fields), spec.phases[0], record, usual=usual, sets=sets or {})


@pytest.mark.parametrize(("used", "model"), [(0, "a"), (1, "b"), (2, "c"), (7, "c")])
def test_each_attempt_of_a_round_has_the_next_model_and_the_last_one_stays(used, model):
    assert chosen(options={"models": ["a", "b", "c"], "model": "never"}, used=used) == model


def test_the_choice_of_the_advisor_comes_before_all_else():
    assert chosen(options={"models": ["a", "b"], "model": "m"}, ordered="other", usual="u", model_set="s") == "other"


@pytest.mark.parametrize(("used", "model"), [(0, "b"), (1, "b"), (2, "c")])
def test_a_choice_of_the_advisor_from_the_list_is_a_step_that_later_attempts_do_not_fall_behind(used, model):
    assert chosen(options={"models": ["a", "b", "c"]}, used=used, ordered="b") == model


def test_the_phase_comes_before_the_workflow_and_that_before_the_usual_one():
    assert chosen(options={"model": "m"}, model_set="s", usual="u") == "m"
    assert chosen(model_set="s", usual="u") == "s"
    assert chosen(usual="u") == "u"
    assert chosen() == ""


def test_a_set_of_models_is_what_the_settings_say_and_no_model_by_itself():
    assert chosen(model_set="heavy", sets={"heavy": "opus"}, usual="u") == "opus"
    assert chosen(model_set="heavy", usual="u") == "u"


@pytest.mark.parametrize(
    "options", [{"models": "abc"}, {"models": 5}, {"models": []}, {"models": [1, ""]}, {"model": 5}]
)
def test_options_that_name_no_model_are_passed_over(options):
    assert chosen(options=options, usual="u") == "u"


@pytest.mark.parametrize("runner", ["command", "python", "ship", "clean"])
def test_who_asks_no_model_has_none(runner):
    item = phase("build", runner=runner, options={"models": ["a"]})

    assert not item.has_model
    assert chosen(options={"model": "m"}, runner=runner, usual="u") == ""
    assert another_model(item, records_of(spec_of(item))[0], ("b",)) == ""


def test_another_model_is_one_that_this_round_has_not_tried():
    item = phase("build", options={"models": ["a", "b"]})
    record = records_of(spec_of(item))[0].changed(
        round=2, attempts=[attempt(1, model="b"), attempt(2, round=2, model="a"), attempt(3, round=2, model=None)]
    )

    assert ladder_of(item) == ("a", "b")
    assert another_model(item, record, ("c",)) == "b"
    tried = record.changed(attempts=[*record.attempts, attempt(4, round=2, model="b")])
    assert another_model(item, tried, ("a", "c")) == "c"
    assert another_model(item, tried) == ""
