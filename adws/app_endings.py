"""
The wiring of ending what others left running: recorded processes of attempts, and those of former owners.

Apart from `app_work` because of its length.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from adws import config
from adws.adw_modules.errors import WorkflowBusy
from adws.adw_modules.phase_choice import running_attempt
from adws.adw_modules.process_tree import Ending, end_recorded, recorded

if TYPE_CHECKING:
    from adws.adw_modules.coordination.ownership import Takeover
    from adws.adw_modules.interfaces import Clock
    from adws.adw_modules.process import SystemProcesses

logger = logging.getLogger("adw.work")


class Endings:
    """Ends processes by their records."""

    def __init__(self, settings: config.Settings, *, clock: Clock, processes: SystemProcesses) -> None:
        self._settings = settings
        self._clock = clock
        self._processes = processes

    def end_process(self, data: Mapping[str, object]) -> Ending:
        """End what is left of a recorded process, and say what was found, also when that proves nothing."""
        return self._end(data, grace_seconds=self._settings.grace_seconds)

    def end_former(self, takeover: Takeover) -> None:
        """End what the former owner of a workflow left running; raise WorkflowBusy when that cannot be ended."""
        adw_id = takeover.document.adw_id
        for attempt in filter(None, map(running_attempt, takeover.document.phases)):
            if not attempt.process:
                continue
            ending = self.end_in_time(attempt.process)
            told = {"action": "former_processes_ended", "workflow": adw_id, "found": ending.describe()}
            logger.warning("Looked for what a former owner left running", extra=told)
            if ending.left:
                what = f"processes that its former owner left and that cannot be ended ({', '.join(ending.left)})"
                raise WorkflowBusy(adw_id, what)

    def end_in_time(self, data: Mapping[str, object]) -> Ending:
        """End what is left of a recorded process well before a lease is over that nobody may be renewing."""
        settings = self._settings

        return self._end(data, grace_seconds=min(settings.grace_seconds, settings.lease_ttl_seconds / 3))

    def _end(self, data: Mapping[str, object], *, grace_seconds: float) -> Ending:
        record = recorded(data)
        if record is None:
            return Ending(evidence="its record cannot be read, so nothing was signalled")

        return end_recorded(record, clock=self._clock, processes=self._processes, grace_seconds=grace_seconds)
