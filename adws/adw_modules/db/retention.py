# ruff: noqa: S608 - all that is put into these texts are other texts of this module
"""
Deleting rows that are old, a few at a time: nobody waits long for a transaction of ours.

The newest row of a table that numbers its rows stays, whatever its age: SQLite would give its number again. So do
events from the one on that somebody has looked at last, to notify, to report or to count: how far they were looked
through is known by that one.
"""

from __future__ import annotations

from adws.adw_modules.db import delivery_statements
from adws.adw_modules.db.report_sums import ReportSums
from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.interfaces_retention import OldEvents
from adws.adw_modules.retention_rules import OVER

#: Rows that are looked at, or deleted, in one transaction.
AT_ONCE = 500

_OVER = ", ".join(f"'{state}'" for state in sorted(OVER))

#: The first event that stays.
EVENTS_END = """
SELECT min(seq) FROM (
  SELECT max(seq) AS seq FROM events
  UNION ALL SELECT seq FROM notification_cursor WHERE seq >= 0
  UNION ALL SELECT seq FROM report_progress WHERE name = 'events' AND seq >= 0
) AS kept
"""
_OF_FINISHED = f"""
created_at < :before AND NOT EXISTS (
  SELECT 1 FROM workflow_states AS flow WHERE flow.adw_id = events.adw_id AND flow.state NOT IN ({_OVER}))
"""
EVENTS_OLD = f"SELECT count(*), count(DISTINCT adw_id) FROM events WHERE seq < :ending AND {_OF_FINISHED}"
EVENTS_RANGE = """
SELECT max(seq), min(created_at) FROM (
  SELECT seq, created_at FROM events WHERE seq > :after AND seq < :ending ORDER BY seq LIMIT :limit
) AS page
"""
EVENTS_FORGET = f"DELETE FROM events WHERE seq > :after AND seq <= :last AND {_OF_FINISHED}"
EVENTS_OF_FORGET = """
DELETE FROM events WHERE seq IN (
  SELECT seq FROM events WHERE adw_id = :adw_id AND seq < :ending ORDER BY seq LIMIT :limit)
"""

FINISHED = f"""
SELECT adw_id FROM workflow_states
WHERE state IN ({_OVER}) AND revision > 0 AND updated_at < :before AND adw_id > :after ORDER BY adw_id LIMIT :limit
"""
HAS_ISSUE = "SELECT 1 FROM adw_locks WHERE adw_id = :adw_id LIMIT 1"
HAS_RUN = "SELECT 1 FROM runs WHERE adw_id = :adw_id AND finished_at IS NULL LIMIT 1"
#: Nothing is deleted when somebody took it over, or it got work or its issue again.
WORKFLOW_FORGET = f"""
DELETE FROM workflow_states
WHERE adw_id = :adw_id AND fence = :fence AND state IN ({_OVER})
  AND NOT EXISTS (SELECT 1 FROM adw_locks AS held WHERE held.adw_id = workflow_states.adw_id)
  AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.adw_id = workflow_states.adw_id AND runs.finished_at IS NULL)
"""
FENCE_OF = "SELECT fence FROM workflow_states WHERE adw_id = :adw_id"
#: What goes with a workflow, in the same transaction.
_WITH_IT = (
    "DELETE FROM runs WHERE adw_id = :adw_id AND run_id < (SELECT max(run_id) FROM runs)",
    "DELETE FROM requests WHERE adw_id = :adw_id AND request_id < (SELECT max(request_id) FROM requests)",
    "DELETE FROM sessions WHERE adw_id = :adw_id",
    "DELETE FROM task_checkpoints WHERE adw_id = :adw_id",
    "DELETE FROM quota_reservations WHERE adw_id = :adw_id",
    "DELETE FROM ports WHERE adw_id = :adw_id",
    "DELETE FROM external_tasks WHERE adw_id = :adw_id",
    "DELETE FROM report_workflows WHERE adw_id = :adw_id",  # the sums stay
)
_EXECUTIONS_OF = "SELECT execution_id FROM executions WHERE adw_id = :adw_id"
#: What its steps left, a few rows at a time: the rows that others hang from come last. Large results of single calls
#: are of no execution, and their keys begin as all of the workflow's do.
STEPS_OF_FORGET = (
    f"""
DELETE FROM iteration_pages WHERE (execution_id, idx, page) IN (
  SELECT execution_id, idx, page FROM iteration_pages
  WHERE execution_id IN ({_EXECUTIONS_OF}) OR execution_id LIKE :adw_id || '.%' LIMIT :limit)
""",
    f"""
DELETE FROM iterations WHERE (execution_id, idx) IN (
  SELECT execution_id, idx FROM iterations WHERE execution_id IN ({_EXECUTIONS_OF}) LIMIT :limit)
""",
    f"DELETE FROM executions WHERE execution_id IN ({_EXECUTIONS_OF} LIMIT :limit)",
)
#: Runs that did what a delivery or the schedule asked for are of no workflow.
ERRANDS_FORGET = """
DELETE FROM runs WHERE run_id IN (
  SELECT run_id FROM runs WHERE kind IN ('delivery', 'cron') AND finished_at < :before
    AND run_id < (SELECT max(run_id) FROM runs)
    AND NOT EXISTS (SELECT 1 FROM deliveries WHERE deliveries.run_id = runs.run_id)
  ORDER BY run_id LIMIT :limit)
"""


