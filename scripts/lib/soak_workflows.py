"""
Carry different requests through whole workflows at once, with a fault in every phase and of every category.

One sample repository with a bare remote and a local forge; real `adw worker` processes, some of which are killed; a
scripted agent (`soak_agent.py`) that fails as planned (`soak_requests.py`); a person who mends what only a person can.
Exits with 1 unless every recoverable request is completed, more than 80 % of all are, none is stuck, every planned
fault took place and was taken for what it is, and `adw admin verify` and `adw admin gc` find nothing.

The seed decides the order of the requests and is printed first: `scripts/soak/workflows --seed N` plays it again.

Use: soak_workflows.py [--seed N] [--keep] [--page PATH]
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from soak import ROOT, machine, table, versions
from soak_requests import KINDS, REQUESTS, Fault, Request
from soak_sample import CONCURRENCY, WORKERS, Sample, carry

from adws.adw_modules.document import WorkflowDocument
from adws.app import Home

PAGE = ROOT / "tests" / "soak-workflows.md"
#: More than this share of all requests must be completed.
WANTED_SHARE = 0.8
#: After this many seconds, for each request, whatever is not settled counts as stuck.
PATIENCE_SECONDS = 45.0

# --- what came of it -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one request."""

    request: Request
    adw_id: str
    state: str
    is_settled: bool
    attempts: int
    reworks: int
    problems: tuple[str, ...] = ()

    @property
    def is_completed(self) -> bool:
        return self.state == "completed"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of the whole soak."""

    seed: int
    started_at: datetime
    seconds: float
    results: tuple[Result, ...]
    findings: tuple[str, ...]  #: of verify and gc, and what is left of processes, runs, worktrees
    crashes: int  #: workers that were killed


def judge(outcome: Outcome) -> list[str]:
    """Return why the soak has failed; nothing when it has not."""
    done = [result for result in outcome.results if result.is_completed]
    problems = [f"{r.request.title}: stuck in {r.state}" for r in outcome.results if not r.is_settled]
    problems += [
        f"{r.request.title}: recoverable, and ended as {r.state}"
        for r in outcome.results
        if r.is_settled and r.request.is_recoverable and not r.is_completed
    ]
    problems += [
        f"{r.request.title}: not recoverable, and ended as {r.state}, not rolled back"
        for r in outcome.results
        if r.is_settled and not r.request.is_recoverable and r.state != "rolled_back"
    ]
    if len(done) <= WANTED_SHARE * len(outcome.results):
        problems.append(f"{len(done)} of {len(outcome.results)} completed: not more than {WANTED_SHARE:.0%}")
    problems += [f"{r.request.title}: {problem}" for r in outcome.results for problem in r.problems]

    return [*problems, *outcome.findings]


# --- looking at what is there ----------------------------------------------------------------------------------


def run(place: Path, requests: tuple[Request, ...], *, seed: int, say: Callable[[str], None]) -> Outcome:
    """Carry *requests* through in a sample below *place*, and return what came of it."""
    started_at, started = datetime.now(UTC), time.monotonic()
    order = list(requests)
    random.Random(seed).shuffle(order)
    sample = Sample(place)
    carried = carry(sample, order, patience=PATIENCE_SECONDS * len(order), say=say)
    for adw_id, request in carried.started.items():
        if not request.is_recoverable:
            sample.adw("rollback", adw_id, "--reason", "it cannot be done")
    with sample.open() as app:
        results = tuple(
            _result(sample, app, adw_id, request, is_settled=adw_id not in carried.unsettled)
            for adw_id, request in carried.started.items()
        )

    return Outcome(
        seed=seed,
        started_at=started_at,
        seconds=time.monotonic() - started,
        results=results,
        findings=tuple(_findings(sample)),
        crashes=carried.crashes,
    )


def _result(sample: Sample, app: Home, adw_id: str, request: Request, *, is_settled: bool) -> Result:
    document = app.store.load(adw_id).document

    return Result(
        request=request,
        adw_id=adw_id,
        state=document.current_state,
        is_settled=is_settled,
        attempts=sum(len(record.attempts) for record in document.phases),
        reworks=document.reworks,
        problems=(*_missed(sample, request, document), *_wrong_on_forge(sample, app, document)),
    )


def _missed(sample: Sample, request: Request, document: WorkflowDocument) -> Iterator[str]:
    """Yield the faults that did not take place, or were taken for something else."""
    fired = {(row["issue"], row["kind"]) for row in _rows(sample.place / "fired.jsonl")}
    for fault in request.faults:
        if (document.issue_number, fault.kind) not in fired:
            yield f"its fault {fault.kind} in {fault.phase} never took place"
        elif not _is_recorded(fault, document):
            yield f"its fault {fault.kind} in {fault.phase} is not in its attempts as {KINDS[fault.kind] or fault.kind}"


def _is_recorded(fault: Fault, document: WorkflowDocument) -> bool:
    # What a build planted is found when it is to be shipped.
    phase = "ship" if fault.kind == "workflow_file" else fault.phase
    attempts = [attempt for record in document.phases if record.name == phase for attempt in record.attempts]
    if fault.kind in {"rework", "conflict"}:
        return document.reworks > 0
    if fault.kind == "stray":
        return True  # what is left of it is looked for among all processes
    if not KINDS[fault.kind]:
        return any(attempt.status == "interrupted" for attempt in attempts)

    return any((attempt.error or {}).get("category") == KINDS[fault.kind] for attempt in attempts)


def _wrong_on_forge(sample: Sample, app: Home, document: WorkflowDocument) -> Iterator[str]:
    """Yield what is missing or there twice: pull requests, their work, comments."""
    forge, branch, number = sample.forge(app), document.branch_name or "", document.issue_number or 0
    pulls = [pull.state for pull in forge.pull_requests_of(branch)] if branch else []
    comments = len(forge.comments(number))
    if document.current_state == "completed":
        if pulls != ["open"]:
            yield f"its pull requests are {pulls}, not one that is open"
        if comments != 1:
            yield f"its issue has {comments} comments, not one"
        files = sample.git("--git-dir", str(sample.remote), "ls-tree", "-r", "--name-only", f"refs/heads/{branch}")
        if f"/{number}." not in files and f"/request_{number}.py" not in files:
            yield "its work is not in its pull request"
    if document.current_state == "rolled_back":
        if "open" in pulls:
            yield "its pull request is still open"
        if comments != 2:
            yield f"its issue has {comments} comments, not one and a summary"


def _findings(sample: Sample) -> Iterator[str]:
    """Yield what is left over, by adw's own commands and without them."""
    verify, gc = sample.adw("admin", "verify", "--json"), sample.adw("admin", "gc", "--json")
    if verify.returncode != 0:
        yield f"adw admin verify ended with {verify.returncode}: {verify.stdout}{verify.stderr}"
    if gc.returncode != 0:
        yield f"adw admin gc ended with {gc.returncode}: {gc.stderr}"
    else:
        yield from (
            f"adw admin gc found {one['kind']} {one['name']}: {one['why']}" for one in json.loads(gc.stdout)["orphans"]
        )
    waiting = sample.adw("queue", "runs", "--state", "pending", "--state", "running", "--json")
    yield from (f"a run is left: {one}" for one in json.loads(waiting.stdout)["runs"])
    if trees := sample.git("worktree", "list").splitlines()[1:]:
        yield f"worktrees are left: {', '.join(trees)}"
    if changed := sample.git("status", "--porcelain"):
        yield f"the main checkout was touched: {changed}"
    yield from (f"process {pid} is left" for pid in _processes(sample))


