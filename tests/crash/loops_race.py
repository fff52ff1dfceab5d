"""
Two orchestrators race for the end of a loop: each reports the last call of its lane at the same moment.

Run by test_crash_loops.py as a program of its own, so that forking is safe. Every round has an execution of two
iterations, which two processes have taken; they report when both are ready. Prints one JSON object; `problems` is empty
when all is well.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import sys
from collections import Counter
from datetime import timedelta

from adws.adw_modules import timestamps
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db.migrate import open_database
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.steps.model import CallReport, NewExecution
from adws.adw_modules.steps.store import Executions
from adws.adw_modules.workflow.model import LoopSpec, StepSpec
from tests import loop_lab

TTL = 60.0
POLICIES = ("fail_fast", "continue", "threshold")


class Side:
    """One orchestrator: its own database, its own identity."""

    def __init__(self, url: str) -> None:
        self.clock = SystemClock()
        self.database = open_database(url, clock=self.clock)
        self.runs = RunStore(self.database, clock=self.clock)
        self.executions = Executions(self.database, clock=self.clock, redactor=Redactor())
        self.me = SystemProcesses(clock=self.clock).me("worker")

    def begin(self, adw_id: str, policy: str) -> str:
        """Store an execution of two iterations, and the run that waits for its end."""
        later = timestamps.to_text(self.clock.now() + timedelta(days=1))
        self.runs.enqueue(NewRun(adw_id=adw_id, not_before=later))
        loop = LoopSpec(collection=[0, 1], mode="async", concurrency=2, on_failure=policy, threshold=1.0)
        new = NewExecution(
            execution_id=f"{adw_id}.build.1.s",
            parent_execution_id=f"{adw_id}.build.1",
            adw_id=adw_id,
            phase="build",
            attempt_number=1,
            catalog_id="race@1",
            step=StepSpec(name="s", tool="python", loop=loop),
            context={},
        )
        self.executions.open(new, [0, 1], lanes=2)

        return new.execution_id

    def serve(self, line: socket.socket) -> None:
        """Take a call when told so (`ok` or `bad`), say that it is taken, and report it when told so."""
        while word := line.recv(16).decode():
            run = self.runs.claim(self.me, ttl_seconds=TTL)
            assert run is not None, "there is no lane"
            (call,) = self.executions.take(run, most=1).assignments
            line.send(b"taken")
            line.recv(16)
            report = CallReport(
                index=call.index, attempt_number=call.attempt_number, ok=word == "ok", result=call.index
            )
            taken = self.executions.report(run, [report], most=1)
            self.runs.finish(run, RunState.COMPLETED)
            line.send(b"over" if taken.is_over else b"done")


def fork_side(url: str) -> socket.socket:
    """Start an orchestrator and return the line to it."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        try:
            Side(url).serve(theirs)
        finally:
            os._exit(0)
    theirs.close()

    return ours


def race(url: str, where: str, rounds: int, seed: int) -> dict:
    """Play *rounds* and return what is wrong, and who was first how often."""
    rng = random.Random(seed)
    lines = [fork_side(url), fork_side(url)]
    side = Side(url)
    problems: list[str] = []
    firsts: Counter[str] = Counter()
    for number in range(rounds):
        adw_id = f"{number:08x}"
        side.begin(adw_id, rng.choice(POLICIES))
        words = [rng.choice((b"ok", b"ok", b"bad")) for _ in lines]
        for line, word in zip(lines, words, strict=True):
            line.send(word)
        for line in lines:
            assert line.recv(16) == b"taken", "an orchestrator broke"
        for line in lines if rng.random() < 0.5 else lines[::-1]:
            line.send(b"go")
        answers = [line.recv(16) for line in lines]
        firsts[str(answers.index(b"done")) if b"done" in answers else "none"] += 1
        if sorted(answers) != [b"done", b"over"]:
            problems.append(f"round {number}: they were answered {answers}")
        due = side.runs.claim(side.me, ttl_seconds=TTL)
        if due is None or due.adw_id != adw_id or due.slot:
            problems.append(f"round {number}: the run that waits was not made due: {due}")
        else:
            side.runs.finish(due, RunState.COMPLETED)
        if len(problems) > 5:
            break
    told = loop_lab.executions(where)
    problems += [problem for one in told for problem in loop_lab.problems(one)][:10]

    return {"rounds": len(told), "firsts": dict(firsts), "problems": problems}


def main() -> int:
    """Race and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    where = given.url.removeprefix("sqlite:///")
    sys.stdout.write(json.dumps(race(given.url, where, given.rounds, given.seed)) + "\n")

    return 0


if __name__ == "__main__":
    sys.exit(main())
