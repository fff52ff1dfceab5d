"""The page about the five design documents: its points name tests that exist, and no number stands in its text."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.unit.docs.test_seed_flaws import ROOT, has_test

POINTS = tomllib.loads((ROOT / "tests" / "seed_points.toml").read_text())["points"]
PAGE = (ROOT / "docs" / "seeds.md").read_text()
#: The parts of the page that scripts/docs writes; `scripts/check docs` says when they are out of date.
GENERATED = re.compile(r"<!-- generated: ([a-z-]+) -->\n(.*?)<!-- /generated -->", re.DOTALL)


def test_there_are_all_24_points_in_the_form_that_the_page_needs():
    assert len(POINTS) == 24
    assert all(set(point) == {"seed", "point", "tests"} for point in POINTS)
    assert {point["seed"] for point in POINTS} == {"000", "001", "002", "003", "004"}
    assert len({point["point"] for point in POINTS}) == 24


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point["point"][:40])
def test_every_test_that_a_point_names_exists(point):
    assert point["tests"]
    assert [test for test in point["tests"] if not has_test(test, ROOT)] == []


def test_the_page_has_a_part_for_each_document_and_each_generated_part_is_filled():
    headings = [line[3:6] for line in PAGE.splitlines() if re.match(r"## \d\d\d: ", line)]
    parts = dict(GENERATED.findall(PAGE))

    assert headings == ["000", "001", "002", "003", "004"]
    assert set(parts) == {"seed-documents", "seed-facts", "seed-points"}
    assert all(len(part.splitlines()) > 5 for part in parts.values())


def test_numbers_that_the_code_has_stand_in_the_generated_parts_only():
    """A number in the text could become wrong without anybody noticing: those of the documents themselves are named."""
    of_documents = {"000", "001", "002", "003", "004", "10 KB", "2 ** 1024", '"5"', "to 0,", "to 0 when"}
    text = GENERATED.sub("", PAGE)
    for known in of_documents:
        text = text.replace(known, "")

    assert re.findall(r"\b\d+\b", text) == []
