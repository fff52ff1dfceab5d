"""
The frame of every page: how a page is made, what its template may use, how it stays live.

A page is a plain FastAPI route in a module of this package, with a router of its own that is not in the schema:

    router = APIRouter(include_in_schema=False)

    @router.get("/things")
    def things(request: Request, home: HomeOf) -> HTMLResponse:
        return frame.render(request, "things.html", topic="home", things=...)

and is registered in `web/app.py` (`PAGES`). By the time it runs, the gate has seen to it that the caller is logged in.
`frame.viewer(request)` says who that is (`.by` is for the history). Raise an `AdwError`: it becomes a page.

**Templates** are in `templates/`. Everything is escaped, a name that is not there is an error, and every text is
redacted on its way out. A page begins with

    {% extends "base.html" %}{% import "parts.html" as ui with context %}
    {% block title %}Things{% endblock %}{% block main %} ... {% endblock %}

and may fill `head` (buttons beside the title). Every template has `page` (`Page` below). Filters: `age` `moment`
`elapsed` (of a timestamp), `span` (seconds), `money`, `number`, `size` (bytes), `clip` (first line of a strange text),
`plain`, `tone`, `words`. Macros of `ui`: `badge(state)`, `when(timestamp)`, `since(timestamp)` (counts on by itself),
`foreign(text)` (strange text in a line, isolated), `block(text)` (strange text of many lines),
`workflow(adw_id)` (a link), `facts(pairs)` (pairs of a term and text or markup), `meter(label, used, limit, ...)`,
`{% call ui.table(caption, headings) %}` rows `{% endcall %}`, `{% call ui.card(title) %}`,
`{% call ui.form(action) %}` (POST, with the CSRF token), `button(action, label, tone, fields)` (a form of one button),
`pager(next_url, first_url)`, `empty(text, hint)`. Nothing inline: no `style=`, no `onclick=`, no `<script>`, no
`<style>`; the policy of the pages forbids them. Lengths in pictures are SVG attributes.

**Live.** With `topic="home"` or `topic="workflow:ID"` the script listens at `/live?topic=...`. When something changed
it fetches the address of the page again and puts every element that has `data-live` and an `id` in the place of the old
one with that id. Focus, scroll positions and open `<details>` are kept (give the latter an `id`). A form that somebody
is typing in is left alone. Keep `data-tail` and what people type outside of such elements where you can.

**Tails.** `<pre data-tail="/workflows/ID/log?after=N">` is followed by the script: it GETs the address and appends the
answer (`text/plain`), then asks the address in the header `Adw-Next` of the answer, until there is none. An empty
answer means that there is nothing new yet. Without the script the page has to show the first part itself.

**Actions.** A form POSTs to a route. The door has checked login, origin, read-only mode and CSRF token before the route
runs, so it begins with `form = actions.guard(request)` (not async; `form.text("hint")`, `form.is_set("force")`), and
does its work in a plain `def`, which runs in a thread. `actions.control(request, home, "pause", adw_id)` is the Control
whose changes leave the audit event `action_asked`; for what is not a Control call `actions.note(request, "what",
adw_id=...)`. It ends with `return actions.done(request, "/where", "what was done")`: 303, and the message on the next
page; `actions.told(done)` makes it of what a Control answers. Wrap calls in `with errors.fitting():` as the API does.
`frame.confirm(request, ...)` asks first. While `page.is_read_only` the macros show no buttons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import jinja2
from fastapi import Request
from markupsafe import Markup
from starlette.responses import HTMLResponse

import adws
from adws.web.pages import assets, shown
from adws.web.pages.session_rules import Known

if TYPE_CHECKING:
    from adws.web.home import Home

_TEMPLATES = Path(__file__).parent / "templates"
#: Where the door leaves who looks, their login, and the form they sent.
VIEWER_IN_SCOPE, KNOWN_IN_SCOPE, FORM_IN_SCOPE = "adw.viewer", "adw.login", "adw.form"
#: Address -> name, in the order of the menu.
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
    """Who looks at a page."""

    by: str = ""  #: for the history of what they do; "": nobody is logged in
    csrf: str = ""  #: what their forms have to carry
    flash: str = ""  #: what is told once, on top of the page


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """What every template may use."""

    path: str
    now: datetime
    viewer: Viewer
    is_read_only: bool
    topic: str  #: what it is live about; "": it stands still

    @property
    def version(self) -> str:
        """Return which adw this is."""
        return adws.__version__

    @property
    def menu(self) -> Mapping[str, str]:
        """Return where one can go."""
        return MENU

    @property
    def csrf(self) -> Markup:
        """What a form has to carry; marked, so that it is not taken for a secret that leaks."""
        return Markup(self.viewer.csrf)  # noqa: S704 - hex digits of ours

    def is_here(self, address: str) -> bool:
        """Say whether the page is part of what *address* of the menu leads to."""
        return self.path == address if address == "/" else f"{self.path}/".startswith(f"{address}/")


class Frame:
    """Makes pages."""

    def __init__(self, *, now: Callable[[], datetime], redact: Callable[[str], str], is_read_only: bool) -> None:
        self._now = now
        self._is_read_only = is_read_only
        self._environment = _environment(redact)

    def text(self, template: str, *, path: str, viewer: Viewer, topic: str = "", **facts: object) -> str:
        """Return the page that *template* makes of *facts*."""
        now = self._now()
        page = Page(path=path, now=now, viewer=viewer, is_read_only=self._is_read_only, topic=topic)

        return self._environment.get_template(template).render(page=page, **facts)


def of_home(home: Home) -> Frame:
    """Return the frame of the pages of *home*."""
    redactor = home.part(lambda app: app.redactor)
    clock = home.part(lambda app: app.clock)

    return Frame(now=clock.now, redact=redactor.redact_text, is_read_only=home.settings.web_read_only)


def render(request: Request, template: str, *, status: int = 200, topic: str = "", **facts: object) -> HTMLResponse:
    """Return the page that *template* makes of *facts*."""
    frame = cast("Frame", request.app.state.frame)
    path, seen_by = request.url.path, viewer(request)
    answer = HTMLResponse(frame.text(template, path=path, viewer=seen_by, topic=topic, **facts), status_code=status)
    if seen_by.flash:
        answer.headers.append("Set-Cookie", request.app.state.door.forget_note)

    return answer


def confirm(
    request: Request,
    *,
    title: str,
    action: str,
    label: str,
    back: str,
    text: str = "",
    fields: Mapping[str, str] | None = None,
    items: Sequence[str] = (),
) -> HTMLResponse:
    """Return a page that asks whether *action* is to be done: *label* is its button, *items* what it would do."""
    return render(
        request,
        "confirm.html",
        title=title,
        action=action,
        label=label,
        back=back,
        text=text,
        fields=fields or {},
        items=items,
    )


def viewer(request: Request) -> Viewer:
    """Return who looks."""
    return cast("Viewer", request.scope.get(VIEWER_IN_SCOPE) or Viewer())


def known(request: Request) -> Known | None:
    """Return the login of whoever looks, None when there is none."""
    return cast("Known | None", request.scope.get(KNOWN_IN_SCOPE))


def _environment(redact: Callable[[str], str]) -> jinja2.Environment:
    def finalize(value: object) -> object:
        # What was escaped before (Markup) is ours, or was redacted when it was made.
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
            name: getattr(shown, name)
            for name in ("clip", "moment", "money", "number", "plain", "size", "span", "tone", "words", "is_moment")
        }
    )
    environment.filters["age"] = jinja2.pass_context(lambda context, text: shown.age(text, context["page"].now))
    environment.filters["elapsed"] = jinja2.pass_context(lambda context, text: shown.elapsed(text, context["page"].now))
    environment.globals.update({"asset": assets.url, "mark": shown.mark, "NOTHING": shown.NOTHING})

    return environment
