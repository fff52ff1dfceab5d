"""
A value that takes long to find out, known as of a while ago.

Whoever asks gets what is known at once, and when that is old it is found out anew beside them: a page never waits
for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from adws.adw_modules.interfaces import Clock

logger = logging.getLogger("adw.web")

_Value = TypeVar("_Value")


def _beside(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="adw-lately", daemon=True).start()


class Lately(Generic[_Value]):
    """Keeps one value."""

    def __init__(
        self,
        find: Callable[[], _Value],
        *,
        clock: Clock,
        keep_seconds: float,
        beside: Callable[[Callable[[], None]], None] = _beside,
    ) -> None:
        """Find it with *find*, at most once in *keep_seconds*; *beside* starts work that nobody waits for."""
        self._find = find
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._beside = beside
        self._lock = threading.Lock()
        self._is_looking = False
        self._looked_at = float("-inf")
        self._value: _Value | None = None

    def get(self) -> _Value | None:
        """Return what is known, None while nothing is."""
        with self._lock:
            is_due = not self._is_looking and self._clock.monotonic() - self._looked_at >= self._keep_seconds
            self._is_looking = self._is_looking or is_due
        if is_due:
            self._beside(self._look)

        return self._value

    def _look(self) -> None:
        try:
            self._value = self._find()
        except OSError:  # of what is measured; the last value stands until it can be measured again
            logger.warning("A value could not be found out", exc_info=True, extra={"action": "lately_failed"})
        finally:
            with self._lock:
                self._looked_at = self._clock.monotonic()
                self._is_looking = False
