"""A server that runs beside the test: `adw serve` with real workers, and a client of its API."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.acceptance import cli_lab
from tests.integration.web_lab import TOKEN

PATIENCE = cli_lab.PATIENCE


@contextmanager
def serving(home: Path, *options: str, program: tuple[str, ...] = ()):
    """Run `adw serve` beside the test; give it and a client of its API."""
    with cli_lab.Beside(home, "serve", "--port", "0", "--json", *options, program=program) as beside:
        told = json.loads(beside.process.stdout.readline())
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=told["address"], headers=headers, timeout=PATIENCE) as client:
            yield beside, client
        if beside.process.poll() is None:
            beside.process.send_signal(signal.SIGTERM)
        beside.end()


def started(client: httpx.Client, workflow: str, issue: int = 5) -> str:
    answer = client.post("/api/v1/workflows", json={"issue_number": issue, "workflow": workflow})
    assert answer.status_code == 201, answer.text
    return answer.json()["adw_id"]


def follow(home: Path, adw_id: str) -> None:
    """Return when the workflow has stopped: `adw events -f` waits for that."""
    subprocess.run(
        [cli_lab.ADW, "--home", str(home), "events", adw_id, "-f"], check=True, capture_output=True, timeout=PATIENCE
    )
