"""
Leases of workflows, as columns of the workflow's own row.

A takeover raises the fence in the same statement that writes the new owner, so the fence only grows and two takers
cannot both win. Renewing and releasing name owner and fence: who was taken over changes nothing any more.
"""

from __future__ import annotations

from adws.adw_modules import timestamps
from adws.adw_modules.db import statements
from adws.adw_modules.db.run_queue import DatabaseRunQueue
from adws.adw_modules.db.session import Database, Params, Row, Session
from adws.adw_modules.errors import LeaseLost, StateNotFound
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import Clock, Lease, LeaseBusy, LeaseRow, LeaseTaken
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.runs import Run, RunEnd


class DatabaseLeases:
    """A `LeaseBook` in the database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._runs = DatabaseRunQueue(database, clock=clock)
        self._read = database.spell(statements.LEASE_READ)
        self._read_to_take = database.spell(statements.LEASE_READ_TO_TAKE)
        self._take = database.spell(statements.LEASE_TAKE)
        self._renew = database.spell(statements.LEASE_RENEW)

    def take(
        self,
        adw_id: str,
        owner: OwnerRecord,
        *,
        ttl_seconds: float,
        dead_fence: int | None = None,
        run: Run | None = None,
    ) -> LeaseTaken | LeaseBusy:
        """
        Take a free or ended lease, or the one with *dead_fence* whose owner is proven dead; begin *run* with that.

        Raises StateNotFound, or RunLost, and then nothing is taken.
        """
        begin = self._runs.beginning(run) if run is not None else None
        params = {
            **self._database.lease_clock(),
            "adw_id": check_adw_id(adw_id),
            "owner": owner.to_text(),
            "ttl": ttl_seconds,
            "taken_at": timestamps.to_text(self._clock.now()),
            "dead_fence": -1 if dead_fence is None else dead_fence,
        }

        def work(session: Session) -> LeaseTaken | LeaseBusy:
            before = session.one(self._read_to_take, params)
            if before is None:
                raise StateNotFound(adw_id)
            taken = session.one(self._take, params)
            if taken is None:
                return LeaseBusy(row=_row(adw_id, before))
            former_fence, former = before[0], before[1]
            return LeaseTaken(
                lease=Lease(adw_id=adw_id, owner=owner, fence=taken[0]),
                previous=OwnerRecord.from_text(former),
                # Set whenever somebody had it, also when the record of that somebody cannot be read.
                previous_fence=former_fence if former else 0,
                run=begin(session) if begin is not None else None,
            )

        return self._database.transact(work)

    def renew(self, lease: Lease, *, ttl_seconds: float) -> None:
        """Push the end out; raise LeaseLost when it is no longer ours or has ended."""
        params = {**self._database.lease_clock(), **_ours(lease), "ttl": ttl_seconds}
        if self._database.transact(lambda session: session.run(self._renew, params)) == 1:
            return
        found = self.read(lease.adw_id)
        is_ours = found is not None and found.fence == lease.fence and found.owner == lease.owner
        why = "ran out" if is_ours else "was taken over"

        raise LeaseLost(f"the lease of workflow {lease.adw_id} {why}: stop working on it")

    def release(self, lease: Lease) -> bool:
        """Give the lease back; False when it was not ours any more."""
        params = _ours(lease)

        return self._database.transact(lambda session: session.run(statements.LEASE_RELEASE, params)) == 1

    def end_run(self, lease: Lease, run: Run, end: RunEnd, *, free_issue: int | None = None) -> Run:
        """
        End *run* and give the lease back, in one transaction, with *free_issue* the issue of the workflow too.

        Raises RunLost, and then nothing of it is done.
        """
        params = {**_ours(lease), "issue_number": free_issue}
        end_it = self._runs.ending(run, end)

        def work(session: Session) -> Run:
            # The workflow first, then its run: as when they are taken, so that two never wait for each other.
            session.run(statements.LEASE_RELEASE, params)
            if free_issue is not None:
                session.run(statements.LOCK_END, params)
            return end_it(session)

        return self._database.transact(work)

    def read(self, adw_id: str) -> LeaseRow | None:
        """Return the row as it stands."""
        params = {**self._database.lease_clock(), "adw_id": check_adw_id(adw_id)}
        with self._database.read() as session:
            row = session.one(self._read, params)

        return None if row is None else _row(adw_id, row)


def _ours(lease: Lease) -> Params:
    return {"adw_id": lease.adw_id, "owner": lease.owner.to_text(), "fence": lease.fence}


def _row(adw_id: str, row: Row) -> LeaseRow:
    fence, owner, seconds_left, taken_at = row

    return LeaseRow(
        adw_id=adw_id,
        fence=fence,
        owner=OwnerRecord.from_text(owner),
        seconds_left=float(seconds_left) if owner else 0.0,
        taken_at=taken_at,
    )
