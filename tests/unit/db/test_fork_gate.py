"""The gate stays closed while any thread forks, and only a child is ever shut out for good."""

from __future__ import annotations

import threading

import pytest

from adws.adw_modules.db.sqlite import ForkGate
from adws.adw_modules.errors import DatabaseUnavailable

#: Far more than any of this takes: it only ends a test that would hang.
LONG_SECONDS = 20.0


@pytest.fixture
def gate():
    return ForkGate(patience_seconds=LONG_SECONDS)


def in_thread(work):
    """Run *work* in a thread and wait for it to end."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LONG_SECONDS)
    assert not thread.is_alive()


def test_the_gate_opens_when_the_last_of_two_forks_is_made(gate):
    gate.close()
    in_thread(lambda: (gate.close(), gate.open()))

    entered = threading.Event()
    visitor = threading.Thread(target=lambda: (gate.enter(), entered.set(), gate.leave()), daemon=True)
    visitor.start()
    while not gate._changed._waiters and not entered.is_set():
        threading.Event().wait(0.001)
    assert not entered.is_set(), "our own fork is still to be made"

    gate.open()
    assert entered.wait(LONG_SECONDS)


def test_another_thread_waits_while_a_fork_is_made_inside_a_transaction(gate):
    gate.enter()
    assert not gate.close()

    told = []

    def visit() -> None:
        try:
            gate.enter()
        except DatabaseUnavailable as exc:
            told.append(exc)
        else:
            gate.leave()

    visitor = threading.Thread(target=visit, daemon=True)
    visitor.start()
    while not gate._changed._waiters and visitor.is_alive():
        threading.Event().wait(0.001)
    gate.open()
    visitor.join(LONG_SECONDS)

    assert told == [], "this process is the parent: it goes on"


def test_a_child_of_a_child_that_was_forked_inside_is_shut_out_too(gate):
    gate.enter()
    gate.close()
    gate.start_in_child()
    gate.leave()
    assert gate.close()
    gate.start_in_child()

    with pytest.raises(DatabaseUnavailable, match="forked inside"):
        gate.enter()
