"""
Checking the eleven invariants against the actual state; changes nothing.

Documents are compared with their own rules, the database, git, ports and processes, and all that adw wrote is searched
for secrets. A violation names the place but never the secret.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import effects
from adws.adw_modules.effects import open_effects
from adws.adw_modules.engine.advisor import MAX_CALLS, MAX_CALLS_PER_PHASE, MAX_REPLANS
from adws.adw_modules.engine.resume import definition_of
from adws.adw_modules.engine.transitions import NOT_COUNTED, limit
from adws.adw_modules.errors import AdwError, DatabaseError
from adws.adw_modules.git import change_policy
from adws.adw_modules.housekeeping import inventory
from adws.adw_modules.housekeeping.inventory import InventorySnapshot
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState, WorkflowStateMachine, is_terminal
from adws.adw_modules.store import serialization

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home


# Invariants of a workflow's document, which hold after any crash, and the eleven invariants of a home.
#
# Pure. Each check returns the violations of its rule, each a sentence that names the place; nothing is repaired here.


#: number -> invariant.
INVARIANTS: Mapping[int, str] = {
    1: "What is loaded is a whole, valid revision, never torn and never older.",
    2: "Every change of state is an edge of the table.",
    3: "An attempt is recorded before it runs, and totals only grow.",
    4: "A phase runs at most as often as it may.",
    5: "A workflow has one live owner, and an issue one live workflow.",
    6: "Everything made outside is in the ledger.",
    7: "Rolled back means that nothing is left but what was kept.",
    8: "Only processes that adw started, and recorded, are its own.",
    9: "Nothing is completed without the success of every required phase.",
    10: "No secret is in what adw writes.",
    11: "What a phase committed stays on its branch, and no commit of adw empties a file.",
}
_ENDED = frozenset({"complete", "skipped", "failed"})
_ACTIVE = frozenset(state.value for state in ACTIVE_STATES)


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of an invariant."""

    invariant: int
    where: str  #: the workflow, file, branch or process
    what: str

    def to_json(self) -> JsonObject:
        """Return the violation for programs."""
        return {"invariant": self.invariant, "rule": INVARIANTS[self.invariant], "where": self.where, "what": self.what}


def check_document(document: WorkflowDocument) -> tuple[Violation, ...]:
    """Return the violations in a document."""
    checks = (_moves, _attempts, _limits, _rollback, _required)

    return tuple(violation for check in checks for violation in check(document))


def _moves(document: WorkflowDocument) -> Iterator[Violation]:
    try:
        WorkflowStateMachine.of(document)
    except AdwError as exc:
        yield Violation(2, document.adw_id, str(exc))


def _attempts(document: WorkflowDocument) -> Iterator[Violation]:
    for record in document.phases:
        numbers = [attempt.number for attempt in record.attempts]
        if numbers != list(range(1, len(numbers) + 1)):
            yield Violation(3, document.adw_id, f"the attempts of {record.name} are numbered {numbers}")
        if document.current_state in {"completed", "paused", "failed", "abandoned", "rolled_back"} and any(
            attempt.status == "running" for attempt in record.attempts
        ):
            yield Violation(
                3, document.adw_id, f"{record.name} has an attempt that runs, though it is {document.current_state}"
            )


def _limits(document: WorkflowDocument) -> Iterator[Violation]:
    for record in document.phases:
        if record.attempts_used > limit(record):
            yield Violation(
                4, document.adw_id, f"{record.name} used {record.attempts_used} of {limit(record)} attempts"
            )
        made = sum(1 for one in record.attempts if one.round == record.round and one.status not in NOT_COUNTED)
        if made > record.attempts_used:
            what = (
                f"{record.name} was tried {made} times in round {record.round}, and {record.attempts_used} are counted"
            )
            yield Violation(4, document.adw_id, what)
        if len(record.doctor) > MAX_CALLS_PER_PHASE:
            asked = f"{len(record.doctor)} of {MAX_CALLS_PER_PHASE}"
            yield Violation(4, document.adw_id, f"the doctor was asked about {record.name} {asked} times")
    if document.reworks > document.max_reworks:
        yield Violation(4, document.adw_id, f"it was sent back {document.reworks} of {document.max_reworks} times")
    if document.replans > MAX_REPLANS:
        yield Violation(4, document.adw_id, f"it was planned again {document.replans} of {MAX_REPLANS} times")
    if document.doctor_calls > MAX_CALLS:
        yield Violation(4, document.adw_id, f"the doctor was asked {document.doctor_calls} of {MAX_CALLS} times")


