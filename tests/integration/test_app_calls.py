"""The wiring of calls in a real home: connections, credentials by variable, hosts that may be asked, threads."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.phase import NoOrders
from adws.adw_modules.steps.model import Assignment, CallReport
from adws.adw_modules.steps.tools import MAX_RESULT_BYTES, CallContext
from adws.adw_modules.workflow.model import SinkSpec, StepSpec
from adws.app import Home
from adws.config import load as config_load
from tests.integration.call_lab import DOCUMENT, serving

Make = Callable[..., CallReport]


@pytest.fixture
def homes(tmp_path) -> Iterator[Callable[..., Home]]:
    opened: list[Home] = []

    def make(text: str, **env: str) -> Home:
        (tmp_path / "adw.toml").write_text(text)
        settings = config_load.load(env={"ADW_HOME": str(tmp_path)}, cwd=tmp_path)
        opened.append(Home(settings, clock=SystemClock(), role="cli", env=env))
        return opened[-1]

    yield make
    for home in opened:
        home.close()


def call(home: Home, place: Path, sink: SinkSpec | None = None, *, index: int = 0, **inputs) -> CallReport:
    tool = "http" if "url" in inputs else "python"
    step = StepSpec(name="s", tool=tool, inputs=inputs or {"call": "builtins:dict", "args": {"id": index}}, sink=sink)
    assignment = Assignment(execution_id="e", index=index, element=None, attempt_number=1, page=1)
    context = CallContext(
        document=DOCUMENT,
        phase="build",
        phase_attempt=1,
        values={},
        cwd=place,
        folder=place / "state-of-it",
        orders=NoOrders(),
        record_process=lambda _record: None,
    )

    return home.step_calls.make(step, assignment, context)


def test_a_connection_to_sqlite_is_a_file_below_the_home(homes, tmp_path):
    home = homes('[connections.main]\ntype = "sqlite"\npath = "data/user.db"\n')

    report = call(home, tmp_path, SinkSpec(tool="sqlite", table="t"))

    assert (report.ok, report.result) == (True, {"id": 0})
    connection = sqlite3.connect(tmp_path / "data" / "user.db")
    assert connection.execute("SELECT id FROM t").fetchall() == [(0,)]
    connection.close()


@pytest.mark.postgres
@pytest.mark.parametrize("by", ["url_env", "password_env"])
def test_a_connection_to_postgresql_takes_what_is_secret_from_the_environment(homes, tmp_path, empty_pg_url, by):
    if by == "url_env":
        home = homes('[connections.main]\ntype = "postgres"\nurl_env = "DB_URL"\n', DB_URL=empty_pg_url)
    else:
        url = json.dumps(empty_pg_url.replace(":@", "@"))  # an empty password is one, too
        text = f"[connections.main]\ntype = 'postgres'\nurl = {url}\npassword_env = 'DB_PASSWORD'\n"
        home = homes(text, DB_PASSWORD="not-asked-for-by-this-server")

    assert call(home, tmp_path, SinkSpec(tool="postgres", table="t", connection="main")).error is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('url_env = "DB_URL"', "DB_URL"),
        ('url = "postgresql://adw@127.0.0.1:1/x"\npassword_env = "DB_PASSWORD"', "DB_PASSWORD"),
    ],
)
def test_a_variable_that_is_not_set_is_named(homes, tmp_path, text, name):
    home = homes(f'[connections.main]\ntype = "postgres"\n{text}\n')

    report = call(home, tmp_path, SinkSpec(tool="postgres", table="t"))

    assert f"the environment variable {name} of the connection main is not set" in report.error["message"]
    assert report.error["category"] == "configuration"


def test_only_the_hosts_of_the_settings_are_asked(homes, tmp_path):
    with serving() as web:
        web.answer("/x", b"1", content_type="application/json")
        allowed = homes('[steps]\nhttp_allow = "127.0.0.1"\n')
        assert call(allowed, tmp_path, url=f"{web.url}/x").result == 1
        refused = homes('[steps]\nhttp_allow = "*.example.com"\n')
        report = call(refused, tmp_path, url=f"{web.url}/x")

    assert "127.0.0.1 must not be asked: steps.http_allow does not name it" in report.error["message"]
    assert len(web.asked) == 1


def test_a_result_that_is_too_long_is_a_failure(homes, tmp_path):
    report = call(homes(""), tmp_path, call="builtins:dict", args={"a": "x" * MAX_RESULT_BYTES})

    assert f"the limit is {MAX_RESULT_BYTES}: let the call give back less" in report.error["message"]


def test_threads_of_a_worker_save_to_the_same_places_at_the_same_time(homes, tmp_path):
    home = homes('[connections.main]\ntype = "sqlite"\npath = "user.db"\n')
    reports: list[CallReport] = []

    def work(first: int) -> None:
        for index in range(first, first + 5):
            for sink in (SinkSpec(tool="sqlite", table="t"), SinkSpec(tool="jsonl", path="t.jsonl")):
                reports.append(call(home, tmp_path, sink, index=index))  # noqa: PERF401 - one by one, so that threads mix

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 0, 5, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [report.error for report in reports if not report.ok] == []
    rows = [json.loads(line)["id"] for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert sorted(rows) == [*range(15)]
    connection = sqlite3.connect(tmp_path / "user.db")
    assert sorted(connection.execute("SELECT id FROM t").fetchall()) == [(index,) for index in range(15)]
    connection.close()
