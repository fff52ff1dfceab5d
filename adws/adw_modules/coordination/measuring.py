"""
Reading everything that the page of metrics shows.

What only grows was counted from events, or is counted first: then the page is as new as the look. How things stand is
asked of whoever knows. Metrics with a fixed set of labels have every one of them from the start, 0 where nothing is:
an alert on what is not there yet would be silent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from adws.adw_modules import breaker_rules, metric_rules, timestamps
from adws.adw_modules.breaker_rules import CircuitState
from adws.adw_modules.events import EVENT_TYPES
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_coordination import Runner, Runners
from adws.adw_modules.interfaces_durability import BreakerRow
from adws.adw_modules.interfaces_metrics import EventTally, Standing, Standings
from adws.adw_modules.interfaces_resources import QuotaStatus
from adws.adw_modules.metric_names import MOST_VALUES, Readings, Values
from adws.adw_modules.metric_rules import EVENTS
from adws.adw_modules.owner_record import OwnerRecord, Verdict
from adws.adw_modules.run_waiting import RunnerState, state_of
from adws.adw_modules.runs import RUN_KINDS
from adws.adw_modules.state_table import WorkflowState

#: Where a run can stand that is not over.
_OPEN_RUNS = ("waiting", "delayed", "claimed", "running", "stopping")
#: Unit of a limit -> its name in a label, and how much of that it is.
_UNITS = {
    "GB free": ("bytes", 2.0**30),
    "GB": ("bytes", 2.0**30),
    "USD": ("usd", 1.0),
    "worktrees": ("worktrees", 1.0),
    "workflows": ("workflows", 1.0),
}

_Found = dict[str, Mapping[tuple[str, ...], float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuringParts:
    """Who is asked."""

    tally: EventTally
    standings: Standings
    runners: Runners
    verdict: Callable[[OwnerRecord], Verdict]  #: what is known about the process of a worker
    breakers: Callable[[], Iterable[BreakerRow]]
    quotas: Callable[[str], Iterable[QuotaStatus]]  #: the day, such as 2026-01-31 -> the limits
    clock: Clock
    lease_seconds: float
    version: str


class Measuring:
    """Reads the metrics of a home."""

    def __init__(self, parts: MeasuringParts) -> None:
        self._parts = parts

    def readings(self) -> Readings:
        """Return every metric with its values as they are now."""
        parts, now = self._parts, self._parts.clock.now()
        parts.tally.bring_up()
        counted = parts.tally.counted()
        standing = parts.standings.look()

        return {
            "adw_info": {(parts.version,): 1.0},
            "adw_workflows": _filled(_singles(state.value for state in WorkflowState), _by_one(standing.workflows)),
            **_queue(standing, now),
            "adw_executions_running": {(): float(standing.executions)},
            "adw_iterations_open": _by_one(standing.iterations),
            **_breakers(parts.breakers(), now),
            **_quotas(parts.quotas(timestamps.to_text(now)[:10])),
            **self._runners(parts.runners.all()),
            **_counters(counted),
        }

    def _runners(self, runners: Iterable[Runner]) -> _Found:
        parts, states, places = self._parts, Counter[str](), Counter[str]()
        for runner in runners:
            state = state_of(runner, verdict=parts.verdict(runner.owner), lease_seconds=parts.lease_seconds)
            states[state.value] += 1
            if state is RunnerState.ONLINE:
                places["all"] += runner.concurrency
                places["busy"] += runner.busy

        return {
            "adw_runners": _filled(_singles(state.value for state in RunnerState), _by_one(states)),
            "adw_runner_places": _filled(_singles(("all", "busy")), _by_one(places)),
        }


def _counters(counted: Readings) -> _Found:
    found: _Found = dict(counted)
    for metric, labels in _FIXED.items():
        found[metric] = _filled(labels, counted.get(metric, {}))

    return {**found, **metric_rules.derived(found[EVENTS])}


def _queue(standing: Standing, now: datetime) -> _Found:
    runs: dict[tuple[str, ...], float] = {(kind, state): 0.0 for kind in RUN_KINDS for state in (*_OPEN_RUNS, "dead")}
    ages: dict[tuple[str, ...], float] = {
        (kind, state): 0.0 for kind in RUN_KINDS for state in _OPEN_RUNS if state != "delayed"
    }
    for line in standing.queue:
        runs[line.kind, line.state] = float(line.runs)
        if line.since:
            age = (now - timestamps.parse(line.since)).total_seconds()
            ages[line.kind, line.state] = max(0.0, age)

    return {"adw_queue_runs": runs, "adw_queue_oldest_age_seconds": ages}


def _breakers(rows: Iterable[BreakerRow], now: datetime) -> _Found:
    """Return how breakers stand; of very many those that are not closed come first."""
    seen = sorted(
        (breaker_rules.seen(row, now) for row in rows),
        key=lambda row: (row.state == CircuitState.CLOSED.value, row.name),
    )[: MOST_VALUES["party"]]

    return {
        "adw_breaker_state": {
            (row.name, state.value): float(row.state == state.value) for row in seen for state in CircuitState
        },
        "adw_breaker_failures": {(row.name,): float(row.failures) for row in seen},
    }


def _quotas(limits: Iterable[QuotaStatus]) -> _Found:
    known = [(limit, *_UNITS[limit.unit]) for limit in limits if limit.is_known]

    return {
        "adw_quota_used": {(limit.name, unit): limit.used * size for limit, unit, size in known},
        "adw_quota_limit": {(limit.name, unit): limit.limit * size for limit, unit, size in known},
        "adw_quota_exceeded": {(limit.name,): float(limit.is_exceeded) for limit, _unit, _size in known},
    }


def _singles(values: Iterable[str]) -> Iterator[tuple[str, ...]]:
    return ((value,) for value in values)


def _by_one(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(name,): float(count) for name, count in counts.items()}


def _filled(labels: Iterable[tuple[str, ...]], values: Values) -> dict[tuple[str, ...], float]:
    """Return *values*, and 0 for each of *labels* that has none."""
    return {**dict.fromkeys(labels, 0.0), **values}


#: Counters whose labels are known before, and those labels.
_FIXED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    EVENTS: tuple(_singles(EVENT_TYPES)),
    metric_rules.TRANSITIONS: tuple(_singles(state.value for state in WorkflowState)),
    metric_rules.TAKEOVERS: tuple(_singles(verdict.value for verdict in (Verdict.DEAD, Verdict.UNKNOWN))),
    metric_rules.DELIVERIES: tuple(_singles(metric_rules.DELIVERY_VERDICTS)),
}
