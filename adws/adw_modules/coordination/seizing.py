"""
Taking many workflows at a time from owners that are gone, and giving them back: for recovery.

The same order as in `ownership`, with fewer writes: the leases of many are taken in one transaction, what a takeover
has to tell goes into the first document that is written, and where documents are in the database the run, its sessions
and the lease go into that same transaction. A takeover that was not written keeps its lease, so that whoever comes
after takes over once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from adws.adw_modules.coordination.ownership import OwnedWorkflow, SweepingStore, Takeover, WorkflowOwnership
from adws.adw_modules.errors import AdwError, Fenced, StateConflict
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import LeaseTaken, Processes
from adws.adw_modules.interfaces_coordination import HandBack, LeaseWish, MassLeases
from adws.adw_modules.owner_record import Verdict
from adws.adw_modules.runs import Run
from adws.adw_modules.state_table import is_terminal

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument


@runtime_checkable
class JoiningStore(Protocol):
    """A store beside the queue: a document and what is done to its run are one transaction."""

    def save_with(
        self,
        document: WorkflowDocument,
        *,
        fence: int,
        events: Sequence[Event] = (),
        also: Callable[[object], object] = ...,
    ) -> WorkflowDocument:
        """Store the next revision, and do *also* in the same transaction."""


@runtime_checkable
class JoiningLeases(Protocol):
    """Leases in the database that such a store is in."""

    def handing_back(self, end: HandBack) -> Callable[[object], Run | None]:
        """Return what gives one back in a transaction of somebody else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """A workflow that is to be taken, and what is known about its owner."""

    adw_id: str
    verdict: Verdict = Verdict.UNKNOWN
    fence: int | None = None  #: of the owner that it may be taken from although its lease runs; None: of nobody


class SeizedWorkflow(OwnedWorkflow):
    """A workflow that was taken from an owner that is gone."""

    def __init__(
        self, parts: WorkflowOwnership, taken: LeaseTaken, verdict: Verdict, *, renewed_at: float, can_join: bool
    ) -> None:
        """*can_join* says whether the document and its run can be changed together."""
        super().__init__(parts, taken.lease, renewed_at=renewed_at)
        self.can_join = can_join
        self.taken = taken
        self.verdict = verdict
        self.settled: Run | None = None  #: its run, as the last write left it
        self._is_told = not self.is_takeover  #: whether a document says that it was taken over
        self._last: Callable[[WorkflowDocument], HandBack | None] | None = None

    @property
    def is_takeover(self) -> bool:
        """Whether somebody had it, also one whose record cannot be read."""
        return self.taken.previous is not None or self.taken.previous_fence > 0

    @property
    def is_certain(self) -> bool:
        """Whether it was taken from an owner that is proven dead: nobody has changed it since that one did."""
        return self.is_takeover and self.verdict is Verdict.DEAD

    def hold_local_lock(self) -> bool:
        """Take the file lock, unless the one who had it is dead: then there is nobody on this machine to keep out."""
        return False if self.is_certain else super().hold_local_lock()

    def _takeover(self) -> Event:
        takeover = Takeover(
            document=self.document,
            former=self.taken.previous,
            former_fence=self.taken.previous_fence,
            verdict=self.verdict,
        )

        return takeover.event()

    def join_next_write(self, last: Callable[[WorkflowDocument], HandBack | None]) -> None:
        """Have the next write do what *last* says of the document that it stores, if they can be joined."""
        self._last = last if self.can_join else None

    def save(self, document: WorkflowDocument, *, events: Sequence[Event] = ()) -> WorkflowDocument:
        """Store the next revision, with what was not told yet, and what was joined to it."""
        events = tuple(events) if self._is_told else (self._takeover(), *events)
        end = self._last(document) if self._last is not None else None
        stored = super().save(document, events=events) if end is None else self._save_with(document, events, end)
        self._is_told, self._last = True, None

        return stored

    def _save_with(self, document: WorkflowDocument, events: Sequence[Event], end: HandBack) -> WorkflowDocument:
        self._check_writable(document)
        self.hold_local_lock()
        store, leases = cast("JoiningStore", self._parts.store), cast("JoiningLeases", self._parts.leases)
        work = leases.handing_back(end)
        found: list[Run | None] = []
        try:
            self.document = store.save_with(
                document, fence=self.lease.fence, events=events, also=lambda session: found.append(work(session))
            )
        except (Fenced, StateConflict) as exc:
            self._why_over = str(exc)
            raise
        self.settled = found[-1] if found else None  # a transaction may be repeated
        self._has_lease = self._has_lease and end.lease is None

        return self.document

    def hand_over(self) -> HandBack:
        """Refuse every further write and free the file lock; whoever gets this gives the lease back."""
        self._stop_writing()
        is_over = is_terminal(self.document.current_state)
        issue = self.document.issue_number if is_over and self._parts.has_issues else None
        lease = self.lease if self._has_lease and self._is_told else None
        self._has_lease = False

        return HandBack(lease=lease, free_issue=issue)

    def leave(self) -> None:
        """Give back what is still held; a takeover that was not written keeps its lease."""
        self.give_back(keep_lease=not self._is_told)


