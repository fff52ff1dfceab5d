"""
Retry policies, the one retry decision, and retry loops that wait.

Only `decide` decides about retries. `RetryManager` and `RetryStrategy` follow it and wait by their clock; the engine
follows it and returns a time instead. Nothing here stops a KeyboardInterrupt, and an error raised by a caller's hook
never replaces the original one. Both loops are synchronous and refuse an `async def`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Generic, ParamSpec, Self, TypeAlias, TypeVar

from adws.adw_modules import default_home, timestamps
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.error_handler import ErrorClassifier, ErrorFacts, WorkflowError, facts_of
from adws.adw_modules.error_tables import RETRYABLE, ErrorCategory
from adws.adw_modules.errors import ConfigError, RetriesExhausted, UsageError
from adws.adw_modules.identifiers import counted
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.workflow.model import MAX_SECONDS, BackoffStrategy, RetrySpec

if TYPE_CHECKING:
    from adws.adw_modules.checkpoint import CheckpointManager

__all__ = [
    "AskPerson",
    "Attempt",
    "Backoff",
    "BackoffStrategy",
    "GiveUp",
    "Parking",
    "Retry",
    "RetryDecision",
    "RetryManager",
    "RetryPolicies",
    "RetryPolicy",
    "RetryResult",
    "RetryStrategy",
    "decide",
    "policies_of",
    "same_for_all",
]

# --- how long to wait before the next attempt: at most the cap, jitter included, for any number of attempts -----------

#: How far jitter moves a wait to either side, as a fraction of it.
JITTER = 0.25

#: Highest attempt number used for a wait: 10.0 ** 300 is a float, and far beyond every cap.
_MAX_EXPONENT = 300
#: The longest cap of a policy is less than a million times its shortest base.
_MAX_FACTOR = 1_000_000

HOUR = 3600.0
DAY = 86_400.0


def _check(name: str, value: float, lowest: float, highest: float) -> None:
    # NaN fails every comparison.
    if not lowest <= value <= highest:
        raise ConfigError(f"{name} is {value}: give a number from {lowest} to {highest}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """A sequence of waits, in seconds."""

    base_seconds: float = 1.0  #: the first wait
    max_seconds: float = 300.0  #: no wait is longer, jitter included
    strategy: BackoffStrategy = BackoffStrategy.EXPONENTIAL
    factor: float = 2.0  #: 1 to 10, for the exponential strategy
    jitter: bool = True  #: up to a quarter more or less, within the cap

    def __post_init__(self) -> None:
        """Raise ConfigError for a number out of bounds."""
        _check("base_seconds", self.base_seconds, 0.0, MAX_SECONDS)
        _check("max_seconds", self.max_seconds, self.base_seconds, MAX_SECONDS)
        _check("backoff_factor", self.factor, 1.0, 10.0)

    def delay(self, attempt: int, random: float | None = None) -> float:
        """
        Return the seconds to wait after attempt number *attempt*, counting from 0.

        *random*, from 0.0 up to 1.0, places the wait within its jitter; without it there is no jitter. Raises
        UsageError, a ValueError, for a negative *attempt*.
        """
        if attempt < 0:
            raise UsageError(f"there is no attempt {attempt}: they count from 0")
        if self.strategy is BackoffStrategy.FIXED:
            grown = self.base_seconds
        elif self.strategy is BackoffStrategy.LINEAR:
            grown = self.base_seconds * (min(attempt, _MAX_FACTOR) + 1)
        else:
            # Cap the exponent, not just the product: 2.0 ** 1024 raises OverflowError.
            grown = self.base_seconds * float(self.factor) ** min(attempt, _MAX_EXPONENT)
        delay = min(grown, self.max_seconds)
        if not self.jitter or random is None:
            return delay

        # Spread between both ends instead of clamped at the upper one: many clients at the cap must not meet there.
        shortest, longest = delay * (1 - JITTER), min(delay * (1 + JITTER), self.max_seconds)
        return min(shortest + (longest - shortest) * random, longest)


@dataclass(frozen=True)
class RetryPolicy:
    """How often something is retried, and after which waits."""

    max_attempts: int = 3  #: 1 to 100; 1: no retry
    backoff_strategy: BackoffStrategy = BackoffStrategy.EXPONENTIAL
    backoff_base_seconds: float = 1.0  #: 0.1 to 3600
    backoff_max_seconds: float = 300.0  #: from the base up to 86400
    jitter: bool = True  #: up to a quarter more or less, within the cap
    backoff_factor: float = 2.0  #: 1 to 10, for the exponential strategy

    def __post_init__(self) -> None:
        """Raise ConfigError for a number out of bounds."""
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int):
            raise ConfigError(f"max_attempts is {self.max_attempts!r}: give a whole number from 1 to 100")
        _check("max_attempts", self.max_attempts, 1, 100)
        _check("backoff_base_seconds", self.backoff_base_seconds, 0.1, HOUR)
        _check("backoff_max_seconds", self.backoff_max_seconds, self.backoff_base_seconds, DAY)
        _check("backoff_factor", self.backoff_factor, 1.0, 10.0)

    @property
    def backoff(self) -> Backoff:
        """The waits of this policy."""
        return Backoff(
            base_seconds=self.backoff_base_seconds,
            max_seconds=self.backoff_max_seconds,
            strategy=self.backoff_strategy,
            factor=self.backoff_factor,
            jitter=self.jitter,
        )

    def calculate_delay(self, attempt: int, random: float | None = None) -> float:
        """
        Return the seconds to wait after attempt number *attempt*, counting from 0; see `Backoff.delay`.

        With jitter the wait varies by up to a quarter, within the cap; *random*, from 0.0 up to 1.0, is drawn unless
        given.
        """
        if random is None and self.jitter:
            random = SystemClock().random()

        return self.backoff.delay(attempt, random)


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicies:
    """The waits for each retried category of errors; the caller counts the attempts and limits them."""

    transient: Backoff = Backoff(max_seconds=60.0)
    rate_limit: Backoff = Backoff(factor=3.0)
    resource: Backoff = Backoff(base_seconds=2.0)
    quota: Backoff = Backoff(base_seconds=HOUR / 2, max_seconds=2 * HOUR)  #: for a quota whose reset time is unknown
    outage: Backoff = Backoff(base_seconds=5.0, max_seconds=HOUR / 2)  #: for a service outage, if it uses no attempt
    retried: AbstractSet[ErrorCategory] = field(default=RETRYABLE)  #: configuration and fatal errors never are
    max_wait_seconds: float = HOUR  #: the longest wait accepted from a server
    max_quota_wait_seconds: float = 8 * DAY  #: the longest wait accepted for the reset of a quota
    keeps_class_delay: bool = True  #: wait at least as long as the class of the error requires
    keeps_class_retries: bool = True  #: retry no more often than helps against that class of error
    retries_unknown: bool = False  #: also retry unknown errors, which are fatal otherwise

    def __post_init__(self) -> None:
        """Raise ConfigError if it would retry errors that a retry cannot help."""
        wrong = sorted(category.value for category in set(self.retried) - RETRYABLE)
        if wrong:
            raise ConfigError(f"errors of category {', '.join(wrong)} are never retried: leave them out")

    def for_error(self, category: ErrorCategory, klass: str) -> Backoff:
        """Return the waits for an error of *category* and *klass*."""
        if klass == "quota_window":
            return self.quota
        if category is ErrorCategory.RATE_LIMIT:
            return self.rate_limit

        return self.resource if category is ErrorCategory.RESOURCE else self.transient


def same_for_all(policy: RetryPolicy) -> RetryPolicies:
    """Return the waits of *policy* for every category, as the caller has decided how often and how long."""
    return RetryPolicies(
        transient=policy.backoff,
        rate_limit=policy.backoff,
        resource=policy.backoff,
        quota=policy.backoff,
        max_quota_wait_seconds=HOUR,
        keeps_class_delay=False,
        keeps_class_retries=False,
        retries_unknown=True,
    )


#: Longest wait of a `RetryStrategy` after a rate limit, in seconds.
STRATEGY_RATE_LIMIT_CAP = 300.0


def exactly(base_delay: float) -> RetryPolicies:
    """
    Return waits derived from *base_delay* alone, without jitter or limits for error classes.

    They are base * 2^n for transient errors, base * 3^n up to 300 seconds for rate limits, and base * 2^n * 2 for
    resources; a day at most.
    """
    rate_limit = Backoff(
        base_seconds=min(base_delay, STRATEGY_RATE_LIMIT_CAP),
        max_seconds=STRATEGY_RATE_LIMIT_CAP,
        factor=3.0,
        jitter=False,
    )

    return RetryPolicies(
        transient=Backoff(base_seconds=base_delay, max_seconds=DAY, jitter=False),
        rate_limit=rate_limit,
        resource=Backoff(base_seconds=min(base_delay * 2, DAY), max_seconds=DAY, jitter=False),
        quota=rate_limit,
        keeps_class_delay=False,
        keeps_class_retries=False,
    )


def policies_of(spec: RetrySpec) -> RetryPolicies:
    """Return the policies of a phase: the values of *spec*, already checked, else the defaults of each category."""
    usual = RetryPolicies()
    outage = usual.outage
    if spec.base_seconds is not None:
        # It still grows: a day of short waits would make a document of thousands of attempts.
        longest = max(outage.max_seconds, spec.base_seconds)
        outage = replace(outage, base_seconds=spec.base_seconds, max_seconds=longest)

    return replace(
        usual,
        transient=_changed(usual.transient, spec),
        rate_limit=_changed(usual.rate_limit, spec),
        resource=_changed(usual.resource, spec),
        outage=outage,
        retried=usual.retried if spec.categories is None else frozenset(map(ErrorCategory, spec.categories)),
        keeps_class_delay=spec.base_seconds is None,
    )


def _changed(usual: Backoff, spec: RetrySpec) -> Backoff:
    """Return *usual* with the values of *spec*; a base above the usual cap, or a cap below the usual base, moves it."""
    base, cap = spec.base_seconds, spec.max_seconds
    if base is None:
        base = usual.base_seconds if cap is None else min(usual.base_seconds, cap)
    if cap is None:
        cap = max(usual.max_seconds, base)
    strategy = usual.strategy if spec.strategy is None else BackoffStrategy(spec.strategy)

    return replace(usual, strategy=strategy, base_seconds=base, max_seconds=cap)


# --- whether and when a failed attempt is retried: pure, the caller passes the time and a random number --------------

#: A server's wait is never shortened; at most this many seconds are added so that not all retries come at once.
MAX_EXTRA_SECONDS = 30.0
#: Added to the reset time of a quota, which opens a little later than announced.
QUOTA_MARGIN_SECONDS = 60.0
#: How often in a row a phase may wait for the announced reset of a quota.
MAX_NAMED_RESETS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Parking:
    """The waits in a row that used no attempt, before the failure to be decided about."""

    waits: int = 0
    named_resets: int = 0  #: of these waits, those for the announced reset of a quota
    since: datetime | None = None  #: when the first of them began; None: there was none
    max_seconds: float = DAY  #: how long they may last in all


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """Retry at a moment."""

    at: datetime
    delay_seconds: float
    needs_cleanup: bool = False  #: free exhausted resources first
    is_parked: bool = False  #: waits for a quota or a service: the attempt is not counted
    deadline: datetime | None = None  #: when waiting for a service ends; None: no limit


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """No retry: it is not allowed or does not help."""

    reason: str  #: one sentence for people
    terminal_reason: str  #: MAX_ATTEMPTS_EXHAUSTED | NOT_RETRYABLE | RETRIES_DO_NOT_HELP | DEADLINE


@dataclass(frozen=True, kw_only=True, slots=True)
class AskPerson:
    """No retry before a person has done something."""

    reason: str  #: one sentence for people
    advice: str  #: what the person can do
    terminal_reason: str = "NEEDS_PERSON"  #: NEEDS_PERSON | BUDGET | WAIT_TOO_LONG | DEADLINE


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
    parking: Parking | None = None,
) -> RetryDecision:
    """
    Return what to do after the attempt numbered *attempts_used*, counting from 1, failed with *error_facts*.

    A single RetryPolicy gives the waits for every retryable error; None means the defaults of each category. *random*,
    from 0.0 up to 1.0, is for jitter. *class_failures* is how many attempts ended with this class of error, if the
    caller knows it: some classes are worth fewer retries than others. *parking* are the waits in a row for quotas and
    services, if those are counted separately: then such a failure uses up none of *max_attempts*.
    """
    if now.tzinfo is None or (deadline is not None and deadline.tzinfo is None):
        raise UsageError("now and deadline need a time zone")
    policies = same_for_all(policy) if isinstance(policy, RetryPolicy) else policy or RetryPolicies()
    # How long the server asks to wait, None if it did not say.
    moment, told = told_moment(error_facts), None
    if moment is not None:
        told = max((moment - now).total_seconds(), 0.0)
    elif error_facts.metadata.get("retry_delay_from") == "server":
        told = error_facts.retry_delay
    if parking is not None and (error_facts.is_outage or error_facts.klass == "quota_window"):
        return _park(error_facts, policies, parking, now=now, told=told, random=random or 0.0)
    refusal = _refusal(error_facts, attempts_used, max_attempts, policies, class_failures)
    if refusal := refusal or _wait_refusal(error_facts, policies, told):
        return refusal

    backoff = policies.for_error(error_facts.category, error_facts.klass)
    jitter = (random or 0.0) if backoff.jitter else 0.0
    if told is not None:
        margin = QUOTA_MARGIN_SECONDS if error_facts.klass == "quota_window" else 0.0
        delay = told + margin + min(told * JITTER, MAX_EXTRA_SECONDS) * jitter
    else:
        delay = backoff.delay(max(attempts_used - 1, 0), random)
        if policies.keeps_class_delay and error_facts.retry_delay is not None:
            delay = min(max(delay, error_facts.retry_delay * (1 + JITTER * jitter)), backoff.max_seconds)
    at = now + timedelta(seconds=delay)
    if deadline is not None and at >= deadline:
        return GiveUp(
            reason=f"the next attempt, in {_span(delay)}, would be after the deadline {timestamps.to_text(deadline)}",
            terminal_reason="DEADLINE",
        )

    return Retry(at=at, delay_seconds=delay, needs_cleanup=error_facts.needs_cleanup)


def told_moment(facts: ErrorFacts) -> datetime | None:
    """Return the moment from which the server allows a retry, or None if it named no readable one."""
    text = facts.metadata.get("retry_at")
    try:
        return timestamps.parse(text) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


def _park(
    facts: ErrorFacts, policies: RetryPolicies, parking: Parking, *, now: datetime, told: float | None, random: float
) -> RetryDecision:
    """Return until when to wait for a quota or a service without using an attempt, or why to stop waiting."""
    if not facts.recoverable or facts.category not in policies.retried:
        return _not_retried(facts)
    is_quota = facts.klass == "quota_window"
    if is_quota and told:  # a reset in the past tells nothing
        if parking.named_resets >= MAX_NAMED_RESETS:
            return AskPerson(
                reason=f"its quota was used up again after {parking.named_resets} resets in a row: "
                f"{first_line(facts.message)}",
                advice="Waiting for the quota no longer helps. Use another account or model, then: adw retry ID.",
            )
        if refusal := _wait_refusal(facts, policies, told):
            return refusal
        # With jitter, so that waiting runs do not all continue at once.
        delay = told + QUOTA_MARGIN_SECONDS + MAX_EXTRA_SECONDS * random
        return Retry(at=now + timedelta(seconds=delay), delay_seconds=delay, is_parked=True)

    since = parking.since or now
    deadline = since + timedelta(seconds=parking.max_seconds)
    if now >= deadline:
        return AskPerson(
            reason=f"{facts.klass} since {timestamps.to_text(since)}, which is longer than the "
            f"{_span(parking.max_seconds)} that adw waits: {first_line(facts.message)}",
            advice="The service did not come back in time. When it works again: adw retry ID. "
            "adw waits for up to 24 hours.",
            terminal_reason="DEADLINE",
        )
    if told is not None and not is_quota:
        if told > (deadline - now).total_seconds() and (refusal := _wait_refusal(facts, policies, told)):
            return refusal
        at = now + timedelta(seconds=told + min(told * JITTER, MAX_EXTRA_SECONDS) * random)
    else:
        backoff = policies.quota if is_quota else policies.outage
        if policies.keeps_class_delay and facts.retry_delay is not None:
            base = min(max(backoff.base_seconds, facts.retry_delay), backoff.max_seconds)
            backoff = replace(backoff, base_seconds=base)
        # The last attempt is made at the deadline, not after it.
        at = min(now + timedelta(seconds=backoff.delay(parking.waits) * (1 + JITTER * random)), deadline)

    return Retry(at=at, delay_seconds=(at - now).total_seconds(), is_parked=True, deadline=deadline)


def _not_retried(facts: ErrorFacts) -> GiveUp:
    return GiveUp(
        reason=f"{facts.category.value} errors ({facts.klass}) are not retried: {first_line(facts.message)}",
        terminal_reason="NOT_RETRYABLE",
    )


def _wait_refusal(facts: ErrorFacts, policies: RetryPolicies, told: float | None) -> AskPerson | None:
    """Return why a server's wait of *told* seconds is too long, or None if it is short enough or not given."""
    longest = policies.max_quota_wait_seconds if facts.klass == "quota_window" else policies.max_wait_seconds
    if told is None or told <= longest:
        return None

    return AskPerson(
        reason=f"the server wants to be asked again in {_span(told)} only, which is longer than adw waits",
        advice=facts.advice,
        terminal_reason="WAIT_TOO_LONG",
    )


