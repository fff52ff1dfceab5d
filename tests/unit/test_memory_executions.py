"""Executions in memory keep the contract of all stores: turns and picking are the same code in each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adws.adw_modules.steps import RetryRule
from adws.testing import FakeClock, MemoryExecutions, MemoryRunQueue
from tests.contracts.execution_contract import AGAIN, PARALLEL, ExecutionContract, badly, step, well


class TestExecutionsInMemory(ExecutionContract):
    @pytest.fixture
    def clock(self, seed):
        return FakeClock(seed=seed)

    @pytest.fixture
    def runs(self, clock):
        return MemoryRunQueue(clock)

    @pytest.fixture
    def executions(self, clock, runs):
        return MemoryExecutions(clock, runs)

    @pytest.fixture
    def events(self, executions):
        return lambda: list(executions.events)

    @pytest.fixture
    def make_over(self, executions):
        return executions.over.add

    def test_of_pages_that_replace_each_other_the_part_of_the_last_one_counts(self, open_one, executions, lane):
        rule = RetryRule(kind="on_success", when="response.more", merge_path="data", next_call={"n": "{{ page }}"})
        new = open_one([None], spec=step(loop=None, retry=(replace(rule, base_seconds=0.0),)), lanes=1)
        run = lane()
        (one,) = executions.take(run, most=1).assignments
        (two,) = executions.report(run, [well(one, {"data": 1, "more": True})], most=1).assignments
        executions.report(run, [well(two, {"data": 2, "more": False})], most=1)

        assert next(executions.results(new.execution_id))[2] == 2

    def test_rules_know_the_element(self, open_one, executions, lane):
        rule = RetryRule(kind="on_error", when="item == 'x' and index == 0")
        open_one(["x"], spec=step(retry=(rule,)))
        run = lane()
        (one,) = executions.take(run, most=1).assignments

        assert executions.report(run, [badly(one)], most=1).wait_until

    def test_a_lane_waits_for_the_first_call_of_all_that_wait(self, open_one, executions, lane, clock):
        open_one("ab", spec=step(retry=(AGAIN,), loop=replace(PARALLEL, on_failure="continue")), lanes=1)
        run = lane()
        (one,) = executions.take(run, most=1).assignments
        (two,) = executions.report(run, [badly(one)], most=1).assignments
        clock.advance(1)

        waits = executions.report(run, [badly(two)], most=1)

        assert len(executions.retries()) == 2
        assert waits.wait_until == executions.take(run, most=1).wait_until == executions.retries()[0].next_at
