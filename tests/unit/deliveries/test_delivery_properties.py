"""Whatever comes in, reading it gives a value, soon, and never an exception."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import hypothesis
from hypothesis import strategies as st

from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import COMMANDS, Command, Delivery, RunRequest
from adws.adw_triggers.delivery import read
from adws.adw_triggers.http import Problem
from tests.delivery_cases import RULES, checks, comment, issue, labeled, payload, pull_request, review, signed, user

SAMPLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("issues", labeled()),
    ("issues", payload("opened", sender=user("mona"), issue=issue(body="adw_plan_iso model_set heavy"))),
    ("issues", payload("assigned", issue=issue(), assignee=user("adw-bot"))),
    ("issues", payload("closed", issue=issue())),
    ("issue_comment", comment("/adw resume use v2")),
    ("issue_comment", comment("adw_build_iso adw-12345678\nplease")),
    ("pull_request", pull_request(merged=True)),
    ("pull_request_review", review()),
    ("check_suite", checks()),
    ("workflow_run", checks("workflow_run")),
    ("ping", {"zen": "x"}),
)
EVENTS = sorted({event for event, _ in SAMPLES})
#: 500 in the normal tier, 10,000 in the soak.
MANY = 5 * hypothesis.settings.default.max_examples
#: Seconds that one small delivery may take on a busy machine; it takes less than a thousandth of that.
SOON = 5.0

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.sampled_from(
        ["ghost", "x[bot]", "adw", "/adw stop", "adw_sdlc_ZTE_iso", "<!--", "```", "\ud800", "\x00", "created"]
    ),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A sample of which some parts are gone or something else."""
    event, sample = draw(st.sampled_from(SAMPLES))
    told = copy.deepcopy(sample)
    for _ in range(draw(st.integers(0, 4))):
        _change(draw, told)

    return draw(st.sampled_from([event, event, event, *EVENTS])), told


def _change(draw: st.DrawFn, told: dict[str, Any]) -> None:
    place: Any = told
    while True:
        names = list(range(len(place))) if isinstance(place, list) else sorted(place)
        if not names:
            return
        name = draw(st.sampled_from(names))
        inside = place[name]
        if isinstance(inside, dict | list) and inside and draw(st.booleans()):
            place = inside
            continue
        if draw(st.booleans()):
            place[name] = draw(values)
        else:
            del place[name]
        return


def _judged(headers: dict[str, str], body: bytes) -> Delivery | Problem:
    started = time.process_time()
    made = read(headers, body, RULES)
    assert time.process_time() - started < SOON

    return made


@hypothesis.settings(max_examples=MANY)
@hypothesis.given(mutated())
def test_a_signed_delivery_of_any_shape_is_kept_or_refused(case):
    event, told = case
    body = json.dumps(told).encode()
    made = _judged(signed(event, body), body)
    if isinstance(made, Problem):
        assert made.status == 400
        return
    assert made.verdict in {"run", "command", "ignored"}
    assert made.reason
    assert (made.request == {}) == (made.verdict == "ignored")
    if made.request:
        wish = commands.from_json(json.loads(json.dumps(made.request)))
        assert isinstance(wish, RunRequest if made.verdict == "run" else Command)
        assert made.repository == wish.repository == "acme/widget"
        assert wish.actor.login or getattr(wish, "cause", "") in {"pull_request", "checks"}
        assert not isinstance(wish, Command) or (wish.kind in COMMANDS and wish.number > 0)
        json.dumps(made.request, ensure_ascii=False).encode()  # every text can be stored


@hypothesis.settings(max_examples=MANY)
@hypothesis.given(mutated(), st.data())
def test_bytes_of_any_kind_are_kept_or_refused(case, data):
    event, told = case
    body = bytearray(json.dumps(told).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(body)))
        cut = data.draw(st.integers(0, 8))
        body[place : place + cut] = data.draw(st.binary(max_size=8))
    made = _judged(signed(event, bytes(body)), bytes(body))

    assert isinstance(made, Delivery) or made.status == 400


@hypothesis.given(
    st.dictionaries(
        st.sampled_from(sorted(signed("issues", b""))) | st.text(max_size=20), st.text(max_size=80), max_size=8
    ),
    st.binary(max_size=200),
)
def test_without_a_signature_of_ours_nothing_is_taken(headers, body):
    assert _judged(headers, body) == Problem(status=401, code="bad_signature", message=_judged(headers, body).message)
