"""`adw serve` (webhooks, API, dashboard, workers), `adw dashboard` (a login link) and `adw cron` (the schedule)."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from adws import app
from adws.adw_modules import identifiers, timestamps
from adws.adw_modules.atomic_state import AtomicStateWriter
from adws.adw_modules.errors import AdwError, UsageError
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.interfaces import OwnerRecord, Verdict
from adws.adw_modules.process.run import ChildProcess
from adws.adw_modules.schedule.jobs import CRON_ENTRIES, Ran, entries_of
from adws.adw_triggers import trigger_cron
from adws.adw_triggers.trigger_cron import Cron, ScheduleEntry
from adws.app import key_of
from adws.cli import common as cli_common
from adws.cli import main, output
from adws.config import load as config_load
from adws.web import server
from adws.web.app import create_app
from adws.web.dashboard import sessions as dashboard_sessions
from adws.web.server import Serving, Supervisor

if TYPE_CHECKING:
    from adws.app import Home
    from adws.config.settings import Settings


@click.command()
@click.option("--host", metavar="ADDRESS", help="Where to listen, instead of web.host.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port, instead of web.port; 0: any.")
@click.option(
    "--workers", type=click.IntRange(0, 64), metavar="N", help="Workers beside it, instead of web.workers; 0: none."
)
@output.json_option
def serve(*, host: str | None, port: int | None, workers: int | None, as_json: bool) -> int:
    """
    Serve webhooks, API and dashboard, and run workers, until SIGTERM or Ctrl-C.

    Listens at loopback unless told otherwise; elsewhere only with ADW_WEB_TOKEN and ADW_WEBHOOK_SECRET.
    """
    with main.open_home(role="web") as app:
        settings = app.settings
        address = host or settings.web_host
        secrets = {"ADW_WEB_TOKEN": settings.web_token, "ADW_WEBHOOK_SECRET": settings.webhook_secret}
        missing = " and ".join(name for name, value in secrets.items() if not value)
        if missing and not server.is_loopback(address):
            raise UsageError(
                f"others than this machine can reach {address}: set {missing} first, or listen at 127.0.0.1"
            )
        if settings.log_format != "json":  # with json everything belongs in the log
            cli_common.install_for_people(settings, least=logging.WARNING)
        if unboxed := app.sandboxes.check(is_required=True):
            output.say(unboxed)
        app.runs.seconds_to_next()  # report an unusable database now, not at the first delivery
        app.recovery.recover()  # runs left by an earlier server or worker
        count = settings.web_workers if workers is None else workers
        supervisor = Supervisor(partial(_start_worker, settings), count=count, clock=app.clock, say=output.say)
        door = create_app(app, workers=supervisor.counts, host=address)
        try:
            listening = server.bind(address, settings.web_port if port is None else port)
            with _announced(app, server.address_of(listening)):
                _tell(app, server.address_of(listening), count, as_json=as_json)
                serving = Serving(
                    server.make_server(door),
                    supervisor,
                    clock=app.clock,
                    shutdown_seconds=server.SHUTDOWN_SECONDS,
                    say=output.say,
                    drain=door.drain,
                )
                serving.run(listening)
            if serving.is_urgent:
                os._exit(main.EXIT_INTERRUPTED)  # do not wait for threads that wait for the database
        finally:
            door.close()

    return main.EXIT_INTERRUPTED if signal.SIGINT in serving.signals else main.EXIT_OK


def _start_worker(settings: Settings) -> ChildProcess:
    argv = [sys.executable, "-m", "adws.cli.worker", "--home", str(settings.home), "worker"]

    env = config_load.process_environment()
    if settings.sandbox_required is None and settings.sandbox_mode != "off":
        env = {**env, "ADW_SANDBOX_REQUIRED": "true"}  # a server's input may come from strangers

    return ChildProcess(argv, env=env, cwd=settings.home)


def _tell(app: Home, address: str, workers: int, *, as_json: bool) -> None:
    closed = [
        sentence
        for sentence, is_open in (
            ("the API is closed: set ADW_WEB_TOKEN to use it", app.settings.web_token),
            ("webhooks are not taken: set ADW_WEBHOOK_SECRET to take them", app.settings.webhook_secret),
        )
        if not is_open
    ]
    beside = identifiers.counted(workers, "worker") if workers else "no workers"
    text = f"adw serves {address} (dashboard at /, webhooks at /webhooks/github, API at /api/v1) with {beside}"
    # With a token in the settings the logs need no login link.
    where = app.settings.web_public_url or server.url_for_people(address)
    link = "" if app.settings.web_token else _new_link(app, where)
    said: JsonObject = {"address": address, "workers": workers, "closed": list(closed), "login": link or None}
    output.emit_line(said, text, as_json=as_json)
    for sentence in closed:
        output.say(sentence)
    if link and not as_json:
        output.say("this link opens the dashboard, once; adw dashboard prints another:")
        output.say(link)


def _new_link(app: Home, where: str) -> str:
    """Return a login link to the dashboard at *where* that works once."""
    token = dashboard_sessions.new_link(key_of(app.settings, clock=app.clock), clock=app.clock, name=cli_common.who())

    return dashboard_sessions.address_of_link(where, token)


# --- the servers of this home on this machine: a file for each, with its process and address -------------------

_SERVERS = ".servers"


@contextmanager
def _announced(app: Home, address: str) -> Iterator[None]:
    """Let `adw dashboard` find the server inside the block; remove files of killed servers."""
    me, folder = app.processes.me("web"), app.settings.state_dir / _SERVERS
    for path, owner, _address in _announcements(folder):
        if app.processes.verdict(owner) is Verdict.DEAD:
            path.unlink(missing_ok=True)
    path, now = folder / f"{me.token}.json", timestamps.to_text(app.clock.now())
    AtomicStateWriter.write(path, {"owner": me.to_text(), "address": address, "started_at": now})
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _announcements(folder: Path) -> list[tuple[Path, OwnerRecord, str]]:
    """Return file, process and address of every announced server, in the order of their start."""
    result: list[tuple[str, Path, OwnerRecord, str]] = []
    for path in folder.glob("*.json"):
        try:
            said = AtomicStateWriter.read(path)
        except AdwError:
            continue  # it ended meanwhile, or the file is not ours
        owner = OwnerRecord.from_text(str(said.get("owner")))
        if owner is not None:
            result.append((str(said.get("started_at")), path, owner, str(said.get("address"))))

    return [(path, owner, address) for _, path, owner, address in sorted(result, key=lambda one: one[0])]


# --- `adw dashboard`: a link that logs in to the dashboard of the running server -------------------------------


@click.command()
@click.option("--address", metavar="URL", help="Where the server is, as the browser reaches it.")
@output.json_option
def dashboard(*, address: str | None, as_json: bool) -> int:
    """
    Print a link that logs a browser in to the dashboard, once, within 15 minutes.

    It leads to the server of this home that runs on this machine, or to web.public_url. Needs no token: anyone who may
    read the state directory of the home may make one.
    """
    with main.open_home() as app:
        settings = app.settings
        if address is not None and not address.startswith(("http://", "https://")):
            raise UsageError(f"{address!r} is no address: use one such as http://127.0.0.1:8001")
        found = _announcements(settings.state_dir / _SERVERS)
        listening = [one for _path, owner, one in found if app.processes.verdict(owner) is Verdict.ALIVE]
        running = listening[-1] if listening else ""  # the last one started
        by_settings = server.url_of(settings.web_host, settings.web_port)
        where = address or settings.web_public_url or server.url_for_people(running or by_settings)
        link = _new_link(app, where)
        output.emit_line({"link": link, "address": where, "is_running": bool(running)}, link, as_json=as_json)
        if not running and not address and not settings.web_public_url:
            output.say("no server of this home runs on this machine: start one with adw serve, then open the link")

    return main.EXIT_OK


# --- the schedule of a home, for `adw cron` and for workers that run it beside their work ----------------------


def schedule_of(home: Home) -> list[ScheduleEntry]:
    """Return the entries of the schedule in the settings."""
    return [
        ScheduleEntry(name=name, expression=expression, what=CRON_ENTRIES[name][1])
        for name, expression in entries_of(home.settings).items()
    ]


def tick_of(home: Home, is_ending: Callable[[], object]) -> Callable[[], None]:
    """
    Return a function that runs all due entries; it opens the home anew, because it runs in another thread.

    It starts no further entry once *is_ending* returns true. Raise ConfigError here, and not every minute.
    """
    entries = schedule_of(home)

    def tick() -> None:
        with app.open_home(home.settings, role="cron") as own:
            made = Cron(own, entries)
            for _ran in made.run_due():
                if is_ending():
                    made.stop()

    return tick


# --- `adw cron`: run due entries of the schedule ---------------------------------------------------------------


EXIT_FAILED = 1
_HEADERS = ("ENTRY", "WHEN", "NEXT", "LAST", "", "OUTCOME")


@click.command()
@click.option("--once", is_flag=True, help="Run what is due now, and end; for a crontab or a timer.")
@click.option("--list", "only_list", is_flag=True, help="List the jobs of the schedule, and run nothing.")
@click.option("--now", "entry", metavar="ENTRY", help="Run this job now, whenever it is due, and end.")
@click.option("--detach", is_flag=True, help="With --now: leave it to a worker (adw worker).")
@output.json_option
def cron(*, once: bool, only_list: bool, entry: str | None, detach: bool, as_json: bool) -> int:
    """
    Run the jobs of the schedule that are due: poll, check quotas, recover, notify, report. Missed ticks are run once.

    Several may run at a time, also on several machines: each tick is done by one of them. Times are UTC.
    """
    if once + only_list + (entry is not None) > 1:
        raise UsageError("--once, --list and --now are three things to do: use one of them")
    if detach and entry is None:
        raise UsageError("--detach leaves one entry to a worker: say which with --now ENTRY")
    with main.open_home(role="cron") as app:
        entries = schedule_of(app)
        cli_common.install_for_people(app.settings)
        if only_list:
            _list(app, entries, as_json=as_json)
            return 0
        if entry is not None and detach:
            run = app.cron_runs.queue(entry, by=cli_common.who())
            text = [f"run {run.run_id} does {entry}: it is {run.state.value}", "next: adw worker, or adw queue runs"]
            output.emit({"run_id": run.run_id, "entry": entry, "state": run.state.value}, text, as_json=as_json)
            return 0
        made = Cron(app, entries)
        if entry is None and not once:
            return _forever(made)
        ran = [app.cron_runs.do(entry)] if entry is not None else list(made.run_due())
    data: output.Printable = {"ran": [{**asdict(one), "details": list(one.details)} for one in ran]}
    output.emit(data, [line for one in ran for line in _lines(one)] or ["nothing is due"], as_json=as_json)

    return EXIT_FAILED if any(one.status == "failed" for one in ran) else 0


def _forever(made: Cron) -> int:
    asked: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        asked.append(number)
        made.stop()

    def tell(ran: Ran) -> None:
        for line in _lines(ran):
            output.say(line)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    output.say("cron is ready; Ctrl-C ends it after what is under way")
    made.run(report=tell)

    return main.EXIT_INTERRUPTED if signal.SIGINT in asked else 0


def _lines(ran: Ran) -> list[str]:
    missed = f", {identifiers.counted(ran.missed, 'tick')} missed before" if ran.missed else ""

    return [f"{ran.name} {ran.status}: {ran.outcome}{missed}", *(f"  {line}" for line in ran.details)]


def _list(app: Home, entries: list[ScheduleEntry], *, as_json: bool) -> None:
    rows = {row.name: row for row in app.schedule.rows()} if app.has_database() else {}
    now = app.clock.now()
    data: list[JsonObject] = []
    cells = []
    for entry in entries:
        row, upcoming = rows.get(entry.name), trigger_cron.next_tick([entry], now)
        status, outcome, last = (row.status, row.outcome, row.last_due) if row else ("", "", "")
        following, when = timestamps.to_text(upcoming) if upcoming else "", entry.expression or "off"
        facts = {"name": entry.name, "when": when, "status": status, "outcome": outcome, "what": entry.what}
        data.append({**facts, "next": following or None, "last": last or None})
        ages = output.age(following, now), output.age(last, now)
        cells.append((entry.name, when, *ages, status or "-", outcome or "-"))
    output.emit({"entries": data}, output.table(_HEADERS, cells), as_json=as_json)
