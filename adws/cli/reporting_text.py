"""How `adw report`, `adw stuck` and `adw attempts` look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from adws.adw_modules import report_rules
from adws.adw_modules.interfaces_reports import CostSum, DayOutcomes, PhaseAttempts, StuckNow
from adws.adw_modules.json_value import JsonValue
from adws.adw_modules.plain_document import number_in, objects, text_in
from adws.adw_modules.report_rules import Report, short
from adws.adw_modules.time_words import span
from adws.cli import output

#: Attempts that have a column of their own; more are counted together.
_COLUMNS = 5
#: Days that are listed, the last ones.
_MOST_DAYS = 14
#: Characters of a message.
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
                ("success", report_rules.rate_text(found.ended)),
                ("spent", _spent(found.spent)),
                ("now", states or "no workflows"),
            ]
        ),
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


def _spent(total: CostSum) -> str:
    notes = [
        f"{total.unknown:,} of unknown cost" if total.unknown else "",
        f"{total.subscription:,} on a subscription" if total.subscription else "",
        f"{total.estimated:,} estimated" if total.estimated else "",
    ]
    said = ", ".join(note for note in notes if note)

    return f"{total.cost_usd:.2f} USD in {total.attempts:,} attempts{f' ({said})' if said else ''}"


def _outcome_lines(days: Sequence[DayOutcomes]) -> list[str]:
    if not days:
        return ["nothing ended"]
    rows = [
        (
            one.day,
            *(str(getattr(one, name)) for name in ("completed", "failed", "abandoned", "rolled_back")),
            _rate(one),
        )
        for one in (*days[-_MOST_DAYS:], report_rules.together(days))
    ]
    more = [f"{len(days) - _MOST_DAYS} earlier days are in the total only"] if len(days) > _MOST_DAYS else []

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
        (one.adw_id, one.workflow, one.outcome or "goes on", f"{one.cost_usd:.4f}", str(one.attempts), one.last_day)
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
        return ["nobody looked; adw gc does"]
    problems = list(found.problems)
    if not found.orphans:
        return ["nothing", *problems]
    rows = [(one.kind, one.name, one.adw_id or "-", one.why) for one in found.orphans]

    return [*output.table(("KIND", "WHAT", "ID", "WHY"), rows), "adw gc --execute removes them", *problems]


# --- what is stuck ---------------------------------------------------------------------------------------------


def stuck_lines(found: Sequence[StuckNow], now: datetime) -> list[str]:
    """Return what is stuck: one line, and what to type below it."""
    if not found:
        return ["nothing is stuck"]

    return [line for one in found for line in _stuck(one, now)]


def _stuck(one: StuckNow, now: datetime) -> list[str]:
    subject = one.subject
    title = f" ({output.shorten(subject.title, 50)})" if subject.title else ""

    return [
        f"{subject.adw_id}  {subject.state}{title}, since {output.moment(one.since, now)}",
        f"  {one.why}",
        f"  type: {', or '.join(one.commands)}",
    ]


# --- attempts --------------------------------------------------------------------------------------------------


def attempt_lines(found: Sequence[PhaseAttempts]) -> list[str]:
    """Return how many attempts each phase needed until it succeeded."""
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


def used_attempts(data: Mapping[str, JsonValue]) -> list[dict[str, output.Printable]]:
    """Return how many attempts the phases of a workflow have used, and which phases those are."""
    by_number: dict[int, list[str]] = {}
    for phase in objects(data.get("phases")):
        by_number.setdefault(number_in(phase, "attempts_used"), []).append(text_in(phase, "name"))

    return [
        {"attempts_used": number, "phase_count": len(names), "phase_ids": names}
        for number, names in sorted(by_number.items())
    ]


def used_lines(used: Sequence[Mapping[str, output.Printable]], adw_id: str) -> list[str]:
    """Return the same for people."""
    if not used:
        return [f"workflow {adw_id} has no phases"]
    rows = [
        (str(one["attempts_used"]), str(one["phase_count"]), ", ".join(map(str, one["phase_ids"])))
        for one in used
        if isinstance(one["phase_ids"], list)
    ]

    return output.table(("ATTEMPTS", "PHASES", "WHICH"), rows)
