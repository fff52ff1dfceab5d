"""
Making effects so that a crash can neither lose nor double one: intent, look-up, act, outcome.

The intent is durable before anything is done, with all that is needed to find the effect again. Whoever comes after a
crash finds it still meant, looks first, and acts only when it is not there. An act whose answer was lost stays meant.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from adws.adw_modules import effect_rules
from adws.adw_modules.document_draft import Draft
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import AdwError, ForgeUnavailable, OwnershipError
from adws.adw_modules.interfaces_resources import Effect
from adws.adw_modules.json_value import JsonObject


class Ledger:
    """The effects of the workflow that a session works on."""

    def __init__(self, session: WorkSession, *, host: str) -> None:
        self._session = session
        self._host = host

    def facts(self, key: str) -> JsonObject | None:
        """Return what is known about an effect that is there, None when it is not."""
        found = effect_rules.effect(self._session.document, key)

        return dict(found.undo) if found is not None and found.outcome in effect_rules.MADE else None

    def make(
        self,
        key: str,
        kind: str,
        *,
        undo: JsonObject,
        find: Callable[[], JsonObject | None],
        act: Callable[[], JsonObject],
        fields: Callable[[JsonObject], JsonObject] = lambda _facts: {},
    ) -> JsonObject:
        """
        Return the facts of an effect, made unless it is there.

        *undo* is what is needed to find and undo it, known before. *find* looks for it in the world, *act* makes it;
        both return what is then known. *fields* are the document's own fields that follow from that.
        """
        known = self.facts(key)
        if known is not None:
            return known
        self._session.change(partial(_intend, Effect(key=key, kind=kind, host=self._host, undo=undo)))
        found = find()
        if found is not None:
            return self._settled(key, "adopted", {**undo, **found}, fields)
        try:
            made = act()
        except (ForgeUnavailable, OwnershipError):
            raise  # nobody knows whether it was done: it stays meant, and the next one looks
        except AdwError as exc:
            self.undone(key, "failed", {"error": str(exc)})
            raise

        return self._settled(key, "made", {**undo, **made}, fields)

    def undone(self, key: str, outcome: str = "undone", facts: JsonObject | None = None) -> None:
        """Write down that an effect is not there any more, or is kept on request."""
        self._session.change(lambda draft: effect_rules.settle(draft, key, outcome, facts))

    def _settled(
        self, key: str, outcome: str, facts: JsonObject, fields: Callable[[JsonObject], JsonObject]
    ) -> JsonObject:
        def rule(draft: Draft) -> None:
            effect_rules.settle(draft, key, outcome, facts)
            for name, value in fields(facts).items():
                setattr(draft.document, name, value)

        self._session.change(rule)

        return facts


def _intend(meant: Effect, draft: Draft) -> None:
    effect_rules.intend(draft, meant)
