"""What an attempt used, what it may use, and when that is too much."""

from __future__ import annotations

import math

import pytest

from adws.adw_modules import costs
from adws.adw_modules.agent import AgentReading, TokenUsage
from adws.adw_modules.costs import Allowance, BudgetWatch, SessionTotals, allowance, totals_before, usage_of
from adws.adw_modules.document import Cost
from adws.adw_modules.engine.runner_agent import BudgetOrders
from adws.adw_modules.phase import Order
from adws.testing import MemoryOrders
from tests.unit.cost_cases import MODEL, SINGLE, SUMMING, cost_of, profile, result, tokens, usage
from tests.unit.engine_cases import ADW_ID, attempt, document_of, spec_of


def used(reading, profile=SINGLE, before=costs.NOTHING, **more):
    return usage_of(reading, profile, before, cost_of=cost_of, **more)


def document_with(*attempts, **fields):
    document = document_of(spec_of("plan", "build"), **fields)
    first, second = document.phases
    half = len(attempts) // 2
    return document.changed(
        phases=[first.changed(attempts=list(attempts[:half])), second.changed(attempts=list(attempts[half:]))]
    )


def worked(session_id, number=1, **said):
    return attempt(number, agent={"session_id": session_id}, report={"usage": usage(**said).to_json()})


# --- what was used ---------------------------------------------------------------------------------------------


def test_what_the_agent_says_it_cost_is_taken_else_its_tokens_are_priced():
    for reading, model, cost, is_estimated, priced in [
        (result(0.25, 500), "", 0.25, False, MODEL),
        (result(None, 500), "", 0.5, True, MODEL),
        (result(None, 500, model=""), MODEL, 0.5, True, MODEL),  # the model that was asked for, when none is named
        (result(None, 500), "asked", 0.5, True, MODEL),
        # An amount that cannot be true is not believed.
        *((result(said, 500), "", 0.5, True, MODEL) for said in (math.nan, math.inf, -math.inf, -0.01, 1e300)),
    ]:
        value = used(reading, model=model)

        assert (value.cost_usd, value.is_estimated, value.tokens) == (cost, is_estimated, tokens(500)), reading
        assert (value.provider, value.model) == ("robots", priced), reading


def test_a_cost_that_nobody_can_tell_is_unknown_and_not_zero():
    value = used(result(None, 500, model="other"))

    assert (value.cost_usd, value.is_estimated) == (None, False)
    assert used(AgentReading()).cost_usd is None, "an agent that said nothing may have cost something"


@pytest.mark.parametrize(
    ("billing", "says", "is_subscription"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("auto", None, False),
        ("api", True, False),
        ("subscription", False, True),
        ("subscription", None, True),
    ],
)
def test_the_setting_decides_how_work_is_paid_and_auto_believes_the_agent(billing, says, is_subscription):
    value = used(result(0.25, is_subscription=says), billing=billing)

    assert value.is_subscription is is_subscription
    assert costs.counted(value) == (None if is_subscription else 0.25)


# --- sums of a conversation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "cost", "used_tokens"),
    [
        (
            AgentReading(
                has_result=True, cost_usd=0.75, tokens=TokenUsage(input=150, output=50, cache_read=9, cache_write=3)
            ),
            0.5,
            TokenUsage(input=50, cache_read=2),
        ),
        # Single messages before the result are of this attempt alone.
        (AgentReading(tokens=tokens(500), model=MODEL), 0.5, tokens(500)),
        # An agent that counts anew after all is believed whole: cost never goes down, and nothing is lost.
        (
            AgentReading(has_result=True, cost_usd=0.2, tokens=TokenUsage(input=500, output=5)),
            0.2,
            TokenUsage(input=500, output=5),
        ),
    ],
)
def test_sums_of_a_conversation_lose_what_was_used_before(said, cost, used_tokens):
    before = SessionTotals(cost_usd=0.25, tokens=TokenUsage(input=100, output=50, cache_read=7, cache_write=3))

    result = used(said, SUMMING, before)

    assert (result.cost_usd, result.tokens) == (cost, used_tokens)


#: Sums of the call or of the conversation, with the tokens of the call beside them, as Claude Code tells both.
TELLING = profile(totals_are_of_session=True, tells_own_tokens=True, resumes=True)


