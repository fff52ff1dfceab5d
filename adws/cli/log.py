"""
The log of a command: installed with the first record, because most commands never log and views must start fast.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adws.config import Settings

_ROOT = "adw"
#: Dots in the name of a workflow's logger, adw.<id>.<phase>.
_WORKFLOW_DOTS = 2


def install(settings: Settings, *, with_workflows: bool = True, least: int = logging.NOTSET) -> None:
    """
    Send what adw logs from here on to standard error, in the form and from the level that the settings say.

    Without *with_workflows* what is logged of a workflow goes to its file only: the command shows it in its own way.
    What is below *least* is not sent there.
    """
    logger = logging.getLogger(_ROOT)
    for handler in [handler for handler in logger.handlers if isinstance(handler, _Late)]:
        logger.removeHandler(handler)
    logger.addHandler(_Late(settings, with_workflows=with_workflows, least=least))
    logger.setLevel(settings.log_level)


def install_for_people(settings: Settings, *, least: int = logging.ERROR) -> None:
    """
    Send to standard error only what went wrong, for a command that says itself what happens.

    With a level that somebody chose, all from that level on is sent. Logs of workflows go to their files.
    """
    is_chosen = settings.origin("log_level") != "default"
    install(settings, with_workflows=False, least=logging.NOTSET if is_chosen else least)


class _Late(logging.Handler):
    """Puts the real handler beside itself when there is something to log, and is silent from then on."""

    def __init__(self, settings: Settings, *, with_workflows: bool, least: int) -> None:
        super().__init__(least)
        self._least = least
        self._settings = settings
        self._with_workflows = with_workflows
        if not with_workflows:
            self.addFilter(_is_not_of_a_workflow)

    def emit(self, record: logging.LogRecord) -> None:
        """Set the log up; the handler that comes gets *record* by itself, for it stands behind this one."""
        del record
        from adws import config  # noqa: PLC0415 - views start without it
        from adws.adw_modules import structured_logger  # noqa: PLC0415 - views start without it
        from adws.app_redaction import make_redactor  # noqa: PLC0415 - views start without it

        self.setLevel(logging.CRITICAL + 1)
        level, form = self._settings.log_level, self._settings.log_format
        redactor, no_color = make_redactor(self._settings), config.is_without_colour()
        real = structured_logger.configure(level, form, no_color=no_color, redactor=redactor)
        if self._least > real.level:
            real.setLevel(self._least)
        if not self._with_workflows:
            real.addFilter(_is_not_of_a_workflow)


def _is_not_of_a_workflow(record: logging.LogRecord) -> bool:
    """Say whether *record* is not from a logger `adw.<id>.<phase>`."""
    return record.name.count(".") < _WORKFLOW_DOTS
