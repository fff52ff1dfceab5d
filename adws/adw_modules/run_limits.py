"""
How many runs of one kind may be under way at the same time: of a repository, a workflow, a provider of models.

Pure. A run carries its labels; a label is full when as many live runs carry it as its limit allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

#: What can be limited, as it begins a label.
SCOPES = ("repository", "workflow", "provider")
#: The name that stands for every one that has no limit of its own.
EVERY = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLimits:
    """For each scope: name -> how many at a time; `*` is for each name that is not listed."""

    scopes: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))

    def __bool__(self) -> bool:
        """Say whether anything is limited."""
        return any(self.scopes.values())

    def of(self, label: str) -> int | None:
        """Return how many live runs may carry *label*, None when it is not limited."""
        scope, _, name = label.partition(":")
        limits = self.scopes.get(scope, {})

        return limits.get(name, limits.get(EVERY))


def full_labels(live: Iterable[Iterable[str]], limits: RunLimits) -> tuple[str, ...]:
    """Return the labels that no further run may carry now; *live* has the labels of each live run."""
    counted = Counter(label for labels in live for label in set(labels))
    none_allowed = (
        f"{scope}:{name}" for scope, names in limits.scopes.items() for name, most in names.items() if most <= 0
    )
    reached = (label for label, count in counted.items() if (most := limits.of(label)) is not None and count >= most)

    return tuple(sorted({*none_allowed, *reached}))