class DatabaseRetention:
    """Old rows; implements `interfaces_retention.OldRows`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sums = ReportSums(database)

    # --- events ------------------------------------------------------------------------------------------------

    def old_events(self, before: str) -> OldEvents:
        """Return how many events of finished workflows are older than *before*, and of how many workflows."""
        with self._database.read() as session:
            row = session.one(EVENTS_OLD, {"before": before, "ending": _ending(session)})

        return OldEvents(events=row[0], workflows=row[1]) if row else OldEvents()

    def forget_events(self, before: str) -> int:
        """Delete them, and return how many."""
        self._sums.bring_up()
        deleted = after = 0
        while True:
            with self._database.read() as session:
                ending = _ending(session)
                page = session.one(EVENTS_RANGE, {"after": after, "ending": ending, "limit": AT_ONCE})
            last, oldest = page or (None, None)
            if last is None or oldest >= before:
                return deleted
            params = {"after": after, "last": last, "before": before}
            deleted += self._database.transact(lambda session, params=params: session.run(EVENTS_FORGET, params))  # type: ignore[misc]  # mypy cannot tell the kind of a lambda with a default
            after = last

    # --- workflows ---------------------------------------------------------------------------------------------

    def finished(self, before: str) -> tuple[str, ...]:
        """Return the workflows that are over and have not changed since *before*."""
        found: list[str] = []
        with self._database.read() as session:
            while True:
                after = found[-1] if found else ""
                page = session.all(FINISHED, {"before": before, "after": after, "limit": AT_ONCE})
                found.extend(row[0] for row in page)
                if len(page) < AT_ONCE:
                    return tuple(found)

    def holds(self, adw_id: str) -> tuple[bool, bool]:
        """Return whether a workflow has its issue, and whether a run of it is not over."""
        with self._database.read() as session:
            issue, run = (session.one(sql, {"adw_id": adw_id}) for sql in (HAS_ISSUE, HAS_RUN))

        return issue is not None, run is not None

    def fence_of(self, adw_id: str) -> int | None:
        """Return the fence of a workflow's row, None when there is no row."""
        with self._database.read() as session:
            row = session.one(FENCE_OF, {"adw_id": adw_id})

        return None if row is None else int(row[0])

    def forget_workflow(self, adw_id: str, *, fence: int) -> bool:
        """Delete all rows of a workflow that is over; False, with nothing deleted, when it is not ours or not over."""
        if not self._database.transact(lambda session: self._forget_rows(session, adw_id, fence)):
            return False
        # What happened comes after: there may be much of it, and nobody asks for it any more.
        while self._forget_some_events(adw_id):
            pass
        params = {"adw_id": adw_id, "limit": AT_ONCE}
        for statement in STEPS_OF_FORGET:
            while self._database.transact(lambda session, sql=statement: session.run(sql, params)):  # type: ignore[misc]  # mypy cannot tell the kind of a lambda with a default
                pass

        return True

    def _forget_rows(self, session: Session, adw_id: str, fence: int) -> bool:
        self._sums.add_last(session, adw_id)
        if session.run(WORKFLOW_FORGET, {"adw_id": adw_id, "fence": fence}) != 1:
            return False
        for statement in _WITH_IT:
            session.run(statement, {"adw_id": adw_id})

        return True

    def _forget_some_events(self, adw_id: str) -> int:
        def work(session: Session) -> int:
            params = {"adw_id": adw_id, "ending": _ending(session), "limit": AT_ONCE}

            return session.run(EVENTS_OF_FORGET, params)

        return self._database.transact(work)

    # --- errands -----------------------------------------------------------------------------------------------

    def old_deliveries(self, before: str) -> int:
        """Return how many deliveries came before *before* and have been dealt with."""
        with self._database.read() as session:
            row = session.one(delivery_statements.DELIVERIES_OLD, {"moment": before})

        return int(row[0]) if row else 0

    def forget_errands(self, before: str) -> int:
        """Delete runs of no workflow that ended before *before*, and return how many."""
        deleted, params = 0, {"before": before, "limit": AT_ONCE}
        while some := self._database.transact(lambda session: session.run(ERRANDS_FORGET, params)):
            deleted += some

        return deleted


def _ending(session: Session) -> int:
    row = session.one(EVENTS_END)

    return int(row[0]) if row and row[0] is not None else 0
