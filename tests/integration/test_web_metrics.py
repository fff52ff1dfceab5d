"""`/metrics`: who may read it, and that it says what happened in a home, on both databases."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from adws.adw_modules.errors import DatabaseUnavailable
from adws.adw_modules.reports.metrics import MetricsCollector
from tests.integration.web_lab import TOKEN, WebLab, labelled, signed

METRICS_TOKEN = "token-of-prometheus-0123456789"


@pytest.fixture
def lab(tmp_path):
    with WebLab(tmp_path / "home") as opened:
        yield opened


def samples(answer: httpx.Response):
    """Return every sample by its name and the values of its labels, in the order of their names."""
    assert answer.status_code == 200, answer.text
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def ask(lab, *, client="127.0.0.1", host="127.0.0.1:8001", token=None, path="/metrics"):
    """Ask as somebody at an address, under a name."""
    headers = {"Host": host, **({"Authorization": f"Bearer {token}"} if token else {})}

    async def one():
        transport = httpx.ASGITransport(app=lab.door, raise_app_exceptions=False, client=(client, 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as asking:
            return await asking.get(path, headers=headers)

    return asyncio.run(one())


# --- who may ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "wrong", METRICS_TOKEN])
def test_nothing_is_shown_without_the_token(lab, token):
    answer = ask(lab, token=token)

    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_the_token_of_prometheus_opens_it_and_nothing_else(tmp_path):
    with WebLab(tmp_path / "home", {"ADW_WEB_METRICS_TOKEN": METRICS_TOKEN}) as lab:
        assert ask(lab, token=METRICS_TOKEN).status_code == 200
        assert ask(lab, token=TOKEN).status_code == 200
        assert ask(lab, token=METRICS_TOKEN, path="/api/v1/workflows").status_code == 401
        assert ask(lab, token=METRICS_TOKEN, path="/metrics/").status_code in {401, 404}


# --- what it says ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["files", "database", pytest.param("postgresql", marks=pytest.mark.postgres)])
def any_lab(request, tmp_path):
    env = {"ADW_STATE_STORE": "files" if request.param == "files" else "database"}
    if request.param == "postgresql":
        env["ADW_DATABASE_URL"] = request.getfixturevalue("pg_url")
    with WebLab(tmp_path / "home", env) as opened:
        yield opened


def test_it_says_what_happened_and_what_there_is(any_lab):
    lab = any_lab
    done, failed = lab.start(1), lab.start(2, "broken")
    before = samples(ask(lab, token=TOKEN))
    lab.work()

    result = samples(ask(lab, token=TOKEN))

    assert (lab.state(done), lab.state(failed)) == ("completed", "failed")
    assert before["adw_workflows", "pending"] == 2.0
    assert before["adw_queue_runs", "start", "waiting"] == 2.0
    assert (result["adw_workflows", "completed"], result["adw_workflows", "failed"]) == (1.0, 1.0)
    assert result["adw_workflows", "pending"] == result["adw_queue_runs", "start", "waiting"] == 0.0
    assert result["adw_attempts_total", "succeeded", "plan"] == 1.0
    assert result["adw_attempts_total", "failed", "build"] == 1.0
    assert result["adw_phase_duration_seconds_count", "completed", "plan"] == 1.0
    assert result["adw_phase_duration_seconds_count", "failed", "build"] == 1.0
    assert result["adw_attempt_duration_seconds_bucket", "+Inf", "succeeded", "plan"] == 1.0
    assert result["adw_transitions_total", "completed"] == 1.0
    assert result["adw_events_total", "workflow_created"] == 2.0
    assert result["adw_quota_limit", "runs", "workflows"] == 15.0
    assert result["adw_quota_limit", "disk", "bytes"] > 1e9
    assert samples(ask(lab, token=TOKEN))["adw_events_total", "workflow_created"] == 2.0


def test_deliveries_are_counted_by_their_result(any_lab):
    lab = any_lab
    lab.deliver(labelled(7, guid="one"), labelled(8, guid="two"))
    lab.deliver(labelled(7, guid="one"))
    lab.deliver(labelled(9, guid="three", label={"name": "other"}))
    lab.deliver(signed(b"{}", guid="four", secret="not the secret"))
    lab.deliver(signed(b"no json", guid="five"))

    result = samples(ask(lab, token=TOKEN))

    assert {
        verdict: result["adw_deliveries_total", verdict] for verdict in ("run", "ignored", "repeated", "command")
    } == {
        "run": 2.0,
        "ignored": 1.0,
        "repeated": 1.0,
        "command": 0.0,
    }
    assert (
        result["adw_webhook_refused_total", "bad_signature"],
        result["adw_webhook_refused_total", "bad_delivery"],
    ) == (
        1.0,
        1.0,
    )


def test_a_database_that_does_not_answer_is_503(lab, monkeypatch):
    def gone(self):
        raise DatabaseUnavailable("the database is gone")

    monkeypatch.setattr(MetricsCollector, "readings", gone)
    answer = ask(lab, token=TOKEN)

    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the database is gone")


def test_whoever_asks_for_openmetrics_gets_it(lab):
    answer = lab.ask("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})

    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_the_token_of_prometheus_is_enough_where_the_api_is_closed(tmp_path):
    with WebLab(tmp_path / "home", {"ADW_WEB_TOKEN": "", "ADW_WEB_METRICS_TOKEN": METRICS_TOKEN}) as lab:
        assert ask(lab, token=METRICS_TOKEN).status_code == 200
        assert ask(lab, token=METRICS_TOKEN, path="/api/v1/workflows").status_code == 403
