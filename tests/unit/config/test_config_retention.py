"""For how long what is over is kept, as settings."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import ConfigError
from adws.config import load as config_load

NAMES = ("events", "logs", "deliveries", "workflows")


def load(tmp_path, **values: str):
    env = {f"ADW_RETENTION_{name.upper()}_DAYS": value for name, value in values.items()}
    return config_load.load(env=env, cwd=tmp_path)


def days_of(settings) -> dict[str, int]:
    return {name: getattr(settings, f"retention_{name}_days") for name in NAMES}


def test_finished_workflows_are_kept_for_ever_unless_somebody_says_otherwise(tmp_path):
    assert days_of(load(tmp_path)) == {"events": 365, "logs": 90, "deliveries": 14, "workflows": 0}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["0", "3", "36500"])
def test_days_can_be_set_and_0_is_for_ever(tmp_path, name, value):
    assert days_of(load(tmp_path, **{name: value}))[name] == int(value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["-1", "36501", "soon", "1.5", "٣"])
def test_what_is_no_number_of_days_is_refused(tmp_path, name, value):
    with pytest.raises(ConfigError, match=rf"ADW_RETENTION_{name.upper()}_DAYS.*to 36500, or 0 for ever"):
        load(tmp_path, **{name: value})


def test_deliveries_are_kept_as_long_as_github_brings_them_again(tmp_path):
    with pytest.raises(ConfigError, match="from 3 to 36500"):
        load(tmp_path, deliveries="2")


def test_the_file_and_the_older_variable_set_them_too(tmp_path):
    (tmp_path / "adw.toml").write_text("[retention]\nevents_days = 30\nworkflows_days = 400\n")
    settings = config_load.load(env={"ADW_WEBHOOK_KEEP_DAYS": "30"}, cwd=tmp_path)

    assert days_of(settings) == {"events": 30, "logs": 90, "deliveries": 30, "workflows": 400}
