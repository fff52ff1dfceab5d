"""Whatever comes in whatever order, crashes and full disks included: the counters hold, and nobody disagrees."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from adws.adw_modules.engine import resume, transitions
from adws.adw_modules.engine.advisor import MAX_CALLS, MAX_CALLS_PER_PHASE, MAX_REPLANS, Advice
from adws.adw_modules.engine.transitions import Chosen, choose, is_exhausted, limit, running_attempt
from adws.adw_modules.errors import FailedRun, GateFailed, RunFailed, StateWriteFailed, UsageError
from adws.adw_modules.housekeeping.verify import check_document
from adws.adw_modules.phase import Next, Order, RunReport, Suspended, Wait
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowStateMachine
from tests import homes
from tests.homes import lab_home, use_store
from tests.unit.engine.test_engine_attempt import FailingStore
from tests.unit.engine_cases import BROKEN, HUMAN, World, home_with, phase, spec_of

SPEC = spec_of(
    phase("plan", max_attempts=2),
    phase("build", max_attempts=3),
    phase("lint", max_attempts=1, is_required=False),
    phase("test", max_attempts=2, is_required=False, needs=("lint",), on_rework="build"),
    phase("review", max_attempts=2, on_rework="build"),
    phase("sign", state="reviewing", max_attempts=2, gates=HUMAN),
    phase("ship", max_attempts=2),
)
NAMES = [item.name for item in SPEC.phases]
ENDS = {"attempt_succeeded", "attempt_failed", "attempt_interrupted", "attempt_suspended", "attempt_parked"}
NOT_COUNTED = {"attempt_suspended", "attempt_parked"}
QUOTA = RunFailed(FailedRun(subtype="quota_window", text="usage limit reached", retry_after_seconds=600.0))
PRESCRIPTIONS = [
    Advice(decision="retry", reason="why not"),
    Advice(decision="retry_model", reason="too hard", model="large"),
    Advice(decision="replan", reason="the plan is wrong"),
    Advice(decision="skip", reason="no progress"),
    Advice(decision="human", reason="nobody knows"),
]
_ACTIVE = {state.value for state in ACTIVE_STATES}


class Wilful:
    """A doctor that decides whatever comes next, or fails."""

    name = "wilful"

    def __init__(self) -> None:
        self.next = PRESCRIPTIONS[0]
        self.is_free = False

    def ask(self, _case) -> Advice:
        if self.next is None:
            raise ValueError("no idea")
        return replace(self.next, by=self.name)


class Engine(RuleBasedStateMachine):
    """A workflow to which everything happens that can happen."""

    @initialize(
        max_reworks=st.integers(0, 2),
        max_retries=st.integers(0, 3),
        max_total_attempts=st.one_of(st.none(), st.integers(1, 25)),
    )
    def start(self, **fields) -> None:
        self.home = lab_home()
        self.store = use_store(self.home, FailingStore)
        self.world = World(SPEC, parts=self.home, **fields)
        self.seen: dict[str, int] = {}
        self.doctor = Wilful()
        self.world.engine = home_with(self.world.engine, advisor=self.doctor, may_begin=self.may_begin)
        self.is_open = False

    def teardown(self) -> None:
        homes.close_all()

    def may_begin(self, _document, _phase) -> Wait | None:
        at = self.world.clock.now() + timedelta(seconds=30)
        return Wait(at=at, reason="out of order", party="anthropic") if self.is_open else None

    # --- what happens ------------------------------------------------------------------------------------------

    def work(self, count: int) -> None:
        """Make *count* attempts in one session, going on at once where that is possible."""
        with self.world.session() as session:
            for _ in range(count):
                session.attempt(may_go_on=lambda: True)
                self.world.clock.advance(1.0)
            while session.has_begun:  # as every worker does: what is begun is run
                session.attempt()

    @rule(count=st.integers(1, 4))
    def all_goes_well(self, count) -> None:
        self.work(count)

    @rule(
        name=st.sampled_from(NAMES),
        entry=st.sampled_from(
            [
                BROKEN,
                RunFailed(FailedRun(exit_code=2)),
                UsageError("no such prompt"),
                SystemExit(1),
                RunReport(ok=False),
                RunReport(ok=True, wants_rework=True),
                RunReport(ok=True, result={"x": object()}),
                Suspended(reason="of its own"),
                QUOTA,
                ConnectionResetError("connection reset by peer"),
            ]
        ),
        count=st.integers(1, 3),
    )
    def the_next_attempt_of_a_phase_goes_wrong(self, name, entry, count) -> None:
        self.world.runner.add(name, entry)
        self.work(count)

    @rule(name=st.sampled_from(NAMES), kind=st.sampled_from(["drain", "drain", "lost_lease", "pause", "stop"]))
    def it_is_ordered_to_stop(self, name, kind) -> None:
        def stopped(_context):
            self.world.orders.give(Order(kind=kind, reason="ordered"))
            return Suspended(reason=kind)

        self.world.runner.add(name, stopped)
        self.work(1)
        self.world.orders.clear()

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 7))
    def a_quota_is_used_up_again_and_again(self, name, count) -> None:
        for _ in range(count):
            self.world.runner.add(name, QUOTA)
            self.work(1)
            self.world.clock.advance(700.0)

    @rule(decision=st.sampled_from([None, *PRESCRIPTIONS]), is_free=st.booleans())
    def the_doctor_makes_up_its_mind(self, decision, is_free) -> None:
        self.doctor.next, self.doctor.is_free = decision, is_free

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3))
    def a_phase_fails_for_the_doctor_to_look_at(self, name, count) -> None:
        for _ in range(count):
            self.world.runner.add(name, GateFailed(name, "3 tests fail"))
            self.work(2)
            self.world.clock.advance(400.0)

    @rule(is_open=st.booleans())
    def a_party_breaks_or_works_again(self, is_open) -> None:
        self.is_open = is_open

    @rule()
    def its_process_dies(self) -> None:
        self.world.die()

    @rule(skipped=st.integers(0, 2))
    def a_write_fails(self, skipped) -> None:
        self.store.trouble = [None] * skipped + [StateWriteFailed("state", OSError(28, "No space left on device"))]
        try:
            self.work(1)
        except StateWriteFailed:
            self.world.clock.advance(31.0)  # whoever failed to take it over lives, and keeps the lease until it ends
        self.store.trouble = []

    @rule(seconds=st.integers(1, 4000))
    def time_passes(self, seconds) -> None:
        self.world.clock.advance(float(seconds))

    # --- what people do ----------------------------------------------------------------------------------------

    @rule(grant=st.sampled_from([0, 0, 1, 3]), from_phase=st.sampled_from(["", "", *NAMES]))
    def somebody_resumes_it(self, grant, from_phase) -> None:
        with suppress(UsageError):
            self.world.resume(grant=grant, from_phase=from_phase)

    @rule(is_fine=st.booleans())
    def somebody_decides(self, is_fine) -> None:
        judge = resume.approve if is_fine else resume.reject
        with suppress(UsageError):
            self.world.change(lambda draft: judge(draft, SPEC, text="because", by="someone"))

    @precondition(lambda self: self.world.state in _ACTIVE)
    @rule()
    def somebody_pauses_it(self) -> None:
        with self.world.session() as session:
            session.settle()
            if session.document.current_state in _ACTIVE:
                session.change(lambda draft: transitions.pause(draft, "wait"))

    # --- what holds --------------------------------------------------------------------------------------------

    @invariant()
    def all_of_it_holds(self) -> None:
        document, events = self.world.document, self.world.events()
        no_phase_has_more_attempts_than_it_may(document)
        nothing_is_waited_for_or_asked_without_end(document)
        the_state_came_about_by_moves_of_the_table(document)
        the_document_counts_what_the_events_say(document, events)
        every_attempt_has_one_end(document, events)
        exhausted_is_never_left_waiting(document)
        the_end_says_why_and_success_is_earned(document)
        self.seen = totals_only_grow(document, self.seen)


def no_phase_has_more_attempts_than_it_may(document) -> None:
    for record in document.phases:
        assert 0 <= record.attempts_used <= limit(record)


def nothing_is_waited_for_or_asked_without_end(document) -> None:
    assert not [item for item in check_document(document) if item.invariant == 4]
    assert all(len(record.doctor) <= MAX_CALLS_PER_PHASE for record in document.phases)
    assert sum(len(record.doctor) for record in document.phases) == document.doctor_calls <= MAX_CALLS
    assert document.replans <= MAX_REPLANS


def the_state_came_about_by_moves_of_the_table(document) -> None:
    assert document.current_state in {state.value for state in WorkflowStateMachine.of(document).table}


def totals_only_grow(document, seen) -> dict[str, int]:
    totals = {f"attempts of {record.name}": len(record.attempts) for record in document.phases}
    totals |= {f"round of {record.name}": record.round for record in document.phases}
    totals |= {"moves": len(document.state_history), "reworks": document.reworks, "revision": document.revision}
    totals |= {"replans": document.replans, "doctor calls": document.doctor_calls}
    for name, total in totals.items():
        assert total >= seen.get(name, 0), name
    return totals


def the_document_counts_what_the_events_say(document, events) -> None:
    for record in document.phases:
        ours = [event for event in events if event.node_name == record.name]
        started = [event for event in ours if event.event_type == "attempt_started"]
        assert [event.attempt_number for event in started] == list(range(1, len(record.attempts) + 1))
        in_round = {event.attempt_number for event in started if event.data["round"] == record.round}
        not_counted = {event.attempt_number for event in ours if event.event_type in NOT_COUNTED}
        assert record.attempts_used == len(in_round - not_counted)


def every_attempt_has_one_end(document, events) -> None:
    ends = Counter((event.node_name, event.attempt_number) for event in events if event.event_type in ENDS)
    assert set(ends.values()) <= {1}
    open_now = [record.name for record in document.phases if running_attempt(record)]
    assert len(open_now) <= 1
    assert sum(len(record.attempts) for record in document.phases) == len(ends) + len(open_now)


def exhausted_is_never_left_waiting(document) -> None:
    result = choose(SPEC, document.phases)
    if document.current_state in _ACTIVE and isinstance(result, Chosen) and not running_attempt(result.record):
        assert not is_exhausted(result.record)


def the_end_says_why_and_success_is_earned(document) -> None:
    if document.current_state == "failed":
        assert document.terminal_reason
    if document.current_state == "completed":
        wanted = {item.name for item in SPEC.phases if item.is_required}
        assert wanted <= {record.name for record in document.phases if record.status == "complete"}


TestEngine = Engine.TestCase
# The soak has twenty times as many.
TestEngine.settings = settings(max_examples=settings().max_examples // 4, stateful_step_count=20)


def test_a_well_behaved_workflow_of_this_shape_completes():
    world = World(SPEC)

    while isinstance(world.attempt(), Next):
        pass
    world.change(lambda draft: resume.approve(draft, SPEC))
    while isinstance(world.attempt(), Next):
        pass

    assert world.state == "completed"
