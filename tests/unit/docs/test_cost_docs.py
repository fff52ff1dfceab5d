"""The page about costs: its commands parse, its prices are read, its limits and events are the ones there are."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from adws.adw_modules.agent import TokenUsage
from adws.adw_modules.agents import prices
from adws.adw_modules.costs import WARN_AT
from adws.adw_modules.events import EVENT_TYPES
from adws.cli import reports as cli_reports
from adws.cli import work
from adws.config import settings

PAGE = (Path(__file__).parents[3] / "docs/costs.md").read_text()
BLOCKS = re.findall(r"```\w*\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line.partition("#")[0] for block in BLOCKS for line in block.splitlines() if line.startswith("adw ")]
KNOWN = {"report": cli_reports.report, "resume": work.resume}


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_on_the_page_is_one_that_there_is(line):
    _, name, *arguments = shlex.split(line.replace("ID", "1a2b3c4d"))

    assert KNOWN[name].make_context(name, arguments).params


def test_the_prices_on_the_page_are_read_as_they_say():
    (block,) = [block for block in BLOCKS if "[prices" in block]
    own = prices.read_prices(tomllib.loads(block)["prices"])

    tokens = TokenUsage(input=1_000_000, output=1_000_000, cache_read=1_000_000, cache_write=1_000_000)
    assert prices.cost_of("claude-sonnet-9", tokens, own) == pytest.approx(3 + 15 + 0.3 + 3.75)


def test_the_limits_on_the_page_have_the_defaults_of_the_settings():
    for name in ("max_cost", "max_cost_per_day"):
        assert f"| `quota.{name}` | setting, {settings.BY_NAME[f'quota_{name}'].default} |" in PAGE


def test_the_events_and_ways_to_pay_on_the_page_are_those_there_are():
    assert all(f"`{name}`" in PAGE for name in ("auto", "api", "subscription"))
    assert all(f"`{name}`" in PAGE for name in EVENT_TYPES if name.startswith("budget_"))
    assert WARN_AT == 4 / 5
    assert "Four fifths" in PAGE