def _refusal(
    facts: ErrorFacts, attempts_used: int, max_attempts: int, policies: RetryPolicies, class_failures: int | None
) -> GiveUp | AskPerson | None:
    """Return why there is no further attempt, or None if there is one."""
    if facts.needs_person:
        return AskPerson(
            reason=f"{facts.klass}: {first_line(facts.message)}",
            advice=facts.advice,
            terminal_reason="BUDGET" if facts.klass == "budget" else "NEEDS_PERSON",
        )
    is_allowed = facts.klass == "unknown" and policies.retries_unknown
    if not is_allowed and (not facts.recoverable or facts.category not in policies.retried):
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
            reason=f"{counted(failures, 'attempt')} ended with {facts.klass}, another does not help: "
            f"{first_line(facts.message)}",
            terminal_reason="RETRIES_DO_NOT_HELP",
        )

    return None


def first_line(text: str) -> str:
    """Return the first line of *text*, shortened for use in a sentence."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return first if len(first) <= 300 else f"{first[:297]}..."


def _span(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"

    return f"{seconds / 3600:.0f} hours"


_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")


class Attempt:
    """One attempt of a retry loop: the work is done inside `with attempt:`."""

    def __init__(self, loop: _Loop, number: int) -> None:
        self.number = number  #: counting from 1
        self.retry: Retry | None = None  #: the next attempt; None: there is none
        self.was_entered = False
        self._loop = loop

    def __enter__(self) -> Self:
        self.was_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Suppress the error if there is another attempt; an order to stop is never retried."""
        if not isinstance(error, Exception):
            return False
        failure = self._loop.classify(error, self._loop.phase)
        self.retry = self._loop.next_attempt(error, failure, self.number)
        if self.retry is None and self._loop.raises_classified and failure is not error:
            raise failure from error

        return self.retry is not None


