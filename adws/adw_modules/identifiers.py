"""
Ids, repository names, JSON types, and texts for people: ages, sizes, spelling hints.

Pure. GitHub ignores the case of owner and repository names, and people paste URLs: a different spelling must not give
an issue a second owner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import TypeAlias, Union

from adws.adw_modules.errors import InvalidAdwId, UsageError

# --- ids: they become names of directories, branches and loggers, so only these shapes are accepted as input ---------

#: Ids that adw makes: eight lower-case hex digits, as in every ADW set-up.
OURS = re.compile(r"[0-9a-f]{8}")
#: Ids of other tools that may be imported: at most 64 letters, digits, `-` and `_`, starting with a letter or digit.
FOREIGN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_adw_id(adw_id: object) -> str:
    """Return *adw_id* unchanged if it is safe to use as a name; raise InvalidAdwId if not."""
    if not isinstance(adw_id, str) or FOREIGN.fullmatch(adw_id) is None:
        raise InvalidAdwId(adw_id)

    return adw_id


def is_ours(adw_id: str) -> bool:
    """Return whether *adw_id* has the form of ids that adw makes."""
    return OURS.fullmatch(adw_id) is not None


_ADDRESS = r"(?:(?:https?|ssh|git)://[^/\s]+/|[\w.-]+@[\w.-]+:/?)?"
_REPOSITORY = re.compile(_ADDRESS + r"([\w.-]+)/([\w.-]+?)(?:\.git)?/?", re.ASCII | re.IGNORECASE)

#: Repository URLs on github.com; people with several SSH keys use host aliases such as `github.com-work`.
_ON_GITHUB = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^/@\s]*@)?|[^/@\s]*@)?(?:www\.|ssh\.)?github\.com(?:-[\w.-]+)?(?::\d+(?=/))?[:/]/?"
    r"([\w.-]+/[\w.-]+?)(?:\.git)?/?",
    re.ASCII | re.IGNORECASE,
)


def on_github(address: str) -> str:
    """Return `owner/name` as written in the URL of a repository on github.com, or "" for any other *address*."""
    match = _ON_GITHUB.fullmatch(address)

    return match[1] if match else ""


def normalise(text: str) -> str:
    """Return `owner/name` for such a text or a URL on any host, "" for ""; raise UsageError for any other text."""
    if not text:
        return ""
    match = _REPOSITORY.fullmatch(text)
    if match is None or {match[1], match[2]} & {".", ".."}:
        raise UsageError(f"{text!r} names no repository: give owner/name or the address of one, or nothing")

    return f"{match[1]}/{match[2]}".lower()


def in_home(text: str, home: str) -> str:
    """Return the comparable form of the repository *text*, where "" means the home's repository *home*."""
    return comparable(text) or comparable(home)


def parse_issue(text: str) -> tuple[int, str] | None:
    """Return number and repository ("" if not given) of `3`, `#3`, `owner/name#3` or the URL of an issue."""
    match = re.fullmatch(r"(?:https?://[^/\s]+/)?(?:([\w.-]+/[\w.-]+))?(?:#|/issues/)?([0-9]{1,18})/?", text.strip())
    if match is None or (match[1] is None) is ("/" in text):
        return None

    return int(match[2]), match[1] or ""


@lru_cache(maxsize=256)  # called with every write, for few repositories
def comparable(text: str) -> str:
    """Return `normalise(text)`, or *text* if it is not a repository: old documents must not be refused."""
    try:
        return normalise(text)
    except UsageError:
        return text


# `X | Y` does not accept a quoted name at run time, hence Union.
JsonValue: TypeAlias = Union[bool, int, float, str, list["JsonValue"], dict[str, "JsonValue"], None]  # noqa: UP007 - needs Union, see above
JsonObject: TypeAlias = dict[str, JsonValue]


