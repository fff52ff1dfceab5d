"""
Ids, repository names, JSON types, ages, near misspellings.

Pure. GitHub takes the names of owners and repositories in any case, and people paste addresses: an issue must not get a
second owner because of a spelling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import TypeAlias, Union

from adws.adw_modules.errors import InvalidAdwId, UsageError

# --- ids: they become names of directories, branches and loggers, so nothing but these shapes gets past a border ------

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


_ADDRESS = r"(?:(?:https?|ssh|git)://[^/\s]+/|[\w.-]+@[\w.-]+:/?)?"
_REPOSITORY = re.compile(_ADDRESS + r"([\w.-]+)/([\w.-]+?)(?:\.git)?/?", re.ASCII | re.IGNORECASE)

#: The same on GitHub itself; `github.com-work` is how people with several keys call it.
_ON_GITHUB = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^/@\s]*@)?|[^/@\s]*@)?(?:www\.|ssh\.)?github\.com(?:-[\w.-]+)?(?::\d+(?=/))?[:/]/?"
    r"([\w.-]+/[\w.-]+?)(?:\.git)?/?",
    re.ASCII | re.IGNORECASE,
)


def on_github(address: str) -> str:
    """Return `owner/name`, as it is written, for the address of a repository on github.com; "" for any other."""
    match = _ON_GITHUB.fullmatch(address)

    return match[1] if match else ""


def normalise(text: str) -> str:
    """Return `owner/name` for such a text or its address on any host, "" for ""; raise UsageError for another text."""
    if not text:
        return ""
    match = _REPOSITORY.fullmatch(text)
    if match is None or {match[1], match[2]} & {".", ".."}:
        raise UsageError(f"{text!r} names no repository: give owner/name or the address of one, or nothing")

    return f"{match[1]}/{match[2]}".lower()


def in_home(text: str, home: str) -> str:
    """Return what *text* means in a home of repository *home*, in the spelling that is compared: "" means *home*."""
    return comparable(text) or comparable(home)


@lru_cache(maxsize=256)  # asked with every write, of few repositories
def parse_issue(text: str) -> tuple[int, str] | None:
    """Return number and repository ("": not said) of `3`, `#3`, `owner/name#3` or the address of an issue."""
    match = re.fullmatch(r"(?:https?://[^/\s]+/)?(?:([\w.-]+/[\w.-]+))?(?:#|/issues/)?([0-9]{1,18})/?", text.strip())
    if match is None or (match[1] is None) is ("/" in text):
        return None

    return int(match[2]), match[1] or ""


@lru_cache(maxsize=256)  # asked with every write, of few repositories
def comparable(text: str) -> str:
    """Return `normalise(text)`, or *text* where it names none: what an old document says is not refused any more."""
    try:
        return normalise(text)
    except UsageError:
        return text


# A quoted name cannot stand in `X | Y` at run time, hence Union.
JsonValue: TypeAlias = Union[bool, int, float, str, list["JsonValue"], dict[str, "JsonValue"], None]  # noqa: UP007 - see above
JsonObject: TypeAlias = dict[str, JsonValue]


def _make_encoder() -> Callable[[object], str]:
    """Return what writes a value as strict JSON; where json has its encoder in C, that one is made once."""
    strict = json.JSONEncoder(allow_nan=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return strict.encode
    text = json.encoder.encode_basestring_ascii
    chunks = make(None, strict.default, text, None, strict.key_separator, strict.item_separator, False, False, False)

    return lambda value: "".join(chunks(value, 0))


#: Writes a value as JSON text in ASCII; raises ValueError, TypeError or RecursionError for what JSON cannot hold.
#: `JSONEncoder.encode` makes its encoder anew for each value, and every step of a workflow writes a dozen.
strict_json = _make_encoder()


#: The variables that hold adw's own secrets, by all their names. No process that adw starts for somebody else gets
#: them: with them it could act in adw's name. A secret of the settings that is not here fails a test.
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


# --- times and sizes as people say them ------------------------------------------------------------------------

#: Seconds -> the unit that they make up.
_AGES = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def age(seconds: float) -> str:
    """Return how long ago something was, in its largest unit."""
    for size, unit in _AGES:
        if abs(seconds) >= size:
            count = int(abs(seconds) // size)
            return f"{count} {unit} ago" if seconds > 0 else f"in {count} {unit}"

    return "now"


_NUMBER = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{7,40}\b|\d+")
_BLANK = re.compile(r"\s+")


def fingerprint(klass: str, message: str) -> str:
    """Return what two failures have in common that are the same but for numbers, hashes and line breaks."""
    return f"{klass}:{_BLANK.sub(' ', _NUMBER.sub('#', message.lower())).strip()}"


def span(seconds: float) -> str:
    """Return how long something takes, such as `0.04 s`, `4.2 s`, `12 s`, `2 min 5 s`, `1 h 3 min` or `2 d 4 h`."""
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
    """Return a number of bytes as people say it, such as `5 GB`, `1.25 GB`, `512 MB` or `0.2 MB`."""
    number, unit = (size / 2**30, "GB") if size >= 2**30 else (round(size / 2**20, 1), "MB")

    return f"{number:.2f}".rstrip("0").rstrip(".") + f" {unit}"


# --- what sentences are made of --------------------------------------------------------------------------------


def said(value: object) -> str:
    """Return *value* as text, also when it does not want to be one."""
    try:
        return str(value)
    except Exception as exc:  # noqa: BLE001 - a stranger's __str__ may raise anything
        return f"<{type(value).__name__}: no text, {type(exc).__name__}>"


def shown(value: object) -> str:
    """Return *value* as a sentence shows it: short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def shortened(text: str, width: int) -> str:
    """Return *text* cut to *width* characters, the cut shown as three dots."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return *number* with its noun, such as `1 attempt` or `1,200 attempts`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def nearest(name: str, known: Collection[str]) -> str:
    """Return the known name that looks most like *name*, "" when none does."""
    import difflib  # noqa: PLC0415 - only needed when something is wrong already

    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.7)), "")


def meant(name: str, known: Collection[str]) -> str:
    """Return how a sentence about the unknown *name* goes on: `, did you mean X?`, else nothing."""
    near = nearest(name, known)

    return f", did you mean {near}?" if near else ""


def hint(name: str, known: Collection[str], there_are: str = "there are") -> str:
    """Return how a sentence about the unknown *name* goes on: with the one that was meant, else with all there are."""
    return meant(name, known) or f"; {there_are}: {', '.join(known)}"
