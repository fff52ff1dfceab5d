"""docs/deployment.md names the states, tables and settings there are."""

from __future__ import annotations

import re
from pathlib import Path

from adws.adw_modules.queue.model import RunState
from adws.adw_modules.queue.workers import NO_MATCH_SECONDS, RunnerState
from adws.config import load as config_load
from adws.config import settings as config_settings

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "deployment.md").read_text()


def states_in(title: str) -> set[str]:
    part = PAGE.split(f"### {title}\n")[1].split("\n##")[0]
    rows = re.findall(r"^- ([a-z, ]+): ", part, re.MULTILINE)
    return {word.strip() for row in rows for word in row.split(",")}


def test_every_state_is_explained_and_no_other():
    assert states_in("States") == {state.value for state in RunState}
    assert states_in("Workers") == {state.value for state in RunnerState}


def test_the_settings_that_are_named_are_there_with_the_values_it_says():
    named = set(re.findall(r"`((?:worker|runs|runners|lease)\.\w+)`", PAGE))

    assert named <= {setting.key for setting in config_settings.SETTINGS}
    assert f"fails after {NO_MATCH_SECONDS / 60:.0f} minutes" in PAGE


def test_the_example_of_limits_is_read(tmp_path):
    (tmp_path / "adw.toml").write_text(PAGE.split("```toml\n")[2].split("```")[0])

    limits = config_load.load(env={"ADW_HOME": str(tmp_path)}, cwd=tmp_path).run_limits

    assert [limits.of(f"repository:acme/{name}") for name in ("widget", "other")] == [1, 2]
