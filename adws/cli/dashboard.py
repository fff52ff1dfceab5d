"""`adw dashboard`: a link that logs a browser in to the dashboard of the server that runs."""

from __future__ import annotations

import click

from adws.adw_modules.errors import UsageError
from adws.app_forge import key_of
from adws.cli import answers, main, output
from adws.web import server
from adws.web.pages import logins


@click.command()
@click.option("--address", metavar="URL", help="Where the server is, instead of what the settings say.")
@output.json_option
def dashboard(*, address: str | None, as_json: bool) -> int:
    """
    Print a link that logs a browser in to the dashboard, once, within 15 minutes.

    Needs no token: whoever may read the state directory of the home may make one. The server is not asked.
    """
    with main.open_home() as app:
        settings = app.settings
        if address is not None and not address.startswith(("http://", "https://")):
            raise UsageError(f"{address!r} is no address: use one such as http://127.0.0.1:8001")
        where = (
            address
            or settings.web_public_url
            or server.url_for_people(server.url_of(settings.web_host, settings.web_port))
        )
        token = logins.new_link(key_of(settings, clock=app.clock), clock=app.clock, name=answers.who())
        link = logins.address_of_link(where, token)
        output.emit_line({"link": link}, link, as_json=as_json)

    return main.EXIT_OK
