"""
Leases of workflows, as columns of the workflow's own row.

A takeover raises the fence in the same statement that writes the new owner, so the fence only grows and two takers
cannot both win. Renewing and releasing name owner and fence: a former owner changes nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Params, Row, Session
from adws.adw_modules.errors import DatabaseError, LeaseLost, StateNotFound
from adws.adw_modules.identifiers import JsonObject, check_adw_id
from adws.adw_modules.interfaces import (
    Clock,
    HandBack,
    Lease,
    LeaseBusy,
    LeaseRow,
    LeaseTaken,
    LeaseWish,
    OwnerRecord,
    Request,
)
from adws.adw_modules.queue.store import RunStore

if TYPE_CHECKING:
    from adws.adw_modules.queue.model import Run, RunEnd


#: Rows that are read by one query.
_READ_AT_ONCE = 200


class Leases:
    """Leases in the database, one at a time or many in one transaction."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._read = database.render(connection.LEASE_READ)
        self._read_all = database.render(connection.LEASES_READ)
        self._read_to_take = database.render(connection.LEASE_READ_TO_TAKE)
        self._take = database.render(connection.LEASE_TAKE)
        self._renew = database.render(connection.LEASE_RENEW)

    @cached_property
    def _runs(self) -> RunStore:

        return RunStore(self._database, clock=self._clock)

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
        wish = LeaseWish(adw_id=adw_id, dead_fence=dead_fence)
        params = self._wanted(wish, owner, ttl_seconds)

        def work(session: Session) -> LeaseTaken | LeaseBusy:
            answer = self._take_in(session, wish, owner, params)
            if answer is None:
                raise StateNotFound(adw_id)
            if begin is None or isinstance(answer, LeaseBusy):
                return answer
            return replace(answer, run=begin(session))

        return self._database.transact(work)

    def take_all(
        self, wishes: Sequence[LeaseWish], owner: OwnerRecord, *, ttl_seconds: float
    ) -> tuple[LeaseTaken | LeaseBusy | None, ...]:
        """Take each lease as `take` does, in one transaction; None for a workflow that does not exist."""
        # In one order, so that two processes that take many never deadlock.
        asked = sorted(
            (wish.adw_id, number, self._wanted(wish, owner, ttl_seconds)) for number, wish in enumerate(wishes)
        )

        def work(session: Session) -> dict[int, LeaseTaken | LeaseBusy | None]:
            return {number: self._take_in(session, wishes[number], owner, params) for _, number, params in asked}

        result = self._database.transact(work)

        return tuple(result[number] for number in range(len(wishes)))

    def _wanted(self, wish: LeaseWish, owner: OwnerRecord, ttl_seconds: float) -> Params:
        return {
            **self._database.lease_clock(),
            "adw_id": check_adw_id(wish.adw_id),
            "owner": owner.to_text(),
            "ttl": ttl_seconds,
            "taken_at": timestamps.to_text(self._clock.now()),
            "dead_fence": -1 if wish.dead_fence is None else wish.dead_fence,
        }

    def _take_in(
        self, session: Session, wish: LeaseWish, owner: OwnerRecord, params: Params
    ) -> LeaseTaken | LeaseBusy | None:
        before = session.one(self._read_to_take, params)
        if before is None:
            return None
        taken = session.one(self._take, params)
        if taken is None:
            return LeaseBusy(row=_row(wish.adw_id, before))
        former_fence, former = before[0], before[1]

        return LeaseTaken(
            lease=Lease(adw_id=wish.adw_id, owner=owner, fence=taken[0]),
            previous=OwnerRecord.from_text(former),
            # Set whenever it had an owner, also when the record of that owner cannot be read.
            previous_fence=former_fence if former else 0,
        )

    def renew(self, lease: Lease, *, ttl_seconds: float) -> None:
        """Push the end out; raise LeaseLost when it is no longer ours or has ended."""
        params = {**self._database.lease_clock(), **_ours(lease), "ttl": ttl_seconds}
        if self._database.transact(lambda session: session.run(self._renew, params)) == 1:
            return
        content = self.read(lease.adw_id)
        is_ours = content is not None and content.fence == lease.fence and content.owner == lease.owner
        why = "ran out" if is_ours else "was taken over"

        raise LeaseLost(f"the lease of workflow {lease.adw_id} {why}: stop working on it")

    def release(self, lease: Lease) -> bool:
        """Give the lease back; False when it was not ours any more."""
        params = _ours(lease)

        return self._database.transact(lambda session: session.run(connection.LEASE_RELEASE, params)) == 1

    def end_run(self, lease: Lease, run: Run, end: RunEnd, *, free_issue: int | None = None) -> Run:
        """
        End *run* and give the lease back, in one transaction, with *free_issue* the issue of the workflow too.

        Raises RunLost, and then nothing of it is done.
        """
        params = {**_ours(lease), "issue_number": free_issue}
        end_it = self._runs.ending(run, end)

        def work(session: Session) -> Run:
            # The workflow first, then its run: as when they are taken, so that two never wait for each other.
            session.run(connection.LEASE_RELEASE, params)
            if free_issue is not None:
                session.run(connection.LOCK_END, params)
            return end_it(session)

        return self._database.transact(work)

    def hand_back(self, ends: Sequence[HandBack]) -> tuple[Run | None, ...]:
        """Do all of it or nothing, and return each run as it stands then; None for one that had moved on."""
        works = [self.handing_back(end) for end in ends]

        return self._database.transact(lambda session: tuple(work(session) for work in works))

    def handing_back(self, end: HandBack) -> Callable[[Session], Run | None]:
        """Return what does one of them in a transaction of the caller."""
        settle = self._runs.settling(end.run, end.end) if end.run is not None and end.end is not None else None

        def work(session: Session) -> Run | None:
            if end.lease is not None:
                params = {**_ours(end.lease), "issue_number": end.free_issue}
                session.run(connection.LEASE_RELEASE, params)
                if end.free_issue is not None:
                    session.run(connection.LOCK_END, params)
            if settle is not None:
                return settle(session)
            return None if end.new_run is None else self._runs.enqueue_in(session, end.new_run)

        return work

    def read_all(self, adw_ids: Sequence[str]) -> dict[str, LeaseRow]:
        """Return the rows of those workflows that there are."""
        result: dict[str, LeaseRow] = {}
        clock = self._database.lease_clock()
        with self._database.read() as session:
            for first in range(0, len(adw_ids), _READ_AT_ONCE):
                wanted = {f"id{number}": adw_id for number, adw_id in enumerate(adw_ids[first : first + _READ_AT_ONCE])}
                sql = self._read_all.replace("{ids}", ", ".join(f":{name}" for name in wanted))
                rows = session.all(sql, {**clock, **wanted})
                result.update((row[0], _row(row[0], row[1:])) for row in rows)

        return result

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


