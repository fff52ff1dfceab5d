"""
What a failed attempt means: classified by `error_handler`, decided by `retry_handler`, put as the rules of attempts.

The one place where phases meet those two; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from adws.adw_modules.attempt_rules import Trouble
from adws.adw_modules.error_handler import describe
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.phase_choice import limit
from adws.adw_modules.retry_handler import AskPerson, Retry, RetryDecision, decide, policies_of
from adws.adw_modules.workflow import PhaseSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, PhaseRecord
    from adws.adw_modules.error_handler import ErrorFacts

#: Characters of a traceback that are kept with an attempt; its end says the most.
MAX_TRACEBACK = 8000


def judge(
    error: BaseException,
    phase: PhaseSpec,
    record: PhaseRecord,
    *,
    clock: Clock,
    redact: Callable[[JsonObject], JsonValue] = lambda kept: kept,
) -> Trouble:
    """
    Return why the newest attempt of *record* failed, and when the phase is tried again.

    *redact* takes secrets out of what is told and kept about it: what a function raises may hold anything.
    """
    facts = describe(error, phase.name)
    decision = _decide(facts, phase, record, clock=clock)
    kept = _kept(facts, redact)
    if isinstance(decision, Retry):
        return Trouble(
            error=kept,
            retry_at=decision.at,
            needs_cleanup=decision.needs_cleanup,
            is_parked=decision.is_parked,
            facts=facts,
        )

    kept["not_retried"] = decision.reason
    if isinstance(decision, AskPerson):
        kept["advice"] = decision.advice

    return Trouble(error=kept, retry_at=None, terminal_reason=decision.terminal_reason, facts=facts)


def _decide(facts: ErrorFacts, phase: PhaseSpec, record: PhaseRecord, *, clock: Clock) -> RetryDecision:
    same = sum(1 for attempt in record.attempts if _is_same(attempt, record.round, facts.klass))

    return decide(
        facts,
        attempts_used=record.attempts_used,
        max_attempts=limit(record),
        policy=policies_of(phase.retry),
        now=clock.now(),
        random=clock.random(),
        # What a person granted is on top of what a class of errors is worth, too.
        class_failures=max(1, same + 1 - record.granted),
        parks=record.parks,
    )


def _kept(facts: ErrorFacts, redact: Callable[[JsonObject], JsonValue]) -> JsonObject:
    """Return what is kept of an error; the whole is redacted before it is cut, so that no part of a secret is left."""
    clean = redact({**facts.to_json(), "traceback": facts.traceback})
    kept: JsonObject = clean if isinstance(clean, dict) else {}
    kept["traceback"] = str(kept.get("traceback") or "")[-MAX_TRACEBACK:]

    return kept


def _is_same(attempt: AttemptRecord, round_number: int, klass: str) -> bool:
    return attempt.round == round_number and (attempt.error or {}).get("klass") == klass
