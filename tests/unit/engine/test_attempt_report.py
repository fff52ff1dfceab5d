"""What a document keeps of an attempt's report, and the sums that grow with it."""

from __future__ import annotations

import math

import pytest

from adws.adw_modules.document import Cost, Draft
from adws.adw_modules.engine import transitions
from adws.adw_modules.errors import StateUnserialisable
from adws.adw_modules.phase import RunReport
from adws.adw_modules.state_machine import WorkflowStateMachine
from adws.testing import FakeClock
from tests.unit.cost_cases import MODEL, usage
from tests.unit.engine_cases import document_of, spec_of, types


def draft(cap=None, **fields):
    document, now = document_of(spec_of("plan", "build"), **fields), FakeClock().now
    return Draft(document, WorkflowStateMachine.of(document, now=now), now=now, max_cost_usd=cap)


def add(made, *reports, phase="plan"):
    for report in reports:
        transitions.add_cost(made, phase, report)
    return made.document.cost


def said(cost=1.0, count=0, **more):
    return RunReport(ok=False, usage=usage(cost, count, **more))


# --- the report ------------------------------------------------------------------------------------------------


def test_what_an_agent_used_is_kept_with_the_money_that_counts():
    kept = transitions.said_by(said(0.5, 20, is_estimated=True))

    assert kept == {
        "cost_usd": 0.5,
        "usage": {
            "provider": "robots",
            "model": MODEL,
            "tokens": {"input": 20},
            "cost_usd": 0.5,
            "is_estimated": True,
            "is_subscription": False,
        },
    }


@pytest.mark.parametrize("cost", [None, math.nan, -1.0], ids=str)
def test_an_agent_whose_cost_is_unknown_or_impossible_has_none(cost):
    kept = transitions.said_by(said(cost))

    assert "cost_usd" not in kept
    assert kept["usage"]["cost_usd"] is None


@pytest.mark.parametrize("cost", [math.nan, math.inf, -1.0], ids=str)
def test_an_impossible_cost_of_another_runner_is_refused(cost):
    with pytest.raises(StateUnserialisable, match="is no amount of US dollars"):
        transitions.said_by(RunReport(ok=True, cost_usd=cost))


# --- sums ------------------------------------------------------------------------------------------------------


def test_costs_and_tokens_add_up_by_phase_and_provider_and_are_never_set_back():
    made = draft()

    add(made, said(0.5, 10), said(0.25, 5, provider="others"))
    cost = add(made, said(1.0, 1), phase="build")

    assert cost.total_usd == 1.75
    assert cost.by_phase == {"plan": 0.75, "build": 1.0}
    assert cost.by_provider == {"robots": 1.5, "others": 0.25}
    assert cost.token_counts == {"input": 16}
    assert not cost.is_estimated


@pytest.mark.parametrize(
    "report", [said(None, 10), said(0.5, 10, is_subscription=True, is_estimated=True)], ids=["unknown", "subscription"]
)
def test_what_is_unknown_or_paid_by_the_month_adds_tokens_and_no_money(report):
    cost = add(draft(), report)

    assert (cost.total_usd, cost.by_provider, cost.token_counts) == (0.0, {"robots": 0.0}, {"input": 10})
    assert not cost.is_estimated


def test_what_the_document_had_before_and_unknown_keys_stay():
    made = draft(cost=Cost.model_validate({"total_usd": 1.0, "by_phase": {"plan": 1.0}, "theirs": 7}))

    cost = add(made, said(0.5))

    assert (cost.total_usd, cost.by_phase["plan"], cost.theirs) == (1.5, 1.5, 7)


# --- the warning -----------------------------------------------------------------------------------------------


def test_four_fifths_of_the_cap_are_told_once_in_the_write_that_reached_them():
    made = draft(cap=10.0)

    add(made, said(7.0))
    assert "budget_warning" not in types(made)
    add(made, said(1.0), said(1.0), said(5.0))

    (told,) = [event for event in made.events if event.event_type == "budget_warning"]
    assert (told.data["cap_usd"], told.data["spent_usd"]) == (10.0, 8.0)
    assert "8.0000 of 10.0000 USD are spent" in told.data["message"]
    assert made.document.cost.warned_at == 10.0


# --- what is told ----------------------------------------------------------------------------------------------


def test_what_is_added_is_told_with_what_it_was_for():
    made = draft()

    add(made, said(0.5, 20), RunReport(ok=True, cost_usd=0.25), RunReport(ok=True), phase="build")

    first, second = made.events
    assert (first.node_name, first.node_type) == ("build", "phase")
    assert (first.data["cost_usd"], first.data["provider"], first.data["model"]) == (0.5, "robots", MODEL)
    assert first.data["tokens"] == {"input": 20}
    assert second.data == {"cost_usd": 0.25}
