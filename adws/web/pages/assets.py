"""
The style sheet and the script of the dashboard, each under a name that changes with what is in it.

A browser may keep them for ever: another release has other names. They are open to everybody, for the login page.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

router = APIRouter(include_in_schema=False)

#: Where they are served.
PREFIX = "/static/"
_PLACE = Path(__file__).parent / "static"
_KINDS = {
    "adw.css": "text/css; charset=utf-8",
    "adw.js": "text/javascript; charset=utf-8",
    "adw.svg": "image/svg+xml",
}
_FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asset:
    """A file for browsers."""

    body: bytes
    kind: str
    digest: str


def url(name: str) -> str:
    """Return where browsers find the file *name*."""
    stem, _, ending = name.partition(".")

    return f"{PREFIX}{stem}.{_asset(name).digest}.{ending}"


def text(name: str) -> str:
    """Return the file *name*, for a page that has to stand alone."""
    return _asset(name).body.decode()


@router.get(PREFIX + "{name}")
def get_asset(name: str) -> Response:
    """Give out a file; one whose name is that of another release is not there."""
    for known in _KINDS:
        if url(known) == f"{PREFIX}{name}":
            found = _asset(known)
            return Response(found.body, media_type=found.kind, headers={"Cache-Control": _FOR_EVER})

    raise HTTPException(404)


@cache
def _asset(name: str) -> Asset:
    body = (_PLACE / name).read_bytes()

    return Asset(body=body, kind=_KINDS[name], digest=hashlib.sha256(body).hexdigest()[:16])
