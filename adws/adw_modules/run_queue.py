"""
The run queue of a home by its short name: recovered when it is made, and then what the database says.

There is no cache: every question is answered by the rows, so what another process did is seen at once, and what waits
is claimed in the order it was asked for, also after a restart.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from adws.adw_modules import ambient
from adws.adw_modules.coordination.recovery import recover_by, recovery_of
from adws.adw_modules.errors import UsageError
from adws.adw_modules.recovery_facts import Mode, RecoveryResult, mode_of
from adws.adw_modules.runs import LIVE_RUNS, NewRun, Run, RunState, Terms

if TYPE_CHECKING:
    from adws.adw_modules.interfaces_engine import RunQueue as Queue
    from adws.adw_modules.owner_record import OwnerRecord

logger = logging.getLogger("adw.run_queue")

#: Runs that are read at a time.
_PAGE = 500


@runtime_checkable
class QueueParts(Protocol):
    """Parts of a home that has a queue (`adws.app.App`)."""

    @property
    def runs(self) -> Queue: ...

    @property
    def terms(self) -> Terms: ...


class RunQueue:
    """The runs of a home."""

    def __init__(self, recovery_mode: str = "stale", *, parts: object | None = None) -> None:
        """
        Open the queue of the home we are in, or of *parts*, and recover it.

        *recovery_mode* is none, stale or all; another one is a UsageError that names these.
        """
        mode = mode_of(recovery_mode)
        found = ambient.parts() if parts is None else parts
        if not isinstance(found, QueueParts):
            raise UsageError("these parts have no run queue: open a home, or pass one that has runs")
        self._parts = found
        self.recovered: RecoveryResult = self._recover(mode)  #: what was done when it was made

    def recover(self, mode: str = "stale") -> RecoveryResult:
        """Recover again, as when it was made."""
        return self._recover(mode_of(mode))

    def _recover(self, mode: Mode) -> RecoveryResult:
        recovery_of(self._parts)  # raises when there is nothing to recover with
        result = recover_by(mode.value, parts=self._parts)
        said = {key: value for key, value in result.to_json().items() if key != "steps"}
        if mode is Mode.NONE:
            logger.info("Run recovery is off", extra={"action": "recovery_off", "would": len(result.steps)})
        elif result.runs:
            logger.warning("Runs were recovered", extra={"action": "runs_recovered", **said})

        return result

    # --- runs --------------------------------------------------------------------------------------------------

    def enqueue(self, run: NewRun) -> Run:
        """Store a run, durable when this returns; the workflow's unfinished run when it has one."""
        return self._parts.runs.enqueue(run)

    def claim(
        self,
        owner: OwnerRecord,
        *,
        ttl_seconds: float = 30.0,
        run_id: int | None = None,
        terms: Terms | None = None,
    ) -> Run | None:
        """
        Take the next run that is due (or *run_id*, if it still waits), None when there is none.

        Without *terms* those of the home hold: what its workers offer, and how many runs may go on at a time.
        """
        return self._parts.runs.claim(
            owner, ttl_seconds=ttl_seconds, run_id=run_id, terms=self._parts.terms if terms is None else terms
        )

    def begin(self, run: Run) -> Run:
        """Say that work on a claimed run has begun; raise RunLost when it is not ours any more."""
        return self._parts.runs.begin(run)

    def finish(self, run: Run, state: RunState, *, reason: str = "") -> Run:
        """End a run of ours; raise RunLost when it is not ours any more."""
        return self._parts.runs.finish(run, state, reason=reason)

    def ask_to_stop(self, run_id: int, *, reason: str = "") -> Run:
        """Stop a run: one that waits at once, one with a worker as soon as that confirms it. Idempotent."""
        return self._parts.runs.ask_to_stop(run_id, reason=reason)

    def get(self, run_id: int) -> Run | None:
        """Return a run."""
        return self._parts.runs.get(run_id)

    def waiting(self) -> tuple[Run, ...]:
        """Return what waits for a worker, in the order it is claimed once it is due."""
        found: list[Run] = []
        before: int | None = None
        while page := self._parts.runs.page(states=(RunState.PENDING,), limit=_PAGE, before=before):
            found.extend(page)
            before = page[-1].run_id

        return tuple(sorted(found, key=lambda run: (-run.priority, run.run_id)))

    def active(self) -> tuple[Run, ...]:
        """Return what a worker has, oldest first."""
        return tuple(run for run in self._parts.runs.live() if run.state in LIVE_RUNS)
