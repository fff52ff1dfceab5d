"""
The part of the table of settings about how long what is over is kept.

Apart from config_table.py because of its length; nobody reads it from here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from adws.config_setting import Setting

_MOST = 36500


def days(*, least: int = 1) -> Callable[[str, Path], int]:
    """Return the parser of a number of days, at least so many; 0 is for ever."""

    def parse(text: str, _home: Path) -> int:
        is_whole = text.isascii() and text.isdigit()
        if not is_whole or (int(text) and not least <= int(text) <= _MOST):
            raise ValueError(f"must be a whole number of days from {least} to {_MOST}, or 0 for ever")
        return int(text)

    return parse


RETENTION_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "retention_events_days",
        "365",
        days(),
        "Days that events of finished workflows are kept; 0: for ever.",
        "retention.events_days",
        values="0, or 1 to 36500",
    ),
    Setting(
        "retention_logs_days",
        "90",
        days(),
        "Days that logs and the output of attempts are kept after their workflow has finished; 0: for ever.",
        "retention.logs_days",
        values="0, or 1 to 36500",
    ),
    Setting(
        "retention_deliveries_days",
        "14",
        days(least=3),
        "Days that deliveries are kept: as long, one that comes again starts nothing; 0: for ever.",
        "retention.deliveries_days",
        aliases=("ADW_WEBHOOK_KEEP_DAYS",),
        values="0, or 3 to 36500",
    ),
    Setting(
        "retention_workflows_days",
        "0",
        days(),
        "Days after which a finished workflow is forgotten with all that is stored of it, once nothing that it made "
        "stands any more; 0: never.",
        "retention.workflows_days",
        values="0, or 1 to 36500",
    ),
)
