"""Tasks of others keep their contract: in SQLite and in PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.db.listing import EventLog
from adws.adw_modules.errors import ClaimLost
from adws.adw_modules.external_tasks import EXPIRED, REPORTED, ExternalTasks
from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.steps.store import Executions
from tests.contracts.external_task_contract import ADW_ID, END, WELL, ExternalTaskContract


@pytest.mark.usefixtures("database")
class TestTasksInDatabases(ExternalTaskContract):
    @pytest.fixture
    def tasks(self, database, clock):
        later = timestamps.to_text(clock.now() + timedelta(days=1))
        RunStore(database, clock=clock).enqueue(NewRun(adw_id=ADW_ID, not_before=later))

        executions = Executions(database, clock=clock, redactor=Redactor())

        return ExternalTasks(database, clock=clock, executions=executions)

    @pytest.fixture
    def told(self, database):
        return lambda: {event.event_id: event for event in EventLog(database).of_workflow(ADW_ID)}

    @pytest.fixture
    def woken(self, database, clock):
        def is_due() -> bool:
            (run,) = RunStore(database, clock=clock).of_workflow(ADW_ID)
            return run.not_before == ""

        return is_due

    def test_of_a_report_and_a_deadline_at_the_same_moment_one_counts(self, tasks, new, repeat):
        for number in range(repeat(20, 500)):
            task = tasks.open(new(number + 1))
            tasks.claim(task.task_id, worker="ci", seconds=60.0)

            def report(task_id: str = task.task_id) -> bool:
                try:
                    return tasks.report(task_id, 1, WELL, END)
                except ClaimLost:
                    return False

            with ThreadPoolExecutor(2) as pool:
                given_up = pool.submit(tasks.expire, task.task_id)
                reported = pool.submit(report)

            assert given_up.result() is not reported.result()
            assert tasks.get(task.task_id).state == (EXPIRED if given_up.result() else REPORTED)
