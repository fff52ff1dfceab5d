"""
Count how far a reader travels through the five flows: functions entered, modules, changes of module.

Each flow runs on a small home whose parts are built, in place and with commands that do nothing; every function of
adws that the working thread enters is counted. Modules that every flow uses for the same small things (time, ids, JSON
types, logging, redaction, terminal output) are counted apart, as basics.

Use: .venv/bin/python scripts/lib/walks.py
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType

from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.rollback.plan import RollbackOptions
from adws.adw_modules.steps.iteration_worker import Lane
from adws.adw_triggers.trigger_webhook import WebhookReceiver
from adws.app import open_default
from adws.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = f"{ROOT}/adws/"
BASICS = (
    "adw_modules/clock.py",
    "adw_modules/errors.py",
    "adw_modules/events.py",
    "adw_modules/identifiers.py",
    "adw_modules/interfaces.py",
    "adw_modules/redaction/",
    "adw_modules/structured_logger.py",
    "adw_modules/timestamps.py",
    "app.py",
    "cli/output.py",
    "config/",
)
SECRET = "walks-webhook-secret"
TOML = """
[workflow]
default = "three"
[github]
repository = "local/repository"
[forge]
kind = "local"
[quota]
min_free_disk = "1 MiB"
min_free_memory = "1 MiB"
[[workflows.three.phases]]
name = "plan"
command = ["true"]
[[workflows.three.phases]]
name = "build"
command = ["true"]
[[workflows.three.phases]]
name = "test"
command = ["true"]
[[workflows.loop.phases]]
name = "build"
[[workflows.loop.phases.steps]]
name = "each"
tool = "python"
call = "builtins:dict"
args = { a = "{{ item }}" }
loop = [1, 2, 3]
"""


class Walk:
    """Every function of adws that one thread enters while it is on."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            self.calls.append((code.co_filename.removeprefix(PACKAGE), code.co_qualname))

    def row(self, name: str) -> str:
        path = [call for call in self.calls if not call[0].startswith(BASICS)]
        modules = [module for module, _ in path]
        changes = sum(before != after for before, after in pairwise(modules))
        basics = {module for module, _ in self.calls if module.startswith(BASICS)}
        closures = sum("<locals>" in function for _, function in path)

        numbers = (len(path), len(set(path)), len(set(modules)), len(basics), changes, closures)

        return f"| {name} | " + " | ".join(f"{number:,}" for number in numbers) + " |"


def during(walk: Walk, owner: type, name: str, number: int) -> Callable[[], None]:
    """Turn *walk* on while the method *name* of *owner* runs for that time; returns what undoes it."""
    original = getattr(owner, name)
    count = 0

    def wrapped(*args: object, **options: object) -> object:
        nonlocal count
        count += 1
        with walk.on() if count == number else contextlib.nullcontext():
            return original(*args, **options)

    setattr(owner, name, wrapped)
    return lambda: setattr(owner, name, original)


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        os.environ.update(ADW_HOME=place, ADW_WORKTREE_ENABLED="no", ADW_WEBHOOK_SECRET=SECRET)
        Path(place, "adw.toml").write_text(TOML)
        print("| flow | functions entered | distinct | modules | basics | changes of module | closures |")
        print("|---|---|---|---|---|---|---|")
        for line in rows():
            print(line)
    return 0


def rows() -> Iterator[str]:
    with open_default() as home:
        numbers = [home.forge.create_issue("A title", "A text.").number for _ in range(5)]
        people = home.settings.local_forge_dir / "forge.json"
        people.write_text(json.dumps({**_json(people), "people": {"ada": "admin"}}))
        receiver, me = WebhookReceiver(home), home.processes.me("worker")
        for number in numbers[:2]:  # the first builds the parts, the second is counted
            accepted, carried, body = Walk(), Walk(), _payload(number)
            with accepted.on():
                receiver.store([receiver.read(_head(body, number), body)])
            run = home.runs.claim(me, ttl_seconds=60.0, only_deliveries=True)
            handler = home.job_handler(run.kind)
            with carried.on():
                handler.work(run)
        yield accepted.row("webhook: bytes to 202")
        yield carried.row("webhook: delivery to workflow")

    step, resume, rollback, loop = Walk(), Walk(), Walk(), Walk()
    undo = during(step, WorkSession, "attempt", 2)
    _adw("worker", "--once")
    undo()
    yield step.row("one phase step")

    ids = []
    for number in numbers[2:4]:
        _adw("run", str(number), "--detach")
        with open_default() as home:
            ids.append(home.locks.holder(number).adw_id)
        _adw("pause", ids[-1])
    with open_default() as home:  # again the first builds the parts, and the second is counted
        home.control.resume(ids[0], by="walks")
        with resume.on():
            home.control.resume(ids[1], by="walks")
        home.rollbacks.rollback(ids[0], RollbackOptions(reason="walks"))
        with rollback.on():
            home.rollbacks.rollback(ids[1], RollbackOptions(reason="walks"))
    yield resume.row("resume")
    yield rollback.row("rollback")

    undo = during(loop, Lane, "iterate", 2)  # the first iteration loads the document and builds the parts
    _adw("run", str(numbers[4]), "--workflow", "loop", "--detach")
    _adw("worker", "--once")
    undo()
    yield loop.row("one loop iteration")


def _json(file: Path) -> dict[str, object]:
    return json.loads(file.read_text()) if file.exists() else {}


def _adw(*args: str) -> None:
    with Path(os.devnull).open("w") as silence, contextlib.redirect_stdout(silence):
        code = cli.run(list(args))
    if code:
        raise SystemExit(f"adw {' '.join(args)} ended with exit code {code}")


def _payload(number: int) -> bytes:
    person = {"login": "ada", "type": "User", "id": 1}
    issue = {"number": number, "title": "A title", "body": "A text.", "user": person, "labels": [{"name": "adw"}]}
    payload = {"action": "labeled", "issue": issue, "label": {"name": "adw"}, "sender": person}
    return json.dumps({**payload, "repository": {"full_name": "local/repository"}}).encode()


def _head(body: bytes, number: int) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "x-github-event": "issues",
        "x-github-delivery": f"11111111-2222-3333-4444-{number:012}",
        "x-hub-signature-256": "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest(),
    }


if __name__ == "__main__":
    sys.exit(main())
