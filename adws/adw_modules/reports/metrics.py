"""
The metrics: what is counted from events, and what is derived from that.

Pure. The caller passes stored events once, in batches of any size, and adds the result to earlier counts. A label that
anybody can make up, such as the name of a model, is bounded: values of an unusual form, and those after the first N,
all count as one.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

import adws
from adws.adw_modules import circuit_breaker, timestamps
from adws.adw_modules.agent import TokenUsage
from adws.adw_modules.circuit_breaker import BreakerRow, CircuitState
from adws.adw_modules.costs import NO_PROVIDER, money
from adws.adw_modules.db import listing
from adws.adw_modules.db.connection import Database, Session
from adws.adw_modules.error_tables import ErrorCategory
from adws.adw_modules.events import EVENT_TYPES
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.interfaces import Clock, Verdict
from adws.adw_modules.queue import workers
from adws.adw_modules.queue.model import RUN_KINDS
from adws.adw_modules.queue.workers import RunnerState
from adws.adw_modules.recovery.explain import worker_state
from adws.adw_modules.reports.model import Window
from adws.adw_modules.state_machine import WorkflowState

if TYPE_CHECKING:
    from adws.app import Home

# --- all metrics -------------------------------------------------------------------------------------------------
#
# The metrics page and its documentation are generated from this. Names follow the conventions of Prometheus: base
# units, `_total` for counters. A label has few values, known in advance or bounded: no ids, no free text.


COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

#: Values by the values of the labels, in the order of the metric's labels.
Values: TypeAlias = Mapping[tuple[str, ...], float]
#: Metric -> its values. A histogram has two: `bucket_of` (the bound is the last label) and `sum_of`.
Readings: TypeAlias = Mapping[str, Values]

#: Upper bounds of the buckets of durations, in seconds: from a fast linter to an agent that works for hours.
SECONDS = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    kind: str  #: counter | gauge | histogram
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()  #: of a histogram: upper bounds, without infinity


def bucket_of(name: str) -> str:
    """Return the name under which the buckets of a histogram are counted, not cumulated."""
    return f"{name}_bucket"


def sum_of(name: str) -> str:
    """Return the name under which the observed values of a histogram are added up."""
    return f"{name}_sum"


#: In the order of the page.
METRICS: tuple[Metric, ...] = (
    Metric("adw_info", GAUGE, "1, with the version of adw that answers.", ("version",)),
    Metric("adw_workflows", GAUGE, "Workflows by the state they are in.", ("state",)),
    Metric(
        "adw_transitions_total",
        COUNTER,
        "Moves of workflows from one state to another, by the state they came to.",
        ("state",),
    ),
    Metric("adw_attempts_total", COUNTER, "Attempts at phases that ended, by how.", ("phase", "outcome")),
    Metric(
        "adw_attempt_duration_seconds",
        HISTOGRAM,
        "How long attempts took, without the time they waited for others.",
        ("phase", "outcome"),
        SECONDS,
    ),
    Metric(
        "adw_phase_duration_seconds",
        HISTOGRAM,
        "How long phases took from the start of their first attempt to their end, waits included; a rework counts "
        "anew.",
        ("phase", "outcome"),
        SECONDS,
    ),
    Metric(
        "adw_retries_total",
        COUNTER,
        "Failures that are retried, by the category of the error, of phases and of calls of steps.",
        ("of", "category"),
    ),
    Metric(
        "adw_breaker_state",
        GAUGE,
        "1 for the state that the circuit breaker of an external service is in, 0 for the others.",
        ("party", "state"),
    ),
    Metric("adw_breaker_failures", GAUGE, "Failures of an external service in a row.", ("party",)),
    Metric(
        "adw_queue_runs",
        GAUGE,
        "Unfinished and dead runs, by kind and state.",
        ("kind", "state"),
    ),
    Metric(
        "adw_queue_oldest_age_seconds",
        GAUGE,
        "How long the oldest run of a kind has been in a state; of one that waits since it could be claimed.",
        ("kind", "state"),
    ),
    Metric(
        "adw_lease_takeovers_total",
        COUNTER,
        "Workflows taken over from an owner that had not given them back, by what was known about its process.",
        ("verdict",),
    ),
    Metric(
        "adw_runs_recovered_total",
        COUNTER,
        "What recovery did about what workers left, by what was known about the worker, the mode and the action.",
        ("verdict", "mode", "action"),
    ),
    Metric(
        "adw_cost_usd_total",
        COUNTER,
        "US dollars spent, as far as anybody knows; what is paid by the month costs nothing.",
        ("provider", "model"),
    ),
    Metric("adw_tokens_total", COUNTER, "Tokens that agents used.", ("provider", "model", "type")),
    Metric(
        "adw_quota_used",
        GAUGE,
        "How much of a limit is used, in the unit of the limit; for disk and memory what is free.",
        ("quota", "unit"),
    ),
    Metric(
        "adw_quota_limit",
        GAUGE,
        "The limit: the most that may be used; for disk and memory the least that must be free.",
        ("quota", "unit"),
    ),
    Metric("adw_quota_exceeded", GAUGE, "1 when there is no room: nothing new is begun.", ("quota",)),
    Metric(
        "adw_deliveries_total",
        COUNTER,
        "Deliveries of webhooks and polls that were stored, by what was made of them; one that came again is repeated.",
        ("verdict",),
    ),
    Metric(
        "adw_webhook_refused_total",
        COUNTER,
        "Webhook deliveries that this server refused since it started, by why.",
        ("reason",),
    ),
    Metric("adw_runners", GAUGE, "Workers by what is known about them.", ("state",)),
    Metric(
        "adw_runner_places",
        GAUGE,
        "Places of workers that are online: for how many runs there is one, and how many are taken.",
        ("use",),
    ),
    Metric("adw_executions_running", GAUGE, "Steps whose calls are being made."),
    Metric(
        "adw_iterations_open",
        GAUGE,
        "Iterations of those steps that are not over, by where they stand.",
        ("state",),
    ),
    Metric("adw_executions_total", COUNTER, "Steps with calls that ended, by how.", ("outcome",)),
    Metric("adw_iterations_total", COUNTER, "Iterations that ended, by how.", ("outcome",)),
    Metric("adw_calls_total", COUNTER, "Calls of steps that ended, by how.", ("outcome",)),
    Metric("adw_events_total", COUNTER, "Events that were stored, by type.", ("type",)),
)

BY_NAME: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in METRICS})

#: The label value for unknown values, and for those beyond the limit.
OTHER = "other"

#: label -> its values, for the documentation.
LABELS: Mapping[str, str] = MappingProxyType(
    {
        "action": "what recovery did, as `adw admin recover` names it",
        "category": "category of an error, as `adw status` names it",
        "kind": "kind of run: start, resume, retry, rollback, iteration, cron, delivery",
        "mode": "how far recovery goes: none, stale, all",
        "model": "model as the agent names it",
        "of": "phase, call",
        "outcome": "of an attempt succeeded, failed, interrupted, suspended, parked; of a phase completed, failed; of "
        "others completed, failed, cancelled, suspended",
        "party": "external service, as `adw admin breakers` names it",
        "phase": "name of a phase",
        "provider": "who is paid, unnamed when nobody said it",
        "quota": "limit, as `adw quota` names it",
        "reason": "code of the answer: bad_signature, bad_delivery, too_large, too_many_requests and the like",
        "state": "where something stands: a state of the state machine; a state of a run, of which pending is waiting "
        "(it can be claimed now) or delayed; a state of a breaker, of a worker or of an iteration",
        "type": "of events a name of [events](events.md); of tokens input, output, cache_read, cache_write",
        "unit": "bytes, usd, worktrees, workflows",
        "use": "all, busy",
        "verdict": "of an owner alive, dead, unknown; of a delivery run, command, ignored, repeated",
        "version": "version of adw",
    }
)

#: label -> how many values are distinguished; later ones count as `other`. Labels that are not listed have a fixed set
#: of values.
MOST_VALUES: Mapping[str, int] = MappingProxyType({"phase": 60, "provider": 20, "model": 60, "party": 60})


# --- the page that Prometheus reads ------------------------------------------------------------------------------
#
# Rendered for each request, with a collector in a registry of its own. This process keeps no values: counters are in
# the database, shared by all processes of the home.


_OPENMETRICS = "application/openmetrics-text"
_NOTHING: Values = {}


def render(readings: Readings, accept: str = "") -> tuple[bytes, str]:
    """Return the page and its media type: OpenMetrics if *accept* has it, else the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(readings))
    wanted = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    # Do not pass the header on: nothing but this is used of a stranger's input.
    encode, media_type = exposition.choose_encoder(_OPENMETRICS if _OPENMETRICS in wanted else "")

    return encode(registry), media_type


