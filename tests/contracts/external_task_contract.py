"""What every `ExternalTasks` keeps: one claim at a time, one end, and nothing from those who lost it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.errors import ClaimHeld, ClaimLost, TaskNotFound
from adws.adw_modules.events import Event
from adws.adw_modules.external_tasks import EXPIRED, OPEN, REPORTED, ExternalReport, ExternalTask

ADW_ID = "1a2b3c4d"
TASK = f"{ADW_ID}.build.1"
WELL = ExternalReport(is_ok=True, report_id="r1", summary="all green", result={"tests": 12})
END = Event(event_type="action_completed", event_id="end", status="COMPLETED", result={"tests": 12})
BROKEN = ExternalReport(is_ok=False, report_id="r1", error={"message": "two tests failed", "exit_code": 1})


class ExternalTaskContract:
    """A suite gives `tasks`, `clock`, `told` (the events so far, by id) and `woken` (whether the run is due)."""

    @pytest.fixture
    def new(self, clock):
        def make(number: int = 1, *, seconds: float = 3600.0, **changes) -> ExternalTask:
            values = {
                "task_id": f"{ADW_ID}.build.{number}",
                "adw_id": ADW_ID,
                "phase": "build",
                "round": 1,
                "attempt_number": number,
                "catalog_id": "tried@7",
                "deadline": timestamps.to_text(clock.now() + timedelta(seconds=seconds)),
            }
            return ExternalTask(**{**values, **changes})

        return make

    @pytest.fixture
    def task(self, tasks, new):
        return tasks.open(new())

    # --- storing -----------------------------------------------------------------------------------------------

    def test_a_task_is_kept_as_it_was_asked_for(self, tasks, new, clock):
        stored = tasks.open(new())

        assert stored == tasks.get(TASK) == tasks.latest(ADW_ID, "build")
        assert (stored.state, stored.claims, stored.created_at) == (OPEN, 0, timestamps.to_text(clock.now()))

    def test_opening_it_again_changes_nothing(self, tasks, new, clock):
        stored = tasks.open(new())
        clock.advance(60.0)

        assert tasks.open(new()) == stored

    def test_the_newest_task_of_a_phase_is_the_latest(self, tasks, new, clock):
        tasks.open(new(1))
        clock.advance(1.0)
        tasks.open(new(2))
        tasks.open(new(9, phase="test"))

        assert tasks.latest(ADW_ID, "build").attempt_number == 2
        assert tasks.latest(ADW_ID, "plan") is None

    def test_lists_show_the_newest_first_and_only_what_was_asked_for(self, tasks, new, clock):
        for number in (1, 2):
            tasks.open(new(number))
            clock.advance(1.0)
        tasks.open(new(3, adw_id="ffffffff"))
        tasks.expire(TASK)

        assert [task.attempt_number for task in tasks.page()] == [3, 2, 1]
        assert [task.attempt_number for task in tasks.page(only_open=True)] == [3, 2]
        assert [task.attempt_number for task in tasks.page(adw_id=ADW_ID)] == [2, 1]
        assert [task.attempt_number for task in tasks.page(adw_id=ADW_ID, only_open=True)] == [2]
        assert [task.attempt_number for task in tasks.page(limit=1)] == [3]

    def test_another_attempt_goes_on_with_it(self, tasks, task):
        claimed = tasks.claim(TASK, worker="ci", seconds=60.0)

        adopted = tasks.adopt(task, attempt_number=2)

        assert (adopted.attempt_number, adopted.claims, adopted.worker) == (2, 1, "ci")
        assert tasks.get(TASK) == adopted
        assert tasks.heartbeat(TASK, claimed.claims).attempt_number == 2

    def test_what_is_not_there_is_named(self, tasks):
        assert tasks.get("nothing") is None
        assert not tasks.expire("nothing")
        for ask in (
            lambda: tasks.claim("nothing", worker="", seconds=60.0),
            lambda: tasks.heartbeat("nothing", 1),
            lambda: tasks.tell("nothing", 1, END),
            lambda: tasks.report("nothing", 1, WELL, END),
        ):
            with pytest.raises(TaskNotFound, match="there is no task nothing"):
                ask()

    # --- claims ------------------------------------------------------------------------------------------------

    def test_a_claim_has_a_number_that_grows_and_is_told_of(self, tasks, task, clock, told):
        first = tasks.claim(TASK, worker="ci-1", seconds=60.0)
        clock.advance(61.0)
        second = tasks.claim(TASK, worker="ci-2", seconds=60.0)

        assert (first.claims, second.claims, second.worker) == (1, 2, "ci-2")
        assert [event.event_type for event in told().values()] == ["action_started", "action_started"]
        event = told()[f"{TASK}.claim-2"]
        assert (event.adw_id, event.execution_id, event.node_id, event.catalog_id) == (
            ADW_ID,
            TASK,
            "build",
            "tried@7",
        )
        assert event.meta["queue"] == {"queue_id": TASK, "worker_id": "ci-2", "claim": 2}

    def test_a_second_claim_is_refused_while_the_first_lives(self, tasks, task, clock):
        tasks.claim(TASK, worker="ci-1", seconds=60.0)
        clock.advance(59.0)

        with pytest.raises(ClaimHeld, match="is with ci-1 until"):
            tasks.claim(TASK, worker="ci-2", seconds=60.0)

    def test_whoever_has_no_name_is_nobody_twice(self, tasks, task):
        tasks.claim(TASK, worker="", seconds=60.0)

        with pytest.raises(ClaimHeld):
            tasks.claim(TASK, worker="", seconds=60.0)

    def test_a_worker_that_is_started_again_takes_its_own_claim_over(self, tasks, task):
        tasks.claim(TASK, worker="ci-1", seconds=60.0)

        again = tasks.claim(TASK, worker="ci-1", seconds=60.0)

        assert again.claims == 2
        with pytest.raises(ClaimLost, match="claim 1 is not the last one, ci-1 has claim 2"):
            tasks.heartbeat(TASK, 1)

    def test_a_heartbeat_keeps_the_others_away(self, tasks, task, clock):
        tasks.claim(TASK, worker="ci-1", seconds=60.0)
        for _ in range(3):
            clock.advance(50.0)
            tasks.heartbeat(TASK, 1)

        with pytest.raises(ClaimHeld):
            tasks.claim(TASK, worker="ci-2", seconds=60.0)

    def test_what_is_told_is_a_heartbeat_too(self, tasks, task, clock, told):
        tasks.claim(TASK, worker="ci-1", seconds=60.0)
        clock.advance(50.0)
        step = Event(event_type="step_started", event_id="told-1", data={"step": "compile"})

        assert tasks.tell(TASK, 1, step)
        assert not tasks.tell(TASK, 1, step)

        assert tasks.get(TASK).claim_until == timestamps.to_text(clock.now() + timedelta(seconds=60))
        assert told()[f"{TASK}.told-1"].data == {"step": "compile"}

    @pytest.mark.parametrize("claim", [0, 1, 2, 7])
    def test_nobody_is_believed_before_a_claim(self, tasks, task, claim):
        with pytest.raises(ClaimLost, match="nobody has claimed it"):
            tasks.heartbeat(TASK, claim)

    # --- the end -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("report", [WELL, BROKEN])
    def test_a_report_ends_the_task_and_wakes_the_run(self, tasks, task, told, woken, report):
        tasks.claim(TASK, worker="ci-1", seconds=60.0)
        assert not woken()

        assert tasks.report(TASK, 1, report, END)

        stored = tasks.get(TASK)
        assert (stored.state, stored.report, stored.claim_until) == (REPORTED, report, "")
        assert stored.ended_at is not None
        assert told()[f"{TASK}.end"].result == {"tests": 12}
        assert woken()

    def test_the_same_report_again_changes_nothing_and_says_so(self, tasks, task, clock):
        tasks.claim(TASK, worker="ci-1", seconds=60.0)
        tasks.report(TASK, 1, WELL, END)
        stored = tasks.get(TASK)
        clock.advance(99999.0)  # also when the deadline is long over

        assert not tasks.report(TASK, 1, WELL, END)
        assert tasks.get(TASK) == stored

    def test_another_report_is_too_late(self, tasks, task):
        tasks.claim(TASK, worker="ci-1", seconds=60.0)
        tasks.report(TASK, 1, WELL, END)

        with pytest.raises(ClaimLost, match="its end was reported already"):
            tasks.report(TASK, 1, BROKEN, END)
        with pytest.raises(ClaimLost):
            tasks.claim(TASK, worker="ci-2", seconds=60.0)
        assert tasks.get(TASK).report == WELL

    def test_a_late_report_of_a_former_claim_changes_nothing(self, tasks, task, clock, told, woken):
        tasks.claim(TASK, worker="ci-1", seconds=60.0)
        clock.advance(61.0)
        tasks.claim(TASK, worker="ci-2", seconds=60.0)
        before = tasks.get(TASK), told()

        for late in (
            lambda: tasks.report(TASK, 1, WELL, END),
            lambda: tasks.tell(TASK, 1, END),
            lambda: tasks.heartbeat(TASK, 1),
        ):
            with pytest.raises(ClaimLost, match=f"task {TASK} is not yours any more: claim 1 is not the last one"):
                late()

        assert (tasks.get(TASK), told()) == before
        assert not woken()

    def test_a_claim_that_fell_silent_may_report_while_nobody_else_has_it(self, tasks, task, clock):
        tasks.claim(TASK, worker="ci-1", seconds=60.0)
        clock.advance(600.0)

        assert tasks.report(TASK, 1, WELL, END)

    def test_after_the_deadline_nobody_gets_in(self, tasks, task, clock, woken):
        tasks.claim(TASK, worker="ci-1", seconds=60.0)
        clock.advance(3600.0)

        for late in (
            lambda: tasks.report(TASK, 1, WELL, END),
            lambda: tasks.heartbeat(TASK, 1),
            lambda: tasks.claim(TASK, worker="ci-2", seconds=60.0),
        ):
            with pytest.raises(ClaimLost, match=r"its deadline .* is over"):
                late()
        assert not woken()

    def test_a_task_is_given_up_or_reported_on_never_both(self, tasks, task):
        tasks.claim(TASK, worker="ci-1", seconds=60.0)

        assert tasks.expire(TASK)
        assert not tasks.expire(TASK)

        assert tasks.get(TASK).state == EXPIRED
        with pytest.raises(ClaimLost, match="deadline"):
            tasks.report(TASK, 1, WELL, END)

    def test_what_was_reported_is_not_given_up(self, tasks, task):
        tasks.claim(TASK, worker="ci-1", seconds=60.0)
        tasks.report(TASK, 1, WELL, END)

        assert not tasks.expire(TASK)
        assert tasks.get(TASK).state == REPORTED
