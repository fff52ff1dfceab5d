"""What the engine does for agents: model, session, what was cut off, breakers, quotas. Nothing of it costs others."""

from __future__ import annotations

from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.agent import TokenUsage, Usage
from adws.adw_modules.agents.prices import model_for
from adws.adw_modules.circuit_breaker import CircuitBreakerRegistry, MemoryBreakers
from adws.adw_modules.document import Resource
from adws.adw_modules.engine.service_guard import BreakerEvent, ServiceGuard
from adws.adw_modules.errors import FailedRun, RunFailed
from adws.adw_modules.phase import Done, Failed, Harvest, Order, RetryAt, RunReport, Suspended, Wait
from adws.adw_modules.retry_handler import MAX_NAMED_RESETS
from adws.adw_modules.workflow.model import RetrySpec
from adws.testing import START
from tests.homes import lab_home
from tests.unit.engine_cases import BROKEN, WELL, World, phase, spec_of

USED = Usage(provider="anthropic", model="small", tokens=TokenUsage(input=7, output=5), cost_usd=0.25)
LATER = START + timedelta(minutes=10)
OPEN = Wait(at=LATER, reason="anthropic keeps failing", party="anthropic")
QUOTA = RunFailed(FailedRun(subtype="quota_window", text="5-hour limit reached", retry_after_seconds=3600.0))
QUOTA_WITHOUT_RESET = RunFailed(FailedRun(subtype="quota_window", text="usage limit reached"))


def last_write(world: World) -> list[str]:
    return [event.event_type for event in world.events() if event.revision == world.document.revision]


# --- answers ---------------------------------------------------------------------------------------------------


def test_a_runner_can_say_while_it_works_that_the_parties_of_its_phase_answer():
    told = []

    def entry(context):
        context.answered()
        assert told == [("build", world.document.adw_id)]
        return WELL

    world = World(spec_of("build"), {"build": [entry]})

    world.attempt(answered=lambda document, spec: told.append((spec.name, document.adw_id)))

    assert told


# --- models ----------------------------------------------------------------------------------------------------


def test_the_model_climbs_with_the_attempts_and_stands_on_each_before_it_runs():
    spec = spec_of(phase("build", options={"models": ["small", "large"]}))
    seen = []

    def entry(context):
        seen.append((context.model, world.record("build").attempts[-1].model))
        raise BROKEN

    world = World(spec, {"build": [entry, entry, entry]})

    for _ in range(3):
        world.attempt(model_for=model_for)
        world.clock.advance(4000)

    assert seen == [("small", "small"), ("large", "large"), ("large", "large")]
    assert [event.data.get("model") for event in world.events("attempt_started")] == ["small", "large", "large"]


# --- the agent's own facts -------------------------------------------------------------------------------------


def test_what_is_recorded_about_the_agent_is_durable_at_once_and_adds_up():
    world = World(spec_of("build"))
    seen = []

    def run(context):
        context.record_agent({"name": "claude", "session_id": "s-1"})
        seen.append(world.record("build").attempts[-1].agent)
        context.record_agent({"session_id": "s-2"})
        return WELL

    world.runner.add("build", run)
    world.attempt()

    assert seen == [{"name": "claude", "session_id": "s-1"}]
    assert world.record("build").attempts[0].agent == {"name": "claude", "session_id": "s-2"}


def test_an_attempt_knows_the_commit_its_work_stands_on():
    branch = Resource(key="branch:feature", kind="branch", outcome="made", undo={"sha": "abc123"})
    world = World(spec_of("build"), branch_name="feature", resources=[branch])

    world.attempt()

    assert world.runner.calls[0].context.base == "abc123"


# --- what was cut off ------------------------------------------------------------------------------------------


def harvested(_document, item, attempt):
    report = RunReport(ok=False, usage=USED, cost_usd=0.25, summary=f"half of {item.name} {attempt.number}")
    return Harvest(report=report, agent={"session_id": "s-9"})


def test_what_an_attempt_had_used_and_learned_is_kept_after_a_crash():
    world = World(spec_of("build"))

    world.crash()
    world.attempt(harvest=harvested)

    cut = world.record("build").attempts[0]
    assert (cut.status, cut.agent) == ("interrupted", {"session_id": "s-9"})
    assert cut.report["summary"] == "half of build 1"
    assert cut.report["usage"]["tokens"] == {"input": 7, "output": 5}
    assert world.document.cost.total_usd == 0.25
    assert world.document.cost.by_provider == {"anthropic": 0.25}


