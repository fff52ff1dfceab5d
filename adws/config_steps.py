"""
The part of the table of settings about the calls of steps.

Apart from config_table.py because of its length; nobody reads it from here.
"""

from __future__ import annotations

from pathlib import Path

from adws import config_values
from adws.config_setting import Setting

_HOST = r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?|\[?[0-9a-f:]+\]?"


def hosts(text: str, _home: Path) -> tuple[str, ...]:
    """Return names of hosts, separated by commas; `*.` before one means those below it."""
    import re  # noqa: PLC0415 - few homes name hosts

    found = tuple(part.strip().lower() for part in text.split(","))
    if not all(re.fullmatch(_HOST, name) for name in found):
        raise ValueError("must be names of hosts such as api.example.com or *.example.com, separated by commas")

    return tuple(name.strip("[]") for name in found)


STEP_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "steps_max_result_bytes",
        "8MiB",
        config_values.size,
        "Most bytes of what one call of a step gives back; a call that gives back more has failed.",
        "steps.max_result_bytes",
        values="bytes, or a number with KiB, MiB or GiB",
    ),
    Setting(
        "steps_http_allow",
        "",
        hosts,
        "Hosts that steps may ask over HTTP; `*.example.com` means all below it. Without it, every host.",
        "steps.http_allow",
        values="A, B, ...",
    ),
    Setting(
        "steps_lane_seconds",
        "5",
        config_values.seconds,
        "After so much work on the calls of one step a worker lets others that wait come first.",
        "steps.lane_seconds",
        values="seconds",
    ),
    Setting(
        "steps_batch",
        "64",
        config_values.whole(least=1),
        "Most short calls of a loop that a worker takes at a time; calls that take longer are taken one by one.",
        "steps.batch",
        values="number",
    ),
)
