"""
Kill workers and command lines at random moments over whole workflows, and look at what the next one makes of it.

Run by test_crash_engine.py as a program of its own, so that forking is safe. Each worker is a forked child with all
modules loaded: a kill costs milliseconds. Prints one JSON object; `problems` is empty when all is well.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import select
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

from adws import app as app_module
from adws.adw_modules.queue.model import FINAL_RUNS, RunResult
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.adw_modules.workflow.model import PhaseSpec, RetrySpec, WorkflowSpec
from adws.cli import main as command_line
from adws.config import load as config_load

#: Attempts of a phase: more than any sequence of kills in one workflow can use up.
MAX_ATTEMPTS = 60
UNEXPECTED = 99
#: The worker says so with each byte when a phase begins, so that kills fall inside work and not before it.
SECONDS_OF_WORK = 0.25

PHASES = (
    ("plan", "planning", "echo plan >> work.txt"),
    ("build", "building", "echo build >> work.txt"),
    ("test", "testing", "echo test >> work.txt; test -e fixed || { : > fixed; exit 1; }"),
    ("review", "reviewing", 'echo review >> work.txt; echo \'{"summary": "fine"}\' > "$ADW_RESULT_FILE"'),
)


def definition() -> WorkflowSpec:
    """Return the workflow that is carried through: four commands, one of which fails the first time."""
    retry = RetrySpec(strategy="fixed", base_seconds=0.1, max_seconds=0.1)
    phases = tuple(
        PhaseSpec(name=name, state=state, runner="command", shell=line, max_attempts=MAX_ATTEMPTS, retry=retry)
        for name, state, line in PHASES
    )

    return WorkflowSpec(name="killed", phases=phases)


def open_home(home: Path, store: str) -> app_module.Home:
    """Open *home* as a worker would."""
    return app_module.open_home(config_load.load(env=environment(home, store), cwd=home), role="worker")


def environment(home: Path, store: str) -> dict[str, str]:
    """Return the settings of a home whose workers are killed again and again: that does not make a run poison."""
    return {
        "ADW_HOME": str(home),
        "ADW_STATE_STORE": store,
        "ADW_LOG_LEVEL": "INFO",
        "ADW_LIMITS_MAX_ATTEMPTS": "1000",  # of workers with a run; each phase has a limit of its own
        "ADW_SANDBOX_MODE": "off",
    }


def start_workflow(home: Path, store: str, issue_number: int) -> str:
    """Accept a workflow and return its id."""
    with open_home(home, store) as app:
        start = NewWorkflow(issue_number=issue_number, spec=definition(), max_total_attempts=None)

        return app.workflow_creator.start(start).adw_id


def work(home: Path, store: str) -> None:
    """Be a worker until the workflow's run is over, retries included."""
    with open_home(home, store) as app:

        def stop_when_over(end: RunResult) -> None:
            if end.run is None or end.run.state in FINAL_RUNS:
                worker.drain()

        worker = app.worker(WorkerOptions(recover_seconds=3600.0), on_end=stop_when_over)
        worker.run()


def resume(home: Path, store: str, adw_id: str) -> None:
    """Be `adw resume ID`."""
    os.environ.update(environment(home, store))
    command_line.run(["resume", adw_id])


