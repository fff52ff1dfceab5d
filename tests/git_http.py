"""
Git over HTTP: a bare repository on this disk, served by git itself under the address that it would have at a forge.

For tests with a forge that has no git transport of its own: the remote of a home is then where its forge says it is.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Handler(BaseHTTPRequestHandler):
    """Hands every request to `git http-backend`, a program for web servers."""

    protocol_version = "HTTP/1.1"
    remote: Path
    may_push: bool

    def _answer(self) -> None:
        place, _, query = self.path.partition("?")
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.remote.parent),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "http.receivepack",
            "GIT_CONFIG_VALUE_0": "true" if self.may_push else "false",
            "PATH_INFO": f"/{self.remote.name}/{place.partition('.git/')[2]}",
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type") or "",
            "CONTENT_LENGTH": self.headers.get("Content-Length") or "",
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
            "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
        }
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        said = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=False).stdout
        head, _, content = said.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().splitlines() if ": " in line)
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer  # noqa: N815 - http.server calls them by these names

    def log_message(self, *_: object) -> None:
        """Say nothing: a test that fails shows what it got."""


@contextmanager
def serving_git(remote: Path, repository: str, *, host: str = "127.0.0.1", may_push: bool = True) -> Iterator[str]:
    """
    Yield the address under which *remote*, which need not be there yet, is served as *repository* of *host*.

    Inside the block git may speak HTTP, which the guard of all tests forbids it.
    """
    handler = type("Handler", (_Handler,), {"remote": remote, "may_push": may_push})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    allowed = os.environ.get("GIT_ALLOW_PROTOCOL", "")
    os.environ["GIT_ALLOW_PROTOCOL"] = "file:http"
    try:
        yield f"http://{host}:{server.server_port}/{repository}.git"
    finally:
        os.environ["GIT_ALLOW_PROTOCOL"] = allowed
        server.shutdown()
        thread.join()
        server.server_close()