def _rollback(document: WorkflowDocument) -> Iterator[Violation]:
    if document.current_state != WorkflowState.ROLLED_BACK.value:
        return
    left = ", ".join(effect.key for effect in open_effects(document))
    if left:
        yield Violation(7, document.adw_id, f"it is rolled back, and its ledger still has: {left}")
    if document.pr_merged:
        yield Violation(7, document.adw_id, "it is rolled back, though its pull request is merged")
    record = document.rollback
    if record is not None and record.blocked_by:
        yield Violation(7, document.adw_id, f"it is rolled back, and blocked by: {'; '.join(record.blocked_by)}")


def _required(document: WorkflowDocument) -> Iterator[Violation]:
    # A workflow completed by an older tool has no phases: they are unknown.
    frozen = document.workflow
    if document.current_state != WorkflowState.COMPLETED.value or frozen is None:
        return
    if not frozen.phases and not document.phases:
        return
    try:
        asked = frozen.run_phases  # of a continued one: other phases may be outdated by these
        required = {
            phase.name
            for phase in definition_of(document).phases
            if phase.is_required and (not asked or phase.name in asked)
        }
    except AdwError as exc:
        yield Violation(9, document.adw_id, str(exc))
        return
    for record in document.phases:
        # A clean-up that fails after a merge is only a warning.
        is_forgiven = document.pr_merged and record.state == WorkflowState.CLEANING.value
        is_bad = record.name in required and record.status != "complete" and not is_forgiven
        if is_bad or record.status not in _ENDED:
            yield Violation(9, document.adw_id, f"it is completed, and {record.name} is {record.status}")


def check_issues(documents: Iterable[WorkflowDocument], key: Callable[[str], str]) -> tuple[Violation, ...]:
    """Return the issues that more than one live workflow has; *key* maps all names of a repository to one."""
    live: dict[tuple[str, int], list[str]] = defaultdict(list)
    for document in documents:
        if document.issue_number is not None and not is_terminal(document.current_state):
            live[key(document.repository), document.issue_number].append(document.adw_id)

    return tuple(
        Violation(
            5,
            f"issue {number}" + (f" of {repository}" if repository else ""),
            f"more than one live workflow has it: {', '.join(sorted(ids))}",
        )
        for (repository, number), ids in live.items()
        if len(ids) > 1
    )


def count_by_invariant(found: Iterable[Violation]) -> dict[int, int]:
    """Return the number of violations of each invariant, including 0."""
    counted = Counter(violation.invariant for violation in found)

    return {number: counted[number] for number in INVARIANTS}


#: Kinds of notices that say that the loaded revision is not the one in the document's place.
_BAD_NOTICES = frozenset({"recovered", "corrupt", "foreign"})
#: Files in a workflow's directory to search for secrets: its document, its logs and the output of its phases.
_WRITTEN = ("adw_state.json*", "*.log", "*.log.*", "**/*.log", "**/*.out", "**/*.err", "**/*.jsonl")
#: Bytes of a file searched at a time, and how many of them are searched again with the next.
_CHUNK, _OVERLAP = 1 << 20, 1 << 12
_EVENTS = 1000
#: Files of a commit that a violation names.
_TOLD = 10


