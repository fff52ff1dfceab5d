"""
Try again what failed, for callers who wait for it; and the door to `decide`, for those who do not.

`decide` is the only decision about retries. `RetryManager` and `RetryStrategy` ask it and wait by the clock they were
given; the engine asks it and returns a time instead. Nobody here stops a KeyboardInterrupt, and no hook of the caller
takes the place of the error that really happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from adws.adw_modules import ambient
from adws.adw_modules.error_handler import ErrorClassifier, WorkflowError, facts_of
from adws.adw_modules.errors import RetriesExhausted, UsageError
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.retry_decision import AskPerson, GiveUp, Retry, RetryDecision, decide, first_line
from adws.adw_modules.retry_policy import (
    Backoff,
    BackoffStrategy,
    RetryPolicies,
    RetryPolicy,
    policies_of,
    same_for_all,
    scaled,
)

__all__ = [
    "AskPerson",
    "Backoff",
    "BackoffStrategy",
    "CheckpointSource",
    "GiveUp",
    "Retry",
    "RetryDecision",
    "RetryManager",
    "RetryPolicies",
    "RetryPolicy",
    "RetryStrategy",
    "decide",
    "policies_of",
    "same_for_all",
]

_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")


class CheckpointSource(Protocol):
    """Where the last checkpoint of a task is kept."""

    def load_checkpoint(self, task_id: str) -> JsonObject | None:
        """Return the last checkpoint, None when there is none."""


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """What the attempts of one call have in common."""

    phase: str
    max_attempts: int
    policies: RetryPolicies
    clock: Clock
    classify: Callable[[Exception, str], WorkflowError]
    clean_up: Callable[[WorkflowError], None] | None
    deadline: datetime | None
    on_retry: Callable[[int, Exception], None] | None = None
    raises_classified: bool = False

    def run(self, call: Callable[[], _Result], attempts_used: int = 0) -> _Result:
        """Return what *call* returns, in one attempt or several; raise the last error, which tells of the others."""
        earlier: list[str] = []
        while True:
            attempts_used += 1
            try:
                return call()
            except Exception as exc:
                failure = self.classify(exc, self.phase)
                retry = self._next(exc, failure, attempts_used, earlier)
                if retry is None and self.raises_classified and failure is not exc:
                    raise failure from exc
                if retry is None:
                    raise
            self.clock.sleep(retry.delay_seconds)

    def _next(self, exc: Exception, failure: WorkflowError, attempt: int, earlier: list[str]) -> Retry | None:
        """Prepare the next attempt; None, with the reason noted on the error that is raised, when there is none."""
        decision = decide(
            facts_of(failure),
            attempts_used=attempt,
            max_attempts=self.max_attempts,
            policy=self.policies,
            now=self.clock.now(),
            deadline=self.deadline,
            random=self.clock.random(),
        )
        trouble = self._clean_up(failure) if isinstance(decision, Retry) and decision.needs_cleanup else ""
        if isinstance(decision, Retry) and not trouble:
            earlier.append(f"attempt {attempt} failed: {type(exc).__name__}: {first_line(failure.message)}")
            self._tell(exc, attempt, earlier)
            return decision

        reason = trouble if isinstance(decision, Retry) else decision.reason
        for note in (*earlier, f"not tried again: {reason}"):
            _note(failure if self.raises_classified else exc, note)
        return None

    def _clean_up(self, failure: WorkflowError) -> str:
        """Free what is used up; return what went wrong with that, "" when nothing did."""
        if self.clean_up is None:
            return ""
        try:
            self.clean_up(failure)
        except Exception as exc:  # noqa: BLE001 - the caller's hook may raise anything; the real error must survive it
            return f"the clean-up failed: {type(exc).__name__}: {exc}"

        return ""

    def _tell(self, exc: Exception, attempt: int, earlier: list[str]) -> None:
        """Tell the caller of the retry; a callback that raises is noted on the error and stops nothing."""
        if self.on_retry is None:
            return
        try:
            self.on_retry(attempt, exc)
        except Exception as raised:  # noqa: BLE001 - the caller's hook may raise anything; the real error must survive it
            note = f"on_retry failed after attempt {attempt}: {type(raised).__name__}: {raised}"
            _note(exc, note)
            earlier.append(note)


def _note(error: Exception, note: str) -> None:
    """Add *note* once: a caller may raise the same error object in every attempt."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


class RetryManager:
    """Run a task until it works or its policy is used up; the caller waits."""

    def __init__(
        self,
        checkpoint_manager: CheckpointSource | None = None,
        *,
        clock: Clock | None = None,
        classify: Callable[[Exception, str], WorkflowError] = ErrorClassifier.classify,
        clean_up: Callable[[WorkflowError], None] | None = None,
    ) -> None:
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
        Return what *execute_fn* returns; raise its last error, with the earlier ones as notes.

        With a checkpoint manager it is called with the last checkpoint, read again for each attempt, else with nothing.
        *on_retry* gets the task, the number of the attempt that failed (from 1) and its error, before the wait.
        *attempts_used* are those of earlier processes. Configuration and fatal errors are raised at once.
        """
        if attempts_used >= policy.max_attempts:
            raise RetriesExhausted(attempts_used, policy.max_attempts)

        def attempt() -> _Result:
            if self._checkpoints is None:
                return execute_fn()
            return execute_fn(self._checkpoints.load_checkpoint(task_id))

        loop = _Loop(
            phase=task_id,
            max_attempts=policy.max_attempts,
            policies=same_for_all(policy),
            clock=self._clock or ambient.parts().clock,
            classify=self._classify,
            clean_up=self._clean_up,
            deadline=deadline,
            on_retry=None if on_retry is None else partial(on_retry, task_id),
        )
        return loop.run(attempt, attempts_used)


class RetryStrategy:
    """Call a function until it works, with the waits that each category of error asks for; the caller waits."""

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
        self.max_retries = max_retries  #: attempts after the first one
        self.base_delay = base_delay
        self._policies = scaled(base_delay)
        self._clock = clock
        self._classify = classify
        self._clean_up = clean_up
        self._deadline = deadline

    def execute_with_retry(
        self, func: Callable[_Params, _Result], phase: str, /, *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Result:
        """
        Return what *func* returns for the arguments after *phase*; raise a WorkflowError caused by its last error.

        *func* and *phase* are given by position, so that *func* may have a `phase` of its own.
        """
        loop = _Loop(
            phase=phase,
            max_attempts=self.max_retries + 1,
            policies=self._policies,
            clock=self._clock or ambient.parts().clock,
            classify=self._classify,
            clean_up=self._clean_up,
            deadline=self._deadline,
            raises_classified=True,
        )
        return loop.run(lambda: func(*args, **kwargs))
