"""
The log of a command: installed with the first record, because most commands never log and views must start fast.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adws.config import Settings

_ROOT = "adw"


def install(settings: Settings) -> None:
    """Send what adw logs from here on to standard error, in the form and from the level that the settings say."""
    logger = logging.getLogger(_ROOT)
    for handler in [handler for handler in logger.handlers if isinstance(handler, _Late)]:
        logger.removeHandler(handler)
    logger.addHandler(_Late(settings))
    logger.setLevel(settings.log_level)


class _Late(logging.Handler):
    """Puts the real handler in its own place when there is something to log."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def emit(self, record: logging.LogRecord) -> None:
        """Set the log up and hand *record* on."""
        from adws.adw_modules import structured_logger  # noqa: PLC0415 - views start without it
        from adws.adw_modules.redaction import Redactor  # noqa: PLC0415 - views start without it

        logging.getLogger(_ROOT).removeHandler(self)
        level, form = self._settings.log_level, self._settings.log_format
        structured_logger.configure(level, form, redactor=Redactor(self._settings.secrets())).handle(record)
