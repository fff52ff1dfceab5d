"""`adw cron`: doing what is due on the schedule of the home."""

from __future__ import annotations

import signal
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING

import click

from adws.adw_modules import time_words, timestamps
from adws.adw_modules.coordination.cron_work import Ran
from adws.adw_modules.errors import UsageError
from adws.adw_triggers import schedule
from adws.adw_triggers.schedule import Entry
from adws.adw_triggers.trigger_cron import Cron
from adws.cli import answers, home_schedule, log, main, output

if TYPE_CHECKING:
    from datetime import datetime

    from adws.adw_modules.json_value import JsonObject
    from adws.app import App

EXIT_FAILED = 1
_HEADERS = ("ENTRY", "WHEN", "NEXT", "LAST", "", "OUTCOME")


@click.command()
@click.option("--once", is_flag=True, help="Do what is due now, and end; for a crontab or a timer.")
@click.option("--list", "only_list", is_flag=True, help="Show the entries, and do nothing.")
@click.option("--now", "entry", metavar="ENTRY", help="Do this entry now, whenever it is due, and end.")
@click.option("--detach", is_flag=True, help="With --now: leave it to a worker (adw worker).")
@output.json_option
def cron(*, once: bool, only_list: bool, entry: str | None, detach: bool, as_json: bool) -> int:
    """
    Do what is due: poll, look after quotas and crashed work, notify, report. Missed ticks are made up for once.

    Several may run at a time, also on several machines: each tick is done by one of them. Times are UTC.
    """
    if once + only_list + (entry is not None) > 1:
        raise UsageError("--once, --list and --now are three things to do: use one of them")
    if detach and entry is None:
        raise UsageError("--detach leaves one entry to a worker: say which with --now ENTRY")
    with main.open_home(role="cron") as app:
        entries = home_schedule.checked_entries(app)
        log.install_for_people(app.settings)
        if entry is not None:
            return _detach(app, entry, as_json=as_json) if detach else _now(app, entry, as_json=as_json)
        if only_list:
            _list(app, entries, as_json=as_json)
            return 0
        made = home_schedule.cron_of(app, entries)
        return _once(made, as_json=as_json) if once else _forever(made)


def _detach(app: App, entry: str, *, as_json: bool) -> int:
    run = app.cron.cron_runs.queue(entry, by=answers.who())
    text = [f"run {run.run_id} does {entry}: it is {run.state.value}", "next: adw worker, or adw runs"]
    output.emit({"run_id": run.run_id, "entry": entry, "state": run.state.value}, text, as_json=as_json)

    return 0


def _now(app: App, entry: str, *, as_json: bool) -> int:
    return _show([app.cron.cron_runs.do(entry)], as_json=as_json)


def _once(made: Cron, *, as_json: bool) -> int:
    return _show(list(made.run_due()), as_json=as_json)


def _show(ran: list[Ran], *, as_json: bool) -> int:
    lines = [line for one in ran for line in _lines(one)] or ["nothing is due"]
    data: output.Printable = {"ran": [{**asdict(one), "details": list(one.details)} for one in ran]}
    output.emit(data, lines, as_json=as_json)

    return EXIT_FAILED if any(one.status == "failed" for one in ran) else 0


def _forever(made: Cron) -> int:
    asked: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        asked.append(number)
        made.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    output.say("cron is ready; Ctrl-C ends it after what is under way")
    made.run(tell=_tell)

    return main.EXIT_INTERRUPTED if signal.SIGINT in asked else 0


def _tell(ran: Ran) -> None:
    for line in _lines(ran):
        output.say(line)


def _lines(ran: Ran) -> list[str]:
    missed = f", {ran.missed} ticks missed before" if ran.missed else ""

    return [f"{ran.name} {ran.status}: {ran.outcome}{missed}", *(f"  {line}" for line in ran.details)]


def _list(app: App, entries: list[Entry], *, as_json: bool) -> None:
    rows = {row.name: row for row in app.cron.book.rows()} if app.has_database() else {}
    now = app.clock.now()
    found: list[JsonObject] = []
    for entry in entries:
        row, upcoming = rows.get(entry.name), schedule.next_tick([entry], now)
        found.append(
            {
                "name": entry.name,
                "when": entry.expression or "off",
                "next": timestamps.to_text(upcoming) if upcoming else None,
                "last": row.last_due or None if row else None,
                "status": row.status if row else "",
                "outcome": row.outcome if row else "",
                "what": entry.what,
            }
        )
    cells = [[str(one[key] or "-") for key in ("name", "when")] + _times(one, now) for one in found]
    output.emit({"entries": found}, output.table(_HEADERS, cells), as_json=as_json)


def _times(entry: JsonObject, now: datetime) -> list[str]:
    """Return the cells of *entry* that say when it comes, when it came and what came of it."""
    moments = [timestamps.parse(str(entry[key])) if entry[key] else None for key in ("next", "last")]
    ages = [time_words.age((now - moment).total_seconds()) if moment else "-" for moment in moments]

    return [*ages, *(str(entry[key] or "-") for key in ("status", "outcome"))]
