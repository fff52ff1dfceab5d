"""`rebuild` makes the database again from the documents, whatever is left of the old one."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from adws import app as app_module
from adws import testing
from adws.adw_modules.circuit_breaker import DatabaseBreakers
from adws.adw_modules.errors import Fenced, OwnershipError, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import IssueLock, PageQuery
from adws.adw_modules.maintenance.rebuild import RebuildReport, Salvage, plan_rebuild, rebuild
from adws.adw_modules.ownership.issue_locks import WorkflowRegistry
from adws.adw_modules.reports.metrics import EventTally
from adws.adw_modules.schedule.store import Notice, NotificationStore, ScheduleStore
from adws.adw_modules.store.database import DatabaseStateStore
from adws.adw_modules.store.files import FileStateStore
from adws.testing import FakeClock
from tests.integration.ownership_worker import new_document

A, B, C = "aaaaaaaa", "bbbbbbbb", "cccccccc"


class Home:
    """A home on the disk, opened as often as a test needs."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        with testing.home(path, clock=self.clock, store="files") as app:
            self.settings, self.processes = app.settings, app.processes
            self.root, self.file = app.settings.state_dir, app.settings.database_file

    def open(self) -> app_module.Home:
        return app_module.Home(self.settings, clock=self.clock, role="cli")

    def made(self, adw_id: str, issue_number: int | None = 42, **fields) -> None:
        self.clock.advance(1)
        with self.open() as app, app.ownership.create(new_document(adw_id, issue_number, **fields)) as owned:
            owned.save(owned.document, events=(Event(event_type="state_set"),))

    def lose_database(self) -> None:
        for path in self.file.parent.glob("adw.db*"):
            path.unlink()

    def rebuilt(self, *, force: bool = False) -> RebuildReport:
        with self.open() as app:
            app.store = FileStateStore(self.root, clock=self.clock)  # which no copy in the database stands in for
            return rebuild(app, force=force)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


@pytest.fixture
def opened(home):
    """Open the home as often as a test needs, and close it at the end."""
    with ExitStack() as homes:
        yield lambda: homes.enter_context(home.open())


def kinds(app, adw_id: str) -> list[str]:
    app.projection.flush()
    return [event.event_type for event in app.events.of_workflow(adw_id)]


def wreck(path: Path) -> None:
    """Overwrite the pages of a database but for its head."""
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"\xa5" * (size - 4096))


# --- a database that is good -----------------------------------------------------------------------------------


def test_a_good_database_keeps_its_events_and_requests(home, opened):
    home.made(A)
    before = opened()
    before.requests.ask(A, "pause")
    before.close()

    report = home.rebuilt()

    assert (report.workflows, report.locks, report.events_kept, report.events_made, report.requests) == (1, 1, 2, 0, 1)
    assert (report.set_aside, report.lost, report.problems) == (None, (), ())
    after = opened()
    assert kinds(after, A) == ["workflow_created", "state_set"]
    assert [request.kind for request in after.requests.open_for(A)] == ["pause"]
    assert after.locks.verify(42, A)


def test_the_documents_are_not_changed(home):
    home.made(A)
    path = home.root / A / "adw_state.json"
    before = path.read_bytes()
    home.rebuilt()

    assert path.read_bytes() == before


def test_a_lock_that_a_crash_left_is_freed(home, opened):
    """A crash between the write that ended the workflow and the release of its lock."""
    home.made(A)
    made = opened()
    with made.ownership.own(A) as owned:
        made.store.save(owned.document.model_copy(update={"current_state": "completed"}), fence=owned.lease.fence)
    made.close()

    report = home.rebuilt()

    assert [(lock.issue_number, lock.adw_id) for lock in report.freed] == [(42, A)]
    assert opened().locks.all() == ()


def test_a_registration_without_a_document_is_forgotten(home, opened):
    made = opened()
    registry = WorkflowRegistry(made.database, clock=home.clock, home="files")
    registry.register(new_document(A), home.processes.me("cli"), ttl_seconds=30.0)
    made.close()
    home.clock.advance(31)

    report = home.rebuilt()

    assert report.forgotten == (A,)
    assert [lock.adw_id for lock in report.freed] == [A]
    assert opened().leases.read(A) is None


def test_a_workflow_whose_document_is_lost_keeps_its_copy_and_its_issue(home, opened):
    home.made(A)
    (home.root / A / "adw_state.json").unlink()
    (home.root / A / "adw_state.json.prev").unlink()

    report = home.rebuilt()

    assert (report.only_in_database, report.workflows) == ((A,), 0)
    after = opened()
    assert after.locks.verify(42, A)
    assert after.store.load(A).document.revision == 2, "the copy is used"


