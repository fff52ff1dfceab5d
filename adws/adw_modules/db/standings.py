"""
How many there are of what, now: for the page of metrics.

Each count walks over an index that has little else: workflows by state over one that has no documents in it, runs and
steps over those that are not over. So a look stays cheap however much was done before.
"""

from __future__ import annotations

from adws.adw_modules import timestamps
from adws.adw_modules.db.session import Database
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_metrics import QueueLine, Standing

#: On SQLite the table is told to be walked by the index of what is not over: without statistics it takes the table.
_RUNS = {"sqlite": "runs INDEXED BY uq_runs_unfinished", "postgresql": "runs"}

WORKFLOWS = "SELECT state, count(*) FROM workflow_states GROUP BY state ORDER BY state"
#: One that waits does so since it could be claimed, one with a worker since its state changed.
QUEUE = """
SELECT kind, place, count(*), min(since) FROM (
  SELECT kind,
    CASE WHEN state <> 'pending' THEN state WHEN not_before <= :moment THEN 'waiting' ELSE 'delayed' END AS place,
    CASE WHEN state = 'pending' AND not_before > updated_at THEN not_before ELSE updated_at END AS since
  FROM {runs} WHERE finished_at IS NULL
) AS standing GROUP BY kind, place ORDER BY kind, place
"""
#: The condition is that of the index, which SQLite uses only for queries that say so.
DEAD = """
SELECT kind, count(*) FROM runs WHERE state = 'dead' AND state NOT IN ('pending', 'completed')
GROUP BY kind ORDER BY kind
"""
EXECUTIONS = """
SELECT count(*), coalesce(sum(stored - next_index), 0) FROM executions WHERE taken_at IS NULL AND state = 'running'
"""
RUNNING = "SELECT count(*) FROM iterations WHERE state = 'running'"
RETRYING = "SELECT count(*) FROM iterations WHERE state = 'retry_wait'"


class DatabaseStandings:
    """`interfaces_metrics.Standings` over the database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._queue = QUEUE.format(runs=_RUNS[database.dialect])

    def look(self) -> Standing:
        """Return how many there are of what, all at one moment."""
        moment = timestamps.to_text(self._clock.now())
        with self._database.read() as session:
            lines = [
                QueueLine(kind=kind, state=state, runs=count, since="" if state == "delayed" else since)
                for kind, state, count, since in session.all(self._queue, {"moment": moment})
            ]
            lines.extend(QueueLine(kind=kind, state="dead", runs=count) for kind, count in session.all(DEAD))
            executions, waiting = session.one(EXECUTIONS) or (0, 0)
            running, retrying = (session.one(sql) or (0,) for sql in (RUNNING, RETRYING))

            return Standing(
                workflows=dict(session.all(WORKFLOWS)),
                queue=tuple(lines),
                executions=executions,
                iterations={"pending": max(0, int(waiting)), "running": running[0], "retry_wait": retrying[0]},
            )
