"""
What is tried again later, in one list: phases that wait for their next attempt, and calls of steps. And giving one up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules import retry_rules
from adws.adw_modules.errors import AdwError, UsageError
from adws.adw_modules.retry_rules import WaitingRetry
from adws.adw_modules.runs import RunState

if TYPE_CHECKING:
    from adws.adw_modules.coordination.control import Control
    from adws.adw_modules.executions import Executions
    from adws.adw_modules.interfaces_engine import RunQueue
    from adws.adw_modules.json_value import JsonValue

#: Runs that are looked through at a time.
_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryParts:
    """What the desk works with; looking needs no control."""

    executions: Executions
    runs: RunQueue
    peek: Callable[[str], Mapping[str, JsonValue]]
    control: Callable[[], Control]


class RetryDesk:
    """Shows what is tried again later, and gives it up."""

    def __init__(self, parts: RetryParts) -> None:
        self._parts = parts

    def all(self, *, adw_id: str = "", limit: int = 1000) -> tuple[WaitingRetry, ...]:
        """Return what waits for its time, the next one first."""
        calls = map(retry_rules.of_call, self._parts.executions.retries(adw_id=adw_id, limit=limit))
        found = [*self._phases(adw_id), *calls]

        return tuple(sorted(found, key=lambda retry: (retry.next_at, retry.retry_id, retry.index or 0))[:limit])

    def cancel(self, retry_id: str, *, by: str, index: int | None = None, reason: str = "") -> str:
        """
        Give up what waits under *retry_id*, and return what was done; raise UsageError when nothing waits there.

        Of an execution: the call of one iteration, or all that has not ended. Of a workflow: its phase fails.
        """
        executions = self._parts.executions
        if executions.get(retry_id) is None:
            if index is not None:
                raise UsageError(
                    f"there is no execution {retry_id}, so it has no iteration {index}: adw retries shows them"
                )
            return self._parts.control().cancel_retry(retry_id, by=by, reason=reason).message
        why = f"cancelled by {by}" + (f": {reason}" if reason else "")
        if not executions.cancel(retry_id, reason=why, index=index):
            what = "is over" if index is None else f"has no iteration {index} that waits for a call"
            raise UsageError(f"execution {retry_id} {what}: adw retries shows what waits")

        return f"execution {retry_id} is {why}" if index is None else f"iteration {index} of {retry_id} is {why}"

    def _phases(self, adw_id: str) -> list[WaitingRetry]:
        ids = [adw_id] if adw_id else self._waiting_workflows()
        found = []
        for one in ids:
            try:
                retry = retry_rules.of_phase(self._parts.peek(one))
            except AdwError:
                if adw_id:
                    raise
                continue  # its run waits, and nobody can read what for; `adw db check` names it
            if retry is not None:
                found.append(retry)

        return found

    def _waiting_workflows(self) -> list[str]:
        """Return the workflows whose run waits for a moment."""
        found: dict[str, None] = {}
        before: int | None = None
        while page := self._parts.runs.page(states=(RunState.PENDING,), limit=_AT_ONCE, before=before):
            found.update(dict.fromkeys(run.adw_id for run in page if run.not_before and not run.slot))
            before = page[-1].run_id

        return list(found)
