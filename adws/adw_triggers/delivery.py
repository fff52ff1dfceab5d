"""
Parse a webhook delivery: headers and bytes in, the delivery to store or the reason for a refusal out.

Pure: no socket, no clock, no database. The signature is checked before the bytes are parsed. Whatever the bytes hold,
the result is a value and never an exception.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import Delivery, Ignored, Request, RunRequest, Verdict
from adws.adw_modules.identifiers import JsonObject, JsonValue, comparable
from adws.adw_triggers.github_events import DeliveryRules, login_in, number_in, object_in, text_in, verdict_of
from adws.adw_triggers.http import Problem

#: How deep objects and lists may be nested; real payloads stay below ten levels.
MAX_DEPTH = 64
JSON_TYPE = "application/json"
FORM_TYPE = "application/x-www-form-urlencoded"

_TOO_DEEP = f"the payload is nested deeper than {MAX_DEPTH} levels"
_SIGNATURE = re.compile(r"sha256=([0-9a-f]{64})")
_GUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")
_EVENT = re.compile(r"[a-z][a-z0-9_]{0,63}")
_HOOK = re.compile(r"[A-Za-z0-9-]{0,64}")
_REPOSITORY = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}", re.ASCII)

#: Events that are handled, and the parts their payloads must have: the name of the event is not signed, the payload is.
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
#: A part that proves that the payload belongs to another event.
_FOREIGN: Mapping[str, str] = MappingProxyType({"issues": "comment", "pull_request": "review"})
_NUMBERED = ("issue", "pull_request")
#: Commands whose names do not read as verbs.
_VERBS: Mapping[str, str] = MappingProxyType(
    {"status": "report on", "clean_up": "clean up after", "rework": "build again in"}
)


class Malformed(ValueError):
    """The payload cannot be parsed."""


def read(headers: Mapping[str, str], body: bytes, rules: DeliveryRules) -> Delivery | Problem:
    """Return the delivery to store, with its verdict, or why it is refused; header names may have any case."""
    named = {name.lower(): value for name, value in headers.items()}
    if len(body) > rules.max_body_bytes:
        return Problem(status=413, code="too_large", message=f"the payload has more than {rules.max_body_bytes} bytes")
    reason = why_not_signed(named, body, rules.secrets)
    if reason:
        return Problem(status=401, code="bad_signature", message=reason)
    guid, event = named.get("x-github-delivery", ""), named.get("x-github-event", "")
    hook = named.get("x-github-hook-id", "")
    if _GUID.fullmatch(guid) is None:
        return _bad("X-GitHub-Delivery is missing, or no id of a delivery")
    if _EVENT.fullmatch(event) is None:
        return _bad("X-GitHub-Event is missing, or no name of an event")
    try:
        payload = parse(named.get("content-type", ""), body)
    except Malformed as exc:
        return _bad(str(exc))
    if reason := _why_not_of(event, payload):
        return _bad(reason)

    action, repository = text_in(payload, "action", limit=64), _repository(payload)
    verdict = _judge(event, action, repository, payload, rules)
    numbers = (number_in(object_in(payload, part), "number") for part in _NUMBERED)

    return Delivery(
        guid=guid,
        event=event,
        action=action,
        hook=hook if _HOOK.fullmatch(hook) else "",
        body=body,
        body_hash=hashlib.sha256(body).hexdigest(),
        sender=login_in(payload, "sender"),
        repository=repository,
        number=next(filter(None, numbers), None),
        **_wanted(verdict),
    )


def _bad(reason: str) -> Problem:
    return Problem(status=400, code="bad_delivery", message=reason)


def read_again(row: Delivery, body: bytes, rules: DeliveryRules) -> Delivery:
    """Return the stored delivery *row* judged again under *rules*; raise Malformed if *body* cannot be parsed."""
    payload = parse(FORM_TYPE if body.startswith(b"payload=") else JSON_TYPE, body)
    fields = {name: getattr(row, name) for name in ("guid", "event", "action", "sender", "repository", "number")}

    return Delivery(**fields, **_wanted(judge(row.event, payload, rules)))


def judge(event: str, payload: JsonObject, rules: DeliveryRules) -> Verdict:
    """Return the verdict on a payload under *rules*."""
    if reason := _why_not_of(event, payload):
        return Ignored(reason=reason)

    return _judge(event, text_in(payload, "action", limit=64), _repository(payload), payload, rules)


def _judge(event: str, action: str, repository: str, payload: JsonObject, rules: DeliveryRules) -> Verdict:
    if event != "ping" and not rules.repositories:
        return Ignored(reason="no repository is listened to: set github.repository")
    if event != "ping" and repository not in rules.repositories:
        return Ignored(reason=f"{repository or 'a delivery without a repository'} is not listened to")

    return verdict_of(event, action, payload, repository=repository, rules=rules)


def _wanted(verdict: Verdict) -> dict[str, Any]:
    """Return the fields of a delivery that hold its verdict."""
    if isinstance(verdict, Ignored):
        return {"verdict": "ignored", "reason": verdict.reason}
    kind = "run" if isinstance(verdict, RunRequest) else "command"

    return {
        "verdict": kind,
        "reason": in_words(verdict),
        "request": commands.to_json(verdict),
        "intent": verdict.intent,
    }


def in_words(request: Request) -> str:
    """Describe *request* in one line."""
    if isinstance(request, RunRequest):
        what = request.workflow or "the default workflow"
        of = f"continue {request.adw_id}: {what}" if request.adw_id else f"start {what}"
        return f"{of} for issue {request.issue.number} ({request.cause})"
    whose = f"workflow {request.adw_id}" if request.adw_id else f"the workflow of {request.number}"

    return f"{_VERBS.get(request.kind, request.kind)} {whose} ({request.cause.replace('_', ' ')})"


def _why_not_of(event: str, payload: JsonObject) -> str:
    """Return why *payload* cannot belong to *event*, or ""."""
    for part in _PARTS.get(event, ()):
        value = payload.get(part)
        if not isinstance(value, dict):
            return f"the payload is not one of the event {event}: it has no {part}"
        if part in _NUMBERED and number_in(value, "number") is None:
            return f"the {part} in the payload has no number"
    foreign = _FOREIGN.get(event, "")
    if foreign and foreign in payload:
        return f"the payload is not one of the event {event}: it has a {foreign}"

    return ""


def _repository(payload: JsonObject) -> str:
    name = text_in(object_in(payload, "repository"), "full_name")

    return comparable(name) if _REPOSITORY.fullmatch(name) else ""


# --- signature -------------------------------------------------------------------------------------------------


def why_not_signed(headers: Mapping[str, str], body: bytes, secrets: Sequence[str]) -> str:
    """Return why *body* cannot be trusted, or "" if one of *secrets* signed it; *headers* have lower-case names."""
    if not secrets:
        return "no webhook secret is set here: set ADW_WEBHOOK_SECRET, and the same secret at the hook"
    given = headers.get("x-hub-signature-256", "")
    if not given and "x-hub-signature" in headers:
        return "the delivery is signed with SHA-1 alone, which is not enough: X-Hub-Signature-256 is missing"
    if not given:
        return "the delivery is not signed: set a secret at the hook"
    match = _SIGNATURE.fullmatch(given)
    if match is None:
        return "X-Hub-Signature-256 is not of the form sha256= and 64 lower-case hexadecimal digits"
    wanted = bytes.fromhex(match[1])
    # A list, without stopping early: the response time must not reveal how many secrets there are or which one fits.
    matches = [hmac.compare_digest(hmac.digest(secret.encode(), body, "sha256"), wanted) for secret in secrets]

    return "" if any(matches) else "the signature does not fit: the secret at the hook is another one than here"


# --- payload ---------------------------------------------------------------------------------------------------


def parse(content_type: str, body: bytes) -> JsonObject:
    """
    Return the payload; raise Malformed with one sentence if it is not acceptable.

    Input that two parsers could read differently is refused: duplicate keys, NaN and Infinity, text that is not UTF-8.
    Depth is limited so that code that walks the payload does not overflow the stack.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as exc:
        raise Malformed(f"the payload is not UTF-8: byte {exc.start} cannot be read") from exc
    kind = content_type.partition(";")[0].strip().lower()
    if kind == FORM_TYPE:
        try:
            fields = parse_qsl(text, keep_blank_values=True, max_num_fields=16, errors="strict")
        except ValueError as exc:
            raise Malformed("the form cannot be read") from exc
        values = [value for name, value in fields if name == "payload"]
        if len(values) != 1:
            raise Malformed(f"the form has {len(values)} fields named payload, not one")
        text = values[0]
    elif kind not in {JSON_TYPE, ""}:
        raise Malformed(f"the content type is {kind[:80]!r}: set the hook to {JSON_TYPE}")

    def no_number(name: str) -> JsonValue:
        raise Malformed(f"the payload has {name}, which is no number")

    try:
        payload = json.loads(text, object_pairs_hook=_object, parse_constant=no_number)
    except Malformed:
        raise
    except json.JSONDecodeError as exc:
        raise Malformed(f"the payload is no JSON: {exc.msg} at character {exc.pos}") from exc
    except ValueError as exc:  # a number with more digits than Python converts
        raise Malformed("the payload has a number that is too long") from exc
    except RecursionError as exc:
        raise Malformed(_TOO_DEEP) from exc
    # With no more brackets than allowed levels it cannot be too deep and need not be walked.
    if text.count("{") + text.count("[") > MAX_DEPTH and _is_too_deep(payload):
        raise Malformed(_TOO_DEEP)
    if not isinstance(payload, dict):
        raise Malformed("the payload is no JSON object")

    return payload


def _is_too_deep(value: JsonValue) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return False
        level = [inner for outer in containers for inner in (outer.values() if isinstance(outer, dict) else outer)]

    return any(isinstance(item, dict | list) for item in level)


def _object(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    counts = Counter(name for name, _ in pairs)
    twice = next(name for name, count in counts.items() if count > 1)

    raise Malformed(f"the payload has the key {twice[:80]!r} twice in one object")
