"""
Claiming work: a run, its workflow's lease and its place in the quotas, in one transaction.

The executor handles what could not be taken with the run: a lease that is live or was not released (a takeover has
an order of its own, `ownership.own`), a workflow the database does not know, or a quota that is used up.
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

#: Kinds of runs that do not continue a workflow: claiming one takes no lease.
ERRAND_KINDS = WITHOUT_WORKFLOW | {ROLLBACK, ITERATION}
_ACTIVE = frozenset(state.value for state in ACTIVE_STATES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A claimed run, and what was taken together with it."""

    run: Run
    owned: OwnedWorkflow | None = None  #: its workflow, with the run begun; None: not taken yet, if the run needs it
    cost: tuple[float, float | None] | None = None  #: spent and cap when its place in the quotas was reserved
    requests: tuple[Request, ...] = ()  #: unanswered requests to the owner of the workflow

    def has_quota(self, document: WorkflowDocument) -> bool:
        """Return whether the run has a place in the quotas that was reserved at the current cost of *document*."""
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
        """Claim and return the next due run (or *run_id*, if it is still pending), or None if *terms* allow none."""
        home = self._home
        runs, ownership = home.runs, home.ownership
        if not runs.may_claim(owner, run_id=run_id, only_deliveries=only_deliveries, terms=terms):
            return None
        # Measured before the transaction, which blocks every other writer.
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
                # The executor reports a refusal, after it has answered the open requests.
                with suppress(QuotaExceeded):
                    cost = home.quotas.reserve_in(session, run.adw_id, workflow)

            return Claim(run=run, owned=owned, cost=cost, requests=requests)

        return home.database.transact(claim)
