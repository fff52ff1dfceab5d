"""Executions keep their contract in SQLite and in PostgreSQL."""

from __future__ import annotations

import pytest

from adws.adw_modules.db import connection
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.reports.metrics import EventTally, Gauges
from adws.adw_modules.steps.store import Executions
from tests.contracts.execution_contract import AGAIN, ExecutionContract, badly, step, well
from tests.contracts.worlds import INSERT_WORKFLOW, make_document


class TestExecutionsInDatabases(ExecutionContract):
    @pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
    def database(self, request, open_db):
        return open_db(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "pg_url"))

    @pytest.fixture
    def runs(self, database, clock):
        return RunStore(database, clock=clock)

    @pytest.fixture
    def executions(self, database, clock):
        return Executions(database, clock=clock, redactor=Redactor())

    @pytest.fixture
    def events(self, database):
        def events():
            with database.read() as session:
                rows = session.all(f"SELECT {', '.join(connection.EVENT_COLUMNS)} FROM events ORDER BY seq")
            return [connection.to_event(row) for row in rows]

        return events

    @pytest.fixture
    def make_over(self, database):
        def make_over(adw_id):
            document = make_document(adw_id)
            params = {**connection.document_params(document, b"{}"), "state": "abandoned", "fence": 1, "home": "files"}
            with database.write() as session:
                session.run(INSERT_WORKFLOW, params)

        return make_over

    def test_the_page_of_metrics_sees_what_is_open_and_counts_what_ended(
        self, database, clock, executions, open_one, lane
    ):
        standings, tally = Gauges(database, clock=clock), EventTally(database)
        open_one(range(10), spec=step(retry=(AGAIN,)), lanes=1)
        one = lane()
        taken = executions.take(one, most=3)
        executions.report(one, [badly(taken.assignments[0]), well(taken.assignments[1])], most=1)

        standing = standings.readings()
        assert standing["adw_executions_running"] == {(): 1.0}
        assert standing["adw_iterations_open"] == {("pending",): 7.0, ("running",): 1.0, ("retry_wait",): 1.0}
        tally.catch_up()
        assert tally.counted()["adw_retries_total"] == {("call", "transient"): 1.0}
        counted = tally.counted()["adw_events_total"]
        assert (counted["iteration_completed",], counted["action_failed",], counted["iterator_started",]) == (1, 1, 1)