# Messages to the live owner of a workflow, each handled once.
#
# Only the owner changes a workflow; everybody else leaves a row here, which the owner polls at least once a second.


class Requests:
    """`Requests` in the database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def ask(self, adw_id: str, kind: str, *, payload: JsonObject | None = None, asked_by: str = "") -> Request:
        """Leave a request; durable when this returns."""
        params = {
            "adw_id": check_adw_id(adw_id),
            "kind": kind,
            "payload": self._database.clean_json(
                connection.json_text(payload or {}, f"the payload of a {kind} request")
            ),
            "asked_by": connection.plain(self._database.clean(asked_by)),
            "created_at": timestamps.to_text(self._clock.now()),
        }

        def work(session: Session) -> int:
            row = session.one(connection.REQUEST_ASK, params)
            if row is None:
                raise DatabaseError(f"the request to {adw_id} was not stored: try again")
            return int(row[0])

        request_id = self._database.transact(work)

        return connection.to_request((request_id, *(params[name] for name in _ASKED), None, None))

    def open_for(self, adw_id: str) -> tuple[Request, ...]:
        """Return what is not handled yet, oldest first."""
        with self._database.read() as session:
            rows = session.all(connection.REQUESTS_OPEN, {"adw_id": check_adw_id(adw_id)})

        return tuple(connection.to_request(row) for row in rows)

    def get(self, request_id: int) -> Request | None:
        """Return a request, handled or not."""
        with self._database.read() as session:
            row = session.one(connection.REQUEST_GET, {"request_id": request_id})

        return connection.to_request(row) if row else None

    def handled(self, request_id: int, outcome: str) -> bool:
        """Mark it handled; False when it was already, or never asked."""
        params = {
            "request_id": request_id,
            "handled_at": timestamps.to_text(self._clock.now()),
            "outcome": connection.plain(self._database.clean(outcome)),
        }

        return self._database.transact(lambda session: session.run(connection.REQUEST_HANDLED, params)) == 1


_ASKED = ("adw_id", "kind", "payload", "asked_by", "created_at")
