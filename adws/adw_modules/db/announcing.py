# ruff: noqa: S608 - all that is put into these texts are other texts of this module
"""
Telling workers of a run that waits, inside the transaction that makes it wait.

SQLite shows every commit by itself. On PostgreSQL a run is told of by a job of Procrastinate that carries its id and
nothing else, without a lock of its own: it exists when the run does, comes when the run is due, and is gone with a
rollback. Whoever gets it still has to claim the run, so one job too many is harmless. Procrastinate is not imported
here: the row is put in as its own function does, the table's trigger wakes its workers, and commands start fast.
"""

from __future__ import annotations

from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.runs import Run, RunState

#: Where the jobs wait, and what Procrastinate calls the task.
QUEUE = "adw_runs"
TASK = "adw.run"
#: How many runs one look tells of again; the rest is told of by the next.
MOST = 500

_INSERT = "INSERT INTO procrastinate_jobs (queue_name, task_name, priority, args, scheduled_at) "
#: The job of a run: *run_id*, *rank* and *not_before* are SQL.
_JOB = (
    f"'{QUEUE}', '{TASK}', CAST(-({{rank}}) AS integer), jsonb_build_object('run_id', CAST({{run_id}} AS bigint)),"
    " CAST(nullif({not_before}, '') AS timestamptz)"
)

#: The same as a part of a statement that stores runs.
_JOBS_OF_STORED = (
    _INSERT + "SELECT " + _JOB.format(rank="rank", run_id="run_id", not_before="not_before") + " FROM stored"
)

JOB_OF_RUN = _INSERT + "SELECT " + _JOB.format(rank=":rank", run_id=":run_id", not_before=":not_before")

#: Most recently stored runs are told of by those who store them; this is for what a crash, a copy or a look that could
#: not claim it (another's demands, a limit) left without a job.
JOBS_MISSING = (
    _INSERT
    + "SELECT "
    + _JOB.format(rank="run.rank", run_id="run.run_id", not_before="run.not_before")
    + f""" FROM runs AS run
WHERE run.state = 'pending' AND NOT EXISTS (
    SELECT 1 FROM procrastinate_jobs AS job
    WHERE job.queue_name = '{QUEUE}' AND job.status IN ('todo', 'doing')
      AND CAST(job.args ->> 'run_id' AS bigint) = run.run_id
)
ORDER BY run.rank, run.run_id LIMIT :most"""
)


def telling(database: Database, insert: str) -> str:
    """Return *insert*, which stores a run that waits and returns what it stored, so that it also tells of it."""
    if database.dialect == "sqlite":
        return insert
    stored, shown = insert.split(" RETURNING ")

    return f"WITH stored AS ({stored} RETURNING *), told AS ({_JOBS_OF_STORED}) SELECT {shown} FROM stored"


def announce(database: Database, session: Session, run: Run) -> None:
    """Tell of *run* when the transaction *session* commits, if it waits then."""
    if database.dialect == "sqlite" or run.state is not RunState.PENDING:
        return
    session.run(JOB_OF_RUN, {"run_id": run.run_id, "rank": -run.priority, "not_before": run.not_before})


def announce_missing(database: Database, session: Session, *, most: int = MOST) -> int:
    """Tell of waiting runs that nobody was told of (after a copy, a rebuild or a crash), and return how many."""
    if database.dialect == "sqlite":
        return 0

    return session.run(JOBS_MISSING, {"most": most})
