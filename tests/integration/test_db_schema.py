"""The schema: new and upgraded databases are what the models say; others are refused."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db import migrate, schema
from adws.adw_modules.db.connection import EVENT_COLUMNS, STATE_COLUMNS
from adws.adw_modules.db.listing import Catalogue
from adws.adw_modules.errors import DatabaseError, SchemaMismatch, UsageError
from adws.adw_modules.events import FIELD_NAMES
from adws.adw_modules.interfaces import PageQuery
from tests import forked
from tests.contracts.worlds import FIRST, database_world, make_document, make_owner

#: The revision of this adw, and that of the step which tests put after it.
NOW = migrate.HEAD
LATER = f"{int(NOW) + 1:04}"


def is_ours(name: str | None, kind: str, parents: object) -> bool:
    """Procrastinate makes and changes its tables itself."""
    return kind != "table" or not str(name).startswith("procrastinate_")


OURS = {"include_name": is_ours}

# --- drift -----------------------------------------------------------------------------------------------------
#
# New databases are made from `db/schema.py`. What the first revision was is frozen in these files: whoever changes the
# schema adds a migration that brings a database of then to it.

BASELINES = Path(__file__).parents[1] / "migration" / "baseline"


@pytest.fixture
def upgraded(empty_database_url, clock):
    """A database that was made by the first revision, after all the steps since."""
    database = migrate.connect(empty_database_url, clock=clock)
    statements = (BASELINES / f"{database.dialect}.sql").read_text()
    if database.dialect == "sqlite":
        with contextlib.closing(sqlite3.connect(database.path)) as plain:
            plain.executescript(statements)
    else:
        with database.connect() as plain:
            plain.execute(statements)
    assert database.schema_version() == "0001"
    migrate.upgrade(database)
    yield database
    database.close()


def differences(database) -> list:
    with migrate.engine(database).connect() as connection:
        # SQLite has no identity columns: its INTEGER keys number themselves, which Alembic takes for a difference.
        options = {"compare_type": True, "compare_server_default": database.dialect != "sqlite", **OURS}
        return compare_metadata(MigrationContext.configure(connection, opts=options), schema.metadata)


def test_a_new_database_is_what_the_models_say(empty_database_url, open_db):
    assert differences(open_db(empty_database_url)) == []


def test_a_database_of_the_first_revision_is_brought_to_what_the_models_say(upgraded):
    assert differences(upgraded) == []


def test_a_drift_would_be_found(upgraded):
    with upgraded.write() as session:
        session.run("DROP INDEX ix_workflow_states_state")
        session.run("ALTER TABLE requests ADD COLUMN forgotten text")

    assert sorted(step[0] for step in differences(upgraded)) == ["add_index", "remove_column"]


def test_names_checks_and_conditions_are_the_same_either_way(upgraded, new_url, open_db):
    """
    Alembic compares neither names of constraints, nor checks, nor conditions of indexes: so their SQL is compared.
    """
    assert definitions(upgraded) == definitions(open_db(new_url))


@pytest.fixture
def new_url(upgraded, tmp_path, request):
    """The address of one more database of the same kind, with the schema of today."""
    if upgraded.dialect == "sqlite":
        return f"sqlite:///{tmp_path}/new/adw.db"

    return request.getfixturevalue("new_pg_url")()


def definitions(database) -> dict[str, list[str]]:
    """Every table, index, constraint and view by its name, as the words of its definition."""
    with database.read() as session:
        if database.dialect == "sqlite":
            rows = session.all(
                "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
                " AND name <> 'alembic_version'"
            )
        else:
            rows = session.all(
                """
                SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
                WHERE connamespace = current_schema()::regnamespace
                  AND conrelid::regclass::text NOT LIKE 'procrastinate%'
                UNION ALL SELECT indexname, indexdef FROM pg_indexes
                WHERE schemaname = current_schema() AND tablename NOT LIKE 'procrastinate%'
                UNION ALL SELECT viewname, definition FROM pg_views WHERE schemaname = current_schema()
                """
            )

    return {name: sorted(re.split(r"[\s,()]+", sql)) for name, sql in rows}


def test_a_view_that_drifted_would_be_found(upgraded, new_url, open_db):
    with upgraded.write() as session:
        session.run("DROP VIEW run_status")
        session.run("CREATE VIEW run_status AS SELECT run_id, adw_id FROM runs")

    assert definitions(upgraded) != definitions(open_db(new_url))


def test_the_version_constant_names_the_migrations_there_are():
    config = Config()
    config.set_main_option("script_location", "adws.adw_modules.db:migrations")
    scripts = ScriptDirectory.from_config(config)

    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == migrate.KNOWN
    assert scripts.get_heads() == [migrate.HEAD]


def test_queries_name_every_column_of_their_tables():
    assert tuple(column.name for column in schema.workflow_states.columns) == STATE_COLUMNS
    assert tuple(column.name for column in schema.events.columns)[1:] == EVENT_COLUMNS
    assert set(EVENT_COLUMNS) == set(FIELD_NAMES)


def test_the_body_is_the_last_column():
    """
    SQLite reads a row from its start: a list must not walk over long documents.
    """
    assert STATE_COLUMNS[-1] == "body"


# --- opening ---------------------------------------------------------------------------------------------------


def test_a_new_database_gets_the_schema_and_no_backup(empty_database_url, clock):
    database = migrate.connect(empty_database_url, clock=clock)
    assert database.schema_version() is None

    done = migrate.upgrade(database)

    assert (done.found, done.now, done.backup) == (None, migrate.HEAD, None)
    assert migrate.upgrade(database) == migrate.Upgrade(found=migrate.HEAD, now=migrate.HEAD)
    database.close()


def test_an_open_database_needs_neither_sqlalchemy_nor_alembic(sqlite_url):
    """
    Commands that only look must start fast: a schema that is current loads nothing more.
    """
    script = f"""
