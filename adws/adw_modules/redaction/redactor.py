"""
Remove secrets from everything that is stored, logged or shown.

Pure. Three independent nets find values by their name (`redaction.patterns`), by their shape
(`redaction.token_shapes`), and because they are known (`redaction.known_values`). All of them search the original text;
each match becomes `[redacted]`. Redacting twice changes nothing. Redaction is not complete: docs/operations.md lists
what it cannot catch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from adws.adw_modules.identifiers import JsonValue, said
from adws.adw_modules.redaction import token_shapes
from adws.adw_modules.redaction.known_values import SHORTEST_PIECE, ValueNet, parts_of
from adws.adw_modules.redaction.patterns import EMPTY_VALUES, MASK, Match, find_named, is_drawn, is_secret_name

__all__ = ["MASK", "Redactor", "StreamRedactor"]


#: Deeper values are neither examined nor shown.
MAX_DEPTH = 64
TOO_DEEP, CYCLE = "[too deep]", "[cycle]"

#: Smaller numbers have fewer digits than any searched piece of a secret.
LEAST_NUMBER = 10 ** (SHORTEST_PIECE - 1)

#: Maximum search rounds: a mask next to other text can look like the start of another secret.
_ROUNDS = 8
#: Maximum length and number of cached texts.
_SHORT, _MOST_SEEN = 64, 4096
_JSON_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"')
#: Convenience values that everyone knows: hiding them would only make logs unreadable.
_WELL_KNOWN_WORDS = (
    "password passwd secret changeme change-me example default postgres postgresql mysql sqlite docker github gitlab "
    "anthropic openai localhost development production testing username administrator anonymous"
)
_TRIVIAL = EMPTY_VALUES.union(_WELL_KNOWN_WORDS.split())
#: Words of workflow documents: a password that equals one of them, or a part of one, must not make all documents
#: unreadable. Words contained in another are left out.
_WORDS_OF_DOCUMENTS = (
    "abandoned adopted adw_id after_result all_adws allowed_paths append artifact attempts_used author backend_port "
    "base_seconds blocked_by branch_name building by_phase by_provider categories chunk_size cleaning collect "
    "collection command completed concurrency connection continue continues created_at current_state deadline_at "
    "deadline_seconds deliveries demands description doctor_calls documenting duration egress element ended_at "
    "exponential external fail_fast failed_phase followups from_state frontend_port furthest_failed headers "
    "headers_env history_dropped inputs intended interrupted is_estimated is_required issue_class issue_number labels "
    "last_attempt_timestamp last_failure_reason linear linting max_attempts max_cost_usd max_minutes max_retries "
    "max_reworks max_same_failures max_seconds max_total_attempts merge_path message metadata method model_set "
    "next_call on_error on_failure on_rework on_success opencode options order_by outbox outcome output params "
    "pause_reason paused pending plan_file planning postgres pr_merged pr_number process prompt prompt_file "
    "python queued replace report repository resources resume_state retries_granted retry_at retry_count retry_marks "
    "retry_wait reviewing revision rollback rolled_back runner running sandbox sequential setup_egress shipping "
    "skipped sqlite started_at "
    "state_history state_version status strategy suspended terminal_reason testing threshold timeout_seconds timeouts "
    "to_state token_counts total_usd updated_at upsert wait_deadline_at wait_reason waited_seconds waiting_since "
    "waits_for warned_at warnings workflow workload worktree_path commits leftovers sent_back on_limit "
    "run_phases earlier moves states"
)
_SHORTEST_FROM_ENVIRONMENT = 6
_PATH = re.compile(r"(?:~|\.{1,2})?/|[A-Za-z]:\\|file:")


class Redactor:
    """Hides secrets in texts, JSON values and bytes; built once, never changed, safe to share between threads."""

    __slots__ = ("_names", "_said", "_seen", "_values")

    def __init__(self, known_values: Iterable[str] = ()) -> None:
        self._values = ValueNet(known_values)
        self._seen: dict[str, str] = {}  #: short text -> the redacted text
        self._said: dict[str, str] = {}  #: the same, for stored texts
        self._names: dict[str, tuple[bool, str]] = {}  #: short name -> whether it names a secret, and the redacted name

    @classmethod
    def from_environment(cls, env: Mapping[str, str], *, known_values: Iterable[str] = ()) -> Redactor:
        """Return a redactor that knows *known_values* and the secrets in *env*, found by name, in URLs and in JSON."""
        known = set(known_values)
        known.update(value for name, value in env.items() if is_secret_name(name) and not _is_trivial(value))
        for value in env.values():
            known.update(part for part in parts_of(value) if part != value and not _is_trivial(part))

        return cls(known)

    def redact_text(self, text: str) -> str:
        """Return *text* with each secret found replaced by `[redacted]`."""
        known = self._seen.get(text)

        return _remembered(text, self._seen, self.find) if known is None else known

    def redact(self, value: JsonValue) -> JsonValue:
        """Return a copy of *value* without secrets, also in keys; never raises, whatever *value* contains."""
        if type(value) is dict:
            return self._redact_dict(value, depth=0, inside=())

        return self._redact(value, depth=0, inside=())

    def redact_fields(self, fields: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Return a redacted copy of the fields of a log line."""
        return self._redact_dict(fields, depth=0, inside=())

    def scrub_bytes(self, payload: bytes) -> bytes:
        """
        Return *payload* without secrets, or the same object if it contains none.

        For the path that writes documents: it searches for whole known values in all spellings and for unmistakable
        tokens. JSON stays JSON: secrets are removed from its strings; its numbers are left alone.
        """
        if not self._values.whole.is_in(payload) and not token_shapes.may_have_tokens(payload):
            return payload

        text = payload.decode("utf-8", "surrogateescape")
        try:
            json.loads(text)
        except (ValueError, RecursionError):  # not JSON
            cleaner = _hide_all(text, self._find_stored)
        else:
            cleaner = _JSON_STRING.sub(self._scrub_string, text)
        return payload if cleaner == text else cleaner.encode("utf-8", "surrogateescape")

    def scrub_text(self, text: str) -> str:
        """
        Return *text*, a message that is to be stored, without secrets.

        Like `scrub_bytes` it does not hide values by name. It also finds parts of known values, because a message may
        have been truncated before.
        """
        return _remembered(text, self._said, self._find_stored)

    def scrub_json(self, text: str) -> str:
        """Return the JSON *text* with `scrub_text` applied to every string in it; ASCII stays ASCII."""
        # One search of all strings, joined by spaces, shows whether there is anything to hide.
        if not self._find_stored(" ".join(_strings_in(json.loads(text)))):
            return text

        return _JSON_STRING.sub(self._scrub_string, text)

    def find(self, text: str) -> list[Match]:
        """Return the matches of all nets in *text*, unordered, overlaps included."""
        return [*find_named(text), *token_shapes.find(text), *self._values.find(text)]

    def has_secret(self, text: str) -> bool:
        """Return whether redaction would hide anything in *text*."""
        return bool(self.find(text))

    def may_begin_at_end_of(self, text: str) -> bool:
        """Return whether the end of *text* may be the start of a known secret."""
        return self._values.may_begin_at_end_of(text)

    def _find_stored(self, text: str) -> list[Match]:
        """Return the matches that must not be stored; not by name, which would change what people wrote."""
        return [*self._values.find(text), *token_shapes.find(text)]

    def _scrub_string(self, found: re.Match[str]) -> str:
        token = found[0]
        text: str = json.loads(token, strict=False)
        cleaner = _hide_all(text, self._find_stored)

        # A lone surrogate can only be written as an escape.
        has_half = "\\ud" in token.lower()
        return token if cleaner == text else json.dumps(cleaner, ensure_ascii=has_half or token.isascii())

    def _redact(self, value: object, *, depth: int, inside: tuple[int, ...]) -> JsonValue:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, int | float):  # known values only: the shape of a number says nothing
            return MASK if self._values.has_any(said(value)) else value
        if isinstance(value, bytes | bytearray):
            return self.redact_text(bytes(value).decode("utf-8", "backslashreplace"))
        if not isinstance(value, dict | list | tuple):
            return self.redact_text(said(value))
        if depth >= MAX_DEPTH or id(value) in inside:
            return TOO_DEEP if depth >= MAX_DEPTH else CYCLE
        if isinstance(value, dict):
            return self._redact_dict(value, depth=depth, inside=inside)

        return self._redact_list(value, depth=depth, inside=inside)

    def _redact_dict(self, value: Mapping[Any, object], *, depth: int, inside: tuple[int, ...]) -> dict[str, JsonValue]:
        """Redact keys and values; *depth* and *inside* describe the enclosing containers."""
        result: dict[str, JsonValue] = {}
        are_small_shown = not self._values.has_words
        for key, item in value.items():
            name = key if type(key) is str or isinstance(key, str) else said(key)
            is_hidden, shown = self._names.get(name) or self._look_at(name)
            if is_hidden or (name == "value" and is_secret_name(_name_in(value))):
                clean = self._hide_value(item)
            elif type(item) is str:  # fast path: this and the next branch cover most of a log line
                clean = self.redact_text(item)
            elif item is None or (type(item) is int and are_small_shown and -LEAST_NUMBER // 10 < item < LEAST_NUMBER):
                clean = item
            else:
                clean = self._redact(item, depth=depth + 1, inside=(*inside, id(value)))
            result[shown if shown not in result else _free_name(shown, result)] = clean

        return result

    def _look_at(self, name: str) -> tuple[bool, str]:
        """Return whether *name* names a secret, and the redacted name; short names are cached."""
        result = (is_secret_name(name), self.redact_text(name))
        if len(name) <= _SHORT:
            if len(self._names) >= _MOST_SEEN:
                self._names.clear()
            self._names[name] = result

        return result

    def _redact_list(
        self, value: list[object] | tuple[object, ...], *, depth: int, inside: tuple[int, ...]
    ) -> JsonValue:
        """Redact each item; in `["--token", "x"]` and `["Authorization", "x"]` the first names the second."""
        result: list[JsonValue] = []
        depth, inside = depth + 1, (*inside, id(value))
        before: object = None
        for item in value:
            is_named = isinstance(before, str) and (before.startswith("--") or len(value) == 2) and "=" not in before
            is_option = isinstance(item, str) and item.startswith("--")
            if is_named and not is_option and is_secret_name(cast("str", before)):
                result.append(self._hide_value(item))
            else:
                result.append(self._redact(item, depth=depth, inside=inside))
            before = item

        return result

    @staticmethod
    def _hide_value(value: object) -> JsonValue:
        """Return the mask for a value with a secret's name; booleans and values that mean "no value" are kept."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in EMPTY_VALUES:
            return value

        return MASK


class StreamRedactor:
    """
    Redacts output that arrives in pieces.

    Lines are released when complete; text is held back as long as a secret may continue in it, so a secret split across
    chunks does not leak. At most *limit* characters are held: in an endless line, text that cannot be judged is dropped
    up to the next line break.
    """

    def __init__(self, redactor: Redactor, *, limit: int = 65_536) -> None:
        self._redactor = redactor
        self._limit = max(limit, 1024)
        self._held = ""
        self._is_dropping = False

    def feed(self, chunk: str) -> str:
        """Take the next piece and return the text that may be shown now."""
        if self._is_dropping:
            _, line_break, chunk = chunk.partition("\n")
            if not line_break:
                return ""
            self._is_dropping, chunk = False, line_break + chunk
        self._held += chunk

        out = [self._take_lines()] if "\n" in chunk else []
        while len(self._held) > self._limit and not self._is_dropping:
            out.append(self._take_part())
        return "".join(out)

    def close(self) -> str:
        """Return the rest; nothing may follow."""
        rest, self._held = self._held, ""

        return self._redactor.redact_text(rest)

    def _take_lines(self) -> str:
        """Release the complete lines, except those in which a secret may have begun."""
        cut = self._held.rfind("\n") + 1
        while cut and self._redactor.may_begin_at_end_of(self._held[:cut]):
            cut = self._held.rfind("\n", 0, cut - 1) + 1

        return self._take(cut, self._redactor.find(self._held))

    def _take_part(self) -> str:
        """Cut a line that is too long at a place outside any secret."""
        result = self._redactor.find(self._held)
        wanted = len(self._held) - self._limit // 4
        cut = _before_matches(wanted, result, len(self._held))
        if cut > 0:
            return self._take(cut, result)

        # One possible secret fills all the held text: show its mask and drop the rest of its line.
        line, line_break, self._held = self._held.partition("\n")
        self._held = line_break + self._held
        self._is_dropping = not line_break
        return self._redactor.redact_text(line) if line_break else _hide(line, [*result, Match(0, wanted, len(line))])

    def _take(self, wanted: int, found: list[Match]) -> str:
        cut = _before_matches(wanted, found, len(self._held))
        text, self._held = self._held[:cut], self._held[cut:]

        return self._redactor.redact_text(text)


def _before_matches(cut: int, found: list[Match], length: int) -> int:
    """Return the last position up to *cut* outside any match and not after one that the next chunk may extend."""
    for context, _, end in sorted(found, reverse=True):
        if context < cut and (end > cut or end == length):
            cut = context

    return cut


def _strings_in(value: JsonValue) -> Iterator[str]:
    """Yield every string in *value* at any depth, keys included."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            left += [*item, *item.values()]
        elif isinstance(item, list):
            left += item


def _remembered(text: str, seen: dict[str, str], find: Callable[[str], list[Match]]) -> str:
    """Return *text* redacted; short texts are cached because names, states and event types repeat."""
    if len(text) > _SHORT:
        return _hide_all(text, find)
    known = seen.get(text)
    if known is None:
        if len(seen) >= _MOST_SEEN:
            seen.clear()
        known = seen[text] = _hide_all(text, find)

    return known


def _hide_all(text: str, find: Callable[[str], list[Match]]) -> str:
    """Return *text* with all matches of *find* replaced, repeated until there are no more."""
    for _ in range(_ROUNDS):
        cleaner = _hide(text, find(text))
        if cleaner == text:
            break
        text = cleaner

    return text


def _hide(text: str, found: Iterable[Match]) -> str:
    """Return *text* with the spans of *found* replaced; touching spans become one mask."""
    pieces: list[str] = []
    at = -1  #: the end of the last mask
    for start, end in sorted((match.start, match.end) for match in found):
        if start > at:
            pieces += [text[max(at, 0) : start], MASK]
        at = max(at, end)

    return "".join([*pieces, text[at:]]) if pieces else text


def _name_in(value: Mapping[Any, object]) -> str:
    """Return the name in `{"name": "GITHUB_TOKEN", "value": "x"}`, a common form of variable lists."""
    name = value.get("name", value.get("key"))

    return name if isinstance(name, str) else ""


def _free_name(name: str, taken: dict[str, JsonValue]) -> str:
    """Return the taken *name* with a number appended, so that two secrets as keys do not become one entry."""
    number = 2
    while f"{name}#{number}" in taken:
        number += 1
    return f"{name}#{number}"


def _is_trivial(value: str) -> bool:
    """Return whether *value*, despite its secret name, is not a secret: a switch, small number, path or known word."""
    text = value.strip()
    if len(text) < _SHORTEST_FROM_ENVIRONMENT or text.lower() in _TRIVIAL or text in _WORDS_OF_DOCUMENTS:
        return True
    if text.replace(".", "").isdigit() and len(text) < 8:
        return True

    return _PATH.match(text) is not None and not is_drawn(text)
