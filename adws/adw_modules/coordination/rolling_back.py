"""
Rolling back a workflow that somebody may be working on.

While a lease is live only its owner writes: he is asked to stop, and the workflow is rolled back when it is free. A
request that its owner never saw is answered by the rollback itself.
"""

from __future__ import annotations

from collections.abc import Callable

from adws.adw_modules.errors import WorkflowBusy
from adws.adw_modules.interfaces import Clock, Request, Requests
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.rollback import RollbackReport, Rollbacks
from adws.adw_modules.rollback_rules import Wishes

#: Seconds between two looks whether the owner has let go.
LOOK_SECONDS = 0.2


class RollingBack:
    """Asks a live owner to stop, then rolls back."""

    def __init__(self, rollbacks: Rollbacks, *, requests: Requests, clock: Clock) -> None:
        self._rollbacks = rollbacks
        self._requests = requests
        self._clock = clock

    def roll_back(
        self,
        adw_id: str,
        wishes: Wishes,
        *,
        by: str = "",
        wait_seconds: float = 30.0,
        say: Callable[[str], None] = lambda _line: None,
    ) -> RollbackReport:
        """Roll the workflow back; raise WorkflowBusy when its owner has not let go in time: the request is kept."""
        until = self._clock.monotonic() + wait_seconds
        asked: Request | None = None
        while True:
            try:
                return self._rollbacks.rollback(adw_id, wishes)
            except WorkflowBusy as exc:
                if asked is None:
                    payload: JsonObject = {"reason": wishes.reason, "is_urgent": wishes.force}
                    asked = self._requests.ask(adw_id, "rollback", payload=payload, asked_by=by)
                    say(f"asked {exc.owner} to stop")
                if self._clock.monotonic() >= until:
                    raise
            self._clock.sleep(LOOK_SECONDS)
