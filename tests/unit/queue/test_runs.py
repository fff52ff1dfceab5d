"""A run that is asked for is checked once, where it comes in."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import InvalidAdwId, UsageError
from adws.adw_modules.queue.model import (
    FINAL_RUNS,
    LIVE_RUNS,
    MAX_PRIORITY,
    NewRun,
    RunState,
    check_final,
    check_new_run,
    check_run_of,
)

RUN = NewRun(adw_id="1a2b3c4d")


def test_every_state_is_waiting_with_a_worker_or_final():
    assert {RunState.PENDING} | LIVE_RUNS | FINAL_RUNS == set(RunState)
    assert not LIVE_RUNS & FINAL_RUNS


def test_the_moment_of_a_run_gets_the_one_spelling_that_sorts():
    run = check_new_run(NewRun(adw_id="1a2b3c4d", not_before="2026-01-31T10:00:00+01:00", priority=3))

    assert (run.not_before, run.priority) == ("2026-01-31T09:00:00.000000Z", 3)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "dance"}, "'dance' is no kind of run; use one of start, resume"),
        ({"priority": MAX_PRIORITY + 1}, "a priority is a number from -1000000 to 1000000, not 1000001"),
        ({"priority": -MAX_PRIORITY - 1}, "not -1000001"),
        ({"not_before": "tomorrow"}, "'tomorrow' is no moment; write it like 2026-01-31T09:00:00Z"),
        ({"not_before": "0001-01-01T00:00:00+14:00"}, "is no moment"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_a_sentence(fields, said):
    with pytest.raises(UsageError, match=said):
        check_new_run(NewRun(**{"adw_id": "1a2b3c4d", **fields}))


def test_a_run_of_no_workflow_is_refused():
    with pytest.raises(InvalidAdwId):
        check_new_run(NewRun(adw_id="../elsewhere"))


def test_a_workflow_comes_with_a_run_of_its_own_or_none():
    check_run_of("1a2b3c4d", None)
    check_run_of("1a2b3c4d", RUN)
    with pytest.raises(UsageError, match="a run of 1a2b3c4d cannot be enqueued with workflow 2b3c4d5e"):
        check_run_of("2b3c4d5e", RUN)
    with pytest.raises(UsageError, match="is no kind of run"):
        check_run_of("1a2b3c4d", NewRun(adw_id="1a2b3c4d", kind="dance"))


@pytest.mark.parametrize("state", sorted(set(RunState) - FINAL_RUNS, key=str))
def test_a_run_ends_in_no_other_state(state):
    with pytest.raises(UsageError, match=f"cannot end as {state.value}; it ends as one of completed, failed, stopped"):
        check_final(state)
