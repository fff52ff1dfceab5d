# ruff: noqa: S608 - all that is put into these texts are other texts of this module
"""
The queries of reports, by name; as in `statements`.

Sums are read along their key: one kind, from a day on. Lists of what is now begin at an index that has only that.
"""

from __future__ import annotations

from adws.adw_modules.db.session import Database

SUM_KEY = ("kind", "day", "workflow", "phase", "item")
SUM_COLUMNS = (*SUM_KEY, "number", "amount", "last_at", "adw_id", "label")
WORKFLOW_COLUMNS = ("adw_id", "workflow", "outcome", "last_day", "attempts", "cost", "sums")

# --- how far was looked ----------------------------------------------------------------------------------------

#: Names of rows: the last event that was looked at, and how far a look at all workflows is; the second only while one
#: is under way.
EVENTS, ALL = "events", "all"

PROGRESS_BEGIN = "INSERT INTO report_progress (name, seq, place) VALUES (:name, -1, '') ON CONFLICT (name) DO NOTHING"
PROGRESS_ALL = "SELECT name, seq, place FROM report_progress"
#: Whoever adds to the sums has this row: two at once would both add what is new.
PROGRESS_TAKE = f"SELECT seq FROM report_progress WHERE name = '{EVENTS}' {{row_lock}}"
PROGRESS_MOVE = """
INSERT INTO report_progress (name, seq, place) VALUES (:name, :seq, :place)
ON CONFLICT (name) DO UPDATE SET seq = excluded.seq, place = excluded.place
"""
PROGRESS_END = "DELETE FROM report_progress WHERE name = :name"
PROGRESS_FORGET = "DELETE FROM report_progress"

EVENTS_AFTER = "SELECT seq, event_id, adw_id FROM events WHERE seq > :after AND seq <= :last ORDER BY seq LIMIT :limit"
#: Not by the column itself: SQLite would walk over the whole index of it, instead of the few events behind a number.
WORKFLOWS_AFTER_EVENT = "SELECT DISTINCT adw_id || '' AS changed FROM events WHERE seq > :after ORDER BY changed"
WORKFLOWS_AFTER = "SELECT adw_id FROM workflow_states WHERE adw_id > :after ORDER BY adw_id LIMIT :limit"

# --- sums ------------------------------------------------------------------------------------------------------

#: `{ids}` are the names of parameters. What was added by a workflow is NULL when nothing was.
DOCUMENTS = """
SELECT flow.adw_id, flow.workflow, flow.body, added.sums
FROM workflow_states AS flow LEFT JOIN report_workflows AS added ON added.adw_id = flow.adw_id
WHERE flow.adw_id IN ({ids}) ORDER BY flow.adw_id
"""
#: The last of two failures is the one that is shown.
SUM_ADD = f"""
INSERT INTO report_sums ({", ".join(SUM_COLUMNS)}) VALUES ({", ".join(f":{name}" for name in SUM_COLUMNS)})
ON CONFLICT ({", ".join(SUM_KEY)}) DO UPDATE
SET number = report_sums.number + excluded.number, amount = report_sums.amount + excluded.amount,
    adw_id = CASE WHEN excluded.last_at >= report_sums.last_at THEN excluded.adw_id ELSE report_sums.adw_id END,
    label = CASE WHEN excluded.last_at >= report_sums.last_at THEN excluded.label ELSE report_sums.label END,
    last_at = CASE WHEN excluded.last_at >= report_sums.last_at THEN excluded.last_at ELSE report_sums.last_at END
"""
WORKFLOW_PUT = f"""
INSERT INTO report_workflows ({", ".join(WORKFLOW_COLUMNS)})
VALUES ({", ".join(f":{name}" for name in WORKFLOW_COLUMNS)})
ON CONFLICT (adw_id) DO UPDATE
SET {", ".join(f"{name} = excluded.{name}" for name in WORKFLOW_COLUMNS[1:])}
"""

_IN_WINDOW = "day >= :day AND (:workflow = '' OR workflow = :workflow)"


