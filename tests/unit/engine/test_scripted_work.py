"""The scripted runner plays what it is given, in order, and keeps what it was asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from adws.adw_modules.errors import UsageError
from adws.adw_modules.phase import Order, PhaseContext, RunReport, Suspended
from adws.testing import MemoryOrders, ScriptedRunner
from tests.unit.engine_cases import document_of, phase, spec_of


def context(number: int = 1) -> PhaseContext:
    return PhaseContext(
        document=document_of(spec_of("plan")),
        phase="plan",
        attempt_number=number,
        round=1,
        cwd=Path(),
        folder=Path(),
        orders=MemoryOrders(),
        record_process=lambda _process: None,
        say=lambda _line: None,
    )


def test_a_script_is_played_in_its_order_and_then_all_goes_well():
    report, stopped = RunReport(ok=False), Suspended(reason="drain")
    runner = ScriptedRunner({"plan": [report, stopped, lambda given: RunReport(ok=True, summary=given.phase)]})
    runner.add("plan", ValueError("odd"))

    assert runner.run(phase("plan"), context(1)) is report
    assert runner.run(phase("plan"), context(2)) is stopped
    assert runner.run(phase("plan"), context(3)).summary == "plan"
    with pytest.raises(ValueError, match="odd"):
        runner.run(phase("plan"), context(4))
    assert runner.run(phase("plan"), context(5)).ok
    assert runner.run(phase("build"), context(1)).ok
    assert runner.numbers("plan") == [1, 2, 3, 4, 5]
    assert [call.phase for call in runner.calls] == ["plan"] * 5 + ["build"]


def test_a_strict_script_that_is_over_is_a_mistake_of_the_test():
    runner = ScriptedRunner({"plan": [RunReport(ok=True)]}, is_strict=True)
    runner.run(phase("plan"), context(1))

    with pytest.raises(UsageError, match="the script of phase plan has no entry for attempt 2"):
        runner.run(phase("plan"), context(2))


def test_orders_stand_until_they_are_taken_back_and_nobody_really_waits():
    orders = MemoryOrders()
    order = Order(kind="drain")

    assert orders.current() is None
    orders.give(order)
    assert orders.wait(3600.0) is order
    orders.clear()
    assert orders.wait(1.0) is None
    assert orders.waited == [3600.0, 1.0]
