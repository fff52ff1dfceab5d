"""A home moves from SQLite to PostgreSQL with all it has, or stays as it was; cut off anywhere, it moves again."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

import pytest

from adws import app as app_module
from adws.adw_modules.db import migrate, schema
from adws.adw_modules.errors import DatabaseError, DatabaseMoved, OwnershipError, StateInvalid
from adws.adw_modules.maintenance import move
from adws.adw_modules.maintenance.move import NOT_COPIED, TABLES
from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.schedule.store import Notice, NotificationStore, ScheduleStore
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.adw_modules.workflow.model import PhaseSpec, RetrySpec, WorkflowSpec
from adws.cli import maintenance
from adws.config import load as config_load
from tests import forked, sampling, templates

pytestmark = pytest.mark.postgres

LATER = RetrySpec(strategy="fixed", base_seconds=3600.0, max_seconds=3600.0)
DONE = (PhaseSpec(name="plan", state="planning", runner="command", shell="echo planned"),)
FLAKY = (
    PhaseSpec(name="plan", state="planning", runner="command", shell="true"),
    PhaseSpec(
        name="build",
        state="building",
        runner="command",
        shell="test -e mended || { echo connection reset by peer >&2; exit 1; }",
        retry=LATER,
    ),
)


class Home:
    """A home on SQLite, and the same home with the settings it has after it moved."""

    def __init__(self, place, store: str) -> None:
        self.path = place / "home"
        self.path.mkdir()
        self.store = store
        templates.prepare_home(self.path)

    def open(self, url: str = "", **env: str):
        settings = {"ADW_HOME": str(self.path), "ADW_STATE_STORE": self.store, "ADW_SANDBOX_MODE": "off", **env}
        if url:
            settings |= {"ADW_DATABASE_URL": url, "ADW_STATE_STORE": "database"}
        return app_module.open_home(config_load.load(env=settings, cwd=self.path), role="worker")

    def start(self, *phases: PhaseSpec, issue: int | None = None) -> str:
        with self.open() as app:
            spec = WorkflowSpec(name="moved", phases=phases)
            return app.workflow_creator.start(NewWorkflow(issue_number=issue, spec=spec)).adw_id

    def work(self, url: str = "") -> None:
        with self.open(url) as app:
            app.worker(WorkerOptions(once=True, recover_seconds=3600.0)).run()

    def move(self, url: str, **options):
        with self.open() as app:
            return maintenance.move(app, url, **options)

    def facts(self) -> dict[str, str]:
        with sqlite3.connect(self.path / "state" / "adw.db") as plain:
            return dict(plain.execute("SELECT name, value FROM home_facts"))


@pytest.fixture(params=["files", "database"])
def home(request, tmp_path):
    """A home with a workflow that is done, one that waits for a retry and has its issue, and a run of each kind."""
    made = Home(tmp_path, request.param)
    made.done = made.start(*DONE)
    made.flaky = made.start(*FLAKY, issue=7)
    made.work()
    with made.open() as app:
        app.runs.enqueue(NewRun(adw_id="dddddddd", kind="delivery", payload={"guid": "g-1"}))
        app.requests.ask(made.flaky, "hint", payload={"text": "look at naïve ✓"})
        keep(app)
        notices = NotificationStore(app.database, clock=app.clock)
        notices.add([Notice(key="k", kind="failed", title="t", text="x", channels=("command",))])
        book = ScheduleStore(app.database, clock=app.clock)
        tick = book.claim(
            "gc", spec="x", due="2026-01-01T00:00:00.000000Z", seen="", owner=app.processes.me("cron"), ttl_seconds=9.0
        )
        book.finish(tick, status="done", outcome="fine", memo={"kept": 1})
    return made


def keep(app):
    """Store a checkpoint of a task that is no workflow's."""
    return app.checkpoints.add(app.clock.token(), "task", '{"n": 1}', step_name=None, keep=5)


def rows_of(app, table: str) -> list[tuple]:
    keys = ", ".join(column.name for column in schema.metadata.tables[table].primary_key.columns)
    with app.database.read() as session:
        rows = session.all(f"SELECT * FROM {table} ORDER BY {keys}")
    return sorted(rows, key=repr)


# --- all of it -------------------------------------------------------------------------------------------------


