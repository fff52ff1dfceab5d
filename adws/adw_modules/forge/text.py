"""
The texts adw writes to a forge, and the markers by which it finds them again.

Pure. A marker is an HTML comment that readers do not see, `<!-- adw:v1 id=... op=... mac=... -->`; its code is made
with the key of the home, so that nobody else can forge one. Text of other people, repeated by adw, never closes an
issue, mentions a person, hides a marker or fires a trigger.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import durable_file, identifiers, timestamps
from adws.adw_modules.errors import StateCorrupt, StateReadFailed, StateWriteFailed, UnsafePath
from adws.adw_modules.identifiers import span
from adws.adw_modules.interfaces import Clock

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument


#: Longest body that is sent, in characters: forges reject 65,536.
MAX_BODY = 60_000
#: Longest title that is sent: forges reject 256.
MAX_TITLE = 250
#: The prefix of every comment of adw, which does not react to such comments.
BOT_MARK = "[adw]"
#: The kinds of markers.
PULL_REQUEST, STICKY = "pull_request", "sticky"

CUT = "\n\n*Cut here: the rest is in the log of the run.*"
_MARKER = re.compile(
    r"<!-- adw:v1 id=(?P<id>[A-Za-z0-9][A-Za-z0-9.-]{0,63}) op=(?P<op>[a-z_]{1,32}) mac=(?P<mac>[0-9a-f]{20}) -->"
)
#: A zero-width character that allows no line break: a word with it looks the same but does not match.
_JOINER = "\u2060"
#: Words in a comment that start a workflow: `adw_plan_iso` and its like anywhere, `/adw run`.
_TRIGGER = re.compile(r"(adw)(?=_)|((?<![\w/])/)(?=adw\b)", re.IGNORECASE)
_MENTION = re.compile(r"(?<![\w`/.])@(?=[A-Za-z0-9])")
_CLOSING = re.compile(
    r"\b(c|f|r)(lose[sd]?|ix(?:e[sd])?|esolve[sd]?)\b(?=:?\s+(?:#|gh-|https?://|[\w.-]+/[\w.-]+#))", re.IGNORECASE
)
_HIDDEN_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
#: Zero-width characters, direction marks, and the invisible tag characters that mirror ASCII.
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\U000e0000-\U000e007f]"
)
#: A path of this machine, but not the path of a URL.
_LOCAL_PATH = re.compile(r"(?<![\w/:.~\\-])~?/(?:[\w.@+~-]+/)+([\w.@+~-]+)")
_OVER = frozenset({"completed", "abandoned", "rolled_back"})
_STOPPED = frozenset({"failed", "paused"})


# --- markers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Marker:
    """The content of one of our markers."""

    adw_id: str
    op: str


def make_marker(marker: Marker, *, key: bytes, repository: str) -> str:
    """Return the marker as text."""
    # Written with a dot, which no id has: `adw_` in an id would be a trigger.
    spelled = marker.adw_id.replace("_", ".")

    return f"<!-- adw:v1 id={spelled} op={marker.op} mac={_code(marker, key, repository)} -->"


def read_marker(text: str, *, key: bytes, repository: str) -> Marker | None:
    """Return the first marker in *text* that this home made for this repository, or None."""
    for item in _MARKER.finditer(text):
        marker = Marker(adw_id=item["id"].replace(".", "_"), op=item["op"])
        if hmac.compare_digest(_code(marker, key, repository), item["mac"]):
            return marker

    return None


def with_marker(text: str, marker: str) -> str:
    """Return *text* with *marker* after its first line, where cutting the end does not remove it."""
    first, _, rest = text.partition("\n")

    return f"{first}\n{marker}\n{rest}"


def _code(marker: Marker, key: bytes, repository: str) -> str:
    said = "\0".join(("adw:v1", identifiers.comparable(repository), marker.adw_id, marker.op))

    return hmac.new(key, said.encode(), hashlib.sha256).hexdigest()[:20]


# --- text of other people --------------------------------------------------------------------------------------


def visible(text: str) -> str:
    """Return *text* as a person sees it: without HTML comments and zero-width characters."""
    text = _INVISIBLE.sub("", text.replace("\r\n", "\n"))
    # Repeated: removing one comment may join the two halves of another.
    while (shown := _HIDDEN_COMMENT.sub("", text)) != text:
        text = shown

    return text


def quiet(text: str) -> str:
    """Return *text* of other people so that repeating it mentions nobody, closes nothing and fires no trigger."""
    text = visible(text)
    text = _MENTION.sub(f"@{_JOINER}", text)
    text = _CLOSING.sub(rf"\1{_JOINER}\2", text)

    return break_triggers(text)


def break_triggers(text: str) -> str:
    """Return *text* with its workflow triggers disabled; it looks the same."""
    return _TRIGGER.sub(rf"\g<0>{_JOINER}", text)


def without_local_paths(text: str) -> str:
    """Return *text* with paths of this machine shortened to their last part, as they are private."""
    return _LOCAL_PATH.sub(r".../\1", text)


# --- outgoing text ---------------------------------------------------------------------------------------------


def outgoing_body(text: str, scrub: Callable[[str], str]) -> str:
    """Return *text* without secrets and short enough for every forge."""
    return cut(scrub(text))


def outgoing_title(text: str, scrub: Callable[[str], str]) -> str:
    """Return *text* on one line, without secrets and short enough for every forge."""
    line = " ".join(scrub(text).split())

    return line if len(line) <= MAX_TITLE else line[: MAX_TITLE - 3] + "..."


def cut(text: str, limit: int = MAX_BODY) -> str:
    """Return *text*; if it is longer than *limit*, its beginning and a note that it was cut."""
    return text if len(text) <= limit else text[: limit - len(CUT)] + CUT


def bot_comment(text: str, *, adw_id: str = "") -> str:
    """Return *text* as a comment of adw: recognisable, and no trigger for programs that listen to comments."""
    who = f"{break_triggers(adw_id)}: " if adw_id else ""
    said = text if text.startswith(BOT_MARK) else f"{BOT_MARK} {who}{text}"

    return cut(break_triggers(said))


def pull_request_title(*, kind: str | None, number: int | None, title: str) -> str:
    """Return `<type>: #<n> - <issue title>`; *kind* may be written as a command, such as `/bug`."""
    subject = " ".join(quiet(title).split()) or "no title"
    of_issue = "" if number is None else f"#{number} - "

    return outgoing_title(f"{(kind or 'feature').lstrip('/')}: {of_issue}{subject}", str)


def pull_request_body(*, adw_id: str, number: int | None, summary: str) -> str:
    """Return the description: a summary, the issue it closes, and the workflow as a trailer."""
    closes = "" if number is None else f"Closes #{number}\n\n"
    tail = f"\n\n{closes}ADW-Run: {break_triggers(adw_id)}"
    # A first line of our own: the marker follows it, so no text of others precedes the marker.
    head = f"Made by adw, workflow `{break_triggers(adw_id)}`.\n\n"
    said = without_local_paths(quiet(summary)).strip() or "No summary was written."

    # Leave space for the marker; the end, which closes the issue, is never cut.
    return f"{head}{cut(said, MAX_BODY - len(head) - len(tail) - 200)}{tail}"


# --- the sticky comment ----------------------------------------------------------------------------------------


def sticky_text(document: WorkflowDocument, *, now: datetime, state: str = "", detail: str | None = None) -> str:
    """
    Return the comment that is kept up to date on a workflow's issue, without its marker.

    *state* and *detail* replace those of the document.
    """
    adw_id, state = document.adw_id, state or document.current_state
    until = timestamps.parse(document.updated_at) if document.current_state in _OVER else now
    elapsed = max(0.0, (until - timestamps.parse(document.created_at)).total_seconds())
    if detail is None and document.current_state == "paused":
        detail = document.pause_reason
    elif detail is None and document.current_state == "failed":
        reasons = [phase.last_failure_reason for phase in document.phases if phase.status == "failed"]
        detail = next(filter(None, [*reasons, document.terminal_reason]), "")
    said = without_local_paths(quiet(detail or "")).strip()
    rows = []
    for phase in document.phases:
        times = [attempt.duration for attempt in phase.attempts if attempt.duration is not None]
        used = f"{phase.attempts_used} of {phase.max_attempts + phase.granted}"
        name = quiet(phase.name).replace("|", "\\|").replace("\n", " ")
        time = span(sum(times)) if times else ""
        rows.append(f"| {name} | {phase.status.replace('_', ' ')} | {used} | {time} |")
    if state in _OVER:
        to_do = ""
    elif state in _STOPPED:
        to_do = f"To continue: `adw resume {adw_id}`. To abandon it: `adw abandon {adw_id}`."
    else:
        to_do = f"To stop it: `adw pause {adw_id}`. To continue after that: `adw resume {adw_id}`."

    shown = state.replace("_", " ")
    blocks = [
        shown,
        f"Workflow `{adw_id}`{f' ({document.workflow.name})' if document.workflow else ''} is **{shown}**.",
        "\n".join(["| phase | status | attempts | time |", "|---|---|---|---|", *rows]) if rows else "",
        f"Cost: ${document.cost.total_usd:.2f}. Elapsed: {span(elapsed)}.",
        f"Pull request: #{document.pr_number}" if document.pr_number else "",
        "\n".join(f"> {line}" for line in cut(said, 4_000).splitlines()),
        to_do,
    ]

    # Leave space for the marker.
    return cut(bot_comment("\n\n".join(filter(None, blocks)), adw_id=adw_id), MAX_BODY - 200)


# The key of a home: a secret, made once, by which it recognises what it wrote.
#
# Only its owner can read the file. Two processes that make it at the same time end up with the same key.


#: Name of the file in the state directory.
KEY_NAME = ".home-key"

_HEX_DIGITS = 64


def read_or_make(path: Path, *, clock: Clock) -> bytes:
    """Return the key in the file *path*, creating it if missing; raise StateCorrupt if the file holds no key."""
    key = _read(path)
    if key is not None:
        return key
    try:
        _make(path, (clock.token() + clock.token()).encode())
    except durable_file.TempBlocked:
        raise UnsafePath(f"a directory stands at {path}.tmp: move it away") from None
    except OSError as exc:
        raise StateWriteFailed(str(path), exc) from exc
    made = _read(path)
    if made is None:
        raise StateCorrupt(str(path), "it is gone again", "leave it where it is")

    return made


def _read(path: Path) -> bytes | None:
    try:
        text, _ = durable_file.read_file(str(path), max_bytes=4096)
    except FileNotFoundError:
        return None
    except durable_file.TooLarge as exc:
        raise StateCorrupt(str(path), str(exc), "bring the old file back") from exc
    except OSError as exc:
        raise StateReadFailed(str(path), exc) from exc
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) * 2 != _HEX_DIGITS:
        raise StateCorrupt(
            str(path), "it holds no key", "bring the old file back; without it adw does not know its own pull requests"
        )

    return key


def _make(path: Path, key: bytes) -> None:
    durable_file.make_directory(str(path.parent))
    directory = durable_file.open_directory(str(path.parent))
    try:
        temp = f"{path.name}.tmp"
        fd = durable_file.claim_temp(directory, temp, wait=True)
        try:
            durable_file.fill(fd, key + b"\n", mode=durable_file.NEW_FILE_MODE)
            # A link, not a rename: the first process's key stays.
            with suppress(FileExistsError):
                os.link(temp, path.name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        finally:
            durable_file.discard_temp(directory, temp, fd)
        os.fsync(directory)
    finally:
        durable_file.close_quietly(directory)
