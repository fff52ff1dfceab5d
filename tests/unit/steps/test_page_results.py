"""
What becomes of the results of a chain of calls: the part at the path, put together as the strategy says.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import ExpressionError
from adws.adw_modules.steps.call_policy import collected, merged, part_of_page

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


def test_tables_are_merged_deeply_and_of_all_else_the_later_counts():
    first = {"a": {"b": 1, "c": {"d": 1}}, "list": [1], "x": {"y": 1}}
    second = {"a": {"b": 2, "c": {"e": 2}}, "list": [2], "x": 5, "new": None}

    assert merged(first, second) == {"a": {"b": 2, "c": {"d": 1, "e": 2}}, "list": [2], "x": 5, "new": None}
    assert first == {"a": {"b": 1, "c": {"d": 1}}, "list": [1], "x": {"y": 1}}
