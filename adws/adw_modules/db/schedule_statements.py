# ruff: noqa: S608 - all that is put into these texts are other texts of this module
"""
The queries about the schedule and about notifications, by name.

Spelled like those of `statements`. A claim is over when it belongs to another start of the machine or when its time is
up.
"""

from __future__ import annotations

from adws.adw_modules.db.statements import EVENT_COLUMNS

# --- the schedule ----------------------------------------------------------------------------------------------

SCHEDULE_ALL = """
SELECT name, spec, last_due, last_run, status, outcome, memo, owner, token,
       CASE WHEN owner = '' THEN 0 WHEN claim_boot = :boot THEN claim_until - {now} ELSE -1 END
FROM schedule
"""
#: Makes the row that a claim is about; of two who begin at once one makes it.
SCHEDULE_BEGIN = """
INSERT INTO schedule (name, spec, last_due, last_run, status, outcome, memo, owner, token, claim_until, claim_boot)
VALUES (:name, :spec, '', '', '', '', '{}', '', 0, 0, '')
ON CONFLICT (name) DO NOTHING
"""
#: Nothing is returned when another cron has it, or has done it since it was looked at.
SCHEDULE_CLAIM = """
UPDATE schedule
SET spec = :spec, owner = :owner, token = token + 1, claim_until = {now} + :ttl, claim_boot = :boot
WHERE name = :name AND last_due = :seen
  AND (owner = '' OR claim_boot <> :boot OR claim_until <= {now} OR token = :dead_token)
RETURNING token, memo
"""
_IS_OURS = "WHERE name = :name AND token = :token AND owner <> ''"
SCHEDULE_RENEW = f"UPDATE schedule SET claim_until = {{now}} + :ttl, claim_boot = :boot {_IS_OURS}"
SCHEDULE_FINISH = f"""
UPDATE schedule
SET last_due = :due, last_run = :moment, status = :status, outcome = :outcome,
    memo = CASE WHEN :memo = '' THEN memo ELSE :memo END, owner = '', claim_until = 0, claim_boot = ''
{_IS_OURS}
"""

# --- notifications ---------------------------------------------------------------------------------------------

#: A row as `notifications.to_notification` reads it.
SHOWN = """
notice_id, notice_key, channel, kind, adw_id, title, body, status, attempts, not_before, error, created_at, sent_at,
token
"""
#: Storing a notice twice changes nothing: its key says which transition it tells of.
NOTICE_ADD = """
INSERT INTO notifications
  (notice_key, channel, kind, adw_id, title, body, status, attempts, not_before, error, created_at, token, claim_until,
   claim_boot)
VALUES (:key, :channel, :kind, :adw_id, :title, :text, 'pending', 0, '', '', :moment, 0, 0, '')
ON CONFLICT (notice_key, channel) DO NOTHING
"""
NOTICE_IS_DUE = """
SELECT notice_id FROM notifications
WHERE status = 'pending' AND not_before <= :moment AND (claim_boot <> :boot OR claim_until <= {now})
ORDER BY notice_id LIMIT 1
"""
#: The same, and the row is locked for the rest of the transaction, which claims it.
NOTICE_DUE = NOTICE_IS_DUE + "{row_lock}"
NOTICE_CLAIM = f"""
UPDATE notifications
SET token = token + 1, attempts = attempts + 1, claim_until = {{now}} + :ttl, claim_boot = :boot
WHERE notice_id = :notice_id
RETURNING {SHOWN}
"""
NOTICE_SETTLE = """
UPDATE notifications
SET status = :status, error = :error, not_before = :not_before, claim_until = 0, claim_boot = '',
    sent_at = CASE WHEN :status = 'sent' THEN :moment ELSE sent_at END
WHERE notice_id = :notice_id AND token = :token AND status = 'pending'
"""
NOTICES_PAGE = f"SELECT {SHOWN} FROM notifications ORDER BY notice_id DESC LIMIT :limit"
NOTICES_FORGET = "DELETE FROM notifications WHERE status <> 'pending' AND created_at < :moment"

# --- how far events were looked through ------------------------------------------------------------------------

CURSOR_BEGIN = """
INSERT INTO notification_cursor (name, seq, event_id) VALUES (:name, -1, '') ON CONFLICT (name) DO NOTHING
"""
CURSOR_READ = "SELECT seq, event_id FROM notification_cursor WHERE name = :name"
CURSOR_TAKE = f"{CURSOR_READ} {{row_lock}}"
CURSOR_MOVE = "UPDATE notification_cursor SET seq = :seq, event_id = :event_id WHERE name = :name"
#: The last event before the first one made since a moment: what is made again after a loss may not be in order.
EVENTS_BEFORE = "SELECT coalesce(min(seq) - 1, :last) FROM events WHERE created_at >= :since"
EVENTS_BETWEEN = (
    f"SELECT seq, {', '.join(EVENT_COLUMNS)} FROM events WHERE seq > :after AND seq <= :last ORDER BY seq LIMIT :limit"
)
