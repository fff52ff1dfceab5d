"""
A command that another one runs beside itself: a worker of `adw serve`, the server of `adw demo`.

Whoever started it holds the other end of its input. When that closes, however they died, it ends as if it had been told
to.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress

from adws.cli import main


def start() -> int:
    """Work until told to end, or until whoever started it is gone."""
    threading.Thread(target=_end_with_the_starter, name="adw-parent", daemon=True).start()

    return main.run(sys.argv[1:])


def _end_with_the_starter() -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(start())
