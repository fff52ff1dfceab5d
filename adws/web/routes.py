"""
What all routes of the API share: the home, ids, cursors, and the errors they may answer with.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import Depends, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from adws.web.errors import ErrorBody
from adws.web.home import Home

#: Rows of a page, at most.
MOST_ROWS = 1000

#: status -> what it means, for OpenAPI; every one has the same shape.
_MEANINGS = {
    400: "The request is no HTTP that makes sense here.",
    401: "The token is missing or wrong.",
    403: "The API is closed: no token is set.",
    404: "There is no such thing.",
    408: "The body did not come in time.",
    409: "It does not fit how things stand now: somebody is at work, or the state does not allow it.",
    413: "The body is too large.",
    422: "The request is not what is expected.",
    429: "A limit is used up.",
    500: "A bug in adw.",
    502: "The forge answered with an error.",
    503: "Something that is needed does not answer now, such as the database.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text} for status, text in _MEANINGS.items()
}


def _home_of(request: Request) -> Home:
    return cast("Home", request.app.state.home)


HomeOf = Annotated[Home, Depends(_home_of)]
AdwId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$", description="id of a workflow")]


class PageOf(BaseModel):
    """Which page; what is not known here is refused, so that a misspelt filter does not show everything."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=50, ge=1, le=MOST_ROWS, description="rows of the page")
    cursor: str = Field(default="", max_length=400, description="next_cursor of the page before")


def asker(by: str) -> str:
    """Return who asks, for the history: the token proves that they may, the name is only what they say."""
    said = " ".join(by.split())

    return f"{said} (API)" if said else "the API"
