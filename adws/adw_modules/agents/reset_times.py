"""
When a used-up quota is open again, where an agent says it as people do: "resets 3:45pm", "try again at Aug 9th, 2026".

Agents write such times in the zone of the machine, or name UTC. Who knows what time it is there passes it in.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from adws.adw_modules.failed_run import FailedRun

_CLOCK = r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))? ?(?P<half>[ap])\.?m\b\.?"
_DAY = r"(?P<day>mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6},? "
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})[a-z]{{0,6}}"
_DATE = rf"{_MONTH} (?P<date>\d{{1,2}})(?:st|nd|rd|th)?(?:, (?P<year>\d{{4}}))?(?:,| at)? "
_RESET = re.compile(
    rf"\b(?:resets?|try again) (?:at |on )?(?:{_DAY}|{_DATE})?(?:at )?{_CLOCK}(?P<utc> ?\(?UTC\)?)?", re.IGNORECASE
)
_DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


def with_reset(failed: FailedRun, *, now: datetime) -> FailedRun:
    """Return *failed* with the moment that its text names, when it has none yet; *now* is in the machine's zone."""
    if failed.resets_at is not None:
        return failed
    moment = reset_in(failed.text, now=now)

    return failed if moment is None else replace(failed, resets_at=moment.timestamp())


def reset_in(text: str, *, now: datetime) -> datetime | None:
    """Return the moment after *now* at which *text* says that a quota is open again, None when it says none."""
    found = _RESET.search(text)
    if found is None or int(found["hour"]) > 12 or int(found["minute"] or 0) > 59:
        return None
    there = now.astimezone(UTC) if found["utc"] else now
    hour = int(found["hour"]) % 12 + (12 if found["half"].lower() == "p" else 0)
    today = there.replace(hour=hour, minute=int(found["minute"] or 0), second=0, microsecond=0)
    if found["month"]:
        return _on_date(found, today, now)
    days = (_DAYS.index(found["day"].lower()) - today.weekday()) % 7 if found["day"] else 0
    moment = today + timedelta(days=days)

    return moment if moment > now else moment + timedelta(days=7 if found["day"] else 1)


def _on_date(found: re.Match[str], today: datetime, now: datetime) -> datetime | None:
    month, year = _MONTHS.index(found["month"].lower()) + 1, int(found["year"] or today.year)
    # Without a year, a date that is over is one of the next year; with one, it says nothing.
    years = [year] if found["year"] else [year, year + 1]
    try:
        moments = [today.replace(year=one, month=month, day=int(found["date"])) for one in years]
    except ValueError:  # such as Feb 30
        return None

    return next((moment for moment in moments if moment > now), None)
