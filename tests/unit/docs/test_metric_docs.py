"""The page about metrics and the examples for Prometheus name metrics, labels and settings that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adws.adw_modules.reports.metrics import BY_NAME, HISTOGRAM, LABELS

DOCS = Path(__file__).parents[3] / "docs"
TEXTS = ["http-api.md", "deploy/adw-alerts.yml", "deploy/prometheus.yml"]
PARTS = {f"{name}_{part}" for name, metric in BY_NAME.items() if metric.kind == HISTOGRAM for part in ("bucket", "sum")}


def used(text: str) -> list[tuple[str, set[str]]]:
    """Return every metric that a text names, with the labels it asks for."""
    matches = re.findall(r"\b(adw_[a-z_]+)(?:\{([^}]*)\})?", text)
    return [(name, set(re.findall(r"([a-z_]+)=", labels))) for name, labels in matches]


@pytest.mark.parametrize("page", TEXTS)
def test_every_metric_that_is_named_exists_and_has_those_labels(page):
    for name, labels in used((DOCS / page).read_text().rpartition("## Metrics")[2]):
        assert name in BY_NAME or name in PARTS, name
        metric = BY_NAME[re.sub("_(bucket|sum)$", "", name) if name in PARTS else name]
        assert labels <= {*metric.labels, "le"}


def test_every_metric_and_label_is_explained():
    text = (DOCS / "http-api.md").read_text()

    for name in (*BY_NAME, *LABELS):
        assert f"\n- `{name}`" in text
    assert "`ADW_WEB_METRICS_TOKEN`" in text


def test_the_alerts_group_by_labels_that_their_metrics_have():
    for line in (DOCS / "deploy/adw-alerts.yml").read_text().splitlines():
        for by in re.findall(r"by \(([a-z, ]+)\)", line):
            assert set(by.split(", ")) <= LABELS.keys()
        for label in re.findall(r"\$labels\.([a-z]+)", line):
            assert label in LABELS


def test_every_alert_has_what_prometheus_asks_for():
    text = (DOCS / "deploy/adw-alerts.yml").read_text()
    alerts = re.split(r"\n      - alert: ", text)[1:]

    assert len(alerts) >= 5
    for alert in alerts:
        assert re.match(r"Adw[A-Za-z]+\n", alert)
        assert "        expr: " in alert
        assert "          summary: " in alert
