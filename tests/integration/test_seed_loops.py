"""
Loops, retries and sinks against a real HTTP server that answers in pages and fails, with a real `adw worker`.

The examples are those of docs/steps.md and examples/steps.md, with the addresses of the test's server in them; on
SQLite the results are saved to SQLite, on PostgreSQL to PostgreSQL. Every execution is held against its own log.
"""

from __future__ import annotations

import itertools
import json
import re
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import loop_lab, paged_api, sampling, templates, warm
from tests.acceptance.cli_lab import Beside
from tests.loop_lab import Told
from tests.paged_api import Fault, PagedApi

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs" / "steps.md").read_text().partition("## Execution\n")[0] + (
    ROOT / "examples" / "steps.md"
).read_text().partition("## A credential")[0]
#: Name of a workflow -> the example that defines it.
EXAMPLES = {
    re.search(r"^\[workflows\.(\w+)", text, re.MULTILINE)[1]: text  # type: ignore[index]  # every one defines one
    for text in re.findall(r"```toml\n(.*?)```", PAGES, re.DOTALL)
}
#: Far more than anything here takes; nobody waits for it unless something is broken.
PATIENCE = 90.0
#: Retries come soon: what is tried here is that they come, not that they wait.
SOON = "base_seconds = 0.02, max_seconds = 0.05"


@dataclass(frozen=True, kw_only=True)
class Done:
    """What came of a workflow."""

    document: dict[str, Any]
    executions: dict[str, Told]  #: by the name of the step

    @property
    def state(self) -> str:
        return str(self.document["current_state"])

    @property
    def one(self) -> Told:
        (told,) = self.executions.values()
        return told


