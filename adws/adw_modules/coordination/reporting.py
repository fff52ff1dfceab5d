"""
Making reports: what was done, what is stuck, what is left over.

Only looks. What is stuck is decided by the history of each phase; left-overs are those that `adw gc` finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules import stuck_rules, timestamps
from adws.adw_modules.interfaces_reports import StuckNow, Window
from adws.adw_modules.report_rules import Report
from adws.adw_modules.run_waiting import RunnerState, state_of
from adws.adw_modules.stuck_rules import StuckFacts, StuckTerms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adws.adw_modules.gc_rules import Orphan
    from adws.adw_modules.interfaces import Clock
    from adws.adw_modules.interfaces_coordination import Runners
    from adws.adw_modules.interfaces_reports import Reports
    from adws.adw_modules.owner_record import OwnerRecord, Verdict

USUAL_TERMS = StuckTerms()
#: Lines of each list in a report.
MOST_SHOWN = 10
#: Workflows that are looked at for being stuck, of each sort.
MOST_SUSPECTS = 500
#: A report counts all there are, up to this.
_ALL = 10_000_000


class Collector(Protocol):
    """What finds left-overs (`coordination.gc.GarbageCollector`, a part of it)."""

    problems: list[str]

    def find(self) -> Sequence[Orphan]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportingParts:
    """What reports are made with."""

    clock: Clock
    reports: Reports
    runners: Runners
    verdict: Callable[[OwnerRecord | None], Verdict]
    collector: Callable[[], Collector]  #: built late: it looks at the repository
    terms: StuckTerms = USUAL_TERMS


class Reporting:
    """Makes reports."""

    def __init__(self, parts: ReportingParts) -> None:
        self._parts = parts

    def stuck(self, *, limit: int = MOST_SUSPECTS) -> tuple[StuckNow, ...]:
        """Return what is stuck now; *limit* is how many workflows of each sort are looked at."""
        parts, reports = self._parts, self._parts.reports
        running = reports.running(limit=limit)
        phases = {stuck_rules.key_of(one.subject, one.phase) for one in running if one.phase}
        has_worker = self._has_worker()
        facts = StuckFacts(
            now=parts.clock.now(),
            running=running,
            waiting=() if has_worker else reports.queued(limit=limit),
            unattended=reports.unattended(limit=limit),
            histories=reports.histories(sorted(phases)) if phases else {},
            has_worker=has_worker,
        )

        return stuck_rules.find_stuck(facts, parts.terms)

    def report(self, window: Window, *, with_orphans: bool = True, limit: int = MOST_SHOWN) -> Report:
        """Return the whole report; looking for left-overs takes longest and may ask the forge."""
        reports = self._parts.reports
        collector = self._parts.collector() if with_orphans else None

        return Report(
            made_at=timestamps.to_text(self._parts.clock.now()),
            since=window.first_day,
            workflow=window.workflow,
            states=reports.states(at_most=_ALL),
            outcomes=reports.outcomes(window),
            attempts=reports.attempts(window),
            costs_by_phase=reports.costs(window, by="phase"),
            costs_by_day=reports.costs(window, by="day"),
            costliest=reports.costliest(window, limit=limit),
            failures=reports.failures(window, limit=limit),
            stuck=self.stuck(),
            orphans=None if collector is None else tuple(collector.find()),
            problems=() if collector is None else tuple(collector.problems),
        )

    def _has_worker(self) -> bool:
        """Say whether a worker is there that takes things up."""
        return any(
            state_of(runner, verdict=self._parts.verdict(runner.owner), lease_seconds=self._parts.terms.lease_seconds)
            is RunnerState.ONLINE
            for runner in self._parts.runners.all()
        )
