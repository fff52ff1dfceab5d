"""
The queries about breakers, by name.

Spelled like those of `statements`: `:name` is a parameter, `{row_lock}` keeps others from the row until the end.
"""

from __future__ import annotations

BREAKER_READ = """
SELECT name, state, failures, generation, opened_at, reopens_at, reason, permits, settings, changed_at
FROM breakers WHERE name = :name
"""
#: The same, and nobody else changes the row before the end of the transaction.
BREAKER_TAKE = BREAKER_READ + "{row_lock}"
BREAKERS_ALL = """
SELECT name, state, failures, generation, opened_at, reopens_at, reason, permits, settings, changed_at
FROM breakers
"""
#: Makes the row that `BREAKER_TAKE` locks; of two who begin at once one makes it.
BREAKER_BEGIN = """
INSERT INTO breakers (name, state, failures, generation, reason, permits, settings, changed_at)
VALUES (:name, 'closed', 0, 1, '', '[]', '{}', '')
ON CONFLICT (name) DO NOTHING
"""
BREAKER_CHANGE = """
UPDATE breakers SET state = :state, failures = :failures, generation = :generation, opened_at = :opened_at,
  reopens_at = :reopens_at, reason = :reason, permits = :permits, settings = :settings, changed_at = :changed_at
WHERE name = :name
"""
BREAKER_FORGET = "DELETE FROM breakers WHERE name = :name"
#: Brings back the row of another database; one that is there stays.
BREAKER_BRING = """
INSERT INTO breakers
  (name, state, failures, generation, opened_at, reopens_at, reason, permits, settings, changed_at)
VALUES
  (:name, :state, :failures, :generation, :opened_at, :reopens_at, :reason, :permits, :settings, :changed_at)
ON CONFLICT (name) DO NOTHING
"""
