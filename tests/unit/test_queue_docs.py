"""docs/queue.md names the states, tables and settings there are."""

from __future__ import annotations

import re
from pathlib import Path

from adws import config
from adws.adw_modules.run_waiting import RunnerState
from adws.adw_modules.runs import RunState

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "queue.md").read_text()


def states_in(title: str) -> set[str]:
    part = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([a-z, ]+) \|", part, re.MULTILINE)
    return {word.strip() for row in rows for word in row.split(",")} - {"state"}


def test_every_state_is_explained_and_no_other():
    assert states_in("States") == {state.value for state in RunState}
    assert states_in("Workers") == {state.value for state in RunnerState}


def test_the_settings_that_are_named_are_there_with_the_values_it_says():
    settings = {setting.key: setting.default for setting in config.SETTINGS}
    named = set(re.findall(r"`((?:worker|runs|runners|lease)\.\w+)`", PAGE))

    assert named <= settings.keys()
    assert f"`runs.no_match_seconds` ({settings['runs.no_match_seconds']})" in PAGE
    assert f"`runners.forget_seconds` ({settings['runners.forget_seconds']})" in PAGE


def test_the_example_of_limits_is_read(tmp_path):
    (tmp_path / "adw.toml").write_text(PAGE.split("```toml\n")[2].split("```")[0])

    limits = config.load(env={"ADW_HOME": str(tmp_path)}, cwd=tmp_path).run_limits

    assert [limits.of(f"repository:acme/{name}") for name in ("widget", "other")] == [1, 2]
