"""
What a workflow's id may look like: the one rule that every border applies.

An id becomes a directory name, a branch part and a logger name, so nothing but these shapes gets past here.
"""

from __future__ import annotations

import re

from adws.adw_modules.errors import InvalidAdwId

#: Ids that adw makes: eight lower-case hex digits, as every ADW set-up uses them.
OURS = re.compile(r"[0-9a-f]{8}")
#: Ids of other tools that may be imported: letters, digits, `-` and `_`, at most 64, starting with a letter or digit.
FOREIGN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_adw_id(adw_id: object) -> str:
    """Return *adw_id* unchanged when it is safe to use as a name, else raise InvalidAdwId."""
    if not isinstance(adw_id, str) or FOREIGN.fullmatch(adw_id) is None:
        raise InvalidAdwId(adw_id)

    return adw_id


def is_ours(adw_id: str) -> bool:
    """Say whether *adw_id* has the shape that adw itself makes."""
    return OURS.fullmatch(adw_id) is not None