def test_what_an_attempt_had_used_is_kept_when_it_was_ended_on_order():
    world = World(spec_of("build"))

    def drained(_context):
        world.orders.give(Order(kind="drain", reason="the worker ends"))
        return Suspended(reason="drain", usage=USED)

    world.runner.add("build", drained)
    world.attempt(harvest=lambda *_: pytest.fail("it said itself what it used"))

    (cut,) = world.record("build").attempts
    assert (cut.status, world.record("build").attempts_used) == ("suspended", 0)
    assert world.document.cost.token_counts == {"input": 7, "output": 5}
    assert cut.report["cost_usd"] == 0.25


def test_an_attempt_that_was_ended_on_order_without_a_word_is_harvested():
    world = World(spec_of("build"), {"build": [Suspended(reason="of its own")]})

    world.attempt(harvest=harvested)

    assert world.record("build").attempts[0].agent == {"session_id": "s-9"}
    assert world.document.cost.total_usd == 0.25


def test_an_attempt_that_left_nothing_is_closed_as_ever():
    world = World(spec_of("build"))

    world.crash()
    world.attempt(harvest=lambda *_: Harvest())

    assert world.record("build").attempts[0].agent is None
    assert world.document.cost.total_usd == 0.0


# --- breakers --------------------------------------------------------------------------------------------------


def test_an_open_breaker_makes_the_phase_wait_and_uses_no_attempt():
    world = World(spec_of("build"))

    outcome = world.attempt(may_begin=lambda *_: OPEN)

    record, revision = world.record("build"), world.document.revision
    assert outcome == RetryAt(phase="build", at=LATER, reason="anthropic keeps failing")
    assert (record.status, record.attempts_used, record.attempts) == ("retry_wait", 0, [])
    assert (record.retry_at, record.wait_reason) == (timestamps.to_text(LATER), "anthropic keeps failing")
    assert last_write(world) == ["breaker_waited"]
    assert world.events("breaker_waited")[0].data["party"] == "anthropic"
    assert world.state == "pending"
    # Before it reopens nothing is written, and nobody asked.
    assert world.attempt(may_begin=lambda *_: pytest.fail("it is not time")) == outcome
    assert world.document.revision == revision


def test_a_breaker_that_says_now_is_not_asked_without_end():
    world = World(spec_of("build"))

    outcome = world.attempt(may_begin=lambda *_: Wait(at=START, reason="busy", party="git"))

    assert outcome.at == START + timedelta(seconds=1)


def test_the_breaker_of_the_next_phase_is_asked_when_the_work_goes_on_at_once():
    world = World(spec_of("plan", "build"))

    with world.session(may_begin=lambda _document, item: OPEN if item.name == "build" else None) as session:
        outcome = session.attempt(may_go_on=lambda: True)
        has_begun = session.has_begun

    assert (outcome, has_begun) == (RetryAt(phase="build", at=LATER, reason=OPEN.reason), False)
    assert last_write(world) == ["attempt_succeeded", "phase_completed", "breaker_waited"]
    assert (world.record("plan").status, world.record("build").attempts_used) == ("complete", 0)


def test_the_parties_are_told_how_an_attempt_ended_and_what_that_did_is_in_its_write():
    told = []

    def settle(_document, item, facts):
        told.append((item.name, facts.klass if facts else None))
        return (BreakerEvent(event_type="breaker_opened", data={"party": "anthropic"}),) if facts else ()

    world = World(spec_of("plan", "build"), {"build": [BROKEN]})

    with world.session(settle_parties=settle) as session:
        session.attempt(may_go_on=lambda: True)
        session.attempt()

    assert told == [("plan", None), ("build", "network")]
    assert last_write(world) == ["attempt_failed", "retry_scheduled", "breaker_opened"]


def test_the_parties_know_of_a_success_before_the_next_phase_asks_them():
    said = []
    world = World(spec_of("plan", "build"))

    with world.session(
        may_begin=lambda _document, item: said.append(f"may {item.name}"),
        settle_parties=lambda _document, item, _facts: said.append(f"did {item.name}") or (),
    ) as session:
        session.attempt(may_go_on=lambda: True)
        session.attempt()

    assert said == ["may plan", "did plan", "may build", "did build"]