@dataclass(frozen=True, kw_only=True)
class RetryResult(Generic[_Result]):
    """The value that a function returned, and the number of attempts used."""

    value: _Result
    attempts: int


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """The part that all attempts of one call share."""

    phase: str
    max_attempts: int
    policies: RetryPolicies
    clock: Clock
    classify: Callable[[Exception, str], WorkflowError]
    clean_up: Callable[[WorkflowError], None] | None
    deadline: datetime | None
    on_retry: Callable[[int, Exception], None] | None = None
    raises_classified: bool = False
    #: Results of earlier attempts, for the notes of the last error.
    earlier: list[str] = field(default_factory=list)

    def attempts(self, attempts_used: int = 0) -> Iterator[Attempt]:
        """Yield attempts, with the waits between them, until one succeeds or raises."""
        while True:
            attempts_used += 1
            attempt = Attempt(self, attempts_used)
            yield attempt
            if not attempt.was_entered:
                raise UsageError("an attempt was not used: do the work inside of `with attempt:`")
            if attempt.retry is None:
                return
            self.clock.sleep(attempt.retry.delay_seconds)

    def run(self, call: Callable[[], _Result], name: str, attempts_used: int = 0) -> RetryResult[_Result]:
        """Return the result of *call* after one or several attempts; raise the last error, with notes on the others."""
        for attempt in self.attempts(attempts_used):
            with attempt:
                result = call()
                if is_pending(result):
                    break
                return RetryResult(value=result, attempts=attempt.number)

        raise UsageError(_ASYNC.format(name=f"{name} returned a coroutine, so it"))

    def next_attempt(self, exc: Exception, failure: WorkflowError, attempt: int) -> Retry | None:
        """Prepare and return the next attempt, or return None and note the reason on the error to be raised."""
        decision = decide(
            facts_of(failure),
            attempts_used=attempt,
            max_attempts=self.max_attempts,
            policy=self.policies,
            now=self.clock.now(),
            deadline=self.deadline,
            random=self.clock.random(),
        )
        # A caller's hook may raise anything: the original error must survive it.
        if isinstance(decision, Retry) and decision.needs_cleanup and self.clean_up is not None:
            trouble = _failure_of_hook("clean_up", self.clean_up, failure)
            if trouble:
                decision = GiveUp(reason=f"the clean-up failed: {trouble}", terminal_reason="NOT_RETRYABLE")
        if isinstance(decision, Retry):
            self.earlier.append(f"attempt {attempt} failed: {type(exc).__name__}: {first_line(failure.message)}")
            if self.on_retry is not None and (trouble := _failure_of_hook("on_retry", self.on_retry, attempt, exc)):
                note = f"on_retry failed after attempt {attempt}: {trouble}"
                _note(exc, note)
                self.earlier.append(note)
            return decision

        for note in (*self.earlier, f"not retried: {decision.reason}"):
            _note(failure if self.raises_classified else exc, note)
        return None


