"""What sinks save: rows, columns and lines made of results."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.errors import SinkRefused
from adws.adw_modules.steps import sink_rows

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("result", "rows"),
    [
        (None, []),
        ([], []),
        ({"id": 1}, [{"id": 1}]),
        ([{"id": 1}, {"id": 2}], [{"id": 1}, {"id": 2}]),
        (7, [{"value": 7}]),
        ("ab", [{"value": "ab"}]),
        ([1, None, ["x"]], [{"value": 1}, {"value": None}, {"value": ["x"]}]),
        (({"id": 1},), [{"id": 1}]),
    ],
    ids=["nothing", "empty", "table", "tables", "number", "text", "mixed", "sequence"],
)
def test_a_list_is_many_rows_a_table_is_one_and_anything_else_is_a_value(result, rows):
    assert sink_rows.rows_of(result) == rows


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({}, "no columns"),
        ({"": 1}, "cannot be the name of a column"),
        ({" ": 1}, "cannot be the name of a column"),
        ({"a\nb": 1}, "cannot be the name of a column"),
        ({"\x00": 1}, "cannot be the name of a column"),
        ({"ä" * 32: 1}, "1 to 63"),
        ({f"c{number}": 1 for number in range(501)}, "501 columns"),
    ],
    ids=["none", "empty", "blank", "line-break", "nul", "too-long", "too-many"],
)
def test_what_cannot_be_a_column_is_refused_by_name(row, why):
    with pytest.raises(SinkRefused, match=why):
        sink_rows.columns_of([row])


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None, None], "nothing"),
        ([True, None], "truth"),
        ([1, 2], "whole"),
        ([1, 2.5], "number"),
        (["a", None], "text"),
        ([[1], {}], "json"),
        ([1, "a"], "mixed"),
        ([True, 1], "mixed"),
    ],
)
def test_a_column_holds_what_its_values_are(values, kind):
    assert sink_rows.kind_of(values) == kind


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=4))
def test_every_row_comes_back_from_its_line_of_json(rows):
    lines = sink_rows.json_lines(rows).split(b"\n")

    assert [json.loads(line) for line in lines if line] == rows
    assert lines[-1] == b""
    assert len(lines) == len(rows) + 1


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\r"), min_size=1), max_size=4))
def test_every_text_comes_back_from_its_line_of_csv(texts):
    payload = sink_rows.csv_lines([{"a": text, "b": 1} for text in texts], ("a", "b"), delimiter=";", with_header=True)
    back = list(csv.reader(io.StringIO(payload.decode(), newline=""), delimiter=";"))

    assert back == [["a", "b"], *([text, "1"] for text in texts)]


def test_values_inside_of_values_are_json_in_csv():
    rows = [{"a": None, "b": True, "c": {"x": [1]}, "d": 1.5}]

    payload = sink_rows.csv_lines(rows, ("a", "b", "c", "d"), delimiter=",", with_header=False)

    assert payload == b',true,"{""x"":[1]}",1.5\n'


def test_a_text_that_is_no_utf_8_is_refused_in_csv():
    with pytest.raises(SinkRefused, match="UTF-8"):
        sink_rows.csv_lines([{"a": "\ud800"}], ("a",), delimiter=",", with_header=False)


@pytest.mark.parametrize("header", [b"", b"  ", b'"unfinished', b"\xff"])
def test_a_first_line_that_names_no_columns_is_refused(header):
    with pytest.raises(SinkRefused, match="first line"):
        sink_rows.csv_columns(header, delimiter=",")
