"""
Make a pull request, the sticky comment of an issue, or an answer so that there is one, whatever gets lost on the way.

Look first, then act, then look again. What was made is found by its marker: made with the key of this home and posted
under our own name, so that nothing of others is ever taken for ours. A create whose answer was lost is looked for and
never sent again in the same call. Of two, the lowest number stays. Only the interfaces are known here.
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

#: Seconds before each look for something that may have been made: a forge may show it only after a while.
LOOKS_AFTER_DOUBT: Sequence[float] = (0.0, 3.0, 6.0)
LOOKS_AT_FIRST: Sequence[float] = (0.0,)
#: What the markers of answers stand for.
ANSWER, REFUSAL = "answer", "refusal"

Found = TypeVar("Found")


def frozen_issue(forge: Forge, number: int) -> FrozenIssue:
    """Return the issue as a workflow starts with it: only what a person sees of it, later edits change nothing."""
    return freeze(forge.issue(number))


def freeze(issue: Issue | IssueText) -> FrozenIssue:
    """Return of *issue*, as a forge or a delivery has it, only what a person sees."""
    return FrozenIssue(
        title=forge_text.visible(issue.title),
        body=forge_text.visible(issue.body),
        author=issue.author or None,
        url=issue.url or None,
        labels=list(issue.labels),
    ).cleaned()


class _Marked:
    """Signs texts with markers of this home, and finds what carries one."""

    def __init__(self, forge: Forge, key: bytes) -> None:
        self._forge = forge
        self._key = key

    def _signed(self, text: str, marker: Marker) -> str:
        made = forge_text.make_marker(marker, key=self._key, repository=self._forge.repository)

        return forge_text.with_marker(text, made)

    def _marker_in(self, body: str) -> Marker | None:
        return forge_text.read_marker(body, key=self._key, repository=self._forge.repository)

    def _comments(self, number: int, is_wanted: Callable[[Marker], bool]) -> list[Comment]:
        """Return our own comments whose marker is wanted, the first one first."""
        me = self._forge.login()
        ours = [one for one in self._forge.comments(number) if one.author == me]
        marked = [one for one in ours if (marker := self._marker_in(one.body)) and is_wanted(marker)]

        return sorted(marked, key=lambda one: one.comment_id)


class ForgeEffects(_Marked):
    """
    Finds or creates what a workflow has on a forge.

    *check* is called right before each change and raises when the workflow is not ours any more.
    """

    def __init__(self, forge: Forge, *, clock: Clock, key: bytes, check: Callable[[], None] = lambda: None) -> None:
        super().__init__(forge, key)
        self._clock = clock
        self._check = check

    # --- pull requests -----------------------------------------------------------------------------------------

    def pull_request(self, adw_id: str, new: NewPullRequest, *, in_doubt: bool = False) -> PullRequest:
        """
        Return the pull request of this workflow, opened when there is none; what is found is brought up to *new*.

        *in_doubt*: it may have been opened before, by an attempt that was cut off. One that is closed or merged is
        returned as it is. Raises NotOurs when somebody else's stands in the way, ForgeUnavailable when it is still not
        known whether it was opened: then the next call is in doubt.
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
            return made  # it was made, that is certain; the next look-up finds a second one
        first = min((*open_ones, made), key=lambda one: one.number)
        if first.number != made.number:
            self._check()
            self._forge.close_pull_request(made.number)

        return first

    def find_pull_request(self, adw_id: str, head: str) -> PullRequest | None:
        """Return the workflow's pull request from branch *head*: an open one first, of several the oldest."""
        ours = self._ours(adw_id, self._forge.pull_requests_of(head))

        return min(ours, key=lambda one: (one.state != "open", one.number), default=None)

    def _ours(self, adw_id: str, found: Iterable[PullRequest]) -> list[PullRequest]:
        me = self._forge.login()
        wanted = Marker(adw_id=adw_id, op=PULL_REQUEST)

        return [one for one in found if one.author == me and self._marker_in(one.body) == wanted]

    # --- the sticky comment ------------------------------------------------------------------------------------

    def sticky_comment(
        self, adw_id: str, number: int, text: str, *, comment_id: int | None = None, in_doubt: bool = False
    ) -> Comment:
        """
        Make *text* the one comment that adw keeps on an issue, whichever workflow wrote it before.

        *comment_id* is the comment that is known; if it is gone it is looked for. Raises ForgeUnavailable when it is
        still not known whether a new one was posted: then the next call is in doubt.
        """
        body = self._signed(text, Marker(adw_id=adw_id, op=STICKY))
        if comment_id is not None:
            self._check()
            try:
                return self._forge.edit_comment(comment_id, body)
            except ForgeNotFound:
                in_doubt = False  # a person deleted it
        result = self._look(lambda: self.find_sticky(number), in_doubt=in_doubt)
        if result is not None:
            if result.body == body:
                return result
            self._check()
            return self._forge.edit_comment(result.comment_id, body)

        self._check()
        try:
            made = self._forge.create_comment(number, body)
        except ForgeUnavailable:
            made_after_all = self._look(lambda: self.find_sticky(number), in_doubt=True)
            if made_after_all is None:
                raise
            return made_after_all
        try:
            first = self.find_sticky(number)
        except (ForgeUnavailable, ForgeBusy):
            return made  # it was made, that is certain; the next look-up finds a second one
        if first is None or first.comment_id == made.comment_id:
            return made  # a forge may not show it yet
        self._check()

        return self._forge.edit_comment(first.comment_id, body)  # ours, the later one, is deleted by now

    def find_sticky(self, number: int) -> Comment | None:
        """Return the sticky comment of an issue; of several the first stays, and the others are deleted."""
        ours = self._comments(number, lambda marker: marker.op == STICKY)
        for later in ours[1:]:
            self._check()
            self._forge.delete_comment(later.comment_id)

        return ours[0] if ours else None

    def _look(self, find: Callable[[], Found | None], *, in_doubt: bool) -> Found | None:
        """Return what *find* finds; where it may have been made before, look more than once."""
        for seconds in LOOKS_AFTER_DOUBT if in_doubt else LOOKS_AT_FIRST:
            if seconds:
                self._clock.sleep(seconds)
            result = find()
            if result is not None:
                return result

        return None


