"""The dashboard of the sample, beside `adw demo`: a server that ends with it, opened in the person's browser."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from adws.adw_modules import browser
from adws.adw_modules.child_process import ChildProcess
from adws.adw_modules.errors import AdwError
from adws.cli import demo_sample

if TYPE_CHECKING:
    from adws.adw_modules.interfaces import Clock
    from adws.cli.demo_sample import Sample

#: Seconds between two looks at whether the server still runs.
_LOOK_SECONDS = 0.2


class Dashboard(NamedTuple):
    """A dashboard that is served."""

    address: str
    login: str  #: opens it, once
    server: ChildProcess

    def show(self, sample: Sample, tell: Callable[[str], None]) -> None:
        """Open it in a browser; where there is none, say where it is."""
        if browser.open_page(self.login):
            again = f"{demo_sample.adw_command()} --home {shlex.quote(str(sample.home))} dashboard"
            tell(f"The dashboard is open in your browser: {self.address}")
            tell(f"A link for another one: {again}")
        else:
            tell("No browser could be opened here. This link opens the dashboard, once:")
            tell(f"  {self.login}")

    def wait(self, clock: Clock, tell: Callable[[str], None]) -> None:
        """Serve until Ctrl-C; raise AdwError when the server ends by itself."""
        tell("\nThe dashboard is served until Ctrl-C.")
        try:
            while self.server.exit_code() is None:
                clock.sleep(_LOOK_SECONDS)
        except KeyboardInterrupt:
            return

        raise AdwError("adw serve ended: what it said is above")


@contextmanager
def serving(sample: Sample) -> Iterator[Dashboard]:
    """Serve the dashboard of *sample* beside us, at any port that is free."""
    words = ("--home", str(sample.home), "serve", "--host", "127.0.0.1", "--port", "0", "--workers", "0", "--json")
    server = ChildProcess(
        [sys.executable, "-m", "adws.cli.embedded_worker", *words],
        env=demo_sample.environment(),
        cwd=sample.home,
        is_heard=True,
    )
    try:
        yield _read(server.first_line(), server)
    finally:
        server.end()


def _read(line: str, server: ChildProcess) -> Dashboard:
    try:
        told = json.loads(line)
        return Dashboard(address=str(told["address"]), login=str(told["login"]), server=server)
    except (ValueError, KeyError, TypeError) as exc:
        raise AdwError("adw serve did not start: what it said is above") from exc
