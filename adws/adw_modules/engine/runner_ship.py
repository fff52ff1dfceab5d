"""
Ship work: check it, rebase it onto its base, push with lease, open or update a pull request.

It fails closed: before anything leaves this machine, every required earlier phase is explicitly complete and the diff
passes its gate. The main checkout is never touched; merging is opt-in and only through the forge; if the pull request
is merged already, the work is done.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import effects as effects_module
from adws.adw_modules.effects import Ledger
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.engine.resume import definition_of
from adws.adw_modules.engine.transitions import last_attempt, unmet
from adws.adw_modules.errors import (
    AdwError,
    DatabaseError,
    ForgeNotFound,
    LeaseLost,
    NotOurs,
    OwnershipError,
    ShippingRefused,
    StateError,
)
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.forge.effects import ForgeEffects
from adws.adw_modules.forge.model import Forge, NewPullRequest, PullRequest
from adws.adw_modules.git import git as git_module
from adws.adw_modules.git.change_policy import DiffRules
from adws.adw_modules.git.git import issue_class
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.phase import PhaseContext, RunReport, Suspended
from adws.adw_modules.workflow.model import PhaseSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home
    from adws.config.settings import Settings


#: The ledger's key of a workflow's pull request.
PULL_REQUEST = "pull_request"


class ShipRunner:
    """Ships the branch of a workflow; implements `Runner`."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def check(self, phase: PhaseSpec) -> str:
        """Return "": every phase can ship."""
        del phase

        return ""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended:
        """Ship once; raise ShippingRefused if it may not, NotOurs if somebody else changed the branch."""
        home, effects, document = self._home, context.effects, context.document
        if effects is None:
            raise ShippingRefused(f"phase {phase.name} ships, and needs the ledger of effects")
        _refuse_unmet(phase, document)
        forge = home.forge if home.has_forge else None
        if forge is not None and document.pr_number is not None:
            with suppress(ForgeNotFound):
                if forge.pull_request(document.pr_number).is_merged:
                    effects.mark_merged()
                    return _well("the pull request is merged already", pr_number=document.pr_number, merged=True)
        if not home.has_worktrees or not document.branch_name or not document.worktree_path:
            said = "nothing was pushed: this home works in place, without a worktree"
            return _not_shipped(phase, document, effects, said)

        # Rebase the branch onto the current commit of its base; a conflict sends the work back.
        git, path, branch = home.git, Path(document.worktree_path), document.branch_name
        key = f"branch:{branch}"
        facts = effects.facts(key) or {}
        base = str(facts.get("base") or git.default_branch())
        tip = git.fetch(base)
        if tip != facts.get("start"):
            conflicts = home.workplace.rebase(path, tip)
            if conflicts:
                said = f"{base} moved to {tip[:12]} and conflicts in {', '.join(conflicts)}: rebase the work onto it"
                result: JsonObject = {"success": False, "conflicts": list(conflicts), "onto": tip}
                return RunReport(ok=True, wants_rework=True, summary=said, result=result)
        plan_file = "" if home.settings.ship_plan_file else document.plan_file or ""
        if plan_file or home.settings.ship_squash:
            message = git_module.commit_message(document, phase.name, home.settings.git_commit_message)
            home.workplace.trim(path, tip, without=plan_file, message=message, is_squashed=home.settings.ship_squash)
        head = git.commit_of(f"refs/heads/{branch}")
        if head is None:
            raise ShippingRefused(f"branch {branch} is gone: there is nothing to ship")
        if (facts.get("start"), facts.get("sha")) != (tip, head):
            moved: JsonObject = {"start": tip, "sha": head}
            if facts.get("sha") and git.missing_from(branch, (str(facts["sha"]),)):  # it was rebased
                moved |= effects_module.replaced_commits(document)
            effects.note(key, moved)
        if head == tip:
            return _not_shipped(phase, document, effects, f"nothing was shipped: {branch} has no change over {base}")
        home.workplace.refuse_unfit(path, tip, diff_rules(home.settings), has_secret=home.redactor.has_secret)

        shipped: dict[str, str | bool | int | None] = {"branch": branch, "head": head}
        if not git.has_remote():
            remote = home.settings.git_remote
            if forge is not None:
                raise ShippingRefused(f"there is no remote {remote} with {base} to push to: add it")
            said = f"nothing was pushed: there is no remote {remote}; the work is on the branch {branch}"
            return _not_shipped(phase, document, effects, said, **shipped)
        self._push(path, branch, head, document, effects)
        shipped["pushed"] = True
        if forge is None:
            return _well(f"pushed {branch}; there is no forge to open a pull request at", **shipped)

        number, is_merged = self._publish(forge, context, effects, branch=branch, base=base, head=head)
        said = f"{'merged' if is_merged else 'put up'} pull request #{number}"

        return _well(said, **shipped, pr_number=number, merged=is_merged)

    def _push(self, path: Path, branch: str, head: str, document: WorkflowDocument, effects: Ledger) -> None:
        git, remote, key = self._home.git, self._home.settings.git_remote, f"remote_branch:{branch}"
        there, known = git.remote_commit(branch), effects_module.effect(document, key)
        intended = known.undo.get("intended") if known else None
        ours = {head, known.undo.get("sha") if known else None}  # what adw pushed, or meant to push
        if isinstance(intended, dict):
            ours.add(intended.get("sha"))
        if there is not None and there not in ours:
            raise NotOurs(f"branch {branch} of {remote} has commits of somebody else ({there[:12]})")

        def act() -> None:
            refused = git.push(path, branch, expected=there)
            if refused == "stale":
                raise NotOurs(f"branch {branch} of {remote} was changed by somebody else meanwhile")
            if refused:
                raise ShippingRefused(f"the remote {remote} refused the push of {branch}: see its rules")

        undo: JsonObject = {"branch": branch, "remote": remote}
        effects.push(key, "remote_branch", undo=undo, head=head, there=there, act=act)

    def _publish(
        self, forge: Forge, context: PhaseContext, effects: Ledger, *, branch: str, base: str, head: str
    ) -> tuple[int, bool]:
        """Open the pull request, and merge it if configured; return its number, and whether it is merged."""
        settings, pull_request = self._home.settings, self._pull_request(forge, context, effects, branch, base)
        number = pull_request.number
        if not pull_request.is_merged:
            if pull_request.state != "open":
                raise ShippingRefused(f"pull request #{number} was closed: open it again, or abandon the workflow")
            for label in settings.ship_labels or ():
                undo: JsonObject = {"number": number, "label": label}
                act = partial(_add_label, forge, number, label)
                effects.make(f"label:{number}:{label}", "label", undo=undo, find=lambda: None, act=act)
            if settings.ship_pull_request in {"draft", "ready"}:
                return number, False
            if pull_request.is_draft:
                forge.edit_pull_request(number, is_draft=False)
            forge.merge_pull_request(number, sha=head, method=settings.ship_pull_request)
        effects.mark_merged()

        return number, True

    def _pull_request(
        self, forge: Forge, context: PhaseContext, effects: Ledger, branch: str, base: str
    ) -> PullRequest:
        """Return the workflow's one pull request: found by its marker and updated, or opened."""
        home, document = self._home, context.document
        maker = ForgeEffects(forge, clock=home.clock, key=home.forge_key, check=lambda: _refuse_lost(context))
        new = NewPullRequest(
            title=forge_text.pull_request_title(
                kind=issue_class(document), number=document.issue_number, title=document.issue_title
            ),
            body=forge_text.pull_request_body(
                adw_id=document.adw_id,
                number=document.issue_number,
                summary=summary_of(document, with_plan=home.settings.ship_plan_file),
            ),
            head=branch,
            base=base,
            is_draft=home.settings.ship_pull_request == "draft",
        )
        if effects.facts(PULL_REQUEST) is not None:
            return maker.pull_request(document.continues or document.adw_id, new)
        before = effects_module.effect(document, PULL_REQUEST)
        is_in_doubt = before is not None and before.outcome == "intended"
        opened: list[PullRequest] = []

        def act() -> JsonObject:
            opened.append(maker.pull_request(document.adw_id, new, in_doubt=is_in_doubt))
            return {"pr_number": opened[0].number, "url": opened[0].url}

        effects.make(
            PULL_REQUEST,
            "pull_request",
            undo={"branch": branch, "base": base},
            find=lambda: None,  # `act` looks it up itself, more than once if in doubt
            act=act,
            fields=lambda facts: {"pr_number": facts["pr_number"]},
        )

        return opened[0]


