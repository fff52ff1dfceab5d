"""Events are counted once, whatever happens to them, and what there is is counted as it stands: on both databases."""

from __future__ import annotations

import threading

import pytest

from adws.adw_modules.db import connection
from adws.adw_modules.events import Event, stamp
from adws.adw_modules.housekeeping.retention import OldRows
from adws.adw_modules.queue.model import NewRun, RunEnd, RunState
from adws.adw_modules.reports import metrics
from adws.adw_modules.reports import store as reports_store
from adws.adw_modules.reports.metrics import EventTally, Gauges
from tests.contracts.worlds import FIRST, MOMENT, SECOND, THIRD, database_world, make_document, make_owner

FAILED = Event(event_type="attempt_failed", node_name="build", duration=3.0)
PAID = Event(event_type="cost_added", node_name="build", data={"cost_usd": 0.5, "provider": "robots", "model": "big"})
MOVED = Event(event_type="state_changed", data={"from": "planning", "to": "building"})


def stored(database, events, *, revision=1, adw_id=FIRST, at=MOMENT):
    """Store events as every writer does."""
    params = [
        connection.event_params(event) for event in stamp(events, adw_id=adw_id, revision=revision, created_at=at)
    ]
    with database.write() as session:
        session.run_each(connection.EVENT_INSERT, params)


