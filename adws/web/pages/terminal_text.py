"""
What programs wrote for a terminal, as text for a page.

Pure.
"""

from __future__ import annotations

import re

from adws.web.pages import shown

#: Sequences that colour text, move the cursor, set the title of a window and the like.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # with parameters, such as colours
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # with a text, such as the title
    r"|\x1b[ -/]*[0-~]"
)


def readable(text: str) -> str:
    """Return *text* without what a terminal obeys; a line that was written over stands above what came then."""
    if text.isascii() and text.isprintable():
        return text

    return shown.plain(_ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))
