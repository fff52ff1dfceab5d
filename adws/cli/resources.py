"""
`adw ports`, `adw quota`, `adw breakers`, `adw locks`: what workflows share, and how much of it is used.

Listing changes nothing, makes no database and starts without SQLAlchemy.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click

from adws.adw_modules import timestamps
from adws.adw_modules.errors import AdwError, OwnershipError, StateError, StateNotFound, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.interfaces import IssueLock, LeaseRow, Verdict
from adws.adw_modules.ownership.issue_locks import check_issue_number
from adws.cli import common as cli_common
from adws.cli import main, output

if TYPE_CHECKING:
    from adws.adw_modules.circuit_breaker import BreakerRow
    from adws.adw_modules.resources.quotas import Quotas, QuotaStatus
    from adws.app import Home


# --- adw ports ---------------------------------------------------------------------------------------------------


@click.command()
@output.json_option
def ports(*, as_json: bool) -> None:
    """Show which workflow has which ports."""
    from adws.adw_modules.resources.ports import is_free

    with main.open_home() as app:
        here, now = app.processes.me("cli").host, app.clock.now()
        rows = app.ports.all() if app.has_database() else ()
        uses = [not is_free(row.port) if row.host == here else None for row in rows]
        data: list[output.Printable] = [
            {
                "port": row.port,
                "adw_id": row.adw_id,
                "purpose": row.purpose,
                "host": row.host,
                "reserved_at": row.reserved_at,
                "in_use": use,
            }
            for row, use in zip(rows, uses, strict=True)
        ]
        sockets = {True: "held or used", False: "free", None: "not seen from here"}
        cells = [
            (str(row.port), row.purpose, row.adw_id, row.host, sockets[use], output.moment(row.reserved_at, now))
            for row, use in zip(rows, uses, strict=True)
        ]
        lines = output.table(("PORT", "FOR", "WORKFLOW", "HOST", "SOCKET", "SINCE"), cells)

        output.emit({"ports": data}, lines if cells else ["no workflow has ports"], as_json=as_json)


# --- adw quota ---------------------------------------------------------------------------------------------------

#: What the command exits with when a limit is reached.
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
        quotas: Quotas
        if app.has_database():
            quotas = app.quotas
        else:  # nobody worked here yet, and looking makes no database
            quotas = importlib.import_module("adws.app").open_quotas(app.settings, None, clock=app.clock, host="")
        result = quotas.status(estimated_cost=quotas.estimate(name))
        is_exceeded = any(status.is_exceeded for status in result)
        rows: list[JsonObject] = [asdict(status) for status in result]

        output.emit(
            {"quotas": rows, "workflow": name, "is_exceeded": is_exceeded}, _lines_quota(result, name), as_json=as_json
        )

    return REACHED if is_exceeded else main.EXIT_OK


def _lines_quota(found: Sequence[QuotaStatus], workflow: str) -> list[str]:
    cells = [
        (
            status.name,
            status.shown(status.used - status.reserved - status.expected) if status.is_known else "unknown",
            status.shown(status.reserved) if status.reserved else "-",
            status.shown(status.expected) if status.expected else "-",
            "off" if _is_off(status) else status.shown(status.limit),
            status.unit.removeprefix("GB").strip() or "each",
            _word(status),
        )
        for status in found
    ]
    notes = [f"{status.name}: {status.detail}" for status in found if status.is_exceeded or not status.is_known]
    meaning = [
        "RESERVED is what workflows under way are expected to need besides, NEXT what one more would.",
        f"cost is that of a workflow {workflow}, from those that came to their end",
    ]

    return [*output.table(("QUOTA", "NOW", "RESERVED", "NEXT", "LIMIT", "UNIT", ""), cells), "", *meaning, *notes]


def _is_off(status: QuotaStatus) -> bool:
    """Say whether there is no such limit: only that of the size of a worktree can be off."""
    return status.unit == "GB" and not status.limit


def _word(status: QuotaStatus) -> str:
    if _is_off(status):
        return "off"
    if not status.is_known:
        return "not known"

    return "REACHED" if status.is_exceeded else "ok"


# --- adw breakers ------------------------------------------------------------------------------------------------

_WORDS = {"closed": "closed", "open": "OPEN", "half_open": "half open"}


@click.group(invoke_without_command=True)
@output.json_option
@click.pass_context
def breakers(context: click.Context, *, as_json: bool) -> None:
    """Show which outside parties are held off, and let work through again."""
    if context.invoked_subcommand is not None:
        return
    with main.open_home() as app:
        rows = _rows(app)

        output.emit({"breakers": [_data(row) for row in rows]}, _lines(rows, app.clock.now()), as_json=as_json)


@breakers.command()
@click.argument("name", metavar="NAME", required=False)
@click.option("--all", "is_all", is_flag=True, help="Every breaker.")
@output.json_option
def reset(*, name: str | None, is_all: bool, as_json: bool) -> None:
    """Close a breaker, so that its party is asked again at once."""
    if (name is None) is not is_all:
        raise UsageError("name one breaker, or all of them with --all: adw breakers shows them")
    with main.open_home() as app:
        rows = _rows(app)
        chosen = rows if is_all else [_named(rows, name or "")]
        for row in chosen:
            app.breakers.get(row.name).reset()
        closed = [row.name for row in chosen if row.state != "closed"]
        due = app.service_waits.wake() if closed else ()
        data: JsonObject = {"reset": [row.name for row in chosen], "closed": list(closed), "due": list(due)}
        waiting = f"due now: {', '.join(due)}" if due else "no workflow was waiting for that"
        text = f"closed {', '.join(closed)}; {waiting}"

        output.emit(data, text if closed else "nothing was open; failures are counted from 0 again", as_json=as_json)


def _rows(app: Home) -> list[BreakerRow]:
    """Return the breakers as they stand now, without making a database and without writing to it."""
    if not app.has_database():
        return []
    seen = importlib.import_module("adws.adw_modules.circuit_breaker").seen
    now = app.clock.now()

    return [seen(row, now) for row in app.breakers.stored()]


def _named(rows: Sequence[BreakerRow], name: str) -> BreakerRow:
    first = next((row for row in rows if row.name == name), None)
    if first is not None:
        return first
    known = ", ".join(row.name for row in rows)

    raise AdwError(f"there is no breaker {name}: {f'there are {known}' if known else 'nothing ever failed here'}")


def _data(row: BreakerRow) -> JsonObject:
    return {
        "name": row.name,
        "state": row.state,
        "failures": row.failures,
        "generation": row.generation,
        "opened_at": row.opened_at,
        "reopens_at": row.reopens_at,
        "reason": row.reason,
        "trials": len(row.permits),
        "settings": dict(row.settings),
        "changed_at": row.changed_at,
    }


def _lines(rows: Sequence[BreakerRow], now: datetime) -> list[str]:
    if not rows:
        return ["no outside party has failed"]
    cells = [
        (
            row.name,
            _WORDS.get(row.state, row.state),
            str(row.failures),
            output.moment(row.reopens_at, now) if row.reopens_at and row.state == "open" else "-",
            output.shorten(row.reason, 60) or "-",
        )
        for row in rows
    ]
    hint = ["", "adw breakers reset NAME closes one"] if any(row.state == "open" for row in rows) else []

    return [*output.table(("PARTY", "BREAKER", "FAILURES", "UNTIL", "WHY"), cells), *hint]


# --- adw locks ---------------------------------------------------------------------------------------------------


def name_of(lock: IssueLock) -> str:
    """Return the issue of a lock as text."""
    return f"issue {lock.issue_number}" + (f" of {lock.repository}" if lock.repository else "")


def owner_of(row: LeaseRow | None, verdict: Verdict) -> str:
    """Return the owner of a lease as text."""
    if row is None or row.owner is None:
        return "an owner whose record cannot be read"

    return f"{row.owner.describe()} ({verdict.value})"


def facts_of(lock: IssueLock) -> JsonObject:
    """Return what names a lock."""
    return {"repository": lock.repository, "issue_number": lock.issue_number, "adw_id": lock.adw_id}


def lock_data(lock: IssueLock, lease: LeaseRow | None, *, verdict: Verdict, state: str, now: datetime) -> JsonObject:
    """Return one lock with the state of its workflow and the liveness of its owner."""
    owner = lease.owner if lease is not None else None

    return {
        **facts_of(lock),
        "acquired_at": lock.acquired_at,
        "age_seconds": _age(lock.acquired_at, now),
        "state": state,
        "owner": owner.describe() if owner else None,
        "liveness": verdict.value if owner else "none",
        "lease_seconds_left": round(lease.seconds_left, 1) if lease is not None and owner else None,
    }


def lock_lines(rows: Sequence[JsonObject], now: datetime) -> list[str]:
    """Return the locks as a table."""
    if not rows:
        return ["no issue is locked"]
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

    return output.table(("ISSUE", "WORKFLOW", "STATE", "SINCE", "OWNER"), cells)


def _liveness(row: JsonObject) -> str:
    left = row["lease_seconds_left"]
    if not isinstance(left, float | int):
        return "nobody works on it"
    ends = f"{left:.0f} s left" if left > 0 else "over"

    return f"{row['owner']}, {row['liveness']}, lease {ends}"


def _age(moment: str, now: datetime) -> float | None:
    try:
        return round((now - timestamps.parse(moment)).total_seconds(), 1)
    except ValueError:
        return None  # not a moment that we wrote


@click.group(invoke_without_command=True)
@output.json_option
@click.pass_context
def locks(context: click.Context, *, as_json: bool) -> None:
    """Show which workflow has which issue, and release a lock."""
    if context.invoked_subcommand is not None:
        return
    with main.open_home() as app:
        rows = [_row(app, lock) for lock in _all(app)]

        output.emit({"locks": list(rows)}, lock_lines(rows, app.clock.now()), as_json=as_json)


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
        notes = cli_common.notes_before_a_write(app, lock.adw_id)
        has_event = _release(app, lock, force=force)
        data: JsonObject = {**facts_of(lock), "released": True, "event": has_event}
        text = f"released {name_of(lock)}, which belonged to workflow {lock.adw_id}"

        output.emit(data, text, as_json=as_json)
        for note in notes:
            output.say(f"adw: {note}")


def _all(app: Home) -> tuple[IssueLock, ...]:
    return app.locks.all() if app.has_database() else ()


def _row(app: Home, lock: IssueLock) -> JsonObject:
    lease = app.leases.read(lock.adw_id)
    try:
        state = app.store.load(lock.adw_id).document.current_state
    except StateNotFound:
        state = "gone"
    except StateError:
        state = "unreadable"
    verdict = app.processes.verdict(lease.owner if lease is not None else None)

    return lock_data(lock, lease, verdict=verdict, state=state, now=app.clock.now())


def _held(app: Home, number: int, repository: str) -> IssueLock:
    held = app.locks.holder(number, repository) if app.has_database() else None
    if held is not None:
        return held
    elsewhere = [lock.repository or "this home" for lock in _all(app) if lock.issue_number == number]
    hint = f"there is one in {', '.join(elsewhere)}: see --repository" if elsewhere else "adw locks shows the locks"

    raise AdwError(f"no workflow has issue {number}{f' of {repository}' if repository else ''}; {hint}")


def _release(app: Home, lock: IssueLock, *, force: bool) -> bool:
    """Release *lock* and say whether its workflow could be told so by an event."""
    row = app.leases.read(lock.adw_id)
    verdict = app.processes.verdict(row.owner if row is not None else None)
    is_live = row is not None and row.seconds_left > 0.0 and verdict is not Verdict.DEAD
    if is_live and not force:
        raise OwnershipError(
            f"{name_of(lock)} belongs to workflow {lock.adw_id}, which {owner_of(row, verdict)} "
            "is working on: ask it to stop first, or add --force"
        )
    if not is_live and _is_readable(app, lock.adw_id, force=force):
        _release_as_owner(app, lock)
        return True
    _let_go(app, lock)

    return False


def _is_readable(app: Home, adw_id: str, *, force: bool) -> bool:
    """Say whether there is a document to leave an event in; raise what is wrong with it unless *force*."""
    if not app.store.exists(adw_id):
        return False
    try:
        app.store.load(adw_id)
    except StateError:
        if not force:
            raise
        return False

    return True


def _release_as_owner(app: Home, lock: IssueLock) -> None:
    released = Event(event_type="lock_released", data={"holder": lock.adw_id, **facts_of(lock)})
    with app.ownership.own(lock.adw_id) as owned:
        _let_go(app, lock)
        owned.save(owned.document, events=(released,))


def _let_go(app: Home, lock: IssueLock) -> None:
    if not app.locks.release(lock.issue_number, lock.adw_id, lock.repository):
        raise AdwError(f"{name_of(lock)} went to another workflow meanwhile: look again with adw locks")
