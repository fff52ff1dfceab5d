"""
Kill a worker right after the doctor's decision is stored, or while the doctor is asked, and let the next one go on.

Run by test_crash_doctor.py as a program of its own, so that forking is safe. Prints one JSON object: what the document
says after each kill and at the end, and which attempts really ran.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from adws import app as app_module
from adws.adw_modules.engine.advisor import Advice
from adws.adw_modules.errors import GateFailed
from adws.adw_modules.phase import RunReport
from adws.adw_modules.queue.model import FINAL_RUNS, RunResult
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.adw_modules.workflow.model import PhaseSpec, RetrySpec, WorkflowSpec
from adws.config import load as config_load

#: The decision during which the doctor itself is cut off.
ASKING = "asking"
SOON = RetrySpec(strategy="fixed", base_seconds=0.05, max_seconds=0.05)


class Agent:
    """Fails the first attempt at build, as a gate would, and writes down what it was asked for."""

    def __init__(self, home: Path) -> None:
        self._notes = home / "ran.txt"

    def check(self, phase: PhaseSpec) -> str:
        del phase
        return ""

    def run(self, phase: PhaseSpec, context) -> RunReport:
        hints = ";".join(context.hints)
        with self._notes.open("a") as notes:
            notes.write(f"{phase.name} {context.model or '-'} {hints}\n")
        if phase.name == "build" and context.attempt_number == 1:
            return RunReport(ok=False, error=GateFailed("build", "3 tests fail"), cost_usd=0.25)
        return RunReport(ok=True, cost_usd=0.25)


class Advisor:
    """Decides what it was told to; says in a file that it was asked."""

    name = "told"
    is_free = False

    def __init__(self, home: Path, decision: str) -> None:
        self._notes = home / "asked.txt"
        self._decision = decision

    def ask(self, case) -> Advice:
        with self._notes.open("a") as notes:
            notes.write(f"{case.record.attempts[-1].number}\n")
        if self._decision == ASKING:
            os.kill(os.getpid(), signal.SIGKILL)
        model = "large" if self._decision == "retry_model" else ""
        return Advice(decision=self._decision, reason="as told", model=model, by=self.name)


def open_home(home: Path, store: str, decision: str, *, is_killed: bool = False) -> app_module.Home:
    """Open *home* with our agent and our doctor; *is_killed* kills the process when a decision is stored."""
    env = {
        "ADW_HOME": str(home),
        "ADW_STATE_STORE": store,
        "ADW_AGENT_PROGRAMS": f"claude={sys.executable}",
        "ADW_SANDBOX_MODE": "off",
    }
    app = app_module.open_home(config_load.load(env=env, cwd=home), role="worker")
    app.recovery.policy = replace(app.recovery.policy, max_losses=1000)  # killed workers do not make a run poison

    def tell(_document, events) -> None:
        if is_killed and any(event.event_type == "doctor_decided" for event in events):
            os.kill(os.getpid(), signal.SIGKILL)

    app.phase_runners = {**app.phase_runners, "claude": Agent(home)}
    app.advisor, app.tell = Advisor(home, decision), tell

    return app


def start_workflow(home: Path, store: str, decision: str) -> str:
    """Accept a workflow of two phases and return its id."""
    phases = tuple(
        PhaseSpec(name=name, state=state, runner="claude", prompt=name, retry=SOON)
        for name, state in (("plan", "planning"), ("build", "building"))
    )
    with open_home(home, store, decision) as app:
        return app.workflow_creator.start(
            NewWorkflow(issue_number=1, max_total_attempts=None, spec=WorkflowSpec(name="examined", phases=phases))
        ).adw_id


def work(home: Path, store: str, decision: str, *, is_killed: bool) -> None:
    """Be a worker until the workflow's run is over."""
    with open_home(home, store, decision, is_killed=is_killed) as app:

        def stop_when_over(end: RunResult) -> None:
            if end.run is None or end.run.state in FINAL_RUNS:
                worker.drain()

        worker = app.worker(WorkerOptions(recover_seconds=3600.0), on_end=stop_when_over)
        worker.run()


def in_a_child(action) -> int:
    """Run *action* in a forked child and return how that ended: 0, or the number of the signal, negative."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        action()
        os._exit(0)
    except BaseException:
        logging.getLogger("driver").exception("the child broke")
        os._exit(99)


def seen(home: Path, store: str, decision: str, adw_id: str) -> dict:
    """Return what is stored and what was done."""
    with open_home(home, store, decision) as app:
        document = app.store.load(adw_id).document
    plan, build = document.phases

    return {
        "state": document.current_state,
        "terminal_reason": document.terminal_reason,
        "doctor_calls": document.doctor_calls,
        "replans": document.replans,
        "decisions": [entry.get("decision") for entry in build.doctor],
        "model": build.model,
        "plan": [plan.status, plan.attempts_used],
        "build": [build.status, build.attempts_used, [made.status for made in build.attempts]],
        "cost": document.cost.total_usd,
        "ran": (home / "ran.txt").read_text().splitlines(),
        "asked": (home / "asked.txt").read_text().split(),
    }


def play(home: Path, store: str, decision: str) -> dict:
    """Let the doctor decide so, kill its worker, let the next one work, and return what was seen."""
    home.mkdir(parents=True)
    adw_id = start_workflow(home, store, decision)
    killed = in_a_child(lambda: work(home, store, decision, is_killed=True))
    after = seen(home, store, decision, adw_id)
    # What is over needs no worker; a doctor that is asked again would say so in its file.
    ended = 0 if after["state"] == "failed" else in_a_child(lambda: work(home, store, "retry", is_killed=False))

    return {"killed": killed, "ended": ended, "after": after, "end": seen(home, store, decision, adw_id)}


def main() -> int:
    """Play each decision in a home of its own and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("store", choices=("files", "database"))
    parser.add_argument("decisions", nargs="+")
    given = parser.parse_args()
    result = {decision: play(given.home / decision, given.store, decision) for decision in given.decisions}
    sys.stdout.write(json.dumps(result) + "\n")

    return 0


if __name__ == "__main__":
    sys.exit(main())
