"""
The wiring of the outside parties of phases: which provider an agent asks, and what shipping needs.

Apart from `app_work` because it says who is who, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from adws import config
from adws.adw_modules import agents
from adws.adw_modules.engine.parties import Parties
from adws.adw_modules.workflow import AGENT

if TYPE_CHECKING:
    from adws.adw_modules.circuit_breaker import CircuitBreakerRegistry
    from adws.adw_modules.interfaces import Clock
    from adws.adw_modules.workflow import PhaseSpec


def open_parties(
    settings: config.Settings,
    breakers: CircuitBreakerRegistry,
    *,
    clock: Clock,
    has_remote: bool,
    scrub: Callable[[str], str],
) -> Parties:
    """Return the parties of a home's phases; *scrub* takes secrets out of what is kept about their failures."""
    return Parties(
        breakers,
        clock=clock,
        provider_of=partial(provider_of, usual=settings.agent_name),
        forge=settings.forge_kind,
        has_remote=has_remote,
        scrub=scrub,
    )


def provider_of(phase: PhaseSpec, *, usual: str) -> str:
    """Return whom the agent of *phase* asks, "" for a phase without one; *usual* is the agent where none is named."""
    return provider_of_runner(phase.runner, usual=usual)


def provider_of_runner(runner: str, *, usual: str) -> str:
    """Return whom the agent of that name asks, "" for what is no agent."""
    name = usual if runner == AGENT else runner

    return agents.profile(name).provider if name in agents.names() else ""
