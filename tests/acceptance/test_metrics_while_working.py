"""Prometheus looks at a real server while its workers work: the numbers move, and none that only grows goes back."""

from __future__ import annotations

import time

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance import cli_lab
from tests.acceptance.serve_lab import follow, serving, started
from tests.integration.web_lab import SECRET, TOKEN

METRICS_TOKEN = "token-of-prometheus-0123456789"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ADW_WEB_TOKEN", TOKEN)
    monkeypatch.setenv("ADW_WEB_METRICS_TOKEN", METRICS_TOKEN)
    monkeypatch.setenv("ADW_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("ADW_FORGE_KIND", "none")
    return cli_lab.make_home(tmp_path)


class Prometheus:
    """Reads the page as Prometheus does, and holds each look against the one before."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._counters: dict = {}

    def look(self):
        answer = self._client.get("/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"})
        assert answer.status_code == 200, answer.text
        result, counters = {}, {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
                assert key not in result, "a series stands twice"
                result[key] = sample.value
                if family.type != "gauge":
                    counters[key] = sample.value
        assert all(counters.get(key, -1.0) >= value for key, value in self._counters.items())
        self._counters = counters
        return result

    def until(self, *key: str):
        """Look until something is there: the database has the copy of a document a moment after the document."""
        return self._until(lambda found: found[key] > 0.0, key)

    def until_all(self, expected: dict[tuple[str, ...], float]):
        """Look until everything is as expected: of several processes, each brings its part when it gets to it."""
        return self._until(lambda found: all(found.get(key) == value for key, value in expected.items()), expected)

    def _until(self, is_there, what):
        deadline = time.monotonic() + cli_lab.PATIENCE
        while not is_there(result := self.look()):
            assert time.monotonic() < deadline, (what, result)
        return result


def test_the_numbers_follow_a_workflow_and_only_ever_grow(home):
    with serving(home, "--workers", "1") as (_, client):
        prometheus = Prometheus(client)
        idle = prometheus.until("adw_runners", "online")
        adw_id = started(client, "long")
        cli_lab.has_begun(home)
        waiting = started(client, "flaky", issue=6)
        busy = prometheus.until("adw_events_total", "attempt_started")
        cli_lab.let_go(home)
        follow(home, adw_id)
        follow(home, waiting)
        done = prometheus.until_all(
            {
                ("adw_workflows", "completed"): 1.0,
                ("adw_workflows", "failed"): 1.0,
                ("adw_attempts_total", "succeeded", "build"): 1.0,
                ("adw_attempts_total", "failed", "build"): 2.0,
                ("adw_retries_total", "transient", "phase"): 1.0,
                ("adw_phase_duration_seconds_count", "completed", "build"): 1.0,
                ("adw_queue_runs", "start", "running"): 0.0,
            }
        )

    assert idle["adw_runners", "online"] == 1.0
    assert (idle["adw_workflows", "building"], busy["adw_workflows", "building"]) == (0.0, 1.0)
    assert busy["adw_queue_runs", "start", "running"] == 1.0
    assert busy["adw_queue_runs", "start", "waiting"] == 1.0
    assert busy["adw_queue_oldest_age_seconds", "start", "running"] > 0.0
    assert busy["adw_events_total", "attempt_started"] == 1.0
    assert busy["adw_quota_used", "runs", "workflows"] == 1.0
    assert 0.0 < done["adw_phase_duration_seconds_sum", "completed", "build"] < cli_lab.PATIENCE


def test_a_worker_that_died_shows_as_a_takeover_and_in_what_was_recovered(home):
    with serving(home, "--workers", "1") as (beside, client):
        prometheus = Prometheus(client)
        adw_id = started(client, "long")
        cli_lab.has_begun(home)
        before = prometheus.look()
        psutil.Process(beside.process.pid).children()[0].kill()
        cli_lab.has_begun(home)
        cli_lab.let_go(home)
        follow(home, adw_id)
        after = prometheus.until_all(
            {("adw_lease_takeovers_total", "dead"): 1.0, ("adw_attempts_total", "interrupted", "build"): 1.0}
        )

    assert before["adw_lease_takeovers_total", "dead"] == 0.0
    recovered = {key: value for key, value in after.items() if key[0] == "adw_runs_recovered_total"}
    assert sum(recovered.values()) > 0.0
    assert {key[-1] for key in recovered} == {"dead"}
