"""
Processes that live until a test kills them.
"""

from __future__ import annotations

from collections.abc import Callable

from adws.adw_modules.interfaces import OwnerRecord, Verdict


class FakeProcesses:
    """
    Replaces `Home.processes`: every owner it creates is alive until killed here.

    Assign it before the home is used: `home.processes = FakeProcesses(home.clock.token)`.
    """

    boot_id = "boot-1"

    def __init__(self, token: Callable[[], str], *, host: str = "testhost") -> None:
        self._token = token
        self._host = host
        self._next_pid = 1000
        self._verdicts: dict[str, Verdict] = {}

    def me(self, role: str) -> OwnerRecord:
        """Return a new owner record, whose owner is alive."""
        self._next_pid += 1
        record = OwnerRecord(
            token=self._token(),
            host=self._host,
            machine=f"machine-of-{self._host}",
            boot_id=self.boot_id,
            pid_namespace="pid:[1]",
            pid=self._next_pid,
            start_ticks=self._next_pid * 10,
            role=role,
        )
        self._verdicts[record.token] = Verdict.ALIVE
        return record

    def verdict(self, record: OwnerRecord | None) -> Verdict:
        """Return the verdict set for that owner; UNKNOWN for an owner not created here."""
        if record is None:
            return Verdict.UNKNOWN
        return self._verdicts.get(record.token, Verdict.UNKNOWN)

    def kill(self, record: OwnerRecord) -> None:
        """Make that owner proven dead from now on."""
        self._verdicts[record.token] = Verdict.DEAD

    def lose_sight_of(self, record: OwnerRecord) -> None:
        """Make the state of that owner unknown from now on."""
        self._verdicts[record.token] = Verdict.UNKNOWN
