"""
Who may use the API: whoever shows one of the tokens of the settings.

Every token is compared in constant time, and all of them each time, so that the time of an answer tells nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

from adws.adw_triggers.problems import Problem

_CLOSED = Problem(
    status=403,
    code="api_closed",
    message="the API is closed because no token is set",
    advice="Set ADW_WEB_TOKEN to a secret of 16 characters or more, such as openssl rand -hex 32 prints, and restart.",
)
_NO_TOKEN = Problem(
    status=401,
    code="unauthorized",
    message="this needs a token that the server knows",
    advice="Send the header Authorization: Bearer TOKEN, with a token of ADW_WEB_TOKEN.",
)


def why_not(head: Mapping[str, str], tokens: Sequence[str]) -> Problem | None:
    """Return why a request with the headers *head* is not let in, None when it is."""
    if not tokens:
        return _CLOSED
    shown = token_in(head).encode("utf-8", "surrogateescape")
    # A list, not any() over a generator: that would stop at the first one that fits.
    fits = [hmac.compare_digest(shown, token.encode()) for token in tokens]

    return None if any(fits) else _NO_TOKEN


def token_in(head: Mapping[str, str]) -> str:
    """Return the token that a request with the headers *head* shows, "" for none."""
    scheme, _, given = head.get("authorization", "").partition(" ")

    return given.strip() if scheme.lower() == "bearer" else ""
