"""How far the steps are that a phase waits for, as the status and the explanation say it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from adws.adw_modules import views
from adws.adw_modules.errors import ExecutionNotFound
from adws.adw_modules.steps.views import ExecutionLine, IterationDetail, IterationLine
from adws.cli import views as cli_views
from tests.unit.timeline_cases import document, phase

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


def status(*executions, phases=()):
    view = views.workflow(document(*phases))
    return cli_views.status_lines(cli_views.Status(view=view, executions=executions), NOW)


def test_done_counts_whatever_way_an_iteration_ended():
    assert LINE.done == LINE.to_json()["done"] == 37


def test_the_line_of_a_step_has_its_counts_and_its_next_retry():
    assert (
        "step fetch: 37 of 100 done, 2 failed, 4 in flight, 1 wait for another call, "
        "next retry 2026-01-31 10:00:00 UTC (in 1 h) (1a2b3c4d.build.1.fetch)"
    ) in status(LINE)


def test_what_is_not_known_yet_is_a_question_mark_and_nothing_is_said_of_no_retry():
    fresh = replace(LINE, total=None, waiting=0, next_retry=None)

    assert "step fetch: 37 of ? done, 2 failed, 4 in flight (1a2b3c4d.build.1.fetch)" in status(fresh)


def test_a_phase_that_waits_for_others_has_no_moment():
    phases = [phase("build", status=name, wait_reason="waits for step fetch") for name in ("retry_wait", "running")]

    lines = [line for line in status(phases=phases) if line.startswith("waiting:")]

    assert lines == ["waiting: build: waits for step fetch"]


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
