"""
Which workflow a command means.

An id that somebody writes is only taken when the workflow's own document names the same issue or pull request. Without
one it is the workflow that has the issue, else the newest for it. A pull request is ours when its marker says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from adws.adw_modules.coordination.delivery_parts import DeliveryParts
from adws.adw_modules.errors import ForgeNotFound, InvalidAdwId, StateError
from adws.adw_modules.trigger import Command

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

#: Commands of these causes are about a pull request.
_OF_PULL_REQUESTS = frozenset({"pull_request", "review", "checks"})


class Targets:
    """Finds the workflows that commands are about."""

    def __init__(self, parts: DeliveryParts) -> None:
        self._parts = parts

    def find(self, command: Command) -> WorkflowDocument | None:
        """Return the document of the workflow that *command* means, None when there is none."""
        if command.adw_id:
            named = self._load(command.adw_id)
            return named if named is not None and self._is_about(named, command.number) else None
        if command.cause not in _OF_PULL_REQUESTS:
            found = self._of_issue(command.number)
            if found is not None:
                return found

        return self._of_pull_request(command.number)

    def _is_about(self, document: WorkflowDocument, number: int) -> bool:
        locks, home = self._parts.locks, self._parts.options.repository
        is_here = locks.key(document.repository) == locks.key(home)

        return is_here and number in {document.issue_number, document.pr_number}

    def _of_issue(self, number: int) -> WorkflowDocument | None:
        return next(self._all_of_issue(number), None)

    def _all_of_issue(self, number: int) -> Iterator[WorkflowDocument]:
        """Yield the workflows of an issue: the one that has it first, then the newest first."""
        repository = self._parts.options.repository
        holder = self._parts.locks.holder(number, repository)
        rows = self._parts.catalogue.find_by_issue(number, repository)
        ids = dict.fromkeys([*([holder.adw_id] if holder else []), *(row.adw_id for row in rows)])
        for adw_id in ids:
            document = self._load(adw_id)
            if document is not None and document.issue_number == number:
                yield document

    def _of_pull_request(self, number: int) -> WorkflowDocument | None:
        """Return the newest workflow that works on a pull request of ours."""
        try:
            pull = self._parts.forge().pull_request(number)
        except ForgeNotFound:
            return None
        first = self._load(self._parts.made_by_us(pull))
        if first is None or first.pr_number != number:
            return None
        if first.issue_number is None:
            return first
        chain = [one for one in self._all_of_issue(first.issue_number) if one.pr_number == number]
        holder = self._parts.locks.holder(first.issue_number, self._parts.options.repository)

        # Each follow-up counts one more than what it follows, whatever the clocks say.
        return max([*chain, first], key=lambda one: (holder is not None and one.adw_id == holder.adw_id, one.followups))

    def _load(self, adw_id: str) -> WorkflowDocument | None:
        try:
            return self._parts.store.load(adw_id).document if adw_id else None
        except (StateError, InvalidAdwId):
            return None  # there is none, or none that anybody could work on
