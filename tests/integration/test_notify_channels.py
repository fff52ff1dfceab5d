"""A notice reaches a real command, a real server and the issue; what fails says why, in time and without secrets."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.errors import ForgeUnavailable, NotifyFailed
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.schedule import notify
from adws.adw_modules.schedule.notify import CommandChannel, CommentChannel, HttpChannel, key_of
from adws.adw_modules.schedule.store import NotificationRow
from adws.testing import MemoryForge

SECRET = "hunter2-hunter2-hunter2"


def row(**changes) -> NotificationRow:
    fields = {
        "notice_id": 1,
        "key": "1a2b3c4d.7.0",
        "channel": "command",
        "kind": "failed",
        "adw_id": "1a2b3c4d",
        "title": f"workflow 1a2b3c4d failed: {SECRET}",
        "text": "adw status 1a2b3c4d",
        "status": "pending",
        "attempts": 1,
        "not_before": "",
        "error": "",
        "created_at": "2026-01-31T09:00:00.000000Z",
    }

    return NotificationRow(**{**fields, **changes})


# --- command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path, monkeypatch):
    clock = SystemClock()

    def make(*argv: str, seconds: float = 20.0) -> CommandChannel:
        monkeypatch.setattr(notify, "TIMEOUT_SECONDS", seconds)
        home = SimpleNamespace(
            settings=SimpleNamespace(home=tmp_path),
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GITHUB_TOKEN": SECRET},
            clock=clock,
            processes=SystemProcesses(clock=clock),
            redactor=Redactor([SECRET]),
        )
        return CommandChannel(argv=argv, home=home)

    return make


def test_a_command_gets_the_notice_in_variables_and_no_secret_of_ours(command, tmp_path):
    command("sh", "-c", "env | sort > told").send(row())

    told = (tmp_path / "told").read_text()
    assert "ADW_NOTIFY_KIND=failed" in told
    assert "ADW_NOTIFY_TITLE=workflow 1a2b3c4d failed: [redacted]" in told
    assert f"ADW_NOTIFY_KEY={key_of(row())}" in told
    assert SECRET not in told


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("sh", "-c", "echo no such channel >&2; exit 3"), "exit code 3: no such channel"),
        (("sh", "-c", "kill -9 $$"), "signal 9"),
        (("there-is-no-such-program",), "there is no command"),
    ],
    ids=["fails", "is-killed", "missing"],
)
def test_a_command_that_does_not_work_says_why(command, argv, said):
    with pytest.raises(NotifyFailed, match=said):
        command(*argv).send(row())


def test_a_command_that_hangs_is_ended(command):
    with pytest.raises(NotifyFailed, match=r"did not end within 0\.3 s"):
        command("sleep", "600", seconds=0.3).send(row())


# --- HTTP ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.server.got.append((self.path, dict(self.headers), json.loads(body)))
            self.server.may_answer.wait(30.0)
            self.send_response(self.server.status)
            if self.server.status == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *args) -> None:
            """Say nothing."""

    made = HTTPServer(("127.0.0.1", 0), Handler)
    made.got, made.status, made.may_answer = [], 204, threading.Event()
    made.may_answer.set()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.may_answer.set()
    made.shutdown()
    thread.join()
    made.server_close()


def http(server, seconds: float = 20.0) -> HttpChannel:
    url = f"http://127.0.0.1:{server.server_port}/hook?token={SECRET}"
    return HttpChannel(url=url, redactor=Redactor([SECRET]), timeout_seconds=seconds)


def test_a_notice_is_posted_as_json_under_a_key_that_stays_the_same(server):
    http(server).send(row())
    http(server).send(row(attempts=2, token=2))

    (_, headers, body), (_, again, _) = server.got
    assert body["title"] == "workflow 1a2b3c4d failed: [redacted]"
    assert headers["Idempotency-Key"] == again["Idempotency-Key"] == body["key"]


@pytest.mark.parametrize("status", [302, 404, 500])
def test_an_answer_that_is_no_success_is_a_failure_and_is_not_followed(server, status):
    server.status = status

    with pytest.raises(NotifyFailed, match=str(status)):
        http(server).send(row())
    assert len(server.got) == 1


def test_a_server_that_does_not_answer_in_time_is_a_failure_without_its_address(server):
    server.may_answer.clear()

    with pytest.raises(NotifyFailed) as failed:
        http(server, seconds=0.3).send(row())
    assert SECRET not in str(failed.value)


def test_an_address_that_is_none_is_a_failure():
    with pytest.raises(NotifyFailed):
        HttpChannel(url="http://127.0.0.1:1/", redactor=Redactor([]), timeout_seconds=1.0).send(row())
    with pytest.raises(NotifyFailed):
        HttpChannel(url="https://[::bad", redactor=Redactor([]), timeout_seconds=1.0).send(row())


# --- comments --------------------------------------------------------------------------------------------------


def comment(forge: MemoryForge, issue: int | None) -> CommentChannel:
    store = SimpleNamespace(load=lambda _adw_id: SimpleNamespace(document=SimpleNamespace(issue_number=issue)))
    home = SimpleNamespace(forge=forge, forge_key=b"k" * 32, store=store, redactor=Redactor([SECRET]))
    return CommentChannel(home=home)


def test_a_comment_is_posted_once_however_often_it_is_sent():
    forge = MemoryForge()
    issue = forge.create_issue("Door").number
    channel = comment(forge, issue)

    channel.send(row())
    channel.send(row(attempts=2))
    channel.send(row(key="1a2b3c4d.8.0", title="workflow 1a2b3c4d is completed"))

    bodies = [one.body for one in forge.comments(issue)]
    assert len(bodies) == 2
    assert bodies[0].startswith("[adw] workflow 1a2b3c4d failed: [redacted]")


def test_a_marker_that_somebody_else_copied_does_not_keep_us_silent():
    forge = MemoryForge()
    issue = forge.create_issue("Door").number
    comment(forge, issue).send(row())
    copied = forge.comments(issue)[0]
    forge.delete_comment(copied.comment_id)
    forge.seen_by("eve").create_comment(issue, copied.body)

    comment(forge, issue).send(row())

    assert len(forge.comments(issue)) == 2


def test_what_is_about_no_issue_is_not_told_there():
    forge = MemoryForge()

    comment(forge, None).send(row())
    comment(forge, 1).send(row(adw_id=""))

    assert forge.calls == []


def test_a_forge_that_does_not_answer_is_a_failure():
    class Gone(MemoryForge):
        def comments(self, number, *, since=""):
            raise ForgeUnavailable("GitHub did not answer")

    with pytest.raises(NotifyFailed, match="did not answer"):
        comment(Gone(), 1).send(row())
