"""PostgreSQL as it is used: the server's clock, broken connections, transactions in each other's way."""

from __future__ import annotations

import contextlib
import socket
import threading

import psycopg
import pytest

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db import migrate
from adws.adw_modules.db.listing import Catalogue, to_cursor
from adws.adw_modules.db.postgres import PostgresDatabase, to_pyformat, without_password
from adws.adw_modules.errors import CommitUnknown, DatabaseError, DatabaseUnavailable, TransactionAborted
from adws.adw_modules.interfaces import LeaseBusy, PageQuery
from adws.adw_modules.resources.quotas import spent_since_sql
from adws.adw_modules.store.serialization import summary_of
from adws.testing import FakeClock
from tests import forked
from tests.contracts.projection_contract import projected
from tests.contracts.worlds import FIRST, database_world, make_document, make_owner

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(pg_url, open_db) -> PostgresDatabase:
    return open_db(pg_url)


def lock_issue(database, number: int) -> None:
    with database.write() as session:
        session.run("INSERT INTO adw_locks VALUES ('', :number, 'x', '')", {"number": number})


def count_locks(database) -> int:
    with database.read() as session:
        return session.one("SELECT count(*) FROM adw_locks")[0]


def cut_all(url: str) -> None:
    """Break every other connection to the database, as a restart of the server would."""
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


# --- spelling --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "spelled"),
    [
        ("SELECT :a, :b_2", "SELECT %(a)s, %(b_2)s"),
        ("SELECT now()::float8 + :a", "SELECT now()::float8 + %(a)s"),
        ("SELECT ':a' || :a", "SELECT ':a' || %(a)s"),
        ("SELECT 'it''s :a', \"odd:name\"", "SELECT 'it''s :a', \"odd:name\""),
        ("SELECT 5 % 3, '100%'", "SELECT 5 %% 3, '100%%'"),
        ("SELECT 1 -- not :a, 5%\n, :b", "SELECT 1 -- not :a, 5%%\n, %(b)s"),
        ("SELECT :a::text", "SELECT %(a)s::text"),
    ],
)
def test_parameters_are_spelled_for_the_driver_and_nothing_else_is_touched(sql, spelled):
    assert to_pyformat(sql) == spelled


def test_what_is_spelled_means_the_same_to_the_server(database):
    with database.read() as session:
        row = session.one("SELECT ':a 100%', 7 % 4, :a::text, 'it''s'", {"a": "x:y%"})

    assert row == (":a 100%", 3, "x:y%", "it's")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:s3cret@db/adw", "postgresql://ann:***@db/adw"),
        ("postgresql://ann:p@ss@db:5432/adw", "postgresql://ann:***@db:5432/adw"),
        ("postgresql://ann:p/s?s#@db/adw", "postgresql://ann:***@db/adw"),
        ("postgresql://ann@db/adw", "postgresql://ann@db/adw"),
        ("postgresql:///adw?user=ann&password=s3cret&host=/run", "postgresql:///adw?user=ann&password=***&host=/run"),
        ("postgresql://db/adw?sslpassword=s3cret", "postgresql://db/adw?sslpassword=***"),
    ],
)
def test_a_password_is_never_shown(url, shown):
    assert without_password(url) == shown


def test_a_server_that_is_away_is_named_without_the_password(clock):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        url = f"postgresql+psycopg://ann:s3cret@127.0.0.1:{port}/adw?connect_timeout=2"
        with pytest.raises(DatabaseUnavailable, match=r"cannot reach.*127\.0\.0\.1.*database\.url") as refused:
            migrate.open_database(url, clock=clock)

    assert "s3cret" not in str(refused.value)


# --- settings --------------------------------------------------------------------------------------------------


def test_a_write_is_durable_and_limited_in_time(database):
    with database.write() as session:
        result = {
            name: session.one(f"SHOW {name}")[0]
            for name in ("synchronous_commit", "statement_timeout", "lock_timeout", "application_name")
        }

    assert result == {
        "synchronous_commit": "on",
        "statement_timeout": "30s",
        "lock_timeout": "30s",
        "application_name": "adw",
    }


def test_nothing_stays_in_the_session_for_the_next_user_of_a_pooler(database):
    with database.write() as session:
        session.one("SELECT 1")
    connection = database._idle[-1]

    assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)
    assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)


