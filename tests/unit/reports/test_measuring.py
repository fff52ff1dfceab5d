"""The readings of the metrics: everything there is, 0 where nothing is, and no label without end."""

from __future__ import annotations

from types import SimpleNamespace

import adws
from adws.adw_modules.circuit_breaker import BreakerRow
from adws.adw_modules.events import EVENT_TYPES
from adws.adw_modules.interfaces import Verdict
from adws.adw_modules.queue.model import RUN_KINDS
from adws.adw_modules.reports.metrics import (
    BY_NAME,
    HISTOGRAM,
    METRICS,
    MOST_VALUES,
    MetricsCollector,
    bucket_of,
    sum_of,
)
from adws.adw_modules.reports.model import CostSum
from adws.adw_modules.resources.quotas import QuotaStatus
from adws.adw_modules.state_machine import WorkflowState
from adws.adw_modules.workflow.requirements import Capabilities
from adws.testing import FakeClock
from tests.contracts.worlds import make_owner
from tests.homes import lab_home
from tests.unit.setting_cases import settings_with

#: USD on each day.
SPENT = 30.0


class Counted:
    """A tally of what the test says."""

    def __init__(self, **counted):
        self.known = counted
        self.looks = 0

    def catch_up(self):
        self.looks += 1
        return 0

    def counted(self):
        return self.known if self.looks else {}


def limit(name, used, most, unit, **more):
    return QuotaStatus(name=name, used=used, limit=most, unit=unit, is_exceeded=used > most, detail="", **more)


def read(*, tally=None, breakers=(), quotas=None, runners=None, clock=None):
    clock = clock or FakeClock()
    made = lab_home(clock=clock)
    home = SimpleNamespace(
        tally=tally or Counted(),
        gauges=made.gauges,
        workers=runners or made.workers,
        processes=SimpleNamespace(
            verdict=lambda owner: Verdict.DEAD if owner.token.endswith("dead") else Verdict.UNKNOWN
        ),
        breakers=SimpleNamespace(stored=lambda: breakers),
        reports=SimpleNamespace(costs=lambda window, by: (CostSum(key=window.since, cost_usd=SPENT),)),
        quotas=SimpleNamespace(gauges=lambda spent_today, sizes: quotas(spent_today) if quotas else ()),
        clock=clock,
        settings=settings_with(),
    )

    return MetricsCollector(home).readings()


def test_an_empty_home_has_every_metric_whose_labels_are_known_at_0():
    content = read()

    assert content["adw_info"] == {(adws.__version__,): 1.0}
    assert content["adw_workflows"] == {(state.value,): 0.0 for state in WorkflowState}
    assert content["adw_events_total"] == {(name,): 0.0 for name in EVENT_TYPES}
    assert content["adw_queue_runs"]["delivery", "dead"] == 0.0
    assert len(content["adw_queue_runs"]) == len(RUN_KINDS) * 6
    assert content["adw_lease_takeovers_total"] == {("dead",): 0.0, ("unknown",): 0.0}
    assert content["adw_deliveries_total"] == dict.fromkeys([("run",), ("command",), ("ignored",), ("repeated",)], 0.0)
    assert content["adw_calls_total"] == {("completed",): 0.0, ("failed",): 0.0, ("suspended",): 0.0}
    assert content["adw_runners"] == dict.fromkeys([("online",), ("draining",), ("silent",), ("gone",)], 0.0)
    assert content["adw_executions_running"] == {(): 0.0}


def test_every_reading_is_of_a_metric_and_has_its_labels():
    counted = {
        "adw_attempts_total": {("build", "failed"): 1.0},
        bucket_of("adw_phase_duration_seconds"): {("build", "failed", "1.0"): 1.0},
        sum_of("adw_phase_duration_seconds"): {("build", "failed"): 1.0},
    }
    content = read(
        tally=Counted(**counted),
        breakers=[BreakerRow(name="github", changed_at="2026-01-31T09:00:00.000000Z")],
        quotas=lambda _spent: [limit("disk", 1.0, 2.0, "GB free")],
    )
    histograms = {
        name: (*metric.labels, *more)
        for metric in METRICS
        if metric.kind == HISTOGRAM
        for name, more in ((bucket_of(metric.name), ["le"]), (sum_of(metric.name), []))
    }

    for name, values in content.items():
        labels = histograms[name] if name in histograms else BY_NAME[name].labels
        assert all(len(given) == len(labels) for given in values), name
    assert BY_NAME.keys() - content.keys() <= {
        "adw_webhook_refused_total",  # is of the server, not of the home
        "adw_retries_total",
        "adw_runs_recovered_total",
        "adw_cost_usd_total",
        "adw_tokens_total",
        *(metric.name for metric in METRICS if metric.kind == HISTOGRAM),
    }


