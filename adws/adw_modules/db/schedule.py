"""
The schedule in the database: one row for each entry, claimed by compare-and-set.

A claim names the last tick that was seen done: of two crons that look at the same moment one gets the entry, and the
other finds it taken, or done. The tick counts as done only when its work has ended, in the same transaction as what
that work remembers and tells: a cron that dies before loses nothing, and its claim ends by itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from adws.adw_modules import timestamps
from adws.adw_modules.db import rows
from adws.adw_modules.db import schedule_statements as sql
from adws.adw_modules.db.notifications import add_notices
from adws.adw_modules.db.session import Database, Row, Session
from adws.adw_modules.errors import DatabaseError
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_schedule import Notice, ScheduleRow, Tick
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import OwnerRecord


class DatabaseSchedule:
    """A `ScheduleBook` in the table schedule."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._all, self._claim, self._renew = map(
            database.spell, (sql.SCHEDULE_ALL, sql.SCHEDULE_CLAIM, sql.SCHEDULE_RENEW)
        )

    def rows(self) -> tuple[ScheduleRow, ...]:
        """Return every entry that was ever claimed, by name."""
        with self._database.read() as session:
            found = session.all(self._all, self._database.lease_clock())

        return tuple(sorted(map(_to_row, found), key=lambda row: row.name))

    def claim(
        self,
        name: str,
        *,
        spec: str,
        due: str,
        seen: str,
        owner: OwnerRecord,
        ttl_seconds: float,
        dead_token: int | None = None,
    ) -> Tick | None:
        """Take an entry for the tick *due*, None when another cron has it or has done it meanwhile."""
        params = {
            **self._database.lease_clock(),
            "name": name,
            "spec": spec,
            "seen": seen,
            "owner": owner.to_text(),
            "ttl": ttl_seconds,
            "dead_token": -1 if dead_token is None else dead_token,
        }

        def work(session: Session) -> Row | None:
            session.run(sql.SCHEDULE_BEGIN, {"name": name, "spec": spec})

            return session.one(self._claim, params)

        taken = self._database.transact(work)

        return None if taken is None else Tick(name=name, due=due, token=taken[0], memo=_memo(name, taken[1]))

    def renew(self, tick: Tick, *, ttl_seconds: float) -> bool:
        """Push the end of the claim out; False when it is not ours any more."""
        params = {**self._database.lease_clock(), "name": tick.name, "token": tick.token, "ttl": ttl_seconds}

        return self._database.transact(lambda session: session.run(self._renew, params)) == 1

    def finish(
        self, tick: Tick, *, status: str, outcome: str, memo: JsonObject | None = None, notices: Sequence[Notice] = ()
    ) -> bool:
        """Write down that the tick was done, with what is remembered and told; False when the claim was lost."""
        moment = timestamps.to_text(self._clock.now())
        params = {
            "name": tick.name,
            "token": tick.token,
            "due": tick.due,
            "moment": moment,
            "status": status,
            "outcome": rows.plain(outcome),
            "memo": "" if memo is None else rows.json_text(memo, f"what {tick.name} remembers"),
        }

        def work(session: Session) -> bool:
            if session.run(sql.SCHEDULE_FINISH, params) != 1:
                return False
            add_notices(session, notices, moment)

            return True

        return self._database.transact(work)


def _to_row(row: Row) -> ScheduleRow:
    name, spec, last_due, last_run, status, outcome, memo, owner, token, seconds_left = row

    return ScheduleRow(
        name=name,
        spec=spec,
        last_due=last_due,
        last_run=last_run,
        status=status,
        outcome=outcome,
        memo=_memo(name, memo),
        owner=owner,
        token=token,
        seconds_left=seconds_left,
    )


def _memo(name: str, text: str) -> JsonObject:
    try:
        memo: JsonObject = json.loads(text)
    except ValueError as exc:
        raise DatabaseError(
            f"the row of entry {name!r} cannot be read ({exc}): delete it from the table schedule"
        ) from exc

    return memo
