"""Who asks for something, and what came of it: done at once, or by the owner who was asked."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from adws.adw_modules.coordination.control import Applied, Asked
from adws.cli import looking, output

if TYPE_CHECKING:
    from adws.adw_modules.interfaces import Request
    from adws.app import App

EXIT_DONE, EXIT_UNCONFIRMED = 0, 1
#: Where a workflow stands after a request was obeyed.
_WANTED = {"pause": "paused", "stop": "paused", "abandon": "abandoned"}
#: Seconds between two looks for an answer.
_LOOK_SECONDS = 0.1


def who() -> str:
    """Return the name of the person at the terminal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"


def tell(app: App, done: Asked | Applied, adw_id: str, wait: float, *, as_json: bool) -> int:
    """Print what came of it, waiting so many seconds for an owner; return the exit code."""
    if isinstance(done, Applied):
        _emit(adw_id, done.message, state=done.state, as_json=as_json)
        return EXIT_DONE
    request = _answer(app, done.request, wait)
    state = str(looking.peek(app, adw_id).data.get("current_state"))
    if request is not None and request.handled_at is not None:
        _emit(adw_id, f"workflow {adw_id}: {request.outcome}", state=state, answer=request.outcome, as_json=as_json)
        return EXIT_DONE if state == _WANTED.get(request.kind, state) else EXIT_UNCONFIRMED
    if done.request.kind == "hint":
        _emit(adw_id, f"the hint is left for the next attempt; {done.owner} is at work", state=state, as_json=as_json)
        return EXIT_DONE
    text = f"asked {done.owner}, who has not answered yet: the {done.request.kind} is kept; adw status {adw_id}"
    _emit(adw_id, text, state=state, asked=done.owner, as_json=as_json)

    return EXIT_UNCONFIRMED


def _emit(
    adw_id: str, text: str, *, state: str, answer: str | None = None, asked: str | None = None, as_json: bool
) -> None:
    """Print an answer; its keys are the same whatever came of it."""
    data: dict[str, output.Printable] = {
        "adw_id": adw_id,
        "state": state,
        "answer": answer if asked else answer or text,
        "asked": asked,
    }
    output.emit(data, text, as_json=as_json)


def _answer(app: App, request: Request, wait: float) -> Request | None:
    """Wait until the owner has answered; what is returned without an answer was waited for in vain."""
    until = app.clock.monotonic() + wait
    while True:
        found = app.requests.get(request.request_id)
        if found is None or found.handled_at is not None or app.clock.monotonic() >= until:
            return found
        app.clock.sleep(_LOOK_SECONDS)
