"""`adw serve`: where it listens, what it refuses, its workers, and how it ends."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.acceptance import cli_lab
from tests.acceptance.serve_lab import follow, serving, started
from tests.integration.web_lab import SECRET, TOKEN, signed

PATIENCE = cli_lab.PATIENCE
#: `adw`, but its server waits half a second for its workers to end.
IMPATIENT = (
    sys.executable,
    "-c",
    "from adws.cli import main; from adws.web import server; server.SHUTDOWN_SECONDS = 0.5; main.main()",
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ADW_WEB_TOKEN", TOKEN)
    monkeypatch.setenv("ADW_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("ADW_FORGE_KIND", "none")
    return cli_lab.make_home(tmp_path)


def workers(pid: int) -> list[int]:
    """Return the workers of a server."""
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def watched(pids: list[int]):
    """Give something that says whether all of them have ended, once they had the time."""
    handles = [os.pidfd_open(pid) for pid in pids]
    try:
        yield lambda: all(select.select([handle], [], [], PATIENCE)[0] for handle in handles)
    finally:
        for handle in handles:
            os.close(handle)


# --- what it refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (("ADW_WEB_TOKEN",), "set ADW_WEB_TOKEN first"),
        (("ADW_WEBHOOK_SECRET",), "set ADW_WEBHOOK_SECRET first"),
        (("ADW_WEB_TOKEN", "ADW_WEBHOOK_SECRET"), "set ADW_WEB_TOKEN and ADW_WEBHOOK_SECRET first"),
    ],
)
def test_others_are_let_near_only_when_something_keeps_them_out(home, adw, monkeypatch, missing, named):
    for name in missing:
        monkeypatch.delenv(name)

    done = adw("--home", str(home), "serve", "--host", "0.0.0.0", "--port", "0")

    assert done.rc == 2
    assert named in done.stderr
    assert done.stdout == ""


def test_a_definition_that_is_not_sound_is_told_before_anything_is_served(home, adw):
    (home / "adw.toml").write_text('[workflows.bad]\n[[workflows.bad.phases]]\nname = "x"\nrunner = "nothing"\n')

    done = adw("--home", str(home), "serve", "--port", "0")

    assert done.rc == 2
    assert "Traceback" not in done.stderr


# --- work ------------------------------------------------------------------------------------------------------


def test_it_takes_a_delivery_and_its_workers_carry_work_out(home):
    with serving(home, "--workers", "1") as (_, client):
        adw_id = started(client, "short")
        follow(home, adw_id)
        result = client.get(f"/api/v1/workflows/{adw_id}").json()
        body, headers = signed(b'{"zen": "Keep it simple."}', event="ping")
        ping = client.post("/webhooks/github", content=body, headers=headers)
        health = client.get("/health").json()

    assert [phase["status"] for phase in result["phases"]] == ["complete", "complete"]
    assert (ping.status_code, ping.json()["status"]) == (202, "ignored")
    assert (health["workers_wanted"], health["workers_running"]) == (1, 1)


def test_without_workers_work_waits(home):
    with serving(home, "--workers", "0") as (_, client):
        adw_id = started(client, "short")

        assert client.get("/health").json()["workers_wanted"] == 0
        assert client.get(f"/api/v1/workflows/{adw_id}").json()["state"] == "pending"


def test_a_worker_that_was_killed_is_started_again(home):
    with serving(home, "--workers", "1") as (beside, client):
        assert client.get("/health").json()["workers_running"] == 1
        [first] = workers(beside.process.pid)
        os.kill(first, signal.SIGKILL)
        beside.line("was ended by signal 9; it is started again in 1 s", of="stderr")
        adw_id = started(client, "short")

        follow(home, adw_id)
        assert workers(beside.process.pid) != [first]


# --- the dashboard ---------------------------------------------------------------------------------------------


def test_without_a_token_it_prints_a_link_that_opens_the_dashboard(home, monkeypatch):
    monkeypatch.delenv("ADW_WEB_TOKEN")
    with cli_lab.Beside(home, "serve", "--port", "0", "--workers", "0") as beside:
        told = beside.process.stdout.readline()
        link = beside.line("/login?link=", of="stderr").strip()
        with httpx.Client(follow_redirects=True, timeout=PATIENCE, headers={"Accept": "text/html"}) as client:
            page = client.get(link)
            again = httpx.get(link, timeout=PATIENCE)
        beside.process.send_signal(signal.SIGTERM)
        beside.end()

    assert "dashboard at /" in told
    assert page.status_code == 200
    assert page.url.path == "/"
    assert "Log out" in page.text
    assert again.status_code == 403


def test_with_a_token_no_link_is_left_in_the_logs_and_one_is_printed_when_asked(home, adw):
    with serving(home, "--workers", "0") as (beside, client):
        asked = adw("--home", str(home), "dashboard", "--json")
        page = client.get(json.loads(asked.stdout)["link"], follow_redirects=True, headers={"Accept": "text/html"})

    assert (asked.rc, page.status_code) == (0, 200)
    assert "link=" not in beside.stderr


def test_a_link_is_for_the_server_that_runs_wherever_it_listens(home, adw):
    with serving(home, "--workers", "0") as (_beside, client):
        asked = adw("--home", str(home), "dashboard")
        told = adw("--home", str(home), "dashboard", "--json").json()
        public = adw("--home", str(home), "dashboard", env={"ADW_WEB_PUBLIC_URL": "https://adw.example.com"})
        page = client.get(asked.stdout.strip(), follow_redirects=True, headers={"Accept": "text/html"})
        address = str(client.base_url).rstrip("/")

    assert (asked.rc, asked.stderr) == (0, "")
    assert asked.stdout.startswith(f"{address}/login?link=")
    assert page.status_code == 200
    assert (told["address"], told["is_running"]) == (address, True)
    assert public.stdout.startswith("https://adw.example.com/login?link=")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_without_a_server_a_link_says_that_none_runs_and_is_for_the_address_of_the_settings(home, adw, number):
    with serving(home, "--workers", "0") as (beside, _client):
        beside.process.send_signal(number)
        beside.end()

    asked = adw("--home", str(home), "dashboard", env={"ADW_WEB_PORT": "8123"})

    assert asked.rc == 0
    assert asked.stdout.startswith("http://127.0.0.1:8123/login?link=")
    assert asked.stderr == "no server of this home runs on this machine: start one with adw serve, then open the link\n"


@pytest.mark.parametrize("address", ["ftp://x", "127.0.0.1:8001", ""])
def test_a_link_to_what_is_no_address_is_refused(home, adw, address):
    done = adw("--home", str(home), "dashboard", "--address", address)

    assert done.rc == 2
    assert "is no address" in done.stderr


def test_a_browser_that_listens_does_not_keep_it_from_ending(home, adw):
    with serving(home, "--workers", "0") as (beside, client):
        client.get(adw("--home", str(home), "dashboard", "--address", str(client.base_url)).stdout.strip())
        with client.stream("GET", "/live?topic=home") as answer:
            lines = answer.iter_lines()
            assert next(lines) == "retry: 5000"
            beside.process.send_signal(signal.SIGTERM)
            assert not any("error" in line for line in lines)
        beside.end()

    assert beside.process.returncode == 0


# --- ends ------------------------------------------------------------------------------------------------------


def test_told_to_end_it_suspends_what_is_under_way_and_leaves_nothing_running(home):
    with serving(home, "--workers", "1") as (beside, client):
        adw_id = started(client, "long")
        cli_lab.has_begun(home)
        children = workers(beside.process.pid)
        with watched(children) as have_ended:
            beside.process.send_signal(signal.SIGTERM)
            beside.end()
            assert children
            assert have_ended()

    assert beside.process.returncode == 0
    phase = cli_lab.document(home, adw_id)["phases"][0]
    assert [attempt["status"] for attempt in phase["attempts"]] == ["suspended"]


def test_a_second_signal_ends_it_at_once(home):
    with serving(home, "--workers", "1") as (beside, client):
        started(client, "stubborn")
        cli_lab.has_begun(home)
        beside.process.send_signal(signal.SIGINT)
        beside.line("once more ends everything at once", of="stderr")
        beside.process.send_signal(signal.SIGINT)
        beside.end()
        assert beside.process.returncode == 130
    _end_what_is_left(home)


def test_workers_that_do_not_end_in_time_are_killed(home):
    with serving(home, "--workers", "1", program=(*IMPATIENT, "--home", str(home))) as (beside, client):
        started(client, "stubborn")
        cli_lab.has_begun(home)
        with watched(workers(beside.process.pid)) as have_ended:
            beside.process.send_signal(signal.SIGTERM)
            beside.end()
            assert have_ended()

    assert beside.process.returncode == 0
    _end_what_is_left(home)


def test_workers_end_when_the_server_is_killed(home):
    with serving(home, "--workers", "2") as (beside, client):
        assert client.get("/health").json()["workers_running"] == 2
        children = workers(beside.process.pid)
        assert len(children) == 2
        with watched(children) as have_ended:
            beside.process.kill()
            beside.end()
            assert have_ended()


def _end_what_is_left(home: Path) -> None:
    """End the phase of a worker that was killed, as recovery would: it is known by where it works."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = (place / "cwd").resolve() == home
        except OSError:
            continue
        if is_ours:
            os.kill(int(place.name), signal.SIGKILL)


# --- what was left before it -----------------------------------------------------------------------------------


def test_a_server_that_starts_takes_back_what_a_dead_worker_left(home):
    """Without a worker of its own: there is nobody else who could have done it."""
    with serving(home, "--workers", "1") as (beside, client):
        adw_id = started(client, "long")
        cli_lab.has_begun(home)
        (worker,) = workers(beside.process.pid)
        beside.process.kill()
        os.kill(worker, signal.SIGKILL)
    assert cli_lab.document(home, adw_id)["phases"][0]["status"] == "running"

    with serving(home, "--workers", "0") as (_, client):
        (run,) = client.get("/api/v1/runs").json()["runs"]

    assert run["state"] == "pending"
    assert cli_lab.document(home, adw_id)["phases"][0]["status"] == "interrupted"