def test_everything_is_there_afterwards_with_its_ids_tokens_and_fences(home, empty_pg_url):
    with home.open() as app:
        before = {table.name: rows_of(app, table.name) for table in TABLES}
        documents = {adw_id: app.store.load(adw_id).data for adw_id in app.store.ids()}
        histories = {adw_id: app.events.of_workflow(adw_id) for adw_id in documents}

    report = home.move(empty_pg_url)

    assert report.counts == {name: len(rows) for name, rows in before.items()}
    with home.open(empty_pg_url) as app:
        for name in before.keys() - {"workflow_states", "runs", "schedule", "notifications"}:
            assert rows_of(app, name) == before[name], name
        for name in ("runs", "schedule", "notifications"):
            assert len(rows_of(app, name)) == len(before[name])
        assert {adw_id: app.store.load(adw_id).data for adw_id in app.store.ids()} == {
            adw_id: {**data, "outbox": []} for adw_id, data in documents.items()
        }
        assert {adw_id: app.events.of_workflow(adw_id) for adw_id in documents} == histories
        fences = {row[0]: row[7] for row in before["workflow_states"]}
        assert {row[0]: row[7] for row in rows_of(app, "workflow_states")} == fences
        assert {row[0]: (row[7], row[3]) for row in rows_of(app, "runs")} == {
            row[0]: (row[7], row[3]) for row in before["runs"]
        }
        assert app.locks.all()[0].adw_id == home.flaky


def test_work_continues_there_with_new_ids_above_the_old(home, empty_pg_url):
    waiting = home.start(*DONE, issue=8)
    home.move(empty_pg_url)
    with home.open(empty_pg_url) as app:
        highest = max(run.run_id for run in app.runs.page(limit=100))
    home.work(empty_pg_url)

    with home.open(empty_pg_url) as app:
        document = app.store.load(waiting).document
        assert (document.current_state, [phase.attempts_used for phase in document.phases]) == ("completed", [1])
        assert [lock.adw_id for lock in app.locks.all()] == [home.flaky]
        assert app.runs.enqueue(NewRun(adw_id="eeeeeeee")).run_id > highest
        assert keep(app).sequence == 2


def test_numbers_that_were_given_and_deleted_do_not_come_again(home, empty_pg_url):
    with home.open() as app:
        app.checkpoints.delete("task")
    home.move(empty_pg_url)

    with home.open(empty_pg_url) as app:
        kept = keep(app)

    assert kept.sequence == 2


def test_waiting_runs_are_told_of_on_the_other_side(home, empty_pg_url, open_db):
    report = home.move(empty_pg_url)

    with open_db(empty_pg_url).read() as session:
        jobs = session.all("SELECT args ->> 'run_id' FROM procrastinate_jobs WHERE status = 'todo'")
        waiting = session.all("SELECT run_id::text FROM runs WHERE state = 'pending'")
    assert sorted(jobs) == sorted(waiting)
    assert report.announced == len(waiting) == 2


def test_leases_of_the_dead_are_over_there_and_their_workflows_taken_over(home, empty_pg_url):
    with home.open() as app:
        dead = replace(app.processes.me("worker"), boot_id="another-boot")
        app.leases.take(home.flaky, dead, ttl_seconds=3600.0)
    home.move(empty_pg_url)

    with home.open(empty_pg_url) as app, app.ownership.own(home.flaky) as owned:
        assert owned.document.adw_id == home.flaky


# --- the old one -----------------------------------------------------------------------------------------------


def test_the_old_database_says_where_it_went_and_refuses_who_has_it_open(home, empty_pg_url):
    url = empty_pg_url.replace("postgres:@", "postgres:hush@")
    with home.open() as late:
        assert late.runs.page(limit=1)
        with home.open() as app:
            maintenance.move(app, url)
        with pytest.raises(DatabaseError, match="has moved to postgresql://postgres:\\*\\*\\*@"):
            late.runs.enqueue(NewRun(adw_id="ffffffff"))

    with (
        home.open() as app,
        pytest.raises(DatabaseMoved, match=r"has moved to postgresql://postgres:\*\*\*@.*database"),
    ):
        app.runs.page(limit=1)
    assert "hush" not in json.dumps(home.facts())
    assert (home.path / "state" / "adw.db").exists()
    if home.store == "files":
        assert (home.path / "state" / home.done / "adw_state.json").exists()


