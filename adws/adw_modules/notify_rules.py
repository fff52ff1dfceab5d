"""
What people are told, and in which words.

Pure. An event makes at most one notice, whose key is that of the event: so one transition is told once, however often
anybody looks. What has no event (a quota, a workflow that does not move) has a key made of what it is about.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from adws.adw_modules.events import Event
from adws.adw_modules.interfaces_schedule import Notice

#: Ways by which people are told.
COMMAND, HTTP, COMMENT = "command", "http", "comment"
#: kind of a notice -> the word by which people switch it on (`notify.events`).
KINDS = {
    "failed": "failed",
    "paused": "paused",
    "approval": "approval",
    "completed": "completed",
    "quota_exceeded": "quota",
    "quota_free": "quota",
    "breaker_opened": "breaker",
    "stuck": "stuck",
    "report": "report",
}
SWITCHES = tuple(dict.fromkeys(KINDS.values()))
#: How often a notice is tried by one channel.
MAX_ATTEMPTS = 5
#: Seconds before the second try; they double with each.
FIRST_RETRY_SECONDS = 60.0
#: Longest title and text that are sent, in characters.
MAX_TITLE, MAX_TEXT = 200, 4000

#: States that are told when a workflow comes to them.
_STATES = {"failed": "failed", "completed": "completed", "paused": "paused"}
#: The reason of a pause that `approval_asked` tells of already.
_AWAITING = "awaiting_approval"
_HINTS = {
    "failed": "adw explain {id} says why and what to type",
    "paused": "adw explain {id} says what it waits for, adw resume {id} makes it go on",
    "approval": "adw approve {id} lets it pass, adw reject {id} sends it back",
    "stuck": "adw explain {id} says what it waits for",
}

ChannelsOf = Callable[[str], tuple[str, ...]]  #: kind -> the channels that tell it


def notice_of(event: Event, channels_of: ChannelsOf) -> Notice | None:
    """Return what people are told about *event*, None when that is nothing."""
    kind = kind_of(event)
    channels = channels_of(kind) if kind else ()
    if not channels:
        return None
    what = event.data.get("party") if kind == "breaker_opened" else None
    told = _of_breaker(event) if what else _of_workflow(kind, event)

    return Notice(
        key=event.event_id,
        kind=kind,
        title=_line(told, MAX_TITLE),
        text=hint_of(kind, event.adw_id),
        adw_id=event.adw_id,
        channels=channels,
    )


def kind_of(event: Event) -> str:
    """Return the kind of notice that *event* makes, "" for none."""
    if event.event_type == "approval_asked":
        return "approval"
    if event.event_type == "breaker_opened":
        return "breaker_opened"
    if event.event_type != "state_changed" or event.data.get("reason") == _AWAITING:
        return ""

    return _STATES.get(event.status, "")


def _of_workflow(kind: str, event: Event) -> str:
    where = event.data.get("phase") or event.node_name
    why = event.data.get("message") or event.data.get("reason") or event.data.get("terminal_reason")
    words = {"failed": "failed", "paused": "is paused", "approval": "waits for approval", "completed": "is completed"}
    place = f" in {where}" if where and kind != "completed" else ""
    reason = f": {str(why).replace('_', ' ')}" if why and kind != "completed" else ""

    return f"workflow {event.adw_id} {words[kind]}{place}{reason}"


def _of_breaker(event: Event) -> str:
    until, why = event.data.get("reopens_at"), event.data.get("reason")

    return f"{event.data.get('party')} is held off until {until or 'it answers again'}{f': {why}' if why else ''}"


def hint_of(kind: str, adw_id: str) -> str:
    """Return what a person can type about a notice, "" for nothing."""
    return _HINTS.get(kind, "").format(id=adw_id)


def quota_notice(name: str, *, is_exceeded: bool, detail: str, key: str, channels: tuple[str, ...]) -> Notice:
    """Return what people are told when a limit is reached, or is not any more."""
    kind = "quota_exceeded" if is_exceeded else "quota_free"
    said = "is used up: new work waits" if is_exceeded else "is free again: work goes on"

    return Notice(key=key, kind=kind, title=f"the quota {name} {said}", text=_line(detail, MAX_TEXT), channels=channels)


def stuck_notice(adw_id: str, *, since: str, why: str, key: str, channels: tuple[str, ...]) -> Notice:
    """Return what people are told about a workflow that does not move."""
    return Notice(
        key=key,
        kind="stuck",
        title=_line(f"workflow {adw_id} has not moved since {since}{f': {why}' if why else ''}", MAX_TITLE),
        text=hint_of("stuck", adw_id),
        adw_id=adw_id,
        channels=channels,
    )


def retry_at(attempts: int, now: datetime, *, most: int = MAX_ATTEMPTS) -> datetime | None:
    """Return when a notice is tried again of which *attempts* failed, None when it is given up."""
    if attempts >= most:
        return None

    return now + timedelta(seconds=FIRST_RETRY_SECONDS * 2.0 ** min(attempts - 1, 10))


def _line(text: str, limit: int) -> str:
    line = " ".join(text.split())

    return line if len(line) <= limit else line[: limit - 3] + "..."