import sys
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db import listing as catalogue, migrate
from adws.adw_modules.ownership import issue_locks, leases
from adws.adw_modules.store import projection
from adws.adw_modules.store import database as state_store
from adws.adw_modules.interfaces import PageQuery
database = migrate.open_database({sqlite_url!r}, clock=SystemClock())
catalogue.Catalogue(database).page(PageQuery())
database.close()
print(sorted({{"sqlalchemy", "alembic", "psycopg"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("revision", ["9999", "0000"], ids=["newer", "older"])
def test_an_unknown_schema_is_refused_and_left_alone(empty_database_url, open_db, clock, revision):
    database = open_db(empty_database_url)
    with database.write() as session:
        session.run("UPDATE alembic_version SET version_num = :revision", {"revision": revision})

    with pytest.raises(SchemaMismatch, match=rf"has schema {revision}.*upgrade adw.*adw db rebuild"):
        migrate.open_database(empty_database_url, clock=clock)

    assert database.schema_version() == revision


def test_a_database_of_somebody_else_is_refused(tmp_path, clock):
    with sqlite3.connect(tmp_path / "adw.db") as other:
        other.execute("CREATE TABLE workflow_states (id INTEGER)")
    other.close()

    with pytest.raises(SchemaMismatch, match="did not make"):
        migrate.open_database(f"sqlite:///{tmp_path}/adw.db", clock=clock)


@pytest.mark.parametrize(
    "url",
    ["mysql://host/db", "sqlite://", "sqlite:///", "sqlite:///:memory:", "adw.db", "", "sqlite://relative.db"],
)
def test_a_url_that_names_no_database_is_refused(url, clock):
    with pytest.raises(UsageError):
        migrate.connect(url, clock=clock)


def test_a_relative_url_is_a_path_from_here(tmp_path, monkeypatch, open_db):
    monkeypatch.chdir(tmp_path)
    open_db("sqlite:///below/adw.db")

    assert (tmp_path / "below" / "adw.db").exists()


# --- upgrading -------------------------------------------------------------------------------------------------


@pytest.fixture
def a_step_ahead(monkeypatch, tmp_path):
    return step_ahead(monkeypatch, tmp_path)


def step_ahead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make this a later adw: one more migration, which a test may make fail."""
    folder = tmp_path / "later" / "versions"
    folder.mkdir(parents=True)
    for ours in (Path(migrate.__file__).parent / "migrations" / "versions").glob("0*.py"):
        (folder / ours.name).write_text(ours.read_text())
    (folder / f"{LATER}_colour.py").write_text(
        '"""Give requests a colour."""\n\nimport sqlalchemy as sa\nfrom alembic import op\n\n'
        f'revision, down_revision = "{LATER}", "{NOW}"\n\n\n'
        "def upgrade():\n"
        '    op.add_column("requests", sa.Column("colour", sa.Text))\n'
        "    op.execute(\"UPDATE requests SET colour = 'red'\")\n"
        '    op.execute("-- more steps follow here")\n'
    )
    original = ScriptDirectory.from_config
    config = Config()
    config.set_main_option("script_location", str(folder.parent))
    monkeypatch.setattr(ScriptDirectory, "from_config", staticmethod(lambda _: original(config)))
    monkeypatch.setattr(migrate, "KNOWN", (*migrate.KNOWN, LATER))
    monkeypatch.setattr(migrate, "HEAD", LATER)

    return folder / f"{LATER}_colour.py"


def test_an_older_schema_is_upgraded_at_open_and_its_rows_stay(empty_database_url, open_db, clock, request, caplog):
    before = open_db(empty_database_url)
    world = database_world(before, clock)
    asked = world.requests.ask(FIRST, "pause")
    request.getfixturevalue("a_step_ahead")

    after = open_db(empty_database_url)

    assert after.schema_version() == LATER
    with after.read() as session:
        assert session.all("SELECT request_id, colour FROM requests") == [(asked.request_id, "red")]
    (told,) = [record for record in caplog.records if getattr(record, "action", "") == "database_upgraded"]
    assert (getattr(told, "from"), told.to) == (NOW, LATER)
    assert f"before{'-' if after.dialect == 'sqlite' else '_'}{NOW}" in told.backup


def test_a_sqlite_upgrade_keeps_the_database_it_found(sqlite_url, open_db, clock, tmp_path, a_step_ahead):
    with sqlite3.connect(tmp_path / "adw.db") as plain:
        plain.execute("INSERT INTO adw_locks VALUES ('', 42, 'before', '')")
    plain.close()

    database = migrate.connect(sqlite_url, clock=clock)
    done = migrate.upgrade(database)
    database.close()

    assert (done.found, done.now) == (NOW, LATER)
    backup = tmp_path / f"adw.db.before-{NOW}.bak"
    assert done.backup == str(backup)
    assert backup.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(backup) as kept:
        assert kept.execute("SELECT version_num FROM alembic_version").fetchall() == [(NOW,)]
        assert kept.execute("SELECT adw_id FROM adw_locks").fetchall() == [("before",)]
    kept.close()


def rows_of(database, table: str) -> list[tuple]:
    with database.read() as session:
        return session.all(f"SELECT * FROM {table} ORDER BY 1")


@pytest.mark.postgres
def test_a_postgresql_upgrade_keeps_the_tables_it_found(empty_pg_url, open_db, clock, request):
    before = open_db(empty_pg_url)
    database_world(before, clock).requests.ask(FIRST, "pause")
    tables = [*schema.metadata.tables, "alembic_version"]
    there = {name: rows_of(before, name) for name in tables}
    request.getfixturevalue("a_step_ahead")

    done = migrate.upgrade(before)

    assert done.backup == f"the tables adw_before_{NOW}_*"
    assert {name: rows_of(before, f"adw_before_{NOW}_{name}") for name in tables} == there
    assert there["alembic_version"] == [(NOW,)]
    assert len(there["requests"]) == 1


@pytest.mark.postgres
def test_a_copy_of_tables_that_is_there_is_not_written_over(empty_pg_url, open_db, request):
    database = open_db(empty_pg_url)
    with database.write() as session:
        session.run(f"CREATE TABLE adw_before_{NOW}_runs AS SELECT 1 AS one")
    request.getfixturevalue("a_step_ahead")

    assert migrate.upgrade(database).backup == f"the tables adw_before_{NOW}x2_*"
    assert rows_of(database, f"adw_before_{NOW}_runs") == [(1,)]
    assert rows_of(database, f"adw_before_{NOW}x2_runs") == []


@pytest.mark.postgres
def test_the_page_says_how_to_go_back_to_the_tables_that_were_kept(empty_pg_url, open_db, clock, tmp_path):
    """Word for word: aside with the newer ones, make the older ones, fill them; numbers go on above."""
    page = (Path(__file__).resolve().parents[2] / "examples" / "downgrade.md").read_text()
    aside, fill = (textwrap.dedent(sql) for sql in re.findall(r"  ```sql\n(.*?)  ```", page, re.DOTALL))
    before = open_db(empty_pg_url)
    asked = database_world(before, clock).requests.ask(FIRST, "pause")
    there = rows_of(before, "requests")
    with pytest.MonkeyPatch.context() as newer:
        step_ahead(newer, tmp_path)
        assert migrate.upgrade(before).now == LATER
    before.close()

    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(empty_pg_url, autocommit=True) as person:
        person.execute(aside)
        open_db(empty_pg_url)
        person.execute(fill.replace("0001", NOW))

    after = open_db(empty_pg_url)
    assert (after.schema_version(), rows_of(after, "requests")) == (NOW, there)
    world = database_world(after, clock)
    assert world.requests.ask(FIRST, "pause").request_id > asked.request_id


def test_a_step_that_fails_leaves_the_schema_and_the_rows_as_they_were(empty_database_url, open_db, clock, request):
    database = open_db(empty_database_url)
    database_world(database, clock).requests.ask(FIRST, "pause")
    step = request.getfixturevalue("a_step_ahead")
    step.write_text(step.read_text() + '    op.execute("INSERT INTO no_such_table VALUES (1)")\n')

    with pytest.raises(DatabaseError, match="as it was before"):
        migrate.upgrade(database)

    assert database.schema_version() == NOW
    with database.read() as session:
        names = {column.name for column in schema.requests.columns}
        assert len(session.all("SELECT * FROM requests")[0]) == len(names)


def test_an_upgrade_that_is_killed_midway_is_made_again(empty_database_url, open_db, clock, request):
    database = open_db(empty_database_url)
    asked = database_world(database, clock).requests.ask(FIRST, "pause")
    step = request.getfixturevalue("a_step_ahead")
    whole = step.read_text()
    step.write_text(whole + "    import os\n    import signal\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    database.close()

    assert not forked.is_well(forked.start(lambda: migrate.upgrade(database)))
    assert database.schema_version() == NOW
    step.write_text(whole)
    assert migrate.upgrade(database).now == LATER
    with database.read() as session:
        assert session.all("SELECT request_id, colour FROM requests") == [(asked.request_id, "red")]


def test_a_second_failed_upgrade_does_not_write_over_the_first_backup(sqlite_url, clock, tmp_path, a_step_ahead):
    a_step_ahead.write_text(a_step_ahead.read_text() + '    op.execute("INSERT INTO no_such_table VALUES (1)")\n')
    database = migrate.connect(sqlite_url, clock=clock)
    for _ in range(2):
        with pytest.raises(DatabaseError):
            migrate.upgrade(database)
    database.close()

    assert sorted(path.name for path in tmp_path.glob("*.bak")) == [
        f"adw.db.before-{NOW}.2.bak",
        f"adw.db.before-{NOW}.bak",
    ]


def test_eight_processes_that_open_a_new_database_at_once_all_succeed(empty_database_url, open_db):
    def open_and_use(number: int) -> None:
        database = migrate.open_database(empty_database_url, clock=SystemClock(), boot_id="boot")
        world = database_world(database, SystemClock())
        document = make_document(f"{number:08x}", issue_number=number)
        world.registry.register(document, make_owner(str(number)), ttl_seconds=30.0)
        assert database.schema_version() == migrate.HEAD
        database.close()

    children = [forked.start(lambda number=number: open_and_use(number)) for number in range(1, 9)]

    assert [forked.is_well(child) for child in children] == [True] * 8
    database = open_db(empty_database_url)
    assert len(Catalogue(database).page(PageQuery()).rows) == 8
    assert database.integrity_problems() == []


def test_without_the_driver_postgresql_says_how_to_get_it(tmp_path):
    """
    The driver is an extra: who does not have it is told its name, not shown a traceback.
    """
    (tmp_path / "psycopg.py").write_text("raise ImportError('No module named psycopg')\n")
    script = """
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db import migrate
from adws.adw_modules.errors import DatabaseUnavailable
try:
    migrate.open_database("postgresql://localhost/adw", clock=SystemClock())
except DatabaseUnavailable as exc:
    print(exc)
"""
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)

    assert "pip install 'adw[postgres]'" in done.stdout
