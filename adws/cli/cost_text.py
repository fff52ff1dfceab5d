"""How `adw cost` looks: amounts with four digits, and a word where a figure is reckoned or not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adws.adw_modules.cost_entries import CostEntry, CostLine
from adws.adw_modules.json_value import JsonObject
from adws.cli import output

#: US dollars that two sums of the same amounts may differ by.
_SAME_USD = 0.00005
_COLUMNS = ("COST USD", "ATTEMPTS", "TOKENS", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What is shown."""

    by: str
    since: str  #: "": from the beginning
    entries: Sequence[CostEntry]  #: for a report by attempt
    lines: Sequence[CostLine]  #: for any other
    total: CostLine
    names: Mapping[str, str]  #: workflow -> name of its definition
    workflow: Account | None = None  #: when it is about one


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """What the document of one workflow says."""

    adw_id: str
    total_usd: float
    cap_usd: float  #: what it may cost


def data(report: Report) -> JsonObject:
    """Return the report for programs."""
    by_attempt = report.by == "attempt"
    lines = (
        [entry.to_json() for entry in report.entries] if by_attempt else [_line(report, one) for one in report.lines]
    )
    account = report.workflow
    told: JsonObject = {
        "by": report.by,
        "since": report.since or None,
        "lines": [*lines],
        "total": _total(report.total),
    }
    if account is not None:
        told |= {"adw_id": account.adw_id, "total_usd": account.total_usd, "cap_usd": account.cap_usd}

    return told


def _line(report: Report, line: CostLine) -> JsonObject:
    named: JsonObject = {"workflow": report.names.get(line.key, "")} if report.by == "workflow" else {}

    return {**line.to_json(), **named}


def _total(line: CostLine) -> JsonObject:
    return {name: value for name, value in line.to_json().items() if name != "key"}


def lines(report: Report) -> list[str]:
    """Return the report for people."""
    if not report.total.attempts:
        return ["no attempt has cost anything" + (f" since {report.since}" if report.since else ""), *_notes(report)]
    shown = _by_attempt(report) if report.by == "attempt" else _by_key(report)

    return [*shown, "", *_notes(report)]


def _by_key(report: Report) -> list[str]:
    if report.by != "workflow":
        cells = [(line.key, *_cells(line)) for line in (*report.lines, report.total)]
        return output.table((report.by.upper(), *_COLUMNS), cells)
    named = [(line.key, report.names.get(line.key, ""), *_cells(line)) for line in report.lines]

    return output.table(("ID", "WORKFLOW", *_COLUMNS), [*named, ("total", "", *_cells(report.total))])


def _cells(line: CostLine) -> tuple[str, str, str, str]:
    is_silent = line.unknown + line.subscription == line.attempts and not line.cost_usd
    amount = ("unknown" if line.unknown else "subscription") if is_silent else f"{line.cost_usd:.4f}"
    notes = [
        "estimated" if line.is_estimated else "",
        f"{line.unknown} of unknown cost" if line.unknown and not is_silent else "",
        f"{line.subscription} on a subscription" if line.subscription and not is_silent else "",
    ]

    return amount, str(line.attempts), f"{line.tokens.total:,}", ", ".join(note for note in notes if note)


def _by_attempt(report: Report) -> list[str]:
    cells = [
        (
            entry.adw_id,
            entry.phase,
            str(entry.attempt),
            entry.status,
            entry.ended_at[:19].replace("T", " "),
            entry.provider,
            entry.model,
            _amount(entry),
            f"{entry.tokens.total:,}",
            "estimated" if entry.is_estimated else "",
        )
        for entry in report.entries
    ]
    heads = ("ID", "PHASE", "ATTEMPT", "STATUS", "ENDED (UTC)", "PROVIDER", "MODEL", "COST USD", "TOKENS", "")

    return output.table(heads, [*cells, ("total", "", "", "", "", "", "", *_sum_cells(report.total))])


def _sum_cells(total: CostLine) -> tuple[str, str, str]:
    amount, _attempts, tokens, note = _cells(total)

    return amount, tokens, note


def _amount(entry: CostEntry) -> str:
    if entry.cost_usd is not None:
        return f"{entry.cost_usd:.4f}"

    return "unknown" if entry.is_unknown else "subscription"


def _notes(report: Report) -> list[str]:
    """Return what the figures leave out."""
    total, account = report.total, report.workflow
    notes = []
    if total.is_estimated:
        notes.append("estimated: reckoned from tokens and a price table, because the agent did not say its cost")
    if total.unknown:
        notes.append("unknown: the agent ended without saying its cost, or no price is known for its model ([prices])")
    if account is None:
        return notes
    elsewhere = account.total_usd - total.cost_usd
    if not report.since and abs(elsewhere) > _SAME_USD:
        notes.append(f"the workflow's own sum is {account.total_usd:.4f} USD: not all of it is in a recorded attempt")
    share = f", {account.total_usd / account.cap_usd:.0%} of it spent" if account.cap_usd else ""
    notes.append(
        f"it may cost {account.cap_usd:.4f} USD in all{share}; adw resume {account.adw_id} --budget USD sets that"
    )

    return notes
