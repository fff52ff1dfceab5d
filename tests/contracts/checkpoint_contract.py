"""What every CheckpointStore keeps."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from functools import partial

import pytest

from adws.adw_modules.errors import Fenced
from adws.testing import START
from tests.contracts.worlds import FIRST, MOMENT, SECOND, make_owner


class CheckpointContract:
    """Mix in and give `checkpoints` and the `world` whose workflows they belong to."""

    @pytest.fixture
    def add(self, checkpoints):
        numbers = iter(range(1, 1000))

        def add(task_id, *, keep=10, step_name=None, fence=None, **data):
            name = f"id-{next(numbers)}"
            return checkpoints.add(name, task_id, json.dumps(data), step_name=step_name, keep=keep, fence=fence)

        return add

    def test_what_was_added_last_is_the_latest(self, checkpoints, add):
        add("task", step=1)
        added = add("task", step=2, step_name="second")
        add("other", step=9)

        result = checkpoints.latest("task")

        assert result == added
        assert (result.data, result.step_name, result.created_at) == ({"step": 2}, "second", MOMENT)
        assert (result.checkpoint_id, result.task_id, result.adw_id) == ("id-2", "task", "")

    def test_a_task_without_checkpoints_has_no_latest(self, checkpoints):
        assert checkpoints.latest("task") is None
        assert checkpoints.all_of("task") == ()

    def test_a_clock_that_goes_back_does_not_change_which_is_the_latest(self, checkpoints, add, clock):
        add("task", step=1)
        clock.set(START - timedelta(hours=1))
        add("task", step=2)

        assert [row.data["step"] for row in checkpoints.all_of("task")] == [1, 2]
        assert checkpoints.latest("task").data == {"step": 2}

    def test_the_sequence_grows_also_after_the_newest_is_gone(self, checkpoints, add):
        first = add("task")
        second = add("other")
        checkpoints.delete("other")
        third = add("task")

        assert first.sequence < second.sequence < third.sequence

    def test_only_the_newest_of_a_task_are_kept(self, checkpoints, add):
        add("other", step=0)
        for step in range(5):
            add("task", step=step, keep=3)

        assert [row.data["step"] for row in checkpoints.all_of("task")] == [2, 3, 4]
        assert len(checkpoints.all_of("other")) == 1

    def test_deleting_tells_how_many_there_were_and_leaves_other_tasks_alone(self, checkpoints, add):
        for task in ("task", "task", "task", "other"):
            add(task)

        assert (checkpoints.delete("task"), checkpoints.delete("task")) == (3, 0)
        assert checkpoints.latest("task") is None
        assert checkpoints.latest("other") is not None

    def test_what_is_stored_is_nobody_elses_to_change(self, checkpoints, add):
        add("task", steps=[1]).data["steps"].append(2)
        checkpoints.latest("task").data["steps"].append(3)

        assert checkpoints.latest("task").data == {"steps": [1]}

    def test_any_text_comes_back_as_it_is(self, checkpoints, add):
        data = {"nul": "\x00", "half": "\ud800", "quote": "'\"%s :x {now}", "far": "\U0001f9ea", "": [None, 1.5, True]}

        add("task", **data)

        assert checkpoints.latest("task").data == data

    def test_of_many_threads_that_add_at_once_none_is_lost(self, checkpoints):
        start = threading.Barrier(6)

        def compete(number: int) -> None:
            start.wait()
            checkpoints.add(f"id-{number}", "task", "{}", step_name=None, keep=100)

        threads = [threading.Thread(target=partial(compete, number)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        result = checkpoints.all_of("task")
        assert {row.checkpoint_id for row in result} == {f"id-{number}" for number in range(6)}
        assert len({row.sequence for row in result}) == 6

    # --- of phases ---------------------------------------------------------------------------------------------

    @pytest.fixture
    def fence(self, world):
        world.add_row(FIRST)
        return world.leases.take(FIRST, make_owner(), ttl_seconds=30.0).lease.fence

    def test_a_checkpoint_with_a_fence_belongs_to_its_workflow(self, checkpoints, add, fence):
        added = add(f"{FIRST}/build", fence=fence)
        add(f"{SECOND}/build")

        assert added.adw_id == FIRST
        assert checkpoints.workflows() == (FIRST,)

    def test_whoever_lost_the_workflow_neither_stores_nor_deletes(self, checkpoints, add, fence, world):
        task = f"{FIRST}/build"
        kept = add(task, fence=fence)
        world.leases.take(FIRST, make_owner("two"), ttl_seconds=30.0, dead_fence=fence)

        with pytest.raises(Fenced, match=f"fence {fence} is no longer valid; the present owner has {fence + 1}"):
            add(task, keep=1, fence=fence)
        with pytest.raises(Fenced):
            checkpoints.delete(task, fence=fence)

        assert checkpoints.all_of(task) == (kept,)
        assert checkpoints.delete(task, fence=fence + 1) == 1

    def test_a_workflow_that_nobody_knows_has_no_fence_to_store_under(self, checkpoints, add):
        with pytest.raises(Fenced):
            add(f"{SECOND}/build", fence=1)

        assert checkpoints.workflows() == ()

    def test_forgetting_a_workflow_takes_all_its_phases_and_nothing_else(self, checkpoints, add, fence):
        for phase in ("plan", "build", "build/2"):
            add(f"{FIRST}/{phase}", fence=fence)
        add(f"{FIRST}/mine")

        lines = [(line.task_id, line.size) for line in checkpoints.lines_of(FIRST)]
        assert lines == [(f"{FIRST}/{phase}", len("{}")) for phase in ("build/2", "build", "plan")]
        assert checkpoints.lines_of(SECOND) == checkpoints.lines_of("") == ()
        assert (checkpoints.forget(FIRST), checkpoints.forget(FIRST)) == (3, 0)
        assert checkpoints.lines_of(FIRST) == ()
        assert checkpoints.workflows() == ()
        assert checkpoints.latest(f"{FIRST}/mine") is not None, "a library user's, however it is called"