def test_a_breaker_stands_in_one_state_as_it_is_now():
    rows = [
        BreakerRow(name="anthropic", state="closed", failures=2, changed_at="2026-01-31T08:00:00.000000Z"),
        BreakerRow(
            name="github",
            state="open",
            failures=5,
            opened_at="2026-01-31T08:00:00.000000Z",
            reopens_at="2026-01-31T08:05:00.000000Z",
            changed_at="2026-01-31T08:00:00.000000Z",
        ),
    ]

    content = read(breakers=rows)

    assert content["adw_breaker_state"] == {
        ("anthropic", "closed"): 1.0,
        ("anthropic", "open"): 0.0,
        ("anthropic", "half_open"): 0.0,
        ("github", "closed"): 0.0,
        ("github", "open"): 0.0,
        ("github", "half_open"): 1.0,
    }
    assert content["adw_breaker_failures"] == {("anthropic",): 2.0, ("github",): 5.0}


def test_of_very_many_breakers_those_that_are_not_closed_are_shown():
    at = "2026-01-31T08:59:59.000000Z"
    rows = [BreakerRow(name=f"b{number:04}", changed_at=at) for number in range(500)]
    rows.append(
        BreakerRow(name="zz", state="open", opened_at=at, reopens_at="2026-01-31T10:00:00.000000Z", changed_at=at)
    )

    content = read(breakers=rows)

    assert len(content["adw_breaker_failures"]) == MOST_VALUES["party"]
    assert content["adw_breaker_state"]["zz", "open"] == 1.0


def test_limits_are_those_of_today_and_told_in_base_units():
    asked = []

    def quotas(spent):
        asked.append(spent)
        return [
            limit("disk", 5.0, 10.0, "GB free"),
            limit("cost_per_day", 30.0, 20.0, "USD"),
            limit("worktree_size", 0.0, 5.0, "GB", is_known=False),
        ]

    content = read(quotas=quotas)

    assert asked == [SPENT]
    assert content["adw_quota_used"] == {("disk", "bytes"): 5.0 * 2**30, ("cost_per_day", "usd"): 30.0}
    assert content["adw_quota_limit"] == {("disk", "bytes"): 10.0 * 2**30, ("cost_per_day", "usd"): 20.0}
    assert content["adw_quota_exceeded"] == {("disk",): 0.0, ("cost_per_day",): 1.0}


def test_workers_are_counted_by_what_is_known_and_places_are_those_of_who_is_online():
    clock = FakeClock()
    runners = lab_home(clock=clock).workers
    for name, concurrency in (("silent", 8), ("one", 2), ("draining", 3), ("dead", 4), ("left", 5)):
        runners.register(make_owner(name), Capabilities(host="here"), concurrency=concurrency, version="1")
        if name == "silent":
            clock.advance(100.0)
    runners.beat(make_owner("one"), busy=1)
    runners.beat(make_owner("draining"), busy=3, is_draining=True)
    runners.leave(make_owner("left"))

    content = read(runners=runners, clock=clock)

    assert content["adw_runners"] == {("online",): 1.0, ("draining",): 1.0, ("silent",): 1.0, ("gone",): 2.0}
    assert content["adw_runner_places"] == {("all",): 2.0, ("busy",): 1.0}


def test_events_are_counted_before_counters_are_read():
    tally = Counted(adw_attempts_total={("build", "failed"): 1.0})

    assert read(tally=tally)["adw_attempts_total"] == {("build", "failed"): 1.0}
    assert tally.looks == 1