class _Collector(Collector):
    """Passes readings to a registry."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Family]:
        """Yield every metric, also without values, to show that it exists."""
        for metric in METRICS:
            if metric.kind != HISTOGRAM:
                kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
                family = kind(metric.name, metric.help, labels=metric.labels)
                for labels, value in sorted(self._readings.get(metric.name, _NOTHING).items()):
                    family.add_metric(labels, value)
                yield family
                continue
            # The count in each bucket; counts under bounds of an older version are added to the next higher bucket.
            buckets: dict[tuple[str, ...], list[float]] = {}
            for (*names, bound), value in self._readings.get(bucket_of(metric.name), _NOTHING).items():
                counts = buckets.setdefault(tuple(names), [0.0] * (len(metric.buckets) + 1))
                counts[bisect_left(metric.buckets, float(bound))] += value
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            sums = self._readings.get(sum_of(metric.name), _NOTHING)
            bounds = list(map(floatToGoString, (*metric.buckets, math.inf)))
            for labels, counts in sorted(buckets.items()):
                histogram.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), sums.get(labels, 0.0))
            yield histogram

    def describe(self) -> Iterator[Family]:
        """Yield nothing: this registry never has two collectors."""
        return iter(())


EVENTS, ATTEMPTS, RETRIES = "adw_events_total", "adw_attempts_total", "adw_retries_total"
TAKEOVERS, TRANSITIONS = "adw_lease_takeovers_total", "adw_transitions_total"
COSTS, TOKENS = "adw_cost_usd_total", "adw_tokens_total"
ATTEMPT_SECONDS, PHASE_SECONDS = "adw_attempt_duration_seconds", "adw_phase_duration_seconds"
DELIVERIES = "adw_deliveries_total"
#: The verdict on a repeated delivery.
REPEATED = "repeated"
DELIVERY_VERDICTS = ("run", "command", "ignored", REPEATED)

_OUTCOMES = {f"attempt_{name}": name for name in ("succeeded", "failed", "interrupted", "suspended", "parked")}
_ENDS = {"phase_completed": "completed", "phase_failed": "failed"}
_CATEGORIES = frozenset({*(category.value for category in ErrorCategory), "interrupted"})
_STATES = frozenset(state.value for state in WorkflowState)
_VERDICTS = frozenset(verdict.value for verdict in Verdict)
#: Allowed form of a name from outside.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,79}")

#: Metric -> the events that it counts, and its label value for each.
OF_EVENTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "adw_executions_total": {f"iterator_{name}": name for name in ("completed", "failed", "cancelled")},
        "adw_iterations_total": {f"iteration_{name}": name for name in ("completed", "failed", "cancelled")},
        "adw_calls_total": {f"action_{name}": name for name in ("completed", "failed", "suspended")},
    }
)


#: Events of which more than the type is counted.
DETAILED = frozenset(
    {*_OUTCOMES, *_ENDS, "retry_scheduled", "action_failed", "lease_taken_over", "state_changed", "cost_added"}
)


class Tally:
    """What events add to the counters."""

    def __init__(self, known: Readings) -> None:
        """Begin with the label values in *known*; its numbers are not used."""
        self.added: dict[str, dict[tuple[str, ...], float]] = {}
        self._names: dict[str, set[str]] = {label: set() for label in MOST_VALUES}
        for metric, values in known.items():
            for place, label in enumerate(labels_of(metric)):
                if label in self._names:
                    self._names[label].update({labels[place] for labels in values} - {OTHER})

    def add_types(self, counts: Iterable[tuple[str, int]]) -> None:
        """Count events by type only."""
        for event_type, count in counts:
            self._add(EVENTS, event_type if event_type in EVENT_TYPES else OTHER, amount=count)

    def add(self, event_type: str, node_name: str | None, duration: float | None, data_json: str) -> None:
        """Count an event of DETAILED."""
        try:
            data = _object(json.loads(data_json))
        except ValueError:  # the row was changed by hand: count what remains
            data = {}
        if event_type in _OUTCOMES:
            labels = (self._bounded("phase", node_name), _OUTCOMES[event_type])
            self._add(ATTEMPTS, *labels)
            self._observe(ATTEMPT_SECONDS, duration, *labels)
        elif event_type in _ENDS:
            self._observe(PHASE_SECONDS, duration, self._bounded("phase", node_name), _ENDS[event_type])
        elif event_type == "retry_scheduled":
            self._add(RETRIES, "phase", _one_of(_CATEGORIES, data.get("category")))
        elif event_type == "action_failed" and _object(data.get("retry")).get("again") is True:
            self._add(RETRIES, "call", _one_of(_CATEGORIES, _object(data.get("error")).get("category")))
        elif event_type == "lease_taken_over":
            self._add(TAKEOVERS, _one_of(_VERDICTS, data.get("verdict")))
        elif event_type == "state_changed":
            self._add(TRANSITIONS, _one_of(_STATES, data.get("to")))
        elif event_type == "cost_added":
            provider = self._bounded("provider", data.get("provider") or NO_PROVIDER)
            model = self._bounded("model", data.get("model") or NO_PROVIDER)
            if (cost := money(data.get("cost_usd"))) is not None:
                self._add(COSTS, provider, model, amount=cost)
            for kind, count in TokenUsage.from_json(_object(data.get("tokens"))).to_json().items():
                if isinstance(count, int) and count:
                    self._add(TOKENS, provider, model, kind, amount=count)

    def _add(self, metric: str, *labels: str, amount: float = 1.0) -> None:
        values = self.added.setdefault(metric, {})
        values[labels] = values.get(labels, 0.0) + amount

    def _observe(self, metric: str, seconds: float | None, *labels: str) -> None:
        if seconds is None or not 0.0 <= seconds < math.inf:
            return
        self._add(bucket_of(metric), *labels, bound_of(metric, seconds))
        self._add(sum_of(metric), *labels, amount=seconds)

    def _bounded(self, label: str, value: object) -> str:
        """Return *value* as a label, or `other` if it is malformed or beyond the limit."""
        known = self._names[label]
        if not isinstance(value, str) or _NAME.fullmatch(value) is None:
            return OTHER
        if value not in known and len(known) >= MOST_VALUES[label]:
            return OTHER
        known.add(value)

        return value


def bound_of(metric: str, value: float) -> str:
    """Return, as a label, the upper bound of the bucket for *value*."""
    bounds = BY_NAME[metric].buckets
    place = bisect_left(bounds, value)

    return repr(bounds[place]) if place < len(bounds) else "+Inf"


def labels_of(metric: str) -> tuple[str, ...]:
    """Return the names of a counter's labels."""
    for histogram in (ATTEMPT_SECONDS, PHASE_SECONDS):
        if metric == bucket_of(histogram):
            return (*BY_NAME[histogram].labels, "le")
        if metric == sum_of(histogram):
            return BY_NAME[histogram].labels

    return BY_NAME[metric].labels if metric in BY_NAME else ()


