"""
What a database has to hold, worked out from the documents and from what is left of the old one.

Pure. The documents are the truth: a row, a lock or a token that disagrees with them gives way.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from adws.adw_modules.demands import Demands
from adws.adw_modules.errors import UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import IssueLock, ProjectedWrite, WorkflowSummary
from adws.adw_modules.interfaces_rebuild import KnownWorkflow, NewContents, Salvage
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.repository_name import in_home
from adws.adw_modules.run_making import RunMaker
from adws.adw_modules.runs import NewRun, Run, check_due
from adws.adw_modules.state_table import ACTIVE_STATES, WorkflowState, is_terminal


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredDocument:
    """A document on disk and the highest fence that its directory shows."""

    data: JsonObject
    highest_fence: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LockConflict:
    """Several unfinished workflows of one issue: one keeps it, a person decides about the others."""

    repository: str
    issue_number: int
    keeper: str
    others: tuple[str, ...]

    def to_json(self) -> JsonObject:
        """Return the conflict as plain data."""
        return {
            "repository": self.repository,
            "issue_number": self.issue_number,
            "keeper": self.keeper,
            "others": list(self.others),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class RebuildPlan:
    """The contents to write, and what to say about them."""

    contents: NewContents
    freed: tuple[IssueLock, ...] = ()
    conflicts: tuple[LockConflict, ...] = ()
    only_in_database: tuple[str, ...] = ()
    runs_made: tuple[str, ...] = ()  #: workflows that are to go on and had no run


#: The states in which a workflow is to go on, as a document has them.
_ACTIVE_NAMES = frozenset(state.value for state in ACTIVE_STATES)


def plan_rebuild(
    documents: Sequence[StoredDocument],
    salvage: Salvage,
    *,
    unreadable: Sequence[str] = (),
    repository: str = "",
    maker: RunMaker | None = None,
) -> RebuildPlan:
    """
    Return what the database is to hold; *unreadable* documents keep the row and the lock they have.

    *repository* is that of the home, which documents that name none belong to; *maker* knows the labels of runs.
    """
    known = {workflow.adw_id: workflow for workflow in salvage.workflows}
    on_disk = {_text(document.data, "adw_id") for document in documents} | set(unreadable)
    kept_for = set(unreadable) | _lost_documents(known, on_disk)
    locks, conflicts = _plan_locks(documents, salvage.locks, kept_for=kept_for, repository=repository)
    is_new = salvage.is_missing or bool(salvage.problems)
    made = _plan_runs(documents, salvage.runs, maker or RunMaker(repository=repository))
    kept = {(lock.issue_number, lock.adw_id) for lock in locks}  # a workflow has one issue, however it is spelled

    return RebuildPlan(
        contents=NewContents(
            rows=tuple(_plan_row(document, known, salvage.events) for document in documents),
            locks=locks,
            events=salvage.events,
            checkpoints=salvage.checkpoints,
            breakers=salvage.breakers,
            deliveries=salvage.deliveries,
            kept=salvage.kept,
            requests=salvage.requests if is_new else (),
            # Those of before come first: they waited longer.
            runs=(*map(_again, salvage.runs if is_new else ()), *made),
            forget=tuple(sorted(w.adw_id for w in known.values() if w.revision == 0 and w.adw_id not in on_disk)),
        ),
        freed=tuple(k for k in salvage.locks if (k.issue_number, k.adw_id) not in kept),
        conflicts=conflicts,
        only_in_database=tuple(sorted(_lost_documents(known, on_disk))),
        runs_made=tuple(run.adw_id for run in made),
    )


def _lost_documents(known: Mapping[str, KnownWorkflow], on_disk: set[str]) -> set[str]:
    return {w.adw_id for w in known.values() if w.home == "files" and w.revision > 0 and w.adw_id not in on_disk}


def _plan_row(
    document: StoredDocument, known: Mapping[str, KnownWorkflow], salvaged: Sequence[Event]
) -> ProjectedWrite:
    data, adw_id = document.data, _text(document.data, "adw_id")
    row = known.get(adw_id)
    has_events = bool(row and row.events) or any(event.adw_id == adw_id for event in salvaged)
    waiting = tuple(Event.from_json(entry) for entry in _objects(data.get("outbox")))

    return ProjectedWrite(
        adw_id=adw_id,
        revision=_number(data, "revision"),
        # Above everything seen, so that no writer of before is ever let in again.
        fence=max(row.fence if row else 0, document.highest_fence) + 1,
        body=json.dumps(data, indent=1, ensure_ascii=False).encode(),
        summary=_summary(data),
        events=waiting if has_events else (*_events_of_history(data, waiting), *waiting),
    )


def _events_of_history(data: JsonObject, waiting: Sequence[Event]) -> tuple[Event, ...]:
    """Return the moves in the history as events, but for those that still wait in the outbox."""
    adw_id = _text(data, "adw_id")
    recent = {event.created_at for event in waiting if event.event_type == "state_changed"}
    first = min(recent, default="~")  # after every digit: nothing waits

    return tuple(
        Event(
            event_type="state_changed",
            adw_id=adw_id,
            event_id=f"{adw_id}.0.{index}",  # no event of a revision has 0
            created_at=_text(entry, "timestamp"),
            status=_text(entry, "to"),
            execution_id=adw_id,
            data={"from": entry.get("from"), "to": entry.get("to")},
            meta={"rebuilt_from": "state_history"},
        )
        for index, entry in enumerate(_objects(data.get("state_history")))
        if _text(entry, "timestamp") < first
    )


def _plan_runs(documents: Sequence[StoredDocument], unfinished: Sequence[Run], maker: RunMaker) -> tuple[NewRun, ...]:
    """Return a run for each workflow that is to go on and has none, in the order the workflows were created."""
    has_run = {run.adw_id for run in unfinished}
    going_on = [
        document.data
        for document in documents
        if _text(document.data, "current_state") in _ACTIVE_NAMES and _text(document.data, "adw_id") not in has_run
    ]
    going_on.sort(key=lambda data: (_text(data, "created_at"), _text(data, "adw_id")))

    return tuple(
        NewRun(
            adw_id=_text(data, "adw_id"),
            kind="start" if data.get("current_state") == WorkflowState.PENDING.value else "resume",
            not_before=_retry_time(data),
            asked_by="rebuild",
            demands=_demands(data),
            labels=maker.labels_of(data),
        )
        for data in going_on
    )


def _demands(data: JsonObject) -> Demands:
    workflow = data.get("workflow")
    try:
        return Demands.from_json(workflow.get("demands", {})) if isinstance(workflow, dict) else Demands()
    except UsageError:
        return Demands()  # nothing that we wrote: whoever claims the run says what is wrong with the document


def _retry_time(data: JsonObject) -> str:
    """Return when the phase that waits for its next attempt may have it, "" when none waits."""
    waiting = [
        _text(phase, "retry_at") for phase in _objects(data.get("phases")) if phase.get("status") == "retry_wait"
    ]
    try:
        return max(map(check_due, waiting), default="")
    except UsageError:
        return ""  # not a moment that we wrote: the phase itself decides when the run comes


def _again(run: Run) -> NewRun:
    return NewRun(
        adw_id=run.adw_id,
        kind=run.kind,
        priority=run.priority,
        not_before=run.not_before,
        payload=run.payload,
        asked_by=run.asked_by,
        demands=run.demands,
        labels=run.labels,
        slot=run.slot,
    )


def _plan_locks(
    documents: Sequence[StoredDocument], held: Sequence[IssueLock], *, kept_for: set[str], repository: str
) -> tuple[tuple[IssueLock, ...], tuple[LockConflict, ...]]:
    # The oldest comes last: of two locks that are of one issue now, it is the one that holds.
    former = {(in_home(lock.repository, repository), lock.issue_number): lock for lock in reversed(held)}
    claims: dict[tuple[str, int], list[JsonObject]] = defaultdict(list)
    for document in documents:
        number = document.data.get("issue_number")
        if isinstance(number, int) and not is_terminal(document.data.get("current_state")):
            claims[in_home(_text(document.data, "repository"), repository), number].append(document.data)
    locks = [
        replace(lock, repository=key[0])
        for key, lock in former.items()
        if lock.adw_id in kept_for and key not in claims
    ]
    conflicts = []
    for (where, number), rivals in sorted(claims.items()):
        holder = former.get((where, number))
        # Who has the lock keeps it; where nobody knows, the older workflow does.
        rivals.sort(key=lambda d: (holder is None or d["adw_id"] != holder.adw_id, _text(d, "created_at"), d["adw_id"]))
        keeper, *others = (_text(rival, "adw_id") for rival in rivals)
        is_same = holder is not None and holder.adw_id == keeper
        moment = holder.acquired_at if holder is not None and is_same else _text(rivals[0], "created_at")
        locks.append(IssueLock(repository=where, issue_number=number, adw_id=keeper, acquired_at=moment))
        if others:
            conflicts.append(LockConflict(repository=where, issue_number=number, keeper=keeper, others=tuple(others)))

    return tuple(locks), tuple(conflicts)


def _summary(data: JsonObject) -> WorkflowSummary:
    issue, workflow, number = data.get("issue"), data.get("workflow"), data.get("issue_number")

    return WorkflowSummary(
        adw_id=_text(data, "adw_id"),
        repository=_text(data, "repository"),
        issue_number=number if isinstance(number, int) else None,
        title=_text(issue, "title") if isinstance(issue, dict) else "",
        workflow=_text(workflow, "name") if isinstance(workflow, dict) else "",
        state=_text(data, "current_state"),
        revision=_number(data, "revision"),
        created_at=_text(data, "created_at"),
        updated_at=_text(data, "updated_at"),
    )


def _text(data: Mapping[str, JsonValue], name: str) -> str:
    value = data.get(name)
    return value if isinstance(value, str) else ""


def _number(data: Mapping[str, JsonValue], name: str) -> int:
    value = data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _objects(value: JsonValue) -> list[JsonObject]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