class Seizing:
    """Takes workflows of this home."""

    def __init__(self, ownership: WorkflowOwnership, *, processes: Processes, role: str = "recovery") -> None:
        self._ownership = ownership
        self._processes = processes
        self._role = role
        self._can_join = isinstance(ownership.store, JoiningStore) and isinstance(ownership.leases, JoiningLeases)
        self._sweeper = ownership.store if isinstance(ownership.store, SweepingStore) else None

    @property
    def leases(self) -> MassLeases:
        """The leases of many workflows."""
        return cast("MassLeases", self._ownership.leases)

    def take(self, wishes: Sequence[Wish]) -> list[SeizedWorkflow | None]:
        """Take the leases of all, in one transaction; None for each that somebody else has, or that is gone."""
        asked_at = self._ownership.clock.boottime()
        me = self._processes.me(self._role)
        asked = [LeaseWish(adw_id=wish.adw_id, dead_fence=wish.fence) for wish in wishes]
        answers = self.leases.take_all(asked, me, ttl_seconds=self._ownership.ttl_seconds)

        return [
            SeizedWorkflow(
                self._ownership, answer, _known_of(wish, answer), renewed_at=asked_at, can_join=self._can_join
            )
            if isinstance(answer, LeaseTaken)
            else None
            for wish, answer in zip(wishes, answers, strict=True)
        ]

    @contextmanager
    def inside(self, seized: SeizedWorkflow) -> Iterator[SeizedWorkflow]:
        """Have its document inside the block, which nobody else can write any more; leave with what is held."""
        try:
            self._enter(seized)
            yield seized
        finally:
            seized.leave()

    def _enter(self, seized: SeizedWorkflow) -> None:
        store, adw_id = self._ownership.store, seized.lease.adw_id
        has_lock = seized.hold_local_lock()
        if has_lock and self._sweeper is not None:
            self._sweeper.sweep(adw_id)
        # As in `ownership`: who is not proven dead has to be shut out before the document is read. What one left who is
        # dead is swept away by the next who has the lock.
        may_live = seized.is_takeover and not seized.is_certain
        if may_live or not (has_lock or seized.is_certain):
            store.fence_out(adw_id, fence=seized.lease.fence - 1)
        seized.document = store.load(adw_id).document

    def let_go(self, seized: Sequence[SeizedWorkflow | None]) -> None:
        """Give back what nobody came to; trouble does not matter, for leases end by themselves."""
        for one in seized:
            if one is not None:
                with suppress(AdwError):
                    one.give_back(keep_lease=one.is_takeover)


def _known_of(wish: Wish, taken: LeaseTaken) -> Verdict:
    """Return what is known about the owner that it was taken from; what was known of another says nothing."""
    return wish.verdict if wish.fence == taken.previous_fence else Verdict.UNKNOWN
