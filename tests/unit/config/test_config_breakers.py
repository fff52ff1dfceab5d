"""The settings of breakers, and their bounds."""

from __future__ import annotations

import pytest

from adws.adw_modules.circuit_breaker import CircuitBreakerConfig
from adws.adw_modules.errors import ConfigError
from adws.config import load as config_load


def load(tmp_path, **env: str) -> config_load.Settings:
    named = {f"ADW_BREAKERS_{name.upper()}": value for name, value in env.items()}
    return config_load.load(env={"ADW_HOME": str(tmp_path), **named}, cwd=tmp_path)


def test_the_defaults_are_those_of_a_breaker(tmp_path):
    settings = load(tmp_path)

    assert CircuitBreakerConfig() == CircuitBreakerConfig(
        settings.breakers_failure_threshold,
        settings.breakers_reset_timeout_seconds,
        settings.breakers_half_open_max_attempts,
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("failure_threshold", "0", "a whole number from 1 to 1000"),
        ("failure_threshold", "1001", "a whole number from 1 to 1000"),
        ("failure_threshold", "2.5", "a whole number from 1 to 1000"),
        ("reset_timeout_seconds", "0.9", "a number of seconds from 1 to 86400"),
        ("reset_timeout_seconds", "86400.1", "a number of seconds from 1 to 86400"),
        ("reset_timeout_seconds", "nan", "a number of seconds from 1 to 86400"),
        ("reset_timeout_seconds", "soon", "a number of seconds from 1 to 86400"),
        ("half_open_max_attempts", "11", "a whole number from 1 to 10"),
    ],
)
def test_a_number_out_of_its_bounds_is_refused(tmp_path, name, value, said):
    with pytest.raises(ConfigError, match=f"ADW_BREAKERS_{name.upper()}.*{said}"):
        load(tmp_path, **{name: value})


def test_the_bounds_themselves_are_allowed(tmp_path):
    settings = load(tmp_path, failure_threshold="1000", reset_timeout_seconds="1", half_open_max_attempts="10")

    assert settings.breakers_failure_threshold == 1000
    assert settings.breakers_reset_timeout_seconds == 1.0
    assert settings.breakers_half_open_max_attempts == 10
