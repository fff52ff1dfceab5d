"""
What is known about every workflow that may need recovery, gathered with few queries.

Documents, leases, runs and issue locks are looked at; nothing is changed. What this machine says about a process is
asked once for each process, however many workflows it owned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from adws.adw_modules.engine.transitions import IN_DOUBT, WAITING
from adws.adw_modules.errors import AdwError, DatabaseError, StateNotFound
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.interfaces import LeaseRow, OwnerRecord, PageQuery, StateStore, Verdict, WorkflowSummary
from adws.adw_modules.queue.model import ITERATION, LIVE_RUNS, ROLLBACK, WITHOUT_WORKFLOW, Run, RunState
from adws.adw_modules.recovery.plan import Claim, Evidence
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState

if TYPE_CHECKING:
    from adws.adw_modules.db.listing import Catalogue
    from adws.adw_modules.ownership.issue_locks import IssueLocks
    from adws.adw_modules.ownership.leases import Leases
    from adws.adw_modules.process.identity import SystemProcesses
    from adws.adw_modules.queue.store import RunStore

_UNFINISHED = (RunState.PENDING, *LIVE_RUNS)
_PAGE = 200
#: Statuses of phases that the work goes past.
_PASSED = frozenset({"complete", "skipped"})


class Owners:
    """What is known about owners, looked at once for each process."""

    def __init__(self, processes: SystemProcesses) -> None:
        self._processes = processes
        self._seen: dict[tuple[object, ...], Verdict] = {}
        self.by_record: dict[str, Verdict] = {}  #: record as text -> verdict

    def verdict(self, owner: OwnerRecord | None) -> Verdict:
        """Return whether *owner* lives."""
        if owner is None:
            return Verdict.UNKNOWN
        # Without its token: that says nothing about the process.
        process = (owner.machine, owner.boot_id, owner.pid_namespace, owner.pid, owner.start_ticks)
        if process not in self._seen:
            self._seen[process] = self._processes.verdict(owner)
        self.by_record[owner.to_text()] = self._seen[process]

        return self._seen[process]

    def claim_of_run(self, run: Run) -> Claim:
        """Return the claim of a run; one with a worker that nobody is named for has no owner."""
        return self._claim(OwnerRecord.from_text(run.owner), run.owner, run.seconds_left, since=run.updated_at)

    def claim_of_lease(self, row: LeaseRow | None) -> Claim:
        """Return the lease of a workflow."""
        if row is None:
            return Claim()
        # A record that cannot be read is none, and its lease still has an end.
        text = row.owner.to_text() if row.owner is not None else ("?" if row.seconds_left else "")

        return self._claim(row.owner, text, row.seconds_left, since=row.taken_at)

    def _claim(self, owner: OwnerRecord | None, text: str, seconds_left: float, *, since: str) -> Claim:
        if not text:
            return Claim(since=since)
        if owner is None or not (owner.host or owner.machine):
            return Claim(
                owner="an owner whose record cannot be read", seconds_left=seconds_left, is_readable=False, since=since
            )

        return Claim(
            owner=owner.describe(),
            key=owner.to_text(),
            verdict=self.verdict(owner),
            seconds_left=seconds_left,
            since=since,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One row of evidence, and what it was made from."""

    evidence: Evidence
    run: Run | None
    lease: LeaseRow | None


