"""
The wiring of redaction: which secrets this process knows.

Those of the settings, and those of the environment: commands of phases are given variables by name, and print them.
"""

from __future__ import annotations

from functools import lru_cache

from adws import config
from adws.adw_modules.redaction import Redactor


def make_redactor(settings: config.Settings | None) -> Redactor:
    """Return what hides the secrets of *settings*, if there are any yet, and of the environment."""
    known = settings.secrets() if settings is not None else ()

    return _make(frozenset(config.process_environment().items()), frozenset(known))


@lru_cache(maxsize=2)
def _make(env: frozenset[tuple[str, str]], known: frozenset[str]) -> Redactor:
    """Return it; the log of a process and its work share one, for many secrets take long to index."""
    return Redactor.from_environment(dict(env), known_values=known)
