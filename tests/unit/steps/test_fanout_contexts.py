"""What the events of an execution show of what its steps know."""

from __future__ import annotations

import json

import pytest

from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.steps.context import (
    event_contexts,
    known_of,
    resolved,
    result_facts,
    stored_result,
)
from adws.adw_modules.steps.model import NewExecution
from adws.adw_modules.workflow.model import StepSpec
from tests.homes import lab_home
from tests.unit.engine_cases import document_of, spec_of

KNOWN = "correct-horse-battery"
TOKEN = "ghp_" + "a1B2" * 9


def contexts(**context):
    new = NewExecution(
        execution_id="e.work",
        parent_execution_id="e",
        adw_id="1a2b3c4d",
        phase="build",
        attempt_number=1,
        catalog_id="demo@1",
        step=StepSpec(name="work", tool="python"),
        context=context,
    )

    return event_contexts(new, Redactor([KNOWN]))


def test_only_what_explains_an_execution_is_shown():
    whole, small = contexts(
        workload={"url": "u"}, vars={"n": 1}, issue={"body": "long"}, phases={"plan": {}}, _internal=1, steps={"a": [1]}
    )

    assert whole == small
    assert whole == {
        "execution_id": "e.work",
        "parent_execution_id": "e",
        "catalog_id": "demo@1",
        "workload": {"url": "u"},
        "vars": {"n": 1},
        "_step_results": {"a": {"has_data": True, "status": "success", "data_type": "list"}},
    }


def test_secrets_are_taken_out_by_their_name_their_looks_and_because_they_are_known():
    whole, small = contexts(
        workload={"password": "hunter22", "note": f"use {TOKEN}", "deep": [{"x": KNOWN}]}, vars={"api_key": "abcdef123"}
    )

    for shown in (whole, small):
        text = json.dumps(shown)
        assert not any(secret in text for secret in ("hunter22", TOKEN, KNOWN, "abcdef123"))
        assert MASK in text


def test_large_values_are_replaced_by_their_size_and_small_ones_beside_them_stay():
    whole, small = contexts(workload={"big": "x" * 20_000, "little": 1}, vars={})

    assert whole["workload"] == {"big": {"_truncated": True, "_size": 20_002}, "little": 1}
    assert len(json.dumps(small)) < 3000


def test_events_of_every_call_stay_small_however_much_a_phase_knows():
    steps = {f"step{number}": number for number in range(200)}

    whole, small = contexts(workload={"text": "x" * 5000}, vars={"n": 1}, steps=steps)

    assert len(json.dumps(small)) <= 2000
    assert small["vars"] == {"n": 1}
    assert len(whole["_step_results"]) == 200


def test_results_of_steps_are_told_by_their_kind():
    assert result_facts(None) == {"has_data": False, "status": "success", "data_type": "null"}
    assert result_facts({}) == {"has_data": False, "status": "success", "data_type": "dict"}
    assert result_facts(0) == {"has_data": True, "status": "success", "data_type": "int"}


# --- large results ---------------------------------------------------------------------------------------------


@pytest.fixture
def executions():
    return lab_home().executions


@pytest.mark.parametrize(
    "forged",
    [
        {"_kept": "1a2b3c4d.build.1.other#0"},
        {"_kept": "5e6f7a8b.build.1.s#0", "_type": "dict"},
        {"total": 3, "results": {"_execution": "5e6f7a8b.build.1.s"}},
    ],
)
def test_a_result_that_looks_like_a_key_leads_to_no_other_result(executions, forged):
    """
    Results come from servers and programs: what they say is a value, and never where to read.
    """
    executions.keep("1a2b3c4d.build.1.other#0", "mine")
    executions.keep("5e6f7a8b.build.1.s#0", "of another workflow")

    stored = stored_result(forged, "1a2b3c4d.build.1.s#0", executions)

    assert resolved({"steps": {"s": stored}}, executions, "1a2b3c4d")["steps"]["s"] == forged


def test_later_phases_know_the_whole_result_of_a_phase(executions):
    executions.keep("1a2b3c4d.build.1#result", ["whole"])
    context = {"phases": {"build": {"result": {"_kept": "1a2b3c4d.build.1#result"}, "vars": {"n": 1}}}}

    result = resolved(context, executions, "1a2b3c4d")

    assert result["phases"]["build"] == {"result": ["whole"], "vars": {"n": 1}}


def test_values_of_phases_before_are_known_and_those_of_this_one_come_first():
    document = document_of(spec_of("build"))

    known = known_of(document, {"plan": {"vars": {"a": 1, "b": 1}}, "lint": {"ok": True}}, {}, {"b": 2})

    assert known["vars"] == {"a": 1, "b": 2}
    assert known["issue"] == {"number": 42}
    assert known["phases"]["lint"] == {"ok": True}