def diff_rules(settings: Settings) -> DiffRules:
    """Return the rules of the check before a push."""
    return DiffRules(
        allowed_paths=settings.ship_allow_paths or (),
        max_lines=settings.ship_max_lines,
    )


def _refuse_unmet(phase: PhaseSpec, document: WorkflowDocument) -> None:
    """
    Raise ShippingRefused unless every required earlier phase is explicitly complete.

    In a continued workflow, only those of the definition it continues with count, or all if that has none.
    """
    earlier = _before(phase, document)
    asked = _of_this_run(phase, document) or [item.name for item in earlier]
    needed = {item.name for item in earlier if (item.is_required and item.name in asked) or item.name in phase.needs}
    records = {record.name: record for record in document.phases}
    missing = [
        unmet(name, record)
        for name, record in ((item.name, records.get(item.name)) for item in earlier)
        if name in needed and (record is None or record.status != "complete")
    ]
    if missing:
        raise ShippingRefused(f"nothing ships before it is complete: {', '.join(missing)}")


def _before(phase: PhaseSpec, document: WorkflowDocument) -> list[PhaseSpec]:
    """Return the phases of the workflow before *phase*."""
    return list(takewhile(lambda item: item.name != phase.name, definition_of(document).phases))


def _of_this_run(phase: PhaseSpec, document: WorkflowDocument) -> list[str]:
    """Return the phases before *phase* in the definition that the workflow was started or continued with."""
    asked = document.workflow.run_phases if document.workflow is not None else []

    return [item.name for item in _before(phase, document) if not asked or item.name in asked]


