"""Acceptance tests start hundreds of commands: they are forked from a process that has loaded adw."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests import warm


@pytest.fixture
def run_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """What the fixture `adw` runs its commands with."""
    return warm.run
