"""
Kill a worker at each step around an effect on the outside world, let another finish, and count what is there.

Run by test_crash_effects.py as a program of its own, so that forking is safe. A step is the moment before or after a
write of the document, and before or after a call that changes git, the ports or the forge. Prints one JSON object;
`problems` is empty when nothing was doubled and nothing was lost.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
from dataclasses import replace
from pathlib import Path

from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.forge.local import LocalForge
from adws.adw_modules.git.repository import Repository
from adws.adw_modules.git.worktree import GitWorkplace
from adws.adw_modules.resources.ports import Ports
from adws.adw_modules.workflow.model import PhaseSpec
from tests.integration.work_lab import BUILD, CLEAN, PLAN, SHIP, WorkLab, git, make_work_lab

KILLED, UNEXPECTED = 137, 99
#: Everything that changes something, here or outside.
STEPS = {
    WorkSession: ("_save",),
    Repository: ("add_worktree", "remove_worktree", "push", "fetch"),
    GitWorkplace: ("commit_all", "rebase"),
    Ports: ("take", "free"),
    LocalForge: ("create_comment", "edit_comment", "create_pull_request", "edit_pull_request", "add_labels"),
}
#: A phase that was cut off is worked on again: what it does may be repeated, what adw does with it is not.
PHASES = (PLAN, replace(BUILD, shell="echo built > built.txt"), SHIP, CLEAN)


class Count:
    """Counts the steps of this process, and dies at one of them."""

    def __init__(self, last: int | None) -> None:
        self.steps = 0
        self.last = last

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.last:
            os._exit(KILLED)


def armed(count: Count) -> None:
    """Make every call of STEPS two steps: before it, and after it."""
    for kind, names in STEPS.items():
        for name in names:
            setattr(kind, name, _stepping(getattr(kind, name), count))


def _stepping(real, count: Count):
    def call(*args, **keywords):
        count.step()
        answer = real(*args, **keywords)
        count.step()
        return answer

    return call


def worker(lab: WorkLab, last: int | None, told: Path) -> None:
    """Be a worker that dies at step *last*; who does not tells how many there were."""
    count = Count(last)
    armed(count)
    lab.work()
    told.write_text(str(count.steps))


def forked(lab: WorkLab, last: int | None, told: Path) -> int:
    """Run a worker in a child and return how it ended."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        worker(lab, last, told)
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a child must not go on as its parent
        os._exit(UNEXPECTED)


def kill_at(place: Path, step: int | None, phases: tuple[PhaseSpec, ...] = PHASES) -> tuple[int, list[str]]:
    """Kill a worker at *step* of a whole workflow, let another finish; return the steps there were, and problems."""
    lab = make_work_lab(place, ADW_SHIP_LABELS="adw")
    before = lab.main_checkout()
    adw_id = lab.start(*phases)
    told = place / "steps"
    if step is not None:
        forked(lab, step, told)
    ended = forked(lab, None, told)
    problems = [] if ended == 0 else [f"the second worker ended with {ended}"]
    problems += check(lab, adw_id)
    if lab.main_checkout() != before:
        problems.append("the main checkout was changed")

    return int(told.read_text()) if told.exists() else 0, [f"step {step}: {problem}" for problem in problems]


def check(lab: WorkLab, adw_id: str) -> list[str]:
    """Return what is doubled, lost or left over."""
    with lab.open() as app:
        document = app.store.load(adw_id).document
        branch = document.branch_name or ""
        pulls = app.forge.pull_requests_of(branch) if branch else ()
        comments = app.forge.comments(1)
        ports = app.ports.all()
        places = app.quotas.workflows()
    if document.current_state != "completed":
        reasons = [record.last_failure_reason for record in document.phases]
        return [f"it is {document.current_state}: {document.pause_reason or reasons}"]
    there = git(lab.remote, "for-each-ref", "--format=%(refname:short)", "refs/heads").splitlines()
    facts = {
        "phases": lab.phases(branch, lab.remote),
        "heads": git(lab.remote, "rev-parse", branch) == git(lab.home, "rev-parse", branch),
        "branches here": sorted(lab.branches()),
        "branches there": sorted(there),
        "worktrees": len(lab.worktrees()),
        "pull requests": [(one.number, one.state) for one in pulls] == [(document.pr_number, "open")],
        "comments": len(comments),
        "sticky": "**completed**" in comments[0].body if comments else None,
        "ports": len(ports),
        "places": len(places),
        "open": sorted(one.key for one in document.resources if one.outcome == "intended"),
    }
    wanted = {
        "phases": ["build", "plan"],
        "heads": True,
        "branches here": sorted(["main", branch]),
        "branches there": sorted(["main", branch]),
        "worktrees": 1,
        "pull requests": True,
        "comments": 1,
        "sticky": True,
        "ports": 0,
        "places": 0,
        "open": [],
    }

    return [f"{name}: {facts[name]!r}, not {wanted[name]!r}" for name in wanted if facts[name] != wanted[name]]


def main() -> int:
    """Kill at some steps, or at all of them, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path)
    parser.add_argument("--count", type=int, default=10, help="how many steps to try; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-clean", action="store_true", help="the end of the workflow releases its worktree")
    given = parser.parse_args()
    logging.getLogger("adw").addHandler(logging.NullHandler())
    phases = PHASES[:-1] if given.without_clean else PHASES
    steps, problems = kill_at(given.place / "whole", None, phases)
    chosen = list(range(1, steps + 1))
    if given.count:
        chosen = sorted(random.Random(given.seed).sample(chosen, min(given.count, steps)))
    for step in chosen:
        problems += kill_at(given.place / str(step), step, phases)[1]
    sys.stdout.write(json.dumps({"steps": steps, "tried": len(chosen), "problems": problems}) + "\n")

    return 0


if __name__ == "__main__":
    sys.exit(main())
