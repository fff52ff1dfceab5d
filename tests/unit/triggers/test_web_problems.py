"""Errors of the web door: one shape, and a status for every error that adw raises."""

from __future__ import annotations

import pytest

from adws.adw_modules import errors
from adws.adw_triggers.http import code_of, problem_of

#: 5xx only for what no client can cause.
NOT_THE_CLIENTS_DOING = {502, 503}


def _all(kind: type) -> list[type]:
    return [kind, *(item for below in kind.__subclasses__() for item in _all(below))]


@pytest.mark.parametrize("kind", _all(errors.AdwError), ids=lambda kind: kind.__name__)
def test_every_error_of_adw_has_a_status_and_its_sentence(kind):
    error = kind.__new__(kind)
    errors.AdwError.__init__(error, "a sentence")

    problem = problem_of(error)

    assert 400 <= problem.status < 500 or problem.status in NOT_THE_CLIENTS_DOING
    assert problem.message == "a sentence"
    assert problem.code == code_of(kind)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.StateNotFound("1a2b3c4d"), 404, "state_not_found"),
        (errors.RunNotFound(5), 404, "run_not_found"),
        (errors.RunLost(5), 409, "run_lost"),
        (errors.WorkflowBusy("1a2b3c4d", "a worker"), 409, "workflow_busy"),
        (errors.IssueLocked(5, "1a2b3c4d"), 409, "issue_locked"),
        (errors.IllegalTransition("a", "b", ()), 409, "illegal_transition"),
        (errors.WorkflowInvalid("it is wrong"), 409, "workflow_invalid"),
        (errors.UsageError("wrong"), 422, "usage_error"),
        (errors.InvalidAdwId("/"), 422, "invalid_adw_id"),
        (errors.UnknownWorkflow("x", ["y"]), 422, "unknown_workflow"),
        (errors.QuotaExceeded("runs", "all places are taken"), 429, "quota_exceeded"),
        (errors.DatabaseUnavailable("gone"), 503, "database_unavailable"),
        (errors.ForgeUnavailable("gone"), 503, "forge_unavailable"),
        (errors.ForgeRefused(403, "no"), 502, "forge_refused"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_the_status_says_whose_move_it_is(error, status, code):
    problem = problem_of(error)

    assert (problem.status, problem.code, problem.message) == (status, code, str(error))
