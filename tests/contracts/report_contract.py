"""What all Reports keep."""

from __future__ import annotations

from datetime import timedelta
from itertools import count

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.document import AttemptRecord, HistoryEntry, PhaseRecord
from adws.adw_modules.errors import UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.reports.model import Count, DayOutcomes, RequestCount, WaitKind, Window
from adws.adw_modules.workflow.requirements import Capabilities
from adws.testing import START
from tests.contracts.worlds import FIRST, SECOND, THIRD, make_document, make_owner

ALL = Window()
TODAY, YESTERDAY, LONG_AGO = "2026-01-31", "2026-01-30", "2025-06-01"
TOLD = [Event(event_type="state_changed")]


def moment(day: str = TODAY, hour: int = 8) -> str:
    return f"{day}T{hour:02}:00:00.000000Z"


def tried(*statuses: str, day: str = TODAY, seconds: float = 10.0, **fields) -> list[AttemptRecord]:
    """Return attempts that ended with these statuses."""
    numbers = count(1)
    made = {"started_at": moment(day, 7), "ended_at": moment(day), "duration": seconds, **fields}

    return [AttemptRecord(number=next(numbers), status=status, **made) for status in statuses]


def failed(message: str, *, day: str = TODAY, category: str = "transient", hour: int = 8) -> AttemptRecord:
    error = {"category": category, "klass": "network", "message": message}

    return AttemptRecord(
        number=1, status="failed", started_at=moment(day, 7), ended_at=moment(day, hour), duration=1.0, error=error
    )


def phase(name: str = "build", attempts=(), **fields) -> PhaseRecord:
    return PhaseRecord(name=name, state="building", attempts=list(attempts), **fields)


def put(world, adw_id: str = FIRST, *, state: str = "building", day: str = TODAY, **fields):
    """Store a workflow that is in *state* since *day*."""
    moves = [HistoryEntry(from_state="building", to_state=state, timestamp=moment(day))]
    fields = {"issue_number": None, **fields}
    document = make_document(adw_id, current_state=state, state_history=moves, **fields)

    return world.store.create(document, events=TOLD)


def change(world, document, **fields):
    """Store the next revision."""
    return world.store.save(document.model_copy(update=fields), fence=document.fence, events=TOLD)