def _well(summary: str, **result: str | bool | int | None) -> RunReport:
    return RunReport(ok=True, summary=summary, result={"success": True, "pushed": False, "merged": False, **result})


def _not_shipped(
    phase: PhaseSpec, document: WorkflowDocument, effects: Ledger, said: str, **result: str | bool | int | None
) -> RunReport:
    """Report with a warning that nothing left this machine; if only shipping was requested, raise ShippingRefused."""
    if not _of_this_run(phase, document):
        raise ShippingRefused(said)
    effects.warn(said)

    return _well(said, **result)


def _add_label(forge: Forge, number: int, label: str) -> JsonObject:
    forge.add_labels(number, (label,))
    return {}


def summary_of(document: WorkflowDocument, *, with_plan: bool) -> str:
    """Return what was done, phase by phase, in the phases' own words; *with_plan* names the plan's file."""
    lines = []
    for record in document.phases:
        last = last_attempt(record)
        said = (last.report or {}).get("summary") if last is not None and record.status == "complete" else None
        if isinstance(said, str) and said.strip():
            lines.append(f"- {record.name}: {' '.join(said.split())[:300]}")
    plan = [f"Plan: `{document.plan_file}`"] if with_plan and document.plan_file else []

    return "\n\n".join(filter(None, [document.issue_title, "\n".join(lines), *plan]))


def _refuse_lost(context: PhaseContext) -> None:
    order = context.orders.current()
    if order is not None and order.kind == "lost_lease":
        raise LeaseLost(f"workflow {context.document.adw_id} is not ours any more")


# The one comment on an issue that shows the workflow's status, edited in place.
#
# Best effort: a problem with it is recorded and never fails the work. Only errors meaning that we lost the workflow, or
# that it cannot be written, are raised to the caller.


logger = logging.getLogger("adw.work")

#: The ledger's key of the comment.
COMMENT = "comment:sticky"


class StatusComment:
    """Keeps the comment on a workflow's issue up to date."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def update(self, session: WorkSession) -> None:
        """Write the workflow's status, if there is a forge; problems are recorded as an event and in the log."""
        if not self._home.has_forge or session.document.issue_number is None:
            return
        try:
            self._write(session, session.document.issue_number)
        except (OwnershipError, StateError, DatabaseError):
            raise
        except AdwError as exc:
            why = str(exc)
            said = {"action": "comment_failed", "workflow": session.document.adw_id}
            logger.warning("The comment could not be updated", extra=said, exc_info=True)
            session.change(lambda draft: draft.add_event("comment_failed", data={"why": why}))

    def _write(self, session: WorkSession, number: int) -> None:
        document = session.document
        maker = self._home.forge_effects()  # opens the forge, which may fail too
        text = forge_text.sticky_text(document, now=self._home.clock.now())
        ledger = Ledger(session, host=self._home.host)
        known = ledger.facts(COMMENT)
        if known is not None:
            comment_id = known.get("comment_id")
            kept = comment_id if isinstance(comment_id, int) else None
            result = maker.sticky_comment(document.adw_id, number, text, comment_id=kept)
            if result.comment_id != kept:
                ledger.note(COMMENT, {"comment_id": result.comment_id})
            return
        before = effects_module.effect(document, COMMENT)
        is_in_doubt = before is not None and before.outcome == "intended"

        def act() -> JsonObject:
            made = maker.sticky_comment(document.adw_id, number, text, in_doubt=is_in_doubt)
            return {"comment_id": made.comment_id, "url": made.url}

        # `act` looks it up itself, more than once if in doubt.
        ledger.make(COMMENT, "comment", undo={"number": number}, find=lambda: None, act=act)
