"""
What a rollback does on a forge: close the pull request, take labels off, tell what became of the workflow.

Every comment is found by its marker before one is written, so that a rollback that is run again says nothing twice.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from adws.adw_modules import forge_texts, rollback_rules, rollback_texts
from adws.adw_modules.effect_facts import branch_of, commit_of, number_of
from adws.adw_modules.effect_rules import effects
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.engine.ledger import Ledger
from adws.adw_modules.errors import AdwError, ForgeNotFound, NotOurs, PullRequestMerged, RollbackBlocked
from adws.adw_modules.forge import Comment, Forge, PullRequest
from adws.adw_modules.forge_texts import Marker
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.rollback_hands import Done, Hands
from adws.adw_modules.rollback_rules import Step, Wishes

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

#: What a rollback's own comments stand for in their markers.
CLOSING, SUMMARY = "rollback_closing", "rollback_summary"


class ForgeUndoing:
    """Makes the steps of a rollback that are made on a forge."""

    def __init__(self, hands: Hands, session: WorkSession, wishes: Wishes) -> None:
        self._hands = hands
        self._session = session
        self._wishes = wishes

    @property
    def _document(self) -> WorkflowDocument:
        return self._session.document

    def close_pull_request(self, step: Step) -> Done:
        """Close it with the reason, unless others work on it; raise PullRequestMerged."""
        forge = self._forge()
        found = self._pull_request(forge, step)
        if found is None:
            return Done(status="gone", detail="there is none")
        if found.is_merged:
            raise PullRequestMerged(found.number)
        if found.state != "open":
            return Done(status="gone", detail="it is closed already")
        ours = self.pushed(found.head)
        if ours and found.head_sha and found.head_sha not in ours:
            raise NotOurs(f"it has commits of others ({found.head_sha[:12]}): close it by hand")
        text = rollback_texts.closing_text(self._document.adw_id, forge_texts.quiet(self._wishes.reason))
        self._note(forge, found.number, CLOSING, rollback_rules.CLOSING_COMMENT, text)
        forge.close_pull_request(found.number)

        return Done(status="done", detail=found.url)

    def _pull_request(self, forge: Forge, step: Step) -> PullRequest | None:
        number = number_of(step.facts)
        if number is not None:
            with suppress(ForgeNotFound):
                return forge.pull_request(number)
            return None
        branch = branch_of(step.facts) or self._document.branch_name or ""
        if not branch:
            return None
        found = forge.pull_requests_of(branch)

        return next((one for one in found if self._is_marked(forge, one, forge_texts.PULL_REQUEST)), None)

    def pushed(self, branch: str) -> set[str]:
        """Return the commits that adw put on the remote branch, or meant to."""
        found: set[str] = set()
        for effect in effects(self._document):
            if effect.kind != "remote_branch" or branch_of(effect.undo) != branch:
                continue
            intended = effect.undo.get("intended")
            found |= {commit_of(effect.undo), commit_of(intended) if isinstance(intended, dict) else ""}

        return found - {""}

    def remove_label(self, step: Step) -> Done:
        """Take a label off."""
        number = number_of(step.facts) or self._document.issue_number
        label = step.facts.get("label")
        if number is None or not isinstance(label, str):
            return Done(status="left", detail="the ledger does not say what it is on")
        self._forge().remove_label(number, label)

        return Done(status="done")

    def comment(self, _step: Step) -> Done:
        """Bring the sticky comment up, and post what was undone and what is left."""
        forge, number = self._forge(), self._document.issue_number
        if number is None:
            return Done(status="done", detail="what was said on its pull request stays")
        record = self._document.rollback
        steps = rollback_rules.recorded_steps(self._document)
        reason = (record.reason if record else "") or self._wishes.reason
        sticky = self._find_comment(forge, number, forge_texts.STICKY)
        if sticky is not None:
            facts = forge_texts.sticky_facts(self._document, now=self._hands.clock.now())
            text = forge_texts.sticky_text(replace(facts, state="rolled_back", detail=reason))
            forge.edit_comment(sticky.comment_id, self._marked(forge, text, forge_texts.STICKY))
        said = forge_texts.without_local_paths(
            rollback_texts.summary_text(self._document.adw_id, forge_texts.quiet(reason), steps)
        )
        try:
            self._note(forge, number, SUMMARY, rollback_rules.SUMMARY_COMMENT, said)
        except ForgeNotFound:
            return Done(status="gone", detail="the forge has no such issue")

        return Done(status="done", detail="its comments stay, and say so")

    def _note(self, forge: Forge, number: int, op: str, key: str, text: str) -> None:
        """Write a comment of ours once, found by its marker after a crash; it stays when the rollback is over."""
        body = self._marked(forge, forge_texts.bot_comment(text), op)
        ledger = Ledger(self._session, host=self._hands.host)

        def found() -> JsonObject | None:
            comment = self._find_comment(forge, number, op)
            return {"comment_id": comment.comment_id} if comment else None

        ledger.make(
            key,
            "comment",
            undo={"number": number, "op": op},
            find=found,
            act=lambda: {"comment_id": forge.create_comment(number, body).comment_id},
        )
        ledger.undone(key, "kept", {"reason": "it tells what became of the workflow"})

    def _find_comment(self, forge: Forge, number: int, op: str) -> Comment | None:
        try:
            comments = forge.comments(number)
        except ForgeNotFound:
            return None

        return next((comment for comment in comments if self._is_marked(forge, comment, op)), None)

    def _marked(self, forge: Forge, text: str, op: str) -> str:
        marker = Marker(adw_id=self._document.adw_id, op=op)
        made = forge_texts.make_marker(marker, key=self._hands.forge_key, repository=forge.repository)

        return forge_texts.outgoing_body(forge_texts.with_marker(text, made), self._hands.scrub)

    def _is_marked(self, forge: Forge, found: PullRequest | Comment, op: str) -> bool:
        """Say whether this workflow made it: whoever copies a marker still writes under another name."""
        marker = forge_texts.read_marker(found.body, key=self._hands.forge_key, repository=forge.repository)

        return marker == Marker(adw_id=self._document.adw_id, op=op) and found.author == forge.login()

    def _forge(self) -> Forge:
        if self._hands.forge is None:
            raise RollbackBlocked("no forge is configured to ask")

        return self._hands.forge


def refuse_merged(document: WorkflowDocument, forge: Forge | None) -> None:
    """Raise PullRequestMerged when a pull request of the workflow is; one that nobody can ask for is no reason."""
    if document.pr_merged:
        raise PullRequestMerged(document.pr_number)
    known = (number_of(effect.undo) for effect in effects(document) if effect.kind == "pull_request")
    for number in filter(None, known):
        if forge is not None and _is_merged(forge, number):
            raise PullRequestMerged(number)


def _is_merged(forge: Forge, number: int) -> bool:
    try:
        return forge.pull_request(number).is_merged
    except AdwError:
        return False  # its own step asks again, and nothing at the remote is touched before that was answered
