# ruff: noqa: S608 - all that is put into these texts are other texts of this module
"""
Every query about runs, by name.

As in `statements`; three more words are spelled by `spelled`: `{waiting}` is the table, to be walked in the order of
the queue, `{demanding}` is the table by what is demanded, and `{skip_locked}` keeps two claims from waiting for the
same row. A claim is over when it belongs to another start of the machine or when its time is up.
"""

from __future__ import annotations

from adws.adw_modules.db.session import Database

#: What the words are on SQLite: told which index, because without statistics it takes another and sorts all that waits.
_SQLITE = {
    "{waiting}": "runs INDEXED BY ix_runs_waiting",
    "{demanding}": "runs INDEXED BY ix_runs_demanding",
    "{skip_locked}": "",
}
#: Without the last a second claim would wait for the first one to commit, and then find its row taken.
_POSTGRESQL = {"{waiting}": "runs", "{demanding}": "runs", "{skip_locked}": "FOR UPDATE SKIP LOCKED"}


def spelled(database: Database, sql: str) -> str:
    """Return *sql* in the words of the dialect of *database*."""
    words = _POSTGRESQL if database.dialect == "postgresql" else _SQLITE
    for word, meaning in words.items():
        sql = sql.replace(word, meaning)

    return database.spell(sql)


#: All but `woken`, which only these statements look at.
RUN_COLUMNS = (
    "run_id",
    "adw_id",
    "kind",
    "state",
    "rank",
    "not_before",
    "attempts",
    "token",
    "owner",
    "claim_until",
    "claim_boot",
    "reason",
    "payload",
    "asked_by",
    "created_at",
    "updated_at",
    "started_at",
    "finished_at",
    "demands",
    "labels",
    "losses",
    "slot",
    "parent_run_id",
)

#: A run as `run_rows.to_run` reads it.
SHOWN = """
run_id, adw_id, kind, state, -rank, not_before, attempts, token, owner,
CASE WHEN owner = '' THEN 0 WHEN claim_boot = :boot THEN claim_until - {now} ELSE -1 END,
reason, payload, asked_by, created_at, updated_at, started_at, finished_at, demands, labels, losses, slot,
parent_run_id
"""

#: What can be another than in the claim that is reported on; `run_rows.changed` reads it.
CHANGED = """
state, not_before, owner, CASE WHEN owner = '' THEN 0 WHEN claim_boot = :boot THEN claim_until - {now} ELSE -1 END,
reason, updated_at, started_at, finished_at, losses
"""

#: Whether an agent of the run has not ended, looked up by an index that has only such: nearly free where none has.
_HAS_SESSION = "EXISTS (SELECT 1 FROM sessions WHERE sessions.run_id = runs.run_id AND sessions.ended_at IS NULL)"

_RETURNING = f" RETURNING {SHOWN}"
_RETURNING_CHANGED = f" RETURNING {CHANGED}"
#: Of what the sessions of agents have to follow.
_RETURNING_END = f"{_RETURNING_CHANGED}, {_HAS_SESSION}"
RUNS_SHOWN = f"SELECT {SHOWN} FROM runs "

#: A worker has it.
_IS_LIVE = "state IN ('claimed', 'running', 'stopping')"
#: What the index of states has; SQLite uses it only for queries that say so.
_IS_INDEXED = "state NOT IN ('pending', 'completed')"
#: The worker that asks has it: the number of the claim alone would do, unless the table was made again since.
_IS_OURS = f"WHERE run_id = :run_id AND token = :token AND owner = :owner AND {_IS_LIVE}"
_NOBODY = "owner = '', claim_until = 0, claim_boot = '', updated_at = :moment"

# --- waiting ---------------------------------------------------------------------------------------------------

#: Nothing is returned when the workflow has an unfinished run.
RUN_ENQUEUE = (
    "INSERT INTO runs (adw_id, kind, state, rank, not_before, attempts, token, owner, claim_until, claim_boot, reason,"
    " payload, asked_by, created_at, updated_at, demands, labels, losses, slot, parent_run_id)"
    " VALUES (:adw_id, :kind, 'pending', :rank, :not_before, 0, 0, '', 0, '', '', :payload, :asked_by, :moment,"
    " :moment, :demands, :labels, 0, :slot, :parent_run_id)"
    " ON CONFLICT (adw_id, slot) WHERE finished_at IS NULL DO NOTHING"
) + _RETURNING
RUN_UNFINISHED = RUNS_SHOWN + "WHERE adw_id = :adw_id AND slot = :slot AND finished_at IS NULL"
RUNS_UNFINISHED = RUNS_SHOWN + "WHERE finished_at IS NULL ORDER BY run_id"

#: Conditions on what may be claimed.
IS_DUE = "state = 'pending' AND not_before <= :moment"
#: The rank keeps the walk short where many workflows wait: nothing behind it is a delivery.
IS_DUE_DELIVERY = f"{IS_DUE} AND rank <= :rank AND kind = 'delivery'"
RUN_NEXT_DUE = "SELECT min(not_before) FROM {waiting} WHERE state = 'pending'"