class EvidenceGatherer:
    """Gathers evidence from a home."""

    def __init__(
        self,
        *,
        store: StateStore,
        catalogue: Catalogue,
        leases: Leases,
        locks: IssueLocks,
        runs: RunStore,
        has_copies: bool,
    ) -> None:
        """*has_copies* says whether the database has copies of documents that live elsewhere."""
        self._store = store
        self._catalogue = catalogue
        self._leases = leases
        self._locks = locks
        self._runs = runs
        self._has_copies = has_copies

    def gather(self, owners: Owners, *, every_document: bool) -> Iterator[Candidate]:
        """Yield what is known about every workflow that may need something, in the order of the queue where it can."""
        unfinished = list(self._unfinished_runs())
        # The lanes of steps are runs beside that of their workflow, and each is settled for itself.
        yield from (
            Candidate(evidence=_errand(run, owners), run=run, lease=None) for run in unfinished if run.kind == ITERATION
        )
        runs = {run.adw_id: run for run in unfinished if run.kind != ITERATION}
        states = (None,) if every_document else sorted(ACTIVE_STATES, key=str)
        copied = {row.adw_id: row.revision for state in states for row in self._rows(state)}
        holders = {lock.adw_id for lock in self._locks.all()}
        ids = iter(dict.fromkeys([*copied, *runs, *holders, *(self._store.ids() if every_document else ())]))
        while some := list(islice(ids, _PAGE)):
            errands = {one for one in some if one in runs and runs[one].kind in WITHOUT_WORKFLOW}
            rows = self._leases.read_all([one for one in some if one not in errands])
            for adw_id in some:
                run, row = runs.get(adw_id), rows.get(adw_id)
                if run is not None and adw_id in errands:
                    yield Candidate(evidence=_errand(run, owners), run=run, lease=None)
                    continue
                revision = copied.get(adw_id, 0 if every_document else None)
                seen = self._evidence_of(adw_id, run, row, owners, copied=revision, has_issue=adw_id in holders)
                yield Candidate(evidence=seen, run=run, lease=row)

    def _unfinished_runs(self) -> Iterator[Run]:
        before: int | None = None
        while True:
            page = self._runs.page(states=_UNFINISHED, limit=_PAGE, before=before)
            yield from page
            if len(page) < _PAGE:
                return
            before = page[-1].run_id

    def _rows(self, state: WorkflowState | None) -> Iterable[WorkflowSummary]:
        cursor: str | None = None
        while True:
            page = self._catalogue.page(PageQuery(limit=_PAGE, cursor=cursor, state=state.value if state else None))
            yield from page.rows
            cursor = page.next_cursor
            if cursor is None:
                return

    def _evidence_of(
        self,
        adw_id: str,
        run: Run | None,
        row: LeaseRow | None,
        owners: Owners,
        *,
        copied: int | None,
        has_issue: bool,
    ) -> Evidence:
        lease = owners.claim_of_lease(row)
        seen = _with_run(Evidence(adw_id=adw_id, has_issue=has_issue, lease=lease), run, owners)
        try:
            data = self._store.load(adw_id).data
        except DatabaseError:
            raise  # says nothing about the document
        except AdwError as exc:
            is_known = row is not None or has_issue
            return replace(seen, problem=str(exc), is_unwritten=is_known and isinstance(exc, StateNotFound))
        revision = data.get("revision")
        attempt = open_attempt(data)
        # The copy of a workflow that is worked on is behind most of the time; its owner brings it up.
        is_compared = self._has_copies and not lease.is_live

        return replace(
            seen,
            state=str(data.get("current_state") or ""),
            is_rolling_back=data.get("rollback") is not None or (run is not None and run.kind == ROLLBACK),
            open_attempt=attempt[0],
            process=_process_of(attempt[1], owners),
            left_here=_left_here(data, owners),
            exhausted_phase=exhausted_phase(data),
            revision=revision if isinstance(revision, int) else 0,
            copied_revision=copied if is_compared else None,
        )


def _errand(run: Run, owners: Owners) -> Evidence:
    return _with_run(Evidence(adw_id=run.adw_id, is_errand=True), run, owners)


def _with_run(seen: Evidence, run: Run | None, owners: Owners) -> Evidence:
    if run is None:
        return seen

    return replace(seen, run_id=run.run_id, run_state=run.state, run_claim=owners.claim_of_run(run), losses=run.losses)


def _phases(data: JsonObject) -> Iterator[Mapping[str, JsonValue]]:
    phases = data.get("phases")
    yield from (phase for phase in (phases if isinstance(phases, list) else []) if isinstance(phase, dict))


def open_attempt(data: JsonObject) -> tuple[str, Mapping[str, JsonValue]]:
    """Return the phase whose last attempt has no end, and that attempt, read off plain JSON; "" for none."""
    for phase in _phases(data):
        attempts = phase.get("attempts")
        last = attempts[-1] if isinstance(attempts, list) and attempts else None
        if isinstance(last, dict) and last.get("status") == "running":
            return str(phase.get("name") or ""), last

    return "", {}


def _left_here(data: JsonObject, owners: Owners) -> str:
    """Return the first attempt whose process is in doubt and can be checked from here, as text, "" for none."""
    for phase in _phases(data):
        attempts = phase.get("attempts")
        for attempt in attempts if isinstance(attempts, list) else ():
            if not isinstance(attempt, dict) or not _is_in_doubt(attempt.get("process")):
                continue
            if _process_of(attempt, owners) is not Verdict.UNKNOWN:
                return f"attempt {attempt.get('number')} of {phase.get('name')}"

    return ""


def _is_in_doubt(process: JsonValue) -> bool:
    return isinstance(process, dict) and bool(process.get(IN_DOUBT))


def exhausted_phase(data: JsonObject) -> str:
    """Return the phase that comes next if it has no attempt left, "" when it has; `choose` decides in the end."""
    for phase in _phases(data):
        if phase.get("status") in _PASSED:
            continue
        used, most, granted = (phase.get(name) or 0 for name in ("attempts_used", "max_attempts", "granted"))
        is_known = isinstance(used, int) and isinstance(most, int) and isinstance(granted, int) and most > 0
        is_spent = is_known and used >= most + granted  # type: ignore[operator]  # they are numbers, as was looked at
        attempts = phase.get("attempts")
        last = attempts[-1] if isinstance(attempts, list) and attempts else None
        if isinstance(last, dict) and last.get("status") == WAITING:
            return ""  # the last one is not over: it waits for others, and goes on
        return str(phase.get("name") or "") if is_spent and phase.get("status") not in ("failed", "waiting") else ""

    return ""


def _process_of(attempt: Mapping[str, JsonValue], owners: Owners) -> Verdict | None:
    """Return what is known here about the process of an attempt, None when it has none."""
    process = attempt.get("process")
    if not isinstance(process, dict):
        return None
    identity = process.get("identity")

    return owners.verdict(OwnerRecord.from_text(identity) if isinstance(identity, str) else None)