def _make_encoder() -> Callable[[object], str]:
    """Return a function that writes strict JSON; if json has its C encoder, that is made only once."""
    strict = json.JSONEncoder(allow_nan=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return strict.encode
    text = json.encoder.encode_basestring_ascii
    chunks = make(None, strict.default, text, None, strict.key_separator, strict.item_separator, False, False, False)

    return lambda value: "".join(chunks(value, 0))


#: Writes a value as JSON text in ASCII; raises ValueError, TypeError or RecursionError for values that are not JSON.
#: `JSONEncoder.encode` would make an encoder per value, and every step of a workflow writes a dozen values.
strict_json = _make_encoder()


#: All environment variables with adw's own secrets. No process that adw starts for somebody else gets them, because it
#: could then act in adw's name. A test fails if a secret of the settings is missing here.
OWN_SECRETS = frozenset(
    {
        "ADW_DATABASE_URL",
        "ADW_FORGE_KEY",
        "ADW_GITHUB_TOKEN",
        "ADW_NOTIFY_URL",
        "ADW_WEBHOOK_SECRET",
        "ADW_WEB_TOKEN",
        "ADW_WEB_METRICS_TOKEN",
        "DATABASE_URL",
        "GH_TOKEN",
        "GITHUB_PAT",
        "GITHUB_TOKEN",
        "GITHUB_WEBHOOK_SECRET",
    }
)


# --- times and sizes for people --------------------------------------------------------------------------------

#: (seconds per unit, unit), largest first.
_AGES = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def age(seconds: float) -> str:
    """Return how long ago (or how far ahead) something is, in its largest unit."""
    for size, unit in _AGES:
        if abs(seconds) >= size:
            count = int(abs(seconds) // size)
            return f"{count} {unit} ago" if seconds > 0 else f"in {count} {unit}"

    return "now"


_NUMBER = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{7,40}\b|\d+")
_BLANK = re.compile(r"\s+")


def fingerprint(klass: str, message: str) -> str:
    """Return a key that is equal for failures that differ only in numbers, hashes and line breaks."""
    return f"{klass}:{_BLANK.sub(' ', _NUMBER.sub('#', message.lower())).strip()}"


def span(seconds: float) -> str:
    """Return a duration as text, such as `0.04 s`, `4.2 s`, `12 s`, `2 min 5 s`, `1 h 3 min` or `2 d 4 h`."""
    if seconds < 1.0:
        return f"{seconds:.2f} s"
    if seconds < 10.0:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"

    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def size_text(size: float) -> str:
    """Return a number of bytes as text, such as `5 GB`, `1.25 GB`, `512 MB` or `0.2 MB`."""
    number, unit = (size / 2**30, "GB") if size >= 2**30 else (round(size / 2**20, 1), "MB")

    return f"{number:.2f}".rstrip("0").rstrip(".") + f" {unit}"


# --- parts of messages -----------------------------------------------------------------------------------------


def said(value: object) -> str:
    """Return *value* as text, even if its `__str__` raises."""
    try:
        return str(value)
    except Exception as exc:  # noqa: BLE001 - a foreign __str__ may raise anything
        return f"<{type(value).__name__}: no text, {type(exc).__name__}>"


def shown(value: object) -> str:
    """Return the repr of *value* for a message, shortened to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def shortened(text: str, width: int) -> str:
    """Return *text* cut to *width* characters, with three dots if it was cut."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return *number* with its noun, such as `1 attempt` or `1,200 attempts`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def nearest(name: str, known: Collection[str]) -> str:
    """Return the known name most similar to *name*, or ""."""
    import difflib  # noqa: PLC0415 - needed only for errors

    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.7)), "")


def meant(name: str, known: Collection[str]) -> str:
    """Return `, did you mean X?` to append to a message about the unknown *name*, or ""."""
    near = nearest(name, known)

    return f", did you mean {near}?" if near else ""


def hint(name: str, known: Collection[str], there_are: str = "there are") -> str:
    """Return the end of a message about the unknown *name*: the likely name, or else all known ones."""
    return meant(name, known) or f"; {there_are}: {', '.join(known)}"
