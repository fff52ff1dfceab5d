"""Workers that are killed around every effect on the outside world: nothing is doubled, nothing is lost."""

from __future__ import annotations

import pytest

from tests import sampling
from tests.crash.driving import drive


@pytest.mark.parametrize("how", sampling.some([(), ("--without-clean",)], 1), ids=str)
def test_a_kill_around_any_effect_neither_doubles_nor_loses_it(tmp_path, seed, repeat, how):
    count = repeat(3, 0)
    result = drive("effects_driver", tmp_path, "--count", count, "--seed", seed, *how)

    assert result["problems"] == []
    assert result["steps"] > 50
    assert result["tried"] == (count or result["steps"])
