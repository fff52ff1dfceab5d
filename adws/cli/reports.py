"""`adw report`: results of work, costs, and what is stuck or left over. Read-only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import click

from adws.adw_modules import costs, identifiers, timestamps
from adws.adw_modules.costs import CostEntry, CostLine
from adws.adw_modules.errors import AdwError, UsageError
from adws.adw_modules.identifiers import JsonObject, counted, span
from adws.adw_modules.reports import reports as reports_module
from adws.adw_modules.reports.model import CostSum, DayOutcomes, PhaseAttempts, StuckNow, Window
from adws.adw_modules.reports.reports import Report, short
from adws.app import Home
from adws.cli import common as cli_common
from adws.cli import main, output

#: The last column counts this many attempts or more.
_COLUMNS = 5
#: The most days listed, the last ones.
_MOST_DAYS = 14
#: The most characters of a message.
_MESSAGE = 70


def report_lines(found: Report, now: datetime) -> list[str]:
    """Return a report for people."""
    since = f"since {found.since}" if found.since else "since the beginning"
    of_one = f", workflow {found.workflow}" if found.workflow else ""
    states = ", ".join(f"{state} {count}" for state, count in sorted(found.states.items()))

    return [
        *output.facts(
            [
                ("report", f"{since}{of_one}, made {output.moment(found.made_at, now)}"),
                ("success", reports_module.rate_text(found.ended)),
                ("spent", _spent(found.spent)),
                ("now", states or "no workflows"),
            ]
        ),
        *_section("Success metrics", _metric_lines(found)),
        *_section("How workflows ended", _outcome_lines(found.outcomes)),
        *_section("Attempts until success", attempt_lines(found.attempts)),
        *_section("Cost by phase", _cost_lines(found)),
        *_section("Costliest workflows", _workflow_lines(found)),
        *_section("Most frequent failures", _failure_lines(found, now)),
        *_section("Stuck now", stuck_lines(found.stuck, now)),
        *_section("Left over", _orphan_lines(found)),
    ]


def _section(title: str, lines: Iterable[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {line}" for line in lines)]


def _metric_lines(found: Report) -> list[str]:
    words = {True: "met", False: "MISSED", None: "not known"}
    rows = [(one.name, one.text, one.goal or "-", words[one.is_met] if one.goal else "") for one in found.metrics]

    return output.table(("METRIC", "NOW", "GOAL", ""), rows)


def _spent(total: CostSum) -> str:
    notes = [
        f"{total.unknown:,} of unknown cost" if total.unknown else "",
        f"{total.subscription:,} on a subscription" if total.subscription else "",
        f"{total.estimated:,} estimated" if total.estimated else "",
    ]
    said = ", ".join(note for note in notes if note)

    return f"{total.cost_usd:.2f} USD in {counted(total.attempts, 'attempt')}{f' ({said})' if said else ''}"


def _outcome_lines(days: Sequence[DayOutcomes]) -> list[str]:
    if not days:
        return ["nothing ended"]
    rows = [
        (
            one.day,
            *(str(getattr(one, name)) for name in ("completed", "failed", "abandoned", "rolled_back")),
            _rate(one),
        )
        for one in (*days[-_MOST_DAYS:], reports_module.together(days))
    ]
    more = (
        [f"{counted(len(days) - _MOST_DAYS, 'earlier day is', 'earlier days are')} in the total only"]
        if len(days) > _MOST_DAYS
        else []
    )

    return [*output.table(("DAY", "COMPLETED", "FAILED", "ABANDONED", "ROLLED BACK", "SUCCESS"), rows), *more]


def _rate(day: DayOutcomes) -> str:
    return "-" if day.success_rate is None else f"{day.success_rate:.0%}"


def _cost_lines(found: Report) -> list[str]:
    if not found.costs_by_phase:
        return ["no attempt has cost anything"]
    most = sorted(found.costs_by_phase, key=lambda one: (-one.cost_usd, one.key))
    rows = [(one.key, f"{one.cost_usd:.4f}", f"{one.attempts:,}", f"{one.tokens:,}") for one in (*most, found.spent)]

    return output.table(("PHASE", "COST USD", "ATTEMPTS", "TOKENS"), rows)


def _workflow_lines(found: Report) -> list[str]:
    if not found.costliest:
        return ["none has cost anything"]
    rows = [
        (one.adw_id, one.workflow, one.outcome or "running", f"{one.cost_usd:.4f}", str(one.attempts), one.last_day)
        for one in found.costliest
    ]

    return output.table(("ID", "WORKFLOW", "OUTCOME", "COST USD", "ATTEMPTS", "LAST"), rows)


def _failure_lines(found: Report, now: datetime) -> list[str]:
    if not found.failures:
        return ["no attempt failed"]
    rows = [
        (
            str(one.count),
            one.phase,
            one.category,
            short(one.message, _MESSAGE),
            one.adw_id,
            output.moment(one.last_at, now),
        )
        for one in found.failures
    ]

    return output.table(("COUNT", "PHASE", "CATEGORY", "MESSAGE", "LAST ID", "LAST"), rows)


def _orphan_lines(found: Report) -> list[str]:
    if found.orphans is None:
        return ["nobody looked; adw admin gc does"]
    problems = list(found.problems)
    if not found.orphans:
        return ["nothing", *problems]
    rows = [(one.kind, one.name, one.adw_id or "-", one.why) for one in found.orphans]

    return [*output.table(("KIND", "WHAT", "ID", "WHY"), rows), "adw admin gc --execute removes them", *problems]


# --- what is stuck ---------------------------------------------------------------------------------------------


def stuck_lines(found: Sequence[StuckNow], now: datetime) -> list[str]:
    """Return what is stuck: a line each, with the commands to type below."""
    if not found:
        return ["nothing is stuck"]

    return [line for one in found for line in _stuck(one, now)]


def _stuck(one: StuckNow, now: datetime) -> list[str]:
    subject = one.subject
    title = f" ({identifiers.shortened(subject.title, 50)})" if subject.title else ""

    return [
        f"{subject.adw_id}  {subject.state}{title}, since {output.moment(one.since, now)}",
        f"  {one.why}",
        f"  type: {', or '.join(one.commands)}",
    ]


# --- attempts --------------------------------------------------------------------------------------------------


def attempt_lines(found: Sequence[PhaseAttempts]) -> list[str]:
    """Return a table of how many attempts each phase needed to succeed."""
    if not found:
        return ["no attempt has ended"]
    counts = [*(str(number) for number in range(1, _COLUMNS)), f"{_COLUMNS}+"]
    rows = [
        (
            one.phase,
            *_needed(one.needed),
            "-" if one.mean_needed is None else f"{one.mean_needed:.2f}",
            str(one.by_status.get("failed", 0)),
            str(one.by_status.get("interrupted", 0)),
            span(one.seconds),
        )
        for one in found
    ]

    return output.table(("PHASE", *counts, "MEAN", "FAILED", "CUT OFF", "WORK"), rows)


def _needed(needed: Mapping[int, int]) -> tuple[str, ...]:
    few = [needed.get(number, 0) for number in range(1, _COLUMNS)]

    return (*map(str, few), str(sum(needed.values()) - sum(few)))


#: Two sums of the same amounts may differ by this many US dollars.
_SAME_USD = 0.00005
_COST_COLUMNS = ("COST USD", "ATTEMPTS", "TOKENS", "")
WAYS = ("phase", "attempt", "day", "provider", "workflow")
#: The file name for standard output.
STDOUT = "-"
_SINCE = "Only since that day (UTC): 2026-01-31, 7d, 4w; by default 30d, and everything for costs."

workflow_option = click.option(
    "--workflow", metavar="NAME", default="", help="Only workflows of that definition, such as sdlc."
)


@click.command()
@click.argument(
    "adw_id", metavar="[ID]", required=False, callback=cli_common.given_id, shell_complete=cli_common.offer_ids
)
@click.option("--since", metavar="WHEN", default="", help=_SINCE)
@click.option("--by", type=click.Choice(WAYS), help="Show only costs, one line for each of these.")
@workflow_option
@click.option(
    "--no-orphans", is_flag=True, help="Do not look for orphaned resources: that takes longest, and asks the forge."
)
@click.option(
    "--html",
    metavar="[FILE]",
    is_flag=False,
    flag_value=STDOUT,
    default=None,
    help="Write a page with pictures to FILE, or print it; it needs nothing else.",
)
@output.json_option
def report(
    *,
    adw_id: str | None,
    since: str,
    by: str | None,
    workflow: str,
    no_orphans: bool,
    html: str | None,
    as_json: bool,
) -> None:
    """
    Report success, attempts, costs and frequent failures of a time, and what is stuck or left over now.

    Days are whole days of UTC. What was deleted because of its age (adw admin gc) still counts. With ID or --by only
    costs are shown, in US dollars, of one workflow or of all; an amount that was estimated from tokens is marked.
    """
    if html is not None and as_json:
        raise UsageError("--html and --json exclude each other: leave one of them out")
    if (adw_id is not None or by is not None) and (workflow or no_orphans or html is not None):
        raise UsageError("ID and --by show only costs: leave --workflow, --no-orphans and --html out")
    with main.open_home() as app:
        if by is not None or adw_id is not None:
            _show_costs(app, adw_id, since, by, as_json=as_json)
            return
        window = Window(since=cli_common.parse_since(since or "30d", app.clock.now()), workflow=workflow)
        result = _report(app, window, with_orphans=not no_orphans)
        if html is None:
            output.emit(result.to_json(), report_lines(result, app.clock.now()), as_json=as_json)
            return
        from adws.web import report_page

        _deliver(report_page.page(result, redact=app.redactor.redact_text, settings=app.settings), html)


def _report(app: Home, window: Window, *, with_orphans: bool) -> Report:
    if app.has_database():
        return app.reporting.report(window, with_orphans=with_orphans)

    return Report(
        made_at=timestamps.to_text(app.clock.now()),
        since=window.first_day,
        workflow=window.workflow,
        orphans=() if with_orphans else None,
    )


def _deliver(page: str, place: str) -> None:
    """Print the page, or write it to the file *place*."""
    if place == STDOUT:
        output.emit_as_is(page)
        return
    try:
        Path(place).write_text(page, encoding="utf-8")
    except OSError as exc:
        raise AdwError(f"could not write {place}: {exc.strerror or exc}; name a file that can be written") from exc
    output.say(f"wrote {place}")


def _show_costs(app: Home, adw_id: str | None, since: str, by: str | None, *, as_json: bool) -> None:
    """Show the costs of one workflow or of all; an unknown amount is not counted as 0."""
    start = cli_common.parse_since(since, app.clock.now()) if since else ""
    by = by or ("workflow" if adw_id is None else "phase")
    account: JsonObject = {}
    if adw_id is None:
        entries = list(app.costs.entries(start)) if app.has_database() else []
    else:
        document = cli_common.load(app, adw_id).document
        entries = [one for one in costs.of_document(document) if one.ended_at >= start]
        cap = costs.cap_of(document, app.settings.quota_max_cost)
        account = {"adw_id": adw_id, "total_usd": document.cost.total_usd, "cap_usd": cap}
    sums, total = costs.grouped(entries, "phase" if by == "attempt" else by)
    lines = _in_order(sums, by, is_one=adw_id is not None)
    names = {entry.adw_id: entry.workflow for entry in entries} if by == "workflow" else {}
    entries.sort(key=lambda entry: (entry.ended_at, entry.adw_id))
    shown = [
        one.to_json() if isinstance(one, CostEntry) else _line_data(one, names)
        for one in (entries if by == "attempt" else lines)
    ]
    in_all = {name: value for name, value in total.to_json().items() if name != "key"}
    data: JsonObject = {"by": by, "since": start or None, "lines": [*shown], "total": in_all, **account}
    notes = _cost_notes(total, account, is_whole=not start)
    if not total.attempts:
        text = ["no attempt has cost anything" + (f" since {start}" if start else ""), *notes]
    elif by == "attempt":
        text = [*_attempt_table(entries, total), "", *notes]
    else:
        text = [*_cost_table(lines, total, by, names), "", *notes]

    output.emit(data, text, as_json=as_json)


def _in_order(lines: Sequence[CostLine], by: str, *, is_one: bool) -> Sequence[CostLine]:
    """Sort days by date, keep the order of one workflow's phases, and sort anything else by cost."""
    if by == "phase" and is_one:
        return lines
    if by == "day":
        return sorted(lines, key=lambda line: line.key)

    return sorted(lines, key=lambda line: (-line.cost_usd, line.key))


