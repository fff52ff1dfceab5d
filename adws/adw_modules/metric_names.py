"""
Every metric there is: its name, what it counts, and its labels. The page and the documentation are made from this.

Names follow the conventions of Prometheus: base units, `_total` for what only grows. A label has few values, known
before or bounded: no ids, no free text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

#: Values by the values of the labels, in the order in which the metric names them.
Values: TypeAlias = Mapping[tuple[str, ...], float]
#: Metric -> its values. Of a histogram two parts: `bucket_of` (the bound is the last label) and `sum_of`.
Readings: TypeAlias = Mapping[str, Values]

#: Upper bounds of the buckets of durations, in seconds: from a fast linter to an agent that works for hours.
SECONDS = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric."""

    name: str
    kind: str  #: counter | gauge | histogram
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()  #: of a histogram: upper bounds, without infinity


def bucket_of(name: str) -> str:
    """Return under which name the buckets of a histogram are counted, each by itself."""
    return f"{name}_bucket"


def sum_of(name: str) -> str:
    """Return under which name what a histogram has seen is added up."""
    return f"{name}_sum"


#: In the order of the page.
METRICS: tuple[Metric, ...] = (
    Metric(name="adw_info", kind=GAUGE, help="1, with the version of adw that answers.", labels=("version",)),
    Metric(name="adw_workflows", kind=GAUGE, help="Workflows by the state they are in.", labels=("state",)),
    Metric(
        name="adw_transitions_total",
        kind=COUNTER,
        help="Moves of workflows from one state to another, by the state they came to.",
        labels=("state",),
    ),
    Metric(
        name="adw_attempts_total",
        kind=COUNTER,
        help="Attempts at phases that ended, by how.",
        labels=("phase", "outcome"),
    ),
    Metric(
        name="adw_attempt_duration_seconds",
        kind=HISTOGRAM,
        help="How long attempts took, without the time they waited for others.",
        labels=("phase", "outcome"),
        buckets=SECONDS,
    ),
    Metric(
        name="adw_phase_duration_seconds",
        kind=HISTOGRAM,
        help="How long phases took from the start of their first attempt to their end, waits included; a rework counts "
        "anew.",
        labels=("phase", "outcome"),
        buckets=SECONDS,
    ),
    Metric(
        name="adw_retries_total",
        kind=COUNTER,
        help="Failures that are tried again, by the category of the error, of phases and of calls of steps.",
        labels=("of", "category"),
    ),
    Metric(
        name="adw_breaker_state",
        kind=GAUGE,
        help="1 for the state that the breaker of an outside party is in, 0 for the others.",
        labels=("party", "state"),
    ),
    Metric(
        name="adw_breaker_failures",
        kind=GAUGE,
        help="Failures of an outside party in a row.",
        labels=("party",),
    ),
    Metric(
        name="adw_queue_runs",
        kind=GAUGE,
        help="Runs that are not over, and those that were given up, by kind and where they stand.",
        labels=("kind", "state"),
    ),
    Metric(
        name="adw_queue_oldest_age_seconds",
        kind=GAUGE,
        help="How long the oldest run of a kind has been in a state; of one that waits since it could be claimed.",
        labels=("kind", "state"),
    ),
    Metric(
        name="adw_lease_takeovers_total",
        kind=COUNTER,
        help="Workflows taken over from an owner that had not given them back, by what was known about its process.",
        labels=("verdict",),
    ),
    Metric(
        name="adw_runs_recovered_total",
        kind=COUNTER,
        help="What recovery did about what workers left, by what was known about the worker, the mode and the action.",
        labels=("verdict", "mode", "action"),
    ),
    Metric(
        name="adw_cost_usd_total",
        kind=COUNTER,
        help="US dollars spent, as far as anybody knows; what is paid by the month costs nothing.",
        labels=("provider", "model"),
    ),
    Metric(
        name="adw_tokens_total",
        kind=COUNTER,
        help="Tokens that agents used.",
        labels=("provider", "model", "type"),
    ),
    Metric(
        name="adw_quota_used",
        kind=GAUGE,
        help="How much of a limit is used, in the unit of the limit; for disk and memory what is free.",
        labels=("quota", "unit"),
    ),
    Metric(
        name="adw_quota_limit",
        kind=GAUGE,
        help="The limit: the most that may be used; for disk and memory the least that must be free.",
        labels=("quota", "unit"),
    ),
    Metric(
        name="adw_quota_exceeded",
        kind=GAUGE,
        help="1 when there is no room: nothing new is begun.",
        labels=("quota",),
    ),
    Metric(
        name="adw_deliveries_total",
        kind=COUNTER,
        help="Deliveries of webhooks and polls that were stored, by what was made of them; one that came again is "
        "repeated.",
        labels=("verdict",),
    ),
    Metric(
        name="adw_webhook_refused_total",
        kind=COUNTER,
        help="Webhook deliveries that this server refused since it started, by why.",
        labels=("reason",),
    ),
    Metric(name="adw_runners", kind=GAUGE, help="Workers by what is known about them.", labels=("state",)),
    Metric(
        name="adw_runner_places",
        kind=GAUGE,
        help="Places of workers that are online: for how many runs there is one, and how many are taken.",
        labels=("use",),
    ),
    Metric(
        name="adw_executions_running",
        kind=GAUGE,
        help="Steps whose calls are being made.",
    ),
    Metric(
        name="adw_iterations_open",
        kind=GAUGE,
        help="Iterations of those steps that are not over, by where they stand.",
        labels=("state",),
    ),
    Metric(
        name="adw_executions_total",
        kind=COUNTER,
        help="Steps with calls that ended, by how.",
        labels=("outcome",),
    ),
    Metric(name="adw_iterations_total", kind=COUNTER, help="Iterations that ended, by how.", labels=("outcome",)),
    Metric(name="adw_calls_total", kind=COUNTER, help="Calls of steps that ended, by how.", labels=("outcome",)),
    Metric(name="adw_events_total", kind=COUNTER, help="Events that were stored, by type.", labels=("type",)),
)

BY_NAME: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in METRICS})

#: What a label can say that is not known, or one too many.
OTHER = "other"

#: label -> its values, for the documentation.
LABELS: Mapping[str, str] = MappingProxyType(
    {
        "action": "what recovery did, as `adw recover` names it",
        "category": "category of an error, as `adw explain` names it",
        "kind": "kind of run: start, resume, retry, rollback, iteration, cron, delivery",
        "mode": "how far recovery goes: none, stale, all",
        "model": "model as the agent names it",
        "of": "phase, call",
        "outcome": "of an attempt succeeded, failed, interrupted, suspended, parked; of a phase completed, failed; of "
        "others completed, failed, cancelled, suspended",
        "party": "outside party, as `adw breakers` names it",
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

#: label -> how many values are told apart; those that come later are one, called other. The labels that are not here
#: have a fixed set of values.
MOST_VALUES: Mapping[str, int] = MappingProxyType({"phase": 60, "provider": 20, "model": 60, "party": 60})
