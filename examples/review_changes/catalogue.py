# ruff: noqa: INP001 - a script beside its example, and no package
"""
A small API on this machine, for the example beside it: advisories in pages, every seventh request fails.

    python catalogue.py [PORT]

Prints its address when it is ready. Port 0 takes a free one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SEVERITIES = ("low", "moderate", "high")
ADVISORIES = [
    {"id": f"ADV-{number:03}", "package": f"package-{number % 17}", "severity": SEVERITIES[number % 3]}
    for number in range(1, 91)
]


class Handler(BaseHTTPRequestHandler):
    """Answers `GET /advisories?limit=20&cursor=c20`."""

    requests = itertools.count(1)

    def do_GET(self) -> None:
        """Answer with a page."""
        found = urlsplit(self.path)
        query = parse_qs(found.query)
        if next(self.requests) % 7 == 3:
            self.answer(503, {"error": "busy, try again"})
        elif found.path != "/advisories":
            self.answer(404, {"error": f"there is no {found.path}"})
        else:
            first, limit = int(query.get("cursor", ["c0"])[0][1:]), int(query.get("limit", ["20"])[0])
            last = first + limit
            more = f"c{last}" if last < len(ADVISORIES) else None
            self.answer(200, {"items": ADVISORIES[first:last], "next": more})

    def answer(self, status: int, value: Any) -> None:
        """Send JSON."""
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        """Say nothing about each request."""


def main() -> None:
    """Serve until it is interrupted."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8099
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
