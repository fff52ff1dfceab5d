"""
`adw locks`: which workflow has which issue, and releasing a lock by hand.

A lock that a live owner works under is released only with --force. Listing starts without pydantic, SQLAlchemy and
filelock, because people look at locks when they are in a hurry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from adws.adw_modules.errors import AdwError, OwnershipError, StateError, StateNotFound
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import IssueLock
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.locks import check_issue_number
from adws.adw_modules.owner_record import Verdict
from adws.cli import lock_text, looking, main, output

if TYPE_CHECKING:
    from adws.app import App


@click.group(invoke_without_command=True)
@output.json_option
@click.pass_context
def locks(context: click.Context, *, as_json: bool) -> None:
    """Show which workflow has which issue, and release a lock."""
    if context.invoked_subcommand is not None:
        return
    with main.open_home() as app:
        rows = [_row(app, lock) for lock in _all(app)]

        output.emit({"locks": list(rows)}, lock_text.lock_lines(rows, app.clock.now()), as_json=as_json)


@locks.command()
@click.argument("issue", metavar="ISSUE")
@click.option("--repository", metavar="OWNER/NAME", default="", help="The issue's repository, when it is not this one.")
@click.option("--force", is_flag=True, help="Also when a live owner works under it, or its document cannot be read.")
@output.json_option
def release(*, issue: str, repository: str, force: bool, as_json: bool) -> None:
    """Release the lock of an issue. Its workflow is not stopped, and takes the lock again if it goes on first."""
    number = check_issue_number(issue)
    with main.open_home() as app:
        lock = _held(app, number, repository)
        notes = looking.notes_before_a_write(app, lock.adw_id)
        has_event = _release(app, lock, force=force)
        data: JsonObject = {**lock_text.facts_of(lock), "released": True, "event": has_event}
        text = f"released {lock_text.name_of(lock)}, which belonged to workflow {lock.adw_id}"

        output.emit(data, text, as_json=as_json)
        for note in notes:
            output.say(f"adw: {note}")


def _all(app: App) -> tuple[IssueLock, ...]:
    return app.locks.all() if app.has_database() else ()


def _row(app: App, lock: IssueLock) -> JsonObject:
    lease = app.leases.read(lock.adw_id)
    try:
        state = str(app.store.peek(lock.adw_id).data.get("current_state", "unknown"))
    except StateNotFound:
        state = "gone"
    except StateError:
        state = "unreadable"
    verdict = app.processes.verdict(lease.owner if lease is not None else None)

    return lock_text.lock_data(lock, lease, verdict=verdict, state=state, now=app.clock.now())


def _held(app: App, number: int, repository: str) -> IssueLock:
    held = app.locks.holder(number, repository) if app.has_database() else None
    if held is not None:
        return held
    elsewhere = [lock.repository or "this home" for lock in _all(app) if lock.issue_number == number]
    hint = f"there is one in {', '.join(elsewhere)}: see --repository" if elsewhere else "adw locks shows the locks"

    raise AdwError(f"no workflow has issue {number}{f' of {repository}' if repository else ''}; {hint}")


def _release(app: App, lock: IssueLock, *, force: bool) -> bool:
    """Release *lock* and say whether its workflow could be told so by an event."""
    row = app.leases.read(lock.adw_id)
    verdict = app.processes.verdict(row.owner if row is not None else None)
    is_live = row is not None and row.seconds_left > 0.0 and verdict is not Verdict.DEAD
    if is_live and not force:
        raise OwnershipError(
            f"{lock_text.name_of(lock)} belongs to workflow {lock.adw_id}, which {lock_text.owner_of(row, verdict)} "
            "is working on: ask it to stop first, or add --force"
        )
    if not is_live and _is_readable(app, lock.adw_id, force=force):
        _release_as_owner(app, lock)
        return True
    _let_go(app, lock)

    return False


def _is_readable(app: App, adw_id: str, *, force: bool) -> bool:
    """Say whether there is a document to leave an event in; raise what is wrong with it unless *force*."""
    if not app.store.exists(adw_id):
        return False
    try:
        app.store.peek(adw_id)
    except StateError:
        if not force:
            raise
        return False

    return True


def _release_as_owner(app: App, lock: IssueLock) -> None:
    released = Event(event_type="lock_released", data={"holder": lock.adw_id, **lock_text.facts_of(lock)})
    with app.ownership.own(lock.adw_id) as owned:
        _let_go(app, lock)
        owned.save(owned.document, events=(released,))


def _let_go(app: App, lock: IssueLock) -> None:
    if not app.locks.release(lock.issue_number, lock.adw_id, lock.repository):
        raise AdwError(f"{lock_text.name_of(lock)} went to another workflow meanwhile: look again with adw locks")