def test_an_attempt_that_was_ended_on_order_says_nothing_about_its_parties():
    let_go = []
    world = World(spec_of("build"), {"build": [Suspended(reason="of its own")]})

    world.attempt(let_go=let_go.append, settle_parties=lambda *_: pytest.fail("nobody knows"))

    assert [document.adw_id for document in let_go] == [world.document.adw_id]


# --- quotas ----------------------------------------------------------------------------------------------------


def test_a_used_up_quota_parks_the_phase_until_its_reset_and_uses_no_attempt():
    world = World(spec_of(phase("build", max_attempts=1)), {"build": [QUOTA]})

    outcome = world.attempt()

    record = world.record("build")
    wait = (outcome.at - START).total_seconds()
    assert 3600 + 60 <= wait <= 3600 + 90
    assert (record.status, record.attempts_used, record.parks) == ("retry_wait", 0, 1)
    assert [made.status for made in record.attempts] == ["parked"]
    assert record.attempts[0].error["klass"] == "quota_window"
    assert record.wait_reason.startswith("a quota is used up: ")
    assert last_write(world) == ["attempt_parked"]


def test_a_quota_without_a_reset_that_stays_used_up_is_waited_for_all_day():
    world = World(spec_of("build"), {"build": [QUOTA_WITHOUT_RESET] * 10})

    for _ in range(10):
        outcome = world.attempt()
        assert isinstance(outcome, RetryAt)
        world.clock.advance((outcome.at - world.clock.now()).total_seconds())

    assert (world.record("build").parks, world.record("build").attempts_used) == (10, 0)
    assert world.clock.now() > START + timedelta(hours=17)


def test_a_phase_waits_for_five_named_resets_of_a_quota_in_a_row_and_then_needs_a_person():
    world = World(spec_of(phase("build", max_attempts=2)), {"build": [QUOTA] * (MAX_NAMED_RESETS + 1)})

    for count in range(1, MAX_NAMED_RESETS + 1):
        assert isinstance(world.attempt(), RetryAt)
        assert world.record("build").parks == count
        world.clock.advance(4000)
    outcome = world.attempt()

    record = world.record("build")
    assert (outcome.reason, world.state) == ("NEEDS_PERSON", "failed")
    assert "Use another account or model" in outcome.advice
    assert "after 5 resets in a row" in record.attempts[-1].error["not_retried"]
    assert (record.attempts[-1].status, record.attempts_used, record.parks) == ("failed", 1, 0)


@pytest.mark.parametrize("other", [WELL, BROKEN, None], ids=["success", "failure", "crash"])
def test_an_attempt_that_ends_otherwise_begins_the_count_of_waits_anew_and_an_ordered_stop_does_not(other):
    world = World(spec_of("build"), {"build": [QUOTA, *([other] if other else [Suspended(reason="of its own")])]})

    world.attempt()
    world.clock.advance(4000)
    world.attempt()
    if other is None:
        assert world.record("build").parks == 1
        world.resume()
        world.crash()
        world.attempt()

    assert world.record("build").parks == 0


# --- services that are not available ---------------------------------------------------------------------------

#: What a phase raises whose network is gone; nothing but its type says so.
RESET = ConnectionResetError("connection reset by peer")


def test_an_outage_of_hours_uses_no_attempt_and_the_phase_goes_on_after_it():
    world = World(spec_of(phase("build", max_attempts=2)), {"build": [RESET] * 20})

    delays = []
    for _ in range(20):
        outcome = world.attempt()
        delays.append((outcome.at - world.clock.now()).total_seconds())
        world.clock.advance(delays[-1])
    world.attempt()

    record = world.record("build")
    assert world.state == "completed"
    assert (record.attempts_used, [made.status for made in record.attempts]) == (1, ["parked"] * 20 + ["succeeded"])
    assert sum(delays) > 4 * 3600
    assert 5.0 <= delays[0] <= 6.25
    assert 1800.0 <= delays[-1] <= 2250.0


def test_a_phase_that_waits_for_a_service_says_until_when():
    world = World(spec_of("build"), {"build": [RESET] * 2})

    world.attempt(services_of=lambda _phase, _facts: {"github": 3})
    world.clock.advance(60)
    world.attempt()

    record, deadline = world.record("build"), START + timedelta(days=1)
    assert (record.status, record.parks, record.wait_deadline_at) == ("retry_wait", 2, timestamps.to_text(deadline))
    assert record.wait_reason == (
        f"a service is not available (network): connection reset by peer; adw gives up at {deadline:%Y-%m-%d %H:%M} UTC"
    )
    assert "traceback" not in record.attempts[0].error


