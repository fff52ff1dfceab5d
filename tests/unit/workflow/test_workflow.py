"""
A workflow as data, and what a document keeps of it.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules import document
from adws.adw_modules.errors import StateInvalid
from adws.adw_modules.workflow.model import (
    BASE_MODES,
    STATE_OF_PHASE,
    Gate,
    LoopSpec,
    PhaseSpec,
    RetryRule,
    RetrySpec,
    StepSpec,
    Timeouts,
    WorkflowSpec,
    freeze,
    phase_from_json,
    phase_to_json,
    thaw,
)

texts = st.text(max_size=8)
many = st.lists(texts, max_size=3).map(tuple)
seconds = st.none() | st.floats(min_value=0.1, max_value=1e6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=5,
)
gates = st.builds(
    Gate,
    kind=texts,
    command=many,
    shell=texts,
    artifact=texts,
    timeout_seconds=st.floats(min_value=0.1, max_value=1e6),
    base=st.sampled_from(("", *BASE_MODES)),
)
phases = st.builds(
    PhaseSpec,
    name=texts,
    state=texts,
    runner=texts,
    tier=st.integers(0, 9),
    needs=many,
    is_required=st.booleans(),
    max_attempts=st.integers(1, 100),
    timeouts=st.builds(Timeouts, wall=seconds, idle=seconds, after_result=seconds),
    retry=st.builds(
        RetrySpec,
        strategy=st.none() | texts,
        base_seconds=seconds,
        max_seconds=seconds,
        categories=st.none() | many,
    ),
    gates=st.lists(gates, max_size=2).map(tuple),
    allowed_paths=many,
    command=many,
    shell=texts,
    call=texts,
    prompt=texts,
    env=many,
    on_rework=texts,
    options=st.dictionaries(texts, json_values, max_size=2),
    commits=st.none() | st.booleans(),
)


@given(st.lists(phases, min_size=1, max_size=3))
def test_a_definition_comes_back_from_a_document_as_it_was(found):
    spec = WorkflowSpec(
        name="mine",
        version="7",
        phases=tuple(found),
        source="the document",
        workload={"users": [{"a": 1}]},
        base="compare",
    )
    kept = document.WorkflowRef.model_validate(json.loads(json.dumps(freeze(spec))))

    assert thaw(kept) == spec


def test_every_field_of_a_phase_is_kept():
    """
    Each field is changed alone, and the change is there after the way through JSON.
    """
    plain = PhaseSpec(name="a", state="building", runner="command")
    changed = PhaseSpec(
        name="b",
        state="testing",
        runner="python",
        tier=1,
        needs=("x",),
        is_required=False,
        max_attempts=2,
        timeouts=Timeouts(wall=None),
        retry=RetrySpec(strategy="fixed"),
        gates=(Gate(kind="human"),),
        allowed_paths=("src",),
        command=("make",),
        shell="make",
        call="a.b:c",
        prompt="p.md",
        env=("A",),
        on_rework="build",
        options={"a": 1},
        steps=(StepSpec(name="s", tool="http", inputs={"url": "x"}, retry=(RetryRule(kind="on_error"),)),),
        deadline_seconds=5.0,
        commits=True,
    )
    for name in PhaseSpec.__slots__:
        assert getattr(changed, name) != getattr(plain, name), f"the test lacks a value of its own for {name}"

    assert phase_from_json(phase_to_json(changed)) == changed


@pytest.mark.parametrize(
    ("runner", "states"),
    [
        ("agent", "planning building linting testing documenting shipping"),
        ("claude", "planning building linting testing documenting shipping"),
        ("command", "planning building documenting shipping"),
        ("python", "planning building documenting shipping"),
        ("steps", "planning building linting testing reviewing documenting shipping cleaning"),
    ],
)
def test_what_a_phase_leaves_is_committed_by_its_runner_and_its_state_or_as_it_says(runner, states):
    made = [PhaseSpec(name="a", state=state, runner=runner) for state in STATE_OF_PHASE.values()]

    assert [phase.state for phase in made if phase.commits_work] == states.split()
    assert all(replace(phase, commits=True).commits_work for phase in made)
    assert not any(replace(phase, commits=False).commits_work for phase in made)


def test_a_step_that_loops_or_retries_is_queued():
    step = StepSpec(name="s", tool="http")

    assert not step.is_queued
    assert replace(step, loop=LoopSpec(collection=[])).is_queued
    assert replace(step, retry=(RetryRule(kind="on_error"),)).is_queued


def test_what_is_as_usual_is_not_written():
    assert phase_to_json(PhaseSpec(name="a", state="building", runner="command")) == {
        "name": "a",
        "state": "building",
        "runner": "command",
    }


def test_keys_of_a_newer_version_are_left_out():
    written = {"name": "a", "state": "building", "runner": "command", "colour": "red", "gates": [{"kind": "x", "y": 1}]}

    assert phase_from_json(written).gates == (Gate(kind="x"),)


@pytest.mark.parametrize(
    ("phases_of_document", "words"),
    [
        ([], "the document has no definition of its workflow mine: older versions did not keep one"),
        ([{"name": "a", "state": "building"}], "the definition of mine in the document is not whole"),
        ([{"name": "a", "state": "b", "runner": "c", "gates": [{"shell": "x"}]}], "not whole"),
    ],
    ids=["none", "no-runner", "gate-without-kind"],
)
def test_a_document_without_a_whole_definition_is_refused(phases_of_document, words):
    with pytest.raises(StateInvalid, match=words):
        thaw(document.WorkflowRef(name="mine", phases=phases_of_document))


def test_demands_of_a_document_that_make_no_sense_are_refused():
    phases = [{"name": "a", "state": "building", "runner": "command"}]

    with pytest.raises(StateInvalid, match=r"not whole: .* no demands of a run"):
        thaw(document.WorkflowRef(name="mine", phases=phases, demands={"colour": "red"}))
