"""
Stands for the coding agent of the workflow soak: does the work of a phase, or the fault that is planned for it.

Also the hooks of the sample's remote, so that pushes can fail. Every fault that takes place is written to
`fired.jsonl` before it does. The standard library alone, and little of it: it is started hundreds of times.

Use: soak_agent.py PLACE            as a phase; ADW_PHASE and its like say which
     soak_agent.py PLACE pre|post   as a hook of the remote
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

#: What faults that end in a message say, and how they exit. Programs and services say these things.
MESSAGES: dict[str, tuple[str, int]] = {
    "network": ("curl: (56) Recv failure: connection reset by peer", 1),
    "overloaded": ("API error 529: overloaded_error", 1),
    "killed": ("Killed", 137),
    "server": ("the service answered: HTTP 500 internal server error", 1),
    "busy": ("database is locked", 1),
    "rate_limited": ("HTTP 429 too many requests\nRetry-After: 1", 1),
    "disk": ("write error: no space left on device", 1),
    "port": ("listen EADDRINUSE: address already in use :::3000", 1),
    "memory": ("fork: cannot allocate memory", 1),
    "missing": ("sh: 1: formatter: command not found", 127),
    "refused": ("the request was declined for safety: see the usage policy", 1),
}
#: These take place once: after them nothing says that the attempt ended.
CRASHES = ("crash", "push_crash")
#: Longer than every time limit of the sample.
TOO_LONG_SECONDS = 120.0
BRANCH = re.compile(r"-issue-([0-9]+)-adw-([0-9a-f]+)-")


def main(arguments: list[str]) -> int:
    place = Path(arguments[0])
    if len(arguments) > 1:
        return hook(place, arguments[1], sys.stdin.read())
    issue = json.loads(Path(os.environ["ADW_ISSUE_FILE"]).read_text(encoding="utf-8"))
    number, phase = int(issue["number"]), os.environ["ADW_PHASE"]
    fault = due(place, number, phase, key=phase, adw_id=os.environ["ADW_ID"])
    if fault is not None:
        fire(place, number, phase, fault)
        code = do_fault(place, fault, number)
        if code is not None:
            return code
    do_work(phase, number, str(issue["title"]), is_planted=fault == "workflow_file")

    return 0


def due(place: Path, number: int, phase: str, *, key: str, adw_id: str) -> str | None:
    """
    Return the fault that is planned for this attempt; one that a person mends goes on until then.

    Only attempts that came to an end count: one that was cut off by the crash of its worker is repeated as it was.
    """
    plan = json.loads((place / "plan.json").read_text(encoding="utf-8")).get(str(number), {})
    document = json.loads((place / "home" / "state" / adw_id / "adw_state.json").read_text(encoding="utf-8"))
    attempts = [attempt for record in document["phases"] if record["name"] == phase for attempt in record["attempts"]]
    ended = sum(attempt["status"] not in {"running", "interrupted", "suspended"} for attempt in attempts)
    kind: str = plan.get(f"{key}:{ended + 1}") or plan.get(f"{key}:*") or ""
    if (place / f"mended-{number}").exists() or (kind in CRASHES and (place / f"crashed-{number}").exists()):
        return None

    return kind or None


def fire(place: Path, number: int, phase: str, kind: str) -> None:
    """Write down that a fault takes place."""
    line = json.dumps({"issue": number, "phase": phase, "kind": kind}) + "\n"
    with (place / "fired.jsonl").open("a", encoding="utf-8") as file:
        file.write(line)


def do_fault(place: Path, kind: str, number: int) -> int | None:
    """Fail as planned and return the exit code; None when the work is done all the same."""
    if kind in MESSAGES:
        text, code = MESSAGES[kind]
        print(text, file=sys.stderr)
        return code
    if kind == "crash":
        kill_worker(place, number)
    if kind in {"crash", "timeout"}:
        time.sleep(TOO_LONG_SECONDS)  # somebody ends this process: the next owner, or the time limit
    if kind == "conflict":
        move_base(place, number)
        return None
    answers: dict[str, dict[str, object]] = {"gate": {"success": False}, "rework": {"success": False, "rework": True}}
    if kind in answers:
        answer(answers[kind])
        return 0
    if kind == "bad_output":
        Path(os.environ["ADW_RESULT_FILE"]).write_text("it went well", encoding="utf-8")
        return 0
    if kind == "stray":
        # Forgets a server in a session of its own.
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)

    return None


def kill_worker(place: Path, number: int) -> None:
    """Kill the worker that started this process, as a machine that runs out of memory does."""
    (place / f"crashed-{number}").touch()
    workers = {int(path.name) for path in (place / "workers").iterdir()}
    pid = os.getpid()
    while pid > 1 and pid not in workers:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        pid = int(text.rpartition(")")[2].split()[1])
    if pid > 1:
        os.kill(pid, signal.SIGKILL)


def move_base(place: Path, number: int) -> None:
    """Push what a colleague did to the very lines that the work of this issue changes."""
    clone = place / f"colleague-{number}-{os.getpid()}"
    git(place, "clone", "--quiet", str(place / "home" / "state" / "local.forge" / "remote.git"), str(clone))
    (clone / "shared.py").write_text(f"SHARED = 'a colleague ({os.getpid()}) was here'\n", encoding="utf-8")
    git(clone, "commit", "--quiet", "--all", "--message", "Meanwhile")
    git(clone, "push", "--quiet", "origin", "HEAD:main")


def git(cwd: Path, *arguments: str) -> None:
    who = ("-c", "user.name=Colleague", "-c", "user.email=colleague@example.invalid")
    subprocess.run(["git", *who, *arguments], cwd=cwd, check=True, capture_output=True)


# --- the work --------------------------------------------------------------------------------------------------


def do_work(phase: str, number: int, title: str, *, is_planted: bool) -> None:
    """Do what an agent would do in *phase*, small and in files of this issue."""
    made = Path("src") / f"request_{number}.py"
    if phase == "plan":
        write(Path("specs") / f"{number}.md", f"# {title}\n")
    if phase == "build":
        write(made, f"def answer():\n    return {title!r}\n")
        if title.startswith("Share"):
            rebase_on_base()
            write(Path("shared.py"), f"SHARED = {title!r}\n")
        if is_planted:
            write(Path(".github") / "workflows" / "surprise.yml", "on: push\n")
    if phase in {"lint", "test"}:
        scope: dict[str, object] = {}
        exec(compile(made.read_text(encoding="utf-8"), str(made), "exec"), scope)
        if callable(value := scope["answer"]) and value() != title:
            sys.exit("the answer is wrong")
    if phase == "document":
        write(Path("docs") / f"{number}.md", f"# {title}\n\nDone.\n")
    if phase in {"test", "review"}:
        answer({"success": True, "summary": f"{phase} of #{number}"})


def rebase_on_base() -> None:
    """Start again from the base when it has moved: that is what the rework after a conflict is about."""
    if int(os.environ["ADW_ATTEMPT"]) > 1:
        git(Path.cwd(), "fetch", "--quiet", "origin", "main")
        git(Path.cwd(), "rebase", "--quiet", "-X", "theirs", "FETCH_HEAD")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def answer(result: dict[str, object]) -> None:
    Path(os.environ["ADW_RESULT_FILE"]).write_text(json.dumps(result), encoding="utf-8")


# --- the remote ------------------------------------------------------------------------------------------------


def hook(place: Path, when: str, told: str) -> int:
    """Let the push of a branch fail as planned."""
    for line in told.splitlines():
        _, new, ref = line.split()
        match = BRANCH.search(ref)
        if match is None or not new.strip("0"):
            continue  # another branch, or one that is deleted
        number = int(match[1])
        kind = due(place, number, "ship", key=f"push_{when}", adw_id=match[2])
        if kind is None:
            continue
        fire(place, number, "ship", kind)
        if kind == "push_refused":
            print("this branch is protected", file=sys.stderr)
            return 1
        if kind == "push_lost":
            os.kill(os.getppid(), signal.SIGKILL)  # the remote hangs up
            return 1
        kill_worker(place, number)

    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
