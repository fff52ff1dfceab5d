"""The schedule of a home, for the command that keeps it and for workers that keep it beside their work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from adws import app, app_cron
from adws.adw_triggers.schedule import Entry
from adws.adw_triggers.trigger_cron import Cron, check_entries
from adws.config import BY_NAME

if TYPE_CHECKING:
    from adws.app import App


def checked_entries(home: App) -> list[Entry]:
    """Return the entries as the settings have them; raise ConfigError with all expressions that cannot be used."""
    entries = [
        Entry(name=name, expression=getattr(home.settings, f"cron_{name}"), what=what_of(name))
        for name in app_cron.ENTRIES
    ]
    check_entries(entries, lambda name: home.settings.origin(f"cron_{name}"))

    return entries


def what_of(name: str) -> str:
    """Return what an entry does, in the words of its setting."""
    return BY_NAME[f"cron_{name}"].help


def cron_of(home: App, entries: list[Entry]) -> Cron:
    """Return what does what is due."""
    return Cron(
        entries,
        home.cron.jobs,
        book=home.cron.book,
        clock=home.clock,
        me=home.processes.me("cron"),
        processes=home.processes,
    )


def tick_of(home: App, is_ending: Callable[[], object]) -> Callable[[], None]:
    """
    Return what does all that is due, with parts of its own: it runs beside the work, in another thread.

    Nothing more is begun when *is_ending* says so. Raises ConfigError, here and not each minute.
    """
    entries = checked_entries(home)

    def tick() -> None:
        with app.open_app(home.settings, role="cron") as own:
            made = cron_of(own, entries)
            for _ran in made.run_due():
                if is_ending():
                    made.stop()

    return tick