def test_a_document_that_cannot_be_read_is_named_and_keeps_its_issue(home, opened):
    home.made(A)
    (home.root / A / "adw_state.json.prev").unlink()
    (home.root / A / "adw_state.json").write_text("{")

    report = home.rebuilt()

    assert list(report.unreadable) == [A]
    assert "corrupt" in report.unreadable[A]
    assert opened().locks.verify(42, A)


def test_documents_that_live_in_the_database_are_not_replaced_by_files(home, opened):
    made = opened()
    store = DatabaseStateStore(made.database, clock=home.clock)
    store.create(new_document(A))
    made.close()

    with pytest.raises(UsageError, match="documents live in this database itself"):
        home.rebuilt(force=True)
    assert store.load(A).document.adw_id == A


# --- a database that is gone -----------------------------------------------------------------------------------


def test_without_a_database_everything_comes_from_the_documents(home, opened):
    history = [{"from": "pending", "to": "planning", "timestamp": "2026-01-01T00:00:00.000000Z"}]
    home.made(A, repository="octo/cat", current_state="planning", state_history=history)
    home.made(B, 43, current_state="failed", state_history=[*history])
    home.made(C, 44)
    with_end = opened()
    with with_end.ownership.own(C) as owned:
        owned.save(owned.document.model_copy(update={"current_state": "abandoned"}))
    with_end.close()
    home.lose_database()

    report = home.rebuilt()

    assert report.was_missing
    assert (report.workflows, report.locks) == (3, 2)
    assert "events that were in no document any more" in report.lost[0]
    after = opened()
    assert {(lock.repository, lock.issue_number, lock.adw_id) for lock in after.locks.all()} == {
        ("octo/cat", 42, A),
        ("", 43, B),
    }
    assert [row.adw_id for row in after.catalogue.page(PageQuery()).rows] == [C, B, A]
    assert "state_changed" in kinds(after, A)
    made = next(event for event in after.events.of_workflow(A) if event.event_type == "state_changed")
    assert (made.data, made.meta) == ({"from": "pending", "to": "planning"}, {"rebuilt_from": "state_history"})
    with after.ownership.own(A) as owned:
        owned.save(owned.document)


def test_events_that_wait_in_a_document_come_into_the_database_once(home, opened):
    home.made(A)
    waiting = {e["event_id"] for e in opened().store.load(A).document.outbox}
    assert waiting, "the document still has its events"
    home.lose_database()

    assert home.rebuilt().events_made == len(waiting)
    assert home.rebuilt().events_made == 0
    assert {event.event_id for event in opened().events.of_workflow(A)} == waiting


def test_tokens_continue_above_every_fence_on_the_disk(home, opened):
    home.made(A)
    (home.root / A / ".adw_state.json.tmp.17").mkdir()
    (home.root / A / ".adw_state.json.tmp.x").mkdir()
    home.lose_database()
    home.rebuilt()

    after = opened()
    assert after.leases.read(A).fence == 18
    with after.ownership.own(A) as owned:
        assert owned.lease.fence == 19
        owned.save(owned.document)
    with pytest.raises(Fenced):
        after.store.save(after.store.load(A).document, fence=17)


def test_two_unfinished_workflows_of_one_issue_are_reported_and_the_older_keeps_it(home, opened):
    home.made(B, created_at="2026-01-02T00:00:00.000000Z")
    made = opened()
    made.locks.release(42, B)
    made.close()
    home.made(A, created_at="2026-01-03T00:00:00.000000Z")
    home.lose_database()

    report = home.rebuilt()

    assert [(c.issue_number, c.keeper, c.others) for c in report.conflicts] == [(42, B, (A,))]
    assert opened().locks.verify(42, B)


def test_two_spellings_of_one_repository_are_rivals_for_one_issue():
    documents_of_both = [
        new_document(adw_id, repository=where, created_at="2026-01-01")
        for adw_id, where in ((A, "octo/cat"), (B, "Octo/Cat"))
    ]

    contents, conflicts = plan_rebuild(documents_of_both, Salvage())

    assert [(lock.repository, lock.adw_id) for lock in contents.locks] == [("octo/cat", A)]
    assert [(conflict.keeper, conflict.others) for conflict in conflicts] == [(A, (B,))]


def test_a_document_without_a_repository_is_a_rival_in_the_homes_own():
    rivals = [
        new_document(adw_id, repository=where, created_at="2026-01-01") for adw_id, where in ((A, "octo/cat"), (B, ""))
    ]
    held = (
        IssueLock(repository="", issue_number=42, adw_id=B, acquired_at="first"),
        IssueLock(repository="Octo/Cat", issue_number=42, adw_id=A, acquired_at="second"),
    )

    contents, conflicts = plan_rebuild(rivals, Salvage(locks=held), repository="Octo/cat")

    assert contents.locks == (IssueLock(repository="octo/cat", issue_number=42, adw_id=B, acquired_at="first"),)
    assert [(conflict.keeper, conflict.others) for conflict in conflicts] == [(B, (A,))]


