"""
Every query about runners and counters, by name; as in `statements`.

When a runner was last heard of is measured by the clock of leases, so that no clock of a machine decides who lives.
"""

from __future__ import annotations

#: One that registers again is the same one: only its start stays.
RUNNER_REGISTER = """
INSERT INTO runners (runner_id, owner, host, tags, concurrency, busy, version, is_draining, started_at, heartbeat_at,
    beat, beat_boot)
VALUES (:runner_id, :owner, :host, :tags, :concurrency, 0, :version, 0, :moment, :moment, {now}, :boot)
ON CONFLICT (runner_id) DO UPDATE SET tags = excluded.tags, concurrency = excluded.concurrency,
    version = excluded.version, heartbeat_at = excluded.heartbeat_at, beat = excluded.beat,
    beat_boot = excluded.beat_boot
"""
RUNNER_BEAT = """
UPDATE runners
SET busy = :busy, is_draining = :is_draining, heartbeat_at = :moment, beat = {now}, beat_boot = :boot
WHERE runner_id = :runner_id AND concurrency > 0
"""
#: It stays until it is forgotten, without a place: so people see that it left, and when.
RUNNER_LEAVE = """
UPDATE runners
SET concurrency = 0, busy = 0, is_draining = 0, heartbeat_at = :moment, beat = {now}, beat_boot = :boot
WHERE runner_id = :runner_id AND concurrency > 0
"""
#: NULL where the machine was started again since: its clock tells nothing about the time before.
RUNNERS_ALL = """
SELECT runner_id, owner, tags, concurrency, busy, version, is_draining, started_at, heartbeat_at,
    CASE WHEN beat_boot = :boot THEN {now} - beat END
FROM runners ORDER BY started_at, runner_id
"""
RUNNER_FORGET = "DELETE FROM runners WHERE runner_id = :runner_id AND heartbeat_at = :heartbeat_at"

CHECK_RUNNERS = "SELECT runner_id, owner FROM runners ORDER BY runner_id"

COUNTER_ADD = """
INSERT INTO counters (name, labels, value) VALUES (:name, :labels, :amount)
ON CONFLICT (name, labels) DO UPDATE SET value = counters.value + excluded.value
"""
COUNTERS_ALL = "SELECT name, labels, value FROM counters ORDER BY name, labels"
