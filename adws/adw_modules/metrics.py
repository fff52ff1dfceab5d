"""
The page that Prometheus reads.

Made for each look from readings, by a collector in a registry of its own: nothing is kept in this process, for what is
counted is counted in the database by all who work in the home.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from adws.adw_modules.metric_names import (
    COUNTER,
    HISTOGRAM,
    METRICS,
    Metric,
    Readings,
    Values,
    bucket_of,
    sum_of,
)

_OPENMETRICS = "application/openmetrics-text"
_NOTHING: Values = {}


def render(readings: Readings, accept: str = "") -> tuple[bytes, str]:
    """Return the page and its media type: OpenMetrics for who asks for that, else the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(readings))
    wanted = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    # The header itself stays here: of what a stranger sends nothing but this is looked at.
    encode, media_type = exposition.choose_encoder(_OPENMETRICS if _OPENMETRICS in wanted else "")

    return encode(registry), media_type


class _Collector(Collector):
    """Gives readings to a registry."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Family]:
        """Yield every metric, also one without a value: that it exists can be seen then."""
        for metric in METRICS:
            if metric.kind == HISTOGRAM:
                yield self._histogram(metric)
            else:
                yield self._plain(metric)

    def describe(self) -> Iterator[Family]:
        """Yield nothing: two collectors never share this registry."""
        return iter(())

    def _plain(self, metric: Metric) -> Family:
        kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=metric.labels)
        for labels, value in sorted(self._readings.get(metric.name, _NOTHING).items()):
            family.add_metric(labels, value)

        return family

    def _histogram(self, metric: Metric) -> Family:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        sums = self._readings.get(sum_of(metric.name), _NOTHING)
        bounds = (*metric.buckets, math.inf)
        for labels, counts in sorted(_by_labels(metric, self._readings).items()):
            named = zip(map(floatToGoString, bounds), accumulate(counts), strict=True)
            family.add_metric(labels, list(named), sums.get(labels, 0.0))

        return family


def _by_labels(metric: Metric, readings: Readings) -> dict[tuple[str, ...], list[float]]:
    """Return how many came into each bucket; what was counted under bounds of an older version goes into the next."""
    found: dict[tuple[str, ...], list[float]] = {}
    for (*labels, bound), value in readings.get(bucket_of(metric.name), _NOTHING).items():
        counts = found.setdefault(tuple(labels), [0.0] * (len(metric.buckets) + 1))
        counts[bisect_left(metric.buckets, float(bound))] += value

    return found
