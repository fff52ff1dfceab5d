"""
Find the function that `package.module:function` names.

It is looked for where Python looks and, after that, in the home. Importing runs the module: a stranger's code, which
may raise anything; what it raises becomes one sentence.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from adws.adw_modules.errors import ConfigError


class Callables:
    """The functions that steps call."""

    def __init__(self, search: Sequence[Path] = ()) -> None:
        """Look for modules in *search* too, after everything that is installed."""
        self._search = tuple(str(path) for path in search)

    def find(self, call: str) -> Callable[..., object]:
        """Return the function *call*; raise ConfigError that says why there is none."""
        module_name, _, name = call.partition(":")
        if not module_name or not name.isidentifier():
            raise ConfigError(f"the call {call!r} cannot be read: write it as package.module:function")
        sys.path.extend(path for path in self._search if path not in sys.path)
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as exc:
            raise ConfigError(
                f"cannot import {module_name}: {type(exc).__name__}: {exc}; install it, or correct the call {call}"
            ) from exc
        function = getattr(module, name, None)
        if not callable(function):
            raise ConfigError(f"{module_name} has no function {name}: correct the call {call}")

        return function  # type: ignore[no-any-return]  # what it returns is looked at when it did
