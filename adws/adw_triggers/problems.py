"""
What a client of the web door is told when something is not done: one shape, and a status for every error of ours.

Pure. Whatever a client sends ends in a 4xx; 502 and 503 are for what is not his doing, such as a database that is down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from adws.adw_modules import errors
from adws.adw_modules.execution_views import ExecutionNotFound
from adws.adw_modules.external_tasks import ForeignToken, TaskNotFound
from adws.adw_modules.json_value import JsonObject

#: Seconds after which a client may try again what is not possible now.
RETRY_SECONDS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Why something was not done."""

    status: int  #: of HTTP
    code: str  #: for programs
    message: str  #: one sentence for people
    advice: str = ""  #: what to do, "" when the message says it
    retry_after: int | None = None  #: seconds

    def to_json(self) -> JsonObject:
        """Return the one shape that errors have."""
        return {"error": {"code": self.code, "message": self.message, "advice": self.advice}}

    def headers(self) -> dict[str, str]:
        """Return what the answer says in its head."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


#: Error -> status. One that is not named here has that of what it is derived from.
STATUSES: Mapping[type[errors.AdwError], int] = MappingProxyType(
    {
        errors.AdwError: 409,
        errors.UsageError: 422,
        errors.InvalidAdwId: 422,
        errors.UnknownWorkflow: 422,
        errors.StateNotFound: 404,
        errors.RunNotFound: 404,
        TaskNotFound: 404,
        ExecutionNotFound: 404,
        ForeignToken: 401,
        errors.ForgeNotFound: 404,
        errors.QuotaExceeded: 429,
        errors.PortsExhausted: 429,
        errors.ForgeError: 502,
        errors.ForgeUnavailable: 503,
        errors.ForgeBusy: 503,
        errors.GitUnreachable: 503,
        errors.DatabaseError: 503,
        errors.DurabilityUnknown: 503,
        errors.StateWriteFailed: 503,
        errors.StateReadFailed: 503,
        errors.LockUnavailable: 503,
    }
)
_ADVICE: Mapping[int, str] = MappingProxyType(
    {
        404: "GET /api/v1/workflows lists the workflows there are.",
        422: "Change the request; /api/v1/openapi.json describes what is expected.",
        429: "Try again later; GET /api/v1/quota shows what is used up.",
        502: "The forge answered with an error: look at its side, then try again.",
        503: "Nothing is wrong with the request: try again later.",
    }
)


def problem_of(error: errors.AdwError) -> Problem:
    """Return what a client is told about *error*."""
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)

    return Problem(
        status=status,
        code=code_of(type(error)),
        message=str(error),
        advice=_ADVICE.get(status, ""),
        retry_after=RETRY_SECONDS if status in {429, 503} else None,
    )


def code_of(kind: type[BaseException]) -> str:
    """Return the name of an error as programs read it: `WorkflowBusy` is `workflow_busy`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


def bug() -> Problem:
    """Return what a client is told about an error that nobody expected: nothing of it."""
    return Problem(
        status=500,
        code="internal_error",
        message="adw could not do this because of a bug of its own",
        advice="The log of adw serve has the details; please report them.",
    )
