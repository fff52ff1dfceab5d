"""
Text of strangers, made safe to be read by an agent: what a person would not see is not there either.

Pure. A hidden channel is a place where a text says something to a program that its readers do not see: comments,
characters without width, alternative texts of pictures, titles of links. What a person sees stays as it is.
"""

from __future__ import annotations

import re
import unicodedata

#: Most characters of one text that are kept.
MAX_TEXT = 100_000
#: Stands where a text was cut.
CUT_MARK = "\n[adw: the rest of this text is left out]"

_COMMENT = re.compile(r"<!--.*?(?:--!?>|\Z)", re.DOTALL)
#: Other things that are not shown: declarations, processing instructions, CDATA, scripts and styles.
_UNSHOWN = re.compile(
    r"<!\[CDATA\[.*?(?:\]\]>|\Z)|<\?.*?(?:\?>|\Z)|<(script|style|template|noscript)\b.*?(?:</\1\s*>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
#: A link definition that nothing links to is how Markdown is given comments: [//]: # (text), [x]: <> "text".
_DEFINITION = re.compile(
    r"^ {0,3}\[[^\]\n]{1,200}\]:[ \t]*(<[^>\n]*>|[^\s<]\S*)(?:[ \t]+(?:\"[^\"\n]*\"|'[^'\n]*'|\([^)\n]*\)))?[ \t]*$",
    re.MULTILINE,
)
_LINK_TITLE = re.compile(r"(\]\(\s*(?:<[^>\n]{0,500}>|[^\s()<>]+))\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\))\s*\)")
_TAG = re.compile(r"<[A-Za-z][^<>]*>")
_ATTRIBUTE = re.compile(
    r"(?<=\s)(?:alt|title|aria-[\w-]*|data-[\w-]*|placeholder|summary|label|hidden|style|class|id|name|value|content)"
    r"(?:\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'=<>`]+))?",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&#(?:[xX]([0-9a-fA-F]{1,6})|([0-9]{1,7}));")
_NAMED_HIDDEN = re.compile(r"&(?:zwnj|zwj|lrm|rlm|shy|ZeroWidthSpace|NoBreak|InvisibleTimes|InvisibleComma|ic|it|af);")
#: Characters that show nothing though they are no format characters: variation selectors and fillers.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufffc\U000e0000-\U000e0fff]"
)
_BRACKETS = re.compile(r"!\[|\[|\]")
#: Rounds of cleaning after which a text is taken for one that was made to hide something.
_ROUNDS = 20
_KEPT_CONTROLS = frozenset("\n\t")
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Co", "Cs", "Cn"})


def clean(text: str, *, limit: int = MAX_TEXT) -> str:
    """Return *text* without what a person would not see, at most *limit* characters of it and a note."""
    # Cut before and after: a text of many megabytes is not worth reading through, and cleaning may not grow it.
    kept = text[: limit * 4].replace("\r\n", "\n").replace("\r", "\n")
    for _ in range(_ROUNDS):
        shorter = _without_hidden(kept)
        if shorter == kept:
            break
        kept = shorter  # what was taken out may have brought together what then is hidden itself
    else:
        kept = _without_hidden(kept.replace("<", "(").replace("&#", "("))

    return kept if len(kept) <= limit and len(text) <= limit * 4 else kept[:limit] + CUT_MARK


def _without_hidden(text: str) -> str:
    text = _COMMENT.sub("", text)
    text = _UNSHOWN.sub("", text)
    text = _ENTITY.sub(_entity, text)
    text = _NAMED_HIDDEN.sub("", text)
    text = "".join(letter for letter in _BLANK.sub("", text) if _is_seen(letter))
    text = _DEFINITION.sub(_definition, text)
    text = _without_alternatives(text)
    text = _LINK_TITLE.sub(r"\1)", text)

    return _TAG.sub(_tag, text)


def _without_alternatives(text: str) -> str:
    """Return *text* without the texts that stand for pictures; brackets are paired, so that none is missed."""
    open_at: list[tuple[bool, int]] = []
    hidden: list[tuple[int, int]] = []
    for found in _BRACKETS.finditer(text):
        if found[0] != "]":
            open_at.append((found[0] == "![", found.end()))
        elif open_at:
            is_picture, start = open_at.pop()
            if is_picture and text[found.end() : found.end() + 1] in {"(", "["}:
                hidden.append((start, found.start()))
    kept, place = [], 0
    for start, end in sorted(hidden):
        if start >= place:  # else it is inside of another
            kept.append(text[place:start])
            place = end

    return "".join((*kept, text[place:]))


def _is_seen(letter: str) -> bool:
    return letter in _KEPT_CONTROLS or unicodedata.category(letter) not in _HIDDEN_CATEGORIES


def _entity(found: re.Match[str]) -> str:
    """Return a letter that was written as a number, but not one that would become markup that was none."""
    code = int(found[1], 16) if found[1] else int(found[2])
    if code > 0x10FFFF or not _is_seen(chr(code)) or _BLANK.match(chr(code)):
        return ""

    return found[0] if chr(code) in "<>&\n\t" else chr(code)


def _definition(found: re.Match[str]) -> str:
    """Return a link definition without its title; one that leads nowhere is a comment."""
    target = found[1].strip("<>")
    if target in {"", "#"}:
        return ""

    return found[0][: found.end(1) - found.start()]


def _tag(found: re.Match[str]) -> str:
    return _ATTRIBUTE.sub("", found[0])
