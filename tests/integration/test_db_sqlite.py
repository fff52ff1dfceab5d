"""SQLite as it is used: durable, one writer at a time, safe across threads, processes and damage."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import sqlite3
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db import connection, migrate, sqlite
from adws.adw_modules.db.listing import Catalogue
from adws.adw_modules.errors import (
    DatabaseCorrupt,
    DatabaseError,
    DatabaseUnavailable,
    DurabilityUnknown,
    LockUnavailable,
    UsageError,
)
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import LeaseBusy, LeaseTaken, PageQuery
from adws.adw_modules.resources.quotas import spent_since_sql
from adws.adw_modules.store.database import _write_row
from adws.adw_modules.store.serialization import summary_of
from tests import forked
from tests.contracts.worlds import FIRST, SECOND, database_world, make_document, make_owner


@pytest.fixture
def path(sqlite_url, tmp_path) -> Path:
    return tmp_path / "adw.db"


@pytest.fixture
def database(path, sqlite_url, open_db):
    return open_db(sqlite_url)


def lock_issue(database, number: int, adw_id: str = FIRST) -> None:
    with database.write() as session:
        session.run("INSERT INTO adw_locks VALUES ('', :number, :adw_id, '')", {"number": number, "adw_id": adw_id})


def count_locks(database) -> int:
    with database.read() as session:
        return session.one("SELECT count(*) FROM adw_locks")[0]


# --- settings --------------------------------------------------------------------------------------------------


def test_every_connection_is_durable_and_keeps_references(database):
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30000}
    for block in (database.read, database.write):
        with block() as session:
            result = {name: session.one(f"PRAGMA {name}")[0] for name in wanted}
        assert result == wanted


def test_only_its_owner_may_read_the_database(tmp_path, open_db):
    before = os.umask(0)
    try:
        database = open_db(f"sqlite:///{tmp_path}/new/adw.db")
        lock_issue(database, 1)
    finally:
        os.umask(before)

    files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "new").iterdir()}
    assert files == dict.fromkeys(["adw.db", "adw.db-wal", "adw.db-shm", "adw.db.write-lock"], 0o600)


def test_the_lock_file_is_never_unlinked_and_closed_on_exec(database, path):
    lock_issue(database, 1)
    before = path.with_name("adw.db.write-lock").stat().st_ino
    assert not os.get_inheritable(database.writer_lock._fd)
    database.close()
    lock_issue(database, 2)

    assert path.with_name("adw.db.write-lock").stat().st_ino == before


# --- transactions ----------------------------------------------------------------------------------------------


def test_a_block_that_raises_changes_nothing(database):
    def work(session) -> None:
        session.run("INSERT INTO adw_locks VALUES ('', 1, 'x', '')")
        raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        database.transact(work)

    assert count_locks(database) == 0
    lock_issue(database, 2)
    assert count_locks(database) == 1


def test_a_statement_is_run_once_for_each_set_of_its_parameters(database):
    """
    Values go to the places their names have in the statement, also when a name stands there twice, or only one does.
    """
    with database.write() as session:
        session.run("CREATE TABLE sets (a, b, c)")
        session.run_each(
            "INSERT INTO sets VALUES (:b1, :a, :b1)", [{"a": 1, "b1": "x", "left": 0}, {"b1": "y", "a": 2}]
        )
        session.run_each("DELETE FROM sets WHERE b = :a", [{"a": 2}, {"a": 3}])
        session.run_each("INSERT INTO sets VALUES (:a, :a, :b)", [])

    with database.read() as session:
        assert session.all("SELECT a, b, c FROM sets") == [("x", 1, "x")]


def test_a_read_sees_one_moment(database):
    with database.read() as session:
        before = session.one("SELECT count(*) FROM adw_locks")
        lock_issue(database, 1)
        assert session.one("SELECT count(*) FROM adw_locks") == before

    assert count_locks(database) == 1


def test_what_was_committed_is_there_for_another_process(database):
    lock_issue(database, 1)
    database.close()

    assert forked.is_well(forked.start(lambda: _assert_equal(count_locks(database), 1)))


def _assert_equal(found: object, wanted: object) -> None:
    assert found == wanted


def test_a_bad_statement_is_our_error_and_leaves_the_database_usable(database):
    for block in (database.read, database.write):
        with pytest.raises(DatabaseError, match="no such table"), block() as session:
            session.run("SELECT * FROM nowhere")

    lock_issue(database, 1)


# --- one writer at a time -------------------------------------------------------------------------------------------


def test_writers_of_many_processes_and_threads_lose_nothing(database):
    """
    The lock makes them wait: none is refused, none writes over another.
    """
    with database.write() as session:
        session.run("INSERT INTO adw_locks VALUES ('', 1, 'x', '0')")
    database.close()

    def count() -> None:
        for _ in range(25):
            with database.write() as session:
                seen = int(session.one("SELECT acquired_at FROM adw_locks")[0])
                session.run("UPDATE adw_locks SET acquired_at = :n", {"n": str(seen + 1)})

    def work() -> None:
        threads = [threading.Thread(target=count) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    children = [forked.start(work) for _ in range(4)]

    assert [forked.is_well(child) for child in children] == [True] * len(children)
    with database.read() as session:
        assert session.one("SELECT acquired_at FROM adw_locks") == ("200",)


def test_a_writer_that_is_stuck_is_named_after_a_while(path, sqlite_url, open_db):
    database = open_db(sqlite_url, patience_seconds=0.05)
    holder = os.open(path.with_name("adw.db.write-lock"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(DatabaseUnavailable, match=r"another process.*write-lock.*fuser"):
        lock_issue(database, 1)
    os.close(holder)

    lock_issue(database, 1)
    lock_issue(open_db(sqlite_url, patience_seconds=0.05), 2)
    assert count_locks(database) == 2


def test_a_writer_waits_for_another_process_and_a_reader_does_not(database, path, monkeypatch):
    holder = os.open(path.with_name("adw.db.write-lock"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    waits = threading.Event()

    def wait(seconds: float) -> None:
        waits.set()
        threading.Event().wait(seconds)

    monkeypatch.setattr(database.writer_lock._clock, "sleep", wait)
    writer = threading.Thread(target=lock_issue, args=(database, 1))
    writer.start()
    assert waits.wait(20.0)
    assert count_locks(database) == 0
    os.close(holder)
    writer.join()

    assert count_locks(database) == 1


def test_a_thread_that_writes_inside_its_own_write_is_told(path, sqlite_url, open_db):
    database = open_db(sqlite_url, patience_seconds=0.05)
    with pytest.raises(DatabaseUnavailable, match="another thread"), database.write():
        lock_issue(database, 1)

    lock_issue(database, 2)


def test_another_program_that_holds_the_database_is_named(path, sqlite_url, open_db):
    database = open_db(sqlite_url, patience_seconds=0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseUnavailable, match=r"locked by another program.*fuser"):
        lock_issue(database, 1)
    other.execute("ROLLBACK")
    other.close()

    lock_issue(database, 1)


# --- forks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [count_locks, lambda database: lock_issue(database, 2)], ids=["read", "write"])
def test_a_forked_child_cannot_use_the_database_that_its_parent_has_open(database, use):
    """
    SQLite's own locks do not survive a fork: a child that used its parent's connections would break the database.
    """
    lock_issue(database, 1)
    parent = os.getpid()

    def work() -> None:
        with pytest.raises(
            DatabaseUnavailable, match=rf"opened by process {parent}.*process {os.getpid()}.*each process"
        ):
            use(database)
        database.close()
        assert database._writer is not None, "its parent's connections are not closed"

    assert forked.is_well(forked.start(work))
    lock_issue(database, 3)
    assert count_locks(database) == 2, "the parent goes on"
    assert database.integrity_problems() == []


@pytest.mark.parametrize("block", ["read", "write"])
def test_a_child_forked_inside_a_transaction_is_refused_too(database, block):
    def work() -> None:
        with pytest.raises(DatabaseUnavailable, match="forked"):
            count_locks(database)

    with getattr(database, block)() as session:
        assert forked.is_well(forked.start(work))
        assert session.one("SELECT count(*) FROM adw_locks") == (0,)

    lock_issue(database, 1)
    assert count_locks(database) == 1, "the parent goes on"


def test_a_forked_child_cannot_open_a_file_that_its_parent_has_open(database, sqlite_url, clock):
    """
    SQLite would take the locks of the parent for those of the child, and the parent could take the log away from it.
    """
    lock_issue(database, 1)

    def work() -> None:
        with pytest.raises(DatabaseUnavailable, match="close it before the fork"):
            migrate.open_database(sqlite_url, clock=clock)

    assert forked.is_well(forked.start(work))


def test_a_database_that_was_closed_before_a_fork_can_be_used_in_both_processes(database):
    lock_issue(database, 1)
    database.close()

    assert forked.is_well(forked.start(lambda: lock_issue(database, 2)))
    lock_issue(database, 3)
    assert count_locks(database) == 3


def test_a_read_that_ends_after_the_database_was_closed_leaves_nothing_open(database):
    with database.read():
        database.close()

    assert database._readers == []


# --- damage ----------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path, clock):
    path = tmp_path / "adw.db"
    path.write_bytes(b"this is not a database, it is a text" * 100)

    with pytest.raises(DatabaseCorrupt, match=r"adw db restore.*adw db rebuild"):
        migrate.open_database(f"sqlite:///{path}", clock=clock)

    assert path.read_bytes().startswith(b"this is not")


def test_a_damaged_page_is_reported_by_the_check(database, path):
    world = database_world(database, SystemClock())
    for number in range(200):
        world.store.create(make_document(f"{number:08x}"))
    database.close()
    with sqlite3.connect(path) as plain:
        plain.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    plain.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        for offset in range(4096 * 12, size, 4096):
            file.seek(offset)
            file.write(b"\xff" * 64)

    try:
        problems = database.integrity_problems()
    except DatabaseCorrupt as exc:
        problems = [str(exc)]
    assert problems


def test_a_database_that_vanished_is_not_made_anew_in_silence(database, path):
    lock_issue(database, 1)
    database.close()
    path.unlink()

    with pytest.raises(DatabaseUnavailable, match="look whether it exists"):
        lock_issue(database, 2)
    assert not path.exists()


def test_a_database_that_was_replaced_is_noticed(database, path, tmp_path):
    """
    After a restore the open connection is on a file without a name: what is written there would be lost.
    """
    lock_issue(database, 1)
    database.copy_to(tmp_path / "copy.db")
    (tmp_path / "copy.db").replace(path)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink()

    lock_issue(database, 2)
    database.close()

    assert count_locks(database) == 2


def test_a_directory_that_cannot_be_made_is_named(tmp_path, clock):
    (tmp_path / "file").write_text("")

    with pytest.raises(DatabaseUnavailable, match="choose a place"):
        migrate.open_database(f"sqlite:///{tmp_path}/file/adw.db", clock=clock)


def test_a_path_that_is_a_directory_is_named(tmp_path, clock):
    (tmp_path / "adw.db").mkdir()

    with pytest.raises(DatabaseUnavailable, match="look whether it exists"):
        migrate.open_database(f"sqlite:///{tmp_path}/adw.db", clock=clock)


def test_a_lock_file_that_is_a_link_is_refused(database, path, tmp_path):
    """
    Opened through a link, the lock would be made wherever the link points.
    """
    path.with_name("adw.db.write-lock").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(LockUnavailable, match="write-lock"):
        lock_issue(database, 1)
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_without_flock_is_named(database, monkeypatch):
    def no_locks(fd, how) -> None:
        if how != fcntl.LOCK_UN:
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(sqlite.fcntl, "flock", no_locks)

    with pytest.raises(LockUnavailable, match="working flock"):
        lock_issue(database, 1)


def test_a_lock_that_cannot_be_unlocked_is_released_all_the_same(database, open_db, sqlite_url, monkeypatch):
    """
    The commit is made: an error now would say that it was not, and a lock that stays would shut everybody out.
    """
    flock = fcntl.flock

    def no_unlocking(fd, how) -> None:
        if how == fcntl.LOCK_UN:
            raise OSError(errno.EIO, "Input/output error")
        flock(fd, how)

    monkeypatch.setattr(sqlite.fcntl, "flock", no_unlocking)
    lock_issue(database, 1)
    lock_issue(open_db(sqlite_url, patience_seconds=0.05), 2)
    lock_issue(database, 3)

    assert count_locks(database) == 3
    lock_file = f"{sqlite_url.removeprefix('sqlite:///')}.write-lock"
    still_open = [fd for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == os.path.realpath(lock_file)]
    assert still_open == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES], ids=["io", "space", "access"])
def test_a_database_file_that_cannot_be_looked_at_is_named(database, path, monkeypatch, code):
    lock_issue(database, 1)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite.os, "stat", FailingStat(path, OSError(code, os.strerror(code)), times=1))
        with pytest.raises(DatabaseUnavailable, match=rf"adw\.db: {os.strerror(code)}; nothing was changed"):
            lock_issue(database, 2)

    lock_issue(database, 3)
    assert count_locks(database) == 2


def test_looking_at_the_database_file_goes_on_after_a_signal(database, path, monkeypatch):
    error = InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
    monkeypatch.setattr(sqlite.os, "stat", FailingStat(path, error, times=2))

    lock_issue(database, 1)
    assert count_locks(database) == 1


class FailingStat:
    """`os.stat` that fails some times for one path."""

    def __init__(self, path, error, *, times):
        self._path, self._error, self._times = path, error, times
        self._stat = os.stat

    def __call__(self, path, **options):
        if str(path) == str(self._path) and self._times:
            self._times -= 1
            raise self._error
        return self._stat(path, **options)


class FailingCommit:
    """A connection whose next COMMIT fails as a disk would make it fail."""

    def __init__(self, connection, code):
        self._connection = connection
        self._code = code

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, sql, *params):
        if sql != "COMMIT":
            return self._connection.execute(sql, *params)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = self._code
        raise error


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (sqlite3.SQLITE_IOERR_FSYNC, DurabilityUnknown),
        (sqlite3.SQLITE_IOERR_WRITE, DurabilityUnknown),
        (sqlite3.SQLITE_FULL, DatabaseError),
    ],
    ids=["sync", "write", "full"],
)
def test_a_commit_that_fails_is_never_taken_for_done(database, code, wanted):
    lock_issue(database, 1)
    database._writer.connection = FailingCommit(database._writer.connection, code)
    with pytest.raises(wanted):
        lock_issue(database, 2)

    database._drop_writer()
    assert count_locks(database) == 1
    lock_issue(database, 3)


# --- network file systems --------------------------------------------------------------------------------------

MOUNTS = """\
21 1 8:1 / / rw,relatime - ext4 /dev/vda rw
40 21 0:44 / /home rw,relatime shared:1 - nfs4 server:/home rw
41 40 8:2 / /home/local rw - ext4 /dev/vdb rw
42 21 0:45 / /with\\040space rw - fuse.sshfs me@host: rw
a broken line
"""


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("/var/adw.db", "ext4"),
        ("/home/ann/adw.db", "nfs4"),
        ("/home/local/adw.db", "ext4"),
        ("/homework/adw.db", "ext4"),
        ("/with space/adw.db", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_path_is_the_nearest_mount_above_it(where, kind):
    assert sqlite.file_system_of(Path(where), MOUNTS) == kind


def test_a_network_file_system_is_refused(tmp_path, monkeypatch, clock):
    table = tmp_path / "mountinfo"
    table.write_text(f"21 1 8:1 / {tmp_path} rw - nfs4 server:/x rw\n")
    monkeypatch.setattr(sqlite.refuse_network, "__defaults__", (table,))

    with pytest.raises(DatabaseUnavailable, match=r"network file system \(nfs4\).*PostgreSQL"):
        migrate.open_database(f"sqlite:///{tmp_path}/adw.db", clock=clock)


def test_where_there_is_no_mount_table_nothing_is_refused(tmp_path):
    sqlite.refuse_network(tmp_path / "adw.db", tmp_path / "no such table")


def test_a_sqlite_that_is_too_old_is_named(tmp_path, monkeypatch, clock):
    monkeypatch.setattr(sqlite.sqlite3, "sqlite_version_info", (3, 34, 1))

    with pytest.raises(DatabaseUnavailable, match="too old"):
        migrate.open_database(f"sqlite:///{tmp_path}/adw.db", clock=clock)


# --- leases on this machine ------------------------------------------------------------------------------------


def test_a_lease_of_an_earlier_start_of_the_machine_is_over(sqlite_url, open_db, clock):
    before = database_world(open_db(sqlite_url, boot_id="boot-1"), clock)
    before.add_row(FIRST)
    taken = before.leases.take(FIRST, make_owner("one"), ttl_seconds=1e9)

    after = database_world(open_db(sqlite_url, boot_id="boot-2"), clock)

    assert after.leases.read(FIRST).seconds_left < 0
    assert after.catalogue.page(PageQuery()).rows[0].owner == ""
    again = after.leases.take(FIRST, make_owner("two"), ttl_seconds=30.0)
    assert (again.lease.fence, again.previous) == (2, make_owner("one"))
    assert before.leases.release(taken.lease) is False


def test_of_many_processes_one_takes_the_lease_and_one_the_issue(database_url, open_db):
    database = open_db(database_url)
    world = database_world(database, SystemClock())
    world.add_row(FIRST)
    database.close()

    def compete(number: int) -> None:
        answer = world.leases.take(FIRST, make_owner(f"owner {number}"), ttl_seconds=3600.0)
        won = world.locks.acquire(42, f"{number:08x}")
        mine = world.leases.read(FIRST).owner == make_owner(f"owner {number}")
        assert isinstance(answer, LeaseTaken if mine else LeaseBusy)
        assert won == (world.locks.holder(42).adw_id == f"{number:08x}")

    children = [forked.start(lambda number=number: compete(number)) for number in range(8)]

    assert [forked.is_well(child) for child in children] == [True] * len(children)
    assert world.leases.read(FIRST).fence == 1


def test_the_list_shows_who_works_on_it_while_the_lease_lasts(database, clock):
    world = database_world(database, clock)
    world.registry.register(make_document(), make_owner(), ttl_seconds=30.0)
    assert world.catalogue.page(PageQuery()).rows[0].owner == make_owner().to_text()

    clock.advance(31.0)

    assert world.catalogue.page(PageQuery()).rows[0].owner == ""


# --- lists -----------------------------------------------------------------------------------------------------

QUERIES = [
    PageQuery(),
    PageQuery(state="failed"),
    PageQuery(workflow="sdlc"),
    PageQuery(repository="acme/widget"),
    PageQuery(issue_number=7),
    PageQuery(repository="acme/widget", issue_number=7),
]


@pytest.mark.parametrize("has_cursor", [False, True], ids=["first page", "later page"])
@pytest.mark.parametrize("query", QUERIES, ids=["all", "state", "workflow", "repository", "issue", "both"])
def test_a_page_is_read_along_an_index_without_sorting(database, query, has_cursor):
    """
    A page costs the same with 1,000 workflows as with 100,000: nothing is scanned and nothing is sorted.
    """
    catalogue = Catalogue(database)
    if has_cursor:
        query = PageQuery(**{**{name: getattr(query, name) for name in query.__slots__}, "cursor": _cursor()})
    sql, params = catalogue.query_of(query)
    with database.read() as session:
        plan = " | ".join(str(row[3]) for row in session.all(f"EXPLAIN QUERY PLAN {sql}", params))

    assert "USING INDEX" in plan
    assert "TEMP B-TREE" not in plan
    is_whole_list = not has_cursor and query == PageQuery()
    assert ("SCAN" in plan) == is_whole_list, "the newest of all are read from the end of their index"


@pytest.mark.parametrize("has_cursor", [False, True], ids=["first page", "later page"])
@pytest.mark.parametrize("filters", [{}, {"state": "failed"}, {"workflow": "sdlc"}, {"repository": "acme/widget"}])
def test_a_search_walks_along_the_index_that_has_all_it_looks_at(database, filters, has_cursor):
    """
    Another index would lead to every document of a state, to look at its title.
    """
    query = PageQuery(search="crash 42", cursor=_cursor() if has_cursor else None, **filters)
    sql, params = Catalogue(database).query_of(query)
    with database.read() as session:
        plan = " | ".join(str(row[3]) for row in session.all(f"EXPLAIN QUERY PLAN {sql}", params))
        columns = {row[2] for row in session.all("PRAGMA index_info(ix_workflow_states_newest)")}

    assert "ix_workflow_states_newest" in plan
    assert "TEMP B-TREE" not in plan
    assert columns >= {"title", "repository", "adw_id", "issue_number"}


def test_what_was_spent_today_is_found_without_looking_at_what_cost_nothing(database):
    """
    It is asked for inside the transaction of every start, however many workflows there are.
    """
    with database.read() as session:
        sql = spent_since_sql("sqlite")
        plan = " | ".join(str(row[3]) for row in session.all(f"EXPLAIN QUERY PLAN {sql}", {"since": ""}))

    assert plan == "SEARCH workflow_states USING INDEX ix_workflow_states_costing (updated_at>?)"


def test_a_step_that_changes_no_title_writes_the_index_of_searches_not_anew():
    """
    SQLite writes every index anew whose columns are set, whether they change or not.
    """
    statements: list[str] = []
    _write_row(SimpleNamespace(run=lambda sql, _params: statements.append(sql) or 1), {})
    assignments = statements[0].partition("SET")[2].partition("WHERE")[0]

    assert not {"title", "repository", "issue_number", "created_at"} & set(re.findall(r"(\w+) =", assignments))


def _cursor() -> str:
    from adws.adw_modules.db.listing import to_cursor
    from tests.contracts.projection_contract import projected

    return to_cursor(summary_of(projected(1).document))


def test_a_page_touches_as_many_rows_in_a_long_list_as_in_a_short_one(database):
    """
    Counted in steps of SQLite's own machine, so that the speed of this one does not matter.
    """
    catalogue = Catalogue(database)
    steps = []
    for start, end in ((0, 1000), (1000, 20_000)):
        _fill(database, start, end)
        middle = catalogue.page(PageQuery(limit=1000, state="failed")).next_cursor
        steps.append([_steps(database, catalogue, query) for query in (*QUERIES, PageQuery(cursor=middle))])

    for short, long in zip(*steps, strict=True):
        assert long <= short * 1.5 + 1


def _fill(database, start: int, end: int) -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    with database.write() as session:
        session.run_each(
            "INSERT INTO workflow_states VALUES (:id, :repository, :issue, 't', :workflow, :state, 1, 1, '', 0, '', '',"
            " 'files', '3.0', 0, :moment, :moment, :body)",
            [
                {
                    "id": f"{number:08x}",
                    "repository": "acme/widget" if number % 2 else "acme/gadget",
                    "issue": number % 10,
                    "workflow": "sdlc" if number % 3 else "patch",
                    "state": "failed" if number % 5 else "completed",
                    "moment": timestamps.to_text(first + timedelta(seconds=number)),
                    "body": "x" * 200,
                }
                for number in range(start, end)
            ],
        )


def _steps(database, catalogue, query: PageQuery) -> int:
    """Return how many hundred steps SQLite's machine takes for a page."""
    sql, params = catalogue.query_of(query)
    counted = []
    connection = database.connect()
    connection.set_progress_handler(lambda: counted.append(1), 100)
    connection.execute(sql, params).fetchall()
    connection.close()

    return len(counted)


