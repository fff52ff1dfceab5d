"""Who may use the API."""

from __future__ import annotations

import hmac

import pytest

from adws.web import middleware

ONE, TWO = "first-token-0123456789", "second-token-0123456789"


@pytest.mark.parametrize(
    "shown",
    [
        "",
        ONE,
        f"Basic {ONE}",
        "Bearer",
        "Bearer ",
        f"Bearer {ONE}x",
        f"Bearer {ONE[:-1]}",
        "Bearer \xff",
        f"Bearer {ONE},{TWO}",
    ],
)
def test_anything_else_does_not(shown):
    problem = middleware.why_not({"authorization": shown}, (ONE, TWO))

    assert problem is not None
    assert problem.status == 401
    assert ONE not in str(problem)


def test_every_token_is_compared_each_time_in_constant_time(monkeypatch):
    """A comparison that stops early shows by its time which token it was."""
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(middleware.hmac, "compare_digest", lambda a, b: compared.append(b) or real(a, b))

    middleware.why_not({"authorization": f"Bearer {ONE}"}, (ONE, TWO))

    assert compared == [ONE.encode(), TWO.encode()]
