"""
Interpret GitHub's responses: convert status, headers and body to values or the right error.

Pure. A refusal, a request to come back later and a response that leaves the effect unknown are different errors; an
unreadable response is of the last kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TypeAlias

from adws.adw_modules import error_tables, timestamps
from adws.adw_modules.errors import ForgeBusy, ForgeNotFound, ForgeRefused, ForgeUnavailable
from adws.adw_modules.forge.model import Comment, ForgeAccess, Issue, PullRequest
from adws.adw_modules.identifiers import JsonValue

Json: TypeAlias = Mapping[str, JsonValue]

#: Seconds to wait after a rate limit response that does not say how long.
UNSAID_WAIT = 60.0
#: GitHub's messages about limits that have no headers.
_LIMIT_WORDS = ("rate limit", "abuse detection", "please wait a few minutes", "please retry your request again later")
_PERMISSIONS = ("admin", "maintain", "write", "triage", "read", "none")
_OLD_PERMISSIONS = {"push": "write", "pull": "read"}


def check_answer(status: int, headers: Mapping[str, str], body: str, *, now: datetime) -> JsonValue:
    """
    Return the JSON of a successful response, None for an empty one; header names are in lower case.

    Raises the matching error for any other response.
    """
    if 200 <= status < 300:
        try:
            value: JsonValue = json.loads(body) if body else None
        except ValueError as exc:
            raise ForgeUnavailable("GitHub's answer cannot be read: whether anything was done is not known") from exc
        return value
    message = message_of(body) or "no reason given"
    is_limit = (
        "retry-after" in headers
        or headers.get("x-ratelimit-remaining") == "0"
        or any(words in message.lower() for words in _LIMIT_WORDS)
    )
    if status == 429 or (status == 403 and is_limit):
        told, wait = error_tables.by_headers(headers), UNSAID_WAIT
        if told.seconds is not None:
            wait = max(1.0, told.seconds)
        elif told.at is not None:
            # One second more: the reset time is in whole seconds, and the clocks differ.
            wait = max(1.0, (told.at - now).total_seconds() + 1.0)
        raise ForgeBusy(wait, message)
    if status == 404:
        raise ForgeNotFound(f"GitHub has no such thing, or does not show it to us: {message}")
    if 300 <= status < 400:
        raise ForgeRefused(status, "GitHub sends us elsewhere: correct github.repository or github.api_url")
    if status >= 500 or status < 200:
        raise ForgeUnavailable(f"GitHub answered {status} ({message}): whether anything was done is not known")

    raise ForgeRefused(status, message)


def message_of(body: str) -> str:
    """Return the error message of a response in one line."""
    try:
        answer = json.loads(body)
    except ValueError:
        return ""
    if not isinstance(answer, dict):
        return ""
    details = answer.get("errors")
    said = [answer.get("message"), *map(_detail, details if isinstance(details, list) else ())]

    return " ".join(": ".join(str(one) for one in said if one).split())[:500]


def graphql_problem(answer: JsonValue) -> str:
    """Return the errors of a GraphQL query that was answered with 200, "" if there were no errors."""
    problems = as_object(answer).get("errors")
    if not isinstance(problems, list) or not problems:
        return ""

    return "; ".join(str(_detail(one)) for one in problems)[:500]


def has_next_page(headers: Mapping[str, str]) -> bool:
    """Say whether a list has a page after this one."""
    return 'rel="next"' in headers.get("link", "")


def as_object(value: JsonValue) -> Json:
    """Return a response that must be an object."""
    if not isinstance(value, dict):
        raise ForgeUnavailable("GitHub answered with something else than was asked for")

    return value


def as_objects(value: JsonValue) -> list[Json]:
    """Return a response that must be a list of objects."""
    if not isinstance(value, list):
        raise ForgeUnavailable("GitHub answered with something else than a list")

    return [as_object(one) for one in value]


def to_issue(value: JsonValue) -> Issue:
    """Convert a response to an issue."""
    data = as_object(value)

    return Issue(
        number=_number(data, "number"),
        title=text_in(data, "title"),
        body=text_in(data, "body"),
        author=_login(data, "user"),
        url=text_in(data, "html_url"),
        state=text_in(data, "state") or "open",
        labels=tuple(
            text_in(label, "name") if isinstance(label, dict) else str(label) for label in _list(data, "labels")
        ),
        assignees=tuple(text_in(as_object(one), "login") for one in _list(data, "assignees")),
    )


def to_comment(value: JsonValue) -> Comment:
    """Convert a response to a comment."""
    data = as_object(value)

    return Comment(
        comment_id=_number(data, "id"),
        body=text_in(data, "body"),
        author=_login(data, "user"),
        url=text_in(data, "html_url"),
        created_at=text_in(data, "created_at"),
    )


def to_pull_request(value: JsonValue) -> PullRequest:
    """Convert a response, single or from a list, to a pull request."""
    data = as_object(value)
    head, base = as_object(data.get("head")), as_object(data.get("base"))

    return PullRequest(
        number=_number(data, "number"),
        title=text_in(data, "title"),
        body=text_in(data, "body"),
        head=text_in(head, "ref"),
        head_sha=text_in(head, "sha"),
        base=text_in(base, "ref"),
        state=text_in(data, "state"),
        is_draft=data.get("draft") is True,
        is_merged=data.get("merged") is True or bool(data.get("merged_at")),
        author=_login(data, "user"),
        url=text_in(data, "html_url"),
    )


def comes_from(value: Json, *, repository: str, branch: str) -> bool:
    """Say whether a listed pull request comes from *branch* of the repository itself, not of a fork."""
    head = as_object(value.get("head"))
    origin = head.get("repo")
    name = text_in(origin, "full_name") if isinstance(origin, dict) else ""

    return text_in(head, "ref") == branch and name.casefold() == repository.casefold()


def is_since(value: Json, since: str) -> bool:
    """Return whether a listed comment changed since then: not every server honours that parameter."""
    changed = text_in(value, "updated_at")

    return not since or not changed or timestamps.parse(changed) >= timestamps.parse(since)


def to_permission(value: JsonValue) -> str:
    """Return a person's permission; a custom role of an organisation counts as the role it is based on."""
    data = as_object(value)
    for name in (text_in(data, "role_name"), text_in(data, "permission")):
        known = _OLD_PERMISSIONS.get(name, name)
        if known in _PERMISSIONS:
            return known

    return "none"


