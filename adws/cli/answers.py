"""Who asks for something, and what came of it: done at once, or by the owner who was asked."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from adws.adw_modules.coordination.control import Applied, Asked
from adws.adw_modules.runs import UNCONFIRMED
from adws.cli import looking, output

if TYPE_CHECKING:
    from adws.app import App

EXIT_DONE, EXIT_UNCONFIRMED = 0, 1
#: Where a workflow stands after a request was obeyed.
_WANTED = {"pause": "paused", "stop": "paused", "abandon": "abandoned"}
#: Seconds between two looks for an answer.
_LOOK_SECONDS = 0.1
#: Seconds between two looks whether the owner who was asked is still there.
_AGAIN_SECONDS = 1.0


def who() -> str:
    """Return the name of the person at the terminal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"


def tell(app: App, done: Asked | Applied, adw_id: str, wait: float, *, as_json: bool) -> int:
    """Print what came of it, waiting so many seconds for an owner; return the exit code."""
    if isinstance(done, Asked):
        done = _waited_for(app, done, wait)
    if isinstance(done, Applied):
        _emit(adw_id, done.message, state=done.state, as_json=as_json)
        return EXIT_DONE if done.is_confirmed else EXIT_UNCONFIRMED
    request = app.requests.get(done.request.request_id)
    state = str(looking.peek(app, adw_id).data.get("current_state"))
    if request is not None and request.handled_at is not None:
        said = request.outcome or ""
        _emit(adw_id, f"workflow {adw_id}: {said}", state=state, answer=said, as_json=as_json)
        is_done = state == _WANTED.get(request.kind, state) and UNCONFIRMED not in said
        return EXIT_DONE if is_done else EXIT_UNCONFIRMED
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


def _waited_for(app: App, asked: Asked, wait: float) -> Asked | Applied:
    """Wait until the owner has answered, or do it ourselves once he is gone; what is still asked was not answered."""
    done: Asked | Applied = asked
    until, again_at = app.clock.monotonic() + wait, app.clock.monotonic() + _AGAIN_SECONDS
    while isinstance(done, Asked) and app.clock.monotonic() < until:
        found = app.requests.get(asked.request.request_id)
        if found is None or found.handled_at is not None:
            break
        if app.clock.monotonic() >= again_at:
            done, again_at = done.again(), app.clock.monotonic() + _AGAIN_SECONDS
        else:
            app.clock.sleep(_LOOK_SECONDS)

    return done
