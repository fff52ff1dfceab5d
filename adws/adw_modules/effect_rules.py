"""
The ledger of effects in a document: what was meant, what came of it, what is left to undo.

Pure. An effect is written down before it is made; after a crash the ones that are still only meant are looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adws.adw_modules.interfaces_resources import OPEN_OUTCOMES, Effect

if TYPE_CHECKING:
    from adws.adw_modules.document import Resource, WorkflowDocument
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.json_value import JsonObject

#: Effects that are certainly there, as far as the ledger knows.
MADE = frozenset({"made", "adopted", "observed"})


def effects(document: WorkflowDocument) -> tuple[Effect, ...]:
    """Return every effect of a workflow, oldest first."""
    return tuple(_effect(entry) for entry in document.resources)


def effect(document: WorkflowDocument, key: str) -> Effect | None:
    """Return the effect called *key*."""
    return next((_effect(entry) for entry in document.resources if entry.key == key), None)


def open_effects(document: WorkflowDocument) -> tuple[Effect, ...]:
    """Return the effects that are there or may be, newest first: what a rollback has to undo."""
    return tuple(found for found in reversed(effects(document)) if found.outcome in OPEN_OUTCOMES)


def secured_head(document: WorkflowDocument) -> str:
    """
    Return the last commit on the workflow's branch that a phase was concluded with, "" when there is none yet.

    What an attempt did that was cut off comes on top of it, so the next one finds it as work of the phase.
    """
    if not document.branch_name:
        return ""
    branch = effect(document, f"branch:{document.branch_name}")

    return str(branch.undo.get("sha") or "") if branch is not None else ""


def intend(draft: Draft, *meant: Effect) -> None:
    """Write down that effects are about to be made; one of that key that is over is begun again, as the newest."""
    document = draft.document
    keys = {found.key for found in meant}
    others = [entry for entry in document.resources if entry.key not in keys]
    document.resources = [*others, *map(_resource, meant)]
    for found in meant:
        draft.tell("effect_intended", data={"key": found.key, "kind": found.kind})


def settle(draft: Draft, key: str, outcome: str, facts: JsonObject | None = None) -> None:
    """Write down what came of an effect; *facts* are added to what is needed to undo it."""
    document = draft.document
    document.resources = [
        entry.model_copy(update={"outcome": outcome, "undo": {**entry.undo, **(facts or {})}})
        if entry.key == key
        else entry
        for entry in document.resources
    ]
    draft.tell("effect_settled", data={"key": key, "outcome": outcome, **(facts or {})})


def note(draft: Draft, key: str, facts: JsonObject) -> None:
    """Add to what is known about an effect, without a word about what came of it."""
    draft.document.resources = [
        entry.model_copy(update={"undo": {**entry.undo, **facts}}) if entry.key == key else entry
        for entry in draft.document.resources
    ]


def become(draft: Draft, key: str, *made: Effect) -> None:
    """Put the effects that came of the one called *key* in its place: only now their own keys are known."""
    keys = {key, *(found.key for found in made)}
    others = [entry for entry in draft.document.resources if entry.key not in keys]
    draft.document.resources = [*others, *map(_resource, made)]
    for found in made:
        draft.tell("effect_settled", data={"key": found.key, "outcome": found.outcome, **found.undo})


def observe(draft: Draft, seen: Effect) -> None:
    """Write down an effect that somebody else's tool made for us, such as a ref that appeared during a phase."""
    if effect(draft.document, seen.key) is None:
        draft.document.resources = [*draft.document.resources, _resource(seen)]
        draft.tell("effect_observed", data={"key": seen.key, "kind": seen.kind})


def _effect(entry: Resource) -> Effect:
    return Effect(key=entry.key, kind=entry.kind, outcome=entry.outcome, host=entry.host or "", undo=dict(entry.undo))


def _resource(meant: Effect) -> Resource:
    from adws.adw_modules.document import Resource  # noqa: PLC0415 - viewers read these rules without pydantic

    return Resource(
        key=meant.key, kind=meant.kind, outcome=meant.outcome, host=meant.host or None, undo=dict(meant.undo)
    )
