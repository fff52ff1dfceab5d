"""
What is counted of events, and what follows from it.

Pure. Whoever looks through stored events hands them over once, in any pieces, and adds what comes back to what was
counted before. A label that anybody can make up, such as the name of a model, is bounded: of what has a strange form or
comes after so many others, all counts as one.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from adws.adw_modules.agent import TokenUsage
from adws.adw_modules.cost_entries import NO_PROVIDER, money
from adws.adw_modules.error_classes import ErrorCategory
from adws.adw_modules.events import EVENT_TYPES
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.metric_names import BY_NAME, MOST_VALUES, OTHER, Readings, Values, bucket_of, sum_of
from adws.adw_modules.owner_record import Verdict
from adws.adw_modules.state_table import WorkflowState

EVENTS, ATTEMPTS, RETRIES = "adw_events_total", "adw_attempts_total", "adw_retries_total"
TAKEOVERS, TRANSITIONS = "adw_lease_takeovers_total", "adw_transitions_total"
COSTS, TOKENS = "adw_cost_usd_total", "adw_tokens_total"
ATTEMPT_SECONDS, PHASE_SECONDS = "adw_attempt_duration_seconds", "adw_phase_duration_seconds"
DELIVERIES = "adw_deliveries_total"
#: The verdict on a delivery that came again.
REPEATED = "repeated"
DELIVERY_VERDICTS = ("run", "command", "ignored", REPEATED)

_OUTCOMES = {f"attempt_{name}": name for name in ("succeeded", "failed", "interrupted", "suspended", "parked")}
_ENDS = {"phase_completed": "completed", "phase_failed": "failed"}
_CATEGORIES = frozenset({*(category.value for category in ErrorCategory), "interrupted"})
_STATES = frozenset(state.value for state in WorkflowState)
_VERDICTS = frozenset(verdict.value for verdict in Verdict)
_TOKEN_TYPES = tuple(TokenUsage.__dataclass_fields__)
#: What a name that strangers give may look like.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,79}")

#: Metric -> the events that it counts, and the value of its label for each.
OF_EVENTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "adw_executions_total": {f"iterator_{name}": name for name in ("completed", "failed", "cancelled")},
        "adw_iterations_total": {f"iteration_{name}": name for name in ("completed", "failed", "cancelled")},
        "adw_calls_total": {f"action_{name}": name for name in ("completed", "failed", "suspended")},
    }
)


class EventFact(NamedTuple):
    """What is looked at of an event."""

    event_type: str
    node_name: str | None
    duration: float | None
    data: str  #: JSON


class Tally:
    """What events add to the counters there are."""

    def __init__(self, known: Readings) -> None:
        """Begin with the label values that *known* has; its numbers are not looked at."""
        self.added: dict[str, dict[tuple[str, ...], float]] = {}
        self._names = {label: _values_of(label, known) for label in MOST_VALUES}

    def add_types(self, counts: Iterable[tuple[str, int]]) -> None:
        """Count events by their type alone."""
        for event_type, count in counts:
            self._add(EVENTS, event_type if event_type in EVENT_TYPES else OTHER, amount=count)

    def add(self, fact: EventFact) -> None:
        """Count an event of DETAILED."""
        _RULES[fact.event_type](self, fact, _data_of(fact))

    # --- by event ------------------------------------------------------------------------------------------------

    def _attempt(self, fact: EventFact, _data: JsonObject) -> None:
        phase, outcome = self._bounded("phase", fact.node_name), _OUTCOMES[fact.event_type]
        self._add(ATTEMPTS, phase, outcome)
        self._observe(ATTEMPT_SECONDS, fact.duration, phase, outcome)

    def _phase(self, fact: EventFact, _data: JsonObject) -> None:
        self._observe(PHASE_SECONDS, fact.duration, self._bounded("phase", fact.node_name), _ENDS[fact.event_type])

    def _retry(self, _fact: EventFact, data: JsonObject) -> None:
        self._add(RETRIES, "phase", _one_of(_CATEGORIES, data.get("category")))

    def _call_failed(self, _fact: EventFact, data: JsonObject) -> None:
        if _object(data.get("retry")).get("again") is True:
            self._add(RETRIES, "call", _one_of(_CATEGORIES, _object(data.get("error")).get("category")))

    def _takeover(self, _fact: EventFact, data: JsonObject) -> None:
        self._add(TAKEOVERS, _one_of(_VERDICTS, data.get("verdict")))

    def _move(self, _fact: EventFact, data: JsonObject) -> None:
        self._add(TRANSITIONS, _one_of(_STATES, data.get("to")))

    def _cost(self, _fact: EventFact, data: JsonObject) -> None:
        provider = self._bounded("provider", data.get("provider") or NO_PROVIDER)
        model = self._bounded("model", data.get("model") or NO_PROVIDER)
        cost = money(data.get("cost_usd"))
        if cost is not None:
            self._add(COSTS, provider, model, amount=cost)
        used = TokenUsage.from_json(_object(data.get("tokens")))
        for kind in _TOKEN_TYPES:
            if count := getattr(used, kind):
                self._add(TOKENS, provider, model, kind, amount=count)

    # --- how -----------------------------------------------------------------------------------------------------

    def _add(self, metric: str, *labels: str, amount: float = 1.0) -> None:
        values = self.added.setdefault(metric, {})
        values[labels] = values.get(labels, 0.0) + amount

    def _observe(self, metric: str, seconds: float | None, *labels: str) -> None:
        if seconds is None or not 0.0 <= seconds < math.inf:
            return
        self._add(bucket_of(metric), *labels, bound_of(metric, seconds))
        self._add(sum_of(metric), *labels, amount=seconds)

    def _bounded(self, label: str, value: object) -> str:
        """Return *value* as a label: itself, or that it is one too many."""
        known = self._names[label]
        if not isinstance(value, str) or _NAME.fullmatch(value) is None:
            return OTHER
        if value not in known and len(known) >= MOST_VALUES[label]:
            return OTHER
        known.add(value)

        return value


_RULES: Mapping[str, Callable[[Tally, EventFact, JsonObject], None]] = MappingProxyType(
    {
        **dict.fromkeys(_OUTCOMES, Tally._attempt),  # noqa: SLF001 - of this module
        **dict.fromkeys(_ENDS, Tally._phase),  # noqa: SLF001 - of this module
        "retry_scheduled": Tally._retry,  # noqa: SLF001 - of this module
        "action_failed": Tally._call_failed,  # noqa: SLF001 - of this module
        "lease_taken_over": Tally._takeover,  # noqa: SLF001 - of this module
        "state_changed": Tally._move,  # noqa: SLF001 - of this module
        "cost_added": Tally._cost,  # noqa: SLF001 - of this module
    }
)
#: Events of which more than the type is looked at.
DETAILED = frozenset(_RULES)


def bound_of(metric: str, value: float) -> str:
    """Return the upper bound of the bucket that *value* falls into, as a label."""
    bounds = BY_NAME[metric].buckets
    place = bisect_left(bounds, value)

    return repr(bounds[place]) if place < len(bounds) else "+Inf"


def labels_of(metric: str) -> tuple[str, ...]:
    """Return the names of the labels that a counter is kept under."""
    for histogram in (ATTEMPT_SECONDS, PHASE_SECONDS):
        if metric == bucket_of(histogram):
            return (*BY_NAME[histogram].labels, "le")
        if metric == sum_of(histogram):
            return BY_NAME[histogram].labels

    return BY_NAME[metric].labels if metric in BY_NAME else ()


def derived(events: Values) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the metrics that follow from how many *events* of each type there were."""
    return {
        metric: {(value,): events.get((event_type,), 0.0) for event_type, value in types.items()}
        for metric, types in OF_EVENTS.items()
    }


def _values_of(label: str, known: Readings) -> set[str]:
    """Return every value that *label* has."""
    found: set[str] = set()
    for metric, values in known.items():
        names = labels_of(metric)
        if label in names:
            place = names.index(label)
            found.update(labels[place] for labels in values)

    return found - {OTHER}


def _one_of(allowed: frozenset[str], value: object) -> str:
    return value if isinstance(value, str) and value in allowed else OTHER


def _data_of(fact: EventFact) -> JsonObject:
    try:
        return _object(json.loads(fact.data))
    except ValueError:  # somebody changed the row by hand: what is left of it counts
        return {}


def _object(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}
