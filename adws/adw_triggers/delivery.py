"""
A delivery: bytes and headers in, and out what to store, or why not.

Pure: no socket, no clock, no database. Nothing reads the bytes before their signature is checked, and whatever they
hold, the result is a value and never an exception.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qsl

from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import Ignored, NewDelivery, RunRequest, Verdict
from adws.adw_modules.identifiers import JsonObject, JsonValue, comparable
from adws.adw_triggers import signature
from adws.adw_triggers.github_events import DeliveryRules, actor_in, number_in, object_in, text_in, verdict_of

# The bytes of a delivery as JSON, or why they are none.
#
# Pure. What two readers could take for two things is refused: the same key twice, numbers that are none, text that is
# no UTF-8. Depth is limited, so that code that walks the payload does not run out of stack.


#: How deep objects and lists may stand in each other; real payloads stay below ten.
MAX_DEPTH = 64
JSON_TYPE = "application/json"
FORM_TYPE = "application/x-www-form-urlencoded"

_CONTAINERS = (dict, list)
_TOO_DEEP = f"the payload is nested deeper than {MAX_DEPTH} levels"


class Malformed(ValueError):
    """The payload cannot be read."""


def parse(content_type: str, body: bytes) -> JsonObject:
    """Return the payload; raise Malformed with one sentence when there is none."""
    text = _decoded(body)
    kind = content_type.partition(";")[0].strip().lower()
    if kind == FORM_TYPE:
        text = _field(text)
    elif kind not in {JSON_TYPE, ""}:
        raise Malformed(f"the content type is {kind[:80]!r}: set the hook to {JSON_TYPE}")
    payload = _loaded(text)
    if not isinstance(payload, dict):
        raise Malformed("the payload is no JSON object")

    return payload


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as exc:
        raise Malformed(f"the payload is not UTF-8: byte {exc.start} cannot be read") from exc


def _field(text: str) -> str:
    try:
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=16, errors="strict")
    except ValueError as exc:
        raise Malformed("the form cannot be read") from exc
    result = [value for name, value in fields if name == "payload"]
    if len(result) != 1:
        raise Malformed(f"the form has {len(result)} fields named payload, not one")

    return result[0]


def _loaded(text: str) -> JsonValue:
    try:
        loaded: JsonValue = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except Malformed:
        raise
    except json.JSONDecodeError as exc:
        raise Malformed(f"the payload is no JSON: {exc.msg} at character {exc.pos}") from exc
    except ValueError as exc:  # a number of more digits than Python takes
        raise Malformed("the payload has a number that is too long") from exc
    except RecursionError as exc:
        raise Malformed(_TOO_DEEP) from exc
    # With fewer brackets than levels it cannot be, and then it need not be walked through.
    if text.count("{") + text.count("[") > MAX_DEPTH and _is_too_deep(loaded):
        raise Malformed(_TOO_DEEP)

    return loaded


def _is_too_deep(value: JsonValue) -> bool:
    level = _inside([value])
    for _ in range(MAX_DEPTH):
        level = _inside(inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer))
        if not level:
            return False

    return True


def _inside(values: Iterable[JsonValue]) -> list[JsonObject | list[JsonValue]]:
    return [value for value in values if isinstance(value, _CONTAINERS)]


def _object(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    counts = Counter(name for name, _ in pairs)
    twice = next(name for name, count in counts.items() if count > 1)

    raise Malformed(f"the payload has the key {twice[:80]!r} twice in one object")


def _no_number(name: str) -> JsonValue:
    raise Malformed(f"the payload has {name}, which is no number")


_GUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")
_EVENT = re.compile(r"[a-z][a-z0-9_]{0,63}")
_HOOK = re.compile(r"[A-Za-z0-9-]{0,64}")
_REPOSITORY = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}", re.ASCII)

#: Events that are looked into, and the parts which their payloads cannot be without: all but the last must have a
#: number. The name of the event is not signed, the payload is.
_PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "issues": ("issue",),
        "issue_comment": ("issue", "comment"),
        "pull_request": ("pull_request",),
        "pull_request_review": ("pull_request", "review"),
        "check_suite": ("check_suite",),
        "workflow_run": ("workflow_run",),
    }
)
#: Parts that tell a payload of another event.
_FOREIGN: Mapping[str, str] = MappingProxyType({"issues": "comment", "pull_request": "review"})
_NUMBERED = ("issue", "pull_request")
#: Commands whose names are no verbs.
_VERBS: Mapping[str, str] = MappingProxyType(
    {"status": "tell about", "clean_up": "clean up after", "rework": "build again in"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedDelivery:
    """A delivery that is not taken, and nothing of it is kept."""

    status: int  #: of the answer: 400, 401, 413 or 415
    reason: str  #: in one sentence; says nothing about our secrets


class _Given(NamedTuple):
    """What came beside the payload."""

    guid: str
    event: str
    hook: str
    body: bytes


def read(headers: Mapping[str, str], body: bytes, rules: DeliveryRules) -> NewDelivery | RefusedDelivery:
    """Return the delivery to keep, with what it asks for, or why it is refused; case of header names is nothing."""
    named = {name.lower(): value for name, value in headers.items()}
    if len(body) > rules.max_body_bytes:
        return RefusedDelivery(status=413, reason=f"the payload has more than {rules.max_body_bytes} bytes")
    reason = signature.why_not_signed(named, body, rules.secrets)
    if reason:
        return RefusedDelivery(status=401, reason=reason)
    guid, event = named.get("x-github-delivery", ""), named.get("x-github-event", "")
    if _GUID.fullmatch(guid) is None:
        return RefusedDelivery(status=400, reason="X-GitHub-Delivery is missing, or no id of a delivery")
    if _EVENT.fullmatch(event) is None:
        return RefusedDelivery(status=400, reason="X-GitHub-Event is missing, or no name of an event")
    try:
        payload = parse(named.get("content-type", ""), body)
    except Malformed as exc:
        return RefusedDelivery(status=400, reason=str(exc))
    reason = _why_not_of(event, payload)
    if reason:
        return RefusedDelivery(status=400, reason=reason)
    hook = named.get("x-github-hook-id", "")
    given = _Given(guid=guid, event=event, hook=hook if _HOOK.fullmatch(hook) else "", body=body)

    return _taken(given, payload, judge(event, payload, rules))


def judge(event: str, payload: JsonObject, rules: DeliveryRules) -> Verdict:
    """Return what a payload asks for under *rules*; also for one that is kept and looked at again."""
    reason = _why_not_of(event, payload)
    if reason:
        return Ignored(reason=reason)
    repository = _repository(payload)
    if event != "ping" and repository not in rules.repositories:
        return Ignored(reason=_why_not_ours(repository, rules))

    return verdict_of(event, _action(payload), payload, repository=repository, rules=rules)


def _taken(given: _Given, payload: JsonObject, verdict: Verdict) -> NewDelivery:
    is_ignored = isinstance(verdict, Ignored)
    kind = "run" if isinstance(verdict, RunRequest) else "command"

    return NewDelivery(
        guid=given.guid,
        event=given.event,
        action=_action(payload),
        hook=given.hook,
        body=given.body,
        body_hash=hashlib.sha256(given.body).hexdigest(),
        sender=actor_in(payload).login,
        repository=_repository(payload),
        number=_number(payload),
        verdict="ignored" if is_ignored else kind,
        reason=verdict.reason if isinstance(verdict, Ignored) else in_words(verdict),
        request={} if isinstance(verdict, Ignored) else commands.to_json(verdict),
    )


def in_words(request: commands.Request) -> str:
    """Return what is wanted, in one line."""
    if isinstance(request, RunRequest):
        what = request.workflow or "the default workflow"
        of = f"go on with {request.adw_id}: {what}" if request.adw_id else f"start {what}"
        return f"{of} for issue {request.issue.number} ({request.cause})"
    whose = f"workflow {request.adw_id}" if request.adw_id else f"the workflow of {request.number}"

    return f"{_VERBS.get(request.kind, request.kind)} {whose} ({request.cause.replace('_', ' ')})"


def _why_not_of(event: str, payload: JsonObject) -> str:
    """Return why *payload* cannot be one of *event*, "" when it can."""
    for part in _PARTS.get(event, ()):
        result = payload.get(part)
        if not isinstance(result, dict):
            return f"the payload is not one of the event {event}: it has no {part}"
        if part in _NUMBERED and number_in(result, "number") is None:
            return f"the {part} in the payload has no number"
    foreign = _FOREIGN.get(event, "")
    if foreign and foreign in payload:
        return f"the payload is not one of the event {event}: it has a {foreign}"

    return ""


def _why_not_ours(repository: str, rules: DeliveryRules) -> str:
    if not rules.repositories:
        return "no repository is listened to: set github.repository or webhook.repositories"

    return f"{repository or 'a delivery without a repository'} is not listened to"


def _action(payload: JsonObject) -> str:
    return text_in(payload, "action", limit=64)


def _repository(payload: JsonObject) -> str:
    name = text_in(object_in(payload, "repository"), "full_name")

    return comparable(name) if _REPOSITORY.fullmatch(name) else ""


def _number(payload: JsonObject) -> int | None:
    numbers = (number_in(object_in(payload, part), "number") for part in _NUMBERED)

    return next((number for number in numbers if number is not None), None)