def derived(events: Values) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the metrics derived from the number of *events* of each type."""
    return {
        metric: {(value,): events.get((event_type,), 0.0) for event_type, value in types.items()}
        for metric, types in OF_EVENTS.items()
    }


def _one_of(allowed: frozenset[str], value: object) -> str:
    return value if isinstance(value, str) and value in allowed else OTHER


def _object(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


# --- reading everything that the page shows ----------------------------------------------------------------------
#
# Counters are updated first, so the page is current. Metrics with a fixed set of labels have all of them from the
# start, with the value 0: an alert on a series that does not exist yet would be silent.


#: States of unfinished runs.
_OPEN_RUNS = ("waiting", "delayed", "claimed", "running", "stopping")
#: Unit of a limit -> its name in a label, and the factor to that unit.
_UNITS = {
    "GB free": ("bytes", 2.0**30),
    "GB": ("bytes", 2.0**30),
    "USD": ("usd", 1.0),
    "worktrees": ("worktrees", 1.0),
    "workflows": ("workflows", 1.0),
}


class MetricsCollector:
    """Reads the metrics of a home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def readings(self) -> Readings:
        """Return every metric with its present values."""
        home, now = self._home, self._home.clock.now()
        home.tally.catch_up()
        counted = home.tally.counted()
        today = Window(since=timestamps.to_text(now)[:10])
        spent = sum(line.cost_usd for line in home.reports.costs(today, by="day"))
        quotas = home.quotas.gauges(spent_today=spent, sizes=None)
        limits = [(limit, *_UNITS[limit.unit]) for limit in quotas if limit.is_known]
        states, places = Counter[str](), Counter[str]()
        for runner in home.workers.all():
            state = worker_state(home, runner)
            states[state.value] += 1
            if state is RunnerState.ONLINE:
                places["all"] += runner.concurrency
                places["busy"] += runner.busy
        fixed = {metric: _filled(labels, counted.get(metric, {})) for metric, labels in _FIXED.items()}

        return {
            "adw_info": {(adws.__version__,): 1.0},
            **home.gauges.readings(),
            **_breakers(home.breakers.stored(), now),
            "adw_quota_used": {(limit.name, unit): limit.used * size for limit, unit, size in limits},
            "adw_quota_limit": {(limit.name, unit): limit.limit * size for limit, unit, size in limits},
            "adw_quota_exceeded": {(limit.name,): float(limit.is_exceeded) for limit, _unit, _size in limits},
            "adw_runners": _filled(_singles(state.value for state in RunnerState), _by_one(states)),
            "adw_runner_places": _filled(_singles(("all", "busy")), _by_one(places)),
            **counted,
            **fixed,
            **derived(fixed[EVENTS]),
        }


