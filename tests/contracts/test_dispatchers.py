"""Dispatchers keep their contract: the embedded one on SQLite, and Procrastinate on PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.db.sqlite import CommitWatcher
from adws.adw_modules.queue.dispatch import WatchDispatcher
from adws.adw_modules.queue.procrastinate import ProcrastinateDispatcher
from adws.adw_modules.queue.store import RunStore
from adws.testing import FakeClock
from tests.contracts.dispatch_contract import DispatchContract, DispatchWorld, TransactionContract


@pytest.fixture
def clock(seed):
    """A clock that shows the server's time at first: jobs are scheduled by the server's."""
    return FakeClock(datetime.now(UTC), seed=seed)


@pytest.fixture
def due_in(clock):
    return lambda seconds: timestamps.to_text(clock.now() + timedelta(seconds=seconds))


class TestSqlite(DispatchContract, TransactionContract):
    @pytest.fixture
    def database(self, sqlite_url, open_db):
        return open_db(sqlite_url)

    @pytest.fixture
    def world(self, database, clock, due_in):
        return DispatchWorld(
            runs=RunStore(database, clock=clock),
            dispatcher=WatchDispatcher(partial(CommitWatcher, database), clock=clock),
            due_in=due_in,
            let_pass=clock.advance,
            lose_workers=lambda: None,
            tells_which=False,
        )


@pytest.mark.postgres
class TestProcrastinate(DispatchContract, TransactionContract):
    @pytest.fixture
    def database(self, pg_url, open_db):
        return open_db(pg_url)

    @pytest.fixture
    def world(self, database, clock, due_in):
        def let_pass(seconds: float) -> None:
            clock.advance(seconds)
            with database.write() as session:
                session.run(
                    "UPDATE procrastinate_jobs SET scheduled_at = scheduled_at - make_interval(secs => :seconds)",
                    {"seconds": seconds},
                )

        def lose_workers() -> None:
            with database.write() as session:
                session.run(
                    "UPDATE procrastinate_workers SET last_heartbeat = last_heartbeat - interval '1 hour'"
                    " WHERE id IN (SELECT worker_id FROM procrastinate_jobs WHERE status = 'doing')"
                )

        return DispatchWorld(
            runs=RunStore(database, clock=clock),
            dispatcher=ProcrastinateDispatcher(database, clock=clock),
            due_in=due_in,
            let_pass=let_pass,
            lose_workers=lose_workers,
            tells_which=True,
        )
