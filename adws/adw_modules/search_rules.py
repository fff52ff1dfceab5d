"""
Finding workflows by words: what somebody types, and what it fits.

Pure. Every word has to be found: inside the title or the repository, at the start of the id, or as the number of the
issue. Upper and lower case are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adws.adw_modules.interfaces import WorkflowSummary

#: Words of a search that are looked for, and characters of each.
MOST_WORDS, LONGEST_WORD = 8, 60
#: Characters of a title that lists keep and search finds; forges allow 256.
TITLE_LENGTH = 300
#: The largest number of an issue that is looked for.
_MOST_DIGITS = 15


def words_in(text: str) -> tuple[str, ...]:
    """Return the words to look for, each once; what is beyond the limits is left out."""
    return tuple(dict.fromkeys(word[:LONGEST_WORD] for word in text.split()))[:MOST_WORDS]


def issue_in(word: str) -> int | None:
    """Return the number of an issue that *word* is, with or without #; None when it is none."""
    digits = word.removeprefix("#")

    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS else None


def spellings(word: str) -> tuple[str, ...]:
    """Return *word* as it may be written: a database that only knows ASCII takes other capital letters for others."""
    if word.isascii():
        return (word,)

    return tuple(dict.fromkeys((word, word.lower(), word.upper(), word.capitalize())))


def fits(words: tuple[str, ...], row: WorkflowSummary) -> bool:
    """Say whether every one of *words* is found in a line of a list."""
    return all(_has(row, word.casefold(), issue_in(word)) for word in words)


def _has(row: WorkflowSummary, word: str, issue: int | None) -> bool:
    if issue is not None and row.issue_number == issue:
        return True

    return (
        word in row.title[:TITLE_LENGTH].casefold()
        or word in row.repository.casefold()
        or row.adw_id.casefold().startswith(word)
    )
