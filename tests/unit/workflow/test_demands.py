"""What runs demand of workers: one spelling, one rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.errors import UsageError
from adws.adw_modules.workflow.requirements import Capabilities, Requirements, checked_host, meets

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,9}", fullmatch=True)
DEMANDS = st.builds(Requirements, host=st.just("") | NAMES, tags=st.frozensets(NAMES, max_size=4))


@given(DEMANDS)
def test_demands_are_read_back_from_their_text_and_from_their_json(demands):
    assert Requirements.from_text(demands.to_text()) == demands
    assert Requirements.from_json(demands.to_json()) == demands


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
