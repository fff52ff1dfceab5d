"""
`adw quota`, `adw admin ports`, `breakers`, `locks`: show shared resources, and release them by hand.

Showing changes nothing and creates no database.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click

from adws.adw_modules import identifiers, timestamps, views
from adws.adw_modules.errors import AdwError, OwnershipError, StateError, StateNotFound, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.interfaces import IssueLock, Verdict
from adws.adw_modules.ownership.issue_locks import check_issue_number
from adws.cli import common as cli_common
from adws.cli import main, output

if TYPE_CHECKING:
    from adws.adw_modules.circuit_breaker import BreakerRow
    from adws.adw_modules.resources.quotas import QuotaStatus
    from adws.app import Home


# --- adw admin ports -------------------------------------------------------------------------------------------------


@click.command()
@output.json_option
def ports(*, as_json: bool) -> None:
    """List the ports of workflows."""
    from adws.adw_modules.resources.ports import is_free

    data: list[JsonObject] = []
    cells = []
    words = {True: "held or used", False: "free", None: "not seen from here"}
    with main.open_home() as app:
        here, now = app.processes.me("cli").host, app.clock.now()
        for row in app.ports.all() if app.has_database() else ():
            in_use = not is_free(row.port) if row.host == here else None
            facts = {name: getattr(row, name) for name in ("port", "purpose", "adw_id", "host", "reserved_at")}
            data.append({**facts, "in_use": in_use})
            since = output.moment(row.reserved_at, now)
            cells.append((str(row.port), row.purpose, row.adw_id, row.host, words[in_use], since))
    table = output.table(("PORT", "FOR", "WORKFLOW", "HOST", "SOCKET", "SINCE"), cells)

    output.emit({"ports": data}, table if cells else "no workflow has ports", as_json=as_json)


# --- adw quota -------------------------------------------------------------------------------------------------


#: The exit code if a limit is reached.
REACHED = 1


@click.command()
@click.option(
    "--workflow",
    metavar="NAME",
    shell_complete=cli_common.offer_names,
    help="Workflow to estimate the cost of, from past ones of its name.",
)
@output.json_option
def quota(*, workflow: str | None, as_json: bool) -> int:
    """Show every limit and how much of it is used; exits with 1 when one is reached."""
    with main.open_home() as app:
        name = workflow or app.settings.default_workflow
        quotas = app.known_quotas
        result = quotas.status(estimated_cost=quotas.estimate(name))
    is_exceeded = any(status.is_exceeded for status in result)
    data: JsonObject = {
        "quotas": [asdict(status) for status in result],
        "workflow": name,
        "is_exceeded": is_exceeded,
    }
    lines = [
        *output.table(("QUOTA", "NOW", "RESERVED", "NEXT", "LIMIT", "UNIT", ""), map(_quota_cells, result)),
        "",
        "RESERVED is what workflows under way are expected to need besides, NEXT what one more would.",
        f"cost is that of a workflow {name}, from those that came to their end",
        *(f"{status.name}: {status.detail}" for status in result if status.is_exceeded or not status.is_known),
    ]
    output.emit(data, lines, as_json=as_json)

    return REACHED if is_exceeded else main.EXIT_OK


def _quota_cells(status: QuotaStatus) -> tuple[str, ...]:
    is_off = status.unit == "GB" and not status.limit  # only the limit on the size of a worktree can be off
    state = "REACHED" if status.is_exceeded else "ok"

    return (
        status.name,
        status.shown(status.used - status.reserved - status.expected) if status.is_known else "unknown",
        status.shown(status.reserved) if status.reserved else "-",
        status.shown(status.expected) if status.expected else "-",
        "off" if is_off else status.shown(status.limit),
        status.unit.removeprefix("GB").strip() or "each",
        "off" if is_off else state if status.is_known else "not known",
    )


# --- adw admin breakers ----------------------------------------------------------------------------------------------


_WORDS = {"closed": "closed", "open": "OPEN", "half_open": "half open"}


@click.group(invoke_without_command=True)
@output.json_option
@click.pass_context
def breakers(context: click.Context, *, as_json: bool) -> None:
    """List circuit breakers; reset one."""
    if context.invoked_subcommand is not None:
        return
    with main.open_home() as app:
        rows, now = _breakers(app), app.clock.now()
    cells = [
        (
            row.name,
            _WORDS.get(row.state, row.state),
            str(row.failures),
            output.moment(row.reopens_at, now) if row.reopens_at and row.state == "open" else "-",
            identifiers.shortened(row.reason, 60) or "-",
        )
        for row in rows
    ]
    lines = output.table(("SERVICE", "BREAKER", "FAILURES", "OPEN UNTIL", "WHY"), cells)
    if any(row.state == "open" for row in rows):
        lines += ["", "adw admin breakers reset NAME closes one"]
    names = ("name", "state", "failures", "generation", "opened_at", "reopens_at", "reason", "settings", "changed_at")
    data = [{**{name: getattr(row, name) for name in names}, "trials": len(row.permits)} for row in rows]
    output.emit({"breakers": data}, lines if rows else "no service has failed", as_json=as_json)


@breakers.command()
@click.argument("name", metavar="NAME", required=False)
@click.option("--all", "is_all", is_flag=True, help="Every breaker.")
@output.json_option
def reset(*, name: str | None, is_all: bool, as_json: bool) -> None:
    """Close a circuit breaker, so that its service is called again at once."""
    if (name is None) is not is_all:
        raise UsageError("name one breaker, or all of them with --all: adw admin breakers shows them")
    with main.open_home() as app:
        rows = _breakers(app)
        chosen = [row for row in rows if is_all or row.name == name]
        if not chosen and not is_all:
            known = f"there are {', '.join(row.name for row in rows)}" if rows else "nothing ever failed here"
            raise AdwError(f"there is no breaker {name}: {known}")
        for row in chosen:
            app.breakers.get(row.name).reset()
        closed = [row.name for row in chosen if row.state != "closed"]
        due = app.service_waits.wake() if closed else ()
    data: JsonObject = {"reset": [row.name for row in chosen], "closed": list(closed), "due": list(due)}
    waiting = f"due now: {', '.join(due)}" if due else "no workflow was waiting for that"
    text = f"closed {', '.join(closed)}; {waiting}" if closed else "nothing was open; failures are counted from 0 again"

    output.emit(data, text, as_json=as_json)


def _breakers(app: Home) -> list[BreakerRow]:
    """Return the current state of the breakers, without creating or writing to a database."""
    if not app.has_database():
        return []
    from adws.adw_modules.circuit_breaker import seen

    now = app.clock.now()

    return [seen(row, now) for row in app.breakers.stored()]


# --- adw admin locks -------------------------------------------------------------------------------------------------


@click.group(invoke_without_command=True)
@output.json_option
@click.pass_context
def locks(context: click.Context, *, as_json: bool) -> None:
    """List issue locks; release one."""
    if context.invoked_subcommand is not None:
        return
    with main.open_home() as app:
        now = app.clock.now()
        rows = [_lock_data(app, lock, now) for lock in (app.locks.all() if app.has_database() else ())]
    cells = [
        (
            f"{row['repository']}#{row['issue_number']}",
            str(row["adw_id"]),
            str(row["state"]),
            output.moment(str(row["acquired_at"]), now),
            _liveness(row),
        )
        for row in rows
    ]
    table = output.table(("ISSUE", "WORKFLOW", "STATE", "SINCE", "OWNER"), cells)

    output.emit({"locks": rows}, table if rows else "no issue is locked", as_json=as_json)


@locks.command()
@click.argument("issue", metavar="ISSUE")
@click.option("--repository", metavar="OWNER/NAME", default="", help="The issue's repository, when it is not this one.")
@click.option("--force", is_flag=True, help="Also when a live owner works under it, or its document cannot be read.")
@output.json_option
def release(*, issue: str, repository: str, force: bool, as_json: bool) -> None:
    """Release the lock of an issue. Its workflow is not stopped, and takes the lock again if it continues first."""
    number = check_issue_number(issue)
    with main.open_home() as app:
        known = app.locks.all() if app.has_database() else ()
        lock = app.locks.holder(number, repository) if known else None
        if lock is None:
            elsewhere = [one.repository or "this home" for one in known if one.issue_number == number]
            there = f"there is one in {', '.join(elsewhere)}: see --repository"
            of = f" of {repository}" if repository else ""
            raise AdwError(
                f"no workflow has issue {number}{of}; {there if elsewhere else 'adw admin locks shows the locks'}"
            )
        notes = cli_common.notes_before_a_write(app, lock.adw_id)
        has_event = _release(app, lock, force=force)
    data: JsonObject = {**_lock_facts(lock), "released": True, "event": has_event}
    output.emit(data, f"released {_name(lock)}, which belonged to workflow {lock.adw_id}", as_json=as_json)
    for note in notes:
        output.say(f"adw: {note}")


def _name(lock: IssueLock) -> str:
    """Return the issue of a lock as text."""
    return f"issue {lock.issue_number}" + (f" of {lock.repository}" if lock.repository else "")


def _lock_facts(lock: IssueLock) -> JsonObject:
    """Return the fields that identify a lock."""
    return {"repository": lock.repository, "issue_number": lock.issue_number, "adw_id": lock.adw_id}


def _lock_data(app: Home, lock: IssueLock, now: datetime) -> JsonObject:
    """Return a lock with the state of its workflow and the liveness of its owner."""
    lease = app.leases.read(lock.adw_id)
    try:
        state = app.store.load(lock.adw_id).document.current_state
    except StateNotFound:
        state = "gone"
    except StateError:
        state = "unreadable"
    try:
        age = round((now - timestamps.parse(lock.acquired_at)).total_seconds(), 1)
    except ValueError:
        age = None  # not written by adw

    verdict = app.processes.verdict(lease.owner if lease else None)

    return {**views.lock(lock, lease, verdict), "age_seconds": age, "state": state}


def _liveness(row: JsonObject) -> str:
    left = row["lease_seconds_left"]
    if not isinstance(left, float | int):
        return "nobody works on it"
    ends = f"{left:.0f} s left" if left > 0 else "over"

    return f"{row['owner']}, {row['liveness']}, lease {ends}"


def _release(app: Home, lock: IssueLock, *, force: bool) -> bool:
    """Release *lock*, and return whether an event could be recorded in its workflow."""
    row = app.leases.read(lock.adw_id)
    owner = row.owner if row is not None else None
    verdict = app.processes.verdict(owner)
    is_live = row is not None and row.seconds_left > 0.0 and verdict is not Verdict.DEAD
    if is_live and not force:
        who = f"{owner.describe()} ({verdict.value})" if owner else "an owner whose record cannot be read"
        raise OwnershipError(
            f"{_name(lock)} belongs to workflow {lock.adw_id}, which {who} is working on: "
            "ask it to stop first, or add --force"
        )
    if is_live or not _is_readable(app, lock.adw_id, force=force):
        _let_go(app, lock)
        return False
    released = Event(event_type="lock_released", data={"holder": lock.adw_id, **_lock_facts(lock)})
    with app.ownership.own(lock.adw_id) as owned:
        _let_go(app, lock)
        owned.save(owned.document, events=(released,))

    return True


def _is_readable(app: Home, adw_id: str, *, force: bool) -> bool:
    """Return whether there is a document to record an event in; raise why it is unreadable unless *force*."""
    if not app.store.exists(adw_id):
        return False
    try:
        app.store.load(adw_id)
    except StateError:
        if not force:
            raise
        return False

    return True


def _let_go(app: Home, lock: IssueLock) -> None:
    if not app.locks.release(lock.issue_number, lock.adw_id, lock.repository):
        raise AdwError(f"{_name(lock)} went to another workflow meanwhile: look again with adw admin locks")
