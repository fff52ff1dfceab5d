"""
How facts are shown on pages: times, amounts, states, texts of strangers.

Pure. Everything here returns plain text, which the templates escape.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType

from adws.adw_modules import time_words, timestamps

#: Most characters of a text in a line of a page.
CLIPPED = 160
#: What stands for a fact that is not there.
NOTHING = "—"

#: Tone -> the mark before the word: nothing is told by colour alone.
MARKS: Mapping[str, str] = MappingProxyType(
    {"good": "✓", "bad": "✕", "busy": "▶", "wait": "◔", "gone": "↩", "quiet": "○"}
)
#: State or status, of anything -> its tone. What is not named is quiet.
TONES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "completed",
                "complete",
                "succeeded",
                "closed",
                "ok",
                "alive",
                "online",
                "idle",
                "made",
                "adopted",
                "done",
            ),
            "good",
        ),
        **dict.fromkeys(
            ("failed", "dead", "open", "exceeded", "stale", "lost", "silent", "blocked", "exhausted", "bad"), "bad"
        ),
        **dict.fromkeys(
            (
                "planning",
                "building",
                "linting",
                "testing",
                "reviewing",
                "documenting",
                "shipping",
                "cleaning",
                "running",
                "claimed",
                "executing",
                "busy",
                "active",
                "in_flight",
            ),
            "busy",
        ),
        **dict.fromkeys(
            (
                "paused",
                "waiting",
                "retry_wait",
                "half_open",
                "stopping",
                "suspended",
                "interrupted",
                "parked",
                "draining",
            ),
            "wait",
        ),
        **dict.fromkeys(("rolled_back", "abandoned", "stopped", "skipped", "undone", "cancelled", "gone"), "gone"),
    }
)


def tone(word: str) -> str:
    """Return the tone of a state: good, bad, busy, wait, gone or quiet."""
    return TONES.get(word.strip().lower().replace("-", "_"), "quiet")


def mark(tone_of_it: str) -> str:
    """Return the mark of a tone."""
    return MARKS.get(tone_of_it, MARKS["quiet"])


def words(name: str) -> str:
    """Return the name of a state as people write it: `rolled_back` is `rolled back`."""
    return name.replace("_", " ")


def is_moment(text: object) -> bool:
    """Say whether *text* is a moment that somebody wrote down."""
    if not isinstance(text, str) or not text or text == timestamps.UNKNOWN_MOMENT:
        return False
    try:
        timestamps.parse(text)
    except (ValueError, OverflowError):
        return False

    return True


def age(text: str, now: datetime) -> str:
    """Return how long ago the moment *text* was, `—` when it is none."""
    if not is_moment(text):
        return NOTHING

    return time_words.age((now - timestamps.parse(text)).total_seconds())


def moment(text: str) -> str:
    """Return the moment *text* in full, in UTC; `—` when it is none."""
    return f"{timestamps.parse(text):%Y-%m-%d %H:%M:%S} UTC" if is_moment(text) else NOTHING


def elapsed(text: str, now: datetime) -> str:
    """Return how much time is gone since the moment *text*, `—` when it is none or has not come yet."""
    if not is_moment(text):
        return NOTHING
    whole = max(0, int((now - timestamps.parse(text)).total_seconds()))

    return f"{whole} s" if whole < 60 else span(float(whole))


def span(seconds: float | None) -> str:
    """Return how long something takes, `—` when that is not known."""
    return NOTHING if seconds is None else time_words.span(seconds)


def money(usd: float | None) -> str:
    """Return a sum as people write it; one below a cent is not shown as nothing."""
    if usd is None:
        return NOTHING
    if 0 < usd < 0.01:
        return "< $0.01"

    return f"${usd:,.2f}"


def number(count: float | None) -> str:
    """Return a count with its thousands apart; what is not whole with one place."""
    if count is None:
        return NOTHING

    return f"{count:,.0f}" if float(count).is_integer() else f"{count:,.1f}"


def size(count: float | None) -> str:
    """Return so many bytes as people write it."""
    if count is None:
        return NOTHING
    left = float(count)
    for unit in ("B", "KiB", "MiB"):
        if left < 1024:
            return f"{left:,.0f} {unit}" if unit == "B" else f"{left:,.1f} {unit}"
        left /= 1024

    return f"{left:,.1f} GiB"


def clip(text: object, most: int = CLIPPED) -> str:
    """Return the first line of what a stranger wrote, at most *most* characters, without what only does harm."""
    line = plain(str(text)[: most * 4]).strip().partition("\n")[0].strip()
    is_cut = len(line) > most or "\n" in str(text).strip()

    return f"{line[:most].rstrip()} …" if is_cut else line


def plain(text: str) -> str:
    """Return *text* with a mark for every character that draws nothing and does something: controls, directions."""
    if text.isascii() and text.isprintable():
        return text

    return "".join(letter if _is_harmless(letter) else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _is_harmless(letter: str) -> bool:
    return letter in "\n\t" or unicodedata.category(letter) not in {"Cc", "Cf", "Cs"} or letter in "\u200c\u200d"
