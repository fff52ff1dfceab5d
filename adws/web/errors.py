"""
Every error that leaves the API, in the one shape of `adw_triggers.problems`.

An error of ours is its sentence and a status; what FastAPI finds wrong with a request is said the same way, and never
repeats what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from adws.adw_modules.errors import AdwError, UsageError
from adws.adw_triggers import problems
from adws.adw_triggers.problems import Problem, problem_of

_ADVICE = "/api/v1/openapi.json describes what is expected."


class ErrorFacts(BaseModel):
    """Why something was not done."""

    code: str
    message: str
    advice: str


class ErrorBody(BaseModel):
    """What every answer that is not a success looks like."""

    error: ErrorFacts


class Conflict(Exception):
    """What was asked for is well formed, and does not fit how things stand."""

    def __init__(self, error: AdwError) -> None:
        super().__init__(str(error))


@contextmanager
def fitting() -> Iterator[None]:
    """Turn a UsageError inside the block into 409: the request was checked before, so it does not fit the workflow."""
    try:
        yield
    except UsageError as exc:
        raise Conflict(exc) from exc


def install(
    app: FastAPI,
    *,
    redact: Callable[[str], str],
    page: Callable[[Request, Problem], Response | None] = lambda _request, _problem: None,
) -> None:
    """
    Make every error of *app* leave in the one shape, without the secrets that *redact* knows.

    *page* returns the same as a page where the request came from a browser, None where it did not.
    """
    answer = partial(_answer, redact=redact, page=page)

    @app.exception_handler(AdwError)
    def on_expected(request: Request, error: AdwError) -> Response:
        return answer(request, problem_of(error))

    @app.exception_handler(Conflict)
    def on_conflict(request: Request, error: Conflict) -> Response:
        return answer(request, Problem(status=409, code="conflict", message=str(error)))

    @app.exception_handler(RequestValidationError)
    def on_bad_request(request: Request, error: RequestValidationError) -> Response:
        return answer(request, Problem(status=422, code="bad_request", message=_said(error), advice=_ADVICE))

    @app.exception_handler(HTTPException)
    def on_http(request: Request, error: HTTPException) -> Response:
        response = answer(request, of_status(error.status_code))
        response.headers.update(error.headers or {})

        return response

    @app.exception_handler(Exception)
    def on_bug(request: Request, _error: Exception) -> Response:
        return answer(request, problems.bug())


def _answer(
    request: Request,
    problem: Problem,
    *,
    redact: Callable[[str], str],
    page: Callable[[Request, Problem], Response | None],
) -> Response:
    shown = page(request, problem)
    if shown is not None:
        return shown
    told = replace(problem, message=redact(problem.message))

    return JSONResponse(told.to_json(), status_code=told.status, headers=told.headers())


def of_status(status: int) -> Problem:
    """Return what is said about a status that the framework gave: no such page, no such method, a broken body."""
    phrase = HTTPStatus(status).phrase

    return Problem(status=status, code=phrase.lower().replace(" ", "_"), message=phrase.lower(), advice=_ADVICE)


def _said(error: RequestValidationError) -> str:
    """Return what is wrong, each with its place; a name that the client made up is cut, and may be no UTF-8."""
    found = [f"{'.'.join(str(part)[:60] for part in one['loc'])}: {one['msg']}" for one in error.errors()[:10]]

    return "; ".join(found).encode("utf-8", "backslashreplace").decode() or "the request is not what was expected"
