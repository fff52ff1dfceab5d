"""
Checkpoints, retries and circuit breakers under the names that durable-execution libraries use.

Each name is imported on first use: `from adws.durability import RetryPolicy` does not import circuit breakers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adws.adw_modules.checkpoint import CheckpointManager
    from adws.adw_modules.circuit_breaker import (
        CircuitBreaker,
        CircuitBreakerConfig,
        CircuitBreakerRegistry,
        CircuitState,
    )
    from adws.adw_modules.errors import CircuitOpen
    from adws.adw_modules.retry_handler import RetryManager, RetryPolicy
    from adws.adw_modules.workflow.model import BackoffStrategy

__all__ = [
    "BackoffStrategy",
    "CheckpointManager",
    "CircuitBreaker",
    "CircuitBreakerConfig",
    "CircuitBreakerRegistry",
    "CircuitOpen",
    "CircuitState",
    "RetryManager",
    "RetryPolicy",
]

#: name -> the module that defines it
_HOMES = {
    "BackoffStrategy": "retry_handler",
    "CheckpointManager": "checkpoint",
    "CircuitBreaker": "circuit_breaker",
    "CircuitBreakerConfig": "circuit_breaker",
    "CircuitBreakerRegistry": "circuit_breaker",
    "CircuitOpen": "errors",
    "CircuitState": "circuit_breaker",
    "RetryManager": "retry_handler",
    "RetryPolicy": "retry_handler",
}


def __getattr__(name: str) -> object:
    """Import and return one of the names above."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    return getattr(importlib.import_module(f"adws.adw_modules.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