_CLAIM = """
UPDATE runs
SET state = 'claimed', attempts = attempts + 1, token = token + 1, owner = :owner, claim_until = {now} + :ttl,
    claim_boot = :boot, reason = '', updated_at = :moment
"""
#: The index of what demands something has these, and is empty nearly always.
_DEMANDING = "{demanding} WHERE demands <> '' AND state = 'pending'"
DEMANDS_WAITING = f"SELECT DISTINCT demands FROM {_DEMANDING}"
DEMANDS_OF_RUN = "SELECT demands FROM runs WHERE run_id = :run_id AND state = 'pending'"
#: Claims that look at labels take turns: what one of them counted must not change before it has claimed.
LIMITS_LOCK = "SELECT pg_advisory_xact_lock(hashtext('adw.run_limits'))"
LABELS_LIVE = f"SELECT labels FROM runs WHERE {_IS_LIVE} AND {_IS_INDEXED} AND labels <> ''"


def is_any_due(due: str) -> str:
    """Return the cheapest look: whether anything at all is *due*."""
    return f"SELECT 1 FROM {{waiting}} WHERE {due} LIMIT 1"


def is_due(due: str, met: int = 0, full: int = 0) -> str:
    """Return the look before a claim, where claiming means waiting for every other writer."""
    return f"SELECT 1 FROM {{waiting}} WHERE {due}{_terms(met, full)} LIMIT 1"


def claim_first(due: str, met: int = 0, full: int = 0) -> str:
    """
    Return the claim of the first run that is *due*, demands nothing but what is *met*, and carries no *full* label.

    The place in the queue is (rank, run_id), and no requeue changes either.
    """
    first = f"SELECT run_id FROM {{waiting}} WHERE {due}{_terms(met, full)} ORDER BY rank, run_id LIMIT 1"

    return f"{_CLAIM} WHERE run_id = ({first} {{skip_locked}}) {_RETURNING}"


def claim_undemanding(due: str) -> str:
    """Return the claim for the usual case: nothing is claimed while anything waits that demands something."""
    first = f"SELECT run_id FROM {{waiting}} WHERE {due} AND demands = '' ORDER BY rank, run_id LIMIT 1"

    return f"{_CLAIM} WHERE run_id = ({first} {{skip_locked}}) AND NOT EXISTS (SELECT 1 FROM {_DEMANDING}) {_RETURNING}"


def claim_one(met: int = 0, full: int = 0) -> str:
    """Return the claim of one run, whatever its place and time."""
    return f"{_CLAIM} WHERE run_id = :run_id AND state = 'pending'{_terms(met, full)} {_RETURNING}"


def _terms(met: int, full: int) -> str:
    """Return the conditions of so many demands, `:met0` ..., and so many labels between bars, `:full0` ..."""
    demands = ", ".join(["''", *(f":met{number}" for number in range(met))])
    # Both dialects have replace, and neither takes a sign in the name of a label for a pattern.
    labels = "".join(f" AND replace(labels, :full{number}, '') = labels" for number in range(full))

    return f" AND demands IN ({demands}){labels}"


# --- with a worker ---------------------------------------------------------------------------------------------

RUN_BEGIN = f"""
UPDATE runs
SET state = CASE state WHEN 'claimed' THEN 'running' ELSE state END, started_at = coalesce(started_at, :moment),
    updated_at = :moment
{_IS_OURS} {_RETURNING_CHANGED}
"""
RUN_RENEW = f"UPDATE runs SET claim_until = {{now}} + :ttl, claim_boot = :boot {_IS_OURS} {_RETURNING_CHANGED}"

#: What somebody stops does not wait again.
_GIVE_BACK = f"""
UPDATE runs
SET state = CASE state WHEN 'stopping' THEN 'stopped' ELSE 'pending' END,
    finished_at = CASE state WHEN 'stopping' THEN :moment END,
    reason = CASE WHEN state = 'stopping' AND reason <> '' THEN reason ELSE :reason END, {_NOBODY}
"""
#: What it is to wait for may have ended while its worker was writing that it waits.
_NOT_BEFORE = "not_before = CASE WHEN woken = token THEN '' ELSE :not_before END"
RUN_REQUEUE = f"{_GIVE_BACK}, {_NOT_BEFORE}, demands = :demands {_IS_OURS} {_RETURNING_END}"
#: For a claim that was found over: its worker may have renewed it since.
_IS_OVER = "AND (claim_boot <> :boot OR claim_until <= {now})"
_TAKE_BACK = f"{_GIVE_BACK}, losses = losses + 1 {_IS_OURS}"
RUN_TAKE_BACK = f"{_TAKE_BACK} {_RETURNING_END}"
RUN_TAKE_BACK_IF_OVER = f"{_TAKE_BACK} {_IS_OVER} {_RETURNING_END}"

