"""A home with a real database, repository and forge as files, to which deliveries come."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import Actor, Command, Delivery, RunRequest
from adws.adw_modules.forge.model import IssueText
from tests import warm
from tests.integration.work_lab import WorkLab, make_work_lab

ADW = warm.ADW
ADA = Actor(login="ada")
TOML = """
[workflow]
default = "short"
[forge]
kind = "local"
[quota]
min_free_disk = "1 MiB"
min_free_memory = "1 MiB"
[webhook]
max_followups = 3
[[workflows.short.phases]]
name = "plan"
shell = "echo steps > plan.md"
[[workflows.short.phases]]
name = "build"
shell = "echo $ADW_ID >> made.txt"
[[workflows.short.phases]]
name = "ship"
runner = "ship"
on_rework = "build"
needs = ["plan", "build"]
"""


class DeliveryHome:
    """A home to which deliveries come, and issue 1 in it; `ada` may write."""

    def __init__(self, place: Path, **env: str) -> None:
        self.lab: WorkLab = make_work_lab(place, **env)
        (self.lab.home / "adw.toml").write_text(TOML)
        with self.lab.open() as app:
            self.issue = app.forge.create_issue("Add a fine thing", "Please.").number
            file = app.settings.local_forge_dir / "forge.json"
        data = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**data, "people": {"ada": "write"}}))
        self._count = 0

    def request(self, actor: Actor = ADA) -> RunRequest:
        issue = IssueText(number=self.issue, title="Add a fine thing", body="Please.", author="mona")
        return RunRequest(repository="", issue=issue, actor=actor, cause="label")

    def command(self, kind: str, **fields) -> Command:
        usual = {"repository": "", "number": self.issue, "actor": ADA, "cause": "comment"}
        return Command(**{"kind": kind, **usual, **fields})

    def deliver(self, app, request: RunRequest | Command) -> str:
        self._count += 1
        guid = f"guid-{self._count}"
        data = commands.to_json(request)
        made = Delivery(
            guid=guid,
            event="issues",
            action="labeled",
            hook="",
            body=guid.encode(),
            body_hash=guid,
            sender=request.actor.login,
            repository="",
            number=self.issue,
            verdict=str(data["type"]),
            reason="asked",
            request=data,
        )
        app.deliveries.accept([made])
        return guid

    def carry_out(self, request: RunRequest | Command) -> Delivery:
        """Deliver, work on everything that is due, and return what came of it."""
        with self.lab.open() as app:
            guid = self.deliver(app, request)
        self.lab.work()
        with self.lab.open() as app:
            return app.deliveries.get(guid)

    def document(self, adw_id: str):
        return self.lab.document(adw_id)

    def adw(self, *args: str) -> subprocess.Popen[str]:
        env = {**os.environ, "ADW_HOME": str(self.lab.home), **self.lab.env}
        return warm.Popen(
            [ADW, *args], cwd=self.lab.home, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
