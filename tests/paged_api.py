"""
A real HTTP server that answers in pages, fails when it is told to, and remembers who asked for what.

Faults are queued for a path and used up one by one; after them the path answers as it should. Nothing here waits for
time to pass: a request that is left hanging hangs until the server is closed.
"""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Answers a page of `/data` has without `pageSize`.
PAGE_SIZE = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What is answered in place of the right answer."""

    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    hangs: bool = False  #: answers nothing at all
    drops: bool = False  #: closes the connection in the middle of the answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: str
    status: int = 200


class PagedApi:
    """What the server knows; `url` is where it is."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.sizes: dict[str, int] = {}  #: path in front of `/data` -> how many items it has; others have 25
        self.polls: dict[str, int] = {}  #: path in front of `/data` -> requests until `hasMore` is false
        self._faults: dict[str, list[Fault]] = {}
        self._polls: Counter[str] = Counter()
        self._most: Counter[str] = Counter()
        self._now: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.closing = threading.Event()
        self.gates: dict[str, threading.Barrier] = {}  #: path -> so many requests must be there before one is answered

    def fail(self, path: str, *faults: Fault) -> None:
        """Answer the next requests for *path* with *faults*."""
        with self._lock:
            self._faults.setdefault(path, []).extend(faults)

    def count(self, path: str, **query: str) -> int:
        """Return how often *path* was asked for with (at least) this query."""
        with self._lock:
            return sum(1 for one in self.asked if one.path == path and query.items() <= one.query.items())

    def pages(self, path: str) -> list[str]:
        """Return the pages that were asked for, in the order of the requests."""
        with self._lock:
            return [one.query.get("page", "") for one in self.asked if one.path == path]

    def most_at_once(self, path: str) -> int:
        """Return the largest number of requests for *path* that were under way at a time."""
        return self._most[path]

    # --- for the handler ---------------------------------------------------------------------------------------

    def next_fault(self, path: str) -> Fault | None:
        """Return the fault that is due for *path*."""
        with self._lock:
            waiting = self._faults.get(path)
            return waiting.pop(0) if waiting else None

    def note(self, asked: Asked) -> None:
        """Remember a request."""
        with self._lock:
            self.asked.append(asked)

    @contextmanager
    def under_way(self, path: str) -> Iterator[None]:
        """Count a request as long as it is answered."""
        with self._lock:
            self._now[path] += 1
            self._most[path] = max(self._most[path], self._now[path])
        try:
            yield
        finally:
            with self._lock:
                self._now[path] -= 1

    def answer(self, method: str, path: str, query: dict[str, str], body: str) -> tuple[int, Any]:
        """Return status and JSON of the right answer."""
        head, _, last = path.rpartition("/")
        if head == "/job":
            return 200, self._poll(last)
        answers: dict[str, Callable[[], Any]] = {
            "data": lambda: self._page(head, query),
            "cursor": lambda: self._after(query),
            "stuck": lambda: {"items": [1], "next": "same"},
            "users": lambda: {"total": 2, "users": ["ada", "bob"]},
            "process": lambda: {"user": query.get("user", ""), "length": len(query.get("user", ""))},
            "job": lambda: {"id": "j1", "state": "pending"},
            "echo": lambda: {"query": query, "body": body, "method": method},
        }
        if last not in answers:
            return 404, {"error": f"no {path} here"}

        return 201 if method == "POST" else 200, answers[last]()

    def _page(self, head: str, query: dict[str, str]) -> Any:
        total = self.sizes.get(head, 25)
        size, page = int(query.get("pageSize", PAGE_SIZE)), int(query.get("page", 1))
        first = (page - 1) * size
        items = [{"id": f"{head.strip('/') or 'all'}-{number}"} for number in range(first, min(first + size, total))]
        has_more = first + size < total

        with self._lock:
            self._polls[head] += 1
            is_polled_again = self._polls[head] < self.polls.get(head, 1)

        padding = {"padding": "x" * int(query["padding"])} if "padding" in query else {}

        return {**padding, "data": items, "paging": {"page": page, "hasMore": has_more}, "hasMore": is_polled_again}

    def _after(self, query: dict[str, str]) -> Any:
        first = int(query.get("cursor", "c0")[1:])
        total = self.sizes.get("cursor", 5)
        items = list(range(first, min(first + 2, total)))

        return {"items": items, "next": f"c{first + 2}" if first + 2 < total else None}

    def _poll(self, job: str) -> Any:
        with self._lock:
            self._polls[job] += 1
            return {"id": job, "state": "pending" if self._polls[job] < 3 else "done"}


class _Handler(BaseHTTPRequestHandler):
    api: PagedApi
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        result = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(result.query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        with self.api.under_way(result.path):
            gate = self.api.gates.get(result.path)
            if gate is not None:
                gate.wait(60.0)
            fault = self.api.next_fault(result.path)
            if fault is None:
                status, value = self.api.answer(self.command, result.path, query, body)
                fault = Fault(status=status, body=value)
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.api.note(
                Asked(
                    method=self.command, path=result.path, query=query, headers=headers, body=body, status=fault.status
                )
            )
        self._send(fault)

    def _send(self, fault: Fault) -> None:
        if fault.hangs:
            self.api.closing.wait()
            self.close_connection = True
            return
        text = json.dumps(fault.body).encode()
        self.send_response(fault.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text) + (100 if fault.drops else 0)))
        for name, value in fault.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)
        self.close_connection = self.close_connection or fault.drops

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed in the middle is what tests are about."""


@contextmanager
def serving() -> Iterator[PagedApi]:
    """Serve on a free port of this machine inside the block."""
    api = PagedApi()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
