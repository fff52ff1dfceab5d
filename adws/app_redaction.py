"""
The wiring of redaction: which secrets this process knows.

Those of the settings, and those of the environment: commands of phases are given variables by name, and print them.
"""

from __future__ import annotations

from adws import config
from adws.adw_modules.redaction import Redactor


def make_redactor(settings: config.Settings | None) -> Redactor:
    """Return what hides the secrets of *settings*, if there are any yet, and of the environment."""
    return Redactor.from_environment(
        config.process_environment(), known_values=settings.secrets() if settings is not None else ()
    )