class Lab:
    """A home, its database, and a worker beside the test while there is work."""

    def __init__(self, home: Path, pg_url: str) -> None:
        self.home = home
        self.pg_url = pg_url
        self.url = loop_lab.address(home, pg_url)
        self.sink = "postgres" if pg_url else "sqlite"
        #: Where results are saved: another file, or other tables of the same server.
        self.sink_url = pg_url or str(home / "results.db")
        self.connection = (
            '[connections.main_db]\ntype = "postgres"\nurl_env = "MAIN_DB_URL"\n'
            if pg_url
            else '[connections.main_db]\ntype = "sqlite"\npath = "results.db"\n'
        )

    def run(self, name: str, text: str, *, workers: int = 1) -> Done:
        """Carry the workflow *name* of the definitions *text* through, with so many workers one after the other."""
        (self.home / "adw.toml").write_text(text)
        started = warm.run(
            [warm.ADW, "--home", str(self.home), "run", "7", "--in-place", "--workflow", name, "--detach", "--json"],
            cwd=self.home,
            capture_output=True,
            text=True,
        )
        assert started.returncode == 0, started.stderr
        adw_id = json.loads(started.stdout)["adw_id"]
        document = next(filter(None, (self._work(adw_id, is_last=n == workers - 1) for n in range(workers))))
        told = loop_lab.executions(self.url)
        assert [problem for one in told for problem in loop_lab.problems(one)] == []

        return Done(document=document, executions={one.step: one for one in told})

    def adw(self, *words: str) -> dict[str, Any]:
        """Return what a command prints as JSON."""
        done = warm.run([warm.ADW, "--home", str(self.home), *words], cwd=self.home, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)

        return result

    def events(self, event_type: str) -> list[dict[str, Any]]:
        """Return the stored events of one type, of all workflows."""
        return loop_lab.select(self.url, f"SELECT * FROM events WHERE event_type = '{event_type}' ORDER BY seq")

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return what was saved to *table*."""
        return loop_lab.select(self.sink_url, f"SELECT * FROM {table}")

    def _work(self, adw_id: str, *, is_last: bool) -> dict[str, Any] | None:
        """Have a worker of four places; return the document when the workflow is over, None when the worker died."""
        with Beside(self.home, "worker", "--concurrency", "4") as worker:
            document = self._until_over(adw_id, worker)
            has_died = document is None and worker.process.poll() == -signal.SIGKILL
            worker.process.terminate()
            worker.end()
        assert "Traceback" not in worker.stderr, worker.stderr[-3000:]
        if document is None and (is_last or not has_died):
            rows = loop_lab.select(self.url, "SELECT execution_id, idx, state, attempts, why, error FROM iterations")
            pytest.fail(f"it is not over: {rows[:20]}\n{worker.stderr[-3000:]}")

        return document

    def _until_over(self, adw_id: str, worker: Beside) -> dict[str, Any] | None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and worker.process.poll() is None:
            document = loop_lab.document(self.home, self.url, adw_id)
            if document["current_state"] in {"completed", "failed", "paused"}:
                return document
            time.sleep(0.02)

        return None


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    home = tmp_path.resolve() / "home"
    home.mkdir()
    pg_url = ""
    if request.param == "sqlite":
        templates.prepare_home(home)
    else:
        if not sampling.is_soak() and zlib.crc32(request.function.__name__.encode()) % 3:
            pytest.skip("one in three is tried on PostgreSQL, all of them in the soak")
        pg_url = request.getfixturevalue("new_pg_url")()
        monkeypatch.setenv("ADW_DATABASE_URL", pg_url)
        monkeypatch.setenv("MAIN_DB_URL", pg_url)
    monkeypatch.setenv("JOB_TOKEN", "Bearer of-the-job")
    monkeypatch.setenv("ADW_FORGE_KIND", "none")

    return Lab(home, pg_url)


@pytest.fixture
def api() -> Iterator[PagedApi]:
    with paged_api.serving() as api:
        yield api


def example(name: str, lab: Lab, api: PagedApi) -> str:
    """Return an example of the page, with the server of the test and the database of the home in it."""
    text = EXAMPLES[name]
    text = text.replace("https://api.example.com", api.url)
    text = re.sub(r"https://([ab])\.example\.com", rf"{api.url}/\1", text)
    text = text.replace('tool = "postgres"', f'tool = "{lab.sink}"')
    if "[connections." in text:
        text = text[: text.index("[connections.")] + lab.connection
    text = text.replace('backoff = "exponential"', 'backoff = "exponential"\nbase_seconds = 0.02')

    return text.replace("base_seconds = 5", "base_seconds = 0.02").replace("base_seconds = 2}", "base_seconds = 0.02}")


# --- the examples ----------------------------------------------------------------------------------------------


def test_every_example_of_the_page_is_tried_here():
    tried = {"sync", "process", "double", "fetch", "pages", "apis", "sinks", "poll"}

    assert {*EXAMPLES} == tried


def test_steps_that_call_once_run_in_their_order_and_hand_values_on(lab, api):
    done = lab.run("sync", example("sync", lab, api))

    assert done.state == "completed"
    assert api.count("/users") == 1
    assert done.executions == {}, "a step that is one call is made by the phase itself"
    assert "there are 2 users" in json.dumps(done.document["phases"])


def test_a_loop_over_requests_saves_every_result(lab, api):
    done = lab.run("process", example("process", lab, api))

    assert done.state == "completed"
    assert sorted((row["user"], row["length"]) for row in lab.rows("processed_users")) == [("ada", 3), ("bob", 3)]
    assert done.one.results == [{"user": "ada", "length": 3}, {"user": "bob", "length": 3}]


def test_a_loop_over_inline_code_gives_its_results_in_the_order_of_the_collection(lab, api):
    done = lab.run("double", example("double", lab, api))

    assert done.state == "completed"
    assert done.one.results == [2, 4, 6]
    assert done.one.count()["iteration_started"] == 3


def test_a_request_that_fails_twice_is_made_again_and_then_goes_through_its_pages(lab, api):
    api.fail("/data", Fault(status=500), Fault(status=503))

    done = lab.run("fetch", example("fetch", lab, api))

    told = done.one
    assert done.state == "completed"
    assert [one.status for one in api.asked] == [500, 503, 200, 200, 200]
    assert api.pages("/data") == ["", "", "", "2", "3"]
    assert told.count()["action_failed"] == 2
    assert told.count()["retry_sequence_completed"] == 1
    assert [event.attempt_number for event in told.of_type("action_completed")] == [3, 4, 5]


def test_the_pages_of_a_request_are_put_together_and_each_is_saved(lab, api):
    api.sizes[""] = 250

    done = lab.run("pages", example("pages", lab, api))

    assert done.state == "completed"
    assert api.pages("/data") == ["1", "2", "3"]
    assert {one.query["pageSize"] for one in api.asked} == {"100"}
    assert [len(result) for result in done.one.results] == [250]
    assert done.one.results[0][249] == {"id": "all-249"}
    assert len(lab.rows("raw_data")) == 3


def test_every_endpoint_goes_through_its_own_pages(lab, api):
    api.sizes.update({"/a": 15, "/b": 35})

    done = lab.run("apis", example("apis", lab, api))

    assert done.state == "completed"
    assert (api.pages("/a/data"), api.pages("/b/data")) == (["1", "2"], ["1", "2", "3", "4"])
    assert [one["page"] for one in done.one.iterations] == [2, 4]


def test_sinks_save_each_iteration_each_page_and_each_page_of_each_iteration(lab, api):
    api.polls.update({"": 3, "/a": 2})

    done = lab.run(
        "sinks",
        example("sinks", lab, api).replace('{{ response.hasMore }}"', '{{ response.hasMore }}", base_seconds = 0.01'),
    )

    assert done.state == "completed"
    assert sorted(row["value"] for row in lab.rows("results")) == [1, 2]
    assert len(lab.rows("raw_pages")) == 3
    assert len(lab.rows("api_data")) == 2


def test_polling_ends_when_the_answer_is_there_and_what_is_left_out_is_not_called(lab, api):
    api.fail("/job/j1", Fault(status=404))

    done = lab.run("poll", example("poll", lab, api))

    assert done.state == "completed"
    assert [one.status for one in api.asked] == [201, 404, 200, 200, 200]
    assert {one.headers.get("authorization") for one in api.asked if one.method == "POST"} == {"Bearer of-the-job"}
    assert done.one.results == [{"id": "j1", "state": "done"}]
    assert "of-the-job" not in json.dumps(done.document)


# --- failures --------------------------------------------------------------------------------------------------


def one_step(body: str, *, workload: str = "{}") -> str:
    """Return a workflow `w` of one step."""
    return (
        f'[workflows.w]\nworkload = {workload}\n[[workflows.w.phases]]\nname = "build"\nmax_attempts = 1\n'
        f'[[workflows.w.phases.steps]]\nname = "s"\n{body}\n'
    )


def test_a_connection_that_is_cut_in_the_middle_of_the_answer_is_a_failure_that_is_retried(lab, api):
    api.fail("/echo", Fault(status=200, drops=True, body={"half": True}))

    done = lab.run("w", one_step(f'tool = "http"\nurl = "{api.url}/echo"\nretry = {{max_attempts = 2, {SOON}}}'))

    assert done.state == "completed"
    assert done.one.count()["action_failed"] == 1


def test_a_server_that_says_when_to_come_again_is_believed(lab, api):
    api.fail("/echo", Fault(status=429, headers={"Retry-After": "1"}))

    done = lab.run("w", one_step(f'tool = "http"\nurl = "{api.url}/echo"\nretry = {{max_attempts = 3, {SOON}}}'))

    (failed,) = done.one.of_type("action_failed")
    assert done.state == "completed"
    assert failed.data["retry"]["after_seconds"] >= 1.0


CURSOR = """
tool = "http"
url = "{url}/{path}"
[workflows.w.phases.steps.retry.on_success]
while = "response.next is not none"
collect = "append"
merge_path = "items"
max_attempts = {most}
next_call = {{params = {{cursor = "{{{{ response.next }}}}"}}}}
"""


def test_pages_up_to_max_attempts_are_handed_on_with_a_warning_and_the_field_is_cut(lab, api):
    api.sizes["cursor"] = 100

    done = lab.run("w", one_step(CURSOR.format(url=api.url, path="cursor", most=3)))

    told = done.one
    assert done.state == "completed"
    assert api.count("/cursor") == 3
    assert told.results == [[0, 1, 2, 3, 4, 5]]
    (warning,) = told.of_type("retry_limit_reached")
    assert (warning.status, warning.data["is_cut"], warning.data["pages"]) == ("warning", True, 3)
    assert "3 of 3 calls are made" in warning.data["reason"]
    (sequence,) = told.of_type("retry_sequence_completed")
    assert (sequence.parent_event_id, sequence.data["is_cut"]) == (warning.event_id, True)
    (iteration,) = told.of_type("iteration_completed")
    (end,) = told.of_type("iterator_completed")
    assert (iteration.data["is_cut"], end.data["cut"]) == (True, 1)
    assert "cut at max_attempts" in told.row["reason"]
    (phase,) = done.document["phases"]
    assert phase["result"]["steps"]["s"]["is_cut"] is True
    assert phase["result"]["result"] == [0, 1, 2, 3, 4, 5]
    shown = lab.adw("status", told.row["execution_id"], "--json")
    assert [one["is_cut"] for one in shown["iterations"]] == [True]


def test_a_loop_counts_what_was_cut_and_the_next_step_can_ask_for_it(lab, api):
    api.sizes.update({"/a": 15, "/b": 45})
    text = f"""
