"""
The agents that adw can run: one module each, loaded when its agent is asked for.

A profile is pure: how the agent is called, what its output means, how it failed. No profile knows another one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.spelling import hint

if TYPE_CHECKING:
    from adws.adw_modules.agent import AgentProfile

_NAMES = ("claude", "codex", "gemini", "opencode", "aider")


def names() -> tuple[str, ...]:
    """Return the names of all agents, the best supported first."""
    return _NAMES


def profile(name: str) -> AgentProfile:
    """Return the agent called *name*; raise ConfigError for one that does not exist."""
    if name not in _NAMES:
        raise ConfigError(f"there is no agent {name!r}{hint(name, _NAMES)}")
    found: AgentProfile = import_module(f"{__name__}.{name}").PROFILE

    return found