def test_a_moved_database_of_an_older_schema_is_not_upgraded_any_more(home, empty_pg_url, clock, monkeypatch):
    home.move(empty_pg_url)
    monkeypatch.setattr("adws.adw_modules.db.migrate.HEAD", "9999")

    with pytest.raises(DatabaseMoved):
        migrate.open_database(f"sqlite:///{home.path}/state/adw.db", clock=clock)


# --- again -----------------------------------------------------------------------------------------------------


def test_a_second_move_says_it_is_done_and_checks_again(home, empty_pg_url):
    first = home.move(empty_pg_url)
    second = home.move(empty_pg_url)

    assert (second.was_done, second.gone_on, second.counts) == (True, 0, first.counts)
    with home.open(empty_pg_url) as app, app.ownership.own(home.flaky) as owned:
        owned.save(owned.document)
    assert home.move(empty_pg_url).gone_on == 1


def test_a_second_move_finds_what_is_missing_there(home, empty_pg_url, open_db):
    home.move(empty_pg_url)
    with open_db(empty_pg_url).write() as session:
        session.run("UPDATE workflow_states SET revision = 1 WHERE adw_id = :adw_id", {"adw_id": home.done})

    with pytest.raises(DatabaseError, match=f"lacks what .* has of {home.done}"):
        home.move(empty_pg_url)


def test_a_moved_home_does_not_move_somewhere_else(home, empty_pg_url, new_pg_url):
    home.move(empty_pg_url)

    with pytest.raises(DatabaseMoved):
        home.move(new_pg_url())


@pytest.mark.parametrize(
    ("step", "home"),
    sampling.each_value_once(
        ["_holders", "_filled", "_fill", "_refuse_used", "_note", "_sums", "_close_source"], ["files", "database"]
    ),
    indirect=["home"],
)
def test_a_move_that_is_killed_anywhere_is_made_again_and_ends_the_same(home, empty_pg_url, step, open_db):
    """
    Killed on the way into each step and right after it: the old database is in use, or everything has moved.
    """
    original = getattr(move.PostgresMove, step)
    for is_before in (True, False):

        def die(self, *args, _is_before=is_before, **kwargs):
            import os
            import signal

            if not _is_before:
                result = original(self, *args, **kwargs)
                list(result) if step == "_holders" else result
            os.kill(os.getpid(), signal.SIGKILL)

        def child(_die=die) -> None:
            setattr(move.PostgresMove, step, _die)
            home.move(empty_pg_url)

        assert not forked.is_well(forked.start(child))
        assert migrate.MOVED_TO not in home.facts()

    report = home.move(empty_pg_url)

    assert migrate.MOVED_TO in home.facts()
    with open_db(empty_pg_url).read() as session:
        assert {t.name: session.one(f"SELECT count(*) FROM {t.name}")[0] for t in TABLES} == report.counts


def test_a_copy_that_was_made_before_the_old_one_changed_is_made_again(home, empty_pg_url, monkeypatch):
    """
    Cut off before the mark, the home goes on as it was; the next move takes what came since.
    """
    _cut_off(home, empty_pg_url, monkeypatch)
    newer = home.start(*DONE)

    home.move(empty_pg_url)

    with home.open(empty_pg_url) as app:
        assert app.store.exists(newer)


def test_when_both_changed_a_person_decides(home, empty_pg_url, monkeypatch):
    _cut_off(home, empty_pg_url, monkeypatch)
    home.start(*DONE)
    with home.open(empty_pg_url) as app:
        app.runs.enqueue(NewRun(adw_id="ffffffff"))

    with pytest.raises(DatabaseError, match=r"both .* have been worked on"):
        home.move(empty_pg_url)
    assert migrate.MOVED_TO not in home.facts()


def test_a_copy_that_is_not_the_same_keeps_the_old_one_in_use(home, empty_pg_url, monkeypatch):
    original = move.insert_rows

    def wrong(session, table, rows):
        original(session, table, [{**row, "reason": "?"} for row in rows] if table.name == "runs" else rows)

    with monkeypatch.context() as patched:
        patched.setattr(move, "insert_rows", wrong)
        with pytest.raises(DatabaseError, match="not the same in runs"):
            home.move(empty_pg_url)
    with home.open() as app:
        assert app.runs.page(limit=1)


