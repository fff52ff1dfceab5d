"""
Change fields of a document by hand: `adw state set`.

This is the only way for a person to edit a document. Fields that adw itself counts, moves or records cannot be set;
every refusal says what to use instead. The change is made as the workflow's owner and records the old values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeGuard

from adws.adw_modules import document as document_module
from adws.adw_modules import timestamps
from adws.adw_modules.costs import money
from adws.adw_modules.errors import AdwError, DurabilityUnknown, IssueLocked, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject, JsonValue, nearest, normalise
from adws.adw_modules.state_machine import is_terminal

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.ownership.issue_locks import IssueLocks
    from adws.app import Home


# --- the values a person may give a field, beyond its type -----------------------------------------------------
#
# Pure. Documents are read as they are, whatever an older tool wrote; only `adw state set` checks these rules.


#: Largest issue number, pull request number and count.
LARGEST = 2**31 - 1
LARGEST_PORT = 65535
#: What git rejects in a branch name (git help check-ref-format).
_NOT_IN_A_BRANCH = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^@$|^-|^/|/$|(?:^|/)\.|\.$|\.lock(?:/|$)|^refs/", re.ASCII
)


class Rule(NamedTuple):
    """The values one field may have."""

    allows: Callable[[JsonValue], bool]
    must_be: str  #: the end of the sentence `FIELD must be ...`


def check(key: str, value: JsonValue) -> None:
    """Raise UsageError if the field *key* may not have *value*; without a rule, only the field's type limits it."""
    rule = RULES.get(key)
    if rule is not None and not rule.allows(value):
        raise UsageError(f"{key} must be {rule.must_be}")


def _whole(least: int, most: int, *, or_null: bool = True) -> Rule:
    def allows(value: JsonValue) -> bool:
        if value is None:
            return or_null
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return Rule(allows, f"a whole number from {least} to {most}{', or null' if or_null else ''}")


def _is_minutes(value: JsonValue) -> bool:
    return value is None or (_is_number(value) and value > 0)


def _is_cap(value: JsonValue) -> bool:
    return value is None or money(value) is not None


def _is_cost(value: JsonValue) -> bool:
    """Return whether all amounts are valid; the model checks the names."""
    if not isinstance(value, dict):
        return False
    tables = [value.get(name, {}) for name in ("by_phase", "by_provider", "token_counts")]
    amounts = [value.get("total_usd", 0), *(amount for table in tables for amount in _amounts(table))]

    return all(_is_number(amount) and amount >= 0 for amount in amounts)


def _amounts(table: JsonValue) -> list[JsonValue]:
    return list(table.values()) if isinstance(table, dict) else [None]


def _is_number(value: JsonValue) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_branch(value: JsonValue) -> bool:
    return value is None or (isinstance(value, str) and value != "" and _NOT_IN_A_BRANCH.search(value) is None)


def _is_directory(value: JsonValue) -> bool:
    return value is None or (isinstance(value, str) and value.startswith("/") and value.isprintable())


def _is_repository(value: JsonValue) -> bool:
    try:
        return isinstance(value, str) and normalise(value) is not None
    except UsageError:
        return False


#: Field -> its rule.
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "issue_number": _whole(1, LARGEST),
        "pr_number": _whole(1, LARGEST),
        "backend_port": _whole(1, LARGEST_PORT),
        "frontend_port": _whole(1, LARGEST_PORT),
        "max_reworks": _whole(0, LARGEST, or_null=False),
        "max_total_attempts": _whole(1, LARGEST),
        "max_minutes": Rule(_is_minutes, "a number above 0, or null"),
        "max_cost_usd": Rule(_is_cap, "a number of US dollars from 0 up, or null"),
        "pr_merged": Rule(lambda value: isinstance(value, bool), "true or false"),
        "cost": Rule(_is_cost, 'an object of amounts of 0 or more, such as {"total_usd": 1.5}'),
        "branch_name": Rule(_is_branch, "the name of a branch as git takes it, or null"),
        "worktree_path": Rule(_is_directory, "an absolute path, or null"),
        "repository": Rule(_is_repository, "owner/name, the address of a repository, or empty for the one of the home"),
    }
)