def _line_data(line: CostLine, names: Mapping[str, str]) -> JsonObject:
    return {**line.to_json(), "workflow": names[line.key]} if names else line.to_json()


def _cost_table(lines: Sequence[CostLine], total: CostLine, by: str, names: Mapping[str, str]) -> list[str]:
    if by != "workflow":
        rows = [(line.key, *_cost_cells(line)) for line in (*lines, total)]
        return output.table((by.upper(), *_COST_COLUMNS), rows)
    named = [(line.key, names[line.key], *_cost_cells(line)) for line in lines]

    return output.table(("ID", "WORKFLOW", *_COST_COLUMNS), [*named, ("total", "", *_cost_cells(total))])


def _cost_cells(line: CostLine) -> tuple[str, str, str, str]:
    is_silent = line.unknown + line.subscription == line.attempts and not line.cost_usd
    amount = ("unknown" if line.unknown else "subscription") if is_silent else f"{line.cost_usd:.4f}"
    notes = [
        "estimated" if line.is_estimated else "",
        f"{line.unknown} of unknown cost" if line.unknown and not is_silent else "",
        f"{line.subscription} on a subscription" if line.subscription and not is_silent else "",
    ]

    return amount, str(line.attempts), f"{line.tokens.total:,}", ", ".join(note for note in notes if note)


