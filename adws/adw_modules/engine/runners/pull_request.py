"""
Putting work up as a pull request, and merging it where that was asked for.

There is one pull request for a workflow: it is found by its marker and brought up to date, or opened. Merging goes
through the forge alone, and only for the commit that was shipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules import effect_rules, forge_texts, work_names
from adws.adw_modules.errors import ForgeNotFound, LeaseLost, ShippingRefused
from adws.adw_modules.forge import Forge, NewPullRequest, PullRequest
from adws.adw_modules.forge_effects import ForgeEffects
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import EffectMaker, PhaseContext
from adws.adw_modules.phase_choice import last_attempt

if TYPE_CHECKING:
    from adws.adw_modules.document import PhaseRecord, WorkflowDocument
    from adws.adw_modules.json_value import JsonObject

#: The ledger's key of a workflow's pull request.
PULL_REQUEST = "pull_request"
#: Nothing is merged.
NO_MERGE = "no"


@dataclass(frozen=True, kw_only=True, slots=True)
class PullRequestOptions:
    """How pull requests are put up."""

    is_draft: bool = True
    labels: tuple[str, ...] = ()
    merge: str = NO_MERGE  #: no | squash | merge | rebase


class PullRequestDesk:
    """The pull requests of workflows."""

    def __init__(self, forge: Forge, *, clock: Clock, key: bytes, options: PullRequestOptions) -> None:
        """*key* is that of the markers."""
        self._forge = forge
        self._clock = clock
        self._key = key
        self._options = options

    def is_merged(self, document: WorkflowDocument) -> bool:
        """Say whether the workflow's pull request is merged already."""
        if document.pr_number is None:
            return False
        try:
            return self._forge.pull_request(document.pr_number).is_merged
        except ForgeNotFound:
            return False

    def put_up(
        self, context: PhaseContext, effects: EffectMaker, *, head: str, branch: str, base: str
    ) -> tuple[int, bool]:
        """Open or update the pull request of a branch that is at *head*; return its number, and if it is merged."""
        found = self._found_or_opened(context, effects, branch=branch, base=base)
        if found.is_merged:
            effects.mark_merged()
            return found.number, True
        if found.state != "open":
            raise ShippingRefused(f"pull request #{found.number} was closed: open it again, or give the workflow up")
        for label in self._options.labels:
            self._label(effects, found.number, label)
        if self._options.merge == NO_MERGE:
            return found.number, False
        self._merge(found, head)
        effects.mark_merged()

        return found.number, True

    def _found_or_opened(self, context: PhaseContext, effects: EffectMaker, *, branch: str, base: str) -> PullRequest:
        document = context.document
        maker = ForgeEffects(self._forge, clock=self._clock, key=self._key, check=lambda: _refuse_lost(context))
        new = NewPullRequest(
            title=forge_texts.pull_request_title(
                kind=work_names.issue_class(document), number=document.issue_number, title=_title(document)
            ),
            body=forge_texts.pull_request_body(
                adw_id=document.adw_id, number=document.issue_number, summary=summary_of(document)
            ),
            head=branch,
            base=base,
            is_draft=self._options.is_draft,
        )
        if effects.facts(PULL_REQUEST) is not None:
            return maker.pull_request(document.continues or document.adw_id, new)
        before = effect_rules.effect(document, PULL_REQUEST)
        is_in_doubt = before is not None and before.outcome == "intended"
        opened: list[PullRequest] = []

        def act() -> JsonObject:
            opened.append(maker.pull_request(document.adw_id, new, in_doubt=is_in_doubt))
            return {"pr_number": opened[0].number, "url": opened[0].url}

        effects.make(
            PULL_REQUEST,
            "pull_request",
            undo={"branch": branch, "base": base},
            find=lambda: None,  # the maker looks itself, more than once where it is in doubt
            act=act,
            fields=lambda facts: {"pr_number": facts["pr_number"]},
        )

        return opened[0]

    def _label(self, effects: EffectMaker, number: int, label: str) -> None:
        def act() -> JsonObject:
            self._forge.add_labels(number, (label,))
            return {}

        undo: JsonObject = {"number": number, "label": label}
        effects.make(f"label:{number}:{label}", "label", undo=undo, find=lambda: None, act=act)

    def _merge(self, found: PullRequest, head: str) -> None:
        if found.is_draft:
            self._forge.edit_pull_request(found.number, is_draft=False)
        self._forge.merge_pull_request(found.number, sha=head, method=self._options.merge)


def summary_of(document: WorkflowDocument) -> str:
    """Return what was done, phase by phase, as its phases said."""
    title = _title(document)
    lines = [f"- {record.name}: {said}" for record in document.phases if (said := _said(record))]
    plan = [f"Plan: `{document.plan_file}`"] if document.plan_file else []

    return "\n\n".join(filter(None, [title, "\n".join(lines), *plan]))


def _said(record: PhaseRecord) -> str:
    last = last_attempt(record)
    report = last.report if last is not None and record.status == "complete" else None
    said = report.get("summary") if report else None

    return " ".join(said.split())[:300] if isinstance(said, str) else ""


def _title(document: WorkflowDocument) -> str:
    return document.issue.title if document.issue else ""


def _refuse_lost(context: PhaseContext) -> None:
    order = context.orders.current()
    if order is not None and order.kind == "lost_lease":
        raise LeaseLost(f"workflow {context.document.adw_id} is not ours any more")
