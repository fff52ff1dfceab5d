"""`adw serve`: webhooks, API and dashboard in one process, with workers beside it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from adws import config
from adws.adw_modules.child_process import ChildProcess
from adws.adw_modules.errors import UsageError
from adws.adw_modules.json_value import JsonObject
from adws.app_forge import key_of
from adws.cli import answers, log, main, output
from adws.web import server
from adws.web.app import create_app
from adws.web.pages import logins
from adws.web.serving import Serving
from adws.web.supervisor import Supervisor

if TYPE_CHECKING:
    from adws.app import App
    from adws.config import Settings


@click.command()
@click.option("--host", metavar="ADDRESS", help="Where to listen, instead of web.host.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port, instead of web.port; 0: any.")
@click.option(
    "--workers", type=click.IntRange(0, 64), metavar="N", help="Workers beside it, instead of web.workers; 0: none."
)
@output.json_option
def serve(*, host: str | None, port: int | None, workers: int | None, as_json: bool) -> int:
    """
    Take webhook deliveries, answer the API and show the dashboard, with workers beside it, until SIGTERM or Ctrl-C.

    Listens at loopback unless told otherwise; elsewhere only with ADW_WEB_TOKEN and ADW_WEBHOOK_SECRET.
    """
    with main.open_home(role="web") as app:
        settings = app.settings
        refuse_open_door(settings, host or settings.web_host)
        if settings.log_format != "json":  # then all of it goes to the log, where it is to be
            log.install_for_people(settings, least=logging.WARNING)
        app.runs.seconds_to_next()  # a database that cannot be used is told now, not to the first delivery
        app.work.recovery.recover()  # what a server or a worker before this one left
        count = settings.web_workers if workers is None else workers
        supervisor = Supervisor(partial(_start_worker, settings), count=count, clock=app.clock, say=output.say)
        door = create_app(app, workers=supervisor.counts, host=host or settings.web_host)
        try:
            listening = server.bind(host or settings.web_host, settings.web_port if port is None else port)
            _tell(app, server.address_of(listening), count, as_json=as_json)
            serving = Serving(
                server.make_server(door, settings),
                supervisor,
                clock=app.clock,
                shutdown_seconds=settings.web_shutdown_seconds,
                say=output.say,
                drain=door.drain,
            )
            serving.run(listening)
            if serving.is_urgent:
                os._exit(main.EXIT_INTERRUPTED)  # threads that wait for the database are not waited for
        finally:
            door.close()

    return main.EXIT_INTERRUPTED if signal.SIGINT in serving.signals else main.EXIT_OK


def refuse_open_door(settings: Settings, host: str) -> None:
    """Raise UsageError when others could reach *host* and nothing would keep them out."""
    if server.is_loopback(host):
        return
    secrets = {"ADW_WEB_TOKEN": settings.web_token, "ADW_WEBHOOK_SECRET": settings.webhook_secret}
    missing = " and ".join(name for name, value in secrets.items() if not value)
    if missing:
        raise UsageError(f"others than this machine can reach {host}: set {missing} first, or listen at 127.0.0.1")


def _start_worker(settings: Settings) -> ChildProcess:
    argv = [sys.executable, "-m", "adws.cli.embedded_worker", "--home", str(settings.home), "worker"]

    return ChildProcess(argv, env=config.process_environment(), cwd=settings.home)


def _tell(app: App, address: str, workers: int, *, as_json: bool) -> None:
    closed = [
        sentence
        for sentence, is_open in (
            ("the API is closed: set ADW_WEB_TOKEN to use it", app.settings.web_token),
            ("webhooks are not taken: set ADW_WEBHOOK_SECRET to take them", app.settings.webhook_secret),
        )
        if not is_open
    ]
    beside = "1 worker" if workers == 1 else f"{workers or 'no'} workers"
    text = f"adw serves {address} (dashboard at /, webhooks at /webhooks/github, API at /api/v1) with {beside}"
    link = "" if app.settings.web_token else _link(app, address)
    said: JsonObject = {"address": address, "workers": workers, "closed": list(closed), "login": link or None}
    output.emit_line(said, text, as_json=as_json)
    for sentence in closed:
        output.say(sentence)
    if link and not as_json:
        output.say("this link opens the dashboard, once; adw dashboard prints another:")
        output.say(link)


def _link(app: App, address: str) -> str:
    """Return a link that logs in; with a token in the settings there is no need to leave one in the logs."""
    where = app.settings.web_public_url or server.url_for_people(address)
    token = logins.new_link(key_of(app.settings, clock=app.clock), clock=app.clock, name=answers.who())

    return logins.address_of_link(where, token)
