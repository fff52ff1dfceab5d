"""
The part of the table of settings about workers, what they offer, and how many runs go on at a time.

Apart from config_table.py because of its length; nobody reads it from here. `[limits.SCOPE]` of adw.toml is no list of
settings where its keys are names: that is read and checked here, when the settings are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from adws import config_values
from adws.adw_modules.errors import UsageError
from adws.config_setting import Section, Setting

if TYPE_CHECKING:
    from adws.adw_modules.run_limits import RunLimits
    from adws.config_file import SettingsFile

#: As `run_limits.EVERY`, which few starts of adw need.
EVERY = "*"


def host_name(text: str, _home: Path) -> str:
    """Return the name of a machine, as demands name it."""
    from adws.adw_modules.demands import checked_host  # noqa: PLC0415 - few starts of adw need it

    try:
        return checked_host(text)
    except UsageError:
        raise ValueError("must be a name of letters, digits and . _ : - (at most 100)") from None


def tags(text: str, _home: Path) -> tuple[str, ...]:
    """Return tags, separated by commas."""
    from adws.adw_modules.demands import checked_tags  # noqa: PLC0415 - few starts of adw need it

    try:
        return tuple(sorted(checked_tags(part.strip() for part in text.split(","))))
    except UsageError:
        raise ValueError("must be names of letters, digits and . _ : -, separated by commas") from None


RUN_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "worker_host",
        "",
        host_name,
        "Name of this machine: what runs demand, and what ports, quotas and effects are kept under. Without it, the "
        "machine's own name. Two machines that share a database need different ones.",
        "worker.host",
        values="name",
    ),
    Setting(
        "worker_tags",
        "",
        tags,
        "What workers here have to offer, for runs that demand it.",
        "worker.tags",
        values="A, B, ...",
    ),
    Setting(
        "runs_no_match_seconds",
        "300",
        config_values.seconds,
        "A run that is due and demands what no worker has offered for this long fails.",
        "runs.no_match_seconds",
        values="seconds",
    ),
    Setting(
        "runners_forget_seconds",
        "600",
        config_values.seconds,
        "A worker that is silent for this long is not listed any more.",
        "runners.forget_seconds",
        values="seconds",
    ),
)

#: What can be limited, as `run_limits.SCOPES`; a table for each.
SCOPES = ("repository", "workflow", "provider")
LIMIT_SECTIONS: tuple[Section, ...] = tuple(
    Section(
        f"limits.{scope}",
        f'How many runs of a {scope} go on at a time: a name and a number; `"*"` is for each that is not listed.',
    )
    for scope in SCOPES
)


def read_limits(file: SettingsFile) -> RunLimits:
    """Return the limits in a file that `wrong_limits` found nothing wrong with."""
    from adws.adw_modules.run_limits import RunLimits  # noqa: PLC0415 - few starts of adw need it

    found = {scope: file.table(f"limits.{scope}") or {} for scope in SCOPES}

    return RunLimits(
        scopes={
            scope: {_spelled(scope, name): most for name, most in names.items() if isinstance(most, int)}
            for scope, names in found.items()
            if names
        }
    )


def wrong_limits(file: SettingsFile) -> Iterator[str]:
    """Yield a sentence for each thing that is no limit."""
    for scope in SCOPES:
        yield from _wrong_names(file, scope, file.table(f"limits.{scope}") or {})


def _wrong_names(file: SettingsFile, scope: str, names: Mapping[str, object]) -> Iterator[str]:
    seen: set[str] = set()
    for name, most in names.items():
        place = f"{file.path}:{file.line_of('limits', scope, name)}"
        least = int(name == EVERY)  # one name can be shut out; all of them would be no limit but the end of work
        if not isinstance(most, int) or isinstance(most, bool) or most < least:
            yield f"{place}: the limit of {scope} {name!r} must be a whole number, {least} or more"
        elif not name or "|" in name:
            yield f"{place}: {name!r} cannot be the name of a {scope}"
        elif _spelled(scope, name) in seen:
            yield f"{place}: the {scope} {name!r} has two limits: leave one out"
        seen.add(_spelled(scope, name))


def _spelled(scope: str, name: str) -> str:
    """Return *name* in the one spelling of labels: forges do not tell Acme/Widget from acme/widget."""
    return name.casefold() if scope == "repository" else name