def test_after_a_day_a_service_is_given_up_and_a_person_can_go_on():
    world = World(spec_of(phase("build", max_attempts=2)), {"build": [RESET] * 200})

    while isinstance(outcome := world.attempt(), RetryAt):
        world.clock.advance((outcome.at - world.clock.now()).total_seconds())

    record = world.record("build")
    assert (outcome.reason, world.state, record.attempts_used) == ("DEADLINE", "failed", 1)
    assert world.clock.now() == START + timedelta(days=1)
    assert 50 < len(record.attempts) < 70
    world.resume()
    assert isinstance(world.attempt(), RetryAt), "the days begin anew"


def test_words_about_a_connection_are_believed_of_an_agent_and_use_attempts_of_a_command():
    world = World(spec_of(phase("build", max_attempts=2)), {"build": [BROKEN] * 2})

    world.attempt()
    world.clock.advance(60)
    outcome = world.attempt()

    assert (outcome.reason, world.record("build").attempts_used) == ("MAX_ATTEMPTS_EXHAUSTED", 2)
    world = World(spec_of("build"), {"build": [BROKEN]})
    world.attempt(parties_of=lambda _phase: ("anthropic",))
    assert world.record("build").attempts[0].status == "parked"


def test_a_phase_that_took_too_long_uses_its_attempts():
    slow = RunFailed(FailedRun(timed_out="wall", text="it took too long"))
    world = World(spec_of("build"), {"build": [slow, TimeoutError("slow")]})

    world.attempt()
    world.clock.advance(60)
    world.attempt()

    assert [made.status for made in world.record("build").attempts] == ["failed", "failed"]


def test_a_phase_is_due_before_its_time_when_the_breaker_it_waits_for_has_closed():
    world = World(spec_of("build"), {"build": [RESET]})
    asked = []

    def has_closed(waits_for):
        asked.append(waits_for)
        return len(asked) == 2

    world.attempt(services_of=lambda _phase, _facts: {"github": 3})

    assert isinstance(world.attempt(has_closed=has_closed), RetryAt)
    assert world.attempt(has_closed=has_closed) == Done(state="completed")
    assert asked == [{"github": 3}] * 2


def test_a_parked_attempt_counts_against_no_health_budget():
    world = World(spec_of("build"), {"build": [QUOTA]}, max_total_attempts=1)

    world.attempt()
    world.clock.advance(4000)

    assert world.attempt() == Done(state="completed")


def test_a_phase_that_retries_no_rate_limits_does_not_wait_for_a_quota():
    world = World(spec_of(phase("build", retry=RetrySpec(categories=("transient",)))), {"build": [QUOTA]})

    outcome = world.attempt()

    assert isinstance(outcome, Failed)
    assert outcome.reason == "NOT_RETRYABLE"


def test_a_parked_phase_is_told_by_its_wait_and_not_by_an_older_failure():
    world = World(spec_of("build"), {"build": [BROKEN, QUOTA]})
    world.attempt()
    world.clock.advance(4000)
    parked = world.attempt()

    early = world.attempt()

    assert early == parked
    assert early.reason.startswith("a quota is used up")


def test_a_quota_that_one_workflow_met_makes_others_wait_without_an_attempt_until_it_is_open_again():
    one = World(spec_of(phase("build", runner="scripted")), {"build": [QUOTA]})
    breakers = CircuitBreakerRegistry(store=MemoryBreakers(), clock=one.clock)
    parties = ServiceGuard(breakers, clock=one.clock, providers={"scripted": "anthropic"})
    hooks = {"may_begin": parties.may_begin, "settle_parties": parties.settle, "let_go": parties.let_go}
    other = World(spec_of(phase("build", runner="scripted")), parts=lab_home(clock=one.clock))

    parked = one.attempt(**hooks)
    waiting = other.attempt(**hooks)

    assert [event.data["party"] for event in one.events("breaker_opened")] == ["anthropic"]
    assert isinstance(waiting, RetryAt)
    assert other.record("build").attempts == []
    assert START + timedelta(seconds=3600) < waiting.at <= parked.at
    one.clock.advance(3600 + 90)
    assert one.attempt(**hooks) == other.attempt(**hooks) == Done(state="completed")
