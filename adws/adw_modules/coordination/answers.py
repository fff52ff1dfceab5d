"""
Answers to what deliveries ask: one comment for each topic, mostly a delivery, found again by its marker.

Look first, then post, then look again: of two the first stays. Whoever is refused is told so once on an issue, however
often he asks. What is said calls nobody and starts nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from adws.adw_modules import forge_texts
from adws.adw_modules.errors import ForgeBusy, ForgeUnavailable
from adws.adw_modules.forge import Comment, Forge
from adws.adw_modules.forge_texts import Marker

#: What the markers of answers stand for.
ANSWER, REFUSAL = "answer", "refusal"


class Answers:
    """Says on a forge what came of deliveries."""

    def __init__(self, forge: Forge, *, key: bytes, scrub: Callable[[str], str] = str) -> None:
        """*key* is that of the markers; *scrub* takes secrets out."""
        self._forge = forge
        self._key = key
        self._scrub = scrub

    def say(self, number: int, text: str, *, delivery: str) -> Comment:
        """
        Say *text* on an issue or pull request; what was said about *delivery* there before gets its text changed.

        That may be the name of anything else that is to be said once.
        """
        marker = Marker(adw_id=_short(delivery), op=ANSWER)
        body = self._body(text, marker)
        found = self._find(number, marker)
        if found is None:
            return self._post(number, body, marker)

        return found if found.body == body else self._forge.edit_comment(found.comment_id, body)

    def refuse(self, number: int, text: str, *, login: str) -> Comment:
        """Tell *login* on an issue or pull request that he may not, unless he was told there before."""
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
        me = self._forge.login()
        ours = [one for one in self._forge.comments(number) if one.author == me and self._read(one.body) == marker]

        return min(ours, key=lambda one: one.comment_id, default=None)

    def _body(self, text: str, marker: Marker) -> str:
        said = forge_texts.bot_comment(forge_texts.without_local_paths(text))
        made = forge_texts.make_marker(marker, key=self._key, repository=self._forge.repository)

        return forge_texts.outgoing_body(forge_texts.with_marker(said, made), self._scrub)

    def _read(self, body: str) -> Marker | None:
        return forge_texts.read_marker(body, key=self._key, repository=self._forge.repository)


def _short(text: str) -> str:
    """Return a name of *text* that fits a marker, whatever a sender put into it."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
