"""
Shipping work: checked, brought up to the base, pushed with lease, put up as a pull request.

Fails closed: every required phase before it is explicitly complete, and the diff passes its gate, before anything
leaves this machine. The main checkout is never touched; merging is opt-in and only through the forge; what is merged
already is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import diff_gate, effect_rules
from adws.adw_modules.diff_gate import DiffRules
from adws.adw_modules.errors import GitUnreachable, NotOurs, ShippingRefused
from adws.adw_modules.interfaces_engine import EffectMaker, PhaseContext
from adws.adw_modules.interfaces_resources import GitRepository, GitWorkplace
from adws.adw_modules.outcome import RunReport, Suspended
from adws.adw_modules.resume_rules import definition_of
from adws.adw_modules.workflow import PhaseSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.engine.runners.pull_request import PullRequestDesk
    from adws.adw_modules.json_value import JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class ShipParts:
    """What shipping is done with."""

    git: GitRepository | None = None  #: None: work is done in place
    workplace: GitWorkplace | None = None
    remote: str = "origin"
    desk: PullRequestDesk | None = None  #: None: there is no forge
    rules: DiffRules = field(default_factory=DiffRules)
    has_secret: Callable[[str], bool] = lambda _line: False


@dataclass(frozen=True, kw_only=True, slots=True)
class Cargo:
    """What is shipped."""

    path: Path
    branch: str
    base: str  #: the branch it goes to
    tip: str  #: the commit that branch is at
    head: str


class ShipRunner:
    """Ships the branch of a workflow; implements `Runner`."""

    def __init__(self, parts: ShipParts) -> None:
        self._parts = parts

    def check(self, phase: PhaseSpec) -> str:
        """Return "": every phase can ship."""
        del phase

        return ""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended:
        """Ship once; raise ShippingRefused when it may not be, NotOurs when somebody else is on the branch."""
        effects, document = context.effects, context.document
        if effects is None:
            raise ShippingRefused(f"phase {phase.name} ships, and needs the ledger of effects")
        _refuse_unmet(phase, document)
        if self._parts.desk is not None and self._parts.desk.is_merged(document):
            effects.mark_merged()
            return _well("the pull request is merged already", pr_number=document.pr_number, merged=True)
        git, workplace = self._parts.git, self._parts.workplace
        if git is None or workplace is None or not document.branch_name or not document.worktree_path:
            return _warned(effects, "nothing was pushed: this home works in place, without a worktree")
        found = self._loaded(git, workplace, document, effects)
        if isinstance(found, RunReport):
            return found
        problems = self._problems(workplace, found)
        if problems:
            raise ShippingRefused(f"what is on {found.branch} may not leave this machine: {'; '.join(problems)}")

        return self._send(git, found, context, effects)

    # --- before anything leaves --------------------------------------------------------------------------------

    def _loaded(
        self, git: GitRepository, workplace: GitWorkplace, document: WorkflowDocument, effects: EffectMaker
    ) -> Cargo | RunReport:
        """Return the branch on top of its base, as that is now; a conflict sends the work back."""
        path, branch = Path(document.worktree_path or ""), document.branch_name or ""
        key = f"branch:{branch}"
        facts = effects.facts(key) or {}
        base = str(facts.get("base") or git.default_branch())
        tip = git.fetch(base)
        if tip != facts.get("start"):
            conflicts = workplace.rebase(path, tip)
            if conflicts:
                return _conflict(base, tip, conflicts)
        head = git.commit_of(f"refs/heads/{branch}")
        if head is None:
            raise ShippingRefused(f"branch {branch} is gone: there is nothing to ship")
        if (facts.get("start"), facts.get("sha")) != (tip, head):
            effects.note(key, {"start": tip, "sha": head})
        if head == tip:
            return _warned(effects, f"nothing was shipped: {branch} has no change over {base}")

        return Cargo(path=path, branch=branch, base=base, tip=tip, head=head)

    def _problems(self, workplace: GitWorkplace, cargo: Cargo) -> tuple[str, ...]:
        rules, has_secret = self._parts.rules, self._parts.has_secret
        found = diff_gate.check_diff(
            workplace.diff(cargo.path, cargo.tip),
            workplace.changed_files(cargo.path, cargo.tip),
            rules,
            has_secret=has_secret,
        )

        return found or diff_gate.check_commits(
            workplace.commit_texts(cargo.path, cargo.tip), rules, has_secret=has_secret
        )

    # --- sending -----------------------------------------------------------------------------------------------

    def _send(self, git: GitRepository, cargo: Cargo, context: PhaseContext, effects: EffectMaker) -> RunReport:
        desk = self._parts.desk
        if git.remote_commit(cargo.base) is None:
            if desk is not None:
                raise ShippingRefused(f"there is no remote {self._parts.remote} with {cargo.base} to push to: add it")
            said = f"nothing was pushed: there is no remote {self._parts.remote}; the work is on the branch"
            return _warned(effects, f"{said} {cargo.branch}", branch=cargo.branch, head=cargo.head)
        self._push(git, cargo, context.document, effects)
        if desk is None:
            said = f"pushed {cargo.branch}; there is no forge to open a pull request at"
            return _well(said, branch=cargo.branch, head=cargo.head, pushed=True)
        number, is_merged = desk.put_up(context, effects, head=cargo.head, branch=cargo.branch, base=cargo.base)
        said = f"{'merged' if is_merged else 'put up'} pull request #{number}"

        return _well(said, branch=cargo.branch, head=cargo.head, pushed=True, pr_number=number, merged=is_merged)

    def _push(self, git: GitRepository, cargo: Cargo, document: WorkflowDocument, effects: EffectMaker) -> None:
        key = f"remote_branch:{cargo.branch}"
        there = git.remote_commit(cargo.branch)
        if there is not None and there not in {cargo.head, *_pushed(document, key)}:
            raise NotOurs(f"branch {cargo.branch} of {self._parts.remote} has commits of somebody else ({there[:12]})")

        def find() -> JsonObject | None:
            return {"sha": cargo.head, "intended": None} if there == cargo.head else None

        def act() -> JsonObject:
            self._lease(git, cargo, there)
            return {"sha": cargo.head, "intended": None}

        if effects.facts(key) is not None:
            effects.change(key, intended={"sha": cargo.head}, find=find, act=act)
            return
        # What was there and what will be: after a crash it is one of the two, and both are ours.
        undo: JsonObject = {
            "branch": cargo.branch,
            "remote": self._parts.remote,
            "sha": there or "",
            "intended": {"sha": cargo.head},
        }
        effects.make(key, "remote_branch", undo=undo, find=find, act=act)

    def _lease(self, git: GitRepository, cargo: Cargo, there: str | None) -> None:
        result = git.push(cargo.path, cargo.branch, expected=there)
        if result.pushed:
            return
        if result.reason == "unreachable":
            raise GitUnreachable(f"the remote {self._parts.remote} gave no answer to the push of {cargo.branch}")
        if result.reason == "stale":
            raise NotOurs(f"branch {cargo.branch} of {self._parts.remote} was changed by somebody else meanwhile")

        raise ShippingRefused(f"the remote {self._parts.remote} refused the push of {cargo.branch}: see its rules")


def _refuse_unmet(phase: PhaseSpec, document: WorkflowDocument) -> None:
    """Raise ShippingRefused unless every required phase before this one is explicitly complete."""
    spec = definition_of(document)
    status = {record.name: record.status for record in document.phases}
    before = [found.name for found in spec.phases]
    needed = {found.name for found in spec.phases[: before.index(phase.name)] if found.is_required} | {*phase.needs}
    unmet = [f"{name} ({status.get(name, 'missing')})" for name in before if name in needed and _is_open(status, name)]
    if unmet:
        raise ShippingRefused(f"nothing ships before it is complete: {', '.join(unmet)}")


def _is_open(status: dict[str, str], name: str) -> bool:
    return status.get(name) != "complete"


def _pushed(document: WorkflowDocument, key: str) -> set[str]:
    """Return the commits that adw put on the remote branch, or meant to."""
    known = effect_rules.effect(document, key)
    intended = known.undo.get("intended") if known else None
    found = {str(known.undo.get("sha") or "")} if known else set()
    if isinstance(intended, dict):
        found.add(str(intended.get("sha") or ""))

    return found - {""}


def _conflict(base: str, tip: str, files: Sequence[str]) -> RunReport:
    said = f"{base} moved to {tip[:12]} and conflicts in {', '.join(files)}: rebase the work onto it"

    return RunReport(
        ok=True, wants_rework=True, summary=said, result={"success": False, "conflicts": list(files), "onto": tip}
    )


def _well(summary: str, **result: str | bool | int | None) -> RunReport:
    return RunReport(ok=True, summary=summary, result={"success": True, "pushed": False, "merged": False, **result})


def _warned(effects: EffectMaker, warning: str, **result: str) -> RunReport:
    effects.warn(warning)

    return _well(warning, **result)
