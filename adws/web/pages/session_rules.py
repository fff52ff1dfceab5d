"""
Who is logged in: cookies that this server signed, links that log in once, and tokens of forms.

Pure. Nothing is kept for a session: the cookie says who and until when, and its signature that we wrote that. The key
of the signature is made from the key of the home and the token that was shown at the login, so another token, or
another home, makes every cookie worthless.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass

#: Characters of the longest cookie or link that is looked at.
LONGEST = 2000
#: Characters of a name, at most.
LONGEST_NAME = 80
#: Seconds that a link can be used.
LINK_SECONDS = 15 * 60

_MAC_DIGITS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """Somebody who logged in."""

    session_id: str  #: hex digits that nobody can guess
    name: str  #: what they say they are called; "": nothing
    until: int  #: seconds since 1970


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A session that is good, and the key that it was signed with."""

    session: Session
    key: bytes


def key_of(home_key: bytes, token: str) -> bytes:
    """Return the key of the sessions of those who showed *token*."""
    return hmac.new(home_key, b"adw dashboard session\0" + token.encode(), hashlib.sha256).digest()


def link_key(home_key: bytes) -> bytes:
    """Return the key of links that log in."""
    return hmac.new(home_key, b"adw dashboard link", hashlib.sha256).digest()


def cookie_name(home_key: bytes, *, is_secure: bool) -> str:
    """Return the name of the cookie: that of each home is its own, because browsers keep ports of a host together."""
    digest = hmac.new(home_key, b"adw dashboard cookie", hashlib.sha256).hexdigest()[:12]

    return f"__Host-adw-{digest}" if is_secure else f"adw-{digest}"


# --- sessions --------------------------------------------------------------------------------------------------


def seal(session: Session, key: bytes) -> str:
    """Return the cookie of *session*."""
    return _signed({"id": session.session_id, "name": session.name, "until": session.until}, key)


def unseal(cookie: str, keys: Sequence[bytes], *, now: float) -> Known | None:
    """Return the session of *cookie*, None when it was not made by us or is over."""
    for key in keys:
        found = _read(cookie, key)
        if found is None:
            continue
        session_id, name, until = found.get("id"), found.get("name"), found.get("until")
        is_whole = isinstance(session_id, str) and isinstance(name, str) and isinstance(until, int)
        if not is_whole or until <= now:  # type: ignore[operator]  # looked at right before
            return None
        return Known(session=Session(session_id=session_id, name=name, until=until), key=key)  # type: ignore[arg-type]  # the same

    return None


def name_of(said: str) -> str:
    """Return the name that somebody gave, in one line of bounded length."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in said).split())[:LONGEST_NAME]


def asker(name: str) -> str:
    """Return who asks, for the history: the login proves that they may, the name is only what they say."""
    return f"{name} (dashboard)" if name else "the dashboard"


# --- forms -----------------------------------------------------------------------------------------------------


def csrf_of(known: Known) -> str:
    """Return what a form of this session has to carry."""
    said = b"adw dashboard form\0" + known.session.session_id.encode()

    return hmac.new(known.key, said, hashlib.sha256).hexdigest()


def is_csrf(shown: str, known: Known) -> bool:
    """Say whether a form that carries *shown* was made for this session."""
    return hmac.compare_digest(shown.encode("utf-8", "replace"), csrf_of(known).encode())


# --- messages for the next page ----------------------------------------------------------------------------------


def seal_note(text: str, known: Known) -> str:
    """Return a cookie that carries *text* to the next page of this session."""
    return _signed({"note": text[:500], "of": known.session.session_id}, known.key)


def unseal_note(cookie: str, known: Known) -> str:
    """Return the text that `seal_note` wrote, "" for anything else."""
    found = _read(cookie, known.key) or {}
    text = found.get("note")

    return text if isinstance(text, str) and found.get("of") == known.session.session_id else ""


# --- links that log in -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A login that whoever can read the key of the home gave out."""

    link_id: str
    name: str
    made_at: int  #: seconds since 1970


def seal_link(link: Link, key: bytes) -> str:
    """Return what the address of a login link carries."""
    return _signed({"link": link.link_id, "name": link.name, "made": link.made_at}, key)


def unseal_link(text: str, key: bytes, *, now: float, since: float) -> Link | None:
    """Return the link of *text*, None when it is not ours, too old, or from before *since*."""
    found = _read(text, key) or {}
    link_id, name, made = found.get("link"), found.get("name"), found.get("made")
    if not isinstance(link_id, str) or not isinstance(name, str) or not isinstance(made, int):
        return None
    # A minute of the future is let pass: the clock may have been set back a little.
    if not max(since, now - LINK_SECONDS) <= made <= now + 60:
        return None

    return Link(link_id=link_id, name=name, made_at=made)


# --- signatures ------------------------------------------------------------------------------------------------


def _signed(data: dict[str, str | int], key: bytes) -> str:
    text = json.dumps(data, separators=(",", ":"), sort_keys=True)
    body = base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()

    return f"{body}.{_mac(body, key)}"


def _read(text: str, key: bytes) -> dict[str, object] | None:
    """Return what `_signed` wrote, None for anything else."""
    body, _, mac = text.rpartition(".")
    if not text.isascii() or len(text) > LONGEST or len(mac) != _MAC_DIGITS:
        return None
    if not hmac.compare_digest(mac, _mac(body, key)):
        return None
    try:
        found = json.loads(base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):  # pragma: no cover - what we signed can be read
        return None

    return found if isinstance(found, dict) else None


def _mac(body: str, key: bytes) -> str:
    return hmac.new(key, body.encode(), hashlib.sha256).hexdigest()