@pytest.mark.parametrize("cursor", ["", "x", "bm9uc2Vuc2U", "WyJhIl0", "WzEsMl0", "ä", "A" * 5000, "W10="])
def test_a_cursor_that_is_none_is_refused(database, cursor):
    with pytest.raises(UsageError, match="is not a cursor"):
        Catalogue(database).page(PageQuery(cursor=cursor))


def test_a_page_has_an_upper_limit(database):
    with pytest.raises(UsageError, match="1 to 1000"):
        Catalogue(database).page(PageQuery(limit=1001))


def test_a_workflow_can_be_listed_whatever_its_title(database_url, open_db, clock):
    """
    A NUL character can stand in a title, and in no column of PostgreSQL; half a surrogate pair in no database at all.
    """
    world = database_world(open_db(database_url), clock)
    world.store.create(make_document(SECOND, title="a\x00b"))

    assert world.catalogue.page(PageQuery()).rows[0].title == "a\ufffdb"
    assert world.store.load(SECOND).document.issue.title == "a\x00b", "the document itself is not changed"
    assert connection.plain("x \ud83d ä") == "x ? ä"


@pytest.mark.parametrize(
    ("value", "column"),
    [(7, "7"), ("a\x00b", "a\ufffdb"), ("\ud83d", "?"), ("plain", "plain"), (None, None), ("", "")],
    ids=["number", "nul", "surrogate", "plain", "none", "empty"],
)
def test_a_text_column_of_an_event_gets_text_whatever_an_outbox_held(value, column):
    made = Event.from_json({"event_type": "state_changed", "adw_id": "1a2b3c4d", "node_id": value})

    assert connection.event_params(made)["node_id"] == column


@pytest.mark.parametrize("result", [None, 0, False, "", [], {}, {"a": [1]}])
def test_what_an_event_gave_is_stored_as_it_is(result):
    made = Event.from_json({"event_type": "step_completed", "adw_id": "1a2b3c4d", "result": result})

    assert connection.event_params(made)["result"] == json.dumps(result)
