"""
Report a bug in adw: the traceback goes to a file, the person gets one sentence.

Only its owner can read the file, and it holds no secret. The report itself must not fail: if the home cannot be
written, the temporary directory is used; if that fails too, the traceback goes to stderr.
"""

from __future__ import annotations

import os
import platform
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import adws
from adws.adw_modules.clock import SystemClock
from adws.app import make_redactor
from adws.cli import output

if TYPE_CHECKING:
    from adws.config.settings import Settings


def report(error: BaseException, settings: Settings | None) -> None:
    """Write the traceback of *error* to a log file, and print one sentence that says where it is."""
    text = make_redactor(settings).redact_text(_text(error))
    path = _written(text, settings)
    output.fail(f"this is a bug in adw ({type(error).__name__}); {_where(path)}")
    if path is None:
        for line in text.splitlines():
            output.say(line)


def _where(path: Path | None) -> str:
    return f"the details are in {path}" if path else "no log file could be written, so the details follow"


def _written(text: str, settings: Settings | None) -> Path | None:
    """Return the file that *text* was written to, or None if no directory is writable."""
    name = f"crash-{SystemClock().now():%Y%m%dT%H%M%SZ}-{os.getpid()}.log"
    places = [settings.state_dir / "logs"] if settings else []
    for directory in (*places, Path(tempfile.gettempdir())):
        try:
            # Without parents: a bug does not create the state directory of a home.
            directory.mkdir(mode=0o700, exist_ok=True)
            handle = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            continue
        return directory / name

    return None


def _text(error: BaseException) -> str:
    head = f"adw {adws.__version__}, Python {platform.python_version()}, {platform.platform()}\n"

    return head + "".join(traceback.format_exception(error))
