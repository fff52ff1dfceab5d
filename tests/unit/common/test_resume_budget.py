"""A workflow that used up its budget goes on with a raised one, and only then."""

from __future__ import annotations

import math

import pytest

from adws.adw_modules.document import Cost
from adws.adw_modules.errors import FailedRun, RunFailed, UsageError
from adws.adw_modules.phase import Failed, RunReport
from tests.unit.cost_cases import usage
from tests.unit.engine.test_resume_rules import failed_in, plan, resumed
from tests.unit.engine_cases import ADW_ID, WELL, World, draft_of, spec_of


def spent(usd, **fields):
    draft = failed_in("build", **fields)
    return draft_of(draft.finished().changed(cost=Cost(total_usd=usd)))


def refusal(*args, **how):
    with pytest.raises(UsageError) as refused:
        plan(*args, **how)
    return str(refused.value)


def test_a_budget_is_set_with_the_resume_and_told():
    draft = spent(10.0)
    draft.max_cost_usd = 8.0

    document = resumed(draft, budget=20)

    assert document.max_cost_usd == 20.0
    (told,) = [event for event in draft.events if event.event_type == "budget_set"]
    assert told.data == {"usd": 20.0, "before": 8.0, "by": "someone"}
    assert document.cost.total_usd == 10.0, "what was spent stays spent"


def test_the_plan_says_what_the_workflow_may_cost():
    assert plan(spent(10.0), budget=20).describe().endswith(", and may cost 20.0000 USD in all")


def test_without_a_budget_the_cap_stays_as_it_is():
    draft = spent(1.0, max_cost_usd=5.0)

    assert resumed(draft).max_cost_usd == 5.0
    assert "budget_set" not in [event.event_type for event in draft.events]


@pytest.mark.parametrize("budget", [0, -1, math.nan, math.inf, 1e12], ids=str)
def test_a_budget_that_is_no_amount_is_refused(budget):
    assert "give an amount above 0" in refusal(spent(1.0), budget=budget)


@pytest.mark.parametrize("budget", [2.0, 3.0])
def test_a_budget_that_is_spent_already_is_refused(budget):
    said = refusal(spent(3.0), budget=budget)

    assert said == (
        f"workflow {ADW_ID} has cost 3.0000 USD already, and --budget counts that too: give a larger amount"
    )


@pytest.mark.parametrize(("own", "settings"), [(3.0, 100.0), (None, 3.0)], ids=["its-own", "of-the-settings"])
def test_a_workflow_that_used_up_its_cap_does_not_go_on_without_more(own, settings):
    said = refusal(spent(3.0, max_cost_usd=own), max_cost_usd=settings)

    assert said == (
        f"workflow {ADW_ID} has cost 3.0000 of 3.0000 USD: allow it more with adw resume {ADW_ID} --budget USD"
    )


def test_a_workflow_below_its_cap_and_one_without_a_cap_go_on():
    assert plan(spent(2.99), max_cost_usd=3.0).phase == "build"
    assert plan(spent(1e5)).phase == "build"
    assert plan(spent(0.0), max_cost_usd=0.0).phase == "build", "where nothing may be spent, what is free still runs"


def test_a_workflow_that_was_stopped_by_its_cap_goes_on_with_a_raised_one():
    over = FailedRun(subtype="budget", text="the budget is used up")
    stopped = RunReport(ok=False, error=RunFailed(over, over.text), usage=usage(10.0, 500))
    world = World(spec_of("plan"), {"plan": [stopped, WELL]})

    outcome = world.attempt(max_cost_usd=10.0)

    assert isinstance(outcome, Failed)
    assert (outcome.reason, world.document.cost.total_usd) == ("BUDGET", 10.0)
    with pytest.raises(UsageError, match="--budget USD"), world.session(max_cost_usd=10.0) as session:
        session.plan_resume()
    world.resume(budget=12.0)
    world.attempt(max_cost_usd=10.0)
    assert world.state == "completed"
    assert (world.document.max_cost_usd, world.document.cost.total_usd) == (12.0, 10.0)
    assert len(world.events("budget_warning")) == 1
