"""The tables of Procrastinate are made with ours, upgraded when it is, and left alone when they are not ours."""

from __future__ import annotations

import shutil
import subprocess
import sys

import psycopg
import pytest

from adws.adw_modules.db import migrate
from adws.adw_modules.errors import DatabaseUnavailable, SchemaMismatch
from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.queue.store import RunStore
from tests import forked
from tests.contracts.worlds import FIRST

pytestmark = pytest.mark.postgres

LAST = max(path.stem for path in (migrate.procrastinate_files() / "migrations").glob("*.sql"))

#: What there is, as text: columns, functions with their bodies, triggers and indexes.
EVERYTHING = """
SELECT 'column', table_name, column_name || ' ' || data_type FROM information_schema.columns
WHERE table_name LIKE 'procrastinate%'
UNION ALL SELECT 'function', proname, regexp_replace(pg_get_functiondef(oid), '\\s+', ' ', 'g') FROM pg_proc
WHERE proname LIKE 'procrastinate%'
UNION ALL SELECT 'trigger', tgname, tgrelid::regclass::text FROM pg_trigger WHERE tgname LIKE 'procrastinate%'
UNION ALL SELECT 'index', indexname, tablename FROM pg_indexes WHERE tablename LIKE 'procrastinate%'
UNION ALL SELECT 'comment', 'procrastinate_jobs', obj_description('procrastinate_jobs'::regclass)
ORDER BY 1, 2, 3
"""


@pytest.fixture
def connection(empty_pg_url):
    with psycopg.connect(empty_pg_url) as made:
        yield made


def everything(connection) -> list[tuple]:
    return connection.execute(EVERYTHING).fetchall()


def names(connection) -> set[tuple[str, str]]:
    return {(kind, name) for kind, name, _ in everything(connection)}


def test_they_are_made_with_our_own(empty_pg_url, open_db, clock):
    database = open_db(empty_pg_url)

    RunStore(database, clock=clock).enqueue(NewRun(adw_id=FIRST))

    with psycopg.connect(empty_pg_url) as connection:
        assert migrate.procrastinate_step(connection, "x") == LAST
        assert connection.execute("SELECT count(*) FROM procrastinate_jobs").fetchone() == (1,)


def test_to_bring_up_what_is_up_changes_nothing(connection):
    migrate.upgrade_procrastinate(connection, "x")
    before = everything(connection)

    migrate.upgrade_procrastinate(connection, "x")

    assert everything(connection) == before


@pytest.mark.parametrize("last", ["03.01.00_50_post_add_heartbeat", "03.03.00_01_pre_priority_lock_fetch_job"])
def test_what_an_older_procrastinate_made_is_upgraded_to_the_same(connection, new_pg_url, tmp_path, last):
    older = tmp_path / "sql"
    shutil.copytree(migrate.procrastinate_files(), older)
    steps = sorted((older / "migrations").glob("*.sql"))
    with connection.transaction():
        for step in steps:
            if step.stem <= last:
                connection.execute(step.read_bytes())
        migrate.mark_procrastinate(connection, last)
        connection.execute("INSERT INTO procrastinate_jobs (queue_name, task_name) VALUES ('q', 'kept')")

    with connection.transaction():
        migrate.upgrade_procrastinate(connection, "x")

    with psycopg.connect(new_pg_url()) as fresh:
        assert names(connection) == names(fresh)
    assert migrate.procrastinate_step(connection, "x") == LAST
    assert connection.execute("SELECT task_name FROM procrastinate_jobs").fetchall() == [("kept",)]


def test_tables_of_somebody_else_are_left_alone(connection):
    with connection.transaction():
        connection.execute((migrate.procrastinate_files() / "schema.sql").read_bytes())

    with pytest.raises(SchemaMismatch, match="adw did not make: use another database"):
        migrate.upgrade_procrastinate(connection, "x")


def test_those_of_a_newer_one_are_refused(connection):
    migrate.upgrade_procrastinate(connection, "x")
    migrate.mark_procrastinate(connection, "99.00.00_01_later")

    with pytest.raises(SchemaMismatch, match=r"newer Procrastinate \(99.00.00_01_later, installed is 0"):
        migrate.upgrade_procrastinate(connection, "x")


def test_two_that_begin_at_once_make_them_once(empty_pg_url, open_db):
    def make() -> None:
        open_db(empty_pg_url).close()

    children = [forked.start(make) for _ in range(3)]

    assert [forked.is_well(child) for child in children] == [True, True, True]


def test_a_missing_procrastinate_is_named(monkeypatch):
    monkeypatch.setattr(migrate.importlib.util, "find_spec", lambda _name: None)

    with pytest.raises(DatabaseUnavailable, match=r"pip install 'adw\[postgres\]'"):
        migrate.procrastinate_files()


def test_storing_a_run_does_not_import_procrastinate(pg_url):
    script = f"""
import sys
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db import migrate; from adws.adw_modules.queue import store as run_queue
from adws.adw_modules.queue.model import NewRun
clock = SystemClock()
database = migrate.open_database({pg_url!r}, clock=clock)
run_queue.RunStore(database, clock=clock).enqueue(NewRun(adw_id="{FIRST}"))
sys.exit(any(name.split(".")[0] in {{"procrastinate", "psycopg_pool", "sqlalchemy"}} for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