class ReportContract:
    """Mix in and give a `world` fixture. Sums are asked for before and after they were brought up: it is the same."""

    @pytest.fixture(params=["never looked", "not kept yet", "kept"])
    def ask(self, request, world):
        """`ask(name, ...)` asks the reports, with what is new already in the sums that are kept, or not yet."""
        if request.param != "never looked":
            world.reports.refresh()

        def answer(name: str, *args, **kwargs):
            if request.param == "kept":
                world.reports.refresh()
            return getattr(world.reports, name)(*args, **kwargs)

        return answer

    # --- outcomes ----------------------------------------------------------------------------------------------

    def test_an_empty_home_has_nothing_to_report(self, world, ask):
        assert ask("outcomes", ALL) == ask("attempts", ALL) == ask("failures", ALL) == ask("costliest", ALL) == ()
        assert [ask("costs", ALL, by=by) for by in ("phase", "day", "provider")] == [(), (), ()]
        assert ask("histories", [("sdlc", "build")]) == {}
        assert (ask("states"), ask("running"), ask("waiting"), ask("unattended")) == ({}, (), (), ())
        assert (ask("queue").due, ask("queue").oldest_due_at) == (Count(number=0), "")

    def test_workflows_are_counted_on_the_day_they_ended(self, world, ask):
        put(world, FIRST, state="completed")
        put(world, SECOND, state="failed", day=YESTERDAY)
        put(world, THIRD, state="building")

        assert ask("outcomes", ALL) == (
            DayOutcomes(day=YESTERDAY, failed=1),
            DayOutcomes(day=TODAY, completed=1),
        )
        assert ask("outcomes", Window(since=moment(TODAY, 23))) == (DayOutcomes(day=TODAY, completed=1),)

    def test_one_that_goes_on_after_a_failure_counts_once_by_its_last_outcome(self, world, ask):
        document = put(world, state="failed", day=YESTERDAY)
        ask("outcomes", ALL)
        document = change(world, document, current_state="building")
        assert ask("outcomes", ALL) == ()

        moves = [HistoryEntry(from_state="cleaning", to_state="completed", timestamp=moment())]
        change(world, document, current_state="completed", state_history=moves)

        assert ask("outcomes", ALL) == (DayOutcomes(day=TODAY, completed=1),)

    def test_a_window_may_be_about_one_workflow(self, world, ask):
        put(world, FIRST, state="completed", phases=[phase(attempts=tried("succeeded"))])
        put(world, SECOND, state="completed", workflow="other", phases=[phase("ship", tried("succeeded"))])

        other = Window(workflow="other")

        assert ask("outcomes", other) == (DayOutcomes(day=TODAY, completed=1),)
        assert [item.phase for item in ask("attempts", other)] == ["ship"]

    def test_a_request_is_an_issue_and_completed_when_one_of_its_workflows_is(self, world, ask):
        put(world, "00000001", state="failed", issue_number=1)
        put(world, "00000002", state="completed", issue_number=1)
        put(world, "00000003", state="paused", issue_number=2)
        put(world, "00000004", state="completed", issue_number=2, repository="acme/other", workflow="other")
        put(world, "00000005", state="completed")
        put(world, "00000006", state="building")
        put(world, "00000007", state="completed", issue_number=3, created_at=moment(LONG_AGO))

        assert ask("requests", ALL) == RequestCount(asked=6, completed=4)
        assert ask("requests", Window(since=YESTERDAY)) == RequestCount(asked=5, completed=3)
        assert ask("requests", Window(workflow="other")) == RequestCount(asked=1, completed=1)
        assert ask("requests", Window(workflow="none")) == RequestCount()

    # --- attempts ----------------------------------------------------------------------------------------------

    def test_attempts_until_success_are_counted_for_each_phase(self, world, ask):
        put(world, FIRST, phases=[phase(attempts=tried("failed", "interrupted", "succeeded"))])
        put(world, SECOND, phases=[phase(attempts=tried("succeeded")), phase("test", tried("failed"))])

        build, test = ask("attempts", ALL)

        assert (build.phase, dict(build.needed), build.mean_needed) == ("build", {1: 1, 3: 1}, 2.0)
        assert dict(build.by_status) == {"failed": 1, "interrupted": 1, "succeeded": 2}
        assert build.seconds == 40.0
        assert (test.phase, dict(test.needed), dict(test.by_status)) == ("test", {}, {"failed": 1})

    def test_an_attempt_that_runs_or_was_looked_at_before_is_not_counted_twice(self, world, ask):
        document = put(world, phases=[phase(attempts=tried("failed"))])
        ask("attempts", ALL)
        running = AttemptRecord(number=2, started_at=moment())
        document = change(world, document, phases=[phase(attempts=[*tried("failed"), running])])
        assert dict(ask("attempts", ALL)[0].by_status) == {"failed": 1}

        change(world, document, phases=[phase(attempts=tried("failed", "succeeded"))])

        assert dict(ask("attempts", ALL)[0].by_status) == {"failed": 1, "succeeded": 1}
        assert dict(ask("attempts", ALL)[0].needed) == {2: 1}

    # --- costs -------------------------------------------------------------------------------------------------

    def test_costs_are_told_by_phase_day_and_provider(self, world, ask):
        usage = {"provider": "anthropic", "tokens": {"input": 10, "output": 5}, "is_estimated": True}
        paid = tried("succeeded", report={"cost_usd": 0.5, "usage": usage})
        older = tried("failed", day=YESTERDAY, report={"cost_usd": 0.25})
        unknown = tried("failed", agent={"provider": "openai"})
        monthly = tried("succeeded", report={"usage": {"provider": "openai", "is_subscription": True}})
        put(world, phases=[phase(attempts=[*older, *paid]), phase("test", [*unknown, *monthly])])

        build, test = ask("costs", ALL, by="phase")
        assert (build.key, build.cost_usd, build.attempts, build.estimated, build.tokens) == ("build", 0.75, 2, 1, 15)
        assert (test.cost_usd, test.attempts, test.unknown, test.subscription) == (0.0, 2, 1, 1)
        by_day = {item.key: item.cost_usd for item in ask("costs", ALL, by="day")}
        assert by_day == {YESTERDAY: 0.25, TODAY: 0.5}
        by_provider = {item.key: item.cost_usd for item in ask("costs", ALL, by="provider")}
        assert by_provider == {"anthropic": 0.5, "openai": 0.0, "unnamed": 0.25}

    def test_costs_cannot_be_told_by_anything(self, world):
        with pytest.raises(UsageError, match="costs are told by phase, day, provider, not by 'moon'"):
            world.reports.costs(ALL, by="moon")

    def test_what_cost_most_comes_first(self, world, ask):
        for adw_id, cost, day in ((FIRST, 1.0, TODAY), (SECOND, 3.0, YESTERDAY), (THIRD, 2.0, TODAY)):
            put(
                world,
                adw_id,
                state="completed",
                phases=[phase(attempts=tried("failed", report={"cost_usd": cost}, day=day))],
            )
        put(world, "0a0b0c0d", phases=[phase(attempts=tried("succeeded"))])

        assert [item.adw_id for item in ask("costliest", ALL)] == [SECOND, THIRD, FIRST]
        first = ask("costliest", Window(since=TODAY), limit=1)[0]
        assert (first.adw_id, first.cost_usd, first.outcome, first.attempts) == (THIRD, 2.0, "completed", 1)

    # --- failures ----------------------------------------------------------------------------------------------

    def test_failures_that_differ_in_numbers_only_are_one_group_with_its_last_example(self, world, ask):
        put(world, FIRST, phases=[phase(attempts=[failed("port 8001 is taken"), failed("no such file")])])
        put(world, SECOND, phases=[phase(attempts=[failed("port 8002 is taken", hour=9)])])

        first, second = ask("failures", ALL)

        assert (first.phase, first.category, first.count) == ("build", "transient", 2)
        assert (first.message, first.adw_id, first.last_at) == ("port 8002 is taken", SECOND, moment(TODAY, 9))
        assert (second.message, second.count) == ("no such file", 1)
        assert [item.message for item in ask("failures", ALL, limit=1)] == ["port 8002 is taken"]

    def test_failures_of_another_phase_category_or_time_are_others(self, world, ask):
        put(world, FIRST, phases=[phase(attempts=[failed("no", category="fatal")]), phase("test", [failed("no")])])
        put(world, SECOND, phases=[phase("test", [failed("no", day=YESTERDAY)])])

        assert [(f.phase, f.category, f.count) for f in ask("failures", ALL)] == [
            ("test", "transient", 2),
            ("build", "fatal", 1),
        ]
        assert [f.count for f in ask("failures", Window(since=TODAY))] == [1, 1]

    def test_what_is_gone_can_make_another_group_and_another_workflow_the_first(self, world):
        dear = tried("failed", report={"cost_usd": 9.0})
        document = put(world, FIRST, phases=[phase(attempts=[failed("a"), failed("a"), failed("a"), *dear])])
        put(world, SECOND, phases=[phase(attempts=[failed("b"), failed("b"), *tried("x", report={"cost_usd": 2.0})])])
        world.reports.refresh()
        change(world, document, phases=[phase(attempts=[failed("a")])])

        assert [(f.message, f.count) for f in world.reports.failures(ALL, limit=1)] == [("b", 2)]
        assert [item.adw_id for item in world.reports.costliest(ALL, limit=1)] == [SECOND]

    # --- durations ---------------------------------------------------------------------------------------------

    def test_a_history_is_that_of_one_phase_of_one_workflow(self, world, ask):
        put(world, FIRST, phases=[phase(attempts=[*tried(*["succeeded"] * 19), *tried("succeeded", seconds=100.0)])])
        put(world, SECOND, workflow="other", phases=[phase(attempts=tried("succeeded", seconds=9999.0))])
        put(world, THIRD, phases=[phase(attempts=tried("failed", seconds=5000.0))])

        result = ask("histories", [("sdlc", "build"), ("sdlc", "test")])

        assert list(result) == [("sdlc", "build")]
        history = result["sdlc", "build"]
        assert history.count == 20
        assert history.median == pytest.approx(10.0, rel=0.2)
        assert history.p95 == pytest.approx(10.0, rel=0.2)
        assert 100.0 <= history.longest <= 120.0

    def test_a_history_forgets_what_is_older_than_three_months(self, world, ask):
        put(world, phases=[phase(attempts=tried("succeeded", day=LONG_AGO))])

        assert ask("histories", [("sdlc", "build")]) == {}

    # --- what is -----------------------------------------------------------------------------------------------

    def test_states_are_counted_no_further_than_asked(self, world):
        put(world, FIRST)
        put(world, SECOND)
        put(world, THIRD, state="completed")

        assert dict(world.reports.states()) == {"building": Count(number=2), "completed": Count(number=1)}
        assert world.reports.states(at_most=1)["building"] == Count(number=1, is_more=True)

    def test_the_queue_says_what_is_due_what_is_not_and_what_is_at_work(self, world):
        for adw_id, later in ((FIRST, ""), (SECOND, ""), (THIRD, timestamps.to_text(START + timedelta(hours=1)))):
            put(world, adw_id)
            world.runs.enqueue(NewRun(adw_id=adw_id, not_before=later))
            world.clock.advance(1.0)
        world.runs.claim(make_owner(), ttl_seconds=30.0)

        queue = world.reports.queue()

        assert (queue.due, queue.later, queue.at_work) == (Count(number=1),) * 3
        assert queue.oldest_due_at == timestamps.to_text(START + timedelta(seconds=1))

    def test_runs_that_are_not_over_are_counted_by_state_and_kind(self, world):
        for adw_id, kind in ((FIRST, "start"), (SECOND, "start"), (THIRD, "rollback"), ("00000004", "start")):
            put(world, adw_id)
            world.runs.enqueue(NewRun(adw_id=adw_id, kind=kind))
            world.clock.advance(1.0)
        world.runs.begin(world.runs.claim(make_owner(), ttl_seconds=30.0))
        over = world.runs.begin(world.runs.claim(make_owner("two"), ttl_seconds=30.0))
        world.runs.finish(over, RunState.COMPLETED)

        lines = world.reports.queue_lines()

        assert [(line.state, line.kind, line.count) for line in lines] == [
            ("pending", "rollback", Count(number=1)),
            ("pending", "start", Count(number=1)),
            ("running", "start", Count(number=1)),
        ]
        assert [line.oldest_at for line in lines] == [
            timestamps.to_text(START + timedelta(seconds=seconds)) for seconds in (2, 3, 0)
        ]
        assert all(line.count.is_more for line in world.reports.queue_lines(at_most=1)[:2])

    def test_what_is_at_work_says_who_has_it_and_since_when(self, world):
        world.runners.register(make_owner(), Capabilities(host="testhost"), concurrency=1, version="1")
        attempt = AttemptRecord(number=4, started_at=moment())
        put(
            world,
            phases=[phase("plan", status="complete"), phase(attempts=[attempt], status="running", attempts_used=2)],
        )
        world.runs.enqueue(NewRun(adw_id=FIRST, kind="resume"))
        run = world.runs.begin(world.runs.claim(make_owner(), ttl_seconds=30.0))
        world.let_pass(5.0)

        (result,) = world.reports.running()

        assert (result.subject.adw_id, result.subject.workflow, result.subject.title) == (FIRST, "sdlc", "Add a button")
        assert (result.phase, result.attempt, result.started_at) == ("build", 2, moment())
        assert (result.run_id, result.kind, result.is_stopping, result.owner) == (
            run.run_id,
            "resume",
            False,
            run.owner,
        )
        assert result.seconds_left == pytest.approx(25.0, abs=1.0)
        assert result.silent_seconds == pytest.approx(5.0, abs=1.0)

    def test_what_is_at_work_between_two_phases_counts_from_its_run(self, world):
        put(world)
        run = world.runs.enqueue(NewRun(adw_id=FIRST))
        world.runs.begin(world.runs.claim(make_owner(), ttl_seconds=30.0))
        world.runs.ask_to_stop(run.run_id)

        (result,) = world.reports.running()

        assert (result.phase, result.attempt, result.started_at) == ("", 0, timestamps.to_text(START))
        assert (result.is_stopping, result.silent_seconds) == (True, None)

    def test_lanes_and_errands_are_no_workflows(self, world):
        put(world)
        world.runs.enqueue(NewRun(adw_id=FIRST, kind="iteration", slot="calls.0"))
        world.runs.enqueue(NewRun(adw_id=SECOND, kind="cron"))
        assert world.reports.waiting() == ()

        world.runs.claim(make_owner(), ttl_seconds=30.0)
        world.runs.claim(make_owner("two"), ttl_seconds=30.0)

        assert world.reports.running() == ()

    def test_what_waits_says_for_what(self, world):
        later = timestamps.to_text(START + timedelta(hours=1))
        waits = phase(attempts=[failed("no net")], status="retry_wait", retry_at=later, last_failure_reason="no net")
        put(world, FIRST, phases=[waits])
        world.runs.enqueue(NewRun(adw_id=FIRST, not_before=later))
        put(world, SECOND)
        world.runs.enqueue(NewRun(adw_id=SECOND, priority=5))
        put(world, THIRD, state="paused", phases=[phase(status="waiting")])

        due, retried, asked = world.reports.waiting()

        assert (due.subject.adw_id, due.kind, due.since) == (SECOND, WaitKind.WORKER, timestamps.to_text(START))
        assert (retried.subject.adw_id, retried.kind, retried.phase) == (FIRST, WaitKind.RETRY, "build")
        assert (retried.until, retried.why) == (later, "no net")
        assert (asked.subject.adw_id, asked.kind, asked.phase) == (THIRD, WaitKind.APPROVAL, "build")
        assert [item.subject.adw_id for item in world.reports.waiting(limit=2)] == [SECOND, FIRST]
        assert world.reports.queued() == (due, retried)
        assert world.reports.queued(limit=1) == (due,)
        assert world.reports.paused() == (asked,), "however long the queue is"
        assert world.reports.paused(limit=0) == ()

    def test_what_nobody_has_and_no_run_waits_for_is_unattended(self, world):
        put(world, FIRST, phases=[phase(status="running", attempts=[AttemptRecord(number=1, started_at=moment())])])
        put(world, SECOND)
        world.runs.enqueue(NewRun(adw_id=SECOND))
        put(world, THIRD, state="completed")

        (result,) = world.reports.unattended()

        assert (result.subject.adw_id, result.kind, result.phase) == (FIRST, WaitKind.NOBODY, "build")
        assert result.since == timestamps.to_text(START)

    def test_what_has_just_ended_is_not_looked_for(self, world):
        put(world)
        world.runs.enqueue(NewRun(adw_id=FIRST))
        world.runs.finish(world.runs.claim(make_owner(), ttl_seconds=30.0), RunState.COMPLETED)
        assert world.reports.unattended() == ()

        world.let_pass(61.0)

        assert [item.subject.adw_id for item in world.reports.unattended()] == [FIRST]

    def test_what_somebody_owns_is_attended(self, world):
        put(world)
        if world.leases.read(FIRST) is None:  # in memory, leases have rows of their own
            world.add_row(FIRST)
        world.leases.take(FIRST, make_owner(), ttl_seconds=30.0)
        assert world.reports.unattended() == ()

        world.let_pass(31.0)

        assert [item.subject.adw_id for item in world.reports.unattended()] == [FIRST]
