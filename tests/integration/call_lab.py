"""A place to make calls of steps in: real processes, a real HTTP server, sinks in files and databases."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.document import FrozenIssue, WorkflowDocument
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.steps.iteration_worker import ToolCalls
from adws.adw_modules.steps.model import Assignment, CallReport
from adws.adw_modules.steps.tools import CallContext
from adws.adw_modules.workflow.model import SinkSpec, StepSpec
from adws.app import Home
from adws.config import load as config_load
from adws.testing import FakeClock
from tests.integration.process_lab import LabOrders

SECRET = "correct-horse-battery"
AT = "2026-01-31T09:00:00.000000Z"
DOCUMENT = WorkflowDocument(
    adw_id="1a2b3c4d",
    issue_number=7,
    repository="octo/cat",
    issue=FrozenIssue(title="Fix it", body="please"),
    created_at=AT,
    updated_at=AT,
)


class CallWorld:
    """What makes calls, and what they are given."""

    def __init__(self, place: Path, *, steps_settings: str = "") -> None:
        self.home, self.cwd, self.folder = place / "home", place / "work", place / "state"
        for folder in (self.home, self.cwd, self.folder):
            folder.mkdir()
        self.clock = FakeClock()
        self.orders = LabOrders()
        self.said: list[str] = []
        self.records: list = []
        self.env = {
            "PATH": os.environ["PATH"],
            "GITHUB_TOKEN": "ghp_ours",
            "API_TOKEN": f"Bearer {SECRET}",
            "MINE": "my own",
            "OTHER": "not asked for",
        }
        (self.home / "adw.toml").write_text(
            f"[steps]\n{steps_settings}\n[connections.main]\ntype = 'sqlite'\npath = 'user.db'\n"
        )
        settings = config_load.load(env={"ADW_HOME": str(self.home), "ADW_SANDBOX_MODE": "off"}, cwd=self.home)
        self.app = Home(settings, clock=self.clock, role="worker", env=self.env)
        self.app.processes, self.app.redactor = SystemProcesses(clock=SystemClock()), Redactor([SECRET])
        self.tools = self.app.tools
        self.calls = ToolCalls(self.app)

    def make(
        self,
        tool: str,
        *,
        sink: SinkSpec | None = None,
        index: int = 0,
        page: int = 1,
        timeout: float = 600.0,
        **inputs,
    ) -> CallReport:
        """Make one call with *inputs*."""
        step = StepSpec(name="step", tool=tool, inputs=inputs, sink=sink, timeout_seconds=timeout)
        assignment = Assignment(
            execution_id="1a2b3c4d.build.1.step", index=index, element={"id": index}, attempt_number=1, page=page
        )
        context = CallContext(
            document=DOCUMENT,
            phase="build",
            phase_attempt=1,
            values={
                "item": {"id": index},
                "index": index,
                "attempt": 1,
                "page": page,
                "issue": {"title": "Fix it; rm -rf /"},
                "workload": {"name": "o'clock $HOME"},
                "vars": {},
                "steps": {},
                "phases": {},
            },
            cwd=self.cwd,
            folder=self.folder,
            orders=self.orders,
            record_process=self.records.append,
            say=self.said.append,
            env={"GIVEN": "by the engine", "GH_TOKEN": "ghp_ours"},
        )

        return self.calls.make(step, assignment, context)

    def close(self) -> None:
        self.calls.close()
        self.app.close()


@dataclass
class Web:
    """A server that answers as it is told, and remembers what it was asked."""

    url: str = ""
    asked: list[dict] = field(default_factory=list)
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    hang: threading.Event = field(default_factory=threading.Event)  #: /hang answers when it is set

    def answer(self, path: str, body: bytes = b"", *, status: int = 200, **headers: str) -> None:
        """Answer *path* so; `Content-Type` is written as content_type."""
        self.answers[path] = (status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


@contextmanager
def serving() -> Iterator[Web]:
    """Serve on a port of this machine."""
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_it(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path, _, query = self.path.partition("?")
            web.asked.append(
                {"method": self.command, "path": path, "query": query, "body": body, **dict(self.headers.items())}
            )
            if path == "/hang":
                web.hang.wait(30)
            status, headers, payload = web.answers.get(path, (404, {}, b"there is no such thing"))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "content-length" not in {name.lower() for name in headers}:
                self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(payload)

        def log_message(self, *_args: object) -> None:
            """Say nothing."""

    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        setattr(Handler, f"do_{method}", Handler.handle_it)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    web.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield web
    finally:
        web.hang.set()
        server.shutdown()
        server.server_close()
        thread.join()
