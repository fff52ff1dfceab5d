"""
How a repository is spelled wherever spellings are compared: `owner/name` in lower case.

Pure. GitHub takes the names of owners and repositories in any case, and people paste addresses: an issue must not get a
second owner because of a spelling.
"""

from __future__ import annotations

import re
from functools import lru_cache

from adws.adw_modules.errors import UsageError

_ADDRESS = r"(?:(?:https?|ssh|git)://[^/\s]+/|[\w.-]+@[\w.-]+:/?)?"
_REPOSITORY = re.compile(_ADDRESS + r"([\w.-]+)/([\w.-]+?)(?:\.git)?/?", re.ASCII | re.IGNORECASE)

#: The same on GitHub itself; `github.com-work` is how people with several keys call it.
_ON_GITHUB = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^/@\s]*@)?|[^/@\s]*@)?(?:www\.|ssh\.)?github\.com(?:-[\w.-]+)?(?::\d+(?=/))?[:/]/?"
    r"([\w.-]+/[\w.-]+?)(?:\.git)?/?",
    re.ASCII | re.IGNORECASE,
)


def on_github(address: str) -> str:
    """Return `owner/name`, as it is written, for the address of a repository on github.com; "" for any other."""
    match = _ON_GITHUB.fullmatch(address)

    return match[1] if match else ""


def normalise(text: str) -> str:
    """Return `owner/name` for such a text or its address on any host, "" for ""; raise UsageError for another text."""
    if not text:
        return ""
    match = _REPOSITORY.fullmatch(text)
    if match is None or {match[1], match[2]} & {".", ".."}:
        raise UsageError(f"{text!r} names no repository: give owner/name or the address of one, or nothing")

    return f"{match[1]}/{match[2]}".lower()


def in_home(text: str, home: str) -> str:
    """Return what *text* means in a home of repository *home*, in the spelling that is compared: "" means *home*."""
    return comparable(text) or comparable(home)


@lru_cache(maxsize=256)  # asked with every write, of few repositories
def comparable(text: str) -> str:
    """Return `normalise(text)`, or *text* where it names none: what an old document says is not refused any more."""
    try:
        return normalise(text)
    except UsageError:
        return text