def forked(action, *arguments) -> int:
    """Run *action* in a child and return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        action(*arguments)
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a child must not go on as its parent
        os._exit(UNEXPECTED)


def killed_or_done(pid: int, seconds: float | None, *, is_own: bool = False) -> bool:
    """
    Kill the child after *seconds*; False when it had ended by itself before. A child that broke is an error.

    With *is_own* the child kills itself.
    """
    watched = os.pidfd_open(pid)
    try:
        has_ended = bool(select.select([watched], [], [], seconds)[0])
        if not has_ended:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(watched)
    if has_ended and os.waitstatus_to_exitcode(status) == UNEXPECTED:
        raise RuntimeError("a worker or a command line broke: run it without a fork to see how")

    return not has_ended or (is_own and os.waitstatus_to_exitcode(status) == -signal.SIGKILL)


def is_over(home: Path, store: str, adw_id: str) -> bool:
    """Say whether the workflow is completed."""
    with open_home(home, store) as app:
        return app.store.load(adw_id).document.current_state == "completed"


def kills(home: Path, store: str, count: int, seed: int) -> dict:
    """Kill *count* times over as many workflows as it takes, by turns a worker and a resuming command line."""
    rng = random.Random(seed)
    problems: list[str] = []
    done, workflows = 0, 0
    while done < count and not problems:
        place = home / f"home{workflows}"
        place.mkdir(parents=True)
        adw_id = start_workflow(place, store, workflows + 1)
        workflows += 1
        while not is_over(place, store, adw_id) and not problems:
            by_worker = rng.random() < 0.6
            pid = forked(work, place, store) if by_worker else forked(resume, place, store, adw_id)
            is_last = done >= count
            done += killed_or_done(pid, None if is_last else rng.uniform(0.0, SECONDS_OF_WORK))
        problems += check(place, store, adw_id)

    return {"kills": done, "workflows": workflows, "problems": problems}


# --- what must hold --------------------------------------------------------------------------------------------


def check(home: Path, store: str, adw_id: str) -> list[str]:
    """Return what is wrong with a workflow that was carried through all the kills."""
    with open_home(home, store) as app:
        app.recovery.recover(every_document=True)  # the last kill may have come after the last write
    with open_home(home, store) as app:
        document = app.store.load(adw_id).document
        events = app.events.of_workflow(adw_id, limit=10_000)
        row = next(iter(app.catalogue.find_by_issue(document.issue_number)))
        live = [run for run in app.runs.of_workflow(adw_id) if run.state not in FINAL_RUNS]
        locks = app.locks.all()
    problems = []
    if document.current_state != "completed":
        problems.append(f"it ended {document.current_state}: {document.terminal_reason}")
    if [record.status for record in document.phases] != ["complete"] * len(PHASES):
        problems.append(f"phases: {[(record.name, record.status) for record in document.phases]}")
    if (row.state, row.revision) != (document.current_state, document.revision):
        problems.append(f"the copy says {row.state} at {row.revision}, the document {document.revision}")
    if live or locks:
        problems.append(f"left over: runs {[run.run_id for run in live]}, locks {locks}")
    for record in document.phases:
        problems += check_phase(home, record, events)
    problems += check_log(home, adw_id, document)

    return [f"{adw_id}: {problem}" for problem in problems]


def check_phase(home: Path, record, events) -> list[str]:
    """Hold the attempts of a phase, its events and what it did against each other."""
    problems = []
    numbers = [attempt.number for attempt in record.attempts]
    if numbers != list(range(1, len(numbers) + 1)):
        problems.append(f"{record.name} has the attempts {numbers}")
    if record.attempts_used > record.max_attempts:
        problems.append(f"{record.name} used {record.attempts_used} of {record.max_attempts} attempts")
    counted = sum(1 for attempt in record.attempts if attempt.status != "suspended")
    if counted != record.attempts_used:
        problems.append(f"{record.name} counts {record.attempts_used} attempts, its history has {counted}")
    told = Counter(event.event_type for event in events if event.node_name == record.name)
    ended = told["attempt_succeeded"] + told["attempt_failed"] + told["attempt_interrupted"] + told["attempt_suspended"]
    if (told["attempt_started"], ended) != (len(numbers), len(numbers)):
        problems.append(f"{record.name}: {len(numbers)} attempts, the events tell {dict(told)}")
    statuses = Counter(attempt.status for attempt in record.attempts)
    if statuses["succeeded"] != 1 or statuses["running"]:
        problems.append(f"{record.name} ended with {dict(statuses)}")
    ran = (home / "work.txt").read_text().split().count(record.name)
    if not 1 <= ran <= len(numbers):
        problems.append(f"{record.name} ran {ran} times in {len(numbers)} attempts")

    return problems


def check_log(home: Path, adw_id: str, document) -> list[str]:
    """The log may lack a line that a kill cut off; what it has is true."""
    problems = []
    path = home / "state" / adw_id / "adw.log"
    by_phase = {record.name: record for record in document.phases}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # torn by a kill
        record = by_phase.get(entry["phase"])
        if record is not None and not 0 <= (entry["attempts_used"] or 0) <= record.attempts_used:
            problems.append(f"the log says {entry['attempts_used']} attempts of {record.name}: {record.attempts_used}")

    return problems


# --- carrying a workflow on ------------------------------------------------------------------------------------


def continues(home: Path, store: str, count: int, seed: int) -> dict:
    """
    Kill *count* times what carries a completed workflow on with its next phase, at a call of our code.

    Whatever was written by then, recovery finds a workflow that is over and has neither its issue nor a run, or one
    that is to go on and has both.
    """
    rng = random.Random(seed)
    home.mkdir(parents=True)
    retry = RetrySpec(strategy="fixed", base_seconds=0.1, max_seconds=0.1)
    specs = [
        WorkflowSpec(
            name=name,
            phases=(
                PhaseSpec(name=name, state=state, runner="command", shell=f"echo {name} >> work.txt", retry=retry),
            ),
        )
        for name, state, _ in PHASES
    ]
    with open_home(home, store) as app:
        adw_id = app.workflow_creator.start(NewWorkflow(issue_number=1, max_total_attempts=None, spec=specs[0])).adw_id
    killed_or_done(forked(work, home, store), None)
    _calls_of_continuing(home, store, adw_id, specs[1])  # loads what the next ones find loaded
    finish(home, store, adw_id)
    first_write, calls = _calls_of_continuing(home, store, adw_id, specs[2])
    problems, done = _problems_of_recovery(home, store, adw_id), 0
    carried_on = Counter({"build": 1, "test": 1})
    while done < count and not problems:
        finish(home, store, adw_id)
        spec, is_writing = rng.choice(specs), rng.random() < 0.8
        # A takeover from the one that was killed before takes further calls; one that ends before its kill is no harm.
        call = rng.randrange(1, 3 * (calls - first_write) if is_writing else first_write)
        pid = forked(carry_on, home, store, adw_id, spec, (call, is_writing))
        done += killed_or_done(pid, None, is_own=True)
        problems += _problems_of_recovery(home, store, adw_id)
        carried_on[spec.name] += not is_over(home, store, adw_id)
    finish(home, store, adw_id)
    with open_home(home, store) as app:
        document = app.store.load(adw_id).document
    ran = Counter((home / "work.txt").read_text().split())
    if document.current_state != "completed" or ran - Counter({"plan": 1}) != +carried_on:
        problems.append(f"it is {document.current_state}; carried on {dict(carried_on)}, ran {dict(ran)}")
    for record in document.phases:
        numbers = [attempt.number for attempt in record.attempts]
        if numbers != list(range(1, len(numbers) + 1)) or any(one.status != "succeeded" for one in record.attempts):
            problems.append(f"{record.name}: {[(one.number, one.status) for one in record.attempts]}")

    return {"kills": done, "carried_on": carried_on.total(), "problems": problems}


def carry_on(home: Path, store: str, adw_id: str, spec: WorkflowSpec, kill: tuple[int, bool]) -> None:
    """
    Be a command that carries the workflow on, and die at a call of our code.

    *kill* has its number, and whether the calls are counted from the first write on, which takes the lock.
    """
    left, is_counting = [kill[0]], [not kill[1]]

    def count(frame, event: str, argument: object) -> None:
        del argument
        if event == "call" and "/adws/" in frame.f_code.co_filename:
            is_counting[0] = is_counting[0] or frame.f_code.co_name == "claim_again"
            left[0] -= is_counting[0]
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    with open_home(home, store) as app:
        sys.setprofile(count)
        app.control.continue_with(adw_id, spec, by="ada")
        sys.setprofile(None)


def _calls_of_continuing(home: Path, store: str, adw_id: str, spec: WorkflowSpec) -> tuple[int, int]:
    """Carry the workflow on without a kill; return how many calls of our code came before its first write, and all."""
    calls, claimed_at = [0], []

    def count(frame, event: str, argument: object) -> None:
        del argument
        calls[0] += event == "call" and "/adws/" in frame.f_code.co_filename
        if event == "call" and frame.f_code.co_name == "claim_again":
            claimed_at.append(calls[0])

    with open_home(home, store) as app:
        sys.setprofile(count)
        app.control.continue_with(adw_id, spec, by="ada")
        sys.setprofile(None)

    return claimed_at[0], calls[0]


def finish(home: Path, store: str, adw_id: str) -> None:
    """Be the worker of a workflow that is to go on."""
    if not is_over(home, store, adw_id):
        killed_or_done(forked(work, home, store), None)


def _problems_of_recovery(home: Path, store: str, adw_id: str) -> list[str]:
    """Recover, and return what does not fit: a workflow that is over has no lock and no run, another one has both."""
    with open_home(home, store) as app:
        app.recovery.recover(every_document=True)
        document = app.store.load(adw_id).document
        runs = [run.run_id for run in app.runs.of_workflow(adw_id) if run.state not in FINAL_RUNS]
        holders = [lock.adw_id for lock in app.locks.all()]
    fits = (
        (runs, holders) == ([], []) if document.current_state == "completed" else (len(runs), holders) == (1, [adw_id])
    )

    return [] if fits else [f"it is {document.current_state}, with the runs {runs} and the locks of {holders}"]


# --- ordered stops ---------------------------------------------------------------------------------------------


def suspensions(home: Path, store: str, count: int, seed: int) -> dict:
    """Stop a worker in order *count* times in the middle of a phase: no attempt is used up by it."""
    rng = random.Random(seed)
    home.mkdir(parents=True)
    os.mkfifo(home / "begun")
    slow = PhaseSpec(name="build", state="building", runner="command", shell="echo go > begun; exec sleep 600")
    with open_home(home, store) as app:
        adw_id = app.workflow_creator.start(
            NewWorkflow(issue_number=1, max_total_attempts=None, spec=WorkflowSpec(name="slow", phases=(slow,)))
        ).adw_id
    for _ in range(count):
        killed_or_done(forked(stopped_worker, home, store, rng.random() < 0.5), None)
    with open_home(home, store) as app:
        record = app.store.load(adw_id).document.phases[0]
    statuses = Counter(attempt.status for attempt in record.attempts)
    problems = []
    if record.attempts_used != 0 or statuses != Counter({"suspended": count}):
        problems.append(f"{record.attempts_used} attempts used, {dict(statuses)}")

    return {"stops": count, "problems": problems}


def stopped_worker(home: Path, store: str, is_urgent: bool) -> None:
    """Be a worker that is drained once its phase has begun."""
    with open_home(home, store) as app:
        worker = app.worker(WorkerOptions(recover_seconds=3600.0))

        def drain() -> None:
            (home / "begun").read_text()  # a pipe: there is something to read once the phase has begun
            worker.drain(is_urgent=is_urgent)

        threading.Thread(target=drain, daemon=True).start()
        worker.run()


def main() -> int:
    """Run one command and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("kills", "suspensions", "continues"))
    parser.add_argument("home", type=Path)
    parser.add_argument("store", choices=("files", "database"))
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.getLogger("adw").addHandler(logging.NullHandler())
    action = {"kills": kills, "suspensions": suspensions, "continues": continues}[given.command]
    sys.stdout.write(json.dumps(action(given.home, given.store, given.count, given.seed)) + "\n")

    return 0


if __name__ == "__main__":
    sys.exit(main())
