"""How far the steps are that a phase waits for, as the status and the explanation say it."""

from __future__ import annotations

from datetime import UTC, datetime

from adws.adw_modules.errors import ExecutionNotFound
from adws.adw_modules.steps.views import ExecutionLine, IterationDetail, IterationLine
from adws.cli import views as cli_views

NOW = datetime(2026, 1, 31, 9, 0, tzinfo=UTC)
LINE = ExecutionLine(
    execution_id="1a2b3c4d.build.1.fetch",
    adw_id="1a2b3c4d",
    phase="build",
    attempt_number=1,
    step="fetch",
    state="running",
    reason="",
    total=100,
    succeeded=30,
    failed=2,
    cancelled=5,
    running=4,
    waiting=1,
    next_retry="2026-01-31T10:00:00.000000Z",
    created_at="2026-01-31T08:00:00.000000Z",
    ended_at=None,
)


def test_done_counts_whatever_way_an_iteration_ended():
    assert LINE.done == LINE.to_json()["done"] == 37


def test_the_line_of_a_step_has_its_counts_and_its_next_retry():
    (line,) = cli_views.execution_lines([LINE.to_json()], NOW)

    assert line == (
        "step fetch: 37 of 100 done, 2 failed, 4 in flight, 1 wait for another call, "
        "next retry 2026-01-31 10:00:00 UTC (in 1 h) (1a2b3c4d.build.1.fetch)"
    )


def test_what_is_not_known_yet_is_a_question_mark_and_nothing_is_said_of_no_retry():
    (line,) = cli_views.execution_lines([{**LINE.to_json(), "total": None, "waiting": 0, "next_retry": None}], NOW)

    assert line == "step fetch: 37 of ? done, 2 failed, 4 in flight (1a2b3c4d.build.1.fetch)"


def test_a_phase_that_waits_for_others_has_no_moment():
    phase = {"name": "build", "status": "retry_wait", "retry_at": None, "wait_reason": "waits for step fetch"}

    assert cli_views.wait_lines([phase, {**phase, "status": "running"}], NOW) == [
        "waiting: build: waits for step fetch"
    ]


def test_an_iteration_is_told_with_its_calls():
    line = IterationLine(
        index=3,
        state="failed",
        attempts=2,
        page=1,
        next_at=None,
        why="",
        error="no",
        started_at=None,
        ended_at=None,
        element='"abc',
        result="",
    )

    shown = IterationDetail(line=line, element="abc", result=None, call={}, pages=(5, 7), calls=({"x": 1},)).to_json()

    assert (shown["index"], shown["element"], shown["pages"], shown["calls"]) == (3, "abc", [5, 7], [{"x": 1}])
    assert shown["error"] == "no"


def test_what_is_not_there_is_named():
    assert str(ExecutionNotFound("x")).startswith("there is no execution x:")
    assert str(ExecutionNotFound("x", 4)).startswith("there is no iteration 4 of execution x:")
