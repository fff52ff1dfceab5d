"""
What becomes of the results of a chain of calls: the part at the path, put together as the strategy says.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.errors import ExpressionError
from adws.adw_modules.steps.call_policy import at_path, collected, merged, part_of_page
from adws.adw_modules.workflow.model import path_problem

PAGES = [
    {"data": {"items": [1, 2]}, "page": 1},
    {"data": {"items": []}, "page": 2},
    {"data": {"items": [3]}, "page": 3},
]


@pytest.mark.parametrize(
    ("strategy", "path", "value"),
    [
        ("append", "data.items", [1, 2, 3]),
        ("collect", "", PAGES),
        ("collect", "page", [1, 2, 3]),
        ("collect", "data.items", [[1, 2], [], [3]]),
        ("merge", "", {"data": {"items": [3]}, "page": 3}),
        ("merge", "data", {"items": [3]}),
    ],
)
def test_pages_are_put_together_in_their_order(strategy, path, value):
    assert collected(strategy, [part_of_page(strategy, page, path) for page in PAGES]) == value


@pytest.mark.parametrize(("strategy", "nothing"), [("append", []), ("collect", []), ("merge", {})])
def test_no_page_at_all_is_nothing(strategy, nothing):
    assert collected(strategy, []) == nothing


@pytest.mark.parametrize(
    ("strategy", "result", "path", "words"),
    [
        ("append", {"data": {"a": 1}}, "data", "append needs a list at data in the result, and there is a table"),
        ("append", "text", "", "append needs a list as the result, and there is a text"),
        ("append", {"data": None}, "data", "and there is null"),
        ("append", {"data": True}, "data", "and there is true or false"),
        ("append", {"data": 3}, "data", "and there is a number"),
        ("merge", [1], "", "merge needs a table as the result, and there is a list"),
        ("append", {"dta": []}, "data", "merge_path data: there is no data in the result; it has: dta"),
        ("append", {"data": {}}, "data.items", "merge_path data.items: there is no items in data, it is empty"),
        ("collect", {"data": [1]}, "data.items", "there is no items in data, which is a list"),
        ("replace", {"data": [1]}, "data.1", "there is no 1 in data, which is a list"),
        ("replace", {"a": {"b": None}}, "a.b.c", "there is no c in a.b, which is null"),
    ],
)
def test_a_page_without_what_is_asked_of_it_is_an_error_and_not_left_out(strategy, result, path, words):
    with pytest.raises(ExpressionError) as info:
        part_of_page(strategy, result, path)

    assert words in str(info.value)


def test_a_path_goes_through_tables_and_lists():
    assert at_path({"pages": [{"rows": 1}, {"rows": 2}]}, "pages.1.rows") == 2
    assert at_path({"0": "a"}, "0") == "a"
    assert at_path([1], "") == [1]


@pytest.mark.parametrize("path", ["", "data", "data.items", "a.0.b", "data-items.x y"])
def test_keys_with_dots_between_are_a_path(path):
    assert path_problem(path) == ""


@pytest.mark.parametrize("path", [".", "data.", ".data", "a..b", " data", "a. b", ".".join("a" * 51)])
def test_what_is_no_path_is_said_to_be_none(path):
    assert "must be keys with dots between" in path_problem(path)


def test_tables_are_merged_deeply_and_of_all_else_the_later_counts():
    first = {"a": {"b": 1, "c": {"d": 1}}, "list": [1], "x": {"y": 1}}
    second = {"a": {"b": 2, "c": {"e": 2}}, "list": [2], "x": 5, "new": None}

    assert merged(first, second) == {"a": {"b": 2, "c": {"d": 1, "e": 2}}, "list": [2], "x": 5, "new": None}
    assert first == {"a": {"b": 1, "c": {"d": 1}}, "list": [1], "x": {"y": 1}}


@given(pages=st.lists(st.lists(st.integers(), max_size=5), max_size=6))
def test_append_keeps_every_item_once_and_in_order(pages):
    assert collected("append", pages) == [one for page in pages for one in page]