[workflows.w]
[[workflows.w.phases]]
name = "build"
max_attempts = 1
[[workflows.w.phases.steps]]
name = "fetch"
tool = "http"
url = "{{{{ at }}}}/data"
params = {{page = 1}}
vars = {{cut = "{{{{ result.cut }}}}", whole = "{{{{ not is_cut }}}}"}}
next = [{{step = "", when = "not is_cut"}}, {{step = "warn"}}]
loop = {{collection = ["{api.url}/a", "{api.url}/b"], element = "at"}}
[workflows.w.phases.steps.retry.on_success]
while = "response.paging.hasMore"
max_attempts = 3
collect = "append"
merge_path = "data"
next_call = {{params = {{page = "{{{{ response.paging.page + 1 }}}}"}}}}
[[workflows.w.phases.steps]]
name = "warn"
tool = "python"
code = "def main(cut): return cut"
args = {{cut = "{{{{ steps.fetch.cut }}}}"}}
"""

    done = lab.run("w", text)

    (phase,) = done.document["phases"]
    assert done.state == "completed"
    assert (phase["result"]["result"], phase["result"]["vars"]) == (1, {"cut": 1, "whole": False})
    assert [len(result) for result in done.one.results] == [15, 30]
    assert done.one.row["reason"] == "1 of 2 iterations were cut at max_attempts: there are more pages"


# --- sinks that fail, and runs of calls ------------------------------------------------------------------------

#: A sink whose file is a directory.
REFUSING = 'sink = {tool = "jsonl", path = "taken"}'


@pytest.mark.parametrize("loop", ["", 'loop = {collection = [1], element = "n"}'])
def test_a_sink_that_fails_is_named_in_action_failed(lab, api, loop):
    (lab.home / "taken").mkdir()

    done = lab.run("w", one_step(f'tool = "http"\nurl = "{api.url}/echo"\n{REFUSING}\n{loop}'))

    (failed,) = lab.events("action_failed")
    assert done.state == "failed"
    assert api.count("/echo") == 1
    assert json.loads(failed["data"])["error"]["message"].startswith("Sink failed: ")
    assert json.loads(failed["meta"])["error"]["message"].startswith("Sink failed: ")
    assert "taken" in failed["data"]
    assert "Sink failed: " in done.document["phases"][0]["last_failure_reason"]


def test_the_runs_of_a_loop_have_the_run_of_their_workflow_as_their_parent(lab, api):
    done = lab.run("w", looped(api, 3, mode="async", concurrency=2))

    runs = loop_lab.select(lab.url, "SELECT run_id, kind, parent_run_id FROM runs ORDER BY run_id")
    (main,) = (run for run in runs if run["kind"] == "start")
    lanes = [run for run in runs if run["kind"] == "iteration"]
    assert main["parent_run_id"] is None
    assert {run["parent_run_id"] for run in lanes} == {main["run_id"]}
    assert done.one.row["parent_run_id"] == main["run_id"]
    shown = lab.adw("queue", "runs", "--json")["runs"]
    assert {one["parent_run_id"] for one in shown if one["kind"] == "iteration"} == {main["run_id"]}


def test_the_address_of_the_next_page_may_come_with_the_answer(lab, api):
    body = f"""
