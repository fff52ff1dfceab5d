"""
Forgetting what is old: events, logs, deliveries, and finished workflows as a whole.

What is old is said by the settings, and what may go by `retention_rules`. A workflow is forgotten under its lease: it
is looked at again then, its directory is set aside in one step, its rows go in one transaction, and its directory after
them. Cut off in between, the next look finds the directory and ends what was begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from adws.adw_modules import retention_rules
from adws.adw_modules.errors import AdwError, DatabaseError, OwnershipError, StateNotFound
from adws.adw_modules.interfaces import Clock, Ownership, StateStore
from adws.adw_modules.interfaces_retention import OldFiles, OldRows
from adws.adw_modules.retention_rules import Days
from adws.adw_modules.trigger import Deliveries


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionParts:
    """What is forgotten with."""

    clock: Clock
    days: Days
    rows: OldRows
    files: OldFiles
    store: StateStore
    ownership: Callable[[], Ownership]  #: built late: a look changes nothing
    deliveries: Deliveries
    is_live: Callable[[str], bool]  #: whether somebody works on a workflow
    count: Callable[[], object] = lambda: None  #: counts what happened, so that nothing is forgotten uncounted


@dataclass(frozen=True, kw_only=True, slots=True)
class Old:
    """Something that is older than the settings say."""

    kind: str  #: workflow_old | events_old | logs_old | deliveries_old
    name: str  #: what it is, for people; of a workflow its id
    adw_id: str = ""
    before: str = ""  #: it is older than this moment
    why: str = ""


class Retention:
    """Finds what is old, and forgets it."""

    def __init__(self, parts: RetentionParts) -> None:
        self._parts = parts
        self._has_counted = False

    # --- finding -----------------------------------------------------------------------------------------------

    def find(self) -> tuple[Old, ...]:
        """Return what is old; changes nothing."""
        return (*self._old_workflows(), *self._old_events(), *self._old_logs(), *self._old_deliveries())

    def _old_workflows(self) -> Iterator[Old]:
        before, begun = self._before("workflows"), self._parts.files.set_aside_ids()
        for adw_id in begun:
            yield Old(
                kind="workflow_old", name=adw_id, adw_id=adw_id, why="it was being forgotten, and that was cut off"
            )
        for adw_id in self._parts.rows.finished(before) if before else ():
            if adw_id not in begun and not self._why_kept(adw_id, before):
                yield Old(kind="workflow_old", name=adw_id, adw_id=adw_id, before=before, why=self._why("workflows"))

    def _old_events(self) -> Iterator[Old]:
        before = self._before("events")
        found = self._parts.rows.old_events(before) if before else None
        if found is not None and found.events:
            name = f"{found.events} events of {found.workflows} finished workflows"
            yield Old(kind="events_old", name=name, before=before, why=self._why("events"))

    def _old_logs(self) -> Iterator[Old]:
        before = self._before("logs")
        counts = [len(self._parts.files.output_of(adw_id)) for adw_id in self._finished(before)]
        if any(counts):
            name = f"{sum(counts)} files of {sum(map(bool, counts))} finished workflows"
            yield Old(kind="logs_old", name=name, before=before, why=self._why("logs"))

    def _old_deliveries(self) -> Iterator[Old]:
        before = self._before("deliveries")
        found = self._parts.rows.old_deliveries(before) if before else 0
        if found:
            yield Old(kind="deliveries_old", name=f"{found} deliveries", before=before, why=self._why("deliveries"))

    # --- forgetting --------------------------------------------------------------------------------------------

    def forget(self, old: Old) -> str:
        """Forget *old*, say what was done; raise AdwError when it cannot be now."""
        self._count()
        if old.kind == "workflow_old":
            return self._forget_workflow(old.adw_id)
        if old.kind == "events_old":
            return f"{self._parts.rows.forget_events(self._before('events'))} forgotten"
        if old.kind == "logs_old":
            return f"{self._forget_logs()} deleted"
        before = self._before("deliveries")
        deleted = self._parts.deliveries.forget_before(before)
        self._parts.rows.forget_errands(before)

        return f"{deleted} forgotten"

    def forget_all(self) -> tuple[int, tuple[str, ...]]:
        """Forget everything that is old; return how many workflows, and a line for each kind and for what stayed."""
        workflows, lines = 0, []
        for old in self.find():
            try:
                said = self.forget(old)
            except AdwError as exc:
                lines.append(f"{old.name} stays: {exc}")
                continue
            if old.kind == "workflow_old":
                workflows += 1
            else:
                lines.append(f"{old.name}: {said}")

        return workflows, tuple(lines)

    def _count(self) -> None:
        """Count what happened, once: what is forgotten here was over long before."""
        if not self._has_counted:
            self._parts.count()
            self._has_counted = True

    def _forget_workflow(self, adw_id: str) -> str:
        parts = self._parts
        if adw_id in parts.files.set_aside_ids():
            return self._finish(adw_id)
        before = self._before("workflows")
        with parts.ownership().own(adw_id) as owned:
            why = self._why_kept(adw_id, before)
            if why:
                raise OwnershipError(f"workflow {adw_id} is not forgotten: {why}")
            parts.files.set_aside(adw_id)
            try:
                is_gone = parts.rows.forget_workflow(adw_id, fence=owned.lease.fence)
            except DatabaseError:
                parts.files.put_back(adw_id)
                raise
            if not is_gone:
                parts.files.put_back(adw_id)
                raise OwnershipError(f"workflow {adw_id} is not forgotten: it was taken up again")
        parts.files.remove_set_aside(adw_id)

        return "forgotten"

    def _finish(self, adw_id: str) -> str:
        """End what was cut off: the rows, if they are there, then the directory that was set aside."""
        parts = self._parts
        if parts.is_live(adw_id):
            raise OwnershipError(f"workflow {adw_id} is not forgotten: somebody works on it again")
        fence = parts.rows.fence_of(adw_id)
        # With a directory again it was taken up since, and goes on without the old one.
        if fence is not None and not parts.files.is_there(adw_id):
            parts.rows.forget_workflow(adw_id, fence=fence)
        parts.files.remove_set_aside(adw_id)

        return "forgotten"

    def _forget_logs(self) -> int:
        return sum(self._parts.files.forget_output(adw_id) for adw_id in self._finished(self._before("logs")))

    # --- parts -------------------------------------------------------------------------------------------------

    def _finished(self, before: str) -> tuple[str, ...]:
        return self._parts.rows.finished(before) if before else ()

    def _why_kept(self, adw_id: str, before: str) -> str:
        try:
            data = self._parts.store.peek(adw_id).data
        except StateNotFound:
            return "its document is gone"
        except DatabaseError:
            raise
        except AdwError as exc:
            return str(exc)
        has_issue, has_run = self._parts.rows.holds(adw_id)

        return retention_rules.why_kept(data, before=before, has_issue=has_issue, has_run=has_run)

    def _before(self, name: str) -> str:
        return retention_rules.limit(getattr(self._parts.days, name), self._parts.clock.now())

    def _why(self, name: str) -> str:
        return f"older than {getattr(self._parts.days, name)} days (retention.{name}_days)"
