"""The bars that the demo ends with."""

from __future__ import annotations

from datetime import UTC, datetime

from adws.adw_modules.document import AttemptRecord, PhaseRecord
from adws.adw_modules.reports.timeline import timeline
from adws.cli import demo
from tests.unit.state_cases import a_document


def at(seconds: float) -> str:
    return f"2026-01-31T09:00:{seconds:09.6f}Z"


def attempt(number: int, start: float, end: float, status: str = "succeeded") -> AttemptRecord:
    return AttemptRecord(number=number, status=status, started_at=at(start), ended_at=at(end))


def test_attempts_are_drawn_at_their_place_in_time_with_how_they_ended():
    """48 seconds are 48 columns; where two attempts share a column the failure is seen."""
    phases = [
        PhaseRecord(name="plan", state="planning", attempts=[attempt(1, 0, 11.5)]),
        PhaseRecord(
            name="build",
            state="building",
            attempts=[attempt(1, 12, 23.4, "failed"), attempt(2, 23.5, 47.9), attempt(3, 48, 48, "interrupted")],
        ),
        PhaseRecord(name="test", state="testing"),
    ]
    document = a_document(created_at=at(0), updated_at=at(48), phases=phases)

    plan, build, whole = demo.drawn(timeline(document, now=datetime(2026, 1, 31, 9, 0, 48, tzinfo=UTC)))

    assert plan == "plan   |" + "#" * 12 + " " * 36 + "|  11 s"
    assert build == "build  |" + " " * 12 + "x" * 12 + "#" * 23 + "!" + "|  35 s, 3 attempts"
    assert whole.split() == ["48", "s", "in", "all;", "x", "failed,", "!", "cut", "off"]