def _cut_off(home: Home, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill the new database, and end before the old one is marked."""
    with monkeypatch.context() as patched:
        patched.setattr(move.PostgresMove, "_close_source", _fail)
        with pytest.raises(RuntimeError):
            home.move(url)


def _fail(*_args: object) -> None:
    raise RuntimeError


# --- refused ---------------------------------------------------------------------------------------------------


def test_nothing_moves_while_somebody_works(home, empty_pg_url, open_db):
    with home.open() as app, app.ownership.own(home.flaky):
        with pytest.raises(OwnershipError, match=home.flaky):
            home.move(empty_pg_url)
        run = app.runs.enqueue(NewRun(adw_id="ffffffff"))
    with home.open() as app:
        claimed = app.runs.claim(app.processes.me("worker"), ttl_seconds=3600.0, run_id=run.run_id)
        with pytest.raises(OwnershipError, match=rf"run {claimed.run_id} \(worker \d+@.*stop them first"):
            home.move(empty_pg_url)

    with open_db(empty_pg_url).read() as session:
        assert session.all("SELECT * FROM workflow_states") == []


def test_nothing_moves_while_a_worker_is_there(home, empty_pg_url):
    with home.open() as app:
        owner, clock = app.processes.me("worker"), app.database.lease_clock()
        with app.database.write() as session:
            session.run(
                "INSERT INTO runners VALUES ('r', :owner, 'h', '[]', 1, 0, '1', 0, '', '', :now, :boot)",
                {"owner": owner.to_text(), **clock},
            )
        with pytest.raises(OwnershipError, match=r"somebody is at work: worker \(worker"):
            home.move(empty_pg_url)


def test_only_an_empty_database_is_moved_to(home, pg_url, open_db):
    with open_db(pg_url).write() as session:
        session.run("INSERT INTO adw_locks VALUES ('', 42, 'aaaaaaaa', '')")

    with pytest.raises(DatabaseError, match=r"is not empty \(it has adw_locks\)"):
        home.move(pg_url)
    with pytest.raises(DatabaseError, match="is not empty"):
        home.move(pg_url, dry_run=True)


def test_a_database_that_another_home_moved_to_is_refused(home, empty_pg_url, tmp_path_factory):
    other = Home(tmp_path_factory.mktemp("other"), "files")
    other.start(*DONE)
    other.move(empty_pg_url)

    with pytest.raises(DatabaseError, match="holds another home"):
        home.move(empty_pg_url)


def test_a_dry_run_counts_and_changes_nothing(home, empty_pg_url, clock):
    before = home.facts()

    report = home.move(empty_pg_url, dry_run=True)

    assert report.is_dry_run
    assert report.counts["workflow_states"] == 2
    assert home.facts() == before
    database = migrate.connect(empty_pg_url, clock=clock)
    assert database.schema_version() is None
    database.close()


def test_a_document_that_the_database_does_not_know_is_named_and_nothing_moves(tmp_path, empty_pg_url):
    home = Home(tmp_path, "files")
    adw_id = home.start(*DONE)
    with sqlite3.connect(home.path / "state" / "adw.db") as plain:
        plain.execute("DELETE FROM workflow_states")
    plain.close()

    with pytest.raises(StateInvalid, match=rf"as they are on the disk: {adw_id}; adw db rebuild"):
        home.move(empty_pg_url)
    assert migrate.MOVED_TO not in home.facts()


def test_a_broken_file_moves_as_the_copy_that_stands_in_for_it(tmp_path, empty_pg_url):
    home = Home(tmp_path, "files")
    adw_id = home.start(*DONE)
    (home.path / "state" / adw_id / "adw_state.json").write_text("{")
    home.move(empty_pg_url)

    with home.open(empty_pg_url) as app:
        assert app.store.load(adw_id).document.adw_id == adw_id


def test_every_table_is_copied_but_those_that_are_left_out_on_purpose():
    assert {table.name for table in TABLES} | NOT_COPIED == set(schema.metadata.tables)
