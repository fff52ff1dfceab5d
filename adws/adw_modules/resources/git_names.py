"""
What the names of branches may look like, and how ours are made.

A name goes to git as an argument and becomes a file, so git's own rules are applied before git sees it; the name of a
workflow's branch comes from its issue's title by rule, never from somebody's free text.
"""

from __future__ import annotations

import re
import unicodedata

from adws.adw_modules.errors import GitError
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.work_names import CLASSES, DEFAULT_CLASS

#: Words of a title that say nothing about it.
_EMPTY_WORDS = frozenset("a an and are as at be by for from in into is it of on or so that the to was with".split())  # noqa: SIM905 - a list of 25 words would be 25 lines
_MAX_WORDS, _MIN_WORDS, _MAX_CHARACTERS = 6, 3, 60
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)")


def check_branch(name: str) -> str:
    """Return *name* when git takes it as the name of a branch and cannot read it as anything else."""
    is_bad = _FORBIDDEN.search(name) or name.startswith(("-", ".", "/")) or name.endswith((".", "/"))
    if not name or is_bad or name == "@" or len(name.encode(errors="surrogateescape")) > 200:
        raise GitError(f"{name[:80]!r} cannot be the name of a branch")

    return name


def branch_name(adw_id: str, *, issue_number: int | None, title: str, issue_class: str | None = None) -> str:
    """Return `<class>-issue-<n>-adw-<id>-<slug>`: the same for the same workflow, whenever it is asked for."""
    kind = (issue_class or "").strip().lstrip("/").casefold()
    number = "" if issue_number is None else f"issue-{issue_number}-"

    return check_branch(
        f"{kind if kind in CLASSES else DEFAULT_CLASS}-{number}adw-{check_adw_id(adw_id)}-{slug(title)}"
    )


def slug(title: str) -> str:
    """Return three to six words of *title* that are safe in a name, `work` when it has none."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().casefold()
    words = re.findall(r"[a-z0-9]+", plain.replace("'", ""))
    telling = [word for word in words if word not in _EMPTY_WORDS]
    chosen = telling if len(telling) >= _MIN_WORDS else words

    made = ""
    for word in chosen[:_MAX_WORDS]:
        longer = f"{made}-{word}" if made else word[:_MAX_CHARACTERS]
        if len(longer) > _MAX_CHARACTERS:
            break
        made = longer

    return made or "work"
