"""
Walk a workflow through its states on disk and show what is left: timeline, commands, files.

Uses adw as a library, in a temporary home that is kept for the commands at the end. Nothing else is touched.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from adws import config
from adws.adw_modules import timestamps
from adws.adw_modules.document import FrozenIssue, WorkflowDocument
from adws.adw_modules.errors import IllegalTransition
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import Owned
from adws.adw_modules.state_machine import WorkflowState, WorkflowStateMachine
from adws.app import App, open_app

ADW = Path(sys.executable).parent / "adw"

#: The way of the first workflow: one failure that is retried, one pause.
SHIPPED = (
    ("planning", ""),
    ("building", ""),
    ("linting", ""),
    ("testing", ""),
    ("failed", "2 of 14 tests failed"),
    ("testing", "first retry"),
    ("reviewing", ""),
    ("paused", "a person wants to read along"),
    ("reviewing", "resumed where it was paused"),
    ("documenting", ""),
    ("shipping", ""),
    ("cleaning", ""),
    ("completed", ""),
)

#: The way of the second one: given up, and undone.
GIVEN_UP = (("planning", ""), ("abandoned", "the issue was closed"), ("rolled_back", "nothing is left"))


def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="adw-demo-"))
    subprocess.run(["git", "init", "--quiet", str(home)], check=True)
    settings = config.load(env={}, cwd=home, overrides={"home": str(home)})
    with open_app(settings) as app:
        shipped = walk(app, issue_number=7, title="Export the report as CSV", way=SHIPPED)
        walk(app, issue_number=8, title="Add a dark theme", way=GIVEN_UP)

    show(home, "list")
    show(home, "status", shipped)
    show(home, "events", shipped)
    show_files(home)
    say_what_next(home, shipped)

    return 0


def walk(app: App, *, issue_number: int, title: str, way: tuple[tuple[str, str], ...]) -> str:
    """Create a workflow, take it along *way* with one durable write for each step, and return its id."""
    document = new_document(app, issue_number, title)
    print(f"\nIssue #{issue_number}, {title}: workflow {document.adw_id}")
    with app.ownership.create(document) as owned:
        print_step(owned, "created, and the issue is locked for it")
        for state, why in way:
            step(owned, app, state, why)
            print_step(owned, why)
        show_refusal(owned, app)

    return document.adw_id


def new_document(app: App, issue_number: int, title: str) -> WorkflowDocument:
    now = timestamps.to_text(app.clock.now())
    return WorkflowDocument(
        adw_id=app.clock.token()[:8],
        issue_number=issue_number,
        issue=FrozenIssue(title=title),
        created_at=now,
        updated_at=now,
    )


def step(owned: Owned, app: App, state: str, why: str) -> None:
    """Move along one edge: the machine decides, and the move and its event are one write."""
    document = owned.document.model_copy(deep=True)
    machine = WorkflowStateMachine.of(document, now=app.clock.now)
    if machine.current_state is WorkflowState.FAILED:
        machine.mark_retry()
    move = machine.transition(state, {"reason": why} if why else None)
    machine.write_into(document)
    owned.save(document, events=[Event(event_type="state_changed", data={"from": move["from"], "to": move["to"]})])


def show_refusal(owned: Owned, app: App) -> None:
    """Show that a move outside the table is refused and leaves no mark."""
    try:
        step(owned, app, "building", "")
    except IllegalTransition as refused:
        print(f"  refused: {refused}")


def print_step(owned: Owned, note: str) -> None:
    document = owned.document
    retries = f"  (retry {document.retry_count} of {document.max_retries})" if document.retry_count else ""
    time_of_day = document.updated_at[11:23]
    print(f"  {time_of_day}  revision {document.revision:2}  {document.current_state:12} {note}{retries}".rstrip())


def show(home: Path, *command: str) -> None:
    """Run an adw command as a person would."""
    print(f"\n$ adw {shlex.join(command)}", flush=True)
    subprocess.run([str(ADW), "--home", str(home), *command], cwd=home, check=True)


def show_files(home: Path) -> None:
    print("\nOn disk:")
    for path in sorted((home / "state").rglob("*")):
        if path.is_file():
            print(f"  {path.relative_to(home)}  {path.stat().st_size} bytes")


def say_what_next(home: Path, adw_id: str) -> None:
    adw = f"{shlex.quote(str(ADW))} --home {shlex.quote(str(home))}"
    print(f"\nThe home is kept. Look around, or delete it:\n  {adw} state show {adw_id}\n  {adw} locks\n  rm -r {home}")
    print("\nThen: scripts/test runs the tests, and the README says what works now.")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `scripts/demo | head` ends without a traceback
    sys.exit(main())
