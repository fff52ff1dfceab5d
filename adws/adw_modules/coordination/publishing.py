"""
Bringing the commits of a phase to the remote before its result is written, so that another machine can go on.

They go to a ref of the workflow's own that is no branch: nobody's checks run on it, and shipping keeps its gates. It is
an effect in the ledger, and taken away when the workflow is over. What looks like a secret does not leave this machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import diff_gate, effect_rules, moving_rules
from adws.adw_modules.diff_gate import DiffRules
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.engine.ledger import Ledger
from adws.adw_modules.errors import GitError, GitUnreachable, NotOurs, ShippingRefused
from adws.adw_modules.interfaces_resources import OPEN_OUTCOMES, GitWorkplace, RemoteRefs
from adws.adw_modules.moving_rules import WIP, WIP_KIND

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.json_value import JsonObject

logger = logging.getLogger("adw.publishing")

#: What may be on a ref that nobody reviews or runs: everything but secrets.
_ONLY_SECRETS = DiffRules(allow_workflow_files=True, allow_agent_files=True, max_files=2**31, max_lines=2**31)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublisherParts:
    """What work is published with."""

    refs: RemoteRefs
    workplace: GitWorkplace
    host: str  #: this machine, as the ledger names it
    remote: str = "origin"
    is_wanted: bool = True  #: False: nothing is pushed before it is shipped
    is_required: bool = False  #: what cannot be published is a failed attempt
    allowed_paths: tuple[str, ...] = ()  #: patterns of files that are let through whatever is in them
    has_secret: Callable[[str], bool] = lambda _line: False


class Publisher:
    """Brings work to the remote, fetches it from there, and takes it away when it is over."""

    def __init__(self, parts: PublisherParts) -> None:
        self._parts = parts

    # --- there -------------------------------------------------------------------------------------------------

    def publish(self, session: WorkSession, path: Path, head: str) -> str:
        """
        Have the commit *head* of the worktree *path* on the remote; return why it is not, "" when it is.

        Raises what went wrong when the settings say that it has to be there.
        """
        if any(head == one.sha for one in moving_rules.published(session.document)):
            return ""
        if not self._parts.is_wanted:
            return "workspace.publish_work is never"
        try:
            self._push(session, path, head)
        except (GitError, NotOurs, ShippingRefused) as exc:
            if self._parts.is_required:
                raise
            return str(exc)

        return ""

    def _push(self, session: WorkSession, path: Path, head: str) -> None:
        parts, document = self._parts, session.document
        if not parts.refs.has_remote():
            raise GitError(f"there is no remote {parts.remote}")
        self._refuse_secrets(document, path, head)
        ref, ledger = moving_rules.wip_ref(document.adw_id), Ledger(session, host="")  # a ref of the remote has no host
        there = parts.refs.commit_of(ref)
        if there is not None and there not in {head, *_ours(document)}:
            raise NotOurs(f"{ref} of {parts.remote} is at {there[:12]}, which this workflow did not put there")

        def find() -> JsonObject | None:
            return {"sha": head, "intended": None} if there == head else None

        def act() -> JsonObject:
            self._send(head, ref, there)
            return {"sha": head, "intended": None}

        if ledger.facts(WIP) is not None:
            ledger.change(WIP, intended={"sha": head}, find=find, act=act)
            return
        # What was there and what will be: after a crash it is one of the two, and both are ours.
        undo: JsonObject = {"ref": ref, "remote": parts.remote, "sha": there or "", "intended": {"sha": head}}
        ledger.make(WIP, WIP_KIND, undo=undo, find=find, act=act)

    def _send(self, head: str, ref: str, there: str | None) -> None:
        result = self._parts.refs.push(head, ref, expected=there)
        if result.pushed:
            return
        if result.reason == "unreachable":
            raise GitUnreachable(f"the remote {self._parts.remote} gave no answer to the push of {ref}")

        raise GitError(f"the remote {self._parts.remote} refused the push of {ref} ({result.reason})")

    def _refuse_secrets(self, document: WorkflowDocument, path: Path, head: str) -> None:
        """Raise ShippingRefused for what may not leave this machine; what is on the remote already has left it."""
        parts = self._parts
        branch = moving_rules.branch_of_work(document)
        start = str(branch.undo.get("start") or "") if branch is not None else ""
        base = next((one.sha for one in moving_rules.published(document) if one.sha), start)
        if not base:
            raise ShippingRefused(f"where the work began is not known, so {head[:12]} cannot be looked through")
        rules = replace(_ONLY_SECRETS, allowed_paths=parts.allowed_paths)
        diff, files = parts.workplace.diff(path, base), parts.workplace.changed_files(path, base)
        found = diff_gate.check_diff(diff, files, rules, has_secret=parts.has_secret) or diff_gate.check_commits(
            parts.workplace.commit_texts(path, base), rules, has_secret=parts.has_secret
        )
        if found:
            raise ShippingRefused("; ".join(found))

    # --- here --------------------------------------------------------------------------------------------------

    def fetch(self, document: WorkflowDocument) -> str:
        """Have the last commit that the workflow published here, and return it; raise GitError when it is nowhere."""
        branch = moving_rules.branch_of_work(document)
        for found in moving_rules.published(document):
            there = self._parts.refs.commit_of(found.ref)
            if there is not None and there in found.commits:
                self._parts.refs.fetch(found.ref, expected=there)
                return there
        sha = str(branch.undo.get("sha") or "") if branch is not None else ""
        where = (branch.host if branch is not None else "") or "another machine"

        raise GitError(
            f"the work of {document.adw_id} is on {where}, and its last commit {sha[:12]} is not on the remote "
            f"{self._parts.remote}: start a worker on {where}, or give the workflow up with adw rollback "
            f"{document.adw_id} --forget-host {where}"
        )

    # --- over --------------------------------------------------------------------------------------------------

    def withdraw(self, session: WorkSession) -> None:
        """Take the ref of a workflow that is over away; what keeps us from it leaves it to adw gc."""
        known = effect_rules.effect(session.document, WIP)
        if known is None or known.outcome not in OPEN_OUTCOMES:
            return
        ledger, ref = Ledger(session, host=""), moving_rules.wip_ref(session.document.adw_id)
        try:
            there = self._parts.refs.commit_of(ref)
            is_ours = there is not None and there in _ours(session.document)
            was_there = is_ours and there is not None and self._parts.refs.delete(ref, expected=there)
        except (GitError, NotOurs) as exc:
            said = {"action": "wip_ref_left", "workflow": session.document.adw_id, "why": str(exc)}
            logger.warning("A ref of the remote is left", extra=said)
            return
        if there is not None and not is_ours:
            ledger.undone(WIP, "kept", {"reason": f"it is at {there[:12]}, which this workflow did not put there"})
            return
        ledger.undone(WIP, "undone" if was_there else "gone")


def _ours(document: WorkflowDocument) -> set[str]:
    """Return the commits that the workflow put on its ref, or meant to."""
    ref = moving_rules.wip_ref(document.adw_id)

    return {sha for one in moving_rules.published(document) if one.ref == ref for sha in one.commits}
