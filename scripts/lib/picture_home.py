"""
The home that the pictures of the dashboard show: a small shop, two weeks of work on it, and work that goes on.

Everything in it was done by the engine, the git and the forge that adw has. Only the agent is a script, and for the
days before today the clock stands back.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from adws.adw_modules.forge.effects import freeze
from adws.adw_modules.forge.local import LocalForge
from adws.adw_modules.interfaces import Clock, PageQuery
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.app import Home, open_home
from adws.config import load as config_load

AGENT = Path(__file__).with_name("picture_agent.py")
REPOSITORY = "acme/shop"

ADW_TOML = """\
[forge]
kind = "local"
dir = "forge"

[github]
repository = "acme/shop"

[agent]
name = "claude"
programs = {agent}

[phases.build]
retry = {{ strategy = "fixed", base_seconds = 0.05 }}

[phases.lint]
command = [{python}, "-c", "print('no complaints')"]

[phases.test]
command = [{python}, "-c", "print('43 tests passed')"]

[worker]
host = "build-1"

[quota]
min_free_disk = "64 MiB"
min_free_memory = "64 MiB"
max_cost_per_day = 12
max_worktrees = 40

[workflows.with_approval]
description = "The plan is looked at by a person."
[[workflows.with_approval.phases]]
name = "plan"
prompt = "plan"
runner = "agent"
gate = "human"
[[workflows.with_approval.phases]]
name = "build"
prompt = "build"
runner = "agent"

[workflows.check_suppliers]
description = "Ask every supplier for its prices, a few at a time."
[[workflows.check_suppliers.phases]]
name = "test"
[[workflows.check_suppliers.phases.steps]]
name = "prices"
tool = "command"
command = [{python}, {supplier}, "{{{{ supplier }}}}"]
[workflows.check_suppliers.phases.steps.loop]
collection = ["Alder", "Birch", "Cedar", "Damson", "Elder", "Fir", "Gorse", "Hazel", "Ivy", "Juniper", "Kale", "Larch"]
element = "supplier"
mode = "async"
concurrency = 3
on_failure = "continue"
[workflows.check_suppliers.phases.steps.retry.on_error]
max_attempts = 2
backoff = "fixed"
base_seconds = 1800
max_seconds = 1800
"""

#: Asks a supplier for prices: most answer, one does not, and one takes long.
SUPPLIER = """\
import sys, time
name = sys.argv[1]
if name == "Damson":
    sys.exit("HTTP 404: there is no price list at this address")
if name in ("Hazel", "Ivy"):
    sys.exit("connection reset by peer")
if name in ("Juniper", "Kale", "Larch"):
    time.sleep(900)
print(f"{len(name) * 17} prices of {name}")
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """An issue, and how the work on it goes."""

    title: str
    workflow: str = "plan_build_test_review"
    turns: dict[str, list[str]] = field(default_factory=dict)  #: phase -> what the agent does in each attempt


_RESET = "connection reset by peer"
_OVERLOADED = "API Error: 529 overloaded_error"
_FAILS = "2 tests failed: test_basket_total, test_tax_of_books"

#: Days ago -> what was done on that day.
PAST: dict[int, tuple[Work, ...]] = {
    13: (Work(title="Sort products by price"), Work(title="Remember the basket for a week")),
    12: (Work(title="Mail when an order is sent", turns={"build": [_RESET, "ok"]}),),
    11: (Work(title="Faster start page"), Work(title="Import of suppliers", turns={"build": [_FAILS]})),
    10: (Work(title="Search by colour"), Work(title="Show what is in stock"), Work(title="Tidy the style sheets")),
    8: (Work(title="Prices with tax for every country", turns={"build": [_OVERLOADED, _OVERLOADED, "ok"]}),),
    7: (Work(title="Tell people about delays"), Work(title="Undo a cancelled order", turns={"build": [_FAILS]})),
    6: (Work(title="Pictures load late"), Work(title="Export orders as CSV")),
    5: (Work(title="A page for gift cards"), Work(title="Names with an apostrophe")),
    4: (Work(title="Rate limits for the login", turns={"review": [_RESET, "ok"]}),),
    3: (Work(title="Print the address on the label"), Work(title="Cents are lost in sums", turns={"build": [_FAILS]})),
    2: (Work(title="Let people change their mail address"), Work(title="Older browsers show no menu")),
    1: (
        Work(title="Count visits without cookies"),
        Work(title="Links in the footer are dead"),
        Work(title="Orders of companies", turns={"build": [_OVERLOADED, "ok"]}),
    ),
    0: (
        Work(title="Show opening hours", workflow="sdlc", turns={"build": [_RESET, "ok"]}),
        Work(title="Vouchers are taken twice", turns={"build": [_FAILS]}),
    ),
}
#: What goes on while the pictures are taken.
NOW: tuple[Work, ...] = (
    Work(title="Rename the tables of orders", workflow="with_approval"),
    Work(
        title="Say why a card was declined",
        turns={"build": ["API Error: 429 rate_limit_error: too many requests. Retry-After: 1500"]},
    ),
)
LOOP = Work(title="Ask suppliers for prices every night", workflow="check_suppliers")
AT_WORK = Work(title="Let people pay by invoice", workflow="sdlc", turns={"build": [_RESET, "wait"]})


