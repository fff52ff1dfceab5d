"""The outside parties of phases: who is asked before an attempt, and what its end says about them."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.circuit_breaker import CircuitBreakerConfig, CircuitBreakerRegistry, CircuitState, MemoryBreakers
from adws.adw_modules.engine.service_guard import (
    VERDICTS,
    BreakerEvent,
    ServiceGuard,
    ServiceVerdict,
    shut_until,
    verdict_of,
)
from adws.adw_modules.error_handler import ErrorFacts, describe
from adws.adw_modules.error_tables import CLASSES
from adws.adw_modules.errors import (
    DatabaseUnavailable,
    FailedRun,
    ForgeBusy,
    ForgeUnavailable,
    GitError,
    GitUnreachable,
    RunFailed,
)
from adws.adw_modules.workflow.model import PhaseSpec, Timeouts
from adws.testing import START, FakeClock

ONE, TWO = SimpleNamespace(adw_id="1a2b3c4d"), SimpleNamespace(adw_id="5e6f7a8b")
BUILD = PhaseSpec(name="build", state="building", runner="claude")
SHIP = PhaseSpec(name="ship", state="shipping", runner="ship")
CLEAN = PhaseSpec(name="clean", state="cleaning", runner="clean")
LINT = PhaseSpec(name="lint", state="linting", runner="command")
CONFIG = CircuitBreakerConfig(failure_threshold=2, reset_timeout_seconds=60.0)


def failed(klass: str, **changes: object) -> ErrorFacts:
    kind = CLASSES[klass]
    facts = ErrorFacts(category=kind.category, klass=klass, message=f"{klass} happened\nmore", error_type="RunFailed")
    return replace(facts, **changes)


def facts_of(error: BaseException) -> ErrorFacts:
    return describe(error, "ship")


class Broken(MemoryBreakers):
    """A database that is gone."""

    def read(self, name):
        raise DatabaseUnavailable(f"no {name}")


PROVIDERS = {"claude": "anthropic", "codex": "openai"}


class World:
    """Breakers, a clock, and the parties of two processes that share them."""

    def __init__(self, seed: int, store: MemoryBreakers | None = None, config: CircuitBreakerConfig = CONFIG) -> None:
        self.clock = FakeClock(seed=seed)
        self.store = store or MemoryBreakers()
        self.breakers = CircuitBreakerRegistry(config, store=self.store, clock=self.clock)
        self.parties, self.others = self.make(), self.make()

    def make(self, **changes: object) -> ServiceGuard:
        options = {"forge": "github", "has_remote": True, "providers": PROVIDERS, **changes}
        return ServiceGuard(self.breakers, clock=self.clock, **options)

    def state(self, party: str) -> CircuitState:
        return self.breakers.get(party).state

    def open(self, party: str = "anthropic") -> None:
        self.breakers.get(party).open_until(self.clock.now() + timedelta(seconds=60), "server: it is down")


@pytest.fixture
def world(seed):
    return World(seed)


# --- who the parties are ---------------------------------------------------------------------------------------


def test_an_agent_s_phase_needs_its_provider_and_shipping_needs_both_ends(world):
    assert world.parties.parties_of(BUILD) == ("anthropic",)
    assert world.parties.parties_of(replace(BUILD, runner="codex")) == ("openai",)
    assert world.parties.parties_of(SHIP) == world.parties.parties_of(CLEAN) == ("github", "git")
    assert world.parties.parties_of(LINT) == ()


# --- before an attempt -----------------------------------------------------------------------------------------


def test_a_phase_without_parties_begins_and_touches_no_store(seed):
    parties = World(seed, Broken()).parties

    assert parties.may_begin(ONE, LINT) is None
    assert parties.settle(ONE, LINT, failed("network")) == ()


def test_an_open_breaker_makes_the_phase_wait_until_it_reopens(world):
    world.open()

    wait = world.parties.may_begin(ONE, BUILD)

    assert (wait.party, wait.at) == ("anthropic", START + timedelta(seconds=60))
    assert wait.reason == (
        "anthropic is not called after it failed (server: it is down); "
        "sooner with adw admin breakers reset anthropic and adw resume 1a2b3c4d"
    )


def test_after_its_time_one_phase_tries_and_the_others_wait_for_as_long_as_that_and_its_gates_may_take(
    world,
):
    world.open()
    world.clock.advance(60.0)

    assert world.parties.may_begin(ONE, replace(BUILD, timeouts=Timeouts(wall=100.0))) is None
    wait = world.others.may_begin(TWO, BUILD)
    assert wait.at == world.clock.now() + timedelta(seconds=60)
    assert "is tested by another workflow after it failed" in wait.reason

    world.clock.advance(100.0 + 899.0)
    assert world.others.may_begin(TWO, BUILD) is not None
    world.clock.advance(1.0)
    assert world.others.may_begin(TWO, BUILD) is None


def test_when_one_party_refuses_no_place_of_another_is_kept(world):
    world.open("github")
    world.clock.advance(60.0)
    world.open("git")

    assert world.parties.may_begin(ONE, SHIP).party == "git"

    assert world.breakers.get("github").row.permits == ()
    assert world.breakers.get("github").allows()


# --- after an attempt ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("klass", ["overloaded", "server", "network", "rate_limited", "timeout"])
def test_failures_of_the_party_open_its_breaker_at_the_threshold(world, klass):
    assert world.parties.settle(ONE, BUILD, failed(klass)) == ()
    news = world.others.settle(TWO, BUILD, failed(klass))

    assert world.state("anthropic") is CircuitState.OPEN
    assert news == (
        BreakerEvent(
            event_type="breaker_opened",
            data={
                "party": "anthropic",
                "reopens_at": "2026-01-31T09:01:00.000000Z",
                "reason": f"{klass}: {klass} happened",
                "class": klass,
            },
        ),
    )


@pytest.mark.parametrize("klass", ["auth", "billing"])
def test_what_only_a_person_can_help_opens_at_once_for_longer(world, klass):
    world.parties.settle(ONE, BUILD, failed(klass))

    assert world.state("anthropic") is CircuitState.OPEN
    assert world.parties.may_begin(ONE, BUILD).at == START + timedelta(minutes=15)


def test_a_used_up_quota_opens_at_once_until_a_minute_after_its_reset(world):
    told = {"retry_at": timestamps.to_text(START + timedelta(hours=3))}

    world.parties.settle(ONE, BUILD, failed("quota_window", metadata=told))

    assert world.others.may_begin(TWO, BUILD).at == START + timedelta(hours=3, minutes=1)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"retry_delay": 1800.0}, 1860.0),
        ({}, 960.0),
        ({"metadata": {"retry_at": "soon"}, "retry_delay": 10.0}, 70.0),
        ({"metadata": {"retry_at": "9999-12-31T23:59:59.999999Z"}}, 31 * 86400.0 + 60),
        ({"retry_delay": 1e300}, 31 * 86400.0 + 60),
    ],
    ids=["of the class", "nobody said", "unreadable", "far away", "without end"],
)
def test_a_quota_is_shut_for_as_long_as_is_known(changes, seconds):
    assert shut_until(failed("quota_window", **changes), START) == START + timedelta(seconds=seconds)


@pytest.mark.parametrize("klass", ["gate", "no_effect", "context", "turns", "refused", "invalid", "failed", "unknown"])
def test_a_party_that_answered_works_whatever_came_of_the_attempt(world, klass):
    world.parties.settle(ONE, BUILD, failed("network"))

    world.parties.settle(ONE, BUILD, failed(klass))
    world.parties.settle(ONE, BUILD, failed("network"))

    assert world.state("anthropic") is CircuitState.CLOSED, "they were not two in a row"


@pytest.mark.parametrize("klass", ["killed", "missing", "disk", "config", "bug", "interrupted"])
def test_what_went_wrong_on_this_side_says_nothing_about_the_party(world, klass):
    world.parties.settle(ONE, BUILD, failed("network"))

    world.parties.settle(ONE, BUILD, failed(klass))
    world.parties.settle(ONE, BUILD, failed("network"))

    assert world.state("anthropic") is CircuitState.OPEN


def test_every_class_of_the_table_exists():
    assert VERDICTS.keys() <= CLASSES.keys()


def test_a_time_limit_of_ours_is_no_failure_of_the_party():
    ours = facts_of(RunFailed(FailedRun(timed_out="wall"), "it took long"))
    coreutils = facts_of(RunFailed(FailedRun(exit_code=124), "it took long"))
    theirs = facts_of(RunFailed(FailedRun(exit_code=1, subtype="timeout_error"), "no answer"))

    assert (ours.klass, coreutils.klass, theirs.klass) == ("timeout", "timeout", "timeout")
    assert [verdict_of(facts) for facts in (ours, coreutils, theirs)] == [
        ServiceVerdict.NOTHING,
        ServiceVerdict.NOTHING,
        ServiceVerdict.FAILED,
    ]


def test_the_end_of_a_trial_closes_the_breaker_or_opens_it_again(world):
    world.open()
    world.clock.advance(60.0)
    world.parties.may_begin(ONE, BUILD)
    (news,) = world.parties.settle(ONE, BUILD, failed("server"))
    assert (news.event_type, news.data["reopens_at"]) == ("breaker_opened", "2026-01-31T09:02:00.000000Z")
    world.clock.advance(60.0)
    world.parties.may_begin(ONE, BUILD)

    news = world.parties.settle(ONE, BUILD, None)

    assert news == (BreakerEvent(event_type="breaker_closed", data={"party": "anthropic"}),)
    assert world.others.may_begin(TWO, BUILD) is None


def test_a_trial_that_says_nothing_gives_its_place_to_the_next(world):
    world.open()
    world.clock.advance(60.0)
    world.parties.may_begin(ONE, BUILD)

    assert world.parties.settle(ONE, BUILD, failed("killed")) == ()

    assert world.state("anthropic") is CircuitState.HALF_OPEN
    assert world.others.may_begin(TWO, BUILD) is None


def test_an_attempt_that_began_before_the_breaker_opened_does_not_close_it(world):
    world.parties.may_begin(ONE, BUILD)
    world.open()
    world.clock.advance(60.0)

    assert world.parties.settle(ONE, BUILD, None) == ()

    assert world.state("anthropic") is CircuitState.HALF_OPEN


# --- two parties -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "party", "other"),
    [
        (GitUnreachable("no answer to the push"), "git", "github"),
        (GitError("git push failed: Connection refused"), "git", "github"),
        (ForgeUnavailable("502 Bad Gateway"), "github", "git"),
        (ForgeBusy(30.0), "github", "git"),
    ],
    ids=["unreachable", "git by its text", "forge", "busy forge"],
)
def test_shipping_blames_the_party_that_the_error_is_of(world, error, party, other):
    world.parties.settle(ONE, SHIP, facts_of(error))
    world.parties.settle(ONE, SHIP, facts_of(error))

    assert (world.state(party), world.state(other)) == (CircuitState.OPEN, CircuitState.CLOSED)
    assert world.store.read(other) is None


def test_an_error_of_neither_party_blames_none(world):
    for _ in range(3):
        world.parties.settle(ONE, SHIP, failed("network", error_type="OSError"))

    assert world.store.all() == ()


# --- while it runs ---------------------------------------------------------------------------------------------


def test_a_trial_that_is_answered_lets_the_others_in_before_its_end(world):
    world.open()
    world.clock.advance(60.0)
    world.parties.may_begin(ONE, BUILD)
    assert world.others.may_begin(TWO, BUILD) is not None

    world.parties.answered(ONE, BUILD)

    assert world.others.may_begin(TWO, BUILD) is None
    news = world.parties.settle(ONE, BUILD, failed("server"))
    assert [one.event_type for one in news] == ["breaker_closed"]
    assert world.breakers.get("anthropic").row.failures == 1, "how it ends still counts"


def test_while_a_breaker_is_closed_only_the_end_of_an_attempt_counts(world):
    for _ in range(2):
        world.parties.may_begin(ONE, BUILD)
        world.parties.answered(ONE, BUILD)
        world.parties.settle(ONE, BUILD, failed("overloaded"))

    assert world.state("anthropic") is CircuitState.OPEN, "it began to answer, and failed, twice in a row"


# --- a person says go on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("klass", "state"),
    [
        ("auth", CircuitState.CLOSED),
        ("billing", CircuitState.CLOSED),
        ("quota_window", CircuitState.OPEN),
    ],
)
def test_who_goes_on_after_what_only_a_person_can_mend_does_not_wait(world, klass, state):
    world.parties.may_begin(ONE, BUILD)
    world.parties.settle(ONE, BUILD, failed(klass))

    world.others.reset_breakers(BUILD)

    assert world.state("anthropic") is state


# --- letting go ------------------------------------------------------------------------------------------------


def test_letting_go_of_a_workflow_frees_its_places_and_counts_nothing(world):
    world.open()
    world.clock.advance(60.0)
    world.parties.may_begin(ONE, BUILD)

    world.parties.let_go(TWO)
    assert world.others.may_begin(TWO, BUILD) is not None
    world.parties.let_go(ONE)
    world.parties.let_go(ONE)

    assert world.state("anthropic") is CircuitState.HALF_OPEN
    assert world.others.may_begin(TWO, BUILD) is None


# --- trouble of our own ----------------------------------------------------------------------------------------


def test_a_database_that_cannot_be_used_holds_nobody_up(seed, caplog):
    parties = World(seed, Broken()).parties

    with caplog.at_level(logging.WARNING, logger="adw.engine"):
        assert parties.may_begin(ONE, BUILD) is None
        assert parties.settle(ONE, BUILD, failed("network")) == ()

    assert [record.action for record in caplog.records] == ["breakers_unusable"] * 2


def test_a_database_that_goes_away_during_an_attempt_ends_nothing(world, monkeypatch, caplog):
    world.open()
    world.clock.advance(60.0)
    world.parties.may_begin(ONE, BUILD)
    monkeypatch.setattr(world.store, "read", Broken().read)

    with caplog.at_level(logging.WARNING, logger="adw.engine"):
        world.parties.answered(ONE, BUILD)
        world.parties.let_go(ONE)

    assert [record.action for record in caplog.records] == ["breakers_unusable"] * 2


def test_secrets_are_taken_out_of_the_reason(world):
    parties = world.make(scrub=lambda text: text.replace("sk-secret", "[redacted]"))

    parties.settle(ONE, BUILD, failed("auth", message="the key sk-secret is refused"))

    assert world.breakers.get("anthropic").row.reason == "auth: the key [redacted] is refused"
