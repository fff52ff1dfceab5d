"""
How long to wait before the next attempt, and what is worth one.

Numbers only: no clock, no sleep, no dice. Whoever wants jitter passes a random number in. Every wait is within its cap,
jitter included, and no attempt is too far out to be computed.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import Enum

from adws.adw_modules.error_classes import RETRYABLE, ErrorCategory
from adws.adw_modules.errors import ConfigError, UsageError
from adws.adw_modules.workflow import RetrySpec

#: How far jitter takes a wait to either side, as a part of it.
JITTER = 0.25

#: Attempts are counted up to here for a wait: 10.0 ** 300 is a float, and far beyond every cap.
_MAX_EXPONENT = 300
#: The longest cap of a policy is its shortest base fewer than a million times.
_MAX_FACTOR = 1_000_000

HOUR = 3600.0
DAY = 86_400.0
#: The longest wait that a definition of a workflow may ask for, some thirty years.
MAX_SECONDS = 1e9


class BackoffStrategy(Enum):
    """How waits grow."""

    FIXED = "fixed"  #: always the base
    LINEAR = "linear"  #: the base, twice the base, three times the base ...
    EXPONENTIAL = "exponential"  #: the base, multiplied again by the factor each time


def _check(name: str, value: float, lowest: float, highest: float) -> None:
    # NaN is not within any bounds.
    if not lowest <= value <= highest:
        raise ConfigError(f"{name} is {value}: give a number from {lowest} to {highest}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """A row of waits, in seconds."""

    base_seconds: float = 1.0  #: the first wait
    max_seconds: float = 300.0  #: no wait is longer, jitter included
    strategy: BackoffStrategy = BackoffStrategy.EXPONENTIAL
    factor: float = 2.0  #: 1 to 10, for the exponential strategy
    jitter: bool = True  #: a quarter more or less, within the cap

    def __post_init__(self) -> None:
        """Raise ConfigError for a number out of its bounds."""
        _check("base_seconds", self.base_seconds, 0.0, MAX_SECONDS)
        _check("max_seconds", self.max_seconds, self.base_seconds, MAX_SECONDS)
        _check("backoff_factor", self.factor, 1.0, 10.0)

    def delay(self, attempt: int, random: float | None = None) -> float:
        """
        Return the seconds to wait after attempt number *attempt*, counting from 0.

        *random*, from 0.0 up to 1.0, places the wait within its jitter; without it there is none. Raises UsageError,
        a ValueError, for an attempt before the first one.
        """
        if attempt < 0:
            raise UsageError(f"there is no attempt {attempt}: they count from 0")
        delay = min(self._grown(attempt), self.max_seconds)
        if not self.jitter or random is None:
            return delay

        # Between the two ends instead of clamped at the upper one: many clients at the cap must not meet there.
        shortest, longest = delay * (1 - JITTER), min(delay * (1 + JITTER), self.max_seconds)
        return min(shortest + (longest - shortest) * random, longest)

    def _grown(self, attempt: int) -> float:
        if self.strategy is BackoffStrategy.FIXED:
            return self.base_seconds
        if self.strategy is BackoffStrategy.LINEAR:
            return self.base_seconds * (min(attempt, _MAX_FACTOR) + 1)

        # Cap the exponent, not just the product: 2.0 ** 1024 raises OverflowError.
        return self.base_seconds * float(self.factor) ** min(attempt, _MAX_EXPONENT)


@dataclass(frozen=True)
class RetryPolicy:
    """How often, and after which waits, something is tried again."""

    max_attempts: int = 3  #: 1 to 100; 1: no second try
    backoff_strategy: BackoffStrategy = BackoffStrategy.EXPONENTIAL
    backoff_base_seconds: float = 1.0  #: 0.1 to 3600
    backoff_max_seconds: float = 300.0  #: from the base up to 86400
    jitter: bool = True  #: a quarter more or less, within the cap
    backoff_factor: float = 2.0  #: 1 to 10, for the exponential strategy

    def __post_init__(self) -> None:
        """Raise ConfigError for a number out of its bounds."""
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
        """Return the seconds to wait after attempt number *attempt*, counting from 0; see `Backoff.delay`."""
        return self.backoff.delay(attempt, random)


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicies:
    """The waits of each category that is tried again; how often is said by whoever counts the attempts."""

    transient: Backoff = Backoff(max_seconds=60.0)
    rate_limit: Backoff = Backoff(factor=3.0)
    resource: Backoff = Backoff(base_seconds=2.0)
    quota: Backoff = Backoff(base_seconds=HOUR / 2, max_seconds=HOUR)  #: for a quota whose reset is not known
    retried: AbstractSet[ErrorCategory] = field(default=RETRYABLE)  #: configuration and fatal errors never are
    max_wait_seconds: float = HOUR  #: the longest wait a server may ask for
    max_quota_wait_seconds: float = 8 * DAY  #: the same for the reset of a quota
    keeps_class_delay: bool = True  #: wait at least as long as the class of the error asks for
    keeps_class_retries: bool = True  #: retry no more often than helps against that class of error

    def __post_init__(self) -> None:
        """Raise ConfigError when it would retry what trying again cannot help."""
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

    def longest_wait(self, klass: str) -> float:
        """Return the longest wait, in seconds, that a server may ask for."""
        return self.max_quota_wait_seconds if klass == "quota_window" else self.max_wait_seconds


def same_for_all(policy: RetryPolicy) -> RetryPolicies:
    """Return the waits of *policy* for every category: the caller has said how often and how long."""
    return RetryPolicies(
        transient=policy.backoff,
        rate_limit=policy.backoff,
        resource=policy.backoff,
        quota=policy.backoff,
        max_quota_wait_seconds=HOUR,
        keeps_class_delay=False,
        keeps_class_retries=False,
    )


def scaled(base_delay: float) -> RetryPolicies:
    """Return the usual policies with *base_delay* seconds in the place of one."""
    usual = RetryPolicies()

    return replace(
        usual,
        transient=_with_base(usual.transient, base_delay),
        rate_limit=_with_base(usual.rate_limit, base_delay),
        resource=_with_base(usual.resource, base_delay * usual.resource.base_seconds),
    )


def _with_base(usual: Backoff, base: float) -> Backoff:
    return replace(usual, base_seconds=base, max_seconds=max(usual.max_seconds, base))


def policies_of(spec: RetrySpec) -> RetryPolicies:
    """Return the policies of a phase: what *spec* says, and what the category asks for where it says nothing."""
    usual = RetryPolicies()

    return replace(
        usual,
        transient=_changed(usual.transient, spec),
        rate_limit=_changed(usual.rate_limit, spec),
        resource=_changed(usual.resource, spec),
        retried=usual.retried if spec.categories is None else frozenset(map(_category, spec.categories)),
        keeps_class_delay=spec.base_seconds is None,
    )


def _changed(usual: Backoff, spec: RetrySpec) -> Backoff:
    """Return *usual* with what *spec* says; a base above the usual cap, or a cap below the usual base, moves it."""
    base, cap = spec.base_seconds, spec.max_seconds
    if base is None:
        base = usual.base_seconds if cap is None else min(usual.base_seconds, cap)
    if cap is None:
        cap = max(usual.max_seconds, base)
    strategy = usual.strategy if spec.strategy is None else _strategy(spec.strategy)

    return replace(usual, strategy=strategy, base_seconds=base, max_seconds=cap)


def _strategy(name: str) -> BackoffStrategy:
    try:
        return BackoffStrategy(name)
    except ValueError as exc:
        known = ", ".join(member.value for member in BackoffStrategy)
        raise ConfigError(f"there is no backoff strategy {name!r}: use {known}") from exc


def _category(name: str) -> ErrorCategory:
    try:
        return ErrorCategory(name)
    except ValueError as exc:
        known = ", ".join(member.value for member in ErrorCategory if member in RETRYABLE)
        raise ConfigError(f"there is no error category {name!r} that is retried: use {known}") from exc