def _breakers(rows: Iterable[BreakerRow], now: datetime) -> Readings:
    """Return the states of the breakers; if there are too many, those that are not closed come first."""
    seen = sorted(
        (circuit_breaker.seen(row, now) for row in rows),
        key=lambda row: (row.state == CircuitState.CLOSED.value, row.name),
    )[: MOST_VALUES["party"]]

    return {
        "adw_breaker_state": {
            (row.name, state.value): float(row.state == state.value) for row in seen for state in CircuitState
        },
        "adw_breaker_failures": {(row.name,): float(row.failures) for row in seen},
    }


def _singles(values: Iterable[str]) -> Iterator[tuple[str, ...]]:
    return ((value,) for value in values)


def _by_one(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(name,): float(count) for name, count in counts.items()}


def _filled(labels: Iterable[tuple[str, ...]], values: Values) -> dict[tuple[str, ...], float]:
    """Return *values*, and 0 for each of *labels* that has none."""
    return {**dict.fromkeys(labels, 0.0), **values}


#: Counters whose label values are known in advance, and those values.
_FIXED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    EVENTS: tuple(_singles(EVENT_TYPES)),
    TRANSITIONS: tuple(_singles(state.value for state in WorkflowState)),
    TAKEOVERS: tuple(_singles(verdict.value for verdict in (Verdict.DEAD, Verdict.UNKNOWN))),
    DELIVERIES: tuple(_singles(DELIVERY_VERDICTS)),
}


