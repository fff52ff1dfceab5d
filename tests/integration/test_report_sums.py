"""The sums of reports stay right: whoever brings them up, whatever is made again, forgotten or torn."""

from __future__ import annotations

import threading

import pytest

from adws.adw_modules import document as document_module
from adws.adw_modules import timestamps
from adws.adw_modules.db import schema
from adws.adw_modules.errors import DatabaseUnavailable
from adws.adw_modules.housekeeping.retention import OldRows
from adws.adw_modules.interfaces import ProjectedWrite
from adws.adw_modules.maintenance import rebuild
from adws.adw_modules.maintenance.rebuild import NewContents, Reconstruction
from adws.adw_modules.reports import store as reports_store
from adws.adw_modules.reports.model import DayOutcomes, Window
from adws.adw_modules.reports.store import ReportStore
from adws.adw_modules.store.serialization import summary_of
from adws.testing import START
from tests.contracts.report_contract import TODAY, failed, moment, phase, put, tried
from tests.contracts.worlds import FIRST, SECOND, THIRD, database_world, make_document

ALL = Window()


@pytest.fixture
def world(database, clock):
    return database_world(database, clock)


def sums_of(database) -> list[tuple]:
    with database.read() as session:
        return session.all("SELECT * FROM report_sums WHERE number <> 0 ORDER BY 1, 2, 3, 4, 5")


def added_by(database) -> list[tuple]:
    with database.read() as session:
        return session.all("SELECT adw_id FROM report_workflows ORDER BY adw_id")


def run(database, text: str, **params) -> None:
    with database.write() as session:
        session.run(text, params)


def fill(world) -> None:
    put(world, FIRST, state="completed", phases=[phase(attempts=tried("succeeded", report={"cost_usd": 1.0}))])
    put(world, SECOND, state="failed", phases=[phase(attempts=[failed("no"), failed("no net")])])


def test_bringing_up_says_how_many_had_something_new(world):
    fill(world)

    assert world.reports.refresh() == 2
    assert world.reports.refresh() == 0


@pytest.mark.parametrize(
    "loss",
    [
        "DELETE FROM notification_cursor",
        "DELETE FROM events",
        "UPDATE events SET event_id = event_id || '.again'",
    ],
    ids=["how far was forgotten", "events are gone", "events are others"],
)
def test_looking_at_everything_again_adds_nothing_twice(world, database, loss):
    fill(world)
    world.reports.refresh()
    before = sums_of(database)
    run(database, loss)

    assert world.reports.refresh() == 2
    assert sums_of(database) == before
    assert world.reports.refresh() == 0


def test_a_document_that_came_back_older_takes_away_what_it_had_added(world, database):
    fill(world)
    world.reports.refresh()
    older = make_document(FIRST, phases=[])
    body = document_module.to_bytes(older).decode()
    run(
        database,
        "UPDATE workflow_states SET body = :body, state = 'pending' WHERE adw_id = :adw_id",
        body=body,
        adw_id=FIRST,
    )
    run(database, "DELETE FROM notification_cursor")

    world.reports.refresh()

    assert world.reports.outcomes(ALL) == (DayOutcomes(day=TODAY, failed=1),)
    assert world.reports.costs(ALL, by="phase") == ()
    assert [row[0] for row in sums_of(database)] == ["attempt", "failure", "failure", "outcome"]


def test_a_document_that_cannot_be_read_adds_nothing_and_stops_nobody(world, database):
    fill(world)
    run(database, "UPDATE workflow_states SET body = '{torn' WHERE adw_id = :adw_id", adw_id=FIRST)

    assert world.reports.outcomes(ALL) == (DayOutcomes(day=TODAY, failed=1),)


def test_texts_that_a_database_cannot_store_do_not_stop_a_report(world):
    put(world, phases=[phase("bu\x00ild \ud800".encode("utf-8", "replace").decode(), [failed("a NUL \x00 here")])])
    world.reports.refresh()

    (result,) = world.reports.failures(ALL)

    assert result.message == "a NUL \ufffd here"


def test_sums_outlive_the_workflows_they_are_of(world, database):
    fill(world)
    retention = OldRows(database)

    assert retention.forget_workflow(FIRST, fence=0)
    assert not retention.forget_workflow(SECOND, fence=0)  # it failed: it is not over

    assert added_by(database) == [(SECOND,)]
    assert world.reports.outcomes(ALL) == (DayOutcomes(day=TODAY, completed=1, failed=1),)
    run(database, "DELETE FROM notification_cursor")
    assert world.reports.outcomes(ALL) == (DayOutcomes(day=TODAY, completed=1, failed=1),)


