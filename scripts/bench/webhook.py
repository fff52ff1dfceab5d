"""
What taking a webhook delivery costs: accepted and durable ones per second, and how long the slow ones take.

Beside it stands the least that could be called an ingress: a bare Starlette handler that checks the signature and
commits one row to SQLite (WAL, synchronous=FULL). Both are asked in the same process without sockets, by as many
clients at a time, in turns, so that whatever else the machine does slows both. Ours also reads the payload, counts
against loops, and stores the delivery with its run.

A machine that is busy with other things gives more of itself to whoever waits in many threads, which the bare handler
does: measure on a quiet one, or with `chrt --fifo 5`.

    python scripts/bench/webhook.py [--rounds 10] [--requests 200] [--clients 8] [--directory DIR]

Exit code 1: a limit was not met.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import verdict
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from adws import app as app_module
from adws.adw_triggers import trigger_webhook
from adws.config import load as config_load
from adws.web.app import create_app

#: Our rate, as a part of the rate of the bare handler.
RATE_LIMIT = 0.7
#: How much longer our slow answers may take: the 99th percentile of ours over theirs.
P99_LIMIT = 3.0
SECRET = "the-secret-of-the-benchmark"
WARM_UP = 50

Asgi = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]
]


def bare(path: Path) -> Starlette:
    """Return the handler to compare with."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.executescript(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
        "CREATE TABLE deliveries (guid TEXT PRIMARY KEY, body BLOB NOT NULL, received_at REAL NOT NULL)"
    )
    turn = threading.Lock()

    def keep(guid: str, body: bytes) -> None:
        with turn:
            database.execute("BEGIN IMMEDIATE")
            database.execute("INSERT OR IGNORE INTO deliveries VALUES (?, ?, ?)", (guid, body, time.time()))
            database.execute("COMMIT")

    async def take(request: Request) -> JSONResponse:
        body = await request.body()
        wanted = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(wanted, request.headers.get("x-hub-signature-256", "")):
            return JSONResponse({"error": "signature"}, status_code=401)
        guid = request.headers["x-github-delivery"]
        await run_in_threadpool(keep, guid, body)

        return JSONResponse({"guid": guid}, status_code=202)

    return Starlette(routes=[Route("/webhooks/github", take, methods=["POST"])])


def _urls(path: str, count: int) -> dict[str, str]:
    return {f"some_{number}_url": f"https://api.github.invalid/{path}/part{number}" for number in range(count)}


def delivery(number: int) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return a signed delivery of its own, of the size of a real one: somebody labelled an issue."""
    user = f"user-{number % 97}"
    login = {"login": user, "type": "User", "id": number} | _urls(f"users/{user}", 16)
    payload = {
        "action": "labeled",
        "label": {"name": "adw", "color": "ffffff", "description": "Work for agents"},
        "issue": {
            "number": number + 1,
            "title": f"The export forgets the last row of table {number}",
            "body": "Exports with more than a page lose their last row.\r\n\r\n"
            "1. Make a table of 101 rows\r\n2. Export it\r\n3. Count: there are 100\r\n\r\nSeen since 2.1.\r\n",
            "state": "open",
            "user": login,
            "labels": [{"name": "adw"}, {"name": "bug"}],
            **_urls(f"repos/acme/shop/issues/{number}", 8),
        },
        "repository": {"full_name": "acme/shop", "id": 5, "owner": login, **_urls("repos/acme/shop", 46)},
        "sender": login,
    }
    body = json.dumps(payload).encode()
    digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-github-event": "issues",
        "x-github-delivery": f"guid-{number}",
        "x-github-hook-id": "1",
        "x-hub-signature-256": f"sha256={digest}",
    }

    return body, [(name.encode(), value.encode()) for name, value in headers.items()]


async def post(app: Asgi, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """Make one request, without a socket."""
    status = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            status.append(message["status"])

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/webhooks/github",
        "raw_path": b"/webhooks/github",
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    await app(scope, receive, send)
    if status != [202]:
        raise SystemExit(f"a delivery was answered with {status}")


async def round_of(app: Asgi, numbers: range, clients: int) -> tuple[float, float, list[float]]:
    """Deliver *numbers*, so many at a time; return the seconds of all, of the processor, and of each."""
    waiting = [delivery(number) for number in numbers]
    times: list[float] = []

    async def client() -> None:
        while waiting:
            body, headers = waiting.pop()
            began = time.perf_counter()
            await post(app, body, headers)
            times.append(time.perf_counter() - began)

    began, worked = time.perf_counter(), time.process_time()
    await asyncio.gather(*(client() for _ in range(clients)))

    return time.perf_counter() - began, time.process_time() - worked, times


async def compare(ours: Asgi, theirs: Asgi, *, rounds: int, requests: int, clients: int) -> bool:
    """Let both work in turns, print what came of it, and say whether the limits were met."""
    for app in (ours, theirs):
        await round_of(app, range(10_000_000, 10_000_000 + WARM_UP), clients)
    rates: dict[str, list[float]] = {"ours": [], "bare": []}
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    work: dict[str, float] = {"ours": 0.0, "bare": 0.0}
    for number in range(rounds):
        numbers = range(number * requests, (number + 1) * requests)
        turns = [("ours", ours), ("bare", theirs)]
        for name, app in turns if number % 2 else turns[::-1]:
            seconds, worked, each = await round_of(app, numbers, clients)
            work[name] += worked
            rates[name].append(requests / seconds)
            times[name] += each
    for name, each in times.items():
        print(
            f"{name}: {statistics.median(rates[name]):.0f}/s, median {statistics.median(each) * 1000:.2f} ms, "
            f"p99 {_p99(each) * 1000:.2f} ms, {work[name] / len(each) * 1000:.2f} ms of processor time each"
        )
    rate = statistics.median(a / b for a, b in zip(rates["ours"], rates["bare"], strict=True))
    p99 = _p99(times["ours"]) / _p99(times["bare"])
    is_fast = verdict.tell("deliveries a second beside a bare handler", rate, least=RATE_LIMIT)

    return verdict.tell("p99 of a delivery beside a bare handler", p99, most=P99_LIMIT) and is_fast


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare our ingress with a bare handler.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=200, help="deliveries in each round")
    parser.add_argument("--clients", type=int, default=8, help="deliveries at a time")
    parser.add_argument("--directory", type=Path, help="where the databases are made; by default a temporary one")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.directory) as place:
        home = Path(place) / "home"
        home.mkdir()
        env = {
            "ADW_HOME": str(home),
            "ADW_GITHUB_REPOSITORY": "acme/shop",
            "ADW_WEBHOOK_SECRET": SECRET,
        }
        trigger_webhook.SENDER_LIMIT = 1_000_000  # it is counted all the same
        with app_module.open_home(config_load.load(env=env, cwd=home), role="web") as app:
            door = create_app(app)
            met = asyncio.run(
                compare(
                    door,
                    bare(Path(place) / "bare.db"),
                    rounds=chosen.rounds,
                    requests=chosen.requests,
                    clients=chosen.clients,
                )
            )
            door.close()
            stored = len({row.guid for row in app.deliveries.page(limit=1000)})
    print(f"of ours the newest {stored} were read back")

    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