tool = "http"
url = "{api.url}/a/data"
[workflows.w.phases.steps.retry.on_success]
while = "response.paging.hasMore"
collect = "append"
merge_path = "data"
next_call = {{url = "{api.url}/b/data?page={{{{ response.paging.page + 1 }}}}"}}
"""
    api.sizes.update({"/a": 15, "/b": 15})

    done = lab.run("w", one_step(body))

    assert [one.path for one in api.asked] == ["/a/data", "/b/data"]
    assert [item["id"] for item in done.one.results[0]][-1] == "b-14"


# --- loops -----------------------------------------------------------------------------------------------------


def looped(api: PagedApi, count: int, **keys: Any) -> str:
    """Return a loop over requests, one path for each element."""
    loop = "".join(f", {key} = {json.dumps(value)}" for key, value in keys.items())
    return one_step(
        f'tool = "http"\nurl = "{api.url}/echo"\nparams = {{n = "{{{{ n }}}}"}}\n'
        f'loop = {{collection = {json.dumps(list(range(count)))}, element = "n"{loop}}}'
    )


def test_an_async_loop_makes_as_many_calls_at_a_time_as_it_may_and_no_more(lab, api):
    api.gates["/echo"] = threading.Barrier(3)

    done = lab.run("w", looped(api, 24, mode="async", concurrency=3))

    assert done.state == "completed", "each call was answered only when three were there"
    assert api.most_at_once("/echo") == 3
    assert [result["query"]["n"] for result in done.one.results] == [str(n) for n in range(24)]


# --- what is stored about it ------------------------------------------------------------------------------------


def test_a_response_that_is_too_large_for_the_log_is_decided_on_whole(lab, api):
    body = f"""
