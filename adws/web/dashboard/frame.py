"""
The frame of every page: rendering, what templates may use, live updates.

A page is a FastAPI route outside the schema, registered in `web/app.py` (`PAGES`); it returns
`frame.render(request, "things.html", topic="home", things=...)`. Before it runs, `PageAuth` has checked the login.
`frame.viewer(request).by` is the name for the history. An `AdwError` becomes a page.

**Templates** extend `base.html` and import `parts.html` as `ui` with context. Everything is escaped and redacted; an
unknown name is an error. Nothing is inline (`style=`, `onclick=`, `<script>`, `<style>`): the content security policy
forbids it. Lengths in pictures are SVG attributes.

**Live.** With a `topic` the script listens at `/live?topic=...`. After a change it fetches the page again and replaces
every element that has `data-live` and an `id`. Focus, scroll positions and open `<details>` with an `id` are kept; a
form that somebody is typing in is not replaced.

**Tails.** `<pre data-tail="/workflows/ID/log?after=N">`: the script appends the answer (`text/plain`) and continues
with the URL in its header `Adw-Next`, until that is missing. Without the script the page has to show the first part.

**Actions.** A form is posted to a route (`dashboard/actions.py`), after `PageAuth` has checked login, origin, read-only
mode and CSRF. It ends with `actions.done(request, "/where", "what was done")`: a 303, and the message on the next page.
While `page.is_read_only` the macros show no buttons.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import jinja2
from fastapi import APIRouter, Request
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

import adws
from adws.adw_modules import identifiers, timestamps, views
from adws.adw_triggers.http import Problem
from adws.web.dashboard.sessions import LoginSession

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.identifiers import JsonValue
    from adws.app import Home


# --- how facts are shown: times, amounts, states, foreign texts ------------------------------------------------
#
# Pure. Everything here except `patch` returns plain text, which the templates escape.


#: The most characters of a text in one line.
CLIPPED = 160
#: Shown for a missing fact.
NOTHING = "—"

#: Tone -> the mark before the text, so that nothing is shown by colour alone.
MARKS: Mapping[str, str] = MappingProxyType(
    {"good": "✓", "bad": "✕", "busy": "▶", "wait": "◔", "gone": "↩", "quiet": "○"}
)
#: First character of a patch line -> its class.
_PATCH_LINES = {"+": "ins", "-": "del", "@": "hunk", "\\": "hunk"}
#: Class and text of each outcome of workflows, for the legend of a picture.
OUTCOME_KEYS = (("good", "completed"), ("bad", "failed"), ("", "abandoned"), ("gone", "rolled back"))
#: State or status of anything -> tone; all others are quiet.
TONES: Mapping[str, str] = MappingProxyType(
    {
        word: its_tone
        for its_tone, words_of_it in {
            "good": "completed complete succeeded closed ok alive online idle made adopted done",
            "bad": "failed dead open exceeded stale lost silent blocked exhausted bad",
            "busy": "planning building linting testing reviewing documenting shipping cleaning running claimed"
            " executing busy active in_flight",
            "wait": "paused waiting retry_wait half_open stopping suspended interrupted parked draining",
            "gone": "rolled_back abandoned stopped skipped undone cancelled gone",
        }.items()
        for word in words_of_it.split()
    }
)


def tone(word: str) -> str:
    """Return the tone of a state: good, bad, busy, wait, gone or quiet."""
    return TONES.get(word.strip().lower().replace("-", "_"), "quiet")


def mark(tone_of_it: str) -> str:
    """Return the mark of a tone."""
    return MARKS.get(tone_of_it, MARKS["quiet"])


def words(name: str) -> str:
    """Return the readable name of a state: `rolled back` for `rolled_back`."""
    return name.replace("_", " ")


def is_moment(text: object) -> bool:
    """Return whether *text* is a time in the format of documents."""
    if not isinstance(text, str) or not text or text == timestamps.UNKNOWN_MOMENT:
        return False
    try:
        timestamps.parse(text)
    except (ValueError, OverflowError):
        return False

    return True


def age(text: str, now: datetime) -> str:
    """Return how long ago the moment *text* was, or `—` if it is not a moment."""
    if not is_moment(text):
        return NOTHING

    return identifiers.age((now - timestamps.parse(text)).total_seconds())


def moment(text: str) -> str:
    """Return the moment *text* in full, in UTC, or `—` if it is not a moment."""
    return f"{timestamps.parse(text):%Y-%m-%d %H:%M:%S} UTC" if is_moment(text) else NOTHING


def elapsed(text: str, now: datetime) -> str:
    """Return the time since the moment *text*, in seconds below a minute, or `—`."""
    if not is_moment(text):
        return NOTHING
    whole = max(0, int((now - timestamps.parse(text)).total_seconds()))

    return f"{whole} s" if whole < 60 else span(float(whole))


def span(seconds: float | None) -> str:
    """Return a duration, or `—` if it is unknown."""
    return NOTHING if seconds is None else identifiers.span(seconds)


def money(usd: float | None) -> str:
    """Return an amount of US dollars; one below a cent is not rounded to zero."""
    if usd is None:
        return NOTHING
    if 0 < usd < 0.01:
        return "< $0.01"

    return f"${usd:,.2f}"


def number(count: float | None) -> str:
    """Return a number with thousands separators, and with one decimal place if it is not whole."""
    if count is None:
        return NOTHING

    return f"{count:,.0f}" if float(count).is_integer() else f"{count:,.1f}"


def size(count: float | None) -> str:
    """Return a number of bytes in a readable unit."""
    if count is None:
        return NOTHING
    left = float(count)
    for unit in ("B", "KiB", "MiB"):
        if left < 1024:
            return f"{left:,.0f} {unit}" if unit == "B" else f"{left:,.1f} {unit}"
        left /= 1024

    return f"{left:,.1f} GiB"


def clip(text: object, most: int = CLIPPED) -> str:
    """Return the first line of *text*, at most *most* characters, without control characters."""
    line = plain(str(text)[: most * 4]).strip().partition("\n")[0].strip()
    is_cut = len(line) > most or "\n" in str(text).strip()

    return f"{line[:most].rstrip()} …" if is_cut else line


def pretty(value: JsonValue) -> str:
    """Return indented JSON."""
    return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)


def plain(text: str) -> str:
    """Return *text* with every control and direction character replaced."""
    if text.isascii() and text.isprintable():
        return text

    return "".join(letter if _is_harmless(letter) else "\N{REPLACEMENT CHARACTER}" for letter in text)


def patch(text: str) -> Markup:
    """Return a redacted patch as markup: each line escaped, added and deleted ones marked."""
    lines = text.removesuffix("\n").split("\n") if text else []
    marked = (f'<span class="{_PATCH_LINES.get(line[:1], "same")}">{escape(plain(line))}\n</span>' for line in lines)

    return Markup("".join(marked))  # noqa: S704 - every line is escaped above


def _is_harmless(letter: str) -> bool:
    return letter in "\n\t" or unicodedata.category(letter) not in {"Cc", "Cf", "Cs"} or letter in "\u200c\u200d"


# --- the style sheet, script and icon, each under a name that changes with its content -------------------------
#
# A browser may keep them for ever, because another release has other names. They are open to everyone, for the login
# page.


router = APIRouter(include_in_schema=False)

#: The path of static files.
PREFIX = "/static/"
_PLACE = Path(__file__).parent / "static"
_KINDS = {
    "adw.css": "text/css; charset=utf-8",
    "adw.js": "text/javascript; charset=utf-8",
    "adw.svg": "image/svg+xml",
}
_FOR_EVER = "public, max-age=31536000, immutable"


def url(name: str) -> str:
    """Return the URL path of the file *name*."""
    stem, _, ending = name.partition(".")

    return f"{PREFIX}{stem}.{_asset(name)[1]}.{ending}"


def text(name: str) -> str:
    """Return the content of the file *name*, for a page that embeds it."""
    return _asset(name)[0].decode()


@router.get(PREFIX + "{name}")
def get_asset(name: str) -> Response:
    """Return a file; names of other releases are not found."""
    for known, kind in _KINDS.items():
        if url(known) == f"{PREFIX}{name}":
            return Response(_asset(known)[0], media_type=kind, headers={"Cache-Control": _FOR_EVER})

    raise HTTPException(404)


@cache
def _asset(name: str) -> tuple[bytes, str]:
    """Return the content of the file *name* and its digest."""
    body = (_PLACE / name).read_bytes()

    return body, hashlib.sha256(body).hexdigest()[:16]


_TEMPLATES = Path(__file__).parent / "templates"
#: Keys in the scope for the viewer, their login and their form, set by `PageAuth`.
VIEWER_IN_SCOPE, KNOWN_IN_SCOPE, FORM_IN_SCOPE = "adw.viewer", "adw.login", "adw.form"
#: Path -> name, in the order of the menu.
MENU: Mapping[str, str] = MappingProxyType(
    {
        "/": "Overview",
        "/workflows": "Workflows",
        "/runs": "Queue",
        "/runners": "Workers",
        "/locks": "Locks",
        "/deliveries": "Deliveries",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Viewer:
    """The person who views a page."""

    by: str = ""  #: the requester for the history; "": not logged in
    csrf: str = ""  #: the token for their forms
    flash: str = ""  #: a message shown once at the top of the page


@dataclass(frozen=True, kw_only=True, slots=True)
class PageContext:
    """What every template may use."""

    path: str
    now: datetime
    viewer: Viewer
    is_read_only: bool
    topic: str  #: the topic of live updates; "": no updates

    @property
    def csrf(self) -> Markup:
        """The token of forms, as Markup so that the redactor does not remove it."""
        return Markup(self.viewer.csrf)  # noqa: S704 - our own hex digits

    def is_here(self, address: str) -> bool:
        """Return whether the page belongs to *address* of the menu."""
        return self.path == address if address == "/" else f"{self.path}/".startswith(f"{address}/")


#: status -> title of the page.
_TITLES: Mapping[int, str] = MappingProxyType(
    {
        401: "Please log in",
        403: "Not allowed",
        404: "Not found",
        405: "Not possible",
        409: "Not possible in this state",
        421: "Wrong address",
        422: "Invalid request",
        429: "Limit reached",
        500: "A bug in adw",
        502: "The forge answered with an error",
        503: "Not available",
    }
)
#: status -> advice for people; programs get different advice.
_ADVICE: Mapping[int, str] = MappingProxyType(
    {
        404: "The lists show what exists.",
        409: "Load the page of the workflow again: its state may have changed.",
        422: "Go back and change the request.",
        429: "Retry later; the overview shows which limit is used up.",
        500: "The log of adw serve has the details; please report the bug.",
        502: "Check the status of the forge, then retry.",
        503: "The request is valid: retry later.",
    }
)


class Frame:
    """Renders pages."""

    def __init__(self, *, now: Callable[[], datetime], redact: Callable[[str], str], is_read_only: bool) -> None:
        self._now = now
        self._redact = redact
        self._is_read_only = is_read_only
        self._environment = _environment(redact)

    def text(self, template: str, *, path: str, viewer: Viewer, topic: str = "", **facts: object) -> str:
        """Return the page of *template*, rendered with *facts*."""
        now = self._now()
        page = PageContext(path=path, now=now, viewer=viewer, is_read_only=self._is_read_only, topic=topic)

        return self._environment.get_template(template).render(page=page, **facts)

    def error(self, problem: Problem, *, path: str, viewer: Viewer, is_page: bool) -> Response:
        """Return *problem* as a page for people or as JSON, with the same message."""
        headers = problem.headers()
        if not is_page:
            redacted = replace(problem, message=self._redact(problem.message))
            return JSONResponse(redacted.to_json(), status_code=redacted.status, headers=headers)
        text = self.text(
            "problem.html",
            path=path,
            viewer=viewer,
            title=_TITLES.get(problem.status, "That did not work"),
            message=sentence(problem.message),
            advice=_ADVICE.get(problem.status, problem.advice),
        )

        return HTMLResponse(text, status_code=problem.status, headers=headers)

    def hop(self, here: str) -> Response:
        """Return a page that redirects to *here*."""
        return HTMLResponse(self.text("hop.html", path=here, viewer=Viewer(), here=here))


def of_home(home: Home) -> Frame:
    """Return the frame of the pages of *home*."""
    return Frame(now=home.clock.now, redact=home.redactor.redact_text, is_read_only=home.settings.web_read_only)


def render(request: Request, template: str, *, status: int = 200, topic: str = "", **facts: object) -> HTMLResponse:
    """Return the page of *template*, rendered with *facts*."""
    frame = cast("Frame", request.app.state.frame)
    path, seen_by = request.url.path, viewer(request)
    answer = HTMLResponse(frame.text(template, path=path, viewer=seen_by, topic=topic, **facts), status_code=status)
    if seen_by.flash:
        answer.headers.append("Set-Cookie", request.app.state.page_auth.forget_note)

    return answer


def of_workflow(
    request: Request, template: str, document: WorkflowDocument, *, topic: str = "", **facts: Any
) -> HTMLResponse:
    """Return a page about the workflow in *document*, under its readable name."""
    adw_id, name = document.adw_id, views.workflow(document).name

    return render(request, template, topic=topic, adw_id=adw_id, name=name, document=document, **facts)


def viewer(request: Request) -> Viewer:
    """Return the viewer of the page."""
    return cast("Viewer", request.scope.get(VIEWER_IN_SCOPE) or Viewer())


def known(request: Request) -> LoginSession | None:
    """Return the login of the viewer, or None."""
    return cast("LoginSession | None", request.scope.get(KNOWN_IN_SCOPE))


def _environment(redact: Callable[[str], str]) -> jinja2.Environment:
    def finalize(value: object) -> object:
        # Markup is our own, or was redacted when it was created.
        return redact(value) if type(value) is str else value

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        {
            "clip": clip,
            "counted": identifiers.counted,
            "moment": moment,
            "money": money,
            "number": number,
            "patch": patch,
            "plain": plain,
            "size": size,
            "span": span,
            "tone": tone,
            "words": words,
            "is_moment": is_moment,
        }
    )
    environment.filters["age"] = jinja2.pass_context(lambda context, text: age(text, context["page"].now))
    environment.filters["elapsed"] = jinja2.pass_context(lambda context, text: elapsed(text, context["page"].now))
    environment.globals.update({"asset": url, "mark": mark, "VERSION": adws.__version__})
    environment.globals.update({"NOTHING": NOTHING, "OUTCOME_KEYS": OUTCOME_KEYS, "MENU": MENU})

    return environment


def error(request: Request, problem: Problem, *, is_page: bool) -> Response:
    """Return *problem* for the sender of *request*, as a page or as JSON."""
    pages = cast("Frame", request.app.state.frame)

    return pages.error(problem, path=request.url.path, viewer=viewer(request), is_page=is_page)


def sentence(message: str) -> str:
    """Return *message* with a capital letter and a full stop."""
    text = message.strip()
    if not text:
        return text

    return f"{text[0].upper()}{text[1:]}{'' if text[-1] in '.!?' else '.'}"


# --- output for a terminal as text for a page (pure) -----------------------------------------------------------


#: Escape sequences that colour text, move the cursor, set the window title and the like.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # with parameters, such as colours
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # with a text, such as the title
    r"|\x1b[ -/]*[0-~]"
)


def readable(text: str) -> str:
    """Return *text* without terminal codes; an overwritten line stays, above its replacement."""
    if text.isascii() and text.isprintable():
        return text

    return plain(_ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))