def to_access(login: str, repository: JsonValue, headers: Mapping[str, str]) -> ForgeAccess:
    """Return the permissions of a user in *repository*, from its response and headers."""
    data = as_object(repository)
    rights = data.get("permissions")
    may_push = rights.get("push") if isinstance(rights, dict) else None
    scopes = headers.get("x-oauth-scopes")

    return ForgeAccess(
        login=login,
        may_push=may_push if isinstance(may_push, bool) else None,
        scopes=None if scopes is None else tuple(part.strip() for part in scopes.split(",") if part.strip()),
        is_private=data.get("private") is True,
        requests_left=_requests_left(headers),
        server_time=headers.get("date", ""),
    )


def to_app_access(login: str, installation: JsonValue, headers: Mapping[str, str]) -> ForgeAccess:
    """Return the permissions of an App's installation."""
    rights = as_object(installation).get("permissions")
    granted = rights if isinstance(rights, dict) else {}
    may = {name: granted.get(name) == "write" if granted else None for name in ("contents", "pull_requests", "issues")}

    return ForgeAccess(
        login=login,
        may_push=may["contents"] and may["pull_requests"],
        may_write_issues=may["issues"],
        requests_left=_requests_left(headers),
        server_time=headers.get("date", ""),
    )


def _requests_left(headers: Mapping[str, str]) -> int | None:
    left = headers.get("x-ratelimit-remaining", "")

    return int(left) if left.isdecimal() and left.isascii() else None


def text_in(data: Json, name: str) -> str:
    """Return the text under *name*, "" for null or a missing key."""
    value = data.get(name)

    return value if isinstance(value, str) else ""


def _detail(value: object) -> object:
    if not isinstance(value, dict):
        return value

    return value.get("message") or " ".join(str(value[key]) for key in ("resource", "field", "code") if key in value)


def _number(data: Json, name: str) -> int:
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ForgeUnavailable(f"GitHub's answer lacks {name}: whether anything was done is not known")

    return value


def _list(data: Json, name: str) -> list[JsonValue]:
    value = data.get(name)

    return value if isinstance(value, list) else []


def _login(data: Json, name: str) -> str:
    """Return the login of a person, or "" for a deleted account."""
    person = data.get(name)

    return text_in(person, "login") if isinstance(person, dict) else ""