class Verifier:
    """Finds violations of the invariants."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def check(self) -> tuple[Violation, ...]:
        """
        Return all violations of the eleven invariants, in their order.

        Each is checked twice, since workflows change meanwhile: only what both checks find is a violation.
        """
        result = self._look()
        again = set(self._look()) if result else set()

        return tuple(broken for broken in result if broken in again)

    def _look(self) -> tuple[Violation, ...]:
        seen = self._home.inventory.look()
        documents, result = self._documents(seen)
        result += [broken for document in documents.values() for broken in check_document(document)]
        result += check_issues(documents.values(), self._home.locks.key)
        for checks in (
            self._rows(documents),
            self._locks(seen, documents),
            self._outside(seen, documents),
            self._shared(documents),
            self._processes(seen, documents),
            self._secrets(documents),
            self._commits(documents),
        ):
            result += checks

        return tuple(sorted(result, key=lambda broken: (broken.invariant, broken.where, broken.what)))

    # --- 1: what is loaded -------------------------------------------------------------------------------------

    def _documents(self, seen: InventorySnapshot) -> tuple[dict[str, WorkflowDocument], list[Violation]]:
        documents: dict[str, WorkflowDocument] = {}
        result = [Violation(1, adw_id, why) for adw_id, why in seen.unreadable.items()]
        for adw_id in seen.workflows.keys() - seen.unreadable.keys():
            try:
                loaded = self._home.store.load(adw_id)
            except DatabaseError:
                raise
            except AdwError as exc:
                result.append(Violation(1, adw_id, str(exc)))
                continue
            documents[adw_id] = loaded.document
            bad = [notice for notice in loaded.notices if notice.kind in _BAD_NOTICES]
            result += [Violation(1, notice.path, notice.reason) for notice in bad]

        return documents, result

    # --- 1 and 5: rows, owners and issues ------------------------------------------------------------------------

    def _rows(self, documents: Mapping[str, WorkflowDocument]) -> Iterator[Violation]:
        for adw_id, revision in self._home.inventory.copies().items():
            document = documents.get(adw_id)
            if document is not None and document.revision < revision:
                what = f"the document is at revision {document.revision}, and its copy was at {revision} already"
                yield Violation(1, adw_id, what)
        for adw_id, document in documents.items():
            row = self._home.leases.read(adw_id)
            if row is not None and document.fence > row.fence:
                what = f"its document was written under fence {document.fence}, above {row.fence} of its lease"
                yield Violation(5, adw_id, what)

    def _locks(self, seen: InventorySnapshot, documents: Mapping[str, WorkflowDocument]) -> Iterator[Violation]:
        key = self._home.locks.key
        holders = {(key(lock.repository), lock.issue_number): lock.adw_id for lock in seen.locks}
        for adw_id, document in documents.items():
            if document.issue_number is None or is_terminal(document.current_state):
                continue
            holder = holders.get((key(document.repository), document.issue_number))
            if holder != adw_id:
                whose = f"workflow {holder} has its lock" if holder else "nobody has its lock"
                what = f"it works on issue {document.issue_number}, and {whose}"
                yield Violation(5, adw_id, what)

    # --- 6 and 7: the world ------------------------------------------------------------------------------------

    def _outside(self, seen: InventorySnapshot, documents: Mapping[str, WorkflowDocument]) -> Iterator[Violation]:
        host = self._home.inventory.host
        names = {adw_id: _names_in(document, host) for adw_id, document in documents.items()}
        for adw_id, kind, name in _things(seen):
            known = seen.known(adw_id)
            is_rolled_back = known is not None and known.state == WorkflowState.ROLLED_BACK.value
            if is_rolled_back and inventory.why_orphan(kind, name, known):
                yield Violation(7, adw_id, f"it is rolled back, and its {kind} {name} is there")
            if adw_id in seen.unreadable or name in names.get(adw_id, set()):
                continue
            is_meant = kind == "port" and "ports" in names.get(adw_id, set())
            if not is_meant:
                where = f"the ledger of {adw_id}" if adw_id in documents else f"{adw_id}, which is no workflow here"
                yield Violation(6, f"{kind} {name}", f"it is there, and not in {where}")

    def _shared(self, documents: Mapping[str, WorkflowDocument]) -> Iterator[Violation]:
        """Report changes of a phase in the shared git directory until they are restored or settled."""
        result = {adw_id: left for adw_id, document in documents.items() if (left := change_policy.unsettled(document))}
        now = self._home.git.marks() if result and self._home.git_if_any is not None else {}
        for adw_id, (phase, attempt, before) in result.items():
            for name, was in change_policy.still(before, now).items():
                how = change_policy.described({name: was}, now).removeprefix(f"{name} ")
                what = f"it is not as it was before attempt {attempt} of {phase} of {adw_id} {how}"
                yield Violation(6, f"{name} of the shared git directory", what)

    # --- 8: processes ------------------------------------------------------------------------------------------

    def _processes(self, seen: InventorySnapshot, documents: Mapping[str, WorkflowDocument]) -> Iterator[Violation]:
        for process in seen.processes:
            where = f"process {process.stat.pid} ({process.stat.command})"
            document = documents.get(process.adw_id)
            if document is None:
                yield Violation(8, where, f"there is no workflow {process.adw_id} that started it")
            elif process.token not in _tokens(document):
                yield Violation(8, where, f"workflow {process.adw_id} has no record of it")
            elif document.current_state not in _ACTIVE:
                state = document.current_state
                yield Violation(8, where, f"it runs, and workflow {process.adw_id} is {state}")

    # --- 10: secrets -------------------------------------------------------------------------------------------

    def _secrets(self, documents: Iterable[str]) -> Iterator[Violation]:
        redactor, what = self._home.redactor, "it holds what looks like a secret"

        def has_secret(path: Path) -> bool:
            if path.name.startswith("adw_state.json"):
                payload = path.read_bytes()
                return redactor.scrub_bytes(payload) != payload
            with path.open("rb") as file:
                tail = b""
                while chunk := file.read(_CHUNK):
                    text = (tail + chunk).decode(errors="replace")
                    if redactor.redact_text(text) != text:
                        return True
                    tail = chunk[-_OVERLAP:]
            return False

        for adw_id in documents:
            folder = self._home.folder_of(adw_id)
            for path in sorted({path for pattern in _WRITTEN for path in folder.glob(pattern)}):
                if path.is_file() and not path.is_symlink() and has_secret(path):
                    yield Violation(10, str(path), what)
            after: str | None = None
            while page := self._home.events.of_workflow(adw_id, after=after, limit=_EVENTS):
                after = page[-1].event_id
                for event in page:
                    payload = serialization.to_bytes(event.to_json())
                    if redactor.scrub_bytes(payload) != payload:
                        yield Violation(10, f"event {event.event_id}", what)

    # --- 11: commits -------------------------------------------------------------------------------------------

    def _commits(self, documents: Mapping[str, WorkflowDocument]) -> Iterator[Violation]:
        git, host = self._home.git_if_any, self._home.inventory.host
        followed = {document.continues for document in documents.values()}  # another workflow has their branch now
        if git is None:
            return
        for adw_id, document in documents.items():
            branch = effects.effect(document, f"branch:{document.branch_name}")
            if branch is None or branch.outcome not in effects.MADE or (host and branch.place not in {"", host}):
                continue
            if adw_id in followed or document.pr_merged or document.current_state == WorkflowState.ABANDONED.value:
                continue
            name, recorded = document.branch_name or "", effects.phase_commits(document)
            if git.commit_of(f"refs/heads/{name}") is None:
                if recorded and not is_terminal(document.current_state):
                    last = recorded[-1][2]
                    what = f"its branch {name} is gone: git branch {name} {last[:12]} brings it back"
                    yield Violation(11, adw_id, what)
                continue
            missing = git.missing_from(name, [sha for _, _, sha in recorded])
            for phase, attempt, sha in recorded:
                if sha in missing:
                    what = f"commit {sha[:12]} of attempt {attempt} of {phase} is not on its branch {name} any more"
                    yield Violation(11, adw_id, f"{what}: git log {sha[:12]} shows what is missing")
            start = str(branch.undo.get("start") or branch.undo.get("base") or "")
            for sha, files in git.emptied_by(name, start=start, mark=f"ADW-ID: {adw_id}").items():
                more = f" and {len(files) - _TOLD} more files" if len(files) > _TOLD else ""
                what = f"commit {sha[:12]} on its branch {name} reduces {', '.join(files[:_TOLD])}{more} to 0 bytes"
                bring = f"unless that is meant, git restore --source={sha[:12]}^ -- FILE brings a file back"
                yield Violation(11, adw_id, f"{what}: {bring}")


def _things(seen: InventorySnapshot) -> Iterator[tuple[str, str, str]]:
    """Yield the existing resources of workflows: workflow, kind, name."""
    yield from ((adw_id, "worktree", str(tree.path)) for adw_id, tree in seen.worktrees)
    yield from ((branch.adw_id, "branch", branch.name) for branch in seen.branches)
    yield from ((row.adw_id, "port", str(row.port)) for row in seen.ports)


def _names_in(document: WorkflowDocument, host: str) -> set[str]:
    """Return the paths, branches and ports that the ledger ever had on *host*, and the keys of its entries."""
    result: set[str] = set()
    for effect in document.resources:
        if host and effect.place not in {"", host}:
            continue  # another machine has it, and checks it
        result |= {effect.key, effects.path_of(effect.undo), effects.branch_of(effect.undo)}
        result.add(str(effect.undo.get("port")))

    return result - {""}


def _tokens(document: WorkflowDocument) -> set[str]:
    records = [attempt.process or {} for record in document.phases for attempt in record.attempts]
    records += [effect.undo for effect in document.resources if effect.kind == "process"]

    return {str(record.get("token")) for record in records}