# --- counters: stored in the table `counters`, so that one page shows those of all processes -----------------------


def add_in(session: Session, added: Readings) -> None:
    """Add to the counters of metrics, in a fixed order so that two writers never deadlock."""
    params = [
        {
            "name": metric,
            "labels": json.dumps(dict(zip(labels_of(metric), labels, strict=True)), sort_keys=True),
            "amount": amount,
        }
        for metric, values in sorted(added.items())
        for labels, amount in sorted(values.items())
    ]
    session.run_each(workers.COUNTER_ADD, params)


def read_in(session: Session) -> Readings:
    """Return the counters of all metrics, without rows of unknown metrics or with other labels."""
    result: dict[str, dict[tuple[str, ...], float]] = {}
    for name, text, value in session.all(workers.COUNTERS_ALL):
        names, labels = labels_of(name), json.loads(text)
        if names and isinstance(labels, dict) and labels.keys() == set(names):
            result.setdefault(name, {})[tuple(str(labels[label]) for label in names)] = float(value)

    return result


# --- counting stored events into counters, each once -------------------------------------------------------------
#
# Writing an event counts nothing, so no step waits for a counter, and writers do not wait for each other. Instead, a
# reader of the counters processes the events since the last read; the counts and the new position are one commit, and
# of two concurrent readers one finds that the other did it. Events rebuilt from documents are not counted again: a
# counter may miss an event, but never counts it twice.


