"""
Decide whether and when a failed attempt is tried again.

Pure: no clock, no sleep, no dice. The caller passes the moment and a random number in, and acts on the answer. Known as
`retry_handler.decide`, which phases, steps, iterations and effects ask; nobody else decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from adws.adw_modules import timestamps
from adws.adw_modules.error_handler import ErrorFacts
from adws.adw_modules.errors import UsageError
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.retry_policy import JITTER, RetryPolicies, RetryPolicy, same_for_all

#: A server's time is never cut short; this many seconds, at most, are added so that not all come at once.
MAX_EXTRA_SECONDS = 30.0
#: A quota is open again a little later than it says.
QUOTA_MARGIN_SECONDS = 60.0
#: How often in a row a phase may wait for a quota, where that uses no attempt.
MAX_PARKS = 5
#: Seconds to wait for a quota whose reset nobody knows, at least and at most.
UNKNOWN_QUOTA_SECONDS = (1800.0, 3600.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """Try again at that moment."""

    at: datetime
    delay_seconds: float
    needs_cleanup: bool = False  #: free what is used up first
    is_parked: bool = False  #: it waits for a quota: the attempt is not counted


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """Trying again is not allowed, or does not help."""

    reason: str  #: one sentence for people
    terminal_reason: str  #: MAX_ATTEMPTS_EXHAUSTED | NOT_RETRYABLE | RETRIES_DO_NOT_HELP | DEADLINE


@dataclass(frozen=True, kw_only=True, slots=True)
class AskPerson:
    """Nothing goes on before a person has done something."""

    reason: str  #: one sentence for people
    advice: str  #: what they can do
    terminal_reason: str = "NEEDS_PERSON"  #: NEEDS_PERSON | BUDGET | WAIT_TOO_LONG


RetryDecision: TypeAlias = Retry | GiveUp | AskPerson


def decide(
    error_facts: ErrorFacts,
    *,
    attempts_used: int,
    max_attempts: int,
    policy: RetryPolicy | RetryPolicies | None = None,
    now: datetime,
    deadline: datetime | None = None,
    random: float | None = None,
    class_failures: int | None = None,
    parks: int | None = None,
) -> RetryDecision:
    """
    Return what to do after the attempt numbered *attempts_used*, counting from 1, failed with *error_facts*.

    A single RetryPolicy means: these waits, for whatever may be retried. None means the usual ones of each category.
    *random*, from 0.0 up to 1.0, is for jitter. *class_failures* is how many attempts ended with this class of error,
    where the caller knows it: some classes are worth fewer retries than others. *parks* is how often in a row it has
    waited for a quota, where that is counted apart: then such an attempt uses up none of *max_attempts*.
    """
    _check_zones(now, deadline)
    policies = _policies(policy)
    is_parked = parks is not None and error_facts.klass == "quota_window"
    refusal = (
        _parking_refusal(error_facts, policies, parks)
        if parks is not None and is_parked
        else _refusal(error_facts, attempts_used, max_attempts, policies, class_failures)
    )
    told = _told_seconds(error_facts, now)
    if refusal := refusal or _wait_refusal(error_facts, policies, told):
        return refusal
    if is_parked:
        delay = _parked_seconds(told, random or 0.0)
    else:
        delay = _delay(error_facts, policies, attempts_used, told, random)
    at = now + timedelta(seconds=delay)
    if deadline is not None and at >= deadline:
        return _too_late(delay, deadline)

    return Retry(at=at, delay_seconds=delay, needs_cleanup=error_facts.needs_cleanup, is_parked=is_parked)


def _check_zones(now: datetime, deadline: datetime | None) -> None:
    if now.tzinfo is None or (deadline is not None and deadline.tzinfo is None):
        raise UsageError("now and deadline need a time zone")


def _too_late(delay: float, deadline: datetime) -> GiveUp:
    return GiveUp(
        reason=f"the next attempt, in {_span(delay)}, would be after the deadline {timestamps.to_text(deadline)}",
        terminal_reason="DEADLINE",
    )


def _policies(policy: RetryPolicy | RetryPolicies | None) -> RetryPolicies:
    if policy is None:
        return RetryPolicies()

    return same_for_all(policy) if isinstance(policy, RetryPolicy) else policy


def _parking_refusal(facts: ErrorFacts, policies: RetryPolicies, parks: int) -> GiveUp | AskPerson | None:
    """Return why a used-up quota is not waited for, None when it is; attempts do not matter, for it uses none."""
    if not facts.recoverable or facts.category not in policies.retried:
        return _not_retried(facts)
    if parks >= MAX_PARKS:
        return AskPerson(
            reason=f"its quota was used up again after {parks} waits in a row: {first_line(facts.message)}",
            advice="Waiting for the quota does not help any more. Use another account or model, then: adw retry ID.",
        )

    return None


def _not_retried(facts: ErrorFacts) -> GiveUp:
    return GiveUp(
        reason=f"{facts.category.value} errors ({facts.klass}) are not retried: {first_line(facts.message)}",
        terminal_reason="NOT_RETRYABLE",
    )


def _wait_refusal(facts: ErrorFacts, policies: RetryPolicies, told: float | None) -> AskPerson | None:
    """Return why the *told* seconds of a server are not waited for, None when they are or it told none."""
    if told is None or told <= policies.longest_wait(facts.klass):
        return None

    return AskPerson(
        reason=f"the server wants to be asked again in {_span(told)} only, which is longer than adw waits",
        advice=facts.advice,
        terminal_reason="WAIT_TOO_LONG",
    )


def _parked_seconds(told: float | None, random: float) -> float:
    """Return how long to wait for a quota; not all who wait for it come at once."""
    if told is not None:
        return told + QUOTA_MARGIN_SECONDS + MAX_EXTRA_SECONDS * random
    shortest, longest = UNKNOWN_QUOTA_SECONDS

    return shortest + (longest - shortest) * random


def _refusal(
    facts: ErrorFacts, attempts_used: int, max_attempts: int, policies: RetryPolicies, class_failures: int | None
) -> GiveUp | AskPerson | None:
    """Return why there is no further attempt; None when there is one."""
    if facts.needs_person:
        return AskPerson(
            reason=f"{facts.klass}: {first_line(facts.message)}",
            advice=facts.advice,
            terminal_reason="BUDGET" if facts.klass == "budget" else "NEEDS_PERSON",
        )
    if not facts.recoverable or facts.category not in policies.retried:
        return _not_retried(facts)
    if attempts_used >= max_attempts:
        return GiveUp(
            reason=f"{attempts_used} of {max_attempts} attempts are used; the last error: {first_line(facts.message)}",
            terminal_reason="MAX_ATTEMPTS_EXHAUSTED",
        )
    limit = facts.metadata.get("max_retries") if policies.keeps_class_retries else None
    failures = attempts_used if class_failures is None else class_failures
    if isinstance(limit, int) and failures > limit:
        return GiveUp(
            reason=f"{failures} attempts ended with {facts.klass}, another does not help: {first_line(facts.message)}",
            terminal_reason="RETRIES_DO_NOT_HELP",
        )

    return None


def _told_seconds(facts: ErrorFacts, now: datetime) -> float | None:
    """Return how long the server wants us to wait, None when it did not say."""
    moment = _moment(facts.metadata)
    if moment is not None:
        return max((moment - now).total_seconds(), 0.0)

    return facts.retry_delay if facts.metadata.get("retry_delay_from") == "server" else None


def _moment(metadata: JsonObject) -> datetime | None:
    text = metadata.get("retry_at")
    if not isinstance(text, str):
        return None
    try:
        return timestamps.parse(text)
    except (ValueError, OverflowError):
        return None


def _delay(
    facts: ErrorFacts, policies: RetryPolicies, attempts_used: int, told: float | None, random: float | None
) -> float:
    backoff = policies.for_error(facts.category, facts.klass)
    jitter = (random or 0.0) if backoff.jitter else 0.0
    if told is not None:
        margin = QUOTA_MARGIN_SECONDS if facts.klass == "quota_window" else 0.0
        return told + margin + min(told * JITTER, MAX_EXTRA_SECONDS) * jitter

    delay = backoff.delay(max(attempts_used - 1, 0), random)
    if not policies.keeps_class_delay or facts.retry_delay is None:
        return delay

    return min(max(delay, facts.retry_delay * (1 + JITTER * jitter)), backoff.max_seconds)


def first_line(text: str) -> str:
    """Return the first line of *text*, short enough for a sentence."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return first if len(first) <= 300 else f"{first[:297]}..."


def _span(seconds: float) -> str:
    """Return a length of time as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"

    return f"{seconds / 3600:.0f} hours"
