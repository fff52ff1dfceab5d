"""Reading the body of a request within its limits."""

from __future__ import annotations

import asyncio
from itertools import repeat

import pytest

from adws.adw_triggers.http import BodyBudget, ClientGone, Problem, read_body, send_problem


def receiving(*chunks: bytes, last: bool = True):
    """A client that sends *chunks*, and then nothing."""
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    if last:
        messages.append({"type": "http.request", "body": b"", "more_body": False})
    taken = []

    async def receive():
        if not messages:
            await asyncio.Event().wait()
        taken.append(messages.pop(0))
        return taken[-1]

    receive.taken = taken
    return receive


def read(receive, *, head=None, most_bytes=100, seconds=60.0, budget=None):
    async def run():
        with (budget or BodyBudget(10_000)).share() as share:
            return await read_body(receive, head or {}, most_bytes=most_bytes, seconds=seconds, share=share)

    return asyncio.run(run())


def test_a_body_that_says_it_is_too_large_is_not_read_at_all():
    receive = receiving(b"x")

    assert read(receive, head={"content-length": "101"}).status == 413
    assert receive.taken == []


@pytest.mark.parametrize("declared", ["", "5", "-5", "abc", "9" * 40, "\u0665"])
def test_a_body_that_lies_about_its_size_is_cut_off_while_it_comes(declared):
    receive = receiving(*repeat(b"x" * 40, 50))

    assert read(receive, head={"content-length": declared}).status == 413
    assert len(receive.taken) == 3


def test_a_body_that_comes_too_slowly_is_cut_off():
    """
    The time is for all of it: a byte now and then does not help.
    """
    problem = read(receiving(b"x", b"x", last=False), seconds=0.01)

    assert (problem.status, problem.code) == (408, "too_slow")


def test_a_client_that_leaves_is_not_answered():
    async def receive():
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        read(receive)


def test_all_requests_together_have_only_so_much_memory():
    budget = BodyBudget(50)
    with budget.share() as other:
        assert other(40)
        assert read(receiving(b"x" * 20), budget=budget).status == 503

    assert read(receiving(b"x" * 20), budget=budget) == b"x" * 20


@pytest.mark.parametrize("status", [408, 413, 503])
def test_who_was_cut_off_is_let_go(status):
    """
    Else the server would wait for the rest of the body.
    """
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(send_problem(send, Problem(status=status, code="x", message="y")))

    assert (b"connection", b"close") in sent[0]["headers"]
    assert sent[0]["status"] == status
