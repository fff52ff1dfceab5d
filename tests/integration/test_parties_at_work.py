"""Breakers around real work: a phase waits for a service whose breaker is open, and its end is told to the breaker."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from adws.adw_modules.circuit_breaker import CircuitBreakerConfig
from adws.adw_modules.workflow.model import RetrySpec
from tests import failing_git_server
from tests.integration.work_lab import BUILD, PLAN, SHIP, git, make_work_lab


@pytest.fixture
def lab(tmp_path):
    return make_work_lab(tmp_path, breakers=CircuitBreakerConfig(1, 3600.0))


def events(lab, adw_id: str, event_type: str) -> list[dict]:
    with lab.open() as app:
        app.catch_up(adw_id)
        app.projection.flush()
        return [event.data for event in app.events.of_workflow(adw_id) if event.event_type == event_type]


def test_shipping_waits_for_a_remote_that_is_held_off_and_uses_no_attempt(lab):
    with lab.open() as app:
        until = app.clock.now() + timedelta(hours=1)
        app.breakers.get("git").open_until(until, "network: no route")
    adw_id = lab.start(PLAN, BUILD, replace(SHIP, needs=("plan", "build")))

    lab.work()

    ship = lab.document(adw_id).phases[-1]
    assert (ship.status, ship.attempts_used, ship.attempts) == ("retry_wait", 0, [])
    [told] = events(lab, adw_id, "breaker_waited")
    assert told["party"] == "git"
    assert told["at"] == ship.retry_at
    with lab.open() as app:
        assert ship.retry_at == app.breakers.get("git").row.reopens_at
        app.breakers.get("git").reset()
        app.control.resume(adw_id, by="a person")
    lab.work()
    assert lab.document(adw_id).current_state == "completed"


def test_a_remote_that_gives_no_answer_opens_its_breaker_and_the_next_workflow_waits(lab, monkeypatch):
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file:http")  # nobody listens there: nothing leaves this machine
    adw_id = lab.start(PLAN, BUILD, replace(SHIP, needs=("plan", "build"), max_attempts=2))
    git(lab.home, "remote", "set-url", "--push", "origin", "http://127.0.0.1:1/nobody.git")

    lab.work()

    with lab.open() as app:
        row = app.breakers.get("git").row
    assert (row.state, row.failures) == ("open", 1)
    assert row.reason.startswith("network: ")
    [told] = events(lab, adw_id, "breaker_opened")
    assert (told["party"], told["class"], told["reopens_at"]) == ("git", "network", row.reopens_at)
    ship = lab.document(adw_id).phases[-1]
    assert (ship.status, ship.attempts_used) == ("retry_wait", 0), "the next attempt waits for the breaker"
    assert [attempt.status for attempt in ship.attempts] == ["parked"]
    assert "; adw gives up at " in ship.wait_reason


def test_a_trial_that_works_makes_everything_due_that_waits_for_the_same_service(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file:http")  # tests are kept from the network otherwise
    lab = make_work_lab(tmp_path, breakers=CircuitBreakerConfig(2, 1.0))
    slow = replace(SHIP, needs=("plan", "build"), retry=RetrySpec(base_seconds=3000))
    with failing_git_server.serve(lab.remote).running() as server:
        git(lab.home, "remote", "set-url", "origin", server.url)
        server.failures_left = -1
        first, second = lab.start(PLAN, BUILD, slow), lab.start(PLAN, BUILD, slow, title="Another thing")
        lab.work()
        assert [lab.document(one).phases[-1].parks for one in (first, second)] == [1, 1]
        server.failures_left = 0

        with lab.open() as app:
            app.control.resume(first, by="a person")
        lab.work()

    assert [lab.document(one).current_state for one in (first, second)] == ["completed", "completed"]
    assert len(events(lab, first, "breaker_closed")) == 1


@pytest.mark.parametrize(
    ("runner", "provider"),
    [("claude", "anthropic"), ("codex", "openai"), ("agent", "openai"), ("command", ""), ("ship", "")],
)
def test_the_provider_of_a_phase_is_that_of_its_agent(runner, provider, tmp_path):
    with make_work_lab(tmp_path, ADW_AGENT_NAME="codex").open() as app:
        assert app.providers.get(runner, "") == provider
