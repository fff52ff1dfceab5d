"""The one decision about retries."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.error_handler import ErrorFacts, WorkflowError, describe, facts_of
from adws.adw_modules.error_tables import CLASSES, OUTAGES, RETRYABLE, ErrorCategory
from adws.adw_modules.errors import FailedRun, RunFailed, UsageError
from adws.adw_modules.retry_handler import (
    AskPerson,
    Backoff,
    GiveUp,
    Parking,
    Retry,
    RetryPolicies,
    RetryPolicy,
    decide,
    policies_of,
)
from adws.adw_modules.timestamps import to_text
from adws.adw_modules.workflow.model import RetrySpec

NOW = datetime(2026, 1, 31, 9, 0, tzinfo=UTC)


def _facts(klass="network", **values):
    """Return the facts of a failure of this class, with *values* of the server in its metadata."""
    facts = describe(RunFailed(FailedRun(subtype=klass)), "build")
    assert facts.klass == klass
    return ErrorFacts(
        category=facts.category,
        klass=klass,
        message="it broke",
        advice=facts.advice,
        recoverable=facts.recoverable,
        retry_delay=values.get("retry_delay", facts.retry_delay),
        metadata=facts.metadata | values,
    )


def _decide(facts, *, attempts_used=1, max_attempts=5, now=NOW, **others):
    return decide(facts, attempts_used=attempts_used, max_attempts=max_attempts, now=now, **others)


@pytest.mark.parametrize(("klass", "seconds", "needs_cleanup"), [("network", 5.0, False), ("disk", 2.0, True)])
def test_a_failure_is_retried_soon_and_what_was_short_is_freed_before(klass, seconds, needs_cleanup):
    at = NOW + timedelta(seconds=seconds)

    assert _decide(_facts(klass)) == Retry(at=at, delay_seconds=seconds, needs_cleanup=needs_cleanup)


def test_a_class_is_retried_exactly_when_its_category_is():
    for name in sorted(CLASSES):
        kind = CLASSES[name]
        facts = facts_of(
            WorkflowError(
                "x",
                kind.category,
                "build",
                recoverable=kind.is_recoverable,
                metadata={"class": name, "requires_manual_intervention": kind.needs_person},
            )
        )

        assert isinstance(_decide(facts), Retry) == (kind.category in RETRYABLE), name
        assert isinstance(_decide(facts), AskPerson) == kind.needs_person, name


@pytest.mark.parametrize("used", [1, 5])
def test_a_failure_that_needs_a_person_comes_with_advice_also_when_attempts_are_used_up(used):
    decision = _decide(_facts("billing"), attempts_used=used)

    assert isinstance(decision, AskPerson)
    assert (decision.reason, decision.terminal_reason) == ("billing: it broke", "NEEDS_PERSON")
    assert "Pay, then: adw retry ID" in decision.advice
    assert _decide(_facts("budget")).terminal_reason == "BUDGET"


@pytest.mark.parametrize(
    ("category", "says"),
    [
        (ErrorCategory.TRANSIENT, {}),
        (ErrorCategory.CONFIGURATION, {"recoverable": True, "metadata": {"requires_manual_intervention": False}}),
        (ErrorCategory.FATAL, {"recoverable": True}),
    ],
)
def test_what_is_not_recoverable_is_not_retried_whatever_it_says(category, says):
    assert _decide(facts_of(WorkflowError("x", category, "build", **says))).terminal_reason == "NOT_RETRYABLE"
    assert _decide(describe(TypeError("x"), "build")) == GiveUp(
        reason="fatal errors (bug) are not retried: x", terminal_reason="NOT_RETRYABLE"
    )


def test_a_category_that_the_policy_leaves_out_is_not_retried():
    policies = RetryPolicies(retried=frozenset({ErrorCategory.RESOURCE}))

    assert isinstance(_decide(_facts("network"), policy=policies), GiveUp)
    assert isinstance(_decide(_facts("disk"), policy=policies), Retry)


@pytest.mark.parametrize(("used", "kind"), [(4, Retry), (5, GiveUp), (6, GiveUp)])
def test_attempts_end_at_their_number(used, kind):
    decision = _decide(_facts("network"), attempts_used=used)

    assert isinstance(decision, kind)
    if kind is GiveUp:
        assert decision.terminal_reason == "MAX_ATTEMPTS_EXHAUSTED"
        assert decision.reason == f"{used} of 5 attempts are used; the last error: it broke"


def test_an_error_that_nothing_is_known_about_is_retried_only_by_who_asked_for_that():
    facts = describe(ValueError("?"), "build")

    assert _decide(facts, attempts_used=1).terminal_reason == "NOT_RETRYABLE"
    assert isinstance(_decide(facts, attempts_used=1, policy=RetryPolicy()), Retry)


@pytest.mark.parametrize(("klass", "helps"), [("no_effect", 1), ("context", 1), ("server", 3)])
def test_some_failures_are_worth_fewer_retries(klass, helps):
    facts = describe(RunFailed(FailedRun(subtype=klass)), "build")

    assert isinstance(_decide(facts, attempts_used=helps), Retry)
    assert _decide(facts, attempts_used=helps + 1).terminal_reason == "RETRIES_DO_NOT_HELP"


def test_failures_of_other_classes_do_not_use_up_the_retries_of_one():
    assert isinstance(_decide(_facts("no_effect"), attempts_used=3, class_failures=1), Retry)
    assert isinstance(_decide(_facts("no_effect"), attempts_used=3, class_failures=2), GiveUp)


def test_a_run_that_just_failed_uses_all_its_attempts():
    facts = describe(RunFailed(FailedRun(exit_code=1, text="2 tests failed")), "test")

    assert [type(_decide(facts, attempts_used=used)) for used in range(1, 6)] == [Retry] * 4 + [GiveUp]


# --- waits -----------------------------------------------------------------------------------------------------


def test_the_least_wait_of_a_class_is_kept_and_the_backoff_grows_beyond_it():
    transient = [_decide(_facts("network"), attempts_used=n, max_attempts=99).delay_seconds for n in range(1, 9)]
    limited = [
        _decide(_facts("rate_limited"), attempts_used=n, max_attempts=99, class_failures=1).delay_seconds
        for n in range(1, 9)
    ]

    assert transient == [5.0, 5.0, 5.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert limited == [60.0, 60.0, 60.0, 60.0, 81.0, 243.0, 300.0, 300.0]


def test_a_policy_of_the_callers_own_says_how_long_and_how_often():
    policy = RetryPolicy(backoff_base_seconds=0.1, jitter=False)

    assert _decide(_facts("network"), policy=policy).delay_seconds == 0.1
    assert isinstance(_decide(_facts("no_effect"), attempts_used=3, policy=policy), Retry)


def test_the_time_that_a_server_names_is_kept_under_every_policy():
    for said, others, seconds in [
        ({"retry_delay": 400.0}, {}, 400.0),
        ({"retry_delay": 400.0}, {"policy": RetryPolicy(backoff_max_seconds=10.0)}, 400.0),
        ({"retry_at": to_text(NOW + timedelta(seconds=90))}, {}, 90.0),
        ({"retry_at": to_text(NOW - timedelta(days=1))}, {}, 0.0),
        # Jitter never asks the server too early.
        ({"retry_delay": 100.0}, {"random": 0.0}, 100.0),
        ({"retry_delay": 100.0}, {"random": 0.8}, 120.0),
        ({"retry_delay": 100.0}, {"random": 0.8, "policy": RetryPolicies(rate_limit=Backoff(jitter=False))}, 100.0),
        # A moment that cannot be read was not named; those who wait the least time do not come back at once.
        *(({"retry_at": text}, {}, 60.0) for text in ("soon", 17, None, "2026-13-01")),
        ({}, {"random": 0.8}, 72.0),
    ]:
        told = {"retry_delay_from": "server"} if "retry_delay" in said else {}

        assert _decide(_facts("rate_limited", **said, **told), **others).delay_seconds == seconds, said


def test_a_quota_is_asked_a_little_after_its_reset():
    facts = _facts("quota_window", retry_at=to_text(NOW + timedelta(days=5)))

    assert _decide(facts).at - NOW == timedelta(days=5, seconds=60)
    assert _decide(facts, random=0.5).at - NOW == timedelta(days=5, seconds=75)


def test_a_wait_that_is_too_long_needs_a_person():
    decision = _decide(_facts("rate_limited", retry_delay=3601.0, retry_delay_from="server"))

    assert isinstance(decision, AskPerson)
    assert decision.terminal_reason == "WAIT_TOO_LONG"
    assert decision.reason == "the server wants to be asked again in 60 minutes only, which is longer than adw waits"
    far = _decide(_facts("quota_window", retry_delay=9 * 86_400.0, retry_delay_from="server"))
    assert "in 216 hours" in far.reason
    policies = RetryPolicies(max_wait_seconds=30.0)
    assert (
        "in 31 seconds"
        in _decide(_facts("server", retry_delay=31.0, retry_delay_from="server"), policy=policies).reason
    )


@pytest.mark.parametrize(
    ("seconds", "span"),
    [(119, "119 seconds"), (120, "2 minutes"), (7199, "120 minutes"), (7200, "2 hours"), (90_000, "25 hours")],
)
def test_a_wait_is_said_as_people_say_it(seconds, span):
    told = _facts("server", retry_delay=float(seconds), retry_delay_from="server")

    assert f"in {span} only" in _decide(told, policy=RetryPolicies(max_wait_seconds=1.0)).reason


@pytest.mark.parametrize(("seconds", "kind"), [(6, Retry), (5, GiveUp), (0, GiveUp), (-9, GiveUp)])
def test_nothing_is_tried_after_the_deadline(seconds, kind):
    decision = _decide(_facts("network"), deadline=NOW + timedelta(seconds=seconds))

    assert isinstance(decision, kind)
    if kind is GiveUp:
        assert decision.terminal_reason == "DEADLINE"
        assert "in 5 seconds, would be after the deadline 2026-01-31T09:00:" in decision.reason or seconds < 0


def test_times_need_a_zone():
    naive = NOW.replace(tzinfo=None)

    with pytest.raises(UsageError, match="need a time zone"):
        _decide(_facts(), now=naive)
    with pytest.raises(UsageError, match="need a time zone"):
        _decide(_facts(), deadline=naive)


def test_a_reason_is_one_short_line():
    facts = facts_of(WorkflowError("\n\n" + "x" * 1000 + "\nmore", ErrorCategory.FATAL, "build"))

    reason = _decide(facts).reason

    assert "\n" not in reason
    assert len(reason) < 400
    assert "no message" in _decide(facts_of(WorkflowError(" \n", ErrorCategory.FATAL, "build"))).reason


# --- for every input -------------------------------------------------------------------------------------------

METADATA = st.dictionaries(
    st.sampled_from(
        ["retry_at", "retry_delay_from", "max_retries", "requires_cleanup", "requires_manual_intervention"]
    ),
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.just("server"), st.just(to_text(NOW))),
)
FACTS = st.builds(
    ErrorFacts,
    category=st.sampled_from(ErrorCategory),
    klass=st.sampled_from(sorted(CLASSES)),
    message=st.text(),
    recoverable=st.booleans(),
    retry_delay=st.one_of(st.none(), st.floats(min_value=0, allow_infinity=False, allow_nan=False)),
    metadata=METADATA,
)


@given(
    facts=FACTS,
    used=st.integers(min_value=0, max_value=10**30),
    most=st.integers(min_value=1, max_value=10**30),
    policy=st.sampled_from([None, RetryPolicy(), RetryPolicies(), RetryPolicy(backoff_max_seconds=86_400.0)]),
    deadline=st.one_of(st.none(), st.datetimes(timezones=st.just(UTC))),
    random=st.one_of(st.none(), st.floats(min_value=0, max_value=1, exclude_max=True)),
)
def test_every_failure_gets_one_decision(*, facts, used, most, policy, deadline, random):
    decision = decide(
        facts, attempts_used=used, max_attempts=most, policy=policy, now=NOW, deadline=deadline, random=random
    )

    if not isinstance(decision, Retry):
        assert decision.reason
        assert decision.terminal_reason
        return
    is_allowed = facts.klass == "unknown" and isinstance(policy, RetryPolicy)
    assert is_allowed or (facts.category in RETRYABLE and facts.recoverable)
    assert used < most
    assert decision.at == NOW + timedelta(seconds=decision.delay_seconds)
    assert 0.0 <= decision.delay_seconds <= 8 * 86_400 + 90
    assert deadline is None or decision.at < deadline


# --- quotas and services that are waited for apart from attempts -----------------------------------------------


def _outage(klass="network", **metadata):
    facts = _facts(klass, **metadata)
    assert facts.is_outage
    return facts


@pytest.mark.parametrize(("random", "margin"), [(None, 60.0), (0.0, 60.0), (0.5, 75.0), (1.0, 90.0)])
def test_a_parked_quota_is_asked_sixty_to_ninety_seconds_after_its_reset(random, margin):
    facts = _facts("quota_window", retry_at=to_text(NOW + timedelta(hours=5)))

    decision = _decide(facts, parking=Parking(), random=random)

    wait = 5 * 3600.0 + margin
    assert decision == Retry(at=NOW + timedelta(seconds=wait), delay_seconds=wait, is_parked=True)


@pytest.mark.parametrize(("waits", "minutes"), [(0, 30), (1, 60), (2, 120), (9, 120)])
@pytest.mark.parametrize("metadata", [{}, {"retry_at": to_text(NOW - timedelta(hours=1))}], ids=["none", "passed"])
def test_a_parked_quota_without_a_reset_is_asked_after_half_an_hour_then_an_hour_then_two(waits, minutes, metadata):
    decision = _decide(_facts("quota_window", **metadata), parking=Parking(waits=waits, since=NOW))

    assert (decision.delay_seconds, decision.is_parked) == (minutes * 60.0, True)
    assert decision.deadline == NOW + timedelta(days=1)


@pytest.mark.parametrize("klass", sorted(OUTAGES))
def test_an_outage_is_parked_when_no_attempt_is_left_because_it_uses_none(klass):
    facts = _outage(klass)

    assert _decide(facts, parking=Parking(), attempts_used=5, max_attempts=5, class_failures=99).is_parked
    assert isinstance(_decide(facts, attempts_used=5, max_attempts=5), GiveUp)


def test_a_named_reset_of_a_quota_is_waited_for_five_times_in_a_row():
    facts = _facts("quota_window", retry_at=to_text(NOW + timedelta(hours=5)))
    long_ago = NOW - timedelta(days=3)

    assert isinstance(_decide(facts, parking=Parking(waits=4, named_resets=4, since=long_ago)), Retry)
    decision = _decide(facts, parking=Parking(waits=5, named_resets=5, since=long_ago))

    assert isinstance(decision, AskPerson)
    assert decision.terminal_reason == "NEEDS_PERSON"
    assert "after 5 resets in a row" in decision.reason
    assert "Use another account or model, then: adw retry ID" in decision.advice


def test_a_reset_too_far_away_is_not_parked_for():
    far = _facts("quota_window", retry_at=to_text(NOW + timedelta(days=9)))

    assert _decide(far, parking=Parking()).terminal_reason == "WAIT_TOO_LONG"


def test_a_failure_of_the_work_itself_is_not_parked():
    decision = _decide(_facts("failed"), parking=Parking())

    assert isinstance(decision, Retry)
    assert not decision.is_parked


@pytest.mark.parametrize(
    ("klass", "first"), [("network", 5.0), ("server", 5.0), ("overloaded", 30.0), ("rate_limited", 60.0)]
)
def test_waits_for_a_service_grow_from_what_its_class_asks_for_to_half_an_hour(klass, first):
    waits = [_decide(_outage(klass), parking=Parking(waits=n, since=NOW), random=0.0).delay_seconds for n in range(12)]

    assert waits[:3] == [first, first * 2, first * 4]
    assert waits == sorted(waits)
    assert waits[-1] == 1800.0


def test_a_phase_s_own_first_wait_is_kept_and_its_short_cap_is_not():
    policies = policies_of(RetrySpec(base_seconds=0.1, max_seconds=1.0))
    waits = [_decide(_outage(), policy=policies, parking=Parking(waits=n), random=0.0) for n in (0, 1, 20)]

    assert [one.delay_seconds for one in waits] == [0.1, 0.2, 1800.0]


def test_the_last_attempt_is_at_the_deadline_and_then_the_service_is_given_up():
    parking = Parking(waits=50, since=NOW - timedelta(hours=23, minutes=50))
    last = _decide(_outage(), parking=parking, random=1.0)
    over = _decide(_outage(), parking=replace(parking, since=NOW - timedelta(days=1)))

    assert last.at == last.deadline == NOW + timedelta(minutes=10)
    assert isinstance(over, AskPerson)
    assert over.terminal_reason == "DEADLINE"
    assert "longer than the 24 hours that adw waits: it broke" in over.reason
    assert "adw retry ID" in over.advice


@pytest.mark.parametrize(("hours", "is_waited_for"), [(0.5, True), (12, True), (25, False)])
def test_what_a_server_asks_for_is_waited_for_when_that_is_before_the_deadline(hours, is_waited_for):
    facts = _outage("rate_limited", retry_at=to_text(NOW + timedelta(hours=hours)))
    decision = _decide(facts, parking=Parking(), random=0.0)

    if is_waited_for:
        assert decision.at == NOW + timedelta(hours=hours)
    else:
        assert decision.terminal_reason == "WAIT_TOO_LONG"


@pytest.mark.parametrize("is_recoverable", [True, False])
@pytest.mark.parametrize("klass", ["quota_window", "rate_limited"])
def test_what_shall_not_be_retried_is_not_parked(klass, is_recoverable):
    facts = _outage(klass)
    policies = RetryPolicies(retried={ErrorCategory.TRANSIENT}) if is_recoverable else RetryPolicies()
    result = facts if is_recoverable else ErrorFacts.from_json({**facts.to_json(), "recoverable": False})

    assert _decide(result, parking=Parking(), policy=policies).terminal_reason == "NOT_RETRYABLE"