def test_the_lock_of_a_document_that_cannot_be_read_is_kept_under_the_name_that_is_compared():
    held = IssueLock(repository="Octo/Cat", issue_number=42, adw_id=A, acquired_at="then")

    contents, _ = plan_rebuild([], Salvage(locks=(held,)), unreadable=(A,))

    assert contents.locks == (IssueLock(repository="octo/cat", issue_number=42, adw_id=A, acquired_at="then"),)


def test_who_is_known_to_hold_the_lock_keeps_it_from_an_older_one(home):
    old, new = (
        new_document(adw_id, created_at=moment, current_state="paused")
        for adw_id, moment in ((A, "2026-01-01"), (B, "2026-01-02"))
    )
    held = IssueLock(repository="", issue_number=42, adw_id=B, acquired_at="then")

    contents, conflicts = plan_rebuild([old, new], Salvage(locks=(held,)))

    assert contents.locks == (held,)
    assert conflicts[0].others == (A,)


# --- a database that is damaged --------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["not-a-database", "wrecked"])
def test_a_corrupt_database_is_set_aside_and_made_again(home, opened, damage):
    home.made(A)
    if damage == "not-a-database":
        home.file.write_bytes(b"this is not a database, and long enough to be looked at " * 100)
    else:
        wreck(home.file)
    damaged = home.file.read_bytes()

    report = home.rebuilt()

    assert report.problems
    aside = Path(report.set_aside)
    assert aside.name.startswith("adw.db.corrupt-2026")
    assert aside.read_bytes() == damaged
    assert (report.workflows, report.locks) == (1, 1)
    after = opened()
    assert after.database.integrity_problems() == []
    with after.ownership.own(A) as owned:
        owned.save(owned.document)


def test_the_log_of_a_lost_database_is_kept_and_not_played_into_the_new_one(home, opened):
    home.made(A)
    home.file.unlink()
    home.file.with_name("adw.db-wal").write_bytes(b"the last writes")

    report = home.rebuilt()

    assert report.was_missing
    assert Path(report.set_aside).name.startswith("adw.db.lost-2026")
    assert Path(report.set_aside).read_bytes() == b"the last writes"
    assert opened().database.integrity_problems() == []


def test_what_can_still_be_read_of_a_damaged_database_is_kept(home, opened, monkeypatch):
    home.made(A)
    before = opened()
    before.requests.ask(A, "stop", asked_by="octocat")
    kept = [before.checkpoints.add(name, "task", "{}", step_name=name, keep=9) for name in ("one", "two", "three")]
    breaker = DatabaseBreakers(before.database).change("github", lambda row: replace(row, state="open", failures=3))
    before.close()
    # As an index that lost a row: everything can be read, and the database says that it is not whole.
    monkeypatch.setattr(
        "adws.adw_modules.db.sqlite.SqliteDatabase.integrity_problems", lambda self: ["row 1 missing from index"]
    )
    report = home.rebuilt()
    monkeypatch.undo()

    assert (report.events_kept, report.events_made, report.requests) == (2, 0, 1)
    after = opened()
    assert kinds(after, A) == ["workflow_created", "state_set"]
    assert [(r.kind, r.asked_by) for r in after.requests.open_for(A)] == [("stop", "octocat")]
    assert [replace(row, sequence=0) for row in after.checkpoints.all_of("task")] == [
        replace(row, sequence=0) for row in kept
    ], "in their order"
    assert DatabaseBreakers(after.database).all() == (breaker,)


