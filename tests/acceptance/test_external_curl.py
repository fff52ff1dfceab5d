"""A job of a build server as a phase: nothing but the lines of examples/external_task.md, which are curl."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance import cli_lab
from tests.integration.web_lab import TOKEN

PAGE = Path(__file__).parents[2] / "examples" / "external_task.md"
CLAIM, HEARTBEAT, REPORT, FAILURE, EMIT, LOOP = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
#: The same lines, with the status of the answer printed instead of a failure.
_STATUS = ("curl -fsS ", "curl -sS -o /dev/null -w '%{http_code}\\n' ")
WORKFLOWS = """
[worktree]
enabled = false

[workflows.outside]
[[workflows.outside.phases]]
name = "build"
runner = "external"
deadline_seconds = 7200
max_attempts = 2
retry = { base_seconds = 0.001, max_seconds = 0.001, strategy = "fixed" }

[workflows.hasty]
[[workflows.hasty.phases]]
name = "build"
runner = "external"
deadline_seconds = 0.001
max_attempts = 1
"""

pytestmark = pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ADW_WEB_TOKEN", TOKEN)
    monkeypatch.setenv("ADW_FORGE_KIND", "none")
    made = cli_lab.make_home(tmp_path)
    (made / "adw.toml").write_text(WORKFLOWS)
    return made


@contextmanager
def serving(home: Path):
    """Run `adw serve` without workers beside the test; give its address."""
    with cli_lab.Beside(home, "serve", "--port", "0", "--workers", "0", "--json") as beside:
        yield json.loads(beside.process.stdout.readline())["address"]
        beside.process.send_signal(signal.SIGTERM)
        beside.end()


class Job:
    """A job that has the three variables, and a shell."""

    def __init__(self, adw, home: Path, url: str, workflow: str) -> None:
        self._adw, self._home = lambda *args: adw("--home", str(home), *args), home
        start = f"""curl -fsS -X POST "$ADW_URL/api/v1/workflows" -H 'Authorization: Bearer {TOKEN}' \
          -H 'Content-Type: application/json' -d '{{"issue_number": 5, "workflow": "{workflow}"}}'"""
        self.env = {"ADW_URL": url, "PATH": "/usr/bin:/bin"}
        self.adw_id = json.loads(self.sh(start))["adw_id"]
        self.work()
        self.take()

    def take(self) -> None:
        """Get id and token of the newest task, as whoever starts the job does."""
        task = self.asked("queue", "external", "--all")["tasks"][0]["task_id"]
        shown = self.asked("queue", "external", "show", task, "--token")
        self.env |= {"ADW_TASK": task, "ADW_TASK_TOKEN": shown["token"]}

    def sh(self, *lines: str) -> str:
        done = subprocess.run(
            ["/bin/bash", "-eu", "-c", "\n".join(lines)],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=cli_lab.PATIENCE,
            check=True,
        )
        return done.stdout

    def status(self, line: str, **env: str) -> str:
        """Return the status that a line of the page is answered with."""
        self.env |= env
        return self.sh(line.replace(*_STATUS)).strip()

    def claim(self) -> None:
        self.env["claim"] = self.sh(CLAIM, 'printf %s "$claim"')

    def work(self) -> None:
        assert self._adw("worker", "--once").rc == 0

    def asked(self, *args: str):
        done = self._adw(*args, "--json")
        assert done.rc == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def document(self):
        return cli_lab.document(self._home, self.adw_id)

    def attempts(self) -> list[str]:
        return [attempt["status"] for attempt in self.document["phases"][0]["attempts"]]


def test_a_job_claims_gives_signs_of_life_and_reports_with_curl_alone(adw, home):
    with serving(home) as url:
        job = Job(adw, home, url, "outside")
        assert job.attempts() == ["waiting"]

        job.claim()
        assert job.env["claim"] == "1"
        assert json.loads(job.sh(HEARTBEAT))["worker"] == "ci-17"
        assert json.loads(job.sh(EMIT))["is_new"] is True
        assert json.loads(job.sh(REPORT)) == {"task_id": job.env["ADW_TASK"], "is_new": True}
        assert json.loads(job.sh(REPORT))["is_new"] is False
        job.work()

    assert job.document["current_state"] == "completed"
    assert job.document["phases"][0]["result"] == {"tests": 12}
    kinds = [event["event_type"] for event in job.asked("events", job.adw_id)["events"]]
    order = ["attempt_waits", "action_started", "step_completed", "action_completed", "attempt_went_on"]
    assert [kind for kind in kinds if kind in order] == order


def test_a_job_tells_of_its_loop_with_curl_and_adw_executions_shows_it(adw, home):
    with serving(home) as url:
        job = Job(adw, home, url, "outside")
        job.claim()
        job.sh(LOOP)
        job.sh(LOOP)  # a job that was started again tells the same
        loop = f"{job.env['ADW_TASK']}.users"
        (line,) = job.asked("status", job.adw_id)["executions"]
        rows = job.asked("status", loop)["iterations"]
        assert job.status(REPORT) == "200"
        job.work()

    assert (line["execution_id"], line["step"], line["state"], line["done"], line["failed"]) == (
        loop,
        "users",
        "completed",
        2,
        1,
    )
    assert [(row["state"], row["element"], row["result"], row["error"]) for row in rows] == [
        ("completed", '"ada"', '{"length": 3}', ""),
        ("failed", "null", "", "no such user"),
    ]
    assert job.document["current_state"] == "completed"
    kinds = [event["event_type"] for event in job.asked("events", job.adw_id)["events"]]
    order = ["iterator_started", "iteration_started", "iteration_completed", "iteration_failed", "iterator_completed"]
    assert [kind for kind in kinds if kind.startswith("iterat")] == order


def test_a_late_job_gets_409_and_changes_nothing(adw, home):
    with serving(home) as url:
        job = Job(adw, home, url, "outside")
        job.claim()
        job.claim()  # the job was started again
        assert job.env["claim"] == "2"

        assert [job.status(line, claim="1") for line in (HEARTBEAT, EMIT, REPORT, FAILURE)] == ["409"] * 4
        assert job.attempts() == ["waiting"]
        assert job.status(REPORT, claim="2", ADW_TASK_TOKEN="wrong") == "401"
        job.take()
        assert job.status(FAILURE, claim="2") == "200"
        job.work()
        assert job.attempts() == ["failed", "waiting"]
        assert job.status(REPORT, claim="2") == "409"  # that was the attempt before
        job.take()
        job.claim()
        assert job.status(REPORT) == "200"
        job.work()

    assert job.document["current_state"] == "completed"


def test_a_deadline_that_is_over_interrupts_the_attempt_and_the_job_gets_409(adw, home):
    with serving(home) as url:
        job = Job(adw, home, url, "hasty")
        job.work()

        assert job.attempts() == ["interrupted"]
        asked = CLAIM.partition("$(")[2].partition(" | sed")[0]
        assert [job.status(line, claim="1") for line in (asked, HEARTBEAT, REPORT)] == ["409"] * 3

    assert job.document["current_state"] == "failed"
    assert "nobody reported on task" in job.document["phases"][0]["last_failure_reason"]
