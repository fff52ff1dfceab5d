"""Rows in tables of the user, on both databases: each part once, and sentences for what does not fit."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adws.adw_modules.errors import DatabaseUnavailable, SinkRefused
from adws.adw_modules.steps.sinks import SqliteSink
from tests import forked


class World:
    """A database of a user, and sinks on it."""

    def __init__(self, make: Callable[[], object], ask: Callable[..., list[tuple]]) -> None:
        self.make = make
        self.ask = ask
        self.sink = make()

    def save(self, rows, key="e#0#1", *, table="t", columns=()):
        return self.sink.save(table, rows, sink_key=key, key=columns)


def _sqlite(path: Path) -> World:
    def ask(statement: str) -> list[tuple]:
        path.parent.mkdir(exist_ok=True)
        connection = sqlite3.connect(path)
        try:
            result = connection.execute(statement).fetchall()
            connection.commit()
            return result
        finally:
            connection.close()

    return World(lambda: SqliteSink(path), ask)


def _postgres(url: str) -> World:
    import psycopg

    from adws.adw_modules.steps.postgres_sink import PostgresSink

    def ask(statement: str) -> list[tuple]:
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    return World(lambda: PostgresSink(url, name="main"), ask)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = (
        _sqlite(tmp_path / "data" / "user.db")
        if request.param == "sqlite"
        else _postgres(request.getfixturevalue("empty_pg_url"))
    )
    yield made
    made.sink.close()


def test_a_part_is_saved_once_however_often_it_is_saved(world):
    first = [world.save([{"id": 1, "name": "ada"}, {"id": 2, "name": "bob"}]) for _ in range(3)]
    again = world.make()
    later = again.save("t", [{"id": 1, "name": "ada"}], sink_key="e#0#1", key=())
    again.close()
    world.save([{"id": 3, "name": "eve"}], "e#0#2")

    assert (first, later) == ([True, False, False], False)
    assert world.ask("SELECT id, name FROM t ORDER BY id") == [(1, "ada"), (2, "bob"), (3, "eve")]


def test_a_table_of_the_user_stays_as_it_is(world):
    world.ask("CREATE TABLE t (id INTEGER, name TEXT, extra TEXT)")
    world.save([{"name": "ada", "id": 1}])

    assert world.ask("SELECT * FROM t") == [(1, "ada", None)]


def test_columns_that_the_table_lacks_are_named_and_nothing_is_saved(world):
    world.ask("CREATE TABLE t (id INTEGER)")

    with pytest.raises(SinkRefused, match="the table t has no column age, name"):
        world.save([{"id": 1, "age": 2, "name": "x"}])

    assert world.ask("SELECT * FROM t") == []
    assert world.save([{"id": 1}]) is True  # its key was not taken


def test_rows_that_are_refused_in_the_middle_leave_nothing_behind(world):
    world.ask("CREATE TABLE t (id INTEGER NOT NULL, name TEXT)")

    with pytest.raises(SinkRefused):
        world.save([{"id": 1, "name": "a"}, {"id": None, "name": "b"}])
    world.save([{"id": 1, "name": "a"}])

    assert world.ask("SELECT id FROM t") == [(1,)]


def test_upsert_changes_the_row_with_the_same_key(world):
    world.save([{"id": 1, "name": "ada"}, {"id": 2, "name": "bob"}], columns=("id",))
    world.save([{"id": 2, "name": "rob"}, {"id": 3, "name": "eve"}], "e#1#1", columns=("id",))
    world.save([{"id": 2, "name": "old"}], columns=("id",))  # a part that was saved before changes nothing

    assert world.ask("SELECT id, name FROM t ORDER BY id") == [(1, "ada"), (2, "rob"), (3, "eve")]


def test_upsert_needs_a_unique_index_and_a_key_in_every_row(world):
    world.ask("CREATE TABLE t (id INTEGER, name TEXT)")

    with pytest.raises(SinkRefused, match=r'no unique index on \("id"\)'):
        world.save([{"id": 1, "name": "x"}], columns=("id",))
    with pytest.raises(SinkRefused, match="row 1 has no id"):
        world.save([{"id": None, "name": "x"}], columns=("id",))
    with pytest.raises(SinkRefused, match="what the call gave back has no column id"):
        world.save([{"name": "x"}], columns=("id",))
    world.ask("CREATE UNIQUE INDEX t_id ON t (id)")

    assert world.save([{"id": 1, "name": "x"}], columns=("id",)) is True


def test_names_are_quoted_whatever_is_in_them(world):
    hostile = {'a"); DROP TABLE t; --': 1, "select": 2, "mit Leerzeichen": 3, "100%s": 4, "a.b": 5}

    world.save([hostile], table="order")

    assert world.ask('SELECT "select", "100%s", "a.b" FROM "order"') == [(2, 4, 5)]


def test_a_table_is_made_of_what_the_first_rows_hold(world):
    row = {"flag": True, "count": 2**40, "ratio": 0.5, "text": "ä", "list": [1, {"a": None}], "empty": None}

    world.save([row, {"text": "second"}])

    result = world.ask("SELECT flag, count, ratio, text, empty FROM t ORDER BY count")
    assert sorted(result, key=lambda one: one[3]) == [(None, None, None, "second", None), (1, 2**40, 0.5, "ä", None)]


def test_lanes_that_save_the_first_rows_at_the_same_time_make_one_table(world):
    sinks = [world.make() for _ in range(6)]
    for number, sink in enumerate(sinks):
        sink.save("before", [{"id": number}], sink_key=f"b#{number}#1", key=())  # all are connected
    errors: list[BaseException] = []
    together = threading.Barrier(6)

    def save(number: int) -> None:
        together.wait()
        try:
            sinks[number].save("t", [{"id": number}], sink_key=f"e#{number // 2}#1", key=())
        except BaseException as exc:  # noqa: BLE001 - told below
            errors.append(exc)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sink in sinks:
        sink.close()

    assert errors == []
    # Two saved under each key: one of them counts.
    assert sorted(number // 2 for (number,) in world.ask("SELECT id FROM t")) == [0, 1, 2]


def test_a_forked_child_uses_a_connection_of_its_own(world):
    world.save([{"id": 1}])
    child = forked.start(lambda: world.save([{"id": 2}], "e#1#1") or None)

    assert forked.is_well(child)
    world.save([{"id": 3}], "e#2#1")
    assert world.ask("SELECT id FROM t ORDER BY id") == [(1,), (2,), (3,)]


# --- one dialect alone -----------------------------------------------------------------------------------------


def test_a_file_that_was_moved_away_is_made_again(tmp_path):
    world = _sqlite(tmp_path / "user.db")
    world.save([{"id": 1}])
    (tmp_path / "user.db").rename(tmp_path / "old.db")
    world.save([{"id": 2}], "e#1#1")
    world.sink.close()

    assert world.ask("SELECT id FROM t") == [(2,)]


def test_a_file_that_another_program_locks_is_waited_for_and_then_named(tmp_path):
    other = sqlite3.connect(tmp_path / "user.db")
    other.execute("CREATE TABLE mine (id)")
    other.execute("BEGIN EXCLUSIVE")
    sink = SqliteSink(tmp_path / "user.db", patience_seconds=0.05)

    with pytest.raises(DatabaseUnavailable, match=r"user\.db: database is locked"):
        sink.save("t", [{"id": 1}], sink_key="e#0#1", key=())
    other.rollback()
    other.close()

    assert sink.save("t", [{"id": 1}], sink_key="e#0#1", key=()) is True
    sink.close()


@pytest.mark.postgres
def test_postgres_rounds_no_number_and_reads_what_texts_say(empty_pg_url):
    world = _postgres(empty_pg_url)
    world.ask("CREATE TABLE t (id bigint, at timestamptz, body jsonb, note text)")
    world.save([{"id": 1.0, "at": "2026-01-01T00:00:00Z", "body": 7, "note": [1]}])

    with pytest.raises(SinkRefused, match=r"whole numbers, and 1\.5 is not one"):
        world.save([{"id": 1.5}], "e#1#1")
    with pytest.raises(SinkRefused, match="type timestamp with time zone, and cannot hold a list"):
        world.save([{"at": [1]}], "e#1#1")
    with pytest.raises(SinkRefused, match="invalid input syntax"):
        world.save([{"at": "yesterday-ish"}], "e#1#1")
    with pytest.raises(SinkRefused, match="does not take the rows"):
        world.save([{"note": "a\x00b"}], "e#1#1")

    assert world.ask("SELECT id, extract(year FROM at)::int, body, note FROM t") == [(1, 2026, 7, "[1]")]
    world.sink.close()


@pytest.mark.postgres
def test_a_connection_that_the_server_ended_is_made_again(empty_pg_url):
    world = _postgres(empty_pg_url)
    world.save([{"id": 1}])
    world.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'adw'")
    world.save([{"id": 2}], "e#1#1")

    assert world.ask("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
    world.sink.close()


@pytest.mark.postgres
def test_a_writer_that_was_killed_in_its_transaction_saved_nothing_and_is_repeated(empty_pg_url):
    import psycopg

    world = _postgres(empty_pg_url)
    world.save([{"id": 1}])
    world.sink.close()
    waits = "SELECT pid FROM pg_stat_activity WHERE application_name = 'adw' AND wait_event_type = 'Lock'"
    with psycopg.connect(empty_pg_url) as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")  # its key is taken, its rows are not in yet
        child = forked.start(lambda: world.save([{"id": 2}, {"id": 3}], "e#1#1") and None)
        while not world.ask(waits):
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    assert world.save([{"id": 2}, {"id": 3}], "e#1#1") is True
    assert world.save([{"id": 2}, {"id": 3}], "e#1#1") is False
    assert world.ask("SELECT id FROM t ORDER BY id") == [(1,), (2,), (3,)]
    world.sink.close()


@pytest.mark.postgres
def test_a_commit_whose_answer_was_lost_is_not_done_twice(empty_pg_url):
    world = _postgres(empty_pg_url)
    world.save([{"id": 1}])
    connection = world.sink._connection
    real = connection.transaction

    @contextmanager
    def lost() -> Iterator[None]:
        with real():
            yield
        world.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'adw'")
        connection.execute("SELECT 1")  # what reads the answer finds nobody

    connection.transaction = lost

    assert world.save([{"id": 2}], "e#1#1") is False  # it had been saved, though nobody could know
    assert world.ask("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
    world.sink.close()


@pytest.mark.postgres
def test_a_server_that_cannot_be_reached_is_told_without_the_password(empty_pg_url):
    from adws.adw_modules.steps.postgres_sink import PostgresSink

    sink = PostgresSink("postgresql://adw@127.0.0.1:1/x", password="hunter2-hunter2", name="main")

    with pytest.raises(DatabaseUnavailable, match="cannot save to the database main") as raised:
        sink.save("t", [{"id": 1}], sink_key="e#0#1", key=())
    assert "hunter2" not in str(raised.value)


@pytest.mark.postgres
def test_a_user_who_may_not_make_tables_can_use_those_that_are_there(empty_pg_url, pg_server):
    world = _postgres(empty_pg_url)
    world.save([{"id": 1}])
    for statement in (
        "CREATE ROLE clerk",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        "GRANT SELECT, INSERT ON t, _adw_sink_keys TO clerk",
    ):
        world.ask(statement)
    world.sink.close()
    from adws.adw_modules.steps.postgres_sink import PostgresSink

    clerk = PostgresSink(f"{empty_pg_url}{'&' if '?' in empty_pg_url else '?'}options=-c%20role%3Dclerk", name="main")
    try:
        assert clerk.save("t", [{"id": 2}], sink_key="e#1#1", key=()) is True
        with pytest.raises(SinkRefused, match="permission denied"):
            clerk.save("new_table", [{"id": 2}], sink_key="e#2#1", key=())
    finally:
        clerk.close()
        world.ask("DROP OWNED BY clerk")
        world.ask("DROP ROLE clerk")


@pytest.mark.postgres
def test_postgres_saves_into_a_schema(empty_pg_url):
    world = _postgres(empty_pg_url)
    world.ask("CREATE SCHEMA raw")
    world.save([{"id": 1}], table="raw.pages")

    assert world.ask("SELECT id FROM raw.pages") == [(1,)]
    world.sink.close()


def test_sqlite_says_which_number_is_too_large_for_it(tmp_path):
    sink = SqliteSink(tmp_path / "user.db")

    with pytest.raises(SinkRefused, match="column id is too large for SQLite"):
        sink.save("t", [{"id": 2**63}], sink_key="e#0#1", key=())
    sink.close()
