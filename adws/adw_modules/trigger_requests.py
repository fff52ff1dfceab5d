"""
What a delivery asks for, as the JSON that is stored with it, and back.

A worker reads it hours later, perhaps of another version: what does not fit is named, never guessed.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from adws.adw_modules.errors import DatabaseError
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.trigger import COMMANDS, Actor, Command, IssueText, RunRequest

#: What a delivery can ask for.
Request: TypeAlias = RunRequest | Command

_TYPES = {RunRequest: "run", Command: "command"}
_RUN_TEXTS = ("repository", "workflow", "adw_id", "model_set", "hint", "cause", "intent")
_COMMAND_TEXTS = ("kind", "repository", "adw_id", "text", "head_sha", "cause", "intent")


def to_json(request: Request) -> JsonObject:
    """Return *request* as plain data."""
    # Not asdict: that copies every text, and costs more than all the rest of reading a delivery.
    data: JsonObject = {"type": _TYPES[type(request)], **_plain(request), "actor": _plain(request.actor)}
    if isinstance(request, RunRequest):
        data["issue"] = {**_plain(request.issue), "labels": list(request.issue.labels)}

    return data


def _plain(noun: Request | Actor | IssueText) -> dict[str, Any]:
    return {name: getattr(noun, name) for name in noun.__slots__}


def from_json(data: JsonObject) -> Request:
    """Return what `to_json` made plain; raise DatabaseError when *data* is something else."""
    wanted = data.get("type")
    if wanted == "run":
        return RunRequest(issue=_issue(data), actor=_actor(data), **_texts(data, _RUN_TEXTS))
    if wanted != "command":
        raise DatabaseError(f"what a delivery asks for is neither a run nor a command, but {wanted!r}")
    texts = _texts(data, _COMMAND_TEXTS)
    if texts["kind"] not in COMMANDS:
        raise DatabaseError(f"a delivery asks for {texts['kind']!r}, which is no command of this version of adw")

    return Command(number=_number(data), actor=_actor(data), answers=data.get("answers") is True, **texts)


def _issue(data: JsonObject) -> IssueText:
    issue = _object(data, "issue")
    labels = issue.get("labels")

    return IssueText(
        number=_number(issue),
        labels=tuple(map(str, labels)) if isinstance(labels, list) else (),
        is_pull_request=issue.get("is_pull_request") is True,
        **_texts(issue, ("title", "body", "author", "url")),
    )


def _actor(data: JsonObject) -> Actor:
    actor = _object(data, "actor")

    return Actor(is_bot=actor.get("is_bot") is True, **_texts(actor, ("login",)))


def _object(data: JsonObject, name: str) -> JsonObject:
    value = data.get(name)
    if not isinstance(value, dict):
        raise _unfit(name, value)

    return value


def _number(data: JsonObject) -> int:
    value = data.get("number")
    if not isinstance(value, int) or isinstance(value, bool):
        raise _unfit("number", value)

    return value


def _texts(data: JsonObject, names: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        value = data.get(name, "")
        if not isinstance(value, str):
            raise _unfit(name, value)
        found[name] = value

    return found


def _unfit(name: str, value: JsonValue) -> DatabaseError:
    return DatabaseError(f"what a delivery asks for cannot be read: its {name} is {value!r:.80}")
