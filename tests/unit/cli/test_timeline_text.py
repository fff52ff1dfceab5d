"""When each phase was worked on, as bars."""

from __future__ import annotations

import pytest

from adws.adw_modules.document import AttemptRecord, PhaseRecord
from adws.cli import demo
from tests.unit.state_cases import a_document


def at(seconds: float) -> str:
    return f"2026-01-31T09:00:{seconds:09.6f}Z"


def attempt(number: int, start: float, end: float | None, status: str = "succeeded") -> AttemptRecord:
    return AttemptRecord(number=number, status=status, started_at=at(start), ended_at=None if end is None else at(end))


def drawn(*phases: PhaseRecord) -> list[str]:
    document = a_document(created_at=at(0), updated_at=at(48), phases=list(phases))
    return demo.timeline(document)


def test_an_attempt_stands_at_its_place_in_time():
    """48 seconds are 48 columns."""
    plan, build, whole = drawn(
        PhaseRecord(name="plan", state="planning", attempts=[attempt(1, 0, 11.5)]),
        PhaseRecord(name="build", state="building", attempts=[attempt(1, 12, 23.5, "failed"), attempt(2, 36, 48)]),
    )

    assert plan == "plan   |" + "#" * 12 + " " * 36 + "|  11 s"
    assert build == "build  |" + " " * 12 + "x" * 12 + " " * 12 + "#" * 12 + "|  23 s, 2 attempts"
    assert whole.split() == ["48", "s", "in", "all;", "x", "failed"]


@pytest.mark.parametrize(
    ("status", "mark", "legend"),
    [
        ("succeeded", "#", "in all"),
        ("failed", "x", "x failed"),
        ("interrupted", "!", "! cut off"),
        ("suspended", "-", "- ended on order"),
        ("parked", "-", "- ended on order"),
    ],
)
def test_how_an_attempt_ended_is_seen(status, mark, legend):
    line, whole = drawn(PhaseRecord(name="build", state="building", attempts=[attempt(1, 0, 10, status)]))

    assert line.startswith(f"build  |{mark * 48}|")
    assert whole.endswith(legend)


def test_an_attempt_without_an_end_goes_on_until_the_last_write():
    line, whole = drawn(PhaseRecord(name="build", state="building", attempts=[attempt(1, 24, None, "running")]))

    assert line == "build  |" + " " * 24 + "." * 24 + "|  24 s"
    assert whole.strip() == "48 s in all"


def test_a_failure_is_seen_where_a_success_shares_its_column():
    line, _ = drawn(
        PhaseRecord(name="build", state="building", attempts=[attempt(1, 12, 12.4, "failed"), attempt(2, 12.5, 48)])
    )

    assert line.startswith("build  |" + " " * 12 + "x" + "#" * 35 + "|")


def test_an_attempt_of_no_time_is_seen():
    line, _ = drawn(PhaseRecord(name="build", state="building", attempts=[attempt(1, 0, 0)]))

    assert "#" in line


def test_what_was_never_begun_has_no_line():
    assert drawn(PhaseRecord(name="build", state="building")) == []