class TestTally:
    def test_every_event_is_counted_once_however_often_it_is_stored_and_looked_at(self, database):
        tally = EventTally(database)
        stored(database, [FAILED, PAID, MOVED])
        first = tally.catch_up()
        stored(database, [FAILED, PAID, MOVED])
        again = tally.catch_up()
        stored(database, [FAILED], revision=2)

        assert (first, again, tally.catch_up(), tally.catch_up()) == (3, 0, 1, 0)
        result = tally.counted()
        assert result["adw_attempts_total"] == {("build", "failed"): 2.0}
        assert result["adw_attempt_duration_seconds_bucket"] == {("build", "failed", "5.0"): 2.0}
        assert result["adw_attempt_duration_seconds_sum"] == {("build", "failed"): 6.0}
        assert result["adw_cost_usd_total"] == {("robots", "big"): 0.5}
        assert result["adw_transitions_total"] == {("building",): 1.0}
        assert result["adw_events_total"] == {("attempt_failed",): 2.0, ("cost_added",): 1.0, ("state_changed",): 1.0}

    def test_nothing_is_counted_of_nothing_and_all_that_comes_after(self, database):
        tally = EventTally(database)

        assert (tally.catch_up(), dict(tally.counted())) == (0, {})

        stored(database, [MOVED])
        assert tally.catch_up() == 1

    def test_many_events_are_counted_in_pieces(self, database, monkeypatch):
        monkeypatch.setattr(metrics, "CHUNK", 4)
        stored(database, [FAILED] * 11)
        tally = EventTally(database)

        assert tally.catch_up() == 11
        assert tally.counted()["adw_attempts_total"] == {("build", "failed"): 11.0}

    def test_of_many_who_look_at_once_each_event_is_counted_by_one(self, database, repeat):
        tally = EventTally(database)
        total = 0
        for turn in range(repeat(3, 30)):
            stored(database, [FAILED] * 50, revision=turn + 1)
            total += 50
            threads = [threading.Thread(target=tally.catch_up) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        tally.catch_up()
        assert tally.counted()["adw_attempts_total"] == {("build", "failed"): total}

    def test_what_retention_deletes_stays_counted_and_nothing_uncounted_is_deleted(self, database):
        tally, retention = EventTally(database), OldRows(database)
        stored(database, [FAILED] * 5)
        tally.catch_up()
        stored(database, [FAILED] * 5, revision=2)
        after = "2027-01-01T00:00:00.000000Z"

        assert retention.forget_events(after) == 4  # but for the last that was looked at
        assert tally.catch_up() == 5
        assert retention.forget_events(after) == 5
        assert tally.catch_up() == 0
        assert tally.counted()["adw_attempts_total"] == {("build", "failed"): 10.0}
        stored(database, [FAILED], revision=3)
        assert tally.catch_up() == 1

    def test_events_that_were_made_again_are_not_counted_again(self, database):
        tally = EventTally(database)
        stored(database, [FAILED] * 3)
        tally.catch_up()
        with database.write() as session:
            session.run("DELETE FROM events")
        with database.write() as session:
            session.run_each(
                connection.EVENT_INSERT,
                [
                    connection.event_params(event)
                    for event in stamp([FAILED] * 3, adw_id=SECOND, revision=1, created_at=MOMENT)
                ],
            )
            metrics.pass_over(database, session)
        stored(database, [FAILED], revision=9)

        assert tally.catch_up() == 1
        assert tally.counted()["adw_attempts_total"] == {("build", "failed"): 4.0}

    def test_another_event_under_the_number_of_the_last_one_means_that_they_are_old(self, database):
        tally = EventTally(database)
        stored(database, [FAILED] * 3)
        tally.catch_up()
        with database.write() as session:
            session.run("UPDATE events SET event_id = 'another' WHERE seq = (SELECT max(seq) FROM events)")
        stored(database, [FAILED], revision=2)

        assert tally.catch_up() == 0
        stored(database, [FAILED], revision=3)
        assert tally.catch_up() == 1
        assert tally.counted()["adw_attempts_total"] == {("build", "failed"): 4.0}

    def test_nothing_is_lost_when_many_count(self, database):
        def count() -> None:
            for _ in range(10):
                EventTally(database).add({"adw_deliveries_total": {("run",): 1.0}})

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert EventTally(database).counted() == {"adw_deliveries_total": {("run",): 40.0}}

    def test_counters_that_are_no_metric_or_have_other_labels_are_left_out(self, database):
        with database.write() as session:
            metrics.add_in(session, {"adw_deliveries_total": {("run",): 2.0}})
            session.run("INSERT INTO counters VALUES ('something', '{}', 7)")
            session.run("INSERT INTO counters VALUES ('adw_deliveries_total', '[]', 7)")
            session.run("INSERT INTO counters VALUES ('adw_deliveries_total', '{\"of\": \"an older version\"}', 7)")

        assert EventTally(database).counted() == {"adw_deliveries_total": {("run",): 2.0}}


class TestStandings:
    @pytest.fixture
    def world(self, database, clock):
        return database_world(database, clock)

    @pytest.fixture
    def standings(self, database, clock):
        return Gauges(database, clock=clock)

    def test_nothing_is_nothing(self, standings):
        result = standings.readings()

        assert {value for values in result.values() for value in values.values()} == {0.0}
        assert {state for _kind, state in result["adw_queue_oldest_age_seconds"]}.isdisjoint({"delayed", "dead"})

    def test_workflows_are_counted_by_state(self, standings, world):
        for adw_id, state in ((FIRST, "pending"), (SECOND, "failed"), (THIRD, "failed")):
            world.store.create(make_document(adw_id, issue_number=None, current_state=state))

        assert there(standings, "adw_workflows") == {("pending",): 1.0, ("failed",): 2.0}

    def test_runs_stand_where_they_can_be_claimed_are_due_later_or_are_with_a_worker(self, standings, world, clock):
        later = "2026-01-31T09:01:00.000000Z"
        world.runs.enqueue(NewRun(adw_id=FIRST))
        clock.advance(10.0)
        world.runs.enqueue(NewRun(adw_id=SECOND))
        world.runs.enqueue(NewRun(adw_id=THIRD, not_before=later))
        world.runs.enqueue(NewRun(adw_id="00000004", kind="retry", priority=5))
        claimed = world.runs.claim(make_owner(), ttl_seconds=60.0)
        world.runs.begin(claimed)

        assert there(standings, "adw_queue_runs") == {
            ("start", "waiting"): 2.0,
            ("start", "delayed"): 1.0,
            ("retry", "running"): 1.0,
        }
        assert there(standings, "adw_queue_oldest_age_seconds") == {("start", "waiting"): 10.0}

        clock.advance(60.0)
        assert there(standings, "adw_queue_runs")["start", "waiting"] == 3.0
        assert there(standings, "adw_queue_oldest_age_seconds") == {
            ("start", "waiting"): 70.0,
            ("retry", "running"): 60.0,
        }

    def test_a_run_waits_since_it_was_due_not_since_it_was_asked_for(self, standings, world, clock):
        world.runs.enqueue(NewRun(adw_id=FIRST, not_before="2026-01-31T09:01:00.000000Z"))
        clock.advance(100.0)

        assert there(standings, "adw_queue_oldest_age_seconds") == {("start", "waiting"): 40.0}

    def test_runs_that_are_over_are_not_counted_but_for_those_that_were_given_up(self, standings, world):
        for number in range(4):
            world.runs.enqueue(NewRun(adw_id=f"0000000{number}"))
            run = world.runs.claim(make_owner(), ttl_seconds=60.0)
            if number < 3:
                world.runs.finish(run, (RunState.COMPLETED, RunState.FAILED, RunState.STOPPED)[number])
            else:
                world.runs.settle_lost(run, RunEnd(state=RunState.DEAD, reason="too many vanished"))

        assert there(standings, "adw_queue_runs") == {("start", "dead"): 1.0}


def there(gauges, metric: str) -> dict:
    """Return what is not 0."""
    return {labels: value for labels, value in gauges.readings()[metric].items() if value}


@pytest.mark.parametrize(
    ("query", "way"),
    [
        (metrics.WORKFLOWS, "SCAN workflow_states USING COVERING INDEX ix_workflow_states_state"),
        (
            metrics.QUEUE.format(runs="runs INDEXED BY uq_runs_unfinished"),
            "SCAN runs USING INDEX uq_runs_unfinished",
        ),
        (metrics.DEAD, "SEARCH runs USING INDEX ix_runs_state"),
        (metrics.EXECUTIONS, "SCAN executions USING INDEX ix_executions_open"),
        (metrics.RUNNING, "SCAN iterations USING INDEX ix_iterations_running"),
        (metrics.RETRYING, "SCAN iterations USING INDEX ix_iterations_waiting"),
        (metrics.PIECE_END, "SEARCH events USING INTEGER PRIMARY KEY"),
        (metrics.TYPES, "SEARCH events USING INTEGER PRIMARY KEY"),
        (metrics.FACTS, "SEARCH events USING INTEGER PRIMARY KEY"),
        (reports_store.WORKFLOWS_AFTER_EVENT, "SEARCH events USING INTEGER PRIMARY KEY"),
    ],
    ids=["workflows", "queue", "dead", "executions", "running", "retrying", "piece", "types", "facts", "changed"],
)
def test_a_look_walks_over_nothing_that_is_over(open_db, sqlite_url, query, way):
    """What is asked every few seconds must not take longer with each workflow that was ever done."""
    params = {"after": 5, "last": 9, "limit": 3, "moment": MOMENT}
    with open_db(sqlite_url).read() as session:
        plan = [row[-1] for row in session.all(f"EXPLAIN QUERY PLAN {query}", params)]

    assert any(step.startswith(way) for step in plan), plan
    assert all(" USING " in step for step in plan if step.startswith(("SCAN", "SEARCH")) and "piece" not in step), plan
