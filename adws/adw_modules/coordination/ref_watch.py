"""
Refs that tools of a phase make by themselves: observed effects, so that a rollback finds them.

The refs before an attempt are known to the process that runs it, and to nobody else: writing all of them down before
every attempt would cost more than it tells. After a crash a ref counts that names the workflow and that the ledger does
not have, and our branch on the remote. That is all that a rollback may delete anyway; of other refs nobody can say
after a crash who made them, so they are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules import effect_rules, work_names
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.interfaces_resources import Effect, GitRepository

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.json_value import JsonObject

#: Refs that come and go by themselves, or that adw makes elsewhere.
_NOT_OBSERVED = ("refs/remotes/", "refs/adw/", "refs/stash")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Before:
    """What there was when an attempt began."""

    phase: str
    refs: Mapping[str, str]


class RefWatch:
    """Compares the refs before and after the attempts that this process runs."""

    def __init__(self, git: GitRepository, *, remote: str, host: str = "") -> None:
        """*host* is this machine, as the ledger names it."""
        self._git = git
        self._host = host
        self._remote = remote
        self._before: dict[str, _Before] = {}

    def begin(self, session: WorkSession, phase: str) -> None:
        """Remember the refs before an attempt; what an attempt before it made that did not end well is recorded."""
        refs = self._git.refs()
        self._record(session, refs)
        self._before[session.document.adw_id] = _Before(phase=phase, refs=refs)

    def appeared(self, document: WorkflowDocument) -> tuple[Effect, ...]:
        """Return what the attempt that ends now made; whoever stores it says `forget` then."""
        return self._new(document, self._git.refs())

    def forget(self, adw_id: str) -> None:
        """Forget the refs before an attempt: what it made is recorded."""
        self._before.pop(adw_id, None)

    def settle(self, session: WorkSession) -> None:
        """Record what the last attempt made, which failed or was cut off."""
        self._record(session, self._git.refs())

    def _record(self, session: WorkSession, refs: Mapping[str, str]) -> None:
        seen = self._new(session.document, refs)
        if seen:
            session.change(lambda draft: observe(draft, seen))
        self.forget(session.document.adw_id)

    def _new(self, document: WorkflowDocument, refs: Mapping[str, str]) -> tuple[Effect, ...]:
        before = self._before.get(document.adw_id)
        found = self._of_crash(document, refs) if before is None else self._since(before, document, refs)

        return tuple(seen for seen in found if effect_rules.effect(document, seen.key) is None)

    def _since(self, before: _Before, document: WorkflowDocument, refs: Mapping[str, str]) -> Iterator[Effect]:
        for ref, sha in refs.items():
            if before.refs.get(ref) != sha:
                yield from self._pushed(ref, sha, document)
            if ref not in before.refs and _is_observed(ref) and not work_names.is_of_another(ref, document.adw_id):
                yield _effect(ref, sha, before.phase, self._host)

    def _of_crash(self, document: WorkflowDocument, refs: Mapping[str, str]) -> Iterator[Effect]:
        phase = _cut_off(document)
        if not phase:  # nothing of ours can have made them: a branch of our name is somebody else's then
            return
        for ref, sha in refs.items():
            yield from self._pushed(ref, sha, document)
            if document.adw_id in ref and _is_observed(ref) and not work_names.is_of_another(ref, document.adw_id):
                yield _effect(ref, sha, phase, self._host)

    def _pushed(self, ref: str, sha: str, document: WorkflowDocument) -> Iterator[Effect]:
        branch = document.branch_name
        if branch and ref == f"refs/remotes/{self._remote}/{branch}":
            undo: JsonObject = {"branch": branch, "sha": sha, "remote": self._remote}
            yield Effect(key=f"remote_branch:{branch}", kind="remote_branch", outcome="observed", undo=undo)


def observe(draft: Draft, seen: tuple[Effect, ...]) -> None:
    """Write down what was seen."""
    for one in seen:
        effect_rules.observe(draft, one)


def _is_observed(ref: str) -> bool:
    return not ref.startswith(_NOT_OBSERVED)


def _cut_off(document: WorkflowDocument) -> str:
    """Return the phase of the attempt that was the last to end, if it was cut off; "" when it was not."""
    ends = [
        (attempt.started_at, attempt.number, attempt.status, phase.name)
        for phase in document.phases
        for attempt in phase.attempts
        if attempt.status != "running"
    ]
    _started, _number, status, phase = max(ends, default=("", 0, "", ""))

    return phase if status == "interrupted" else ""


def _effect(ref: str, sha: str, phase: str, host: str) -> Effect:
    name = ref.removeprefix("refs/heads/")
    undo: JsonObject = {"ref": ref, "sha": sha, "phase": phase}
    if name != ref:
        undo["branch"] = name
        return Effect(key=f"branch:{name}", kind="branch", outcome="observed", host=host, undo=undo)

    return Effect(key=f"ref:{ref}", kind="ref", outcome="observed", host=host, undo=undo)
