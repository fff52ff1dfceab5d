"""How long to wait before the next attempt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.error_tables import ErrorCategory
from adws.adw_modules.errors import ConfigError
from adws.adw_modules.retry_handler import Backoff, RetryPolicies, RetryPolicy, exactly, policies_of, same_for_all
from adws.adw_modules.workflow.model import BackoffStrategy, RetrySpec
from adws.testing import FakeClock

ATTEMPTS = st.integers(min_value=0, max_value=10**500)
RANDOM = st.one_of(st.none(), st.floats(min_value=0, max_value=1, exclude_max=True))
POLICIES = st.builds(
    lambda strategy, base, cap, factor, jitter: RetryPolicy(
        backoff_strategy=strategy,
        backoff_base_seconds=base,
        backoff_max_seconds=max(base, cap),
        backoff_factor=factor,
        jitter=jitter,
    ),
    st.sampled_from(BackoffStrategy),
    st.floats(min_value=0.1, max_value=3600),
    st.floats(min_value=0.1, max_value=86_400),
    st.floats(min_value=1, max_value=10),
    st.booleans(),
)


# --- the cases a caller of such a policy expects ---------------------------------------------------------------


def test_retry_policy_defaults():
    policy = RetryPolicy()

    assert policy.max_attempts == 3
    assert policy.backoff_strategy is BackoffStrategy.EXPONENTIAL
    assert policy.backoff_base_seconds == 1.0
    assert policy.backoff_max_seconds == 300.0
    assert policy.jitter is True


@pytest.mark.parametrize(("attempts", "is_valid"), [(0, False), (1, True), (100, True), (101, False)])
def test_retry_policy_max_attempts_boundary(attempts, is_valid):
    _check_bounds({"max_attempts": attempts}, is_valid=is_valid)


@pytest.mark.parametrize(
    ("base", "longest", "is_valid"),
    [(0.09, 86_400.0, False), (0.1, 86_400.0, True), (3600.0, 86_400.0, True), (3600.1, 86_400.0, False)],
)
def test_retry_policy_backoff_base_boundary(base, longest, is_valid):
    _check_bounds({"backoff_base_seconds": base, "backoff_max_seconds": longest}, is_valid=is_valid)
    _check_bounds({"backoff_max_seconds": longest + 0.1}, is_valid=False)


def _check_bounds(values, *, is_valid):
    if is_valid:
        assert RetryPolicy(**values)
        return
    with pytest.raises(ValueError, match=f"{next(iter(values))} is .*: give a number from"):
        RetryPolicy(**values)


def test_retry_policy_max_less_than_base_raises():
    with pytest.raises(ValueError, match=r"backoff_max_seconds is 4.9: give a number from 5.0 to 86400"):
        RetryPolicy(backoff_base_seconds=5.0, backoff_max_seconds=4.9)


@pytest.mark.parametrize(
    "values",
    [
        *({"max_attempts": 2.5}, {"max_attempts": True}, {"backoff_base_seconds": float("nan")}),
        *({"backoff_max_seconds": float("inf")}, {"backoff_factor": 0.9}, {"backoff_factor": 10.1}),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        RetryPolicy(**values)


def test_calculate_delay_fixed():
    policy = RetryPolicy(backoff_strategy=BackoffStrategy.FIXED, backoff_base_seconds=2.0, jitter=False)

    assert [policy.calculate_delay(attempt) for attempt in (0, 5)] == [2.0, 2.0]


def test_calculate_delay_exponential():
    policy = RetryPolicy(backoff_strategy=BackoffStrategy.EXPONENTIAL, backoff_base_seconds=1.0, jitter=False)

    assert [policy.calculate_delay(attempt) for attempt in range(4)] == [1.0, 2.0, 4.0, 8.0]


def test_calculate_delay_linear():
    policy = RetryPolicy(backoff_strategy=BackoffStrategy.LINEAR, backoff_base_seconds=1.0, jitter=False)

    assert [policy.calculate_delay(attempt) for attempt in (0, 1, 4)] == [1.0, 2.0, 5.0]


def test_calculate_delay_capped():
    policy = RetryPolicy(backoff_base_seconds=1.0, backoff_max_seconds=10.0, jitter=False)

    assert policy.calculate_delay(20) == 10.0


def test_calculate_delay_negative_attempt_raises():
    with pytest.raises(ValueError, match="no attempt -1"):
        RetryPolicy(jitter=False).calculate_delay(-1)


def test_calculate_delay_jitter_bounds():
    policy = RetryPolicy(backoff_base_seconds=4.0, jitter=True)

    delays = [policy.calculate_delay(0) for _ in range(100)]

    assert all(3.0 <= delay <= 5.0 for delay in delays)
    assert max(delays) - min(delays) > 1.0


# --- what went wrong elsewhere ---------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", [1023, 1024, 5000, 10**400])
@pytest.mark.parametrize("strategy", BackoffStrategy)
def test_no_attempt_is_too_far_out_to_be_computed(attempt, strategy):
    policy = RetryPolicy(backoff_strategy=strategy, jitter=False, backoff_factor=10.0)

    assert policy.calculate_delay(attempt) == (1.0 if strategy is BackoffStrategy.FIXED else 300.0)


def test_jitter_stays_within_the_cap_and_is_spread_below_it(seed):
    clock = FakeClock(seed=seed)
    policy = RetryPolicy(backoff_max_seconds=8.0)

    delays = [policy.calculate_delay(50, clock.random()) for _ in range(200)]

    assert max(delays) <= 8.0
    assert min(delays) >= 6.0
    assert len(set(delays)) > 190


def test_a_policy_with_jitter_draws_its_own_random_numbers_within_a_quarter_and_the_cap():
    policy = RetryPolicy(backoff_max_seconds=8.0)

    second, capped = ([policy.calculate_delay(attempt) for _ in range(200)] for attempt in (1, 50))

    assert all(1.5 <= delay <= 2.5 for delay in second)
    assert all(6.0 <= delay <= 8.0 for delay in capped)
    assert len(set(second)) > 190
    assert len(set(capped)) > 190


def test_a_given_random_number_places_the_wait_and_without_jitter_it_says_nothing():
    assert RetryPolicy(jitter=True).calculate_delay(2, 0.5) == 4.0
    assert RetryPolicy(jitter=False).calculate_delay(2, 0.9) == 4.0


@given(POLICIES, ATTEMPTS, RANDOM)
def test_every_delay_is_between_zero_and_the_cap(policy, attempt, random):
    assert 0.0 < policy.calculate_delay(attempt, random) <= policy.backoff_max_seconds


@given(POLICIES, ATTEMPTS, ATTEMPTS)
def test_without_jitter_a_later_attempt_never_waits_less(policy, one, other):
    earlier, later = sorted((one, other))

    assert policy.backoff.delay(earlier) <= policy.backoff.delay(later)


@given(POLICIES, ATTEMPTS, RANDOM)
def test_jitter_is_at_most_a_quarter(policy, attempt, random):
    plain = policy.backoff.delay(attempt)

    assert plain * 0.7499 <= policy.calculate_delay(attempt, random) <= plain * 1.2501


# --- a policy for each category --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("category", "delays", "cap"),
    [
        (ErrorCategory.RATE_LIMIT, [1.0, 3.0, 9.0, 27.0, 81.0, 243.0, 300.0], 300.0),
        (ErrorCategory.TRANSIENT, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0], 60.0),
        (ErrorCategory.RESOURCE, [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0], 300.0),
    ],
)
def test_each_category_has_waits_of_its_own_and_a_cap(category, delays, cap):
    backoff = RetryPolicies().for_error(category, "x")

    assert [backoff.delay(attempt) for attempt in range(7)] == delays
    assert backoff.delay(10**6) == cap


def test_a_quota_waits_for_hours_and_longer_for_its_server():
    policies = RetryPolicies()
    quota = policies.for_error(ErrorCategory.RATE_LIMIT, "quota_window")

    assert [quota.delay(attempt) for attempt in range(3)] == [1800.0, 3600.0, 7200.0]
    assert policies.max_quota_wait_seconds == 8 * 86_400
    assert policies.max_wait_seconds == 3600.0


@pytest.mark.parametrize("category", [ErrorCategory.CONFIGURATION, ErrorCategory.FATAL])
def test_configuration_and_fatal_errors_cannot_be_made_retryable(category):
    with pytest.raises(ConfigError, match=f"category {category.value} are never retried"):
        RetryPolicies(retried=frozenset({category, ErrorCategory.TRANSIENT}))


def test_one_policy_may_stand_for_all():
    policy = RetryPolicy(
        backoff_strategy=BackoffStrategy.LINEAR, backoff_base_seconds=7.0, backoff_max_seconds=70.0, jitter=False
    )
    policies = same_for_all(policy)
    waits = Backoff(strategy=BackoffStrategy.LINEAR, base_seconds=7.0, max_seconds=70.0, jitter=False)

    assert all(policies.for_error(category, "x") == waits for category in ErrorCategory)
    assert policies.for_error(ErrorCategory.RATE_LIMIT, "quota_window") == waits
    assert policies.max_quota_wait_seconds == 3600.0
    assert not policies.keeps_class_delay
    assert not policies.keeps_class_retries


@pytest.mark.parametrize("base", [0.0, 0.5, 1.0, 100.0, 86_400.0])
def test_the_waits_of_a_strategy_follow_from_its_base_delay_alone(base):
    policies = exactly(base)

    for attempt in range(9):
        assert policies.transient.delay(attempt, 0.9) == min(base * 2**attempt, 86_400.0)
        assert policies.rate_limit.delay(attempt, 0.9) == policies.quota.delay(attempt) == min(base * 3**attempt, 300.0)
        assert policies.resource.delay(attempt, 0.9) == min(base * 2**attempt * 2, 86_400.0)


def test_a_phase_may_say_how_it_waits_and_else_gets_what_each_category_asks_for():
    assert policies_of(RetrySpec()) == RetryPolicies()
    policies = policies_of(RetrySpec(strategy="fixed", base_seconds=0.5, max_seconds=9.0, categories=("transient",)))

    assert policies.transient.delay(3) == policies.resource.delay(3) == 0.5
    assert (policies.rate_limit.max_seconds, policies.retried) == (9.0, {ErrorCategory.TRANSIENT})
    assert (policies.keeps_class_delay, policies.keeps_class_retries) == (False, True)
    # A base above the usual cap, or a cap below the usual base, moves the other.
    assert policies_of(RetrySpec(base_seconds=600.0)).transient.max_seconds == 600.0
    assert policies_of(RetrySpec(max_seconds=0.5)).resource.base_seconds == 0.5
    assert policies_of(RetrySpec(max_seconds=0.5)).keeps_class_delay


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Backoff(factor=10.1), "backoff_factor is 10.1: give a number from"),
        (lambda: Backoff(factor=0.9), "give a number from"),
        (lambda: Backoff(max_seconds=1e9 + 1), "give a number from"),
        (lambda: Backoff(base_seconds=1e9 + 1), "give a number from"),
        (lambda: policies_of(RetrySpec(categories=("fatal",))), "category fatal are never retried"),
        (lambda: policies_of(RetrySpec(base_seconds=-1.0)), "base_seconds is -1.0: give a number from 0.0"),
        (
            lambda: policies_of(RetrySpec(base_seconds=9.0, max_seconds=3.0)),
            "max_seconds is 3.0: give a number from 9.0",
        ),
    ],
)
def test_waits_that_cannot_be_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("seconds", [0, 0.0, 1e9])
@pytest.mark.parametrize("strategy", ["fixed", "linear", "exponential"])
def test_a_phase_may_ask_for_no_wait_or_for_years(seconds, strategy):
    policies = policies_of(RetrySpec(strategy=strategy, base_seconds=seconds, max_seconds=seconds))

    assert [policies.transient.delay(attempt) for attempt in (0, 7, 10**6)] == [seconds] * 3