_ASYNC = "{name} is async, and retries call it as a plain function: call asyncio.run inside of it"


def is_async(function: object) -> bool:
    """Return whether calling *function* returns an awaitable, as far as its definition tells."""
    asked = [function] if isinstance(function, type) else [function, getattr(function, "__call__", None)]  # noqa: B004 - an object may have an async __call__

    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in asked)


def is_pending(result: object) -> bool:
    """Return whether *result* must be awaited and so is not a result yet; a coroutine is closed."""
    if inspect.iscoroutine(result):
        result.close()
        return True

    return inspect.isawaitable(result) or inspect.isasyncgen(result)


def _failure_of_hook(name: str, hook: Callable[..., object], *arguments: object) -> str:
    """Call a hook of the caller and return how it failed, or "" if it did not."""
    try:
        result = hook(*arguments)
    except Exception as exc:  # noqa: BLE001 - the caller's hook may raise anything
        return f"{type(exc).__name__}: {exc}"

    return f"UsageError: {_ASYNC.format(name=f'{name} returned a coroutine, so it')}" if is_pending(result) else ""


def _refuse_async(**functions: object) -> None:
    for role, function in functions.items():
        if is_async(function):
            raise UsageError(_ASYNC.format(name=f"{role} ({name_of(function)})"))


