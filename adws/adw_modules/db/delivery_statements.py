# ruff: noqa: S608 - all that is put into these texts are other texts of this module
"""
The queries about deliveries, by name.

Spelled like those of `statements`. A delivery is the same as another by its guid, by its body or by its intent: three
unique indexes decide, also between two that come at once.
"""

from __future__ import annotations

#: A delivery as `deliveries.to_delivery` reads it.
SHOWN = """
guid, event, action, sender, repository, number, verdict, reason, status, outcome, run_id, adw_id, received_at,
finished_at, deliveries
"""
_KEPT = "hook, intent, body_hash, request, body"

#: Nothing is returned when it was here before.
DELIVERY_INSERT = """
INSERT INTO deliveries
  (guid, event, action, hook, sender, repository, number, intent, body_hash, verdict, reason, status, outcome, adw_id,
   received_at, finished_at, deliveries, request, body)
VALUES
  (:guid, :event, :action, :hook, :sender, :repository, :number, :intent, :body_hash, :verdict, :reason, :status,
   :outcome, :adw_id, :moment, :finished_at, 1, :request, :body)
ON CONFLICT DO NOTHING RETURNING guid
"""
#: By its guid first: that one is what whoever asks has in hand.
DELIVERY_BEFORE = f"""
SELECT body_hash, {SHOWN} FROM deliveries
WHERE guid = :guid OR body_hash = :body_hash OR (intent = :intent AND intent <> '')
ORDER BY CASE WHEN guid = :guid THEN 0 ELSE 1 END, seq LIMIT 1
"""
DELIVERY_CAME_AGAIN = "UPDATE deliveries SET deliveries = deliveries + 1 WHERE guid = :guid"
DELIVERY_SET_RUN = "UPDATE deliveries SET run_id = :run_id WHERE guid = :guid"
DELIVERY_GET = f"SELECT {SHOWN} FROM deliveries WHERE guid = :guid"
#: The same, and nobody else changes it before the end of the transaction.
DELIVERY_TAKE = f"SELECT {SHOWN} FROM deliveries WHERE guid = :guid {{row_lock}}"
DELIVERY_REQUEST = "SELECT request FROM deliveries WHERE guid = :guid"
DELIVERY_BODY = "SELECT body FROM deliveries WHERE guid = :guid"
DELIVERY_FINISH = """
UPDATE deliveries
SET status = :status, outcome = :outcome, finished_at = :moment,
    adw_id = CASE WHEN :adw_id = '' AND NOT (verdict = 'command' AND :status = 'refused') THEN adw_id ELSE :adw_id END
WHERE guid = :guid
"""
DELIVERY_AGAIN = """
UPDATE deliveries
SET status = 'received', outcome = '', finished_at = NULL, run_id = :run_id, verdict = :verdict, reason = :reason,
    request = :request, adw_id = :adw_id
WHERE guid = :guid
"""
#: `{verdicts}` are the names of parameters.
DELIVERIES_PAGE = f"""
SELECT {SHOWN} FROM deliveries
WHERE (:before = '' OR seq < (SELECT seq FROM deliveries WHERE guid = :before)) {{verdicts}}
ORDER BY seq DESC LIMIT :limit
"""
IS_OF_VERDICTS = "AND verdict IN ({names})"
DELIVERIES_COUNT = "SELECT count(*) FROM deliveries WHERE verdict <> 'ignored' AND received_at >= :since"
OF_SENDER = "AND sender = :sender"
OF_REPOSITORY = "AND repository = :repository"
OF_NUMBER = "AND number = :number"
#: Of a sender, and of an issue.
ASKED_SINCE = f"SELECT ({DELIVERIES_COUNT} {OF_SENDER}), ({DELIVERIES_COUNT} {OF_REPOSITORY} {OF_NUMBER})"
#: What is still to be done stays, however old.
_IS_OLD = """
received_at < :moment AND NOT EXISTS (
  SELECT 1 FROM runs WHERE runs.run_id = deliveries.run_id AND runs.finished_at IS NULL)
"""
DELIVERIES_OLD = f"SELECT count(*) FROM deliveries WHERE {_IS_OLD}"
#: Some at a time: their bodies are long, and others wait meanwhile.
DELIVERIES_FORGET = f"""
DELETE FROM deliveries WHERE seq IN (SELECT seq FROM deliveries WHERE {_IS_OLD} ORDER BY seq LIMIT :limit)
"""

# --- making a database again -----------------------------------------------------------------------------------

DELIVERIES_ALL = f"SELECT {SHOWN}, {_KEPT} FROM deliveries ORDER BY seq"
#: Brings back the row of another database; one that is there stays. Its run has another number now.
DELIVERY_BRING = """
INSERT INTO deliveries
  (guid, event, action, hook, sender, repository, number, intent, body_hash, verdict, reason, status, outcome, adw_id,
   received_at, finished_at, deliveries, request, body)
VALUES
  (:guid, :event, :action, :hook, :sender, :repository, :number, :intent, :body_hash, :verdict, :reason, :status,
   :outcome, :adw_id, :moment, :finished_at, :deliveries, :request, :body)
ON CONFLICT DO NOTHING
"""

# --- checks ----------------------------------------------------------------------------------------------------

#: Accepted, and no run is left that would do it.
CHECK_DELIVERIES = """
SELECT guid, adw_id FROM deliveries AS kept
WHERE status = 'received' AND NOT EXISTS (
  SELECT 1 FROM runs WHERE runs.run_id = kept.run_id AND runs.finished_at IS NULL)
ORDER BY seq
"""
