"""The page of metrics is what Prometheus reads, and its table keeps the conventions."""

from __future__ import annotations

import re

import prometheus_client
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from adws.adw_modules.reports import metrics
from adws.adw_modules.reports.metrics import BY_NAME, COUNTER, HISTOGRAM, METRICS, SECONDS, bucket_of, render, sum_of

DURATION = "adw_attempt_duration_seconds"
READINGS = {
    "adw_workflows": {("pending",): 3.0, ("failed",): 1.0},
    "adw_attempts_total": {("plan", "succeeded"): 7.0},
    "adw_executions_running": {(): 2.0},
    bucket_of(DURATION): {
        ("plan", "failed", "1.0"): 2.0,
        ("plan", "failed", "60.0"): 3.0,
        ("plan", "failed", "+Inf"): 1.0,
    },
    sum_of(DURATION): {("plan", "failed"): 99.5},
}


def samples(page: bytes, parse=text_string_to_metric_families):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(page.decode())
        for sample in family.samples
    }


def test_the_page_says_what_was_read():
    page, media_type = render(READINGS)
    result = samples(page)

    assert media_type.startswith("text/plain")
    assert result["adw_workflows", (("state", "pending"),)] == 3.0
    assert result["adw_workflows", (("state", "failed"),)] == 1.0
    assert result["adw_attempts_total", (("outcome", "succeeded"), ("phase", "plan"))] == 7.0
    assert result["adw_executions_running", ()] == 2.0


def test_who_asks_for_openmetrics_gets_the_same_in_that_format():
    page, media_type = render(READINGS, "application/openmetrics-text;version=1.0.0;q=0.5, text/plain;q=0.3")

    assert media_type.startswith("application/openmetrics-text")
    assert page.endswith(b"# EOF\n")
    assert samples(page, openmetrics.text_string_to_metric_families) == samples(render(READINGS)[0])


@pytest.mark.parametrize("accept", ["", "*/*", "text/html", "application/openmetrics-textual", ";;,,=", "\x00"])
def test_whoever_asks_for_anything_else_gets_the_text_format(accept):
    assert render(READINGS, accept)[1].startswith("text/plain")


def test_the_buckets_of_a_histogram_add_up():
    result = samples(render(READINGS)[0])
    labels = (("outcome", "failed"), ("phase", "plan"))
    by_bound = {float(dict(rest)["le"]): value for (name, rest), value in result.items() if name == bucket_of(DURATION)}

    assert list(by_bound) == sorted(by_bound)
    assert [by_bound[bound] for bound in (1.0, 30.0, 60.0, 14400.0, float("inf"))] == [2.0, 2.0, 5.0, 5.0, 6.0]
    assert result[f"{DURATION}_count", labels] == 6.0
    assert result[sum_of(DURATION), labels] == 99.5


def test_what_was_counted_under_older_bounds_stands_in_the_next_bucket():
    result = samples(
        render({bucket_of(DURATION): {("plan", "failed", "45.0"): 4.0, ("plan", "failed", "99999"): 1.0}})[0]
    )
    at = {dict(rest)["le"]: value for (name, rest), value in result.items() if name == bucket_of(DURATION)}

    assert (at["30.0"], at["60.0"], at["14400.0"], at["+Inf"]) == (0.0, 4.0, 4.0, 5.0)
    assert result[f"{DURATION}_sum", (("outcome", "failed"), ("phase", "plan"))] == 0.0


def test_a_label_with_anything_in_it_breaks_no_line():
    nasty = 'a"b\\c\nd\u2028<script>'

    assert samples(render({"adw_workflows": {(nasty,): 1.0}})[0]) == {("adw_workflows", (("state", nasty),)): 1.0}


def test_metrics_without_a_value_are_named():
    families = {family.name: family for family in text_string_to_metric_families(render({})[0].decode())}

    assert [re.sub("_total$", "", metric.name) for metric in METRICS] == list(families)
    for metric in METRICS:
        assert families[re.sub("_total$", "", metric.name)].documentation == metric.help
        assert families[re.sub("_total$", "", metric.name)].type == metric.kind


def test_nothing_is_put_into_the_registry_that_a_process_shares():
    render(READINGS)

    assert "adw_" not in prometheus_client.generate_latest().decode()


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_named_as_prometheus_names_them(metric):
    assert re.fullmatch("adw_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == COUNTER)
    assert (metric.buckets == SECONDS and metric.name.endswith("_seconds")) or metric.kind != HISTOGRAM
    assert metric.help.endswith(".")
    assert BY_NAME[metric.name] is metric
    assert set(metric.labels) <= metrics.LABELS.keys()


def test_every_label_and_every_bound_of_its_values_is_used():
    used = {label for metric in METRICS for label in metric.labels}

    assert used == metrics.LABELS.keys()
    assert used >= metrics.MOST_VALUES.keys()
    assert list(SECONDS) == sorted(SECONDS)
