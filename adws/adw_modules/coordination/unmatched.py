"""
Giving up runs that demand what no worker has.

The rule is `run_waiting.plan_unmatched`. What it names is claimed like any other work, so that only one worker gives
it up, and ends like work that cannot be done: the run FAILED, its workflow parked, both with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from adws.adw_modules.coordination.workflow_work import RunWork
from adws.adw_modules.demands import Offer
from adws.adw_modules.errors import DemandsUnmet
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_coordination import Runners
from adws.adw_modules.interfaces_engine import RunQueue
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.run_waiting import Patience, Unmatched, plan_unmatched
from adws.adw_modules.runs import Terms


@dataclass(frozen=True, kw_only=True, slots=True)
class UnmatchedRuns:
    """Finds runs that nobody can do, and gives them up."""

    runs: RunQueue
    runners: Runners
    work: RunWork
    clock: Clock
    me: OwnerRecord
    patience: Patience
    ttl_seconds: float = 30.0

    def plan(self) -> tuple[Unmatched, ...]:
        """Return what would be given up now."""
        waiting = self.runs.demanding()
        if not waiting:
            return ()

        return plan_unmatched(waiting, self.runners.all(), now=self.clock.now(), patience=self.patience)

    def give_up(self) -> int:
        """Give up what nobody can do, and return how many runs that were."""
        return sum(self._give_up(unmatched) for unmatched in self.plan())

    def _give_up(self, unmatched: Unmatched) -> bool:
        run = unmatched.run
        # As somebody who has what it demands: what it demands now, if that changed, nobody may have waited for.
        terms = Terms(offer=Offer(host=run.demands.host or self.me.host, tags=run.demands.tags))
        claimed = self.runs.claim(self.me, ttl_seconds=self.ttl_seconds, run_id=run.run_id, terms=terms)
        if claimed is None:
            return False  # somebody came after all, or was faster
        self.work.give_up(claimed, DemandsUnmet(unmatched.why))

        return True