def test_a_read_cannot_write_and_sees_one_moment(database):
    with pytest.raises(DatabaseError, match="read-only"), database.read() as session:
        session.run("INSERT INTO adw_locks VALUES ('', 1, 'x', '')")

    with database.read() as session:
        before = session.one("SELECT count(*) FROM adw_locks")
        lock_issue(database, 1)
        assert session.one("SELECT count(*) FROM adw_locks") == before
    assert count_locks(database) == 1


def test_a_block_that_raises_changes_nothing(database):
    def work(session) -> None:
        session.run("INSERT INTO adw_locks VALUES ('', 1, 'x', '')")
        raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        database.transact(work)

    assert count_locks(database) == 0
    lock_issue(database, 2)


# --- broken connections ----------------------------------------------------------------------------------------


def test_a_connection_that_broke_while_idle_is_replaced(database, pg_url):
    lock_issue(database, 1)
    cut_all(pg_url)

    lock_issue(database, 2)
    cut_all(pg_url)
    assert count_locks(database) == 2


def test_a_transaction_that_broke_is_not_repeated_and_nothing_of_it_is_left(database, pg_url):
    calls = []

    def work(session) -> None:
        calls.append(1)
        session.run("INSERT INTO adw_locks VALUES ('', 1, 'x', '')")
        cut_all(pg_url)
        session.run("INSERT INTO adw_locks VALUES ('', 2, 'x', '')")

    with pytest.raises(DatabaseUnavailable):
        database.transact(work)

    assert calls == [1]
    assert count_locks(database) == 0


class CutAtCommit:
    """
    A connection that breaks at COMMIT.

    *after*: the server has committed, and its answer is lost; else the request never got there.
    """

    def __init__(self, connection, *, after: bool):
        self._connection = connection
        self._after = after

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, sql, *params):
        if sql != "COMMIT":
            return self._connection.execute(sql, *params)
        if self._after:
            self._connection.execute(sql)
        self._connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")


class CuttingDatabase(PostgresDatabase):
    """A database whose next write loses its connection at COMMIT."""

    cut: bool | None = None

    def _begin(self, begin):
        connection = super()._begin(begin)
        if self.cut is None or "READ ONLY" in begin:
            return connection
        after, self.cut = self.cut, None
        return CutAtCommit(connection, after=after)


@pytest.fixture
def cutting(pg_url, clock):
    database = CuttingDatabase(pg_url, clock=clock)
    yield database
    database.close()


@pytest.mark.parametrize("after", [True, False], ids=["answer lost", "request lost"])
def test_a_commit_without_an_answer_is_unknown_and_never_repeated(cutting, after):
    cutting.cut = after
    with pytest.raises(CommitUnknown, match="look before you repeat"):
        cutting.transact(lambda session: session.run("INSERT INTO adw_locks VALUES ('', 1, 'x', '')"))

    assert count_locks(cutting) == (1 if after else 0)


def test_a_save_whose_answer_was_lost_looks_whether_it_is_stored(cutting, clock):
    world = database_world(cutting, clock)
    document = world.store.create(make_document())

    cutting.cut = True
    saved = world.store.save(document, fence=1)
    assert world.store.load(FIRST).document == saved

    cutting.cut = False
    with pytest.raises(CommitUnknown):
        world.store.save(saved, fence=1)
    assert world.store.load(FIRST).document == saved
    assert world.store.save(saved, fence=1).revision == 3


# --- transactions in each other's way --------------------------------------------------------------------------