def _processes(sample: Sample) -> list[str]:
    """Return the processes that work for the sample, found by their environment."""
    mark = f"ADW_RESULT_FILE={sample.home}".encode()
    result = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes():
                result.append(path.parent.name)

    return result


def _rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


# --- the page --------------------------------------------------------------------------------------------------


def page(outcome: Outcome) -> str:
    """Return the result page."""
    problems = judge(outcome)
    done = sum(result.is_completed for result in outcome.results)
    facts = {
        "outcome": "FAILED" if problems else "passed",
        "date": outcome.started_at.strftime("%Y-%m-%d %H:%M UTC"),
        "seed": str(outcome.seed),
        "duration": f"{outcome.seconds:.0f} s",
        "completed": f"{done} of {len(outcome.results)}",
        "workers": f"{WORKERS} with {CONCURRENCY} workflows each; {outcome.crashes} were killed and replaced",
        **machine(),
        **versions(),
    }
    rows = [
        (
            result.request.title,
            result.request.workflow,
            ", ".join(f"{fault.kind} in {fault.phase}" for fault in result.request.faults),
            result.request.person,
            result.state,
            f"{result.attempts}, {result.reworks}",
        )
        for result in sorted(outcome.results, key=lambda result: result.request.title)
    ]

    return "\n".join(
        [
            "# The last soak of workflows\n",
            f"Written by `scripts/soak/workflows`. Again: `scripts/soak/workflows --seed {outcome.seed}`.\n",
            table(("", ""), list(facts.items())),
            "\n## Requests\n",
            table(("request", "workflow", "faults", "a person", "ended as", "attempts, reworks"), rows),
            "\n## What is wrong\n",
            table(("",), [(problem.replace("\n", " "),) for problem in problems]),
        ]
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak/workflows", description="Carry faulty requests through.")
    parser.add_argument("--seed", type=int, help="play a run again")
    parser.add_argument("--keep", action="store_true", help="keep the sample to look at")
    parser.add_argument("--page", type=Path, default=PAGE, help="where to write the result page")
    chosen = parser.parse_args(arguments)
    if shutil.which("git") is None:
        print("the soak needs git: install it and run this again", file=sys.stderr)
        return 1
    seed = chosen.seed if chosen.seed is not None else secrets.randbelow(2**32)
    facts = {"seed": str(seed), **machine(), **versions()}
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), flush=True)

    place = Path(tempfile.mkdtemp(prefix="adw-soak-"))
    try:
        outcome = run(place, REQUESTS, seed=seed, say=lambda text: print(text, flush=True))
    finally:
        if not chosen.keep:
            shutil.rmtree(place, ignore_errors=True)
    chosen.page.write_text(page(outcome), encoding="utf-8")
    problems = judge(outcome)
    done = sum(result.is_completed for result in outcome.results)
    print(f"\n{done} of {len(outcome.results)} completed in {outcome.seconds:.0f} s; wrote {chosen.page}")
    for problem in problems:
        print(problem, file=sys.stderr)

    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
