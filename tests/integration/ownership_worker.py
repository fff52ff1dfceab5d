"""
A process that owns workflows, for the tests that kill and stop it.

Run as `python ownership_worker.py ROOT MODE`; it tells what it does on standard output and is driven by lines on
standard input.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from adws.adw_modules import document, timestamps
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db.connection import Database
from adws.adw_modules.db.migrate import open_database
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.errors import Fenced, LeaseLost, WorkflowBusy
from adws.adw_modules.interfaces import StateStore
from adws.adw_modules.ownership.issue_locks import IssueLocks, WorkflowRegistry
from adws.adw_modules.ownership.leases import Leases
from adws.adw_modules.ownership.local_lock import LocalLock
from adws.adw_modules.ownership.ownership import OwnedWorkflow, WorkflowOwnership
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.store.database import DatabaseStateStore
from adws.adw_modules.store.files import FileStateStore

ID = "1a2b3c4d"

#: What a write may be stopped at, before and after.
STOPPABLE = ("open", "fstat", "write", "fchmod", "fsync", "stat", "link", "unlink", "rename", "close")


class OffsetClock(SystemClock):
    """The clock of this machine, moved: a lease of 30 s is over for a clock 31 s ahead."""

    def __init__(self, offset: float = 0.0) -> None:
        self._offset = offset

    def boottime(self) -> float:
        return super().boottime() + self._offset


def database(root: Path, clock: SystemClock) -> Database:
    boot_id = SystemProcesses(clock=clock).boot_id
    return open_database(f"sqlite:///{root}/adw.db", clock=clock, boot_id=boot_id)


def store_in(home: str, root: Path, shared: Database, clock: SystemClock) -> StateStore:
    if home == "database":
        return DatabaseStateStore(shared, clock=clock)
    return FileStateStore(root, clock=clock)


def ownership(root: Path, *, home: str = "files", offset: float = 0.0) -> WorkflowOwnership:
    clock = OffsetClock(offset)
    shared = database(root, clock)
    return WorkflowOwnership(
        store=store_in(home, root, shared, clock),
        leases=Leases(shared, clock=clock),
        registry=WorkflowRegistry(shared, clock=clock, home=home),
        local_lock=LocalLock(root),
        processes=SystemProcesses(clock=clock),
        clock=clock,
        locks=IssueLocks(shared, clock=clock),
        role="worker",
    )


def new_document(adw_id: str = ID, issue_number: int | None = 42, **fields: object) -> WorkflowDocument:
    now = timestamps.to_text(SystemClock().now())
    return document.parse(
        {"adw_id": adw_id, "issue_number": issue_number, "created_at": now, "updated_at": now, "counter": 0, **fields}
    )


def count_up(owned: OwnedWorkflow) -> None:
    owned.save(owned.document.model_copy(update={"counter": owned.document.model_extra["counter"] + 1}))


# --- modes -----------------------------------------------------------------------------------------------------


def hold(owner: WorkflowOwnership) -> None:
    """Own the workflow, write once, wait, and write again."""
    with owner.own(ID) as owned:
        count_up(owned)
        tell("owned")
        sys.stdin.readline()
        tell(attempt(lambda: count_up(owned)))


def contend(owner: WorkflowOwnership) -> None:
    """Count up twenty times, each time as the owner."""
    sys.stdin.readline()
    done = 0
    while done < 20:
        try:
            with owner.own(ID) as owned:
                count_up(owned)
                done += 1
        except WorkflowBusy:
            owner.clock.sleep(0.02 * owner.clock.random())
    tell("done")


def stop_at_each_call(owner: WorkflowOwnership) -> None:
    """For each number read: own, write, and stop this process at that call of the write; then try to write on."""
    for line in sys.stdin:
        with owner.own(ID) as owned:
            before = owned.document
            with stopping(int(line)) as count:
                outcome = attempt(lambda: count_up(owned))
            reached = count() >= int(line)
            owned.document = before if outcome != "saved" else owned.document
            again = attempt(lambda: count_up(owned))
        tell(f"{outcome} {again} {'stopped' if reached else 'ran'}")


def attempt(write: Callable[[], None]) -> str:
    try:
        write()
    except (Fenced, LeaseLost) as exc:
        return type(exc).__name__
    return "saved"


@contextmanager
def stopping(number: int) -> Iterator[Callable[[], int]]:
    """Stop this process before call 1, after call 1, before call 2 and so on: at the *number*th of these places."""
    places = 0

    def place() -> None:
        nonlocal places
        places += 1
        if places == number:
            os.kill(os.getpid(), signal.SIGSTOP)

    def wrapped(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            place()
            try:
                return real(*args, **kwargs)
            finally:
                place()

        return call

    real = {name: getattr(os, name) for name in STOPPABLE}
    for name, function in real.items():
        setattr(os, name, wrapped(function))
    try:
        yield lambda: places
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


MODES = {"hold": hold, "contend": contend, "stop": stop_at_each_call}

if __name__ == "__main__":
    MODES[sys.argv[2]](ownership(Path(sys.argv[1]), home=sys.argv[3]))
