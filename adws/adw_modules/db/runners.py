"""
The workers there are, in the table runners.

A row is what a worker said of itself; it says so again every few seconds. One that left stays listed without a place
until it is forgotten, so that nobody takes a restart for the loss of what it offered.
"""

from __future__ import annotations

import json

from adws.adw_modules import timestamps
from adws.adw_modules.db import runner_statements
from adws.adw_modules.db.session import Database, Row, Session
from adws.adw_modules.demands import Offer
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_coordination import Runner
from adws.adw_modules.owner_record import OwnerRecord


class DatabaseRunners:
    """`Runners` in the database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def register(self, owner: OwnerRecord, offer: Offer, *, concurrency: int, version: str) -> None:
        """Say that a worker is there; again for the same one is a heartbeat."""
        self._run(
            runner_statements.RUNNER_REGISTER,
            owner,
            owner=owner.to_text(),
            host=offer.host,
            tags=json.dumps(sorted(offer.tags)),
            concurrency=concurrency,
            version=version,
        )

    def beat(self, owner: OwnerRecord, *, busy: int, is_draining: bool = False) -> bool:
        """Say that it lives; False when it is not registered any more, and has to register again."""
        return self._run(runner_statements.RUNNER_BEAT, owner, busy=busy, is_draining=int(is_draining)) == 1

    def leave(self, owner: OwnerRecord) -> None:
        """Say that it ends. Idempotent."""
        self._run(runner_statements.RUNNER_LEAVE, owner)

    def all(self) -> tuple[Runner, ...]:
        """Return every worker, the oldest first."""
        sql = self._database.spell(runner_statements.RUNNERS_ALL)
        with self._database.read() as session:
            rows = session.all(sql, self._database.lease_clock())

        return tuple(runner for row in rows if (runner := self._runner(row)) is not None)

    def forget(self, *, silent_seconds: float) -> int:
        """Take those away that were silent for longer, and return how many."""
        silent = [runner for runner in self.all() if runner.silent_seconds > silent_seconds]
        if not silent:
            return 0
        params = [{"runner_id": runner.runner_id, "heartbeat_at": runner.heartbeat_at} for runner in silent]

        def work(session: Session) -> int:
            # One that was heard of since our look stays: its row has another moment.
            return sum(session.run(runner_statements.RUNNER_FORGET, one) for one in params)

        return self._database.transact(work)

    def _run(self, sql: str, who: OwnerRecord, **more: object) -> int:
        params = {
            **self._database.lease_clock(),
            **more,
            "runner_id": who.token,
            "moment": timestamps.to_text(self._clock.now()),
        }
        spelled = self._database.spell(sql)

        return self._database.transact(lambda session: session.run(spelled, params))

    def _runner(self, row: Row) -> Runner | None:
        runner_id, text, tags, concurrency, busy, version, is_draining, started_at, heartbeat_at, silent = row
        owner = OwnerRecord.from_text(text)
        if owner is None:
            return None  # not written by us: `adw db check` names it

        return Runner(
            runner_id=runner_id,
            owner=owner,
            tags=frozenset(json.loads(tags)),
            concurrency=concurrency,
            busy=busy,
            version=version,
            is_draining=bool(is_draining),
            started_at=started_at,
            heartbeat_at=heartbeat_at,
            silent_seconds=float(silent) if silent is not None else self._age(heartbeat_at),
        )

    def _age(self, moment: str) -> float:
        return max(0.0, (self._clock.now() - timestamps.parse(moment)).total_seconds())
