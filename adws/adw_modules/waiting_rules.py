"""
Waiting for others: for an outside party that is out of order, and for a quota that is used up.

Pure. Neither uses an attempt. A quota is waited for at most `MAX_PARKS` times in a row, so that nothing waits for ever.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.interfaces_engine import Wait
from adws.adw_modules.outcome import Outcome, RetryAt

if TYPE_CHECKING:
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.phase_choice import Chosen

#: Seconds between two looks at a party, at least: one that says "now" must not be asked without end.
SHORTEST_WAIT_SECONDS = 1.0


def wait_for(draft: Draft, chosen: Chosen, wait: Wait) -> Outcome:
    """Let a phase wait for an outside party before its next attempt; no attempt is used."""
    at = max(wait.at, draft.at + timedelta(seconds=SHORTEST_WAIT_SECONDS))
    record = draft.change_phase(
        chosen.index, status="retry_wait", retry_at=timestamps.to_text(at), wait_reason=wait.reason
    )
    told = {"party": wait.party, "at": record.retry_at or "", "why": wait.reason}
    draft.tell("breaker_waited", chosen.index, data={**told})

    return RetryAt(phase=record.name, at=at, reason=wait.reason)