tool = "http"
url = "{api.url}/data"
params = {{padding = 20000, page = 1}}
[workflows.w.phases.steps.retry.on_success]
while = "response.paging.hasMore"
collect = "append"
merge_path = "data"
next_call = {{params = {{page = "{{{{ response.paging.page + 1 }}}}"}}}}
"""
    done = lab.run("w", one_step(body))

    assert done.state == "completed"
    assert api.pages("/data") == ["1", "2", "3"]
    shown = [event.result for event in done.one.of_type("action_completed")]
    assert [result["_truncated"] for result in shown] == [True, True, True]
    assert all(result["_size"] > 20000 for result in shown)
    assert len(done.one.results[0]) == 25


def test_secrets_in_the_workload_and_in_answers_do_not_reach_the_log(lab, api, monkeypatch):
    monkeypatch.setenv("JOB_TOKEN", "Bearer known-to-be-secret-1")
    token = "ghp_" + "a1B2" * 9
    body = f"""
tool = "http"
method = "POST"
url = "{api.url}/echo"
json = {{said = "{token}", n = "{{{{ n }}}}"}}
headers_env = {{Authorization = "JOB_TOKEN"}}
loop = {{collection = [1, 2], element = "n"}}
"""
    workload = f'{{api_key = "hunter2-is-long", nested = {{password = "opensesame-99"}}, note = "with {token} in it"}}'

    done = lab.run("w", one_step(body, workload=workload))

    assert done.state == "completed"
    assert {one.headers["authorization"] for one in api.asked} == {"Bearer known-to-be-secret-1"}
    log = json.dumps([event.to_json() for event in done.one.events])
    for secret in ("hunter2-is-long", "opensesame-99", token, "known-to-be-secret-1"):
        assert secret not in log
    context = done.one.of_type("iterator_started")[0].context
    assert {name for name in context if name.startswith("_")} <= {"_step_results"}
    assert "workload" in context


def test_the_next_call_gets_the_whole_value_and_the_log_does_not(lab, api):
    api.sizes["cursor"] = 3
    asked = '{params = {cursor = "{{ response.next }}"}, headers = {X-Auth-Token = "of {{ response.next }}"}}'
    body = f"""
