"""What every RunQueue keeps."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.errors import InvalidAdwId, RunLost, RunNotFound, StateUnserialisable, UsageError
from adws.adw_modules.queue.model import DELIVERY, DELIVERY_PRIORITY, LIVE_RUNS, NewRun, Run, RunState
from adws.adw_modules.workflow.requirements import Requirements
from tests.contracts.worlds import FIRST, SECOND, THIRD, make_owner

TTL = 30.0
#: What a worker says about the run it has.
REPORTS = {
    "begin": lambda queue, run: queue.begin(run),
    "renew": lambda queue, run: queue.renew(run, ttl_seconds=TTL),
    "requeue": lambda queue, run: queue.requeue(run),
    "finish": lambda queue, run: queue.finish(run, RunState.COMPLETED),
}


def enqueue(world, adw_id=FIRST, **fields) -> Run:
    return world.runs.enqueue(NewRun(adw_id=adw_id, **fields))


def claim(world, name="one", **more) -> Run | None:
    return world.runs.claim(make_owner(name), ttl_seconds=TTL, **more)


def later(world, seconds: float) -> str:
    return timestamps.to_text(world.clock.now() + timedelta(seconds=seconds))


class RunQueueContract:
    """Mix in and give a `world` fixture."""

    # --- waiting -----------------------------------------------------------------------------------------------

    def test_a_run_is_stored_as_it_was_asked_for(self, world):
        now = timestamps.to_text(world.clock.now())
        due = later(world, 60)

        run = enqueue(
            world, kind="retry", priority=-4, not_before=due, payload={"from": ["plan", 1.5, None]}, asked_by="ada\x00"
        )

        expected = Run(
            run_id=run.run_id,
            adw_id=FIRST,
            kind="retry",
            state=RunState.PENDING,
            priority=-4,
            not_before=due,
            attempts=0,
            token=0,
            owner="",
            seconds_left=0.0,
            reason="",
            payload={"from": ["plan", 1.5, None]},
            asked_by=run.asked_by,
            created_at=now,
            updated_at=now,
        )
        assert run == expected
        assert run.asked_by.startswith("ada")
        assert world.runs.get(run.run_id) == run

    def test_the_unfinished_run_of_a_workflow_is_the_only_one(self, world):
        first = enqueue(world, priority=1)

        assert enqueue(world, kind="retry", priority=9) == first
        claimed = claim(world)
        assert enqueue(world, kind="retry").run_id == claimed.run_id
        world.runs.ask_to_stop(first.run_id)
        assert enqueue(world).state is RunState.STOPPING
        assert len(world.runs.page()) == 1

    @pytest.mark.parametrize("end", [RunState.COMPLETED, RunState.FAILED, RunState.STOPPED])
    def test_after_its_end_a_workflow_may_have_another_run(self, world, end):
        enqueue(world)
        old = world.runs.finish(claim(world), end, reason="enough")

        new = enqueue(world, kind="resume")

        assert new.run_id > old.run_id
        assert [run.state for run in world.runs.of_workflow(FIRST)] == [RunState.PENDING, end]

    def test_other_spellings_of_a_moment_are_stored_in_the_one_that_sorts(self, world):
        run = enqueue(world, not_before="2030-01-31T10:00:00+01:00")

        assert run.not_before == "2030-01-31T09:00:00.000000Z"
        claimed = claim(world, run_id=run.run_id)
        assert world.runs.requeue(claimed, not_before="2031-01-01").not_before == "2031-01-01T00:00:00.000000Z"

    def test_what_cannot_be_a_run_is_refused_and_nothing_is_stored(self, world):
        for fields, error in [
            ({"adw_id": "../etc"}, InvalidAdwId),
            ({"kind": "dance"}, UsageError),
            ({"priority": 10**7}, UsageError),
            ({"not_before": "soon"}, UsageError),
            ({"payload": {"size": float("nan")}}, StateUnserialisable),
            ({"payload": {"path": object()}}, StateUnserialisable),
        ]:
            with pytest.raises(error):
                world.runs.enqueue(NewRun(**{"adw_id": FIRST, **fields}))

            assert world.runs.page() == (), fields

    # --- claiming ----------------------------------------------------------------------------------------------

    def test_nothing_waits_in_an_empty_queue(self, world):
        assert claim(world) is None
        assert world.runs.seconds_to_next() is None

    def test_a_claimed_run_names_its_worker_and_its_end(self, world):
        run = enqueue(world)

        claimed = claim(world, "one")

        assert (claimed.run_id, claimed.state) == (run.run_id, RunState.CLAIMED)
        assert (claimed.attempts, claimed.token, claimed.owner) == (1, 1, make_owner("one").to_text())
        assert claimed.seconds_left == pytest.approx(TTL, abs=1.0)
        world.let_pass(10.0)
        assert world.runs.get(run.run_id).seconds_left == pytest.approx(20.0, abs=1.0)
        world.let_pass(40.0)
        assert world.runs.get(run.run_id).seconds_left == pytest.approx(-20.0, abs=1.0)

    def test_a_run_is_claimed_once(self, world):
        run = enqueue(world)
        claim(world)

        assert claim(world, "two") is None
        assert claim(world, "two", run_id=run.run_id) is None

    def test_a_claim_that_is_over_is_not_claimed_but_taken_back(self, world):
        enqueue(world)
        claim(world)
        world.let_pass(2 * TTL)

        assert claim(world, "two") is None

    def test_the_highest_priority_comes_first_and_among_equals_the_oldest(self, world):
        for number, priority in enumerate([0, 5, -1, 5, 0]):
            enqueue(world, f"0000000{number}", priority=priority)

        order = [claim(world).adw_id for _ in range(5)]

        assert order == [f"0000000{number}" for number in (1, 3, 0, 4, 2)]

    def test_a_run_that_is_given_back_keeps_its_place(self, world):
        """
        What was first stays first: the newest is never served before those that wait longer.
        """
        for adw_id in (FIRST, SECOND, THIRD):
            enqueue(world, adw_id)
        taken = [claim(world) for _ in range(3)]
        for run in reversed(taken):
            world.runs.requeue(run)

        assert [claim(world).adw_id for _ in range(3)] == [FIRST, SECOND, THIRD]

    def test_a_run_that_is_taken_back_keeps_its_place(self, world):
        for adw_id in (FIRST, SECOND, THIRD):
            enqueue(world, adw_id)
        taken = [claim(world), claim(world)]
        for run in reversed(taken):
            world.runs.take_back(run, reason="its worker died")

        assert [claim(world).adw_id for _ in range(3)] == [FIRST, SECOND, THIRD]

    def test_a_run_is_not_claimed_before_its_time(self, world):
        enqueue(world, not_before=later(world, 60), priority=9)
        enqueue(world, SECOND)

        assert claim(world).adw_id == SECOND
        assert claim(world) is None
        world.clock.advance(60)
        assert claim(world).adw_id == FIRST

    def test_whoever_has_room_for_deliveries_only_gets_nothing_else(self, world):
        enqueue(world, priority=DELIVERY_PRIORITY)
        assert claim(world, only_deliveries=True) is None
        late = enqueue(world, SECOND, kind=DELIVERY, priority=DELIVERY_PRIORITY, not_before=later(world, 60))
        assert claim(world, only_deliveries=True) is None
        first = enqueue(world, THIRD, kind=DELIVERY, priority=DELIVERY_PRIORITY)

        assert claim(world, only_deliveries=True).run_id == first.run_id
        assert claim(world, only_deliveries=True) is None
        world.clock.advance(60)
        assert claim(world, only_deliveries=True).run_id == late.run_id
        assert claim(world).adw_id == FIRST

    def test_by_its_id_a_waiting_run_is_claimed_whatever_its_place_and_time(self, world):
        enqueue(world, priority=9)
        run = enqueue(world, SECOND, not_before=later(world, 60))

        claimed = claim(world, run_id=run.run_id)

        assert (claimed.run_id, claimed.token) == (run.run_id, 1)

    @pytest.mark.parametrize("run_id", [99, 0, -1, 2**80])
    def test_an_id_that_no_run_has_is_not_claimed_and_not_found(self, world, run_id):
        enqueue(world)

        assert claim(world, run_id=run_id) is None
        assert world.runs.get(run_id) is None
        with pytest.raises(RunNotFound, match=str(run_id)):
            world.runs.ask_to_stop(run_id)

    def test_the_token_grows_with_each_claim(self, world):
        enqueue(world)
        tokens = []
        for number in range(5):
            run = claim(world)
            tokens.append(run.token)
            if number % 2:
                world.runs.take_back(run, reason="gone")
            else:
                world.runs.requeue(run)

        assert tokens == [1, 2, 3, 4, 5]
        assert world.runs.of_workflow(FIRST)[0].attempts == 5

    def test_of_many_claimers_each_gets_another_run(self, world):
        for number in range(12):
            enqueue(world, f"000000{number:02}")
        start, claimed = threading.Barrier(4), []

        def compete(name: str) -> None:
            start.wait()
            while (run := claim(world, name)) is not None:
                claimed.append(run.run_id)

        threads = [threading.Thread(target=compete, args=(f"worker {number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(claimed) == sorted(run.run_id for run in world.runs.page())
        assert len(set(claimed)) == 12

    def test_of_many_that_enqueue_for_a_workflow_all_get_the_same_run(self, world):
        start, got = threading.Barrier(6), []

        def ask() -> None:
            start.wait()
            got.append(enqueue(world).run_id)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(got) == 6
        assert len(set(got)) == 1

    # --- with a worker -----------------------------------------------------------------------------------------

    def test_a_run_goes_from_claimed_through_running_to_its_end(self, world):
        enqueue(world)
        claimed = claim(world)
        world.clock.advance(1)
        begun = world.runs.begin(claimed)
        world.clock.advance(2)

        ended = world.runs.finish(begun, RunState.FAILED, reason="red tests")

        assert begun.state is RunState.RUNNING
        assert begun.started_at == begun.updated_at > claimed.updated_at
        assert (ended.state, ended.owner, ended.seconds_left) == (RunState.FAILED, "", 0.0)
        assert (ended.reason, ended.started_at) == ("red tests", begun.started_at)
        assert ended.finished_at == ended.updated_at > begun.updated_at
        assert world.runs.get(claimed.run_id) == ended

    def test_renewing_pushes_the_end_out(self, world):
        enqueue(world)
        run = claim(world)
        world.let_pass(20.0)

        renewed = world.runs.renew(run, ttl_seconds=TTL)

        assert renewed.seconds_left == pytest.approx(TTL, abs=1.0)
        assert renewed.state is RunState.CLAIMED

    def test_a_claim_that_is_over_and_that_nobody_took_can_be_renewed(self, world):
        enqueue(world)
        run = claim(world)
        world.let_pass(2 * TTL)

        assert world.runs.renew(run, ttl_seconds=TTL).seconds_left > 0

    def test_a_run_is_given_back_with_a_time_and_a_reason(self, world):
        enqueue(world)
        begun = world.runs.begin(claim(world))
        due = later(world, 60)

        waiting = world.runs.requeue(begun, not_before=due, reason="rate limit")

        assert (waiting.state, waiting.not_before, waiting.reason) == (RunState.PENDING, due, "rate limit")
        assert (waiting.owner, waiting.seconds_left, waiting.finished_at) == ("", 0.0, None)
        world.clock.advance(60)
        again = claim(world, "two")
        assert (again.token, again.attempts, again.reason) == (2, 2, "")
        assert world.runs.begin(again).started_at == begun.started_at, "it was begun once already"

    @pytest.mark.parametrize("moved", ["claimed again", "finished", "waiting"])
    def test_who_does_not_have_the_run_any_more_changes_nothing(self, world, moved):
        enqueue(world)
        old = claim(world, "one")
        if moved == "finished":
            world.runs.finish(old, RunState.COMPLETED)
        else:
            world.runs.take_back(old, reason="gone")
        if moved == "claimed again":
            claim(world, "one")  # the same worker: only the token tells
        before = replace(world.runs.get(old.run_id), seconds_left=0.0)

        for name, report in REPORTS.items():
            with pytest.raises(RunLost) as lost:
                report(world.runs, old)

            assert lost.value.run_id == old.run_id, name
            assert replace(world.runs.get(old.run_id), seconds_left=0.0) == before, name

    @pytest.mark.parametrize("report", REPORTS)
    def test_a_report_names_run_claim_and_worker(self, world, report):
        enqueue(world)
        run = claim(world)

        for forged in ({"token": 2}, {"owner": make_owner("two").to_text()}, {"run_id": 99}):
            with pytest.raises(RunLost):
                REPORTS[report](world.runs, replace(run, **forged))

        REPORTS[report](world.runs, run)

    @pytest.mark.parametrize("state", [RunState.PENDING, *sorted(LIVE_RUNS, key=lambda state: state.value)])
    def test_a_run_ends_in_a_final_state_only(self, world, state):
        enqueue(world)
        run = claim(world)

        with pytest.raises(UsageError, match="completed, failed, stopped"):
            world.runs.finish(run, state)

        assert world.runs.get(run.run_id).state is RunState.CLAIMED

    # --- stopping ----------------------------------------------------------------------------------------------

    def test_a_waiting_run_is_stopped_at_once(self, world):
        run = enqueue(world)

        stopped = world.runs.ask_to_stop(run.run_id, reason="not needed")

        assert (stopped.state, stopped.reason) == (RunState.STOPPED, "not needed")
        assert stopped.finished_at is not None
        assert claim(world) is None

    @pytest.mark.parametrize("is_begun", [False, True])
    def test_a_run_with_a_worker_is_asked_to_stop_and_its_worker_sees_it(self, world, is_begun):
        enqueue(world)
        run = claim(world)
        run = world.runs.begin(run) if is_begun else run

        asked = world.runs.ask_to_stop(run.run_id, reason="wrong issue")

        assert (asked.state, asked.reason, asked.finished_at) == (RunState.STOPPING, "wrong issue", None)
        assert asked.owner == run.owner
        assert world.runs.renew(run, ttl_seconds=TTL).state is RunState.STOPPING
        assert world.runs.begin(run).state is RunState.STOPPING, "to begin does not undo it"
        ended = world.runs.finish(run, RunState.STOPPED)
        assert (ended.state, ended.reason) == (RunState.STOPPED, "wrong issue")

    def test_asking_again_changes_nothing(self, world):
        enqueue(world)
        run = claim(world)
        asked = world.runs.ask_to_stop(run.run_id, reason="once")
        world.clock.advance(5)

        again = world.runs.ask_to_stop(run.run_id, reason="twice")

        assert replace(again, seconds_left=0.0) == replace(asked, seconds_left=0.0)
        ended = world.runs.finish(run, RunState.COMPLETED, reason="was faster")
        assert world.runs.ask_to_stop(run.run_id, reason="thrice") == ended

    def test_what_was_to_stop_does_not_wait_again(self, world):
        enqueue(world)
        run = claim(world)
        world.runs.ask_to_stop(run.run_id, reason="wrong issue")

        given_back = world.runs.requeue(run, not_before=later(world, 60), reason="draining")

        assert (given_back.state, given_back.reason) == (RunState.STOPPED, "wrong issue")
        assert given_back.finished_at is not None
        assert enqueue(world).run_id != run.run_id

    def test_a_run_that_is_given_back_keeps_what_it_demands_or_demands_another_worker(self, world):
        enqueue(world)
        run = claim(world)

        assert world.runs.requeue(run).demands == Requirements()
        elsewhere = world.runs.requeue(claim(world), demands=Requirements(host="far"))

        assert elsewhere.demands == Requirements(host="far")
        assert world.runs.get(run.run_id).demands == Requirements(host="far")

    # --- taking back -------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("is_over", [False, True])
    def test_the_run_of_a_worker_that_is_gone_waits_again(self, world, is_over):
        enqueue(world)
        run = world.runs.begin(claim(world))
        world.let_pass(2 * TTL if is_over else 1.0)
        (seen,) = world.runs.live()

        back = world.runs.take_back(seen, reason="its worker died")

        assert (back.state, back.reason, back.owner) == (RunState.PENDING, "its worker died", "")
        assert (back.token, back.seconds_left) == (run.token, 0.0)

    def test_the_run_of_a_worker_that_is_gone_is_stopped_when_it_was_to_stop(self, world):
        enqueue(world)
        run = claim(world)
        world.runs.ask_to_stop(run.run_id)

        back = world.runs.take_back(run, reason="its worker died")

        assert (back.state, back.reason) == (RunState.STOPPED, "its worker died")
        assert back.finished_at is not None

    @pytest.mark.parametrize("moved", ["claimed again", "finished", "taken back", "renewed"])
    def test_what_moved_on_is_not_taken_back(self, world, moved):
        enqueue(world)
        run = claim(world)
        world.let_pass(2 * TTL)
        (seen,) = world.runs.live()
        if moved == "renewed":
            world.runs.renew(run, ttl_seconds=TTL)
        elif moved == "finished":
            world.runs.finish(run, RunState.COMPLETED)
        else:
            world.runs.take_back(run, reason="gone")
        if moved == "claimed again":
            claim(world, "two")
        before = world.runs.get(run.run_id)

        assert world.runs.take_back(seen, reason="late") is None

        after = world.runs.get(run.run_id)
        assert (after.state, after.reason, after.owner) == (before.state, before.reason, before.owner)

    # --- looking -----------------------------------------------------------------------------------------------

    def test_live_runs_are_those_that_a_worker_has(self, world):
        for number in range(5):
            enqueue(world, f"0000000{number}")
        claimed = [claim(world) for _ in range(4)]
        world.runs.begin(claimed[1])
        world.runs.ask_to_stop(claimed[2].run_id)
        world.runs.finish(claimed[3], RunState.COMPLETED)

        assert [(run.adw_id, run.state) for run in world.runs.live()] == [
            ("00000000", RunState.CLAIMED),
            ("00000001", RunState.RUNNING),
            ("00000002", RunState.STOPPING),
        ]

    def test_pages_are_newest_first_and_go_on_where_the_one_before_ended(self, world):
        ids = [enqueue(world, f"0000000{number}").run_id for number in range(5)]

        first = world.runs.page(limit=2)
        second = world.runs.page(limit=2, before=first[-1].run_id)
        third = world.runs.page(limit=2, before=second[-1].run_id)

        assert [run.run_id for page in (first, second, third) for run in page] == ids[::-1]
        assert world.runs.page(before=ids[0]) == ()
        assert world.runs.page(before=-5) == ()
        assert len(world.runs.page(before=2**80)) == 5

    def test_a_page_of_some_states_has_only_those(self, world):
        for number in range(6):
            enqueue(world, f"0000000{number}")
        for end in (RunState.COMPLETED, RunState.FAILED, RunState.COMPLETED):
            world.runs.finish(claim(world), end)

        def ids(*states: RunState, **more: int) -> list[str]:
            return [run.adw_id[-1] for run in world.runs.page(states=states, **more)]

        assert ids(RunState.COMPLETED) == ["2", "0"]
        assert ids(RunState.COMPLETED, RunState.FAILED) == ["2", "1", "0"]
        assert ids(RunState.PENDING, RunState.FAILED, RunState.PENDING, limit=2) == ["5", "4"]
        last = world.runs.page(states=[RunState.PENDING])[-1]
        assert ids(RunState.PENDING, RunState.FAILED, before=last.run_id) == ["1"]
        assert ids(RunState.STOPPED) == []

    def test_the_runs_of_a_workflow_are_its_own(self, world):
        for _ in range(3):
            enqueue(world)
            world.runs.finish(claim(world), RunState.COMPLETED)
        enqueue(world, SECOND)

        result = world.runs.of_workflow(FIRST)

        assert [run.adw_id for run in result] == [FIRST] * 3
        assert sorted(result, key=lambda run: -run.run_id) == list(result)
        assert world.runs.of_workflow(FIRST, limit=1) == result[:1]
        assert world.runs.of_workflow(THIRD) == ()

    def test_a_page_without_room_is_refused(self, world):
        with pytest.raises(UsageError, match="at least 1"):
            world.runs.page(limit=0)
        with pytest.raises(UsageError, match="at least 1"):
            world.runs.of_workflow(FIRST, limit=0)
        with pytest.raises(InvalidAdwId):
            world.runs.of_workflow("../etc")

    # --- waking ------------------------------------------------------------------------------------------------

    def test_the_next_due_time_is_told_in_seconds(self, world):
        enqueue(world, not_before=later(world, 90))
        enqueue(world, SECOND, not_before=later(world, 30))
        assert world.runs.seconds_to_next() == pytest.approx(30.0, abs=0.1)

        world.clock.advance(45)
        assert world.runs.seconds_to_next() == 0.0
        claim(world)
        assert world.runs.seconds_to_next() == pytest.approx(45.0, abs=0.1)
        enqueue(world, THIRD)
        assert world.runs.seconds_to_next() == 0.0

    def test_only_waiting_runs_have_a_next_time(self, world):
        enqueue(world)
        run = claim(world)
        assert world.runs.seconds_to_next() is None
        world.runs.finish(run, RunState.COMPLETED)
        assert world.runs.seconds_to_next() is None
