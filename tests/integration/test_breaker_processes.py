"""Breakers in a database: real processes share them, and what a killed one held is free again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adws.adw_modules.circuit_breaker import CircuitBreaker, CircuitBreakerConfig, CircuitState, DatabaseBreakers
from adws.adw_modules.errors import DatabaseError
from tests import warm

ROOT = Path(__file__).parents[2]


class Asker:
    """A process with the breaker."""

    def __init__(self, url: str, number: int) -> None:
        self.process = warm.Popen(
            [sys.executable, str(ROOT / "tests/integration/breaker_asker.py"), url, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def tell(self, words: str) -> None:
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        return self.process.stdout.readline().strip()

    def do(self, words: str) -> str:
        self.tell(words)
        return self.hear()

    def end(self, *, is_killed: bool = False) -> None:
        if is_killed:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def askers(database_url):
    made = [Asker(database_url, number) for number in range(3)]
    yield made
    for asker in made:
        asker.end()


def test_failures_of_several_processes_add_up_and_open_the_breaker_for_all(askers):
    first, second, third = askers

    assert first.do("fail") == "closed"
    assert second.do("fail") == "open"

    assert first.do("ask") == "refused"
    assert third.do("ask") == "refused"


def test_of_many_processes_that_ask_at_once_one_tries_and_its_success_lets_all_in(askers):
    askers[0].do("fail")
    askers[0].do("fail")
    for asker in askers:
        asker.do("at 60")

    for asker in askers:
        asker.tell("ask")
    heard = [asker.hear() for asker in askers]

    assert sorted(heard) == ["in", "refused", "refused"]
    assert askers[heard.index("in")].do("succeed") == "closed"
    assert [asker.do("ask") for asker in askers] == ["in", "in", "in"]


def test_the_place_of_a_killed_process_is_free_again_after_its_time(askers):
    first, second, _third = askers
    first.do("fail")
    first.do("fail")
    first.do("at 60")
    assert first.do("ask") == "in"
    first.end(is_killed=True)
    second.do("at 119")
    assert second.do("ask") == "refused"

    second.do("at 120")

    assert second.do("ask") == "in"


def test_a_breaker_is_what_it_was_after_a_restart(database_url, open_db, clock):
    config = CircuitBreakerConfig(failure_threshold=1)
    before = CircuitBreaker("party", config, store=DatabaseBreakers(open_db(database_url)), clock=clock)
    before.record_failure(reason="down")

    after = CircuitBreaker("party", config, store=DatabaseBreakers(open_db(database_url)), clock=clock)

    assert after.row == before.row
    clock.advance(60.0)
    assert after.state is CircuitState.HALF_OPEN


@pytest.mark.parametrize(("column", "text"), [("permits", "[1]"), ("permits", "not JSON"), ("settings", "{")])
def test_a_row_that_somebody_spoilt_is_named(database, clock, column, text):
    store = DatabaseBreakers(database)
    CircuitBreaker("party", store=store, clock=clock).record_failure()
    database.transact(lambda session: session.run(f"UPDATE breakers SET {column} = :text", {"text": text}))

    with pytest.raises(DatabaseError, match=r"the row of breaker 'party' cannot be read .*: delete it"):
        store.all()


def test_a_reason_that_no_database_can_store_is_stored_as_far_as_it_can(database, clock):
    breaker = CircuitBreaker(
        "party", CircuitBreakerConfig(failure_threshold=1), store=DatabaseBreakers(database), clock=clock
    )

    breaker.record_failure(reason="no\x00answer \ud800")

    assert breaker.row.reason == "no\ufffdanswer ?"