def test_a_deadlock_is_undone_by_one_and_both_get_through(pg_url, open_db, clock):
    database = open_db(pg_url)
    with database.write() as session:
        session.run("INSERT INTO adw_locks VALUES ('', 1, 'x', ''), ('', 2, 'x', '')")
    meet, calls, trouble = threading.Barrier(2), [], []

    def worker(first: int, second: int) -> None:
        def work(session) -> None:
            calls.append(first)
            update = "UPDATE adw_locks SET acquired_at = acquired_at || 'x' WHERE issue_number = :n"
            session.run(update, {"n": first})
            if calls.count(first) == 1:
                meet.wait()  # both have their first row, and now want the other's
            session.run(update, {"n": second})

        try:
            database.transact(work)
        except BaseException as exc:  # noqa: BLE001 - told to the test below
            trouble.append(exc)

    threads = [threading.Thread(target=worker, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert trouble == []
    assert len(calls) >= 3, "one of them was undone and done again, perhaps more than once"
    with database.read() as session:
        assert session.all("SELECT acquired_at FROM adw_locks") == [("xx",), ("xx",)]


def test_one_that_is_always_in_the_way_is_given_up_after_a_few_tries(database):
    calls = []

    def work(session) -> None:
        calls.append(1)
        session.run("DO $$ BEGIN RAISE EXCEPTION 'in the way' USING ERRCODE = '40001'; END $$")

    with pytest.raises(TransactionAborted, match="in the way"):
        database.transact(work)
    assert len(calls) == 5


def test_a_lock_that_is_never_given_back_is_named(database):
    lock_issue(database, 1)

    def impatient(session) -> None:
        session.run("SET LOCAL lock_timeout = '20ms'")
        session.run("UPDATE adw_locks SET adw_id = 'second'")

    with database.write() as first:
        first.run("UPDATE adw_locks SET adw_id = 'first'")
        with pytest.raises(DatabaseUnavailable, match="pg_stat_activity"):
            database.transact(impatient)


# --- leases and forks ------------------------------------------------------------------------------------------


def test_leases_are_measured_by_the_servers_clock(pg_url, open_db):
    """
    Two machines whose clocks are a day apart agree on who has the lease.
    """
    early, late = FakeClock(boottime=1.0), FakeClock(boottime=1e6)
    late.advance(86400.0)
    one = PostgresDatabase(pg_url, clock=early)
    two = PostgresDatabase(pg_url, clock=late)
    with contextlib.closing(one), contextlib.closing(two):
        first, second = database_world(one, early), database_world(two, late)
        first.add_row(FIRST)
        taken = first.leases.take(FIRST, make_owner("one"), ttl_seconds=30.0)

        assert isinstance(second.leases.take(FIRST, make_owner("two"), ttl_seconds=30.0), LeaseBusy)
        assert second.leases.read(FIRST).seconds_left == pytest.approx(30.0, abs=5.0)
        early.advance(1e6)
        first.leases.renew(taken.lease, ttl_seconds=30.0)


def test_a_forked_child_cannot_use_the_database_that_its_parent_has_open(database):
    lock_issue(database, 1)
    before = list(database._idle)

    def work() -> None:
        with pytest.raises(DatabaseUnavailable, match=r"opened by process \d+.*forked from it"):
            lock_issue(database, 2)
        database.close()

    assert forked.is_well(forked.start(work))
    assert database._idle == before
    assert count_locks(database) == 1, "the parent's connection still works"
    database.close()
    assert forked.is_well(forked.start(lambda: lock_issue(database, 2)))
    assert count_locks(database) == 2


# --- lists -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        PageQuery(),
        PageQuery(state="failed"),
        PageQuery(workflow="sdlc"),
        PageQuery(repository="acme/widget"),
        PageQuery(issue_number=7),
        PageQuery(repository="acme/widget", issue_number=7, cursor=to_cursor(summary_of(projected(1).document))),
        PageQuery(cursor=to_cursor(summary_of(projected(1).document))),
    ],
    ids=["all", "state", "workflow", "repository", "issue", "both after a cursor", "after a cursor"],
)
def test_a_page_is_read_along_an_index_without_sorting(database, query):
    sql, params = Catalogue(database).query_of(query)
    with database.read() as session:
        # An empty table is always scanned: what is asked is whether an index gives the order.
        session.run("SET LOCAL enable_seqscan = off")
        session.run("SET LOCAL enable_bitmapscan = off")
        plan = "\n".join(str(row[0]) for row in session.all(f"EXPLAIN {sql}", params))

    assert "Index Scan" in plan
    assert "Sort" not in plan


def test_what_was_spent_today_is_found_without_looking_at_what_cost_nothing(database):
    sql = spent_since_sql("postgresql")
    with database.read() as session:
        session.run("SET LOCAL enable_seqscan = off")
        session.run("SET LOCAL enable_bitmapscan = off")
        plan = "\n".join(str(row[0]) for row in session.all(f"EXPLAIN {sql}", {"since": "2026-01-31"}))

    assert "Index Scan using ix_workflow_states_costing" in plan


def test_the_system_clock_will_do(pg_url):
    database = migrate.open_database(pg_url.replace("postgresql://", "postgresql+psycopg://"), clock=SystemClock())
    assert database.integrity_problems() == []
    database.close()
