"""What is told and kept of a failure is without secrets, whatever raised it."""

from __future__ import annotations

import json

from adws.adw_modules.engine.attempt import MAX_TRACEBACK, judge
from adws.adw_modules.redaction.redactor import Redactor
from adws.testing import FakeClock
from tests.unit.engine_cases import attempt, document_of, spec_of

SECRET = "correct-horse-battery-staple"


def judged(error, **more):
    spec = spec_of("plan")
    record = document_of(spec).phases[0].changed(attempts=[attempt(1)], attempts_used=1)

    return judge(error, spec.phases[0], record, clock=FakeClock(), **more)


def raised(message, cause=None):
    """Return an exception that has a traceback."""
    try:
        raise ValueError(message) from cause  # noqa: TRY301 - the traceback is the point
    except ValueError as exc:
        return exc


def test_no_secret_of_an_exception_or_its_cause_is_kept_in_any_part():
    error = raised(f"cannot use {SECRET}", cause=raised(f"https://me:{SECRET}@host/"))

    result = judged(error, redact=Redactor([SECRET]).redact)

    assert SECRET not in json.dumps(result.error)
    assert "cannot use [redacted]" in result.message
    assert "ValueError" in result.error["traceback"]


def test_a_secret_is_taken_out_before_a_traceback_is_cut():
    """
    Cut first, a part of it would be left at the edge.
    """
    error = raised(f"{SECRET} " + "x" * (MAX_TRACEBACK - 20))

    result = judged(error, redact=Redactor([SECRET]).redact)

    assert len(result.error["traceback"]) == MAX_TRACEBACK
    assert SECRET[-12:] not in result.error["traceback"]
