"""
Checking the ten things that must always hold against what is really there; nothing is changed.

Documents are held against their own rules, against the database, against git, ports and processes, and all that adw
wrote is searched for secrets. A violation names the place and never the secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules import effect_facts, effect_rules, gc_rules, state_text, tampering, verify_rules
from adws.adw_modules.coordination.survey import Seen, Survey, SurveyParts
from adws.adw_modules.errors import AdwError, DatabaseError
from adws.adw_modules.interfaces import EventLog
from adws.adw_modules.state_table import WorkflowState, is_terminal
from adws.adw_modules.tampering import Marks
from adws.adw_modules.verify_rules import Violation

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

#: Kinds of notices that say that what was loaded is not what stands in the document's place.
_BAD_NOTICES = frozenset({"recovered", "corrupt", "foreign"})
#: What is searched for secrets, in the directory of a workflow: its document, its logs and the output of its phases.
_WRITTEN = ("adw_state.json*", "*.log", "*.log.*", "**/*.log", "**/*.out", "**/*.err", "**/*.jsonl")
#: Bytes of a file that are searched at a time, and how many are looked at again with the next.
_CHUNK, _OVERLAP = 1 << 20, 1 << 12
_EVENTS = 1000


class Scrubber(Protocol):
    """What takes secrets out (`Redactor`)."""

    def scrub_bytes(self, payload: bytes) -> bytes: ...
    def redact_text(self, text: str) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyParts:
    """What is held against each other."""

    survey: SurveyParts
    events: EventLog
    redactor: Scrubber
    shared: Callable[[], Marks] = dict  #: what all worktrees share, as it is now


class Verifier:
    """Looks for what breaks an invariant."""

    def __init__(self, parts: VerifyParts) -> None:
        self._parts = parts

    def check(self) -> tuple[Violation, ...]:
        """
        Return everything that breaks one of the ten, in their order.

        What was seen is looked at twice: others go on working, and what they change between two looks breaks nothing.
        """
        found = self._look()
        again = set(self._look()) if found else set()

        return tuple(broken for broken in found if broken in again)

    def _look(self) -> tuple[Violation, ...]:
        seen = Survey(self._parts.survey).look()
        documents, found = self._documents(seen)
        found += [broken for document in documents.values() for broken in verify_rules.check_document(document)]
        found += verify_rules.check_issues(documents.values(), self._parts.survey.locks.key)
        for checks in (
            self._copies(documents),
            self._owners(documents),
            self._locks(seen, documents),
            self._outside(seen, documents),
            self._shared(documents),
            self._rolled_back(seen),
            self._processes(seen, documents),
            self._secrets(documents),
        ):
            found += checks

        return tuple(sorted(found, key=lambda broken: (broken.invariant, broken.where, broken.what)))

    # --- 1: what is loaded -------------------------------------------------------------------------------------

    def _documents(self, seen: Seen) -> tuple[dict[str, WorkflowDocument], list[Violation]]:
        documents: dict[str, WorkflowDocument] = {}
        found = [Violation(invariant=1, where=adw_id, what=why) for adw_id, why in seen.unreadable.items()]
        for adw_id in seen.workflows.keys() - seen.unreadable.keys():
            try:
                loaded = self._parts.survey.store.load(adw_id)
            except DatabaseError:
                raise
            except AdwError as exc:
                found.append(Violation(invariant=1, where=adw_id, what=str(exc)))
                continue
            documents[adw_id] = loaded.document
            bad = [notice for notice in loaded.notices if notice.kind in _BAD_NOTICES]
            found += [Violation(invariant=1, where=notice.path, what=notice.reason) for notice in bad]

        return documents, found

    def _copies(self, documents: Mapping[str, WorkflowDocument]) -> Iterator[Violation]:
        for adw_id, revision in self._parts.survey.copies().items():
            document = documents.get(adw_id)
            if document is not None and document.revision < revision:
                what = f"the document is at revision {document.revision}, and its copy was at {revision} already"
                yield Violation(invariant=1, where=adw_id, what=what)

    # --- 5: owners and issues ----------------------------------------------------------------------------------

    def _owners(self, documents: Mapping[str, WorkflowDocument]) -> Iterator[Violation]:
        for adw_id, document in documents.items():
            row = self._parts.survey.leases.read(adw_id)
            if row is not None and document.fence > row.fence:
                what = f"its document was written under fence {document.fence}, above {row.fence} of its lease"
                yield Violation(invariant=5, where=adw_id, what=what)

    def _locks(self, seen: Seen, documents: Mapping[str, WorkflowDocument]) -> Iterator[Violation]:
        key = self._parts.survey.locks.key
        holders = {(key(lock.repository), lock.issue_number): lock.adw_id for lock in seen.locks}
        for adw_id, document in documents.items():
            if document.issue_number is None or is_terminal(document.current_state):
                continue
            holder = holders.get((key(document.repository), document.issue_number))
            if holder != adw_id:
                whose = f"workflow {holder} has its lock" if holder else "nobody has its lock"
                what = f"it works on issue {document.issue_number}, and {whose}"
                yield Violation(invariant=5, where=adw_id, what=what)

    # --- 6 and 7: the world ------------------------------------------------------------------------------------

    def _outside(self, seen: Seen, documents: Mapping[str, WorkflowDocument]) -> Iterator[Violation]:
        host = self._parts.survey.host
        names = {adw_id: _names_in(document, host) for adw_id, document in documents.items()}
        things = [(adw_id, "worktree", str(tree.path)) for adw_id, tree in seen.worktrees]
        things += [(branch.adw_id, "branch", branch.name) for branch in seen.branches]
        things += [(row.adw_id, "port", str(row.port)) for row in seen.ports]
        for adw_id, kind, name in things:
            if adw_id in seen.unreadable or name in names.get(adw_id, set()):
                continue
            is_meant = kind == "port" and "ports" in names.get(adw_id, set())
            if not is_meant:
                where = f"the ledger of {adw_id}" if adw_id in documents else f"{adw_id}, which is no workflow here"
                yield Violation(invariant=6, where=f"{kind} {name}", what=f"it is there, and not in {where}")

    def _shared(self, documents: Mapping[str, WorkflowDocument]) -> Iterator[Violation]:
        """Name what an agent changed in the git directory that all share, until it is put back or worked on."""
        found = {adw_id: left for adw_id, document in documents.items() if (left := tampering.unsettled(document))}
        now = self._parts.shared() if found else {}
        for adw_id, left in found.items():
            for name, was in tampering.still(left.before, now).items():
                how = tampering.described({name: was}, now).removeprefix(f"{name} ")
                what = f"it is not as it was before attempt {left.attempt} of {left.phase} of {adw_id} {how}"
                yield Violation(invariant=6, where=f"{name} of the shared git directory", what=what)

    def _rolled_back(self, seen: Seen) -> Iterator[Violation]:
        things = [(adw_id, "worktree", str(tree.path)) for adw_id, tree in seen.worktrees]
        things += [(branch.adw_id, "branch", branch.name) for branch in seen.branches]
        things += [(row.adw_id, "port", str(row.port)) for row in seen.ports]
        for adw_id, kind, name in things:
            known = seen.known(adw_id)
            if known is None or known.state != WorkflowState.ROLLED_BACK.value:
                continue
            if gc_rules.why_orphan(kind, name, known):
                yield Violation(invariant=7, where=adw_id, what=f"it is rolled back, and its {kind} {name} is there")

    # --- 8: processes ------------------------------------------------------------------------------------------

    def _processes(self, seen: Seen, documents: Mapping[str, WorkflowDocument]) -> Iterator[Violation]:
        for process in seen.processes:
            where = f"process {process.stat.pid} ({process.stat.command})"
            document = documents.get(process.adw_id)
            if document is None:
                yield Violation(invariant=8, where=where, what=f"there is no workflow {process.adw_id} that started it")
            elif process.token not in _tokens(document):
                yield Violation(invariant=8, where=where, what=f"workflow {process.adw_id} has no record of it")
            elif not gc_rules.is_active(document.current_state):
                state = document.current_state
                yield Violation(invariant=8, where=where, what=f"it runs, and workflow {process.adw_id} is {state}")

    # --- 10: secrets -------------------------------------------------------------------------------------------

    def _secrets(self, documents: Iterable[str]) -> Iterator[Violation]:
        for adw_id in documents:
            folder = self._parts.survey.state_dir / adw_id
            files = {path for pattern in _WRITTEN for path in folder.glob(pattern)}
            for path in sorted(files):
                if path.is_file() and not path.is_symlink() and self._has_secret(path):
                    yield Violation(invariant=10, where=str(path), what="it holds what looks like a secret")
            yield from self._secret_events(adw_id)

    def _has_secret(self, path: Path) -> bool:
        is_document = path.name.startswith("adw_state.json")
        if is_document:
            payload = path.read_bytes()
            return self._parts.redactor.scrub_bytes(payload) != payload
        with path.open("rb") as file:
            tail = b""
            while chunk := file.read(_CHUNK):
                text = (tail + chunk).decode(errors="replace")
                if self._parts.redactor.redact_text(text) != text:
                    return True
                tail = chunk[-_OVERLAP:]

        return False

    def _secret_events(self, adw_id: str) -> Iterator[Violation]:
        after: str | None = None
        while page := self._parts.events.of_workflow(adw_id, after=after, limit=_EVENTS):
            after = page[-1].event_id
            for event in page:
                payload = state_text.to_bytes(event.to_json())
                if self._parts.redactor.scrub_bytes(payload) != payload:
                    yield Violation(
                        invariant=10, where=f"event {event.event_id}", what="it holds what looks like a secret"
                    )


def _names_in(document: WorkflowDocument, host: str) -> set[str]:
    """Return paths, branches and ports that the ledger has ever had here, and the keys of those that are only meant."""
    found: set[str] = set()
    for effect in effect_rules.effects(document):
        if host and effect.host not in {"", host}:
            continue  # another machine has it, and looks after it
        found |= {effect.key, effect_facts.path_of(effect.undo), effect_facts.branch_of(effect.undo)}
        found.add(str(effect.undo.get("port")))

    return found - {""}


def _tokens(document: WorkflowDocument) -> set[str]:
    records = [attempt.process or {} for record in document.phases for attempt in record.attempts]
    records += [effect.undo for effect in effect_rules.effects(document) if effect.kind == "process"]

    return {str(record.get("token")) for record in records}