@pytest.mark.parametrize(
    ("before", "total", "own", "scope", "cost"),
    [
        pytest.param(None, (1.0, 300), 300, "either", 1.0, id="the first call of a conversation"),
        pytest.param((0.4, 100), (1.0, 300), 200, "conversation", 0.6, id="this call and what was before"),
        pytest.param((0.4, 100), (1.0, 340), 200, "conversation", 0.6, id="and a helper that was not heard of"),
        pytest.param((0.4, 100), (0.4, 100), 0, "conversation", 0.0, id="a call that used nothing"),
        pytest.param((0.4, 100), (1.0, 200), 200, "call", 1.0, id="this call alone"),
        pytest.param((0.4, 100), (1.0, 240), 200, "call", 1.0, id="this call and a small helper"),
        pytest.param((0.4, 500), (0.2, 100), 100, "call", 0.2, id="less than what was before"),
        pytest.param((0.4, 100), (1.0, 280), 200, "unclear", 1.0, id="more than the call, less than both"),
        pytest.param((0.4, 100), (1.0, 300), None, "unclear", 1.0, id="nothing to compare with"),
        pytest.param((0.4, 0), (1.0, 300), 200, "unclear", 1.0, id="tokens of before are not known"),
    ],
)
def test_the_tokens_of_a_result_show_what_its_cost_is_of(before, total, own, scope, cost):
    earlier = costs.NOTHING if before is None else SessionTotals(cost_usd=before[0], tokens=tokens(before[1]))

    value = used(result(*total, own_tokens=None if own is None else tokens(own)), TELLING, earlier)

    assert (value.scope, value.cost_usd) == (scope, pytest.approx(cost))
    assert (value.reported_usd, value.reported_tokens) == (total[0], tokens(total[1]))
    assert bool(costs.doubt_of(value)) is (scope == "unclear")


def test_an_attempt_that_was_counted_in_full_does_not_make_the_next_one_unclear():
    first = used(result(0.4, 100, own_tokens=tokens(100)), TELLING)
    second = used(result(1.0, 280, own_tokens=tokens(200)), TELLING, SessionTotals(cost_usd=0.4, tokens=tokens(100)))
    document = document_with(
        *(
            attempt(number, agent={"session_id": "s"}, report={"usage": one.to_json()})
            for number, one in enumerate((first, second), 1)
        )
    )

    before = totals_before(document, "s")
    third = used(result(1.5, 380, own_tokens=tokens(100)), TELLING, before)

    assert (before.cost_usd, before.tokens) == (1.0, tokens(280))
    assert (third.scope, third.cost_usd) == ("conversation", pytest.approx(0.5))


def test_what_a_conversation_used_is_the_sum_of_its_attempts_in_all_phases():
    document = document_with(
        worked("mine", cost=0.5, count=100),
        worked("other", cost=8.0, count=9999),
        worked("mine", cost=0.25, count=20),
        worked("mine", cost=None, count=3),
        attempt(5, agent={"session_id": "mine"}),
        attempt(6, agent={"session_id": "mine"}, report={"usage": {"cost_usd": -4, "tokens": None}}),
        attempt(7),
    )

    assert totals_before(document, "mine") == SessionTotals(cost_usd=0.75, tokens=tokens(123))
    assert totals_before(document, "unheard of") == costs.NOTHING
    assert totals_before(document, "") == costs.NOTHING, "a new conversation has used nothing"


def test_three_attempts_of_one_conversation_cost_together_what_its_last_sum_says():
    attempts = []
    for total in (0.31, 0.7, 1.03):
        before = totals_before(document_with(*attempts), "mine")
        value = used(result(total, int(total * 100)), SUMMING, before)
        attempts.append(worked("mine", cost=value.cost_usd, count=value.tokens.total))

    together = totals_before(document_with(*attempts), "mine")
    assert together.cost_usd == pytest.approx(1.03)
    assert together.tokens == tokens(103)


# --- what may be used ------------------------------------------------------------------------------------------


def spent(usd, **fields):
    return document_of(spec_of("plan"), cost=Cost(total_usd=usd), **fields)


def test_the_least_of_what_is_left_is_what_an_attempt_may_cost():
    limits = {"max_cost_usd": 10.0, "attempt_usd": 3.0, "rest_of_day_usd": 2.0}

    assert allowance(spent(4.0), **limits).usd == 2.0
    assert "midnight UTC" in allowance(spent(4.0), **limits).reason
    assert allowance(spent(4.0), **{**limits, "rest_of_day_usd": 50.0}).usd == 3.0
    assert "budget_usd" in allowance(spent(4.0), **{**limits, "rest_of_day_usd": 50.0}).reason
    left = allowance(spent(9.5), **limits)
    assert left.usd == 0.5
    assert f"adw resume {ADW_ID} --budget USD" in left.reason


def test_a_cap_of_its_own_takes_the_place_of_the_one_in_the_settings():
    assert allowance(spent(4.0, max_cost_usd=20.0), max_cost_usd=10.0).usd == 16.0
    assert allowance(spent(4.0, max_cost_usd=5.0), max_cost_usd=10.0).usd == 1.0
    assert costs.cap_of(spent(0.0, max_cost_usd=0.0), 10.0) == 0.0


@pytest.mark.parametrize("usd", [10.0, 12.0, sum([0.1] * 100)], ids=["all", "more", "all-but-a-rounding-error"])
def test_what_is_spent_leaves_nothing_and_never_less(usd):
    assert allowance(spent(usd), max_cost_usd=10.0).usd == 0.0


@pytest.mark.parametrize("limit", ["attempt_usd", "rest_of_day_usd"])
def test_no_limit_is_below_nothing(limit):
    assert allowance(spent(0.0), **{limit: -3.0}).usd == 0.0