#: The name of our position in the events.
CURSOR = "metrics"
#: Events processed at a time.
CHUNK = 10_000

_DETAILED = ", ".join(f"'{name}'" for name in sorted(DETAILED))
_IN_PIECE = "seq > :after AND seq <= :last"
PIECE_END = f"""
SELECT max(seq) FROM (SELECT seq FROM events WHERE {_IN_PIECE} ORDER BY seq LIMIT :limit) AS piece
"""
TYPES = f"SELECT event_type, count(*) FROM events WHERE {_IN_PIECE} GROUP BY event_type ORDER BY event_type"
FACTS = f"""
SELECT event_type, node_name, duration, data FROM events
WHERE {_IN_PIECE} AND event_type IN ({_DETAILED}) ORDER BY seq
"""


class EventTally:
    """Counts stored events."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def catch_up(self) -> int:
        """Count the events since the last call, and return how many; 0 while some are still being written."""
        last, counted = listing.last(self._database), 0
        while last is not None:
            result = self._count_piece(last)
            if result is None:
                break
            counted += result

        return counted

    def add(self, added: Readings) -> None:
        """Add to counters that are not derived from events."""
        self._database.transact(lambda session: add_in(session, added))

    def counted(self) -> Readings:
        """Return all counters of the metrics."""
        with self._database.read() as session:
            return read_in(session)

    def _count_piece(self, last: int) -> int | None:
        """Count a batch of events up to number *last* and return how many, or None if none are left."""
        with self._database.read() as session:
            place = listing.place_of(session, CURSOR)
            after = place.seq if place is not None else 0
            row = session.one(PIECE_END, {"after": after, "last": last, "limit": CHUNK})
            end = row[0] if row else None
            if end is None and place is not None:
                return None
            end = after if end is None else int(end)
            # Another event has the number of the last one: events were rebuilt, and those up to *last* are old.
            is_known = place is None or listing.event_at(session, place.seq) in {"", place.event_id}
            tally, counted = Tally(read_in(session)), 0
            if is_known:
                types = session.all(TYPES, {"after": after, "last": end})
                tally.add_types((row[0], row[1]) for row in types)
                counted = sum(row[1] for row in types)
                for row in session.all(FACTS, {"after": after, "last": end}):
                    tally.add(*row)

        def store(session: Session) -> None:
            if listing.take_place(self._database, session, CURSOR) == place:  # else another process did it meanwhile
                add_in(session, tally.added)
                listing.move(session, CURSOR, end if is_known else last)

        self._database.transact(store)

        return counted


def pass_over(database: Database, session: Session) -> None:
    """Store that all present events were counted, since rebuilt ones are not new."""
    listing.take_place(database, session, CURSOR)
    listing.move(session, CURSOR, listing.last_in(session))


# --- gauges: present numbers ---------------------------------------------------------------------------------------
#
# Each query uses a small index: workflows by state one without documents, runs and steps one of unfinished rows. So a
# read stays cheap, however much was done before.


#: On SQLite the index of unfinished runs is named: without statistics it scans the table.
_RUNS = {"sqlite": "runs INDEXED BY uq_runs_unfinished", "postgresql": "runs"}

WORKFLOWS = "SELECT state, count(*) FROM workflow_states GROUP BY state ORDER BY state"
#: A pending run counts from when it could be claimed, one with a worker from its last change of state.
QUEUE = """
SELECT kind, place, count(*), min(since) FROM (
  SELECT kind,
    CASE WHEN state <> 'pending' THEN state WHEN not_before <= :moment THEN 'waiting' ELSE 'delayed' END AS place,
    CASE WHEN state = 'pending' AND not_before > updated_at THEN not_before ELSE updated_at END AS since
  FROM {runs} WHERE finished_at IS NULL
) AS places GROUP BY kind, place ORDER BY kind, place
"""
#: Worded like the condition of the index, as SQLite requires to use it.
DEAD = """
SELECT kind, count(*) FROM runs WHERE state = 'dead' AND state NOT IN ('pending', 'completed')
GROUP BY kind ORDER BY kind
"""
EXECUTIONS = """
SELECT count(*), coalesce(sum(stored - next_index), 0) FROM executions WHERE taken_at IS NULL AND state = 'running'
"""
RUNNING = "SELECT count(*) FROM iterations WHERE state = 'running'"
RETRYING = "SELECT count(*) FROM iterations WHERE state = 'retry_wait'"


class Gauges:
    """The gauges, read from the database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._queue = QUEUE.format(runs=_RUNS[database.dialect])

    def readings(self) -> Readings:
        """Return the gauges, all at one moment."""
        now = self._clock.now()
        runs: dict[tuple[str, ...], float] = {
            (kind, state): 0.0 for kind in RUN_KINDS for state in (*_OPEN_RUNS, "dead")
        }
        ages = {labels: 0.0 for labels in runs if labels[1] not in ("delayed", "dead")}
        with self._database.read() as session:
            workflows: dict[str, int] = dict(session.all(WORKFLOWS))
            for kind, state, count, since in session.all(self._queue, {"moment": timestamps.to_text(now)}):
                runs[kind, state] = float(count)
                if state != "delayed":  # the clock of another machine may be ahead
                    ages[kind, state] = max(0.0, (now - timestamps.parse(since)).total_seconds())
            for kind, count in session.all(DEAD):
                runs[kind, "dead"] = float(count)
            executions, waiting = session.one(EXECUTIONS) or (0, 0)
            running, retrying = (session.one(sql) or (0,) for sql in (RUNNING, RETRYING))
        iterations = {"pending": max(0, int(waiting)), "running": running[0], "retry_wait": retrying[0]}

        return {
            "adw_workflows": _filled(_singles(state.value for state in WorkflowState), _by_one(workflows)),
            "adw_queue_runs": runs,
            "adw_queue_oldest_age_seconds": ages,
            "adw_executions_running": {(): float(executions)},
            "adw_iterations_open": _by_one(iterations),
        }