class Answers(_Marked):
    """
    Posts the results of deliveries: one comment for each topic, mostly a delivery, found again by its marker.

    A refused user is told so once on an issue, however often they ask. An answer mentions nobody and starts nothing.
    """

    def __init__(self, forge: Forge, *, key: bytes, scrub: Callable[[str], str] = str) -> None:
        """*key* is that of the markers; *scrub* takes secrets out."""
        super().__init__(forge, key)
        self._scrub = scrub

    def say(self, number: int, text: str, *, delivery: str) -> Comment:
        """
        Say *text* on an issue or pull request; what was said about *delivery* there before gets its text changed.

        That may be the name of anything else that is to be said once.
        """
        marker = Marker(adw_id=_short(delivery), op=ANSWER)
        body = self._body(text, marker)
        result = self._find(number, marker)
        if result is None:
            return self._post(number, body, marker)

        return result if result.body == body else self._forge.edit_comment(result.comment_id, body)

    def refuse(self, number: int, text: str, *, login: str) -> Comment:
        """Tell *login* once on an issue or pull request that they lack the permission."""
        marker = Marker(adw_id=_short(f"{number} {login.lower()}"), op=REFUSAL)

        return self._find(number, marker) or self._post(number, self._body(text, marker), marker)

    def _post(self, number: int, body: str, marker: Marker) -> Comment:
        made = self._forge.create_comment(number, body)
        try:
            first = self._find(number, marker)
        except (ForgeUnavailable, ForgeBusy):
            return made  # it was made, that is certain
        if first is None or first.comment_id == made.comment_id:
            return made  # a forge may not show it yet
        self._forge.delete_comment(made.comment_id)

        return first

    def _find(self, number: int, marker: Marker) -> Comment | None:
        return next(iter(self._comments(number, lambda known: known == marker)), None)

    def _body(self, text: str, marker: Marker) -> str:
        said = forge_text.bot_comment(forge_text.without_local_paths(text))

        return forge_text.outgoing_body(self._signed(said, marker), self._scrub)


def _short(text: str) -> str:
    """Return a name of *text* that fits a marker, whatever a sender put into it."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
