"""What is old is forgotten as the settings say, on both databases, and never what somebody still needs."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest

from adws import app as app_module
from adws.adw_modules import timestamps
from adws.adw_modules.errors import OwnershipError, WorkflowBusy
from adws.adw_modules.external_tasks import ExternalTask
from adws.adw_modules.housekeeping import retention
from adws.adw_modules.housekeeping.retention import OldFiles, OldRows
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.schedule.store import Notice, NotificationStore
from adws.adw_modules.steps.model import NewExecution
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.adw_modules.workflow.model import LoopSpec, PhaseSpec, StepSpec, WorkflowSpec
from adws.config import load as config_load
from tests import forked, sampling
from tests.contracts.worlds import make_owner

DONE = (PhaseSpec(name="plan", state="planning", runner="command", shell="echo planned"),)
FAILING = (PhaseSpec(name="plan", state="planning", runner="command", shell="exit 1", max_attempts=1),)
ALL = {f"ADW_RETENTION_{name}_DAYS": "30" for name in ("EVENTS", "LOGS", "DELIVERIES", "WORKFLOWS")}
SETTINGS = ("ADW_RETENTION_LOGS_DAYS", "ADW_RETENTION_WORKFLOWS_DAYS")
TABLES = (
    "workflow_states",
    "events",
    "runs",
    "requests",
    "sessions",
    "task_checkpoints",
    "quota_reservations",
    "ports",
    "external_tasks",
    "executions",
)


class _ClockOf:
    """The clock of the machine, some days ago."""

    def __init__(self, clock, days: float) -> None:
        self._clock = clock
        self._days = days

    def now(self):
        return self._clock.now() - timedelta(days=self._days)

    def __getattr__(self, name):
        return getattr(self._clock, name)


class Home:
    def __init__(self, path, url: str, store: str) -> None:
        self.path, self.url, self.store = path, url, store
        self.opened = []

    def open(self, *, days_ago: float = 0.0, **env: str):
        """Open the home; what *env* does not say is kept for ever, but for events and deliveries as said before."""
        for name in ("EVENTS_DAYS", "DELIVERIES_DAYS"):
            if (days := env.pop(f"ADW_RETENTION_{name}", None)) is not None:
                setattr(retention, name, int(days))
        given = {
            "ADW_HOME": str(self.path),
            "ADW_DATABASE_URL": self.url,
            "ADW_STATE_STORE": self.store,
            **dict.fromkeys(SETTINGS, "0"),
            **env,
        }
        app = app_module.open_home(
            config_load.load(env=given, cwd=self.path),
            role="worker",
            wrap_clock=lambda clock: _ClockOf(clock, days_ago),
        )
        self.opened.append(app)
        return app

    def run(self, *phases: PhaseSpec, days_ago: float, issue: int | None = None) -> str:
        """Carry a workflow out so many days ago, and return its id."""
        with self.open(days_ago=days_ago) as app:
            spec = WorkflowSpec(name="old", phases=phases)
            adw_id = app.workflow_creator.start(NewWorkflow(issue_number=issue, spec=spec)).adw_id
            app.worker(WorkerOptions(once=True, recover_seconds=3600.0)).run()
        return adw_id

    def folder(self, adw_id: str):
        return self.path / "state" / adw_id


#: The store, and the database that it has or has beside it.
STORES = ["files-sqlite_url", "database-sqlite_url", "database-pg_url"]
PLACES = [
    pytest.param(place, marks=pytest.mark.postgres if "pg" in place else ()) for place in sampling.some(STORES, 2)
]


@pytest.fixture(params=PLACES)
def home(request, tmp_path, monkeypatch):
    for name in ("EVENTS_DAYS", "DELIVERIES_DAYS"):
        monkeypatch.setattr(retention, name, 0)  # for ever; `Home.open` changes them
    store, _, url = request.param.partition("-")
    path = tmp_path / "home"
    path.mkdir()
    made = Home(path, request.getfixturevalue(url), store)
    yield made
    for app in made.opened:
        app.close()


def kinds(app) -> list[str]:
    return [old.kind for old in app.retention.find()]


def count(app, table: str, adw_id: str) -> int:
    with app.database.read() as session:
        return session.one(f"SELECT count(*) FROM {table} WHERE adw_id = :adw_id", {"adw_id": adw_id})[0]


# --- nothing is forgotten that is not old ----------------------------------------------------------------------


def test_the_plan_changes_nothing_and_is_in_that_of_gc(home):
    adw_id = home.run(*DONE, days_ago=40)
    app = home.open(**ALL)

    orphans = [orphan for orphan in app.collector.find() if orphan.kind.endswith("_old")]

    assert [(orphan.kind, orphan.adw_id) for orphan in orphans] == [
        ("workflow_old", adw_id),
        ("events_old", ""),
        ("logs_old", ""),
    ]
    assert orphans[0].why == "older than 30 days (retention.workflows_days)"
    assert orphans[1].name.endswith("events of 1 finished workflow")
    assert app.store.exists(adw_id)
    assert home.folder(adw_id).exists()


# --- events ----------------------------------------------------------------------------------------------------


def test_old_events_of_finished_workflows_go_and_those_of_others_stay(home, monkeypatch):
    monkeypatch.setattr(retention, "AT_ONCE", 3)  # several transactions
    done, failed = home.run(*DONE, days_ago=40), home.run(*FAILING, days_ago=40)
    young = home.run(*DONE, days_ago=1)
    app = home.open(ADW_RETENTION_EVENTS_DAYS="30")
    before = {adw_id: len(app.events.of_workflow(adw_id)) for adw_id in (done, failed, young)}
    (old,) = app.retention.find()

    said = app.retention.forget(old)

    assert old.name == f"{before[done]} events of 1 finished workflow"
    assert said == f"{before[done]} forgotten"
    assert {adw_id: len(app.events.of_workflow(adw_id)) for adw_id in before} == {**before, done: 0}
    assert app.store.exists(done)
    assert app.retention.find() == ()


def test_the_newest_event_stays_so_that_its_number_is_not_given_again(home):
    home.run(*DONE, days_ago=40)
    app = home.open(ADW_RETENTION_EVENTS_DAYS="30")
    with app.database.read() as session:
        highest = session.one("SELECT max(seq) FROM events")

    app.retention.forget_all()

    with app.database.read() as session:
        assert session.all("SELECT seq FROM events") == [highest]


def test_notifications_continue_where_they_were_after_events_were_forgotten(home):
    """
    How far events were looked through is known by an event: that one stays, and those that were not looked at yet.
    """
    app = home.open(ADW_RETENTION_EVENTS_DAYS="30")
    book = NotificationStore(app.database, clock=app.clock)
    seen: list[str] = []

    def pick(event) -> Notice | None:
        seen.append(event.event_id)

    first, second = home.run(*DONE, days_ago=40), home.run(*DONE, days_ago=39)
    with app.database.read() as session:
        (middle,) = session.one("SELECT max(seq) FROM events WHERE adw_id = :adw_id", {"adw_id": first})
        (event_id,) = session.one("SELECT event_id FROM events WHERE seq = :seq", {"seq": middle})
    with app.database.write() as session:
        session.run(
            "INSERT INTO notification_cursor VALUES ('events', :seq, :event_id)", {"seq": middle, "event_id": event_id}
        )

    app.retention.forget_all()
    with app.database.read() as session:
        assert session.one("SELECT min(seq) FROM events") == (middle,)
    book.gather(pick, since="9999")

    assert seen == [event.event_id for event in app.events.of_workflow(second)]
    seen.clear()
    app.retention.forget_all()
    newest = home.run(*DONE, days_ago=0)
    book.gather(pick, since="9999")
    assert seen == [event.event_id for event in app.events.of_workflow(newest)]


def test_what_is_forgotten_was_counted_and_stays_counted(home):
    """
    Nobody looked at the metrics before: the events are counted by whoever deletes them.
    """
    old, young = home.run(*DONE, days_ago=40), home.run(*DONE, days_ago=1)
    app = home.open(**ALL)
    app.retention.forget_all()

    assert not app.store.exists(old)
    assert app.store.exists(young)
    app.tally.catch_up()
    assert app.tally.counted()["adw_attempts_total"] == {("plan", "succeeded"): 2.0}
    with app.database.read() as session:
        assert session.one("SELECT count(*) FROM events WHERE adw_id = :adw_id", {"adw_id": old}) == (0,)


# --- logs ------------------------------------------------------------------------------------------------------


def test_old_logs_and_output_of_finished_workflows_go_and_the_document_stays(home):
    done, failed, young = (
        home.run(*DONE, days_ago=40),
        home.run(*FAILING, days_ago=40),
        home.run(*DONE, days_ago=1),
    )
    app = home.open(ADW_RETENTION_LOGS_DAYS="30")
    files = OldFiles(home.path / "state")
    had = {adw_id: files.output_of(adw_id) for adw_id in (done, failed, young)}
    assert {"adw.log", "phases/plan/attempt-1.stdout.log"} <= set(had[done])
    (old,) = app.retention.find()

    app.retention.forget(old)

    assert files.output_of(done) == ()
    assert not (home.folder(done) / "phases").exists()
    assert {adw_id: files.output_of(adw_id) for adw_id in (failed, young)} == {
        adw_id: had[adw_id] for adw_id in (failed, young)
    }
    assert app.store.load(done).document.current_state == "completed"
    assert app.retention.find() == ()


def test_files_that_are_no_output_and_links_stay(home, tmp_path):
    done = home.run(*DONE, days_ago=40)
    outside = tmp_path / "outside.log"
    outside.write_text("mine")
    (home.folder(done) / "work.patch").write_text("kept work")
    (home.folder(done) / "adw.log.9").symlink_to(outside)
    (home.folder(done) / "phases" / "plan" / "notes.txt").write_text("kept notes")

    home.open(ADW_RETENTION_LOGS_DAYS="30").retention.forget_all()

    assert outside.read_text() == "mine"
    assert (home.folder(done) / "work.patch").exists()
    assert (home.folder(done) / "phases" / "plan" / "notes.txt").exists()


# --- workflows -------------------------------------------------------------------------------------------------


def fill(app, adw_id: str) -> None:
    """Give a workflow a row in every table that has one for it."""
    moment = timestamps.to_text(app.clock.now())
    asked = app.requests.ask(adw_id, "hint")
    app.requests.handled(asked.request_id, "done")
    app.requests.ask("bbbbbbbb", "hint")
    app.checkpoints.add(
        app.clock.token(), f"{adw_id}/plan", "{}", step_name=None, keep=1, fence=app.leases.read(adw_id).fence
    )
    app.runs.enqueue(NewRun(adw_id="bbbbbbbb"))
    with app.database.write() as session:
        session.run(
            "INSERT INTO sessions VALUES ('s', :adw_id, 1, 'plan', 1, 'claude', 'h', 'finished', '', '', :moment,"
            " :moment)",
            {"adw_id": adw_id, "moment": moment},
        )
        session.run("INSERT INTO quota_reservations VALUES (:adw_id, 'h', NULL, '')", {"adw_id": adw_id})
        session.run("INSERT INTO ports VALUES ('h', 9100, :adw_id, 'backend', '', '')", {"adw_id": adw_id})
        session.run(
            "INSERT INTO iteration_pages VALUES (:execution_id, 0, 1, '[]')", {"execution_id": f"{adw_id}.plan.1.fetch"}
        )
    fill_work_of_others(app, adw_id, moment)


def fill_work_of_others(app, adw_id: str, moment: str) -> None:
    app.external_tasks.open(
        ExternalTask(
            task_id=f"{adw_id}.plan.1",
            adw_id=adw_id,
            phase="plan",
            round=1,
            attempt_number=1,
            catalog_id="",
            deadline=moment,
        )
    )
    for other in (adw_id, "bbbbbbbb"):
        app.executions.open(
            NewExecution(
                execution_id=f"{other}.plan.1.fetch",
                parent_execution_id=f"{other}.plan.1",
                adw_id=other,
                phase="plan",
                attempt_number=1,
                catalog_id="",
                step=StepSpec(name="fetch", tool="command", loop=LoopSpec(collection=[])),
                context={},
            ),
            [1, 2, 3, 4],
            lanes=1,
        )
        app.executions.cancel(f"{other}.plan.1.fetch", reason="enough")
        for run in app.runs.page(states=(RunState.PENDING,)):
            if run.adw_id == adw_id:
                app.runs.ask_to_stop(run.run_id)


def test_a_finished_workflow_is_forgotten_with_everything_and_others_are_not(home, monkeypatch):
    monkeypatch.setattr(retention, "AT_ONCE", 3)
    old, young, failed = (
        home.run(*DONE, days_ago=40),
        home.run(*DONE, days_ago=1),
        home.run(*FAILING, days_ago=40, issue=7),
    )
    app = home.open(ADW_RETENTION_WORKFLOWS_DAYS="30")
    fill(app, old)
    assert [count(app, table, old) > 0 for table in TABLES] == [True] * len(TABLES)
    (result,) = app.retention.find()

    assert (result.kind, result.adw_id, app.retention.forget(result)) == ("workflow_old", old, "forgotten")

    assert {table: count(app, table, old) for table in TABLES} == dict.fromkeys(TABLES, 0)
    with app.database.read() as session:
        assert session.all("SELECT DISTINCT execution_id FROM iterations") == [("bbbbbbbb.plan.1.fetch",)]
        assert session.all("SELECT * FROM iteration_pages") == []
    assert not home.folder(old).exists()
    assert list((home.path / "state").glob(".removed-*")) == []
    assert sorted(app.store.ids()) == sorted([young, failed])
    assert app.events.of_workflow(young)
    assert [lock.adw_id for lock in app.locks.all()] == [failed]


def test_one_that_somebody_works_on_stays_and_a_later_run_takes_it(home):
    old = home.run(*DONE, days_ago=40)
    app, other = home.open(ADW_RETENTION_WORKFLOWS_DAYS="30"), home.open()
    (result,) = app.retention.find()

    with other.ownership.own(old), pytest.raises(WorkflowBusy):
        app.retention.forget(result)
    assert app.store.exists(old)
    assert app.retention.forget_all() == (1, ())
    assert not app.store.exists(old)


def test_it_is_looked_at_again_under_the_lease(home):
    """
    Between the look and the lease it got its issue again, or went on.
    """
    old = home.run(*DONE, days_ago=40)
    app = home.open(ADW_RETENTION_WORKFLOWS_DAYS="30")
    (result,) = app.retention.find()
    with app.database.write() as session:
        session.run("INSERT INTO adw_locks VALUES ('', 42, :adw_id, '')", {"adw_id": old})

    with pytest.raises(OwnershipError, match="it has its issue"):
        app.retention.forget(result)
    assert app.retention.find() == ()
    assert home.folder(old).exists()


def test_the_database_decides_last_whether_the_rows_go(home):
    old = home.run(*DONE, days_ago=40)
    app = home.open()
    book = OldRows(app.database)
    fence = app.leases.read(old).fence

    assert not book.forget_workflow(old, fence=fence - 1)
    app.runs.enqueue(NewRun(adw_id=old, kind="rollback"))
    assert book.holds(old) == (False, True)
    assert not book.forget_workflow(old, fence=fence)
    assert count(app, "workflow_states", old) == 1
    assert app.events.of_workflow(old)


KILLED = [
    ("set_aside", False),
    ("forget_workflow", True),
    ("forget_workflow", False),
    ("remove_set_aside", True),
    ("remove_set_aside", False),
]


@pytest.mark.parametrize(
    ("step", "is_before", "home"),
    [
        pytest.param(*killed, place, marks=pytest.mark.postgres if "pg" in place else ())
        for killed, place in sampling.each_value_once(KILLED, sampling.some(STORES, 2))
    ],
    indirect=["home"],
)
def test_forgetting_that_is_killed_anywhere_is_ended_by_the_next_look(home, step, is_before):
    old, other = home.run(*DONE, days_ago=40), home.run(*DONE, days_ago=1)
    killed(home, step, is_before=is_before)
    app = home.open(ADW_RETENTION_WORKFLOWS_DAYS="30")

    app.retention.forget_all()

    assert list(app.store.ids()) == [other]
    assert {table: count(app, table, old) for table in TABLES} == {**dict.fromkeys(TABLES, 0)}
    assert [path.name for path in (home.path / "state").iterdir() if old in path.name] == []


def test_one_that_was_taken_up_again_after_a_cut_stays(home):
    old = home.run(*DONE, days_ago=40)
    killed(home, "set_aside", is_before=False)
    app = home.open(ADW_RETENTION_WORKFLOWS_DAYS="30")
    with app.ownership.own(old):
        assert app.retention.forget_all()[1][0].endswith("somebody works on it again")

    app.retention.forget_all()

    assert app.store.load(old).document.current_state == "completed"
    assert app.events.of_workflow(old)
    assert list((home.path / "state").glob(".removed-*")) == []


def killed(home: Home, step: str, *, is_before: bool) -> None:
    """Forget what is old in a process that is killed at a step."""
    owner = OldRows if step == "forget_workflow" else OldFiles
    original = getattr(owner, step)

    def die(self, *args, **kwargs):
        if not is_before:
            original(self, *args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    def child() -> None:
        setattr(owner, step, die)
        home.open(ADW_RETENTION_WORKFLOWS_DAYS="30").retention.forget_all()

    for app in home.opened:
        app.close()
    assert not forked.is_well(forked.start(child))


# --- deliveries ------------------------------------------------------------------------------------------------


def test_old_deliveries_go_with_the_runs_that_did_them_and_those_that_wait_stay(home):
    earlier = home.open(days_ago=40)
    owner = make_owner("a")
    moment = timestamps.to_text(earlier.clock.now())
    for guid, adw_id in (("done", "dddddddd"), ("waits", "eeeeeeee")):
        run = earlier.runs.enqueue(NewRun(adw_id=adw_id, kind="delivery"))
        with earlier.database.write() as session:
            session.run(
                "INSERT INTO deliveries (guid, event, action, hook, sender, repository, intent, body_hash, verdict,"
                " reason, status, outcome, run_id, adw_id, received_at, deliveries, request)"
                " VALUES (:guid, '', '', '', '', '', '', :guid, 'run', '', 'received', '', :run_id, '', :moment, 1,"
                " '{}')",
                {"guid": guid, "run_id": run.run_id, "moment": moment},
            )
    done = earlier.runs.begin(earlier.runs.claim(owner, ttl_seconds=60.0))
    earlier.runs.finish(done, RunState.COMPLETED)
    app = home.open(ADW_RETENTION_DELIVERIES_DAYS="30")

    assert kinds(app) == ["deliveries_old"]
    assert app.retention.forget_all() == (0, ("1 delivery: 1 forgotten",))

    with app.database.read() as session:
        assert session.all("SELECT guid FROM deliveries") == [("waits",)]
        assert session.all("SELECT adw_id FROM runs") == [("eeeeeeee",)]
    assert kinds(app) == []


# --- by gc and by cron -----------------------------------------------------------------------------------------


def test_gc_forgets_and_cron_forgets(home):
    first = home.run(*DONE, days_ago=40)
    app = home.open(ADW_RETENTION_WORKFLOWS_DAYS="30")
    collector = app.collector
    removals = collector.remove(tuple(o for o in collector.find() if o.kind.endswith("_old")))
    assert [(removal.orphan.adw_id, removal.is_gone, removal.detail) for removal in removals] == [
        (first, True, "forgotten")
    ]
    home.run(*DONE, days_ago=40)

    end = app.cron_jobs["retention"](None)

    assert end.outcome == "1 workflow and 0 notifications forgotten"
    assert list(app.store.ids()) == []
