"""The points in which adw fell short of the five design documents name tests that exist."""

from __future__ import annotations

import tomllib

from tests.unit.docs.test_seed_flaws import ROOT, has_test

POINTS = tomllib.loads((ROOT / "tests" / "seed_points.toml").read_text())["points"]


def test_there_are_all_24_points_with_their_document_and_tests():
    assert len(POINTS) == 24
    assert all(set(point) == {"seed", "point", "tests"} for point in POINTS)
    assert {point["seed"] for point in POINTS} == {"000", "001", "002", "003", "004"}
    assert len({point["point"] for point in POINTS}) == 24


def test_every_test_that_a_point_names_exists():
    for point in POINTS:
        assert point["tests"], point
        assert [test for test in point["tests"] if not has_test(test, ROOT)] == [], point
