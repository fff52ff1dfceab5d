"""
Parts of a payload, each in the one form that is used, whatever was sent.

Pure. A part that is missing, null or of another type is empty: senders leave out what they like, and a text may be null
where nobody wrote one.
"""

from __future__ import annotations

from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.trigger import Actor, IssueText

#: Most that is taken of a text: forges allow 65,536 characters in a body and 256 in a title.
MAX_BODY, MAX_TITLE, MAX_NAME, MAX_LABELS = 100_000, 1_000, 200, 100
#: The highest number that a database takes.
_MAX_NUMBER = 2**53
#: Whom GitHub puts in the place of a user who deleted his account.
_GHOST = "ghost"


def object_in(data: JsonObject, name: str) -> JsonObject:
    """Return the object *name*, an empty one when there is none."""
    value = data.get(name)

    return value if isinstance(value, dict) else {}


def objects_in(data: JsonObject, name: str) -> list[JsonObject]:
    """Return the objects of the list *name*."""
    value = data.get(name)

    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def text_in(data: JsonObject, name: str, *, limit: int = MAX_NAME) -> str:
    """Return the text *name*, without what no database stores, at most *limit* characters of it."""
    value = data.get(name)
    if not isinstance(value, str):
        return ""
    kept = value[:limit].replace("\x00", "\ufffd")

    return kept.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def number_in(data: JsonObject, name: str) -> int | None:
    """Return the number *name*, which counts from 1; None when it is none."""
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MAX_NUMBER:
        return None

    return value


def login_in(data: JsonObject, name: str) -> str:
    """Return the login of the user *name*, "" for one whose account was deleted."""
    login = text_in(object_in(data, name), "login")

    return "" if login.lower() == _GHOST else login


def actor_in(data: JsonObject, name: str = "sender") -> Actor:
    """Return whoever *name* is."""
    login = login_in(data, name)
    kind = text_in(object_in(data, name), "type")

    return Actor(login=login, is_bot=kind == "Bot" or login.endswith("[bot]"))


def issue_in(data: JsonObject) -> IssueText:
    """Return the issue of a payload that has one, as it was when the delivery was made."""
    issue = object_in(data, "issue")
    labels = (text_in(label, "name") for label in objects_in(issue, "labels")[:MAX_LABELS])

    return IssueText(
        number=number_in(issue, "number") or 0,
        title=text_in(issue, "title", limit=MAX_TITLE),
        body=text_in(issue, "body", limit=MAX_BODY),
        author=login_in(issue, "user"),
        url=text_in(issue, "html_url", limit=MAX_TITLE),
        labels=tuple(label for label in labels if label),
        is_pull_request=bool(issue.get("pull_request")),
    )