tool = "http"
url = "{api.url}/cursor"
[workflows.w.phases.steps.retry.on_success]
while = "response.next is not none"
collect = "append"
merge_path = "items"
next_call = {asked}
"""
    done = lab.run("w", one_step(body))

    assert done.state == "completed"
    assert [one.headers.get("x-auth-token") for one in api.asked] == [None, "of c2"]
    first, _last = done.one.of_type("action_completed")
    assert first.data["retry"]["call"] == {"params": {"cursor": "c2"}, "headers": {"X-Auth-Token": "[redacted]"}}
    assert first.meta["retry"]["will_retry"] is True


def test_the_context_of_events_has_facts_about_steps_and_not_their_results(lab, api):
    text = one_step(f'tool = "http"\nurl = "{api.url}/users"') + (
        '[[workflows.w.phases.steps]]\nname = "t"\ntool = "python"\ncode = "def main(u): return u"\n'
        'args = {u = "{{ u }}"}\nloop = {collection = "{{ steps.s.users }}", element = "u"}\n'
    )

    done = lab.run("w", text)

    context = done.executions["t"].of_type("iterator_started")[0].context
    assert context["_step_results"]["s"]["has_data"] is True
    assert context["_step_results"]["s"]["data_type"] == "dict"
    assert "ada" not in json.dumps(context["_step_results"])


# --- calls that take their worker with them ---------------------------------------------------------------------

GO_ON = 'on_failure = "continue"'
POISON = """
import os, pathlib, signal

def call(n):
    with (pathlib.Path(__file__).parent / f"called-{n}").open("a") as file:
        file.write("x")
    if n == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return n
