"""
The queries about ports and quotas, by name.

Spelled like those of `statements`: `:name` is a parameter, `{now}` the lease clock. `{cost}` and `{phases}` are how a
dialect reads a part of a document, `{cap}` is what a person allowed the workflow to cost.
"""

from __future__ import annotations

# --- ports -----------------------------------------------------------------------------------------------------

#: 0 rows: somebody has the port, or the workflow has one for this purpose.
PORT_RESERVE = """
INSERT INTO ports (host, port, adw_id, purpose, owner, reserved_at)
VALUES (:host, :port, :adw_id, :purpose, :owner, :reserved_at)
ON CONFLICT DO NOTHING
"""
#: Says who holds a workflow's ports now.
PORTS_KEEP = "UPDATE ports SET owner = :owner WHERE host = :host AND adw_id = :adw_id"
PORTS_FREE = "DELETE FROM ports WHERE adw_id = :adw_id RETURNING port"
PORTS_FREE_HERE = "DELETE FROM ports WHERE host = :host AND adw_id = :adw_id AND owner = :owner"
PORT_FREE_LEFT = "DELETE FROM ports WHERE host = :host AND port = :port AND adw_id = :adw_id AND owner = :owner"
PORTS_ALL = "SELECT host, port, adw_id, purpose, owner, reserved_at FROM ports ORDER BY host, port"

# --- quotas ----------------------------------------------------------------------------------------------------

#: Two who ask at once decide one after the other. SQLite has one writer anyway.
QUOTA_LOCK = "SELECT pg_advisory_xact_lock(hashtext('adw.quota_reservations'))"
#: Places of workflows that are parked or over and that nobody works on: whoever had them died before giving them back.
QUOTA_FREE_LEFT = """
DELETE FROM quota_reservations WHERE EXISTS (
  SELECT 1 FROM workflow_states AS known
  WHERE known.adw_id = quota_reservations.adw_id
    AND known.state IN ('paused', 'failed', 'completed', 'abandoned', 'rolled_back')
    AND (known.owner = '' OR known.lease_boot <> :boot OR known.lease_until <= {now})
)
OR (reserved_at < :long_ago AND NOT EXISTS (
  SELECT 1 FROM workflow_states AS known WHERE known.adw_id = quota_reservations.adw_id
))
"""
QUOTA_RESERVE = """
INSERT INTO quota_reservations (adw_id, host, estimated_cost, reserved_at)
VALUES (:adw_id, :host, :estimated_cost, :reserved_at)
ON CONFLICT (adw_id) DO UPDATE SET host = excluded.host, estimated_cost = excluded.estimated_cost
"""
QUOTA_RELEASE = "DELETE FROM quota_reservations WHERE adw_id = :adw_id"
QUOTA_ALL = "SELECT adw_id, host, estimated_cost, reserved_at FROM quota_reservations ORDER BY reserved_at, adw_id"

WORKFLOW_OF = "SELECT workflow FROM workflow_states WHERE adw_id = :adw_id"
#: What a workflow has cost so far, and its own cap.
COST_OF = "SELECT {cost}, {cap} FROM workflow_states WHERE adw_id = :adw_id AND revision > 0"
#: What the last workflows of a name cost that came to their end.
COSTS_OF_COMPLETED = """
SELECT {cost} FROM workflow_states
WHERE workflow = :workflow AND state = 'completed' AND revision > 0 ORDER BY created_at DESC, adw_id DESC LIMIT :limit
"""
#: The phases of everything that changed since a moment and cost something: their attempts say what was spent when.
PHASES_SINCE = """
SELECT adw_id, workflow, {phases} FROM workflow_states
WHERE updated_at >= :since AND revision > 0 AND {is_costing}
"""
#: The same, a part of them at a time, with what agents did whose cost nobody knows. Whole documents: to have the
#: database cut the phases out takes longer than to read the rest.
COSTS_SINCE = """
SELECT adw_id, workflow, body FROM workflow_states
WHERE adw_id > :after AND updated_at >= :since AND revision > 0 AND (body LIKE :costing OR body LIKE :of_agents)
ORDER BY adw_id LIMIT :limit
"""

#: dialect -> how it reads the parts of a document
DOCUMENT_PARTS = {
    "sqlite": {
        "{cost}": "CAST(json_extract(body, '$.cost.total_usd') AS REAL)",
        "{cap}": "CAST(json_extract(body, '$.max_cost_usd') AS REAL)",
        "{phases}": "json_extract(body, '$.phases')",
        "{is_costing}": "body LIKE '%\"cost_usd\"%'",  # as in ix_workflow_states_costing, which it is read along
    },
    "postgresql": {
        "{cost}": "CAST(body::json -> 'cost' ->> 'total_usd' AS float8)",
        "{cap}": "CAST(body::json ->> 'max_cost_usd' AS float8)",
        "{phases}": "CAST(body::json -> 'phases' AS text)",
        "{is_costing}": "strpos(body, '\"cost_usd\"') > 0",
    },
}