def name_of(function: object) -> str:
    """Return the name of a function or callable object for messages."""
    return str(getattr(function, "__qualname__", None) or type(function).__name__)


def _note(error: Exception, note: str) -> None:
    """Add *note* once: a caller may raise the same error object in every attempt."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


class RetryManager:
    """
    Run something until it succeeds or its policy is exhausted; the caller waits.

    `execute_with_retry` runs a named task that may have checkpoints. For anything else there are `call` and `run`, the
    decorator (`@manager`), and `for attempt in manager.attempts(): with attempt: ...`, which follow the *policy* of the
    manager. Threads may share one manager.
    """

    def __init__(
        self,
        checkpoint_manager: CheckpointManager | None = None,
        *,
        policy: RetryPolicy | None = None,
        clock: Clock | None = None,
        classify: Callable[[Exception, str], WorkflowError] = ErrorClassifier.classify,
        clean_up: Callable[[WorkflowError], None] | None = None,
    ) -> None:
        _refuse_async(clean_up=clean_up)
        self.policy = policy or RetryPolicy()
        self._checkpoints = checkpoint_manager
        self._clock = clock
        self._classify = classify
        self._clean_up = clean_up

    def execute_with_retry(
        self,
        task_id: str,
        policy: RetryPolicy,
        execute_fn: Callable[..., _Result],
        on_retry: Callable[[str, int, Exception], None] | None = None,
        *,
        attempts_used: int = 0,
        deadline: datetime | None = None,
    ) -> _Result:
        """
        Return the result of *execute_fn*; raise its last error, with the earlier ones as notes.

        With a checkpoint manager *execute_fn* gets the last checkpoint, loaded again for each attempt, else no
        argument. *on_retry* gets the task, the number of the failed attempt (from 1) and its error, before the wait.
        *attempts_used* are those of earlier processes. Configuration and fatal errors are raised at once. Raises
        UsageError for an async *execute_fn* or *on_retry*, before calling it.
        """
        _refuse_async(execute_fn=execute_fn, on_retry=on_retry)
        if attempts_used >= policy.max_attempts:
            raise RetriesExhausted(attempts_used, policy.max_attempts)

        def attempt() -> _Result:
            if self._checkpoints is None:
                return execute_fn()
            return execute_fn(self._checkpoints.load_checkpoint(task_id))

        told = None if on_retry is None else partial(on_retry, task_id)
        loop = self._loop(task_id, policy, deadline=deadline, on_retry=told)
        return loop.run(attempt, name_of(execute_fn), attempts_used).value

    def call(self, func: Callable[_Params, _Result], /, *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        """Return the result of *func* for these arguments; raise its last error, with the earlier ones as notes."""
        return self.run(func, *args, **kwargs).value

    def run(
        self, func: Callable[_Params, _Result], /, *args: _Params.args, **kwargs: _Params.kwargs
    ) -> RetryResult[_Result]:
        """Do the same as `call`, and also return the number of attempts."""
        _refuse_async(func=func)
        return self._loop(name_of(func), self.policy).run(lambda: func(*args, **kwargs), name_of(func))

    def __call__(self, func: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
        """Return *func* with retries on every call; raise UsageError if it is async."""
        _refuse_async(func=func)

        @wraps(func)
        def retried(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
            return self.call(func, *args, **kwargs)

        return retried

    def attempts(self, name: str = "", *, deadline: datetime | None = None) -> Iterator[Attempt]:
        """
        Yield attempts until one succeeds: `for attempt in manager.attempts(): with attempt: ...`.

        The last error leaves its `with` block. *name* tells the classifier what was attempted. The waits between
        attempts block; an async function uses `retry_handler.decide` instead.
        """
        return self._loop(name, self.policy, deadline=deadline).attempts()

    def _loop(
        self,
        phase: str,
        policy: RetryPolicy,
        *,
        deadline: datetime | None = None,
        on_retry: Callable[[int, Exception], None] | None = None,
    ) -> _Loop:
        return _Loop(
            phase=phase,
            max_attempts=policy.max_attempts,
            policies=same_for_all(policy),
            clock=self._clock or default_home.get().clock,
            classify=self._classify,
            clean_up=self._clean_up,
            deadline=deadline,
            on_retry=on_retry,
        )


class RetryStrategy:
    """
    Call a function until it succeeds, with the waits for each category of error; the caller waits.

    Makes exactly *max_retries* retries with the waits that follow from *base_delay* (see `exactly`); a wait is longer
    only if a server asks for that.
    """

    def __init__(
        self,
        max_retries: int = 3,
        base_delay: float = 1.0,
        *,
        clock: Clock | None = None,
        classify: Callable[[Exception, str], WorkflowError] = ErrorClassifier.classify,
        clean_up: Callable[[WorkflowError], None] | None = None,
        deadline: datetime | None = None,
    ) -> None:
        if not 0 <= max_retries < 100:
            raise UsageError(f"max_retries is {max_retries}: give a number from 0 to 99")
        _check("base_delay", base_delay, 0.0, DAY)
        _refuse_async(clean_up=clean_up)
        self.max_retries = max_retries  #: attempts after the first one
        self.base_delay = base_delay
        self._policies = exactly(base_delay)
        self._clock = clock
        self._classify = classify
        self._clean_up = clean_up
        self._deadline = deadline

    def execute_with_retry(
        self, func: Callable[_Params, _Result], phase: str, /, *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Result:
        """
        Return the result of *func* for the arguments after *phase*; raise a WorkflowError caused by its last error.

        *func* and *phase* are positional, so that *func* may have its own `phase`. Raises UsageError for an async
        *func*, before calling it.
        """
        _refuse_async(func=func)
        loop = _Loop(
            phase=phase,
            max_attempts=self.max_retries + 1,
            policies=self._policies,
            clock=self._clock or default_home.get().clock,
            classify=self._classify,
            clean_up=self._clean_up,
            deadline=self._deadline,
            raises_classified=True,
        )
        return loop.run(lambda: func(*args, **kwargs), name_of(func)).value
