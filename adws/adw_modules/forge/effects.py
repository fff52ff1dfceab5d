"""
Find or create a pull request, an issue's sticky comment or an answer, whatever request or reply gets lost.

Look first, then act, then look again. Our own items are recognised by a marker signed with the key of this home and
posted under our own name, so that nothing of others is ever taken for ours. A create whose reply was lost is looked up
and never sent again in the same call. Of two duplicates, the one with the lower number stays. This module uses only the
forge interfaces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from adws.adw_modules.document import FrozenIssue
from adws.adw_modules.errors import ForgeBusy, ForgeNotFound, ForgeRefused, ForgeUnavailable, NotOurs
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.forge.model import Comment, Forge, Issue, IssueText, NewPullRequest, PullRequest
from adws.adw_modules.forge.text import PULL_REQUEST, STICKY, Marker
from adws.adw_modules.interfaces import Clock

#: Seconds before each look-up of something that may have been made: a forge may show it with a delay.
LOOKS_AFTER_DOUBT: Sequence[float] = (0.0, 3.0, 6.0)
LOOKS_AT_FIRST: Sequence[float] = (0.0,)
#: The kinds of answers, as named in markers.
ANSWER, REFUSAL = "answer", "refusal"

Found = TypeVar("Found")


def freeze(issue: Issue | IssueText) -> FrozenIssue:
    """Return *issue* frozen as the workflow starts with it: visible text only, unaffected by later edits."""
    return FrozenIssue(
        title=forge_text.visible(issue.title),
        body=forge_text.visible(issue.body),
        author=issue.author or None,
        url=issue.url or None,
        labels=list(issue.labels),
    ).cleaned()


class ForgeEffects:
    """
    Finds or creates a workflow's items on a forge, and the answers to deliveries.

    *check* is called right before each change and raises when this process no longer owns the workflow; *scrub* removes
    secrets from answers.
    """

    def __init__(
        self,
        forge: Forge,
        *,
        clock: Clock,
        key: bytes,
        check: Callable[[], None] = lambda: None,
        scrub: Callable[[str], str] = str,
    ) -> None:
        """Sign new items with the *key* of this home."""
        self._forge = forge
        self._clock = clock
        self._key = key
        self._check = check
        self._scrub = scrub

    # --- pull requests -----------------------------------------------------------------------------------------

    def pull_request(self, adw_id: str, new: NewPullRequest, *, in_doubt: bool = False) -> PullRequest:
        """
        Return the pull request of this workflow: the existing one, updated to *new*, or a new one.

        *in_doubt*: an interrupted attempt may have opened it before. A closed or merged one is returned unchanged.
        Raises NotOurs if somebody else's pull request blocks it, and ForgeUnavailable if it is still unknown whether it
        was opened: then the next call is in doubt.
        """
        wanted = replace(new, body=self._signed(new.body, Marker(adw_id=adw_id, op=PULL_REQUEST)))
        result = self._look(lambda: self.find_pull_request(adw_id, new.head), in_doubt=in_doubt)
        if result is not None:
            if result.state != "open" or (result.title, result.body) == (wanted.title, wanted.body):
                return result
            self._check()
            return self._forge.edit_pull_request(result.number, title=wanted.title, body=wanted.body)

        self._check()
        try:
            made = self._forge.create_pull_request(wanted)
        except ForgeUnavailable:
            made_after_all = self._look(lambda: self.find_pull_request(adw_id, wanted.head), in_doubt=True)
            if made_after_all is None:
                raise
            return made_after_all
        except ForgeRefused as refused:
            others = self._forge.pull_requests_of(wanted.head, state="open") if refused.status == 422 else ()
            if ours := self._ours(adw_id, others):
                return min(ours, key=lambda one: one.number)
            if others:
                raise NotOurs(
                    f"pull request {others[0].number} from {wanted.head} is not one that this workflow opened: "
                    "close it, or let the workflow use another branch"
                ) from refused
            raise

        try:
            open_ones = self._ours(adw_id, self._forge.pull_requests_of(wanted.head, state="open"))
        except (ForgeUnavailable, ForgeBusy):
            return made  # it was certainly made; the next look-up finds a duplicate
        first = min((*open_ones, made), key=lambda one: one.number)
        if first.number != made.number:
            self._check()
            self._forge.close_pull_request(made.number)

        return first

    def find_pull_request(self, adw_id: str, head: str) -> PullRequest | None:
        """Return the workflow's pull request from branch *head*: open ones first, then the oldest."""
        ours = self._ours(adw_id, self._forge.pull_requests_of(head))

        return min(ours, key=lambda one: (one.state != "open", one.number), default=None)

    def _ours(self, adw_id: str, found: Iterable[PullRequest]) -> list[PullRequest]:
        me = self._forge.login()
        wanted = Marker(adw_id=adw_id, op=PULL_REQUEST)

        return [one for one in found if one.author == me and self._marker_in(one.body) == wanted]

    # --- comments ----------------------------------------------------------------------------------------------

    def sticky_comment(
        self, adw_id: str, number: int, text: str, *, comment_id: int | None = None, in_doubt: bool = False
    ) -> Comment:
        """
        Make *text* the one comment that adw keeps on an issue, whichever workflow wrote it before.

        *comment_id* is the known comment; if it is gone, the comment is looked up. Raises ForgeUnavailable if it is
        still unknown whether a new one was posted: then the next call is in doubt.
        """
        body = self._signed(text, Marker(adw_id=adw_id, op=STICKY))
        if comment_id is not None:
            self._check()
            try:
                return self._forge.edit_comment(comment_id, body)
            except ForgeNotFound:
                in_doubt = False  # a person deleted it

        return self._comment(number, body, lambda marker: marker.op == STICKY, in_doubt=in_doubt)

    def answer(self, number: int, text: str, *, delivery: str) -> Comment:
        """
        Post *text* on an issue or pull request, or replace the text of the earlier answer to *delivery* there.

        *delivery* may name anything else that is answered once. An answer mentions nobody and triggers nothing.
        """
        marker = Marker(adw_id=_short(delivery), op=ANSWER)

        return self._comment(number, self._quiet(text, marker), lambda known: known == marker)

    def refuse(self, number: int, text: str, *, login: str) -> Comment:
        """Tell *login* once on an issue or pull request that they lack the permission, however often they ask."""
        marker = Marker(adw_id=_short(f"{number} {login.lower()}"), op=REFUSAL)
        known = self._find_comment(number, lambda known: known == marker)

        return known or self._comment(number, self._quiet(text, marker), lambda known: known == marker)

    def _comment(
        self, number: int, body: str, is_wanted: Callable[[Marker], bool], *, in_doubt: bool = False
    ) -> Comment:
        """Return our one comment whose marker is wanted, with the text *body*; post it if it is missing."""
        result = self._look(lambda: self._find_comment(number, is_wanted), in_doubt=in_doubt)
        if result is None:
            self._check()
            try:
                made = self._forge.create_comment(number, body)
            except ForgeUnavailable:
                result = self._look(lambda: self._find_comment(number, is_wanted), in_doubt=True)
                if result is None:
                    raise
                return result
            try:
                result = self._find_comment(number, is_wanted)
            except (ForgeUnavailable, ForgeBusy):
                return made  # it was certainly made; the next look-up finds a duplicate
            if result is None:
                return made  # a forge may not show it yet
        if result.body == body:
            return result
        self._check()

        return self._forge.edit_comment(result.comment_id, body)

    def _find_comment(self, number: int, is_wanted: Callable[[Marker], bool]) -> Comment | None:
        """Return our own comment whose marker is wanted; the first one stays, duplicates are deleted."""
        me = self._forge.login()
        ours = [one for one in self._forge.comments(number) if one.author == me]
        marked = [one for one in ours if (marker := self._marker_in(one.body)) and is_wanted(marker)]
        marked.sort(key=lambda one: one.comment_id)
        for later in marked[1:]:
            self._check()
            self._forge.delete_comment(later.comment_id)

        return marked[0] if marked else None

    # --- internals ---------------------------------------------------------------------------------------------

    def _signed(self, text: str, marker: Marker) -> str:
        made = forge_text.make_marker(marker, key=self._key, repository=self._forge.repository)

        return forge_text.with_marker(text, made)

    def _marker_in(self, body: str) -> Marker | None:
        return forge_text.read_marker(body, key=self._key, repository=self._forge.repository)

    def _quiet(self, text: str, marker: Marker) -> str:
        said = forge_text.bot_comment(forge_text.without_local_paths(text))

        return forge_text.outgoing_body(self._signed(said, marker), self._scrub)

    def _look(self, find: Callable[[], Found | None], *, in_doubt: bool) -> Found | None:
        """Return what *find* returns; look more than once if the item may have been made before (*in_doubt*)."""
        for seconds in LOOKS_AFTER_DOUBT if in_doubt else LOOKS_AT_FIRST:
            if seconds:
                self._clock.sleep(seconds)
            result = find()
            if result is not None:
                return result

        return None


def _short(text: str) -> str:
    """Return a digest of *text* that fits a marker, whatever the sender wrote."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