"""


@pytest.mark.parametrize("retry", ["", f"retry = {{max_attempts = 3, {SOON}}}\n"], ids=["no_rule", "on_error"])
def test_a_call_that_kills_every_worker_fails_alone(lab, retry):
    (lab.home / "poison.py").write_text(POISON)
    loop = f'loop = {{collection = {list(range(8))}, element = "n", mode = "async", concurrency = 1, {GO_ON}}}'
    text = one_step(f'tool = "python"\ncall = "poison:call"\nargs = {{n = "{{{{ n }}}}"}}\n{loop}\n{retry}')

    done = lab.run("w", text, workers=12)

    states = {one["idx"]: one["state"] for one in done.one.iterations}
    assert states == {n: "failed" if n == 3 else "completed" for n in range(8)}
    assert done.state == "completed"
    assert len((lab.home / "called-3").read_text()) <= 7


# --- everything with everything --------------------------------------------------------------------------------

LOOPS = {
    "none": "",
    "sequential": 'loop = {collection = ["x", "y"], element = "e"}\n',
    "async": 'loop = {collection = ["x", "y"], element = "e", mode = "async", concurrency = 2}\n',
}
ON_ERROR = f"on_error = {{max_attempts = 4, {SOON}}}"
ON_SUCCESS = (
    'on_success = {while = "response.paging.hasMore", collect = "append", merge_path = "data", '
    'next_call = {params = {page = "{{ response.paging.page + 1 }}"}}}'
)
RETRIES = {
    "none": "",
    "error": f"retry = {{{ON_ERROR}}}\n",
    "success": f"retry = {{{ON_SUCCESS}}}\n",
    "both": f"retry = {{{ON_ERROR}, {ON_SUCCESS}}}\n",
}
SINKS: dict[str, Callable[[str, str], str]] = {
    "none": lambda _name, _tool: "",
    "database": lambda name, tool: f'sink = {{tool = "{tool}", table = "{name}", rows = "{{{{ result.data }}}}"}}\n',
    "jsonl": lambda name, _tool: f'sink = {{tool = "jsonl", path = "{name}.jsonl", rows = "{{{{ result.data }}}}"}}\n',
    "csv": lambda name, _tool: f'sink = {{tool = "csv", path = "{name}.csv", rows = "{{{{ result.data }}}}"}}\n',
}
MATRIX = list(itertools.product(LOOPS, RETRIES, SINKS))


def test_loop_retry_and_sink_go_together_in_every_combination(lab, api, repeat):
    if lab.sink == "postgres" and repeat(0, 1) == 0:
        pytest.skip("on PostgreSQL every combination is tried in the soak; here each alone, and all on SQLite")
    text = '[workflows.w]\n[[workflows.w.phases]]\nname = "build"\n'
    for loop, retry, sink in MATRIX:
        name = f"s_{loop}_{retry}_{sink}"
        where = f"{api.url}/{name}{{{{ e }}}}" if loop != "none" else f"{api.url}/{name}"
        text += f'[[workflows.w.phases.steps]]\nname = "{name}"\ntool = "http"\nurl = "{where}/data"\n'
        text += "params = {page = 1, pageSize = 4}\n" + LOOPS[loop] + RETRIES[retry] + SINKS[sink](name, lab.sink)
        for element in ("x", "y") if loop != "none" else ("",):
            api.sizes[f"/{name}{element}"] = 10
            if retry in {"error", "both"}:
                api.fail(f"/{name}{element}/data", Fault(status=500), Fault(status=502))

    done = lab.run("w", text + lab.connection)

    assert done.state == "completed", done.document["terminal_reason"]
    for loop, retry, sink in MATRIX:
        name = f"s_{loop}_{retry}_{sink}"
        elements = ("x", "y") if loop != "none" else ("",)
        size = 10 if retry in {"success", "both"} else 4
        wanted = sorted(f"{name}{element}-{number}" for element in elements for number in range(size))
        assert saved(lab, name, sink) in (wanted, None), name
        if (loop, retry) != ("none", "none"):
            check_cell(done.executions[name], retry, len(elements))


def saved(lab: Lab, name: str, sink: str) -> list[str] | None:
    """Return the ids that a step saved, sorted; None for one without a sink."""
    if sink == "database":
        return sorted(row["id"] for row in lab.rows(name))
    if sink == "jsonl":
        return sorted(json.loads(line)["id"] for line in (lab.home / f"{name}.jsonl").read_text().splitlines())
    if sink == "csv":
        head, *lines = (lab.home / f"{name}.csv").read_text().splitlines()
        assert head == "id"
        return sorted(lines)
    return None


def check_cell(told: Told, retry: str, elements: int) -> None:
    pages = 3 if retry in {"success", "both"} else 1
    failures = 2 if retry in {"error", "both"} else 0
    counts = told.count()
    assert counts["action_completed"] == pages * elements
    assert counts["action_failed"] == failures * elements
    assert counts["iteration_completed"] == elements
    assert counts["retry_sequence_completed"] == (elements if retry != "none" else 0)


def test_the_calls_of_a_sequence_are_one_chain_of_events(lab, api):
    api.fail("/data", Fault(status=500))

    told = lab.run("fetch", example("fetch", lab, api)).one

    calls = told.of_type("action_started", "action_completed", "action_failed")
    first = calls[0].event_id
    assert {event.retry_sequence_id for event in calls} == {first}
    parents = [event.parent_event_id for event in calls]
    assert parents[1:] == [event.event_id for event in calls[:-1]], "each has the one before as its parent"


@pytest.mark.parametrize(("failures", "state"), [(2, "completed"), (3, "failed")])
def test_a_loop_with_a_threshold_fails_when_more_fail_than_it_allows(lab, api, failures, state):
    api.fail("/echo", *[Fault(status=400)] * failures)

    done = lab.run("w", looped(api, 10, mode="sequential", on_failure="threshold", threshold=2))

    assert done.state == state
    assert done.one.row["failed"] == failures