def sums(kinds: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """Return the query for sums of *kinds*, one for each kind and value of *columns*; both are names of ours."""
    named, by = ", ".join(f"'{kind}'" for kind in kinds), ", ".join(("kind", *columns))

    return f"""
SELECT {by}, sum(number), sum(amount) FROM report_sums WHERE kind IN ({named}) AND {_IN_WINDOW} GROUP BY {by}
"""


FAILURES_MOST = f"""
SELECT phase, item, sum(number) FROM report_sums WHERE kind = 'failure' AND {_IN_WINDOW}
GROUP BY phase, item HAVING sum(number) > 0 ORDER BY sum(number) DESC, phase, item LIMIT :limit
"""
_ONE = "phase = :phase AND item = :item"
FAILURES_OF = f"SELECT coalesce(sum(number), 0) FROM report_sums WHERE kind = 'failure' AND {_IN_WINDOW} AND {_ONE}"
FAILURE_LAST = f"""
SELECT last_at, adw_id, label FROM report_sums WHERE kind = 'failure' AND {_IN_WINDOW} AND {_ONE} AND number > 0
ORDER BY last_at DESC LIMIT 1
"""
COSTLIEST = """
SELECT adw_id, workflow, outcome, last_day, attempts, cost FROM report_workflows
WHERE cost > 0 AND last_day >= :day AND (:workflow = '' OR workflow = :workflow)
ORDER BY cost DESC, adw_id DESC LIMIT :limit
"""
DURATIONS = """
SELECT item, sum(number) FROM report_sums
WHERE kind = 'duration' AND day >= :day AND workflow = :workflow AND phase = :phase GROUP BY item
"""

# --- what is ---------------------------------------------------------------------------------------------------

#: How many there are in each of some states, but no more than `:limit` of each; `{state}` is the name of a parameter.
STATE_COUNT = """
SELECT :{state} AS state, count(*) AS number
FROM (SELECT 1 FROM workflow_states WHERE state = :{state} LIMIT :limit) AS few
"""

_SUBJECT = "flow.adw_id, flow.title, flow.workflow, flow.state, flow.issue_number, flow.repository"
_LIVE = "run.state IN ('claimed', 'running', 'stopping') AND run.state NOT IN ('pending', 'completed')"
#: Runs that go on with a workflow, or undo it: neither lanes of its steps nor errands.
RUNNING = f"""
SELECT {_SUBJECT}, flow.body, run.run_id, run.kind, run.state, run.owner,
       CASE WHEN run.claim_boot = :boot THEN run.claim_until ELSE 0 END - {{now}}, run.started_at, run.updated_at
FROM (
  SELECT * FROM runs AS run WHERE {_LIVE} AND run.slot = '' AND run.kind NOT IN ('cron', 'delivery')
  ORDER BY run.run_id LIMIT :limit
) AS run JOIN workflow_states AS flow ON flow.adw_id = run.adw_id
ORDER BY run.run_id
"""
WAITING = f"""
SELECT {_SUBJECT}, flow.body, run.updated_at, run.not_before, run.reason
FROM {{waiting}} JOIN workflow_states AS flow ON flow.adw_id = run.adw_id
WHERE run.state = 'pending' AND run.slot = '' ORDER BY run.rank, run.run_id LIMIT :limit
"""
PAUSED = f"""
SELECT {_SUBJECT}, flow.body FROM workflow_states AS flow
WHERE flow.state = 'paused' ORDER BY flow.created_at DESC, flow.adw_id DESC LIMIT :limit
"""
#: `{states}` are those in which a workflow is under way. One that is registered and has no document yet is being made,
#: and where a run has just ended the copy of a document in files may not have followed yet.
UNATTENDED = f"""
SELECT {_SUBJECT}, flow.body, flow.updated_at FROM workflow_states AS flow
WHERE flow.state IN ({{states}}) AND flow.revision > 0
  AND (flow.owner = '' OR flow.lease_boot <> :boot OR flow.lease_until <= {{now}})
  AND NOT EXISTS (
    SELECT 1 FROM runs AS run WHERE run.adw_id = flow.adw_id AND run.slot = ''
      AND (run.finished_at IS NULL OR run.finished_at > :recently))
ORDER BY flow.state, flow.created_at, flow.adw_id LIMIT :limit
"""
#: The queue: what is due and since when, what is not, and what is with a worker, each no further than `:limit`.
_SINCE = "CASE WHEN run.updated_at > run.not_before THEN run.updated_at ELSE run.not_before END"
QUEUE_DUE = f"""
SELECT count(*), min(since) FROM (
  SELECT {_SINCE} AS since FROM {{waiting}} WHERE run.state = 'pending' AND run.not_before <= :moment LIMIT :limit
) AS few
"""
QUEUE_LATER = """
SELECT count(*) FROM (
  SELECT 1 FROM {waiting} WHERE run.state = 'pending' AND run.not_before > :moment LIMIT :limit
) AS few
"""
QUEUE_LIVE = f"SELECT count(*) FROM (SELECT 1 FROM runs AS run WHERE {_LIVE} LIMIT :limit) AS few"

#: By kind, of those in one state; the oldest is the one that was asked for first.
_BY_KIND = "SELECT kind, count(*), min(created_at) FROM ({few}) AS few GROUP BY kind ORDER BY kind"
_FEW = "SELECT run.kind, run.created_at FROM {runs} WHERE {which} ORDER BY {order} LIMIT :limit"
KINDS_WAITING = _BY_KIND.format(
    few=_FEW.format(runs="{waiting}", which="run.state = 'pending'", order="run.rank, run.run_id")
)
KINDS_LIVE = _BY_KIND.format(
    few=_FEW.format(runs="runs AS run", which=f"{_LIVE} AND run.state = :state", order="run.run_id")
)

#: What waits, in the order of the queue. SQLite is told which index: without statistics it takes another and sorts all.
_WAITING_RUNS = {"sqlite": "runs AS run INDEXED BY ix_runs_waiting", "postgresql": "runs AS run"}


def spelled(database: Database, text: str) -> str:
    """Return *text* in the words of the dialect of *database*."""
    return database.spell(text.replace("{waiting}", _WAITING_RUNS[database.dialect]))