def test_a_damaged_database_that_can_be_read_keeps_its_schedule_notifications_sessions_and_counts(
    home, opened, monkeypatch
):
    home.made(A)
    before = opened()
    book = ScheduleStore(before.database, clock=home.clock)
    owner = home.processes.me("cron")
    due = "2026-01-01T00:00:00.000000Z"
    done = book.claim("gc", spec="x", due=due, seen="", owner=owner, ttl_seconds=60.0)
    book.finish(done, status="done", outcome="fine", memo={"kept": 1})
    book.claim("report", spec="x", due=due, seen="", owner=owner, ttl_seconds=3600.0)
    notices = NotificationStore(before.database, clock=home.clock)
    notices.add([Notice(key=key, kind="failed", title=key, text="", channels=("command",)) for key in ("k1", "k2")])
    notices.take(ttl_seconds=3600.0)
    with before.database.write() as session:
        session.run("INSERT INTO counters VALUES ('recovered', '{}', 7)")
        session.run("INSERT INTO home_facts VALUES ('home_id', 'me', '')")
        for name, status, ended in (("old", "finished", due), ("open", "running", None)):
            session.run(
                "INSERT INTO sessions VALUES (:name, 'aaaaaaaa', 1, 'plan', 1, 'claude', 'h', :status, '', '', '', "
                ":ended)",
                {"name": name, "status": status, "ended": ended},
            )
    before.close()
    monkeypatch.setattr(
        "adws.adw_modules.db.sqlite.SqliteDatabase.integrity_problems", lambda self: ["row 1 missing from index"]
    )
    home.rebuilt()
    monkeypatch.undo()

    database = opened().database
    rows = {row.name: row for row in ScheduleStore(database, clock=home.clock).rows()}
    assert (rows["gc"].last_due, rows["gc"].outcome, rows["gc"].memo) == (due, "fine", {"kept": 1})
    assert rows["report"].seconds_left < 0.0, "its claim is over"
    again = NotificationStore(database, clock=home.clock)
    assert again.add([Notice(key="k1", kind="failed", title="k1", text="", channels=("command",))]) == 0
    assert [again.take(ttl_seconds=60.0).key for _ in range(2)] == ["k1", "k2"]
    with database.read() as session:
        assert session.all("SELECT name, value FROM counters") == [("recovered", 7.0)]
        assert session.all("SELECT name, value FROM home_facts") == [("home_id", "me")]
        assert session.all("SELECT session_id, status, run_id, reason FROM sessions ORDER BY session_id") == [
            ("old", "finished", None, ""),
            ("open", "failed", None, "the database was made again"),
        ]


def counted(home, opened):
    """Count what happened, and return how many events there were of a kind that `made` tells."""
    tally = EventTally(opened().database)
    tally.catch_up()
    return tally.counted().get("adw_events_total", {}).get(("state_set",), 0.0)


def test_events_that_come_back_after_they_were_forgotten_are_not_counted_again(home, opened):
    """
    The last events of a finished workflow stay in its document: a rebuild stores them again.
    """
    home.made(A)
    assert counted(home, opened) == 1.0
    with opened().database.write() as session:
        session.run("DELETE FROM events")

    report = home.rebuilt()

    assert report.events_made > 0
    assert counted(home, opened) == 1.0
    home.made(B, 43)
    assert counted(home, opened) == 2.0


def test_counters_of_a_damaged_database_stay_and_its_events_are_not_counted_again(home, opened, monkeypatch):
    home.made(A)
    assert counted(home, opened) == 1.0
    monkeypatch.setattr(
        "adws.adw_modules.db.sqlite.SqliteDatabase.integrity_problems", lambda self: ["row 1 missing from index"]
    )
    home.rebuilt()
    monkeypatch.undo()

    assert counted(home, opened) == 1.0
    home.made(B, 43)
    assert counted(home, opened) == 2.0


# --- live owners -----------------------------------------------------------------------------------------------


def test_it_refuses_while_an_owner_works_and_names_it(home, opened):
    home.made(A)
    made = opened()
    named = rf"{A} \(cli {os.getpid()}@.*\); stop them first, or add --force"
    with made.ownership.own(A), pytest.raises(OwnershipError, match=named):
        home.rebuilt()


def test_without_a_database_the_file_lock_tells_of_a_live_owner(home, opened):
    home.made(A)
    made = opened()
    with made.ownership.own(A):
        home.lose_database()
        with pytest.raises(OwnershipError, match=rf"{A} \(a process that holds its file lock\)"):
            home.rebuilt()
        home.rebuilt(force=True)


def test_an_owner_that_was_rebuilt_over_by_force_is_refused(home, opened):
    home.made(A)
    made = opened()
    with made.ownership.own(A) as late:
        home.rebuilt(force=True)
        with opened().ownership.own(A) as owned:
            owned.save(owned.document.model_copy(update={"branch_name": "new"}))
            with pytest.raises(Fenced):
                late.save(late.document)


def test_an_owner_whose_lock_is_all_that_is_left_is_shut_out(home, opened):
    """The database that named it is gone: the file lock it holds still tells that it may write."""
    home.made(A)
    made = opened()
    with made.ownership.own(A) as late:
        late.save(late.document)
        home.lose_database()
        home.rebuilt(force=True)
        with opened().ownership.own(A), pytest.raises(Fenced):
            late.save(late.document)


def test_a_dead_owner_does_not_keep_it_from_work(home, opened):
    home.made(A)
    made = opened()
    dead = home.processes.me("worker")
    made.leases.take(A, type(dead)(**{**_fields(dead), "start_ticks": dead.start_ticks + 1}), ttl_seconds=30.0)

    assert home.rebuilt().workflows == 1
    with made.ownership.own(A):
        assert kinds(made, A)[-1] == "lease_taken_over", "its agents are still to be ended"


def _fields(record) -> dict[str, object]:
    return {name: getattr(record, name) for name in type(record).__slots__}
