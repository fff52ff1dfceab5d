"""
The one comment on an issue that says how the work stands, edited in place.

Best effort: trouble with it is noted and never fails the work. Only what says that the workflow is not ours any more,
or cannot be written, goes on to whoever works on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from adws.adw_modules import effect_rules, forge_texts
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.engine.ledger import Ledger
from adws.adw_modules.errors import AdwError, DatabaseError, OwnershipError, StateError
from adws.adw_modules.forge_effects import ForgeEffects
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.json_value import JsonObject

logger = logging.getLogger("adw.work")

#: The ledger's key of the comment.
COMMENT = "comment:sticky"


class StickyComment:
    """Keeps the comment of a workflow's issue up to date."""

    def __init__(self, maker: Callable[[], ForgeEffects], *, clock: Clock, host: str) -> None:
        """*maker* opens the forge, which may fail too; *host* is this machine as the ledger names it."""
        self._maker = maker
        self._clock = clock
        self._host = host

    def update(self, session: WorkSession) -> None:
        """Write how the workflow stands; trouble is noted as an event and in the log."""
        if session.document.issue_number is None:
            return
        try:
            self._write(session, session.document.issue_number)
        except (OwnershipError, StateError, DatabaseError):
            raise
        except AdwError as exc:
            why = str(exc)
            said = {"action": "comment_failed", "workflow": session.document.adw_id}
            logger.warning("The comment could not be brought up to date", extra=said, exc_info=True)
            session.change(lambda draft: draft.tell("comment_failed", data={"why": why}))

    def _write(self, session: WorkSession, number: int) -> None:
        document = session.document
        maker = self._maker()
        text = forge_texts.sticky_text(forge_texts.sticky_facts(document, now=self._clock.now()))
        ledger = Ledger(session, host=self._host)
        known = ledger.facts(COMMENT)
        if known is not None:
            comment_id = known.get("comment_id")
            kept = comment_id if isinstance(comment_id, int) else None
            found = maker.sticky_comment(document.adw_id, number, text, comment_id=kept)
            if found.comment_id != kept:
                ledger.note(COMMENT, {"comment_id": found.comment_id})
            return
        before = effect_rules.effect(document, COMMENT)
        is_in_doubt = before is not None and before.outcome == "intended"

        def act() -> JsonObject:
            made = maker.sticky_comment(document.adw_id, number, text, in_doubt=is_in_doubt)
            return {"comment_id": made.comment_id, "url": made.url}

        # The maker looks itself, more than once where it is in doubt.
        ledger.make(COMMENT, "comment", undo={"number": number}, find=lambda: None, act=act)
