"""
Every query, by name.

`:name` is a parameter. `{now}` (the lease clock) and `{row_lock}` are spelled by `Database.spell`. No text of a caller
is ever put into a query.
"""

from __future__ import annotations

# --- workflows -------------------------------------------------------------------------------------------------

STATE_COLUMNS = (
    "adw_id",
    "repository",
    "issue_number",
    "title",
    "workflow",
    "state",
    "revision",
    "fence",
    "owner",
    "lease_until",
    "lease_boot",
    "taken_at",
    "home",
    "schema_version",
    "created_at",
    "updated_at",
    "body",
)

_INSERT_STATE = f"INSERT INTO workflow_states ({', '.join(STATE_COLUMNS)})"

#: A row that nobody owns; 0 rows: the id is taken.
STATE_INSERT = (
    f"{_INSERT_STATE} VALUES (:adw_id, :repository, :issue_number, :title, :workflow, :state, :revision, :fence,"
    " '', 0, '', '', :home, :schema_version, :created_at, :updated_at, :body) ON CONFLICT (adw_id) DO NOTHING"
)

#: A row with its first lease; 0 rows: the id is taken.
STATE_REGISTER = (
    f"{_INSERT_STATE} VALUES (:adw_id, :repository, :issue_number, :title, :workflow, :state, 0, 1,"
    " :owner, {now} + :ttl, :boot, :taken_at, :home, :schema_version, :created_at, :updated_at, '')"
    " ON CONFLICT (adw_id) DO NOTHING"
)

STATE_UNREGISTER = """
DELETE FROM workflow_states WHERE adw_id = :adw_id AND owner = :owner AND fence = :fence AND revision = 0
"""

#: Writes a document over the revision it was made from, unless a later owner was seen. SQLite writes every index anew
#: whose columns are named in SET, changed or not: so this one leaves out what stays the same in a workflow's life, and
#: does nothing when one of those did change.
STATE_WRITE = """
UPDATE workflow_states
SET state = :state, revision = :revision, fence = :fence, schema_version = :schema_version,
    updated_at = :updated_at, body = :body
WHERE adw_id = :adw_id AND home = 'database' AND revision = :expected AND fence <= :fence
  AND repository = :repository AND workflow = :workflow AND created_at = :created_at AND title = :title
  AND coalesce(issue_number, 0) = coalesce(:issue_number, 0)
"""

#: The same with every column, for the rare write that changes those too.
STATE_WRITE_ALL = """
UPDATE workflow_states
SET repository = :repository, issue_number = :issue_number, title = :title, workflow = :workflow, state = :state,
    revision = :revision, fence = :fence, schema_version = :schema_version, created_at = :created_at,
    updated_at = :updated_at, body = :body
WHERE adw_id = :adw_id AND home = 'database' AND revision = :expected AND fence <= :fence
"""

STATE_FENCE_OUT = """
UPDATE workflow_states SET fence = :fence + 1 WHERE adw_id = :adw_id AND home = 'database' AND fence <= :fence
"""

#: Brings the copy of a file up; never the lease, never backwards, never over a document that lives here.
STATE_PROJECT = (
    f"{_INSERT_STATE} VALUES (:adw_id, :repository, :issue_number, :title, :workflow, :state, :revision, :fence,"
    " '', 0, '', '', 'files', :schema_version, :created_at, :updated_at, :body)"
    """
ON CONFLICT (adw_id) DO UPDATE
SET repository = excluded.repository, issue_number = excluded.issue_number, title = excluded.title,
    workflow = excluded.workflow, state = excluded.state, revision = excluded.revision,
    schema_version = excluded.schema_version, created_at = excluded.created_at, updated_at = excluded.updated_at,
    body = excluded.body
WHERE workflow_states.home = 'files' AND workflow_states.revision < excluded.revision
"""
)

STATE_HEAD = "SELECT home, revision, fence FROM workflow_states WHERE adw_id = :adw_id"
STATE_BODY = "SELECT revision, body FROM workflow_states WHERE adw_id = :adw_id AND home = :home AND revision > 0"
STATE_EXISTS = "SELECT 1 FROM workflow_states WHERE adw_id = :adw_id AND home = :home AND revision > 0"
STATE_IDS = """
SELECT adw_id FROM workflow_states WHERE home = :home AND revision > 0 AND adw_id > :after ORDER BY adw_id LIMIT :limit
"""

# --- lists -----------------------------------------------------------------------------------------------------

