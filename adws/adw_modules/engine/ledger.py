"""
Making effects so that a crash can neither lose nor double one: intent, look-up, act, outcome.

The intent is durable before anything is done, with all that is needed to find the effect again. Whoever comes after a
crash finds it still meant, looks first, and acts only when it is not there. An act whose answer was lost stays meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from adws.adw_modules import effects as effects_module
from adws.adw_modules.document import Draft
from adws.adw_modules.effects import Effect
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import AdwError, ForgeUnavailable, GitUnreachable, OwnershipError
from adws.adw_modules.identifiers import JsonObject, JsonValue


class Ledger:
    """The effects of the workflow that a session works on."""

    def __init__(self, session: WorkSession, *, host: str) -> None:
        self._session = session
        self._host = host

    def facts(self, key: str) -> JsonObject | None:
        """Return what is known about an effect that is there, None when it is not."""
        result = effects_module.effect(self._session.document, key)

        return dict(result.undo) if result is not None and result.outcome in effects_module.MADE else None

    def make(
        self,
        key: str,
        kind: str,
        *,
        undo: JsonObject,
        find: Callable[[], JsonObject | None],
        act: Callable[[], JsonObject],
        fields: Callable[[JsonObject], JsonObject] = lambda _facts: {},
        also: Sequence[Effect] = (),
    ) -> JsonObject:
        """
        Return the facts of an effect, made unless it is there.

        *undo* is what is needed to find and undo it, known before. *find* looks for it in the world, *act* makes it;
        both return what is then known. *fields* are the document's own fields that follow from that. *also* are the
        effects that the same act makes.
        """
        known = self.facts(key)
        if known is not None:
            return known
        meant = [Effect(key=key, kind=kind, host=self._host, undo=undo)]
        meant += [replace(other, host=self._host) for other in also if self.facts(other.key) is None]
        keys = [effect.key for effect in meant]
        self._session.change(lambda draft: effects_module.intend(draft, *meant))
        result = find()
        if result is not None:
            return self._settled(keys, "adopted", {**undo, **result}, fields)
        try:
            made = act()
        except (ForgeUnavailable, GitUnreachable, OwnershipError):
            raise  # nobody knows whether it was done: it stays meant, and the next one looks
        except AdwError as exc:
            self._failed(keys, str(exc))
            raise

        return self._settled(keys, "made", {**undo, **made}, fields)

    def change(
        self, key: str, *, intended: JsonObject, act: Callable[[], JsonObject], find: Callable[[], JsonObject | None]
    ) -> JsonObject:
        """
        Return the facts of an effect that is there, changed to what is *intended* unless it is that already.

        What it was stays known until the change is over: after a crash it is one or the other, and both are ours.
        """
        self._session.change(lambda draft: effects_module.note(draft, key, {"intended": intended}))
        facts = find()
        if facts is None:
            facts = act()
        settled: JsonObject = {**intended, **facts, "intended": None}
        self.note(key, settled)

        return settled

    def note(self, key: str, facts: JsonObject) -> None:
        """Add to what is known about an effect."""
        self._session.change(lambda draft: effects_module.note(draft, key, facts))

    def mark_merged(self) -> None:
        """Write down that the pull request is merged: from here on nothing is rolled back."""
        self._session.change(lambda draft: draft.machine.mark_merged())

    def warn(self, warning: str) -> None:
        """Write down something that went otherwise than asked for and does not keep the work from being done."""

        def rule(draft: Draft) -> None:
            if warning not in draft.document.warnings:
                draft.document.warnings = [*draft.document.warnings, warning]

        self._session.change(rule)

    def set_fields(self, **fields: JsonValue) -> None:
        """Set fields of the document that say where an effect is."""

        def rule(draft: Draft) -> None:
            for name, value in fields.items():
                setattr(draft.document, name, value)

        self._session.change(rule)

    def undone(self, key: str, outcome: str = "undone", facts: JsonObject | None = None) -> None:
        """Write down that an effect is not there any more, or is kept on request."""
        self._session.change(lambda draft: effects_module.settle(draft, key, outcome, facts))

    def _failed(self, keys: Sequence[str], why: str) -> None:
        def rule(draft: Draft) -> None:
            for key in keys:
                effects_module.settle(draft, key, "failed", {"error": why})

        self._session.change(rule)

    def _settled(
        self, keys: Sequence[str], outcome: str, facts: JsonObject, fields: Callable[[JsonObject], JsonObject]
    ) -> JsonObject:
        def rule(draft: Draft) -> None:
            effects_module.settle(draft, keys[0], outcome, facts)
            for key in keys[1:]:
                effects_module.settle(draft, key, outcome)
            for name, value in fields(facts).items():
                setattr(draft.document, name, value)

        self._session.change(rule)

        return facts
