"""
A workflow as data, and what a document keeps of it.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from adws.adw_modules import document
from adws.adw_modules.errors import StateInvalid
from adws.adw_modules.workflow.model import (
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
    from_json,
    thaw,
    to_json,
)
from adws.adw_modules.workflow.requirements import Requirements


def test_a_definition_comes_back_from_a_document_as_it_was():
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
        sandbox="landlock",
        egress=("example.com",),
        setup=("npm ci",),
        setup_egress=("npm",),
        commits=True,
    )
    for name in PhaseSpec.__slots__:
        assert getattr(changed, name) != getattr(plain, name), f"the test lacks a value of its own for {name}"

    spec = WorkflowSpec(
        name="mine",
        version="7",
        phases=(plain, changed),
        source="the document",
        demands=Requirements(host="alpha", tags=frozenset({"gpu"})),
        workload={"users": [{"a": 1}]},
        base="compare",
    )
    kept = document.WorkflowRef.model_validate(json.loads(json.dumps(freeze(spec))))

    assert thaw(kept) == spec
    assert to_json(plain) == {"name": "a", "state": "building", "runner": "command"}


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


def test_keys_of_a_newer_version_are_left_out():
    written = {"name": "a", "state": "building", "runner": "command", "colour": "red", "gates": [{"kind": "x", "y": 1}]}

    assert from_json(PhaseSpec, written).gates == (Gate(kind="x"),)


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
