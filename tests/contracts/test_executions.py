"""Executions keep their contract in SQLite and in PostgreSQL."""

from __future__ import annotations

import pytest

from adws.adw_modules.db import rows, statements
from adws.adw_modules.db.event_tally import DatabaseEventTally
from adws.adw_modules.db.executions import DatabaseExecutions
from adws.adw_modules.db.run_queue import DatabaseRunQueue
from adws.adw_modules.db.standings import DatabaseStandings
from adws.adw_modules.execution_state import Rules
from adws.adw_modules.fanout import planner
from tests.contracts.execution_contract import AGAIN, ExecutionContract, badly, step, well
from tests.contracts.worlds import make_document


class TestExecutionsInDatabases(ExecutionContract):
    @pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
    def database(self, request, open_db):
        return open_db(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "pg_url"))

    @pytest.fixture
    def runs(self, database, clock):
        return DatabaseRunQueue(database, clock=clock)

    @pytest.fixture
    def executions(self, database, clock):
        return DatabaseExecutions(database, clock=clock, rules=Rules(decide=planner.decide, fold=planner.fold))

    @pytest.fixture
    def events(self, database):
        def events():
            with database.read() as session:
                found = session.all(statements.EVENTS_AFTER, {"after": 0, "limit": 100_000})
            return [rows.to_event(row[1:]) for row in found]

        return events

    @pytest.fixture
    def make_over(self, database):
        def make_over(adw_id):
            document = make_document(adw_id)
            params = {**rows.document_params(document), "state": "abandoned", "fence": 1, "home": "files"}
            with database.write() as session:
                session.run(statements.STATE_INSERT, {**params, "schema_version": "3.0", "body": "{}"})

        return make_over

    def test_the_page_of_metrics_sees_what_is_open_and_counts_what_ended(
        self, database, clock, executions, open_one, lane
    ):
        standings, tally = DatabaseStandings(database, clock=clock), DatabaseEventTally(database)
        open_one(range(10), spec=step(retry=(AGAIN,)), lanes=1)
        one = lane()
        taken = executions.take(one, most=3)
        executions.report(one, [badly(taken.assignments[0]), well(taken.assignments[1])], most=1)

        standing = standings.look()
        assert standing.executions == 1
        assert standing.iterations == {"pending": 7, "running": 1, "retry_wait": 1}
        tally.bring_up()
        assert tally.counted()["adw_retries_total"] == {("call", "transient"): 1.0}
        counted = tally.counted()["adw_events_total"]
        assert (counted["iteration_completed",], counted["action_failed",], counted["iterator_started",]) == (1, 1, 1)
