"""The web door of a real home over real SQLite, asked without a socket, and deliveries that are signed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from adws import app as app_module
from adws.adw_modules.worker.worker import WorkerOptions
from adws.config import load as config_load
from adws.testing import FakeClock
from adws.web.app import create_app

TOKEN = "token-of-the-tests-0123456789"
SECRET = "secret-of-the-tests"
REPOSITORY = "acme/shop"
WORKFLOWS = """
[workflow]
default = "short"

[workflows.short]
[[workflows.short.phases]]
name = "plan"
shell = "echo the plan"

[workflows.gated]
[[workflows.gated.phases]]
name = "plan"
shell = "echo plan"
gate = "human"
max_attempts = 3

[workflows.broken]
[[workflows.broken.phases]]
name = "build"
shell = "exit 7"
max_attempts = 1
"""


@dataclass
class WebLab:
    """A home, its web door, and ways to ask it."""

    home: Path
    env: dict[str, str] = field(default_factory=dict)
    clock: FakeClock | None = None  #: None: that of the machine

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "adw.toml").write_text(WORKFLOWS)
        self.app = self.open()
        self.door = create_app(self.app)

    def open(self, role: str = "web") -> app_module.Home:
        env = {
            "ADW_HOME": str(self.home),
            "ADW_FORGE_KIND": "none",
            "ADW_GITHUB_REPOSITORY": REPOSITORY,
            "ADW_WEB_TOKEN": TOKEN,
            "ADW_WEBHOOK_SECRET": SECRET,
            "ADW_WORKTREE_ENABLED": "false",
            **self.env,
        }
        settings = config_load.load(env={k: v for k, v in env.items() if v}, cwd=self.home)

        return app_module.open_home(settings, role=role, wrap_clock=lambda real: self.clock or real)

    def close(self) -> None:
        self.door.close()
        self.app.close()

    def __enter__(self):
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    # --- asking --------------------------------------------------------------------------------------------------

    def client(self, **options) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.door, raise_app_exceptions=False),
            base_url="http://adw.invalid",
            **options,
        )

    def ask(self, method: str, path: str, *, token: str | None = TOKEN, **request) -> httpx.Response:
        """Make one request to the API."""
        headers = {**request.pop("headers", {}), **({"Authorization": f"Bearer {token}"} if token else {})}

        async def one() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, headers=headers, **request)

        return asyncio.run(one())

    def get(self, path: str, **params) -> dict:
        answer = self.ask("GET", path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: object = None) -> httpx.Response:
        return self.ask("POST", path, **({} if body is None else {"json": body}))

    def deliver(
        self, *deliveries: tuple[bytes, dict[str, str]], path: str = "/webhooks/github"
    ) -> list[httpx.Response]:
        """Send deliveries, all at once, over as many connections."""

        async def all_of_them() -> list[httpx.Response]:
            async with self.client() as client:
                return await asyncio.gather(
                    *(client.post(path, content=body, headers=headers) for body, headers in deliveries)
                )

        return asyncio.run(all_of_them())

    # --- work ----------------------------------------------------------------------------------------------------

    def start(self, issue: int = 1, workflow: str = "") -> str:
        answer = self.post("/api/v1/workflows", {"issue_number": issue, "workflow": workflow})
        assert answer.status_code == 201, answer.text
        return answer.json()["adw_id"]

    def work(self) -> None:
        """Be a worker until nothing is due."""
        with self.open("worker") as app:
            app.worker(WorkerOptions(once=True, recover_seconds=3600.0)).run()

    def state(self, adw_id: str) -> str:
        return self.get(f"/api/v1/workflows/{adw_id}")["state"]


def labelled(issue: int = 7, *, guid: str = "guid-1", sender: str = "ada", **changes) -> tuple[bytes, dict[str, str]]:
    """Return a delivery that says that *sender* gave an issue the label of adw."""
    payload = {
        "action": "labeled",
        "label": {"name": "adw"},
        "issue": {
            "number": issue,
            "title": "Add a fine thing",
            "body": "Please.",
            "state": "open",
            "user": {"login": "bob", "type": "User"},
            "labels": [{"name": "adw"}],
            "html_url": f"https://github.invalid/{REPOSITORY}/issues/{issue}",
        },
        "repository": {"full_name": REPOSITORY, "id": 5},
        "sender": {"login": sender, "type": "User"},
        **changes,
    }

    return signed(json.dumps(payload).encode(), guid=guid, event="issues")


def signed(
    body: bytes, *, guid: str = "guid-1", event: str = "issues", secret: str = SECRET
) -> tuple[bytes, dict[str, str]]:
    """Return *body* with the headers that GitHub sends along."""
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()

    return body, {
        "Content-Type": "application/json",
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": guid,
        "X-GitHub-Hook-ID": "1",
        "X-Hub-Signature-256": f"sha256={digest}",
    }