#: Finds a workflow that went well and can still be undone.
COMPLETED = PageQuery(limit=1, state="completed", workflow="plan_build_test_review")


class ClockOfBefore:
    """The clock of the machine, so many days back."""

    def __init__(self, real: Clock, days: int) -> None:
        self._real = real
        self._back = timedelta(days=days)

    def now(self) -> datetime:
        return self._real.now() - self._back

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


class PictureHome:
    """The home."""

    def __init__(self, place: Path) -> None:
        self.path = place / "shop"
        self.path.mkdir(parents=True)
        self._folder = place / "agent"
        self._folder.mkdir()
        self._script: dict[str, dict[str, list[str]]] = {}
        self._write_files()

    def open(self, *, days_ago: int = 0) -> Home:
        """Return its parts, under the clock of that day."""
        settings = config_load.load(env={}, cwd=self.path, overrides={"home": str(self.path)})
        if not days_ago:
            return open_home(settings, role="worker")

        return open_home(settings, role="worker", wrap_clock=lambda clock: ClockOfBefore(clock, days_ago))  # type: ignore[arg-type,return-value]  # the rest is that of the clock behind it

    def do(self, work: Work, app: Home) -> str:
        """Write the issue and accept a workflow for it; return its id."""
        forge = app.forge
        if not isinstance(forge, LocalForge):
            raise SystemExit("the home of the pictures should have a local forge")
        number = forge.create_issue(work.title, f"{work.title}, please.", labels=("adw",), author="ada").number
        self._script[str(number)] = work.turns
        (self._folder / "script.json").write_text(json.dumps(self._script), encoding="utf-8")
        spec = app.workflows.get(work.workflow)
        start = NewWorkflow(
            issue_number=number, spec=spec, issue=freeze(forge.issue(number)), repository=REPOSITORY, asked_by="ada"
        )

        return app.workflow_creator.start(start).adw_id

    def live_through(self, days_ago: int) -> None:
        """Do the work of one day of the past."""
        with self.open(days_ago=days_ago) as app:
            for work in PAST.get(days_ago, ()):
                self.do(work, app)
                _work_until_nothing_is_due(app)

    def _write_files(self) -> None:
        python = json.dumps(sys.executable)
        starter, supplier = self._folder / "agent", self._folder / "supplier.py"
        words = shlex.join([sys.executable, "-I", "-S", str(AGENT), str(self._folder)])
        starter.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        starter.chmod(0o755)
        supplier.write_text(SUPPLIER, encoding="utf-8")
        toml = ADW_TOML.format(python=python, agent=json.dumps(f"claude={starter}"), supplier=json.dumps(str(supplier)))
        (self.path / "adw.toml").write_text(toml, encoding="utf-8")
        (self.path / "shop.py").write_text("PRICES = {}\n", encoding="utf-8")
        (self.path / ".gitignore").write_text("state/\ntrees/\nforge/\n__pycache__/\n", encoding="utf-8")
        self._git("init", "--quiet", "--initial-branch", "main")
        self._git("add", ".")
        self._git("commit", "--quiet", "--message", "A shop")
        with self.open() as app:
            if isinstance(app.forge, LocalForge):
                app.forge.prepare("main")
                self._git("remote", "add", "origin", app.forge.remote_url())
                self._git("push", "--quiet", "origin", "main")

    def _git(self, *arguments: str) -> None:
        who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.invalid")
        subprocess.run(["git", *who, *arguments], cwd=self.path, check=True, capture_output=True)


def _work_until_nothing_is_due(app: Home) -> None:
    while True:
        app.worker(WorkerOptions(once=True, recover_seconds=3600.0)).run()
        due = app.runs.seconds_to_next()
        if due is None or due > 5.0:
            return
        app.clock.sleep(max(0.0, due))
