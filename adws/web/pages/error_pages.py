"""
What went wrong, as a page for browsers; the same sentences as everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from fastapi import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from adws.adw_triggers.problems import Problem
from adws.web.pages import frame
from adws.web.pages.frame import Frame, Viewer

#: status -> what stands on top.
_TITLES: Mapping[int, str] = MappingProxyType(
    {
        401: "Please log in",
        403: "Not allowed",
        404: "Not found",
        405: "Not possible",
        409: "Not possible now",
        421: "Another address",
        422: "Not understood",
        429: "Too much",
        500: "A bug in adw",
        502: "The forge did not answer well",
        503: "Not now",
    }
)
#: status -> what a person does about it; programs get other advice.
_ADVICE: Mapping[int, str] = MappingProxyType(
    {
        404: "The lists show what there is.",
        409: "Look at the page of the workflow again: somebody else may have done something.",
        422: "Go back and change what you asked for.",
        429: "Try again later; the overview shows what is used up.",
        500: "The log of adw serve has the details; please report them.",
        502: "Look at the side of the forge, then try again.",
        503: "Nothing is wrong with what you asked for: try again later.",
    }
)


class ErrorPages:
    """Tells browsers and programs what went wrong."""

    def __init__(self, frame_of_pages: Frame, *, redact: Callable[[str], str]) -> None:
        self._frame = frame_of_pages
        self._redact = redact

    def answer(self, problem: Problem, *, path: str, viewer: Viewer, is_page: bool) -> Response:
        """Return *problem* as a page, or as programs read it."""
        headers = problem.headers()
        if not is_page:
            told = replace(problem, message=self._redact(problem.message))
            return JSONResponse(told.to_json(), status_code=told.status, headers=headers)
        text = self._frame.text(
            "problem.html",
            path=path,
            viewer=viewer,
            title=_TITLES.get(problem.status, "That did not work"),
            message=sentence(problem.message),
            advice=_ADVICE.get(problem.status, problem.advice),
        )

        return HTMLResponse(text, status_code=problem.status, headers=headers)

    def hop(self, here: str) -> Response:
        """Return a page that goes on to *here* by itself."""
        return HTMLResponse(self._frame.text("hop.html", path=here, viewer=Viewer(), here=here))

    def of_request(self, request: Request, problem: Problem, *, is_page: bool) -> Response:
        """Return *problem* for whoever sent *request*."""
        return self.answer(problem, path=request.url.path, viewer=frame.viewer(request), is_page=is_page)


def sentence(message: str) -> str:
    """Return *message* as a sentence: with a capital letter and a full stop."""
    text = message.strip()
    if not text:
        return text

    return f"{text[0].upper()}{text[1:]}{'' if text[-1] in '.!?' else '.'}"
