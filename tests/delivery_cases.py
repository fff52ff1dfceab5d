"""
Deliveries for tests: small payloads of our own writing, with the parts that are looked at and no others.

`signed` makes the headers that GitHub sends with a body.
"""

from __future__ import annotations

import hmac
import json
from typing import Any

from adws.adw_triggers.github_events import DeliveryRules

SECRET = "a secret of the tests"
REPOSITORY = "Acme/Widget"
RULES = DeliveryRules(
    secrets=(SECRET,), repositories=("acme/widget",), login="adw-bot", bots=("Helper[bot]",), follows_up=True
)
HEAD = "c" * 40


def sign(secret: str, body: bytes) -> str:
    """The signature of a body, as GitHub makes it."""
    return f"sha256={hmac.digest(secret.encode(), body, 'sha256').hex()}"


def signed(
    event: str, body: bytes, *, guid: str = "72d3162e-cc78-11e3-81ab-4c9367dc0958", **more: str
) -> dict[str, str]:
    """The headers of a delivery."""
    return {
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": guid,
        "X-GitHub-Hook-ID": "292430182",
        "X-Hub-Signature-256": sign(SECRET, body),
        "Content-Type": "application/json",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


def bytes_of(payload: object) -> bytes:
    return json.dumps(payload).encode()


def user(login: str, kind: str = "User") -> dict[str, Any]:
    return {"login": login, "id": 1, "type": kind}


def issue(**changes: Any) -> dict[str, Any]:
    return {
        "number": 7,
        "title": "Add a button",
        "body": "It should be blue.",
        "user": user("mona"),
        "state": "open",
        "locked": False,
        "labels": [{"name": "bug"}],
        "html_url": "https://github.com/Acme/Widget/issues/7",
        "created_at": "2026-01-31T09:00:00Z",
        "updated_at": "2026-01-31T12:00:00Z",
        **changes,
    }


def payload(action: str | None = None, *, sender: Any = None, **parts: Any) -> dict[str, Any]:
    """A payload of the repository, sent by a person unless told otherwise."""
    made = {"repository": {"full_name": REPOSITORY}, "sender": sender or user("octocat"), **parts}
    return made if action is None else {"action": action, **made}


def comment(text: object, *, sender: Any = None, **changes: Any) -> dict[str, Any]:
    """The payload of a comment on the issue."""
    said = {"id": 99, "body": text, "user": sender or user("octocat")}
    return payload("created", sender=sender, issue=issue(**changes), comment=said)


def labeled(name: str = "adw", *, sender: Any = None, **changes: Any) -> dict[str, Any]:
    return payload("labeled", sender=sender, issue=issue(**changes), label={"name": name})


def pull_request(*, merged: bool, **changes: Any) -> dict[str, Any]:
    repo = {"full_name": REPOSITORY}
    pull = {"number": 8, "merged": merged, "head": {"sha": HEAD, "repo": repo}, "base": {"repo": repo}}
    return payload("closed", pull_request={**pull, "closed_at": "2026-02-01T09:00:00Z", **changes})


def review(state: str = "changes_requested", *, sender: Any = None, **changes: Any) -> dict[str, Any]:
    said = {"id": 55, "state": state, "body": "Please rename it.", "commit_id": HEAD, **changes}
    return payload("submitted", sender=sender, review=said, pull_request={"number": 8})


def checks(part: str = "check_suite", conclusion: str | None = "failure", **changes: Any) -> dict[str, Any]:
    told = {"conclusion": conclusion, "head_sha": HEAD, "pull_requests": [{"number": 8}], **changes}
    return payload("completed", **{part: told})
