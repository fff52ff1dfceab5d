"""
Leases of workflows, as columns of the workflow's own row.

A takeover raises the fence in the statement that writes the new owner, so the fence only grows and two takeovers cannot
both succeed. Renewing and releasing name owner and fence, so a former owner can change nothing. The methods that take a
session are for transactions in which a run, a document or a quota changes with the lease. They lock the workflow's row
before that of its run, so that two such transactions never deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Params, Row, Session
from adws.adw_modules.errors import DatabaseError, LeaseLost, StateNotFound
from adws.adw_modules.identifiers import JsonObject, check_adw_id
from adws.adw_modules.interfaces import Clock, Lease, LeaseBusy, LeaseRow, LeaseTaken, OwnerRecord, Request
from adws.adw_modules.queue.store import RunStore

if TYPE_CHECKING:
    from adws.adw_modules.queue.model import Run, RunEnd


#: Number of rows read by one query.
_READ_AT_ONCE = 200
#: The columns that `_row` reads.
_SHOWN = "fence, owner, CASE WHEN lease_boot = :boot THEN lease_until ELSE 0 END - {now}, taken_at"


class Leases:
    """Leases in the database, one at a time or many in one transaction."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self.database = database
        self.runs = RunStore(database, clock=clock)  #: the runs whose claims change together with leases
        self._clock = clock
        # Rendered once, because every run uses these.
        skip_locked = f"{database.row_lock_sql} SKIP LOCKED" if database.row_lock_sql else ""
        self._read_to_take = database.render(
            f"SELECT {_SHOWN} FROM workflow_states WHERE adw_id = :adw_id {{row_lock}}"
        )
        self._take = database.render("""
            UPDATE workflow_states
            SET owner = :owner, fence = fence + 1, lease_until = {now} + :ttl, lease_boot = :boot, taken_at = :taken_at
            WHERE adw_id = :adw_id
              AND (owner = '' OR lease_boot <> :boot OR lease_until <= {now} OR fence = :dead_fence)
            RETURNING fence
        """)
        self._take_free = database.render(f"""
            UPDATE workflow_states
            SET owner = :owner, fence = fence + 1, lease_until = {{now}} + :ttl, lease_boot = :boot,
                taken_at = :taken_at
            WHERE adw_id = (
                SELECT adw_id FROM workflow_states WHERE adw_id = :adw_id AND owner = '' {skip_locked}
            )
            RETURNING fence, workflow, state
        """)
        self._renew = database.render("""
            UPDATE workflow_states SET lease_until = {now} + :ttl
            WHERE adw_id = :adw_id AND owner = :owner AND fence = :fence AND lease_boot = :boot AND lease_until > {now}
        """)

    # --- taking ------------------------------------------------------------------------------------------------

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
        Take a free or expired lease, or the one with *dead_fence*, whose owner is proven dead; begin *run* as well.

        Raises StateNotFound or RunLost; nothing is taken then.
        """
        check_adw_id(adw_id)

        def work(session: Session) -> LeaseTaken | LeaseBusy:
            answer = self.take_in(session, adw_id, owner, ttl_seconds=ttl_seconds, dead_fence=dead_fence)
            if answer is None:
                raise StateNotFound(adw_id)
            if run is None or isinstance(answer, LeaseBusy):
                return answer
            return replace(answer, run=self.runs.begin_in(session, run))

        return self.database.transact(work)

    def take_all(
        self, dead_fences: Mapping[str, int | None], owner: OwnerRecord, *, ttl_seconds: float
    ) -> dict[str, LeaseTaken | LeaseBusy]:
        """Take many leases in one transaction; return workflow -> result as of `take`, without missing workflows."""

        def work(session: Session) -> dict[str, LeaseTaken | LeaseBusy]:
            # In a fixed order, so that two processes that take many leases never deadlock.
            answers = {
                adw_id: self.take_in(session, adw_id, owner, ttl_seconds=ttl_seconds, dead_fence=dead_fences[adw_id])
                for adw_id in sorted(dead_fences)
            }
            return {adw_id: answer for adw_id, answer in answers.items() if answer is not None}

        return self.database.transact(work)

    def take_in(
        self, session: Session, adw_id: str, owner: OwnerRecord, *, ttl_seconds: float, dead_fence: int | None = None
    ) -> LeaseTaken | LeaseBusy | None:
        """Take the lease inside the transaction *session*, like `take`; return None if there is no such workflow."""
        params = self._taking(adw_id, owner, ttl_seconds)
        params["dead_fence"] = -1 if dead_fence is None else dead_fence
        before = session.one(self._read_to_take, params)
        if before is None:
            return None
        taken = session.one(self._take, params)
        if taken is None:
            return LeaseBusy(row=_row(adw_id, before))
        former_fence, former = before[0], before[1]

        return LeaseTaken(
            lease=Lease(adw_id=adw_id, owner=owner, fence=taken[0]),
            previous=OwnerRecord.from_text(former),
            # Set whenever there was an owner, even if its record cannot be read.
            previous_fence=former_fence if former else 0,
        )

    def take_free_in(
        self, session: Session, adw_id: str, owner: OwnerRecord, *, ttl_seconds: float
    ) -> tuple[Lease, str, str] | None:
        """
        Take the lease inside the transaction *session* if its last owner released it; never wait for another one.

        Returns the lease, the name of the definition and the state of the workflow, or None if the lease was not free.
        """
        row = session.one(self._take_free, self._taking(adw_id, owner, ttl_seconds))

        return None if row is None else (Lease(adw_id=adw_id, owner=owner, fence=row[0]), row[1], row[2])

    def _taking(self, adw_id: str, owner: OwnerRecord, ttl_seconds: float) -> dict[str, object]:
        return {
            **self.database.lease_clock(),
            "adw_id": check_adw_id(adw_id),
            "owner": owner.to_text(),
            "ttl": ttl_seconds,
            "taken_at": timestamps.to_text(self._clock.now()),
        }

    # --- renewing ----------------------------------------------------------------------------------------------

    def renew(self, lease: Lease, *, ttl_seconds: float, run: Run | None = None) -> Run | None:
        """
        Extend the lease and the claim of *run*, and return the renewed run.

        Raises LeaseLost if the lease is no longer ours or has expired, and RunLost if the run is not ours.
        """

        def work(session: Session) -> tuple[bool, Run | None]:
            is_ours = self.renew_in(session, lease, ttl_seconds=ttl_seconds)
            if run is None or not is_ours:
                return is_ours, None
            return is_ours, self.runs.renew_in(session, run, ttl_seconds=ttl_seconds)

        is_ours, renewed = self.database.transact(work)
        if is_ours:
            return renewed
        content = self.read(lease.adw_id)
        is_same = content is not None and content.fence == lease.fence and content.owner == lease.owner
        why = "ran out" if is_same else "was taken over"

        raise LeaseLost(f"the lease of workflow {lease.adw_id} {why}: stop working on it")

    def renew_in(self, session: Session, lease: Lease, *, ttl_seconds: float) -> bool:
        """Extend the lease inside the transaction *session*; return False if it is not ours or has expired."""
        params = {**self.database.lease_clock(), **_ours(lease), "ttl": ttl_seconds}

        return session.run(self._renew, params) == 1

    # --- releasing ---------------------------------------------------------------------------------------------

    def release(self, lease: Lease) -> bool:
        """
        Release the lease; return False if it was no longer ours.

        Does not wait for the disk: if a power cut restores the lease, it is one of an earlier boot, which has expired.
        """
        return self.database.unsynced.transact(lambda session: self.release_in(session, lease))

    def release_in(
        self, session: Session, lease: Lease, *, free_issue: int | None = None, frees_quota: bool = False
    ) -> bool:
        """Release the lease inside the transaction *session*; also free the workflow's issue and quota reservation."""
        params = {**_ours(lease), "issue_number": free_issue}
        released = session.run(
            "UPDATE workflow_states SET owner = '', lease_until = 0, lease_boot = '', taken_at = ''"
            " WHERE adw_id = :adw_id AND owner = :owner AND fence = :fence",
            params,
        )
        if free_issue is not None:  # whatever the spelling of its repository
            session.run("DELETE FROM adw_locks WHERE issue_number = :issue_number AND adw_id = :adw_id", params)
        if frees_quota:
            session.run("DELETE FROM quota_reservations WHERE adw_id = :adw_id", params)

        return released == 1

    def end_run(
        self, lease: Lease, run: Run, end: RunEnd, *, free_issue: int | None = None, frees_quota: bool = False
    ) -> Run:
        """
        End *run* and release the lease in one transaction; also free the issue and the quota reservation.

        Raises RunLost; nothing is changed then.
        """

        def work(session: Session) -> Run:
            self.release_in(session, lease, free_issue=free_issue, frees_quota=frees_quota)
            return self.runs.end_in(session, run, end)

        return self.database.transact(work)

    # --- reading -----------------------------------------------------------------------------------------------

    def read_all(self, adw_ids: Sequence[str]) -> dict[str, LeaseRow]:
        """Return the lease rows of the workflows in *adw_ids* that exist."""
        result: dict[str, LeaseRow] = {}
        clock = self.database.lease_clock()
        with self.database.read() as session:
            for first in range(0, len(adw_ids), _READ_AT_ONCE):
                wanted = {f"id{number}": adw_id for number, adw_id in enumerate(adw_ids[first : first + _READ_AT_ONCE])}
                names = ", ".join(f":{name}" for name in wanted)
                sql = self.database.render(f"SELECT adw_id, {_SHOWN} FROM workflow_states WHERE adw_id IN ({names})")
                rows = session.all(sql, {**clock, **wanted})
                result.update((row[0], _row(row[0], row[1:])) for row in rows)

        return result

    def read(self, adw_id: str) -> LeaseRow | None:
        """Return the current lease row, or None."""
        return self.read_all([check_adw_id(adw_id)]).get(adw_id)


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


