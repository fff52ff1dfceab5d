"""
What a forge may be able to tell besides `forge.Forge`: who put a label on, and which webhook deliveries failed.

Words only. A forge that cannot tell does without: then the author of an issue counts as who asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelled:
    """Who put a label on an issue last, and when."""

    login: str
    at: str  #: timestamps.to_text
    is_bot: bool = False
    created_at: str = ""  #: of the issue, as the forge spells it
    raw_at: str = ""  #: `at` as the forge spells it


@dataclass(frozen=True, kw_only=True, slots=True)
class HookDelivery:
    """One try of the forge to bring us a delivery."""

    hook_id: int
    delivery_id: int
    guid: str
    is_ok: bool
    at: str  #: timestamps.to_text
    event: str = ""
    is_redelivery: bool = False


@runtime_checkable
class KnowsLabellers(Protocol):
    """A forge that says who put a label on."""

    def labelled(self, number: int, label: str) -> Labelled | None:
        """Return who put *label* on the issue last, None when nobody did."""


@runtime_checkable
class Redelivers(Protocol):
    """A forge that keeps what it tried to bring us, and brings it again when asked."""

    def hook_deliveries(self, *, since: str) -> tuple[HookDelivery, ...]:
        """Return every try since a moment, newest first."""

    def redeliver(self, hook_id: int, delivery_id: int) -> None:
        """Ask for a delivery to be brought again. Not repeated."""