#: The owner of a lease that is over does not work on it any more.
SUMMARY = """
SELECT adw_id, repository, issue_number, title, workflow, state, revision, created_at, updated_at,
       CASE WHEN lease_boot = :boot AND lease_until > {now} THEN owner ELSE '' END
FROM workflow_states
"""
#: A word of a search is found; `{like}` is spelled by the dialect. All but the last is answered by the index of the
#: newest alone, which has these columns for that: no document is touched for a workflow that is not found.
HAS_TEXT = "title {like} :{name} ESCAPE '!' OR repository {like} :{name} ESCAPE '!'"
HAS_ID = "adw_id {like} :{name} ESCAPE '!'"
HAS_ISSUE = "issue_number = :{name}"
NEWEST_FIRST = "ORDER BY created_at DESC, adw_id DESC"
AFTER_CURSOR = "(created_at, adw_id) < (:cursor_created_at, :cursor_adw_id)"

# --- leases ----------------------------------------------------------------------------------------------------

LEASE_READ = """
SELECT fence, owner, CASE WHEN lease_boot = :boot THEN lease_until ELSE 0 END - {now}, taken_at
FROM workflow_states WHERE adw_id = :adw_id
"""

#: `{ids}` are the names of parameters.
LEASES_READ = """
SELECT adw_id, fence, owner, CASE WHEN lease_boot = :boot THEN lease_until ELSE 0 END - {now}, taken_at
FROM workflow_states WHERE adw_id IN ({ids})
"""

LEASE_READ_TO_TAKE = LEASE_READ + " {row_lock}"

LEASE_TAKE = """
UPDATE workflow_states
SET owner = :owner, fence = fence + 1, lease_until = {now} + :ttl, lease_boot = :boot, taken_at = :taken_at
WHERE adw_id = :adw_id AND (owner = '' OR lease_boot <> :boot OR lease_until <= {now} OR fence = :dead_fence)
RETURNING fence
"""

LEASE_RENEW = """
UPDATE workflow_states SET lease_until = {now} + :ttl
WHERE adw_id = :adw_id AND owner = :owner AND fence = :fence AND lease_boot = :boot AND lease_until > {now}
"""

LEASE_RELEASE = """
UPDATE workflow_states SET owner = '', lease_until = 0, lease_boot = '', taken_at = ''
WHERE adw_id = :adw_id AND owner = :owner AND fence = :fence
"""

# --- issue locks -----------------------------------------------------------------------------------------------

LOCK_ACQUIRE = """
INSERT INTO adw_locks (repository, issue_number, adw_id, acquired_at)
VALUES (:repository, :issue_number, :adw_id, :acquired_at)
ON CONFLICT (repository, issue_number) DO NOTHING
"""
LOCKS_OF_NUMBER = """
SELECT repository, issue_number, adw_id, acquired_at FROM adw_locks
WHERE issue_number = :issue_number ORDER BY acquired_at, repository
"""
LOCK_RELEASE = """
DELETE FROM adw_locks WHERE repository = :repository AND issue_number = :issue_number AND adw_id = :adw_id
"""
#: The issue of a workflow that ended, however its repository is spelled.
LOCK_END = "DELETE FROM adw_locks WHERE issue_number = :issue_number AND adw_id = :adw_id"
LOCKS_OF_WORKFLOW_DELETE = "DELETE FROM adw_locks WHERE adw_id = :adw_id"
LOCKS_ALL = """
SELECT repository, issue_number, adw_id, acquired_at FROM adw_locks ORDER BY acquired_at, repository, issue_number
"""

#: Along the key.
LOCKS_FIRST = """
SELECT repository, issue_number, adw_id, acquired_at FROM adw_locks ORDER BY repository, issue_number LIMIT :limit
"""

# --- requests --------------------------------------------------------------------------------------------------

REQUEST_ASK = """
INSERT INTO requests (adw_id, kind, payload, asked_by, created_at)
VALUES (:adw_id, :kind, :payload, :asked_by, :created_at)
RETURNING request_id
"""
REQUESTS_OPEN = """
SELECT request_id, adw_id, kind, payload, asked_by, created_at, handled_at, outcome FROM requests
WHERE adw_id = :adw_id AND handled_at IS NULL ORDER BY request_id
"""
REQUEST_GET = """
SELECT request_id, adw_id, kind, payload, asked_by, created_at, handled_at, outcome FROM requests
WHERE request_id = :request_id
"""
REQUEST_HANDLED = """
UPDATE requests SET handled_at = :handled_at, outcome = :outcome WHERE request_id = :request_id AND handled_at IS NULL
"""

