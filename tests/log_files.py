"""A log file of one workflow, for tests of what is written to it."""

from __future__ import annotations

from contextlib import contextmanager

from adws.adw_modules.structured_logger import WorkflowLogs


@contextmanager
def open_log(folder, adw_id="1a2b3c4d", **limits):
    """Write what is logged about *adw_id* inside the block to `adw.log` in its directory below *folder*."""
    logs = WorkflowLogs(folder, "adw.log", **limits)
    try:
        with logs.open(adw_id) as file:
            yield file
    finally:
        logs.close()
