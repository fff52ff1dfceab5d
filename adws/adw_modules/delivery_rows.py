"""
What every store of deliveries does alike: which run a delivery gets, what is kept of it, what is refused.

Pure, so that the store in memory and the one in a database cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

from adws.adw_modules.errors import DeliveryConflict, UsageError
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.runs import DELIVERY, DELIVERY_PRIORITY, NewRun, Run
from adws.adw_modules.trigger import DeliveryRow, NewDelivery

#: Bytes of a delivery that nothing is done about which are kept; of others all are.
IGNORED_BYTES = 65_536
VERDICTS = ("run", "command", "ignored")
#: How a delivery can end.
ENDS = ("done", "refused", "failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a delivery that is done again is to hold."""

    verdict: str
    reason: str
    request: JsonObject
    adw_id: str


def new_run(delivery: NewDelivery, *, run_id_of: str, adw_id: str) -> NewRun | None:
    """Return the run that *delivery* asks for, None when it asks for nothing; raise UsageError or InvalidAdwId."""
    if delivery.verdict not in VERDICTS:
        raise UsageError(f"{delivery.verdict!r} is no verdict; use one of {', '.join(VERDICTS)}")
    if delivery.verdict == "ignored":
        return None
    check_adw_id(adw_id)

    return _run(delivery.guid, run_id_of, asked_by=delivery.sender)


def again_run(guid: str, *, run_id_of: str, asked_by: str) -> NewRun:
    """Return the run of a delivery that is done again."""
    return _run(guid, run_id_of, asked_by=asked_by)


def _run(guid: str, run_id_of: str, *, asked_by: str) -> NewRun:
    return NewRun(
        adw_id=check_adw_id(run_id_of),
        kind=DELIVERY,
        priority=DELIVERY_PRIORITY,
        payload={"guid": guid},
        asked_by=asked_by,
    )


def refuse_taken_id(stored: Run, wanted: NewRun) -> None:
    """Raise UsageError when the queue gave the run of somebody else: the id was no fresh one."""
    if stored.payload.get("guid") != wanted.payload.get("guid"):
        raise UsageError(
            f"the id {wanted.adw_id} has an unfinished run already: give the run of a delivery a fresh one"
        )


def refuse_other_body(delivery: NewDelivery, guid: str, body_hash: str) -> None:
    """Raise DeliveryConflict when one guid comes with two bodies: one of them is not what it says."""
    if guid == delivery.guid and body_hash != delivery.body_hash:
        raise DeliveryConflict(guid)


def intent_of(delivery: NewDelivery) -> str:
    """Return what two deliveries of one wish have in common, "" for none."""
    intent = delivery.request.get("intent")

    return intent if isinstance(intent, str) else ""


def kept_body(delivery: NewDelivery) -> bytes | None:
    """Return the bytes to keep: none of a long delivery that nothing is done about."""
    if delivery.verdict == "ignored" and len(delivery.body) > IGNORED_BYTES:
        return None

    return delivery.body


def check_finish(status: str, adw_id: str) -> None:
    """Raise UsageError or InvalidAdwId when a delivery cannot end like this."""
    if status not in ENDS:
        raise UsageError(f"a delivery cannot end as {status!r}; it ends as one of {', '.join(ENDS)}")
    if adw_id:
        check_adw_id(adw_id)


def finished_id(row: DeliveryRow, status: str, adw_id: str) -> str:
    """Return the workflow that *row* names when it ends; the one it was to start, unless that was for nothing."""
    if not adw_id and row.verdict == "command" and status == "refused":
        return ""

    return adw_id or row.adw_id


def meant_id(row: DeliveryRow) -> str:
    """Return the workflow that *row* started or meant, "" while that is not known: a worker finds it."""
    return "" if row.verdict == "command" and row.status == "received" else row.adw_id


def check_again(row: DeliveryRow, request: JsonObject, instead: NewDelivery | None, adw_id: str) -> Wanted:
    """Return what the delivery *row* is to ask for when it is done again; raise UsageError when that is nothing."""
    verdict, reason, wanted = row.verdict, row.reason, request
    if instead is not None:
        verdict, reason, wanted = instead.verdict, instead.reason, instead.request
    if verdict == "ignored":
        raise UsageError(f"delivery {row.guid} asks for nothing: {reason}")

    # What was refused has started nothing, and its row names whoever was in the way.
    chosen = (adw_id or row.adw_id) if row.status == "refused" else (row.adw_id or adw_id)
    named = str(wanted.get("adw_id") or "")

    return Wanted(verdict=verdict, reason=reason, request=wanted, adw_id=check_adw_id(named or chosen))


def check_limit(limit: int) -> int:
    """Return *limit* when a page can have that many rows; raise UsageError."""
    if not 0 < limit < 2**31:
        raise UsageError(f"a page needs a limit of at least 1, not {limit}")

    return limit