def test_events_are_looked_at_before_they_are_forgotten(world, database):
    fill(world)
    assert added_by(database) == []

    assert OldRows(database).forget_events("2026-02-01") == 1  # that of the one that is over

    assert added_by(database) == [(FIRST,), (SECOND,)]
    assert world.reports.outcomes(ALL) == (DayOutcomes(day=TODAY, completed=1, failed=1),)


def test_the_event_that_was_looked_at_last_stays(world, database):
    put(world, FIRST, state="completed")
    put(world, SECOND, state="completed")
    world.reports.refresh()
    put(world, THIRD, state="completed")
    retention = OldRows(database)
    retention._sums.catch_up = lambda: 0  # as when somebody has been writing events for long

    assert retention.forget_events("2026-02-01") == 1
    with database.read() as session:
        assert session.all("SELECT adw_id FROM events ORDER BY seq") == [(SECOND,), (THIRD,)]
    assert world.reports.outcomes(ALL) == (DayOutcomes(day=TODAY, completed=3),)


def test_documents_that_were_brought_back_without_events_are_looked_at(world, database, database_url, clock):
    fill(world)
    world.reports.refresh()
    document = make_document(FIRST, current_state="abandoned", revision=9)
    body = document_module.to_bytes(document)
    write = ProjectedWrite(adw_id=FIRST, revision=9, fence=1, body=body, summary=summary_of(document))
    reconstruction = Reconstruction(database_url, clock=clock)
    try:
        reconstruction.put(NewContents(home="database", rows=(write,)))
    finally:
        reconstruction.close()

    assert sum(day.abandoned for day in world.reports.outcomes(ALL)) == 1
    assert sum(day.completed for day in world.reports.outcomes(ALL)) == 0


def test_sums_that_are_kept_when_a_database_is_made_again_are_not_added_twice(world, database):
    fill(world)
    world.reports.refresh()
    before = sums_of(database)
    with database.read() as session:
        kept = {
            table: [*rebuild.read_rows(session, schema.metadata.tables[table])]
            for table in ("report_sums", "report_workflows")
        }
    with database.write() as session:
        for table in ("report_sums", "report_workflows", "notification_cursor"):
            session.run(f"DELETE FROM {table}")
        for table, item in kept.items():
            rebuild.bring_back(session, table, item, moment=moment())

    assert world.reports.refresh() == 2
    assert sums_of(database) == before


def test_several_who_bring_up_at_once_add_everything_once(world, database, clock):
    fill(world)
    world.reports.refresh()
    expected = sums_of(database)
    run(database, "DELETE FROM notification_cursor")
    run(database, "DELETE FROM report_sums")
    run(database, "DELETE FROM report_workflows")
    problems = []

    def catch_up():
        try:
            ReportStore(database, clock=clock).refresh()
        except BaseException as exc:  # noqa: BLE001 - shown below, whatever it is
            problems.append(exc)

    threads = [threading.Thread(target=catch_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert problems == []
    assert sums_of(database) == expected


def test_where_nothing_can_be_written_the_answer_is_that_of_the_last_time(world, database, monkeypatch):
    fill(world)
    world.reports.refresh()
    put(world, THIRD, state="completed")
    monkeypatch.setattr(reports_store.ReportSums, "catch_up", _refuse)

    assert world.reports.outcomes(ALL) == (DayOutcomes(day=TODAY, completed=1, failed=1),)
    assert [item.adw_id for item in world.reports.costliest(ALL)] == [FIRST]


def _refuse(_self) -> int:
    raise DatabaseUnavailable("attempt to write a readonly database")


def test_what_is_asked_is_found_along_an_index(world, database):
    """Lists of what is now must not sort or walk over all that ever was."""
    if database.dialect != "sqlite":
        pytest.skip("PostgreSQL decides by statistics, which an empty database has not")
    clock = {**database.lease_clock(), "limit": 5, "moment": timestamps.to_text(START), "recently": ""}
    unattended = reports_store.UNATTENDED.replace("{states}", "'building', 'planning'")
    for text in (
        reports_store.RUNNING,
        reports_store.WAITING,
        reports_store.PAUSED,
        unattended,
        reports_store.QUEUE_DUE,
        reports_store.QUEUE_LATER,
        reports_store.QUEUE_LIVE,
    ):
        with database.read() as session:
            plan = "\n".join(
                row[3] for row in session.all(f"EXPLAIN QUERY PLAN {reports_store.render(database, text)}", clock)
            )
        if text is reports_store.RUNNING:  # workers are few: theirs are found by an index, and then put in order
            assert "SEARCH run USING INDEX ix_runs_state" in plan, plan
            continue
        assert "TEMP B-TREE" not in plan, plan
        assert "SCAN flow" not in plan, plan
        assert "SCAN run\n" not in plan, plan