def _attempt_table(entries: Sequence[CostEntry], total: CostLine) -> list[str]:
    silent = {True: "unknown", False: "subscription"}
    rows = [
        (
            entry.adw_id,
            entry.phase,
            str(entry.attempt),
            entry.status,
            entry.ended_at[:19].replace("T", " "),
            entry.provider,
            entry.model,
            silent[entry.is_unknown] if entry.cost_usd is None else f"{entry.cost_usd:.4f}",
            f"{entry.tokens.total:,}",
            "estimated" if entry.is_estimated else "",
        )
        for entry in entries
    ]
    heads = ("ID", "PHASE", "ATTEMPT", "STATUS", "ENDED (UTC)", "PROVIDER", "MODEL", "COST USD", "TOKENS", "")
    amount, _attempts, tokens, note = _cost_cells(total)

    return output.table(heads, [*rows, ("total", "", "", "", "", "", "", amount, tokens, note)])


def _cost_notes(total: CostLine, account: JsonObject, *, is_whole: bool) -> list[str]:
    """Return what the figures leave out; *account* comes from the document of one workflow."""
    notes = []
    if total.is_estimated:
        notes.append("estimated: reckoned from tokens and a price table, because the agent did not say its cost")
    if total.unknown:
        notes.append("unknown: the agent ended without saying its cost, or no price is known for its model ([prices])")
    spent, cap = account.get("total_usd"), account.get("cap_usd")
    if not isinstance(spent, float) or not isinstance(cap, float | int):
        return notes
    if is_whole and abs(spent - total.cost_usd) > _SAME_USD:
        notes.append(f"the workflow's own sum is {spent:.4f} USD: not all of it is in a recorded attempt")
    share = f", {spent / cap:.0%} of it spent" if cap else ""
    notes.append(f"it may cost {cap:.4f} USD in all{share}; adw resume {account['adw_id']} --budget USD sets that")

    return notes