#: Nobody has one that waits, so its claim is over.
_BURY = f"""
UPDATE runs
SET state = CASE state WHEN 'stopping' THEN 'stopped' ELSE 'dead' END, finished_at = :moment,
    losses = CASE state WHEN 'pending' THEN losses ELSE losses + 1 END,
    reason = CASE WHEN state = 'stopping' AND reason <> '' THEN reason ELSE :reason END, {_NOBODY}
WHERE run_id = :run_id AND token = :token AND owner = :owner AND finished_at IS NULL
"""
RUN_BURY = f"{_BURY} {_RETURNING_END}"
RUN_BURY_IF_OVER = f"{_BURY} {_IS_OVER} {_RETURNING_END}"

#: What recovery decided about a run whose worker is gone, or that waits; one that was to stop is stopped all the same.
_SETTLE = f"""
UPDATE runs
SET state = CASE WHEN state = 'stopping' THEN 'stopped' ELSE :state END,
    finished_at = CASE WHEN state <> 'stopping' AND :state = 'pending' THEN NULL ELSE :moment END,
    losses = CASE state WHEN 'pending' THEN losses ELSE losses + 1 END,
    reason = CASE WHEN state = 'stopping' AND reason <> '' AND :state <> 'stopped' THEN reason ELSE :reason END,
    {_NOBODY}
WHERE run_id = :run_id AND token = :token AND owner = :owner AND finished_at IS NULL
"""
RUN_SETTLE = f"{_SETTLE} {_RETURNING_END}"
RUN_SETTLE_IF_OVER = f"{_SETTLE} {_IS_OVER} {_RETURNING_END}"

RUN_FINISH = f"""
UPDATE runs
SET state = :state, finished_at = :moment,
    reason = CASE WHEN :state = 'stopped' AND :reason = '' THEN reason ELSE :reason END, {_NOBODY}
{_IS_OURS} {_RETURNING_END}
"""

# --- for everybody ---------------------------------------------------------------------------------------------

RUN_STOP = f"""
UPDATE runs
SET state = CASE state WHEN 'pending' THEN 'stopped' ELSE 'stopping' END,
    finished_at = CASE state WHEN 'pending' THEN :moment END, reason = :reason, updated_at = :moment
WHERE run_id = :run_id AND state IN ('pending', 'claimed', 'running') {_RETURNING}, {_HAS_SESSION}
"""
#: What the run that goes on with a workflow waits for has ended; one that a worker has is due again when given back.
RUN_WAKE = f"""
UPDATE runs
SET not_before = CASE state WHEN 'pending' THEN '' ELSE not_before END, woken = token, updated_at = :moment
WHERE adw_id = :adw_id AND slot = '' AND finished_at IS NULL {_RETURNING}
"""
RUN_GET = RUNS_SHOWN + "WHERE run_id = :run_id"
#: Those that go on with it or undo it; the lanes of its steps are not asked for by it.
RUNS_OF_WORKFLOW = RUNS_SHOWN + "WHERE adw_id = :adw_id AND kind <> 'iteration' ORDER BY run_id DESC LIMIT :limit"
RUNS_LIVE = RUNS_SHOWN + f"WHERE {_IS_LIVE} AND {_IS_INDEXED} ORDER BY run_id"
RUNS_DEMANDING = f"SELECT {SHOWN} FROM {_DEMANDING} ORDER BY run_id"
RUNS_PAGE = RUNS_SHOWN + "WHERE run_id < :before ORDER BY run_id DESC LIMIT :limit"
_PAGE_END = "AND run_id < :before ORDER BY run_id DESC LIMIT :limit"
#: The ids on a page of one state, by the index that has it. Those that went well are found among all there are.
PAGE_OF_PENDING = f"SELECT run_id FROM {{waiting}} WHERE state = 'pending' {_PAGE_END}"
PAGE_OF_COMPLETED = f"SELECT run_id FROM runs WHERE state = 'completed' {_PAGE_END}"
#: `{state}` is the name of the parameter.
PAGE_OF_STATE = f"SELECT run_id FROM runs WHERE state = :{{state}} AND {_IS_INDEXED} {_PAGE_END}"
RUNS_OF_WORKFLOW_DELETE = "DELETE FROM runs WHERE adw_id = :adw_id"

# --- checks ----------------------------------------------------------------------------------------------------

#: A start is stored before its workflow exists; what the schedule or a delivery asks for has none.
CHECK_RUNS = """
SELECT run_id, adw_id FROM runs AS asked
WHERE finished_at IS NULL AND kind NOT IN ('start', 'cron', 'delivery')
  AND NOT EXISTS (SELECT 1 FROM workflow_states AS known WHERE known.adw_id = asked.adw_id)
ORDER BY run_id
"""
