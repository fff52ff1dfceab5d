"""Gates fail closed: only what clearly holds passes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from adws.adw_modules.engine.gates import Gates, GateVerdict
from adws.adw_modules.engine.git_guard import Guard
from adws.adw_modules.errors import Fenced, LeaseLost, UsageError
from adws.adw_modules.phase import Order, RunReport
from adws.adw_modules.process.run import ProcessEnd
from adws.adw_modules.workflow.model import Gate, PhaseSpec

CONTEXT = SimpleNamespace(cwd=Path("/nowhere"), document=SimpleNamespace(adw_id="1a2b3c4d"))
DONE = RunReport(ok=True, result={"success": True})
COMMAND = Gate(kind="command", command=("make", "check"))
HUMAN = Gate(kind="human")
RESULT = Gate(kind="result")


def ended(exit_code=0, **changes) -> ProcessEnd:
    values = {"signal": None, "timed_out": None, "ordered": None, "duration": 1.0, "tail": "first\nlast\n"}
    return ProcessEnd(exit_code=exit_code, **{**values, **changes})


def never(*_):
    raise AssertionError("no command was to be run")


def check(*gates: Gate, report: RunReport = DONE, run=never) -> GateVerdict:
    phase = PhaseSpec(name="build", state="building", runner="command", gates=gates)
    return Gates(SimpleNamespace(run_beside=run), Guard(None)).check(phase, CONTEXT, report)


def test_a_phase_that_failed_itself_passes_no_gate():
    assert not check(report=RunReport(ok=False, error=ValueError("x"), result={"success": True})).passed


def test_a_command_that_ends_with_0_passes():
    asked = []

    def run(phase, gate, context, name):
        asked.append((gate, name))
        return ended(0)

    assert check(RESULT, COMMAND, run=run).passed
    assert asked == [(COMMAND, "gate-2")]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (ended(1), "exit code 1: last"),
        (ended(None, signal=9), "signal 9"),
        (ended(0, timed_out="wall"), "took too long"),
        (ended(0, survivors=("7 (x)",)), "could not be ended"),
        (ended(None, tail=""), "exit code None"),
    ],
)
def test_a_command_that_ends_in_any_other_way_fails(end, words):
    verdict = check(COMMAND, run=lambda *_: end)

    assert not verdict.passed
    assert not verdict.needs_human
    assert "make check" in verdict.reason
    assert words in verdict.reason


@pytest.mark.parametrize("error", [UsageError("not like this"), OSError("no space")])
def test_a_command_that_cannot_be_run_fails(error):
    def run(*_):
        raise error

    verdict = check(COMMAND, run=run)

    assert not verdict.passed
    assert str(error) in verdict.reason


@pytest.mark.parametrize("error", [Fenced("1a2b3c4d", 3), LeaseLost()])
def test_a_lost_workflow_is_not_taken_for_a_failed_gate(error):
    def run(*_):
        raise error

    with pytest.raises(type(error)):
        check(COMMAND, run=run)


def test_an_order_while_a_gate_runs_says_nothing_about_the_phase():
    verdict = check(COMMAND, run=lambda *_: ended(None, signal=15, ordered=Order(kind="drain")))

    assert (verdict.passed, verdict.is_suspended, verdict.reason) == (False, True, "drain")


@pytest.mark.parametrize("result", [{"success": True}, {"passed": True}, {"success": True, "passed": True}])
def test_a_result_that_says_success_passes(result):
    assert check(RESULT, report=RunReport(ok=True, result=result)).passed


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"success": False},
        {"success": "true"},
        {"success": 1},
        {"success": None},
        {"passed": True, "success": False},
        {"passed": [], "success": True},
    ],
)
def test_a_result_that_says_anything_else_fails(result):
    verdict = check(RESULT, report=RunReport(ok=True, result=result))

    assert not verdict.passed
    assert verdict.reason


def test_a_person_is_asked_last():
    assert check(HUMAN, RESULT, report=RunReport(ok=True)) == check(RESULT, report=RunReport(ok=True))

    verdict = check(HUMAN, RESULT)
    assert (verdict.passed, verdict.needs_human) == (False, True)
    assert "adw approve 1a2b3c4d" in verdict.reason


def test_a_gate_of_an_unknown_kind_fails():
    assert "no gate of the kind 'luck'" in check(Gate(kind="luck")).reason


@pytest.mark.parametrize("pattern", ["", " ", "/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_an_artifact_outside_the_working_directory_fails(pattern):
    assert "below the working directory" in check(Gate(kind="artifact", artifact=pattern)).reason


def test_an_artifact_in_a_directory_that_is_not_there_fails():
    assert "cannot be looked up" in check(Gate(kind="artifact", artifact="x")).reason
