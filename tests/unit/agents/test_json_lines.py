"""
Reading JSON of a stranger: what is not there, or is of another type, was not said.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.agents.base import amount_at, count_at, list_at, money_at, object_at, status_at, text_at

EVENT = {"text": "a", "number": 5, "object": {"text": "b", "none": None}, "list": [1], "yes": True}


def test_values_are_found_by_their_path():
    assert text_at(EVENT, "object", "text") == "b"
    assert count_at(EVENT, "number") == 5
    assert object_at(EVENT, "object")["text"] == "b"
    assert list_at(EVENT, "list") == [1]


@pytest.mark.parametrize("path", [("nothing",), ("text", "deeper"), ("object", "none"), ("yes",), ("list", "0")])
def test_what_is_not_there_was_not_said(path):
    assert (count_at(EVENT, *path), amount_at(EVENT, *path), list_at(EVENT, *path)) == (0, None, ())
    assert (text_at(EVENT, *path), object_at(EVENT, *path), status_at(EVENT, *path)) == ("", {}, None)


@pytest.mark.parametrize("value", [True, -1, float("nan"), float("inf"), 10**16, 10**400, "5", None])
def test_what_is_no_count_counts_as_nothing(value):
    assert count_at({"x": value}, "x") == 0
    assert amount_at({"x": value}, "x") is None


@pytest.mark.parametrize(("value", "money"), [(0, 0.0), (1.5, 1.5), (1e9, 1e9), (2e9, None), ("1", None)])
def test_money_is_a_number_that_somebody_could_pay(value, money):
    assert money_at({"x": value}, "x") == money


@pytest.mark.parametrize(("value", "status"), [(429, 429), (99, None), (600, None), (429.0, 429), ("429", None)])
def test_a_status_is_one_of_http(value, status):
    assert status_at({"x": value}, "x") == status


@given(text=st.text(max_size=400))
def test_what_is_shown_is_one_short_line(text):
    result = agents_base.shown(text)

    assert len(result) <= agents_base.MAX_SHOWN
    assert len(result.splitlines()) <= 1
    assert "\x1b" not in result


@given(text=st.text(alphabet=st.characters(), max_size=100))
def test_what_is_kept_can_be_stored(text):
    result = text_at({"x": text + "\ud800\x00"}, "x")

    assert "\x00" not in result
    result.encode()


def test_a_text_of_any_length_is_cut():
    assert len(text_at({"x": "y" * 1_000_000}, "x")) == agents_base.MAX_TEXT
    assert agents_base.shown("y" * 1_000) == "y" * (agents_base.MAX_SHOWN - 3) + "..."
