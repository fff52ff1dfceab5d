"""
What a failed attempt means: classified by `error_handler`, decided by `retry_handler`, put as the rules of attempts.

The one place where phases meet those two; nothing is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adws.adw_modules.attempt_rules import Trouble
from adws.adw_modules.error_handler import describe
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.phase_choice import limit
from adws.adw_modules.retry_handler import AskPerson, Retry, decide, policies_of
from adws.adw_modules.workflow import PhaseSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, PhaseRecord

#: Characters of a traceback that are kept with an attempt; its end says the most.
MAX_TRACEBACK = 8000


def judge(error: BaseException, phase: PhaseSpec, record: PhaseRecord, *, clock: Clock) -> Trouble:
    """Return why the newest attempt of *record* failed, and when the phase is tried again."""
    facts = describe(error, phase.name)
    same = sum(1 for attempt in record.attempts if _is_same(attempt, record.round, facts.klass))
    decision = decide(
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
    kept = facts.to_json()
    kept["traceback"] = facts.traceback[-MAX_TRACEBACK:]
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


def _is_same(attempt: AttemptRecord, round_number: int, klass: str) -> bool:
    return attempt.round == round_number and (attempt.error or {}).get("klass") == klass
