"""
The wiring of the doctor: which one looks at failed attempts, as the settings say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from adws import config
from adws.adw_modules.engine.doctor import AgentDoctor, CallDoctor, RulesDoctor, load_function
from adws.adw_modules.engine.parts import Doctor
from adws.adw_modules.errors import ConfigError
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import Runner


def doctor_of(
    settings: config.Settings, runners: Mapping[str, Runner], *, clock: Clock, redact: Callable[[str], str]
) -> Doctor | None:
    """Return the doctor of a home, None when it is off; raise ConfigError when the settings name two."""
    if not settings.doctor_enabled:
        return None
    if settings.doctor_call and settings.doctor_agent:
        raise ConfigError("doctor.call and doctor.agent are both set: there is one doctor, take one of them out")
    if settings.doctor_call:
        return CallDoctor(settings.doctor_call, partial(load_function, settings.doctor_call, search=(settings.home,)))
    if settings.doctor_agent:
        return AgentDoctor(
            settings.doctor_agent, runners, token=clock.token, redact=redact, model=settings.doctor_model or ""
        )

    return RulesDoctor(spare=settings.doctor_models or ())
