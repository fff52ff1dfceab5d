"""What runs demand of workers: one spelling, one rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.errors import UsageError
from adws.adw_modules.workflow.requirements import Capabilities, Requirements, checked_host, meets

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,9}", fullmatch=True)
DEMANDS = st.builds(Requirements, host=st.just("") | NAMES, tags=st.frozensets(NAMES, max_size=4))
OFFERS = st.builds(Capabilities, host=NAMES, tags=st.frozensets(NAMES, max_size=4))


@given(DEMANDS)
def test_demands_are_read_back_from_their_text_and_from_their_json(demands):
    assert Requirements.from_text(demands.to_text()) == demands
    assert Requirements.from_json(demands.to_json()) == demands


def test_demands_have_one_text():
    assert Requirements(host="alpha", tags=frozenset({"b", "a"})).to_text() == '{"host":"alpha","tags":["a","b"]}'
    assert Requirements().to_text() == ""
    assert Requirements.from_text("") == Requirements()


def test_demands_are_told_in_words():
    assert Requirements(host="alpha", tags=frozenset({"b", "a"})).describe() == "host alpha and tag a and tag b"
    assert Requirements().describe() == "nothing"


@pytest.mark.parametrize(
    "text", ["x", "[]", "3", '{"colour": 1}', '{"host": 3}', '{"tags": "gpu"}', '{"tags": [1]}', '{"host": "a b"}']
)
def test_what_are_no_demands_is_refused(text):
    with pytest.raises(UsageError):
        Requirements.from_text(text)


@pytest.mark.parametrize(
    ("demands", "is_met"),
    [
        (Requirements(), True),
        (Requirements(host="alpha"), True),
        (Requirements(host="beta"), False),
        (Requirements(tags=frozenset({"gpu"})), True),
        (Requirements(tags=frozenset({"gpu", "big"})), False),
        (Requirements(host="beta", tags=frozenset({"gpu"})), False),
    ],
)
def test_an_offer_meets_demands_when_it_has_all_of_them(demands, is_met):
    assert meets(Capabilities(host="alpha", tags=frozenset({"gpu", "arm64"})), demands) is is_met


@given(OFFERS, DEMANDS)
def test_who_meets_more_meets_less(offer, demands):
    if meets(offer, demands):
        assert meets(offer, Requirements(tags=demands.tags))
        assert meets(Capabilities(host=offer.host, tags=offer.tags | {"more"}), demands)


def test_further_demands_are_added_and_another_host_takes_the_place_of_the_first():
    demands = Requirements(host="alpha", tags=frozenset({"gpu"}))

    assert demands.also(tags=["big"]) == Requirements(host="alpha", tags=frozenset({"gpu", "big"}))
    assert demands.also(host="beta") == Requirements(host="beta", tags=frozenset({"gpu"}))
    with pytest.raises(UsageError, match="no name of a host"):
        demands.also(host="two words")
    with pytest.raises(UsageError, match="no tag"):
        demands.also(tags=["a|b"])


@pytest.mark.parametrize("host", ["", " a", "-a", "a" * 101])
def test_what_is_no_name_of_a_host_is_refused(host):
    with pytest.raises(UsageError, match="no name of a host"):
        checked_host(host)
