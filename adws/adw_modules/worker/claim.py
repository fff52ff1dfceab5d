"""
Claiming work: the run, the lease of its workflow and its place in the quotas, in one transaction.

What cannot be had with the run is left to the executor: a lease that somebody has or did not release (a
takeover has an order of its own, `ownership.own`), a workflow that the database does not know, a quota that is used up.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules.errors import QuotaExceeded
from adws.adw_modules.interfaces import LeaseTaken, OwnerRecord, Request
from adws.adw_modules.ownership.ownership import OwnedWorkflow
from adws.adw_modules.queue.model import ITERATION, NO_TERMS, ROLLBACK, WITHOUT_WORKFLOW, ClaimPolicy, Run
from adws.adw_modules.state_machine import ACTIVE_STATES

if TYPE_CHECKING:
    from adws.adw_modules.db.connection import Session
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home

#: Kinds of runs that do not continue a workflow: they take no lease with their claim.
ERRAND_KINDS = WITHOUT_WORKFLOW | {ROLLBACK, ITERATION}
_ACTIVE = frozenset(state.value for state in ACTIVE_STATES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A run that we have, and what was taken with it."""

    run: Run
    owned: OwnedWorkflow | None = None  #: its workflow, with the run begun; None: still to be taken, if it needs one
    cost: tuple[float, float | None] | None = None  #: spent and cap that its place in the quotas was decided by
    requests: tuple[Request, ...] = ()  #: to the owner of the workflow, which nobody has answered

    def has_quota(self, document: WorkflowDocument) -> bool:
        """Say whether it has a place in the quotas; one that was decided by an older cost does not count."""
        return self.cost == (document.cost.total_usd, document.max_cost_usd)


class RunClaimer:
    """Claims runs for the workers of a home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def claim(
        self,
        owner: OwnerRecord,
        *,
        ttl_seconds: float,
        run_id: int | None = None,
        only_deliveries: bool = False,
        terms: ClaimPolicy = NO_TERMS,
    ) -> Claim | None:
        """Take the next run that is due (or *run_id*, if it still waits), None when there is none on these terms."""
        home = self._home
        runs, ownership = home.runs, home.ownership
        if not runs.may_claim(owner, run_id=run_id, only_deliveries=only_deliveries, terms=terms):
            return None
        # Measured before the transaction, in which nobody else can write.
        is_full = home.quotas.is_machine_full()
        me, asked_at = ownership.me(), home.clock.boottime()

        def claim(session: Session) -> Claim | None:
            run = runs.claim_in(
                session, owner, ttl_seconds=ttl_seconds, run_id=run_id, only_deliveries=only_deliveries, terms=terms
            )
            if run is None or run.kind in ERRAND_KINDS:
                return None if run is None else Claim(run=run)
            taken = home.leases.take_free_in(session, run.adw_id, me, ttl_seconds=ownership.ttl_seconds)
            if taken is None:
                return Claim(run=run)
            lease, workflow, state = taken
            run = runs.begin_in(session, run)
            owned = OwnedWorkflow(ownership, LeaseTaken(lease=lease, run=run), renewed_at=asked_at)
            requests = home.requests.open_in(session, run.adw_id)
            cost = None
            if not is_full and state in _ACTIVE:
                # A refusal is for the executor, after the requests that wait for its owner were answered.
                with suppress(QuotaExceeded):
                    cost = home.quotas.reserve_in(session, run.adw_id, workflow)

            return Claim(run=run, owned=owned, cost=cost, requests=requests)

        return home.database.transact(claim)
