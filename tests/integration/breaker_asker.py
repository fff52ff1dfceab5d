"""
A process that uses a breaker, for the tests that let several share one.

Run as `python breaker_asker.py DATABASE_URL`: for each line it reads, `ask`, `fail`, `succeed` or `state`, it does that
and tells what came of it. Its clock stands still at the moment that a line `at SECONDS` names.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from adws.adw_modules.circuit_breaker import CircuitBreaker, CircuitBreakerConfig, DatabaseBreakers
from adws.adw_modules.db.migrate import open_database
from adws.testing import START, FakeClock

CONFIG = CircuitBreakerConfig(failure_threshold=2, reset_timeout_seconds=60.0)


def answer(breaker: CircuitBreaker, clock: FakeClock, words: list[str]) -> str:
    if words[0] == "at":
        clock.set(START + timedelta(seconds=float(words[1])))
        return "set"
    if words[0] == "ask":
        return "in" if breaker.can_execute() else "refused"
    if words[0] == "fail":
        breaker.record_failure(reason="down")
    if words[0] == "succeed":
        breaker.record_success()

    return breaker.state.value


def main(url: str) -> None:
    # Tokens come from the seed: two processes must not give out the same.
    clock = FakeClock(seed=int(sys.argv[2]))
    database = open_database(url, clock=clock)
    breaker = CircuitBreaker("party", CONFIG, store=DatabaseBreakers(database), clock=clock)
    for line in sys.stdin:
        sys.stdout.write(f"{answer(breaker, clock, line.split())}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
