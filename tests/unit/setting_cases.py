"""Settings as a home has them, with those changed that a test is about."""

from __future__ import annotations

from pathlib import Path

from adws.config import load as config_load
from adws.config.settings import BY_NAME, Settings


def settings_with(home: Path = Path("/nowhere"), **changes: str) -> Settings:
    """Return the usual settings with *changes*: the name of each and its text, as a variable has it."""
    return config_load.load(env={BY_NAME[name].env: text for name, text in changes.items()}, cwd=home)
