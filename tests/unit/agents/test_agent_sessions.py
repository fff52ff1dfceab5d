"""Conversations with agents: which one is resumed, which is not."""

from __future__ import annotations

import pytest

from adws.adw_modules.agents.sessions import (
    SPOILING,
    base_of,
    had_session,
    is_unknown_session,
    session_for,
)
from adws.adw_modules.document import AttemptRecord, PhaseRecord
from adws.adw_modules.errors import FailedRun

AT = "2026-01-31T09:00:00.000000Z"
AGENT = {"name": "claude", "session_id": "s-1"}


def record(*attempts: dict, round_number: int = 1) -> PhaseRecord:
    made = [AttemptRecord(**{"number": n, "started_at": AT, **one}) for n, one in enumerate(attempts, 1)]
    now = AttemptRecord(number=len(made) + 1, started_at=AT, round=round_number)
    return PhaseRecord(name="build", state="building", round=round_number, attempts=[*made, now])


@pytest.mark.parametrize("status", ["interrupted", "suspended", "parked", "failed", "succeeded"])
def test_the_conversation_of_the_attempt_before_goes_on(status):
    assert session_for(record({"status": "failed"}, {"status": status, "agent": AGENT}), agent="claude") == "s-1"


@pytest.mark.parametrize(
    "before",
    [
        {"status": "running", "agent": AGENT},
        {"status": "failed", "agent": None},
        {"status": "failed", "agent": {**AGENT, "name": "codex"}},
        {"status": "failed", "agent": {**AGENT, "session_id": ""}},
        {"status": "failed", "agent": {**AGENT, "session_id": 7}},
        {"status": "failed", "agent": AGENT, "round": 2},
        {"status": "failed", "agent": AGENT, "error": {"metadata": {"subtype": "unknown_session"}}},
        *({"status": "failed", "agent": AGENT, "error": {"klass": klass}} for klass in sorted(SPOILING)),
    ],
)
def test_a_new_conversation_is_begun_otherwise(before):
    assert session_for(record(before), agent="claude") == ""


@pytest.mark.parametrize(
    ("before", "had"),
    [
        ({"agent": AGENT}, True),
        ({"agent": {"name": "claude"}}, False),
        ({}, False),
        ({"agent": AGENT, "round": 2}, False),
    ],
)
def test_who_spoke_before_has_to_be_handed_over_from(before, had):
    assert had_session(record(before)) is had


def test_work_is_compared_with_the_first_commit_of_its_round():
    attempts = [
        {"round": 1, "agent": {"base": "old"}},
        {"round": 2, "agent": {"base": ""}},
        {"round": 2, "agent": None},
        {"round": 2, "agent": {"base": "first"}},
        {"round": 2, "agent": {"base": "second"}},
    ]

    assert base_of(record(*attempts, round_number=2), default="now") == "first"
    assert base_of(record(), default="now") == "now"


@pytest.mark.parametrize(
    ("failure", "is_lost"),
    [
        (FailedRun(subtype="unknown_session"), True),
        (FailedRun(text="No conversation found with session ID: x"), True),
        (FailedRun(text="Error: no rollout found for thread id x"), True),
        (FailedRun(text="Session not found"), True),
        (FailedRun(text="session 0199-ab not found"), True),
        (FailedRun(text="Invalid session identifier"), True),
        (FailedRun(text="failed to resume the session"), True),
        (FailedRun(text="file not found"), False),
        (FailedRun(text="You've hit your session limit"), False),
    ],
)
def test_a_conversation_that_is_not_known_is_recognised(failure, is_lost):
    assert is_unknown_session(failure) is is_lost