# --- requests to the live owner of a workflow, each handled once -----------------------------------------------
#
# Only the owner changes a workflow; everyone else leaves a request, for which the owner polls at least once a second.


_REQUEST = "request_id, adw_id, kind, payload, asked_by, created_at, handled_at, outcome"


class Requests:
    """Requests in the database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def ask(self, adw_id: str, kind: str, *, payload: JsonObject | None = None, asked_by: str = "") -> Request:
        """Store a request durably and return it."""
        params = {
            "adw_id": check_adw_id(adw_id),
            "kind": kind,
            "payload": self._database.clean_json(
                connection.json_text(payload or {}, f"the payload of a {kind} request")
            ),
            "asked_by": connection.plain(self._database.clean(asked_by)),
            "created_at": timestamps.to_text(self._clock.now()),
        }

        def work(session: Session) -> Request:
            row = session.one(
                "INSERT INTO requests (adw_id, kind, payload, asked_by, created_at)"
                f" VALUES (:adw_id, :kind, :payload, :asked_by, :created_at) RETURNING {_REQUEST}",
                params,
            )
            if row is None:
                raise DatabaseError(f"the request to {adw_id} was not stored: try again")
            return connection.to_request(row)

        return self._database.transact(work)

    def open_for(self, *adw_ids: str) -> tuple[Request, ...]:
        """Return the unhandled requests to these workflows, oldest first."""
        with self._database.read() as session:
            return self.open_in(session, *adw_ids)

    def open_in(self, session: Session, *adw_ids: str) -> tuple[Request, ...]:
        """Return the unhandled requests inside the transaction *session*."""
        params = {f"id{number}": check_adw_id(adw_id) for number, adw_id in enumerate(adw_ids)}
        names = ", ".join(f":{name}" for name in params)
        rows = session.all(
            f"SELECT {_REQUEST} FROM requests WHERE adw_id IN ({names}) AND handled_at IS NULL ORDER BY request_id",
            params,
        )

        return tuple(map(connection.to_request, rows))

    def get(self, request_id: int) -> Request | None:
        """Return a request, handled or not, or None."""
        with self._database.read() as session:
            row = session.one(
                f"SELECT {_REQUEST} FROM requests WHERE request_id = :request_id", {"request_id": request_id}
            )

        return connection.to_request(row) if row else None

    def handled(self, request_id: int, outcome: str) -> bool:
        """Mark a request as handled; return False if it already was, or does not exist."""
        sql = """
            UPDATE requests SET handled_at = :handled_at, outcome = :outcome
            WHERE request_id = :request_id AND handled_at IS NULL
        """
        params = {
            "request_id": request_id,
            "handled_at": timestamps.to_text(self._clock.now()),
            "outcome": connection.plain(self._database.clean(outcome)),
        }

        return self._database.transact(lambda session: session.run(sql, params)) == 1