def test_an_agent_is_told_a_budget_only_where_it_surely_spends_money():
    some, none = Allowance(usd=2.0, reason=""), Allowance(usd=0.0, reason="")

    assert costs.budget_for_agent(some, "api") == 2.0
    assert costs.budget_for_agent(some, "auto") is None
    assert costs.budget_for_agent(some, "subscription") is None
    assert costs.budget_for_agent(none, "api") is None, "the watch stops it before it starts"
    assert costs.budget_for_agent(None, "api") is None


# --- the warning -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("usd", "warns"), [(7.99, False), (8.0, True), (sum([0.1] * 80), True), (99.0, True)], ids=str)
def test_people_are_warned_at_four_fifths_of_the_cap(usd, warns):
    said = costs.warning_for(spent(usd), 10.0)

    assert (said is not None) is warns
    if said:
        assert f"of 10.0000 USD are spent: adw resume {ADW_ID} --budget USD" in said


def test_the_warning_comes_once_for_each_cap_and_not_where_nothing_or_everything_may_be_spent():
    warned = document_of(spec_of("plan"), cost=Cost(total_usd=9.0, warned_at=10.0))

    assert [costs.warning_for(warned, cap) is None for cap in (10.0, 11.0, 20.0)] == [True, False, True]
    assert [costs.warning_for(spent(9.0), cap) for cap in (None, 0.0)] == [None, None]


# --- while it runs ---------------------------------------------------------------------------------------------


def watch_of(usd=1.0, profile=SINGLE, before=costs.NOTHING, **more) -> BudgetWatch:
    allowed = None if usd is None else Allowance(usd=usd, reason="the workflow may cost 10 USD")
    return BudgetWatch(allowed, profile, before, cost_of=cost_of, **more)


def at_work(count=0, cost=None, **more) -> AgentReading:
    return AgentReading(tokens=tokens(count), cost_usd=cost, model=more.pop("model", MODEL), **more)


def test_the_watch_says_when_what_the_agent_says_reaches_the_budget():
    watch = watch_of(1.0)
    watch.take(at_work(cost=0.99))
    assert watch.passed == ""

    watch.take(at_work(cost=1.0))

    said = "the budget is used up: the attempt has cost 1.0000 USD, and the workflow may cost 10 USD"
    assert watch.passed == said


def test_tokens_are_priced_where_the_agent_says_its_cost_only_at_its_end():
    watch = watch_of(1.0)
    watch.take(at_work(999))
    assert watch.passed == ""

    watch.take(at_work(1000))

    assert "about 1.0000 USD" in watch.passed
    assert watch.usage.is_estimated


def test_a_result_is_not_thrown_away_because_it_was_dear():
    watch = watch_of(1.0)
    watch.take(result(5.0))

    assert watch.passed == ""
    assert watch.usage.cost_usd == 5.0


def test_an_agent_does_not_start_when_nothing_is_left():
    assert watch_of(0.0).passed == "nothing is left of the budget: the workflow may cost 10 USD"


@pytest.mark.parametrize(
    ("billing", "says"), [("subscription", None), ("auto", True)], ids=["by-setting", "by-its-word"]
)
def test_a_subscription_is_stopped_by_no_budget(billing, says):
    watch = watch_of(1.0, billing=billing)
    watch.take(at_work(cost=50.0, is_subscription=says))

    assert (watch.passed, watch.blind) == ("", "")


def test_money_is_watched_on_a_key_whatever_the_agent_says():
    watch = watch_of(1.0, billing="api")
    watch.take(at_work(cost=50.0, is_subscription=True))

    assert watch.passed


def test_a_budget_that_cannot_be_watched_says_so_and_what_to_do():
    watch = watch_of(1.0)
    watch.take(at_work(500_000, model="other"))

    assert watch.passed == ""
    assert watch.blind == "the budget cannot be watched: no price is known for other; add it to [prices] of adw.toml"
    watch.take(at_work(500_000, model=""))
    assert "the agent's model" in watch.blind


def test_a_reading_is_summed_up_once():
    asked = []
    watch = BudgetWatch(None, SINGLE, cost_of=lambda model, count: asked.append(model) or cost_of(model, count))
    reading = at_work(5)
    for _ in range(3):
        watch.take(reading)
        assert watch.usage.cost_usd == 0.005

    assert asked == [MODEL]


# --- the order -------------------------------------------------------------------------------------------------


def test_a_budget_that_is_used_up_is_an_order():
    watch = watch_of(1.0)
    orders = BudgetOrders(MemoryOrders(), watch)
    assert orders.current() is None
    assert orders.wait(0.0) is None

    watch.take(at_work(cost=2.0))

    assert orders.current() == orders.wait(60.0) == Order(kind="budget", reason=watch.passed)


def test_what_people_order_comes_first():
    inner = MemoryOrders()
    watch = watch_of(1.0)
    watch.take(at_work(cost=2.0))
    inner.give(Order(kind="pause", reason="lunch"))

    orders = BudgetOrders(inner, watch)
    assert orders.current() == orders.wait(60.0) == Order(kind="pause", reason="lunch")
    assert inner.waited == [], "nobody waits for what is there"
