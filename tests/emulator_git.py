"""
What the GitHub emulator lacks: it has no git transport, so it never learns what was pushed.

A server in front of it that passes every request on, and answers with the commits of a bare repository where the
emulator makes one up: the head of a pull request.
"""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

#: Headers that say something about the request or the answer itself, not about the way it takes.
PASSED_ON = ("authorization", "content-type", "accept", "link")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    emulator: str
    remote: Path

    def _pass_on(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        request = urllib.request.Request(
            self.emulator + self.path,
            method=self.command,
            data=self.rfile.read(length) if length else None,
            headers={name: value for name, value in self.headers.items() if name.lower() in PASSED_ON},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, headers, body = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                status, headers, body = refused.code, refused.headers, refused.read()
        body = json.dumps(self._with_heads(json.loads(body))).encode() if body else body
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() in PASSED_ON or name.lower().startswith("x-"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _pass_on  # noqa: N815 - what http.server calls

    def _with_heads(self, found):
        """Return an answer in which every pull request has the head that was pushed."""
        if isinstance(found, list):
            return [self._with_heads(one) for one in found]
        if isinstance(found, dict) and isinstance(head := found.get("head"), dict) and "sha" in head:
            return {**found, "head": {**head, "sha": self._pushed(head["ref"]) or head["sha"]}}

        return found

    def _pushed(self, branch: str) -> str:
        command = ["git", "--git-dir", str(self.remote), "rev-parse", "-q", "--verify", f"refs/heads/{branch}"]

        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    def log_message(self, *_args: object) -> None:
        """Say nothing: a test that fails shows what it got."""


@contextmanager
def knowing_git(emulator: str, remote: Path) -> Iterator[str]:
    """Yield the address of *emulator* as one that knows what is on *remote*."""
    handler = type("Handler", (_Handler,), {"emulator": emulator, "remote": remote})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
