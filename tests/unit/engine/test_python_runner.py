"""A phase as a call of a function: what it returns, raises, and cannot import."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

from adws.adw_modules.engine.runner_python import PythonRunner
from adws.adw_modules.errors import ConfigError, RunFailed
from adws.adw_modules.phase import RunReport, Suspended
from adws.adw_modules.workflow.model import PhaseSpec

CONTEXT = SimpleNamespace(orders=None)


def phase(call: str) -> PhaseSpec:
    return PhaseSpec(name="build", state="building", runner="python", call=call)


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("adw_test_phases")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def run(module, function):
    module.work = function
    return PythonRunner().run(phase("adw_test_phases:work"), CONTEXT)


def test_a_function_that_was_replaced_in_its_module_is_checked_and_called(module):
    runner, calls = PythonRunner(), []
    for name in ("first", "second"):
        module.work = lambda _context, name=name: calls.append(name)
        runner.run(phase("adw_test_phases:work"), CONTEXT)
        runner.run(phase("adw_test_phases:work"), CONTEXT)

    async def work(_context):
        """Be what cannot be called."""

    module.work = work
    with pytest.raises(ConfigError, match="is async"):
        runner.run(phase("adw_test_phases:work"), CONTEXT)
    assert calls == ["first", "first", "second", "second"]


def test_a_dict_is_the_result(module):
    report = run(module, lambda _context: {"passed": True, "rework": True, "summary": "again"})

    assert (report.ok, report.wants_rework, report.summary) == (True, True, "again")
    assert report.result["passed"] is True


@pytest.mark.parametrize(
    "found",
    [RunReport(ok=True, summary="mine"), RunReport(ok=False, error=ValueError("x")), Suspended(reason="drain")],
)
def test_a_report_is_passed_on(module, found):
    assert run(module, lambda _context: found) is found


@pytest.mark.parametrize(
    "found",
    [
        3,
        {"a": object()},
        RunReport(ok=True, result={"a": object()}),
        RunReport(ok=False),
        RunReport(ok=True, error=ValueError("x")),
    ],
)
def test_what_is_no_result_fails_the_attempt(module, found):
    with pytest.raises(RunFailed):
        run(module, lambda _context: found)


def test_what_the_function_raises_comes_out_with_its_traceback(module):
    def broken(_context):
        raise LookupError("no such thing")

    with pytest.raises(LookupError) as caught:
        run(module, broken)

    assert "broken" in [entry.name for entry in caught.traceback]


@pytest.mark.parametrize(("code", "number"), [(3, 3), (None, 1), ("text", 1), (0, 0)])
def test_a_function_that_wants_to_end_the_program_only_fails(module, code, number):
    with pytest.raises(RunFailed, match=r"sys\.exit") as caught:
        run(module, lambda _context: sys.exit(code))

    assert caught.value.run.exit_code == number


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("adw_test_phases", "package.module:function"),
        (":work", "package.module:function"),
        ("adw_test_phases:not an identifier", "package.module:function"),
        ("adw_no_such_module:work", "cannot import adw_no_such_module: ModuleNotFoundError"),
        ("adw_test_phases:missing", "has no function missing"),
        ("adw_test_phases:number", "has no function number"),
    ],
)
def test_what_cannot_be_called_is_found_by_the_check(module, call, words):
    module.number = 3

    assert words in PythonRunner().check(phase(call))
    with pytest.raises(ConfigError):
        PythonRunner().run(phase(call), CONTEXT)


@pytest.mark.parametrize("body", ["raise RuntimeError('at import')", "import sys; sys.exit(4)", "def (:"])
def test_a_module_that_breaks_when_it_is_imported_is_found_by_the_check(tmp_path, monkeypatch, body):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "adw_broken_phases.py").write_text(body)

    assert "cannot import adw_broken_phases" in PythonRunner(search=[tmp_path]).check(phase("adw_broken_phases:work"))


def test_modules_of_the_home_are_found_after_what_is_installed(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/first"])

    PythonRunner(search=[Path("/home/of/it"), Path("/first")]).check(phase("adw_no_such_module:work"))

    assert sys.path == ["/first", "/home/of/it"]
