"""
Evidence about every workflow that may need recovery, gathered with few queries.

Reads documents, leases, runs and issue locks; changes nothing. A process is checked once, however many workflows it
owned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from adws.adw_modules.errors import AdwError, DatabaseError, StateNotFound
from adws.adw_modules.interfaces import LeaseRow, OwnerRecord, Verdict
from adws.adw_modules.queue.model import ITERATION, ROLLBACK, WITHOUT_WORKFLOW, Run
from adws.adw_modules.recovery.plan import Claim, Evidence
from adws.adw_modules.state_machine import ACTIVE_STATES

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord
    from adws.adw_modules.process.identity import SystemProcesses
    from adws.app import Home

_PAGE = 200
#: Statuses of finished phases.
_PASSED = frozenset({"complete", "skipped"})


class Owners:
    """Verdicts about owners; each process is checked once."""

    def __init__(self, processes: SystemProcesses) -> None:
        self._processes = processes
        self._seen: dict[tuple[object, ...], Verdict] = {}

    def verdict(self, owner: OwnerRecord | None) -> Verdict:
        """Return whether *owner* is alive, as far as this machine knows."""
        if owner is None:
            return Verdict.UNKNOWN
        # Without the token, which says nothing about the process.
        process = (owner.machine, owner.boot_id, owner.pid_namespace, owner.pid, owner.start_ticks)
        if process not in self._seen:
            self._seen[process] = self._processes.verdict(owner)

        return self._seen[process]

    def claim_of_lease(self, row: LeaseRow | None) -> Claim:
        """Return a workflow's lease as a claim; an unreadable record has no owner, but its lease still expires."""
        if row is None:
            return Claim()
        is_free = row.owner is None and not row.seconds_left

        return self.claim(row.owner, row.seconds_left, row.taken_at, is_free=is_free)

    def claim(self, owner: OwnerRecord | None, seconds_left: float, since: str, *, is_free: bool) -> Claim:
        """Return a claim of *owner* with what is known about that owner."""
        if is_free:
            return Claim(since=since)
        if owner is None or not (owner.host or owner.machine):
            unreadable = "an owner whose record cannot be read"
            return Claim(owner=unreadable, seconds_left=seconds_left, is_readable=False, since=since)

        return Claim(owner=owner.describe(), verdict=self.verdict(owner), seconds_left=seconds_left, since=since)


def gather_evidence(home: Home, *, every_document: bool) -> Iterator[Evidence]:
    """Yield the evidence about every workflow that may need recovery, in queue order where possible."""
    owners = Owners(home.processes)
    unfinished = home.runs.unfinished()
    # The runs of step calls exist beside that of their workflow, and each is settled separately.
    yield from (
        _of_run(Evidence(adw_id=r.adw_id, is_errand=True), r, owners) for r in unfinished if r.kind == ITERATION
    )
    runs = {run.adw_id: run for run in unfinished if run.kind != ITERATION}
    # Workflows active in the database, or all in it.
    copied = home.catalogue.revisions(states=() if every_document else [state.value for state in ACTIVE_STATES])
    holders = {lock.adw_id for lock in home.locks.all()}
    ids = iter(dict.fromkeys([*copied, *runs, *holders, *(home.store.ids() if every_document else ())]))
    while page := list(islice(ids, _PAGE)):
        errands = {adw_id for adw_id in page if adw_id in runs and runs[adw_id].kind in WITHOUT_WORKFLOW}
        leases = home.leases.read_all([adw_id for adw_id in page if adw_id not in errands])
        for adw_id in page:
            run, row = runs.get(adw_id), leases.get(adw_id)
            seen = Evidence(
                adw_id=adw_id,
                is_errand=adw_id in errands,
                has_issue=adw_id in holders and adw_id not in errands,
                lease=owners.claim_of_lease(row),
                lease_row=row,
            )
            if run is not None:
                seen = _of_run(seen, run, owners)
            if not seen.is_errand:
                seen = _with_document(home, seen, owners, copied.get(adw_id, 0 if every_document else None))
            yield seen


def _of_run(seen: Evidence, run: Run, owners: Owners) -> Evidence:
    # A claimed run that names no worker has no owner.
    claim = owners.claim(OwnerRecord.from_text(run.owner), run.seconds_left, run.updated_at, is_free=not run.owner)

    return replace(seen, run=run, run_id=run.run_id, run_state=run.state, run_claim=claim, losses=run.losses)


def _with_document(home: Home, seen: Evidence, owners: Owners, copied: int | None) -> Evidence:
    """Return *seen* completed from the document; *copied* is the revision of its copy in the database."""
    try:
        document = home.store.load(seen.adw_id).document
    except DatabaseError:
        raise  # proves nothing about the document
    except AdwError as exc:
        is_known = seen.lease_row is not None or seen.has_issue
        return replace(seen, problem=str(exc), is_unwritten=is_known and isinstance(exc, StateNotFound))
    from adws.adw_modules.engine import transitions  # noqa: PLC0415 - `adw status` needs no rules of attempts

    running = next((record for record in document.phases if transitions.running_attempt(record) is not None), None)
    # The next phase; `choose` decides in the end.
    next_phase = next((record for record in document.phases if record.status not in _PASSED), None)
    is_spent = (
        next_phase is not None
        and next_phase.status not in ("failed", "waiting")
        and transitions.is_exhausted(next_phase)
    )
    left = [
        (index, one)
        for index, one in transitions.in_doubt(document.phases)
        if _verdict(one, owners) is not Verdict.UNKNOWN
    ]
    # The copy of a live workflow is usually behind; its owner updates it.
    is_compared = home.settings.store == "files" and not seen.lease.is_live

    return replace(
        seen,
        state=document.current_state,
        is_rolling_back=document.rollback is not None or (seen.run is not None and seen.run.kind == ROLLBACK),
        open_attempt=running.name if running is not None else "",
        process=_verdict(running.attempts[-1], owners) if running is not None else None,
        left_here=f"attempt {left[0][1].number} of {document.phases[left[0][0]].name}" if left else "",
        exhausted_phase=next_phase.name if next_phase is not None and is_spent else "",
        revision=document.revision,
        copied_revision=copied if is_compared else None,
    )


def _verdict(attempt: AttemptRecord, owners: Owners) -> Verdict | None:
    """Return what this machine knows about the process of an attempt, or None if it has none."""
    if attempt.process is None:
        return None
    identity = attempt.process.get("identity")

    return owners.verdict(OwnerRecord.from_text(identity) if isinstance(identity, str) else None)