_MOVES = "states change along the state table: use adw resume, retry, abandon or rollback"
_RETRIES = "adw counts it; adw retry ID --grant N allows more"
_WRITES = "adw writes it with each revision"

#: Fields that cannot be set by hand -> what to use instead.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "adw_id": "an id never changes; start a new workflow for another one",
        "state_version": "adw state migrate brings a document to the current version",
        "revision": _WRITES,
        "fence": _WRITES,
        "updated_at": _WRITES,
        "checksum": _WRITES,
        "outbox": "events leave it by themselves; adw events ID shows them",
        "current_state": _MOVES,
        "resume_state": "it continues where it was paused; adw resume ID --from PHASE chooses another place",
        "failed_phase": "a move to failed records it; adw resume ID --from PHASE chooses another place",
        "furthest_failed": _RETRIES,
        "state_history": "the history is written by moves alone; adw events ID shows it",
        "history_dropped": "the history is written by moves alone; adw events ID shows it",
        "retry_count": _RETRIES,
        "retry_marks": _RETRIES,
        "max_retries": _RETRIES,
        "retries_granted": _RETRIES,
        "reworks": "adw counts it; raise max_reworks to allow more",
        "replans": "adw counts it; adw resume ID --from PHASE plans again as you decide",
        "doctor_calls": "adw counts it; how often the doctor is asked has a limit for the whole workflow",
        "followups": "adw counts it; the setting webhook.max_followups says how many there may be",
        "deliveries": "adw notes there which deliveries it has done; adw webhook deliveries lists them",
        "continues": "it is decided when a workflow starts; start a new one for other work",
        "phases": "attempts are recorded by who makes them; adw retry ID tries one again",
        "resources": "what a workflow made is recorded by who makes it; adw rollback ID undoes it",
        "rollback": "adw rollback ID begins or continues a rollback",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A changed document, with the old and new values of its fields."""

    document: WorkflowDocument
    old: JsonObject
    new: JsonObject
    has_effect: bool = True  #: False: every field had its value already


def parse_assignments(texts: Sequence[str]) -> dict[str, str]:
    """Return `KEY=VALUE` texts as a mapping; raise UsageError for an invalid text or a repeated key."""
    result: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise UsageError(f"{text!r} is not an assignment: write KEY=VALUE, such as branch_name=my-branch")
        if key.strip() in result:
            raise UsageError(f"{key.strip()} is given twice: give each key once")
        result[key.strip()] = value

    return result


def plan_change(document: WorkflowDocument, assignments: Mapping[str, str], *, allow_new: bool = False) -> Change:
    """
    Return a validated copy of *document* with the *assignments*; *document* itself is not changed.

    A value that parses as JSON is JSON, otherwise a text; a field that holds text always gets a text, or null. Raises
    UsageError if a field does not exist, cannot be set by hand or may not have the value, and StateInvalid for a wrong
    type.
    """
    stored: JsonObject = document.to_plain()
    for key in assignments:
        _check_key(key, stored, allow_new=allow_new)

    values = {key: _value_of(key, text) for key, text in assignments.items()}
    for key, value in values.items():
        check(key, value)
    changed = document_module.parse({**stored, **values})
    after: JsonObject = changed.to_plain()

    return Change(
        document=changed,
        old={key: stored.get(key) for key in assignments},
        new={key: after.get(key) for key in assignments},
        has_effect=any(_text_of(stored, key) != _text_of(after, key) for key in assignments),
    )


def apply_change(
    adw_id: str,
    assignments: Mapping[str, str],
    *,
    home: Home,
    reason: str = "",
    allow_new: bool = False,
) -> Change:
    """
    Change the stored document as its owner; raise WorkflowBusy, IssueLocked, and what `plan_change` raises.

    Nothing is written if all values are already there; the returned change then has no effect.
    """
    with home.ownership.own(adw_id) as owned:
        before = owned.document
        change = plan_change(before, assignments, allow_new=allow_new)
        if not change.has_effect:
            return replace(change, document=before)
        event = Event(
            event_type="state_set",
            status=before.current_state,
            data={"old": change.old, "new": change.new, "reason": reason},
        )
        with _moving_issue(before, change.document, home.locks):
            stored = owned.save(change.document, events=(event,))

        return Change(document=stored, old=change.old, new=change.new)


# --- keys and values -------------------------------------------------------------------------------------------


def _check_key(key: str, stored: JsonObject, *, allow_new: bool) -> None:
    if key in REFUSED:
        raise UsageError(f"{key} is not set by hand: {REFUSED[key]}")
    if key in stored or allow_new:
        return

    near = nearest(key, [name for name in stored if name not in REFUSED])
    hint = f"did you mean {near}? " if near else ""
    raise UsageError(f"the document has no key {key!r}; {hint}--new adds a key of your own")


def _value_of(key: str, text: str) -> JsonValue:
    if key == "created_at":
        return _moment(text)
    if _holds_text(key):
        return None if text == "null" else text

    return parse_value(text)


def _holds_text(key: str) -> bool:
    field = document_module.WorkflowDocument.model_fields.get(key)
    return field is not None and field.annotation in (str, str | None)


def _text_of(stored: JsonObject, key: str) -> str:
    """Return the value of *key* as JSON, or "" if it is missing. As JSON texts, 1, 1.0 and true differ."""
    return json.dumps(stored[key], sort_keys=True) if key in stored else ""


def parse_value(text: str) -> JsonValue:
    """
    Return the JSON value in *text*, or *text* itself if it is not JSON.

    Raises UsageError for NaN, the infinities and numbers that are too large, also inside a list or an object: they are
    meant as numbers, but JSON cannot represent them.
    """
    try:
        value: JsonValue = json.loads(text, parse_constant=lambda word: _refuse_number(text, word))
    except UsageError:
        raise
    except (ValueError, RecursionError):
        return text
    try:
        json.dumps(value, allow_nan=False)  # 1e999 parses as infinity
    except ValueError:
        _refuse_number(text, "infinity")

    return value


def _refuse_number(text: str, word: str) -> NoReturn:
    raise UsageError(f"{text!r} holds {word}, which is no number of JSON: give a number, null, or a text in quotes")


def _moment(text: str) -> str:
    try:
        return timestamps.to_text(timestamps.parse(text.strip()))
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is not a timestamp: write one like 2026-01-31T09:00:00Z") from None


# --- the issue lock of a changed document ----------------------------------------------------------------------


@contextmanager
def _moving_issue(before: WorkflowDocument, after: WorkflowDocument, locks: IssueLocks) -> Iterator[None]:
    """Lock the issue that the document will name before it is written, and release the one it named after."""
    was, will_be = ((named.issue_number, locks.key(named.repository)) for named in (before, after))
    if was == will_be or is_terminal(after.current_state):
        yield
        return

    _claim(after, locks)
    try:
        yield
    except AdwError as exc:
        # Written, but perhaps not on the disk: the document read back decides which issue it names.
        if not isinstance(exc, DurabilityUnknown):
            _release(after, locks)
        raise
    _release(before, locks)


def _claim(document: WorkflowDocument, locks: IssueLocks) -> None:
    number, repository = document.issue_number, document.repository
    if number is None or locks.acquire(number, document.adw_id, repository):
        return

    holder = locks.holder(number, repository)
    raise IssueLocked(number, holder.adw_id if holder else "another workflow", repository)


def _release(document: WorkflowDocument, locks: IssueLocks) -> None:
    if document.issue_number is not None:
        locks.release(document.issue_number, document.adw_id, document.repository)