# --- events ----------------------------------------------------------------------------------------------------

EVENT_COLUMNS = (
    "event_id",
    "adw_id",
    "revision",
    "event_type",
    "created_at",
    "status",
    "execution_id",
    "parent_execution_id",
    "parent_event_id",
    "retry_sequence_id",
    "attempt_number",
    "iteration_index",
    "total_iterations",
    "node_id",
    "node_name",
    "node_type",
    "catalog_id",
    "duration",
    "result",
    "context",
    "data",
    "meta",
)

#: Storing an event twice changes nothing: its key says which one it is.
EVENT_INSERT = (
    f"INSERT INTO events ({', '.join(EVENT_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in EVENT_COLUMNS)})"  # noqa: S608 - names of this module
    " ON CONFLICT (event_id) DO NOTHING"
)
EVENT_PLACE = "SELECT seq FROM events WHERE event_id = :event_id AND adw_id = :adw_id"
EVENTS_OF_WORKFLOW = (
    f"SELECT {', '.join(EVENT_COLUMNS)} FROM events"  # noqa: S608 - names of this module
    " WHERE adw_id = :adw_id AND seq > :after ORDER BY seq LIMIT :limit"
)
EVENTS_NEWEST = (
    f"SELECT {', '.join(EVENT_COLUMNS)} FROM events"  # noqa: S608 - names of this module
    " WHERE adw_id = :adw_id AND seq < :before ORDER BY seq DESC LIMIT :limit"
)
EVENTS_OF_WORKFLOW_DELETE = "DELETE FROM events WHERE adw_id = :adw_id"

# --- checks ----------------------------------------------------------------------------------------------------

CHECK_ROWS = """
SELECT adw_id, home, revision, owner, CASE WHEN lease_boot = :boot THEN lease_until ELSE 0 END - {now}
FROM workflow_states ORDER BY adw_id
"""
CHECK_LOCKS = """
SELECT repository, issue_number, adw_id FROM adw_locks AS held
WHERE NOT EXISTS (SELECT 1 FROM workflow_states AS known WHERE known.adw_id = held.adw_id) ORDER BY acquired_at
"""
CHECK_REQUESTS = """
SELECT request_id, adw_id FROM requests AS asked
WHERE handled_at IS NULL AND NOT EXISTS (SELECT 1 FROM workflow_states AS known WHERE known.adw_id = asked.adw_id)
ORDER BY request_id
"""

# --- making the contents again ---------------------------------------------------------------------------------

#: Puts a document in its row, whatever was there. Its lease is over, but its owner stays: the next one takes over.
STATE_REBUILD = (
    f"{_INSERT_STATE} VALUES (:adw_id, :repository, :issue_number, :title, :workflow, :state, :revision, :fence,"
    " '', 0, '', '', :home, :schema_version, :created_at, :updated_at, :body)"
    """
ON CONFLICT (adw_id) DO UPDATE
SET repository = excluded.repository, issue_number = excluded.issue_number, title = excluded.title,
    workflow = excluded.workflow, state = excluded.state, revision = excluded.revision, fence = excluded.fence,
    lease_until = 0, lease_boot = '', home = excluded.home, schema_version = excluded.schema_version,
    created_at = excluded.created_at, updated_at = excluded.updated_at, body = excluded.body
"""
)
STATE_FORGET = "DELETE FROM workflow_states WHERE adw_id = :adw_id AND revision = 0"
SALVAGE_STATES = """
SELECT adw_id, home, revision, fence, owner, CASE WHEN lease_boot = :boot THEN lease_until ELSE 0 END - {now}
FROM workflow_states ORDER BY adw_id
"""
SALVAGE_EVENT_COUNTS = "SELECT adw_id, count(*) FROM events GROUP BY adw_id"
SALVAGE_REQUESTS = """
SELECT request_id, adw_id, kind, payload, asked_by, created_at, handled_at, outcome FROM requests
WHERE handled_at IS NULL ORDER BY request_id
"""
EVENTS_AFTER = (
    f"SELECT seq, {', '.join(EVENT_COLUMNS)} FROM events"  # noqa: S608 - names of this module
    " WHERE seq > :after ORDER BY seq LIMIT :limit"
)
EVENTS_COUNT = "SELECT count(*) FROM events"
LOCKS_CLEAR = "DELETE FROM adw_locks"
