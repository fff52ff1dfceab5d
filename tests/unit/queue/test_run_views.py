"""How `adw queue runs` shows a run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from adws.adw_modules.errors import RunLost, RunNotFound
from adws.adw_modules.interfaces import OwnerRecord, Verdict
from adws.adw_modules.queue.model import Run, RunState
from adws.cli import runs

NOW = datetime(2026, 1, 31, 9, tzinfo=UTC)
OWNER = OwnerRecord(
    token="t", host="box", machine="m", boot_id="b", pid_namespace="n", pid=12, start_ticks=3, role="worker"
)
RUN = Run(
    run_id=7,
    adw_id="1a2b3c4d",
    kind="start",
    state=RunState.PENDING,
    priority=2,
    not_before="",
    attempts=0,
    token=0,
    owner="",
    seconds_left=0.0,
    reason="",
    payload={"issue": 42},
    asked_by="ada",
    created_at="2026-01-31T08:55:00.000000Z",
    updated_at="2026-01-31T08:55:00.000000Z",
)


def test_the_errors_say_which_run_and_where_to_look():
    assert str(RunLost(7)) == "run 7 is not yours any more: adw queue runs shows who has it"
    assert str(RunNotFound(8)) == "there is no run 8: adw queue runs shows those there are"


# --- how it is shown -------------------------------------------------------------------------------------------


def shown(run: Run, verdict: Verdict = Verdict.UNKNOWN, **more) -> str:
    data = runs.run_data(run, verdict=verdict, now=NOW)
    return runs.run_lines([data], next_page=None, **more)[-1]


@pytest.mark.parametrize(
    ("left", "verdict", "words"),
    [
        (12.4, Verdict.ALIVE, "worker 12@box, alive, claim 12 s left"),
        (-3.0, Verdict.DEAD, "worker 12@box, dead, claim over"),
        (0.0, Verdict.UNKNOWN, "worker 12@box, unknown, claim over"),
    ],
)
def test_a_run_with_a_worker_shows_whose_it_is_and_whether_that_lives(left, verdict, words):
    run = replace(RUN, state=RunState.RUNNING, owner=OWNER.to_text(), seconds_left=left)

    line = shown(run, verdict)

    assert words in line
    assert "  now" not in line


def test_a_worker_whose_record_cannot_be_read_is_said_so():
    data = runs.run_data(replace(RUN, state=RunState.CLAIMED, owner="?"), verdict=Verdict.UNKNOWN, now=NOW)

    assert data["owner"] == "a worker whose record cannot be read"
    assert data["liveness"] == "unknown"


def test_the_data_has_every_field_of_a_run_but_its_token():
    data = runs.run_data(RUN, verdict=Verdict.UNKNOWN, now=NOW)

    assert {name for name in Run.__slots__ if name not in data} == {"token", "seconds_left"}
    assert (data["age_seconds"], data["payload"], data["not_before"], data["owner"]) == (
        300.0,
        {"issue": 42},
        None,
        None,
    )
    assert (data["liveness"], data["claim_seconds_left"]) == ("none", None)


def test_no_runs_is_said_and_a_full_page_says_how_to_go_on():
    data = runs.run_data(RUN, verdict=Verdict.UNKNOWN, now=NOW + timedelta(days=2))

    assert runs.run_lines([], next_page=None) == ["no runs"]
    assert runs.run_lines([data], next_page=7)[-1] == "older ones: adw queue runs --before 7"


def test_what_to_do_about_a_dead_run_is_said_until_it_was_asked_for_again():
    dead, again = replace(RUN, state=RunState.DEAD), replace(RUN, run_id=8, kind="retry")
    other = replace(dead, run_id=6, adw_id="5e6f7a8b")
    rows = [runs.run_data(run, verdict=Verdict.UNKNOWN, now=NOW) for run in (again, dead, other)]

    advice = [line for line in runs.run_lines(rows, next_page=None) if line.startswith("dead: ")]

    assert [line.split()[-3] for line in advice] == ["5e6f7a8b"]
    assert len([line for line in runs.run_lines(rows[1:], next_page=None) if line.startswith("dead: ")]) == 2
