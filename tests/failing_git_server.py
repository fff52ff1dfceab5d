"""A git remote over HTTP, served by git's own `http-backend`, that answers 502, say, for as long as a test wants."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BACKEND = ["git", "http-backend"]


class GitServer:
    """The running server."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.failures_left = 0  #: requests of a push that are answered with an error; below 0: all
        self.status = 502  #: of those answers
        self.tries = 0  #: requests before those that are answered: the preflight of a start tries a push
        self.refused = 0  #: how many were refused
        self._guard = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))

    @property
    def url(self) -> str:
        """The address of the repository."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/{self.repository.name}"

    def is_down(self) -> bool:
        """Count a request of a push; say whether it is refused."""
        with self._guard:
            if self.tries:
                self.tries -= 1
                return False
            if not self.failures_left:
                return False
            self.failures_left -= 1
            self.refused += 1
            return True

    @contextmanager
    def running(self) -> Iterator[GitServer]:
        """Serve inside the block."""
        thread = threading.Thread(target=self._http.serve_forever, name="git-http", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            thread.join()
            self._http.server_close()


def serve(repository: Path) -> GitServer:
    """Return a server for the bare *repository*, which anybody may push to."""
    subprocess.run(["git", "-C", str(repository), "config", "http.receivepack", "true"], check=True)
    return GitServer(repository)


def _handler_of(server: GitServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

        def _answer(self, content: bytes) -> None:
            path, _, query = self.path.partition("?")
            if "git-receive-pack" in self.path and server.is_down():
                self.send_error(server.status)
                return
            env = {
                **os.environ,
                "GIT_PROJECT_ROOT": str(server.repository.parent),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(content)),
                "REMOTE_ADDR": "127.0.0.1",
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            done = subprocess.run(BACKEND, input=content, capture_output=True, env=env, check=True)
            head, _, body = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Say nothing."""

    return Handler
