"""Tasks of others keep their contract: in memory, in SQLite and in PostgreSQL."""

from __future__ import annotations

from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.db.events import DatabaseEventLog
from adws.adw_modules.db.external_tasks import DatabaseExternalTasks
from adws.adw_modules.db.run_queue import DatabaseRunQueue
from adws.adw_modules.runs import NewRun
from adws.testing import MemoryExternalTasks
from tests.contracts.external_task_contract import ADW_ID, ExternalTaskContract


class TestTasksInMemory(ExternalTaskContract):
    @pytest.fixture
    def heard(self):
        return []

    @pytest.fixture
    def tasks(self, clock, heard):
        return MemoryExternalTasks(clock=clock, wake=heard.append)

    @pytest.fixture
    def told(self, tasks):
        return lambda: dict(tasks.events)

    @pytest.fixture
    def woken(self, heard):
        return lambda: heard == [ADW_ID]


@pytest.mark.usefixtures("database")
class TestTasksInDatabases(ExternalTaskContract):
    @pytest.fixture
    def tasks(self, database, clock):
        later = timestamps.to_text(clock.now() + timedelta(days=1))
        DatabaseRunQueue(database, clock=clock).enqueue(NewRun(adw_id=ADW_ID, not_before=later))

        return DatabaseExternalTasks(database, clock=clock)

    @pytest.fixture
    def told(self, database):
        return lambda: {event.event_id: event for event in DatabaseEventLog(database).of_workflow(ADW_ID)}

    @pytest.fixture
    def woken(self, database, clock):
        def is_due() -> bool:
            (run,) = DatabaseRunQueue(database, clock=clock).of_workflow(ADW_ID)
            return run.not_before == ""

        return is_due
