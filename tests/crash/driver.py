"""
Break a writer in every way there is, and look at what a reader finds.

Run by the tests in this folder as a program of its own, so that forking is safe: nothing here starts a thread before a
fork. Every command prints one JSON object with what it did and what it found; `problems` is empty when all is well.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import os
import random
import re
import select
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
from pathlib import Path

from adws import app as app_module
from adws.adw_modules import document
from adws.adw_modules.db.migrate import open_database
from adws.adw_modules.engine import transitions
from adws.adw_modules.errors import (
    AdwError,
    DatabaseError,
    DatabaseUnavailable,
    DurabilityUnknown,
    Fenced,
    LockUnavailable,
    StateConflict,
    StateWriteFailed,
    WorkflowBusy,
)
from adws.adw_modules.events import Event
from adws.adw_modules.process import tree
from adws.config import load as config_load
from adws.config.settings import Settings

#: A takeover ends what the former owner ran: loaded before the forks, else each child would load it anew.
LOADED = (transitions, tree)

ADW_ID = "c0ffee00"
START = "2026-01-31T09:00:00.000000Z"
#: _IOR('X', 125, __u32): ext4 stops at once; flag 2 throws the journal away, as a power cut does.
FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2

EXIT_CODES = {
    StateWriteFailed: 10,
    DurabilityUnknown: 11,
    Fenced: 12,
    StateConflict: 13,
    DatabaseError: 14,
    LockUnavailable: 15,
}
SAVED, OTHER_ADW_ERROR, UNEXPECTED = 0, 20, 99


def open_home(home: Path, store: str) -> app_module.Home:
    """Open *home* as the command line would, with the given store."""
    return app_module.open_home(settings_of(home, store))


@functools.cache  # a third of the time of a writer that is killed after its first step, and no part of what is broken
def settings_of(home: Path, store: str) -> Settings:
    """Return the settings of *home*, read before the first fork."""
    env = {"ADW_HOME": str(home), "ADW_STATE_STORE": store, "ADW_SANDBOX_MODE": "off"}
    if os.environ.get("ADW_DATABASE_URL"):
        env["ADW_DATABASE_URL"] = os.environ["ADW_DATABASE_URL"]

    return config_load.load(env=env, cwd=home)


def make_workflow(home: Path, store: str) -> None:
    """Create the workflow that everything here writes to."""
    home.mkdir(parents=True, exist_ok=True)
    new = document.WorkflowDocument(
        adw_id=ADW_ID, issue_number=7, created_at=START, updated_at=START, plan_file="step 0", branch_name="x" * 2000
    )
    with open_home(home, store) as app, app.ownership.create(new):
        pass


def step_of(document: document.WorkflowDocument) -> int:
    """Return the number that the writer put into the document."""
    return int((document.plan_file or "step 0").split()[1])


def one_step(owned) -> tuple[int, int]:
    """Write the next revision and return (step, revision)."""
    number = step_of(owned.document) + 1
    saved = owned.save(
        owned.document.model_copy(update={"plan_file": f"step {number}"}),
        events=[Event(event_type="state_set", data={"step": number})],
    )
    return number, saved.revision


def write_for_ever(home: Path, store: str, ack_fd: int) -> None:
    """Write revisions and acknowledge each one after it is durable; the caller ends this process."""
    with open_home(home, store) as app, app.ownership.own(ADW_ID) as owned, app.lease_renewer.charge(owned):
        while True:
            os.write(ack_fd, struct.pack("QQ", *one_step(owned)))


def last_ack(fd: int) -> tuple[int, int] | None:
    """Return the last whole acknowledgement in the pipe."""
    data = b""
    while select.select([fd], [], [], 0)[0]:
        chunk = os.read(fd, 65536)
        if not chunk:
            break
        data += chunk
    whole = len(data) // 16
    return struct.unpack_from("QQ", data, (whole - 1) * 16) if whole else None


def fork_writer(home: Path, store: str) -> tuple[int, int]:
    """Start a writer; return its pid and the pipe its acknowledgements come through."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        with contextlib.suppress(BaseException):
            write_for_ever(home, store, write_end)
        os._exit(UNEXPECTED)
    os.close(write_end)
    return pid, read_end


def read_back(home: Path, store: str) -> document.WorkflowDocument:
    """Return what a fresh reader sees."""
    with open_home(home, store) as app:
        return app.store.load(ADW_ID).document


def lost_events(home: Path, store: str, document: document.WorkflowDocument) -> list[int]:
    """Return the steps whose event is neither in the database nor in the outbox of *document*."""
    with open_home(home, store) as app, app.database.read() as session:
        rows = session.all("SELECT data FROM events WHERE adw_id = :id AND event_type = 'state_set'", {"id": ADW_ID})
    known = {json.loads(row[0])["step"] for row in rows}
    known.update(entry["data"]["step"] for entry in document.outbox if entry["event_type"] == "state_set")

    return sorted(set(range(1, step_of(document) + 1)) - known)


def stray_files(home: Path) -> list[str]:
    """Return the temporary files beside the document."""
    folder = home / "state" / ADW_ID
    return sorted(entry.name for entry in folder.iterdir() if ".tmp" in entry.name) if folder.is_dir() else []


def check_after(
    home: Path, store: str, acked: tuple[int, int], *, at_most: int | None = None
) -> tuple[tuple[int, int], str | None]:
    """Return where the workflow stands after a crash and what is wrong, given the acknowledged (step, revision)."""
    try:
        document = read_back(home, store)
    except AdwError as exc:
        return acked, f"load failed after step {acked}: {exc}"
    result = (step_of(document), document.revision)
    if result[0] < acked[0] or result[1] < acked[1]:
        return result, f"acknowledged {acked}, found {result}"
    if result[0] > (acked[0] + 1 if at_most is None else at_most):
        return result, f"acknowledged {acked}, found {result}: more than one step ahead"
    if len(stray_files(home)) > 1:
        return result, f"stray files: {stray_files(home)}"
    if lost := lost_events(home, store, document):
        return result, f"at {result} the events of the steps {lost} are lost"
    return result, None


def wait_for_first_ack(pid: int, fd: int) -> bool:
    """Return True when the writer has written once, False when it ended before."""
    readable, _, _ = select.select([fd], [], [], 30)
    return bool(readable) and os.waitpid(pid, os.WNOHANG)[0] == 0


def end_writer(pid: int, fd: int) -> tuple[int, int] | None:
    """Kill a writer and return what it acknowledged last."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    newest = last_ack(fd)
    os.close(fd)
    return newest


def killed_writer(home: Path, store: str, seconds: float) -> tuple[int, int] | None:
    """Let a writer work for some time after its first step, kill it, and return what it acknowledged last."""
    pid, fd = fork_writer(home, store)
    wait_for_first_ack(pid, fd)
    let_work(pid, seconds)
    return end_writer(pid, fd)


def let_work(pid: int, seconds: float) -> None:
    """Leave the processor to a writer for some time; one that ends by itself broke, and proves nothing."""
    if has_ended(pid, seconds):
        raise RuntimeError("a writer ended before it was killed: run it without a fork to see why")


def has_ended(pid: int, seconds: float) -> bool:
    """Return at once when the child has ended, else after *seconds*, and say which."""
    watched = os.pidfd_open(pid)
    try:
        return bool(select.select([watched], [], [], seconds)[0])
    finally:
        os.close(watched)


def kills(home: Path, store: str, count: int, seed: int) -> dict:
    """SIGKILL a writer at random moments, *count* times."""
    chance = random.Random(seed)
    make_workflow(home, store)
    acked, problems, steps = (0, 1), [], 0
    for number in range(count):
        pid, fd = fork_writer(home, store)
        if chance.random() < 0.8:
            wait_for_first_ack(pid, fd)
            let_work(pid, chance.random() * 0.004)
        else:
            let_work(pid, chance.random() * 0.02)
        newest = end_writer(pid, fd)
        if newest is not None:
            steps += newest[0] - acked[0]
            acked = newest
        acked, problem = check_after(home, store, acked)
        if problem:
            problems.append(f"kill {number}: {problem}")
            break
    return {"kills": count, "steps": steps, "final_revision": acked[1], "problems": problems}


# --- faults in single system calls -----------------------------------------------------------------------------

TRACED = (
    "openat,open,creat,write,pwrite64,writev,fsync,fdatasync,sync_file_range,rename,renameat,renameat2,link,linkat,"
    "unlink,unlinkat,fchmod,fchmodat,ftruncate,close,newfstatat,fstat,stat,lstat,statx,flock,fcntl,mkdir,mkdirat,"
    "lseek,read,pread64,fallocate,getdents64"
)


def run_stopped_step(home: Path, store: str) -> int:
    """
    Fork a child that owns the workflow, makes some steps, stops itself, and makes another one when continued.

    The first ones load what is loaded late and write what later ones use again: the traced one is like all that follow.
    """
    pid = os.fork()
    if pid:
        return pid
    code = UNEXPECTED
    try:
        app = open_home(home, store)
        entered = app.ownership.own(ADW_ID)
        owned = entered.__enter__()
        for _ in range(3):
            one_step(owned)
        os.kill(os.getpid(), signal.SIGSTOP)
        one_step(owned)
        code = SAVED
    except AdwError as exc:
        code = next((value for kind, value in EXIT_CODES.items() if isinstance(exc, kind)), OTHER_ADW_ERROR)
        if code == OTHER_ADW_ERROR:
            os.write(2, f"not a write error: {type(exc).__name__}: {exc}\n".encode())
    except BaseException as exc:  # noqa: BLE001 - the exit code is how the child speaks
        os.write(2, f"unexpected: {type(exc).__name__}: {exc}\n".encode())
    os._exit(code)


def wait_stopped(pid: int) -> None:
    """Return when the child has stopped itself."""
    _, status = os.waitpid(pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        message = f"the child ended with {status} before its step"
        raise SystemExit(message)


def attach(pid: int, log: Path, inject: str | None) -> subprocess.Popen:
    """Attach strace to the stopped child and return when it is in control."""
    command = ["strace", "-p", str(pid), "-o", str(log), "-e", f"trace={TRACED}"]
    if inject:
        command += ["-e", f"inject={inject}"]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    line = tracer.stderr.readline()
    if "attached" not in line:
        tracer.kill()
        raise SystemExit(f"strace: {line.strip()}")
    return tracer


def traced_step(home: Path, store: str, log: Path, inject: str | None) -> tuple[int, int]:
    """Run one step under strace; return how the child ended (negative: by that signal) and the step before."""
    pid = run_stopped_step(home, store)
    wait_stopped(pid)
    before = step_of(read_back(home, store))
    tracer = attach(pid, log, inject)
    os.kill(pid, signal.SIGCONT)
    _, status = os.waitpid(pid, 0)
    tracer.wait()
    tracer.stderr.close()
    return os.waitstatus_to_exitcode(status), before


def syscalls_of_step(home: Path, store: str, log: Path) -> list[tuple[str, int]]:
    """Return every (system call, how many times) of one step."""
    if traced_step(home, store, log, None)[0] != SAVED:
        raise SystemExit("the step failed without any fault")
    counts: dict[str, int] = {}
    for line in log.read_text().splitlines():
        name = line.split("(")[0]
        if name.isidentifier():
            counts[name] = counts.get(name, 0) + 1
    return sorted(counts.items())


def judge_fault(home: Path, store: str, code: int, before: int) -> str | None:
    """Return what is wrong after one injected fault."""
    try:
        back = read_back(home, store)
    except AdwError as exc:
        return f"neither old nor new can be read: {exc}"
    after = step_of(back)
    if after not in (before, before + 1):
        return f"step {before} became {after}"
    if code == SAVED and after != before + 1:
        return "reported as saved, but the old revision is there"
    if code in (EXIT_CODES[StateWriteFailed], EXIT_CODES[LockUnavailable]) and after != before:
        return "reported as not written, but the new revision is there"
    if code in (UNEXPECTED, OTHER_ADW_ERROR):
        return f"the writer ended with {code} instead of a typed error"
    return None


def sample(cases: list, count: int, seed: int) -> list:
    """Return *count* of *cases* in their order, all of them when *count* is 0."""
    if not count or count >= len(cases):
        return cases
    chosen = set(random.Random(seed).sample(range(len(cases)), count))
    return [case for number, case in enumerate(cases) if number in chosen]


def faults(home: Path, store: str, errors: list[str], count: int, seed: int) -> dict:
    """Fail every system call of a step with each of *errors*, and kill at each; or *count* of these cases."""
    make_workflow(home, store)
    log = home / "strace.log"
    calls = syscalls_of_step(home, store, log)
    kinds = [f"error={code}" for code in errors] + ["signal=KILL"]
    cases = [(name, number, kind) for name, times in calls for number in range(1, times + 1) for kind in kinds]
    problems, outcomes = [], {}
    for name, number, kind in sample(cases, count, seed):
        code, before = traced_step(home, store, log, f"{name}:{kind}:when={number}")
        outcomes[str(code)] = outcomes.get(str(code), 0) + 1
        problem = judge_fault(home, store, code, before)
        if problem:
            problems.append(f"{name} #{number} {kind}: {problem}")
        if len(stray_files(home)) > 1:
            problems.append(f"{name} #{number} {kind}: stray files {stray_files(home)}")
    return {"syscalls": dict(calls), "cases": len(cases), "outcomes": outcomes, "problems": problems}


# --- the first write of a document of an older version -----------------------------------------------------------

OLD_DOCUMENT = json.dumps({"adw_id": ADW_ID, "issue_number": "7", "plan_file": "step 0", "branch_name": "x" * 2000})
#: Calls that change something on the disk.
CHANGES = frozenset({"write", "fsync", "fdatasync", "rename", "renameat", "link", "linkat", "unlink", "unlinkat"})


def traced_migration(home: Path, log: Path, inject: str | None) -> int:
    """Put an old document into a new home and write it once, under strace; return how the writer ended."""
    file = home / "state" / ADW_ID / "adw_state.json"
    file.parent.mkdir(parents=True)
    file.write_text(OLD_DOCUMENT)
    pid = os.fork()
    if pid == 0:
        code = UNEXPECTED
        try:
            app = open_home(home, "files")
            entered = app.ownership.own(ADW_ID)  # kept: a block that is collected is left
            owned = entered.__enter__()
            os.kill(os.getpid(), signal.SIGSTOP)
            one_step(owned)
            code = SAVED
        except AdwError as exc:
            code = next((value for kind, value in EXIT_CODES.items() if isinstance(exc, kind)), OTHER_ADW_ERROR)
        os._exit(code)
    wait_stopped(pid)
    if inject == "signal=KILL":  # registered, and nothing written
        os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    tracer = attach(pid, log, inject)
    os.kill(pid, signal.SIGCONT)
    _, status = os.waitpid(pid, 0)
    tracer.wait()
    tracer.stderr.close()
    return os.waitstatus_to_exitcode(status)


def judge_migration(home: Path, code: int) -> str | None:
    """Return what is wrong after the first write of an old document was broken, and after the next one."""
    folder = home / "state" / ADW_ID
    kept = [path.read_text() for path in folder.glob("*.bak")]
    is_old = (folder / "adw_state.json").read_text() == OLD_DOCUMENT
    if is_old and code == SAVED:
        return "the write was acknowledged, and the old document is in place"
    if not is_old and kept != [OLD_DOCUMENT]:
        return f"the old document was replaced, and its backups are {kept}"
    with open_home(home, "files") as app:
        with app.ownership.own(ADW_ID) as owned:
            before = step_of(owned.document)
            if before != (0 if is_old else 1):
                return f"step {before} was read, is_old={is_old}"
            one_step(owned)
        app.flush_projection()
        types = [event.event_type for event in app.events.of_workflow(ADW_ID, limit=100)]
    kept = [path.read_text() for path in folder.glob("*.bak")]
    if kept != [OLD_DOCUMENT]:
        return f"after the next write there are {len(kept)} backups"
    if types.count("state_migrated") != 1:
        return f"after the next write the events are {types}"
    return f"stray files {stray_files(home)}" if stray_files(home) else None


def migrations(home: Path, count: int, seed: int) -> dict:
    """Kill the first write of an old document at each call that changes something, let each fail, and go on."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / "strace.log"
    if traced_migration(home / "whole", log, None) != SAVED:
        raise SystemExit("the write failed without any fault")
    calls = [line.split("(")[0] for line in log.read_text().splitlines()]
    faults = ["signal=KILL"]
    for name in sorted(CHANGES & set(calls)):
        kinds = ("signal=KILL", "error=EIO", "error=ENOSPC")
        faults += [f"{name}:{kind}:when={n}" for n in range(1, calls.count(name) + 1) for kind in kinds]
    problems = []
    for number, fault in enumerate(sample(faults, count, seed)):
        code = traced_migration(home / str(number), log, fault)
        problem = judge_migration(home / str(number), code)
        if problem:
            problems.append(f"{fault}, ended with {code}: {problem}")
    order = [call.removesuffix("at") for call in calls if call in CHANGES and call != "write"]
    return {"cases": len(faults), "order": order, "problems": problems}


# --- contention and takeover -----------------------------------------------------------------------------------


def contended_worker(home: Path, store: str, steps: int) -> None:
    """Make *steps* steps, each under an ownership of its own."""
    with open_home(home, store) as app:
        done = 0
        while done < steps:
            try:
                with app.ownership.own(ADW_ID) as owned:
                    one_step(owned)
                done += 1
            except WorkflowBusy:
                # About as long as a step: all eight are always there, and do not only ask.
                app.clock.sleep(0.005 + app.clock.random() * 0.02)


def contention(home: Path, store: str, processes: int, steps: int) -> dict:
    """Let *processes* writers make *steps* steps each on one workflow."""
    make_workflow(home, store)
    children = []
    for _ in range(processes):
        pid = os.fork()
        if pid == 0:
            code = UNEXPECTED
            try:
                contended_worker(home, store, steps)
                code = SAVED
            except BaseException as exc:  # noqa: BLE001 - the exit code is how the child speaks
                os.write(2, f"{type(exc).__name__}: {exc}\n".encode())
            os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    problems = [f"a writer ended with {code}" for code in codes if code]
    back = read_back(home, store)
    if step_of(back) != processes * steps:
        problems.append(f"{processes * steps} steps were made, {step_of(back)} are there")
    return {"steps": step_of(back), "revision": back.revision, "problems": problems}


class LateClock:
    """The real clock, one hour ahead: for it every lease is over."""

    def __init__(self, clock) -> None:
        self._clock = clock

    def __getattr__(self, name: str):
        return getattr(self._clock, name)

    def boottime(self) -> float:
        return self._clock.boottime() + 3600


def take_over(home: Path, store: str) -> tuple[int, int] | None:
    """
    Take the workflow from an owner who no longer answers, and write one step.

    None: the stopped owner is inside a database transaction, so that nobody can write before it goes on.
    """
    env = {"ADW_HOME": str(home), "ADW_STATE_STORE": store}
    with app_module.open_home(config_load.load(env=env, cwd=home), wrap_clock=LateClock) as app:
        app.__dict__["database"] = open_database(
            app.settings.database_url, clock=app.clock, boot_id=app.processes.boot_id, patience_seconds=0.2
        )
        try:
            with app.ownership.own(ADW_ID) as owned:
                return one_step(owned)
        except DatabaseUnavailable:
            return None


def takeovers(home: Path, store: str, count: int, seed: int) -> dict:
    """Stop an owner before and at each system call of its step, take over, let it go on: refused, or seen before."""
    make_workflow(home, store)
    log = home / "strace.log"
    moments = [None] + [
        (name, number) for name, times in syscalls_of_step(home, store, log) for number in range(1, times + 1)
    ]
    problems, refused = [], 0
    for moment in [*moments[:1], *sample(moments[1:], count, seed)]:
        code, problem = one_takeover(home, store, log, moment)
        refused += code == EXIT_CODES[Fenced]
        if problem:
            problems.append(f"stopped at {moment or 'its start'}: {problem}")
    if not refused:
        problems.append("no late write was ever refused")
    return {"cases": len(moments), "refused": refused, "problems": problems}


def one_takeover(home: Path, store: str, log: Path, moment: tuple[str, int] | None) -> tuple[int, str | None]:
    """Stop an owner at *moment* of its step (None: right before it); return how it ended and what is wrong."""
    pid = run_stopped_step(home, store)
    wait_stopped(pid)
    before = step_of(read_back(home, store))
    tracer = None
    if moment is not None:
        tracer = attach(pid, log, f"{moment[0]}:signal=SIGSTOP:when={moment[1]}")
        os.kill(pid, signal.SIGCONT)
        wait_until_stopped_again(pid)
    taken = take_over(home, store)
    os.kill(pid, signal.SIGCONT)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if tracer is not None:
        tracer.wait()
        tracer.stderr.close()
    return code, judge_takeover(home, store, code, before, taken)


def wait_until_stopped_again(pid: int) -> None:
    """Return when the child is stopped by the tracer's signal (or has ended)."""
    while True:
        status = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        if status in "TtZX":
            # A traced process shows `t` for every system call; stopped for good is when it does not change.
            first = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1]
            has_ended(pid, 0.02)
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1] == first:
                return


def judge_takeover(home: Path, store: str, code: int, before: int, taken: tuple[int, int] | None) -> str | None:
    """Return what is wrong after the former owner went on."""
    back = read_back(home, store)
    if taken is None:
        is_right = code == SAVED and step_of(back) == before + 1
        return None if is_right else f"nobody took over, yet the owner ended with {code} at step {step_of(back)}"
    if (step_of(back), back.revision) != taken:
        return f"the successor wrote {taken}, now there is {(step_of(back), back.revision)}"
    if code == SAVED and taken[0] != before + 2:
        return "the former owner says it saved, but its successor did not see that"
    if code not in (SAVED, EXIT_CODES[Fenced], EXIT_CODES[DurabilityUnknown], EXIT_CODES[StateConflict]):
        return f"the former owner ended with {code}"
    return None


# --- power cuts ------------------------------------------------------------------------------------------------


def cut_power(mount_point: Path) -> None:
    """Stop the file system at once, as if the plug was pulled."""
    fd = os.open(mount_point, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    finally:
        os.close(fd)


def power_cuts(home: Path, store: str, count: int, seed: int, *, without_fsync: bool) -> dict:
    """Cut the power under a writer *count* times; *home* must not be on the cut file system."""
    chance = random.Random(seed)
    image, mount_point = home / "disk.img", home / "mnt"
    mount_point.mkdir(parents=True)
    subprocess.run(["truncate", "-s", "64M", str(image)], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    if without_fsync:
        take_fsync_out()
    problems, acked, steps = [], (0, 1), 0
    mount(image, mount_point)
    try:
        make_workflow(mount_point / "home", store)
        os.sync()
        for number in range(count):
            if chance.random() < 0.5:  # a successor works on what a killed writer may not have synced
                acked = killed_writer(mount_point / "home", store, chance.random() * 0.01) or acked
            pid, fd = fork_writer(mount_point / "home", store)
            wait_for_first_ack(pid, fd)
            let_work(pid, chance.random() * 0.03)
            # What counts is acknowledged before the cut: a sync that is under way when ext4 is shut down may come back
            # as done, and the writer goes on to acknowledge it. After a real cut it could not.
            acked = last_ack(fd) or acked
            cut_power(mount_point)
            in_flight = end_writer(pid, fd) or acked
            unmount(mount_point)
            mount(image, mount_point)
            acked, problem = check_after(mount_point / "home", store, acked, at_most=in_flight[0] + 1)
            if problem:
                problems.append(f"cut {number}: {problem}")
                break
            steps = acked[0]
    finally:
        unmount(mount_point)
    return {"cuts": count, "steps": steps, "problems": problems}


class ForgetfulConnection(sqlite3.Connection):
    """A connection that never syncs, whatever it is told."""

    def execute(self, sql, *parameters):
        return super().execute(never_sync(sql), *parameters)

    def executescript(self, script):
        return super().executescript(never_sync(script))


def never_sync(sql: str) -> str:
    """Return *sql* with every word of SQLite about syncing turned into its opposite."""
    return re.sub(r"(?i)(synchronous\s*=\s*)\w+", r"\1OFF", sql)


def take_fsync_out() -> None:
    """Make a build that forgets to sync: the harness must notice."""
    connect = sqlite3.connect
    os.fsync = os.fdatasync = lambda _fd: None
    sqlite3.connect = lambda *args, **options: connect(*args, **{**options, "factory": ForgetfulConnection})


def full_disk(home: Path, store: str) -> dict:
    """Fill a small file system up and try to write a step."""
    mount_point = home / "mnt"
    mount_point.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount_point)], check=True)
    problems, refused, attempts = [], 0, 0
    try:
        make_workflow(mount_point / "home", store)
        with open_home(mount_point / "home", store) as app, app.ownership.own(ADW_ID) as owned:
            one_step(owned)
            ballast = mount_point / "ballast"
            fill(ballast)
            before = step_of(owned.document)
            for _ in range(400):  # the database reuses its pages for a while
                attempts += 1
                try:
                    before = one_step(owned)[0]
                except (StateWriteFailed, DatabaseError):
                    refused += 1
                    break
            back = read_back(mount_point / "home", store)
            if step_of(back) != before:
                problems.append(f"step {before} was the last one written, found {step_of(back)}")
            ballast.unlink()
            if one_step(owned)[0] != before + 1:
                problems.append("the next write after room was made is not the next step")
        if stray_files(mount_point / "home"):
            problems.append(f"stray files: {stray_files(mount_point / 'home')}")
    finally:
        unmount(mount_point)
    return {"attempts": attempts, "refused": refused, "problems": problems}


def fill(path: Path) -> None:
    """Write zeros until the disk is full, down to the last block."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def mount(image: Path, mount_point: Path) -> None:
    """
    Mount *image* when nobody has it any more.

    A box of another test has a copy of all mounts while it lives: then the file system that was cut would come back as
    it is, and fail at every read.
    """
    for _ in range(600):
        attached = subprocess.run(["losetup", "-j", str(image)], check=True, capture_output=True, text=True)
        if not attached.stdout:
            break
        threading.Event().wait(0.1)
    subprocess.run(["mount", "-o", "loop", str(image), str(mount_point)], check=True)


def unmount(mount_point: Path) -> None:
    subprocess.run(["umount", str(mount_point)], check=False, capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "command", choices=["kills", "faults", "migrations", "contention", "takeovers", "full-disk", "power"]
    )
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--store", choices=["files", "database"], required=True)
    parser.add_argument("--count", type=int, default=100, help="0: every case there is")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--errors", default="EIO,ENOSPC,EDQUOT,EINTR")
    parser.add_argument("--without-fsync", action="store_true")
    given = parser.parse_args()
    result = {
        "kills": lambda: kills(given.home, given.store, given.count, given.seed),
        "faults": lambda: faults(given.home, given.store, given.errors.split(","), given.count, given.seed),
        "migrations": lambda: migrations(given.home, given.count, given.seed),
        "contention": lambda: contention(given.home, given.store, given.processes, given.count),
        "takeovers": lambda: takeovers(given.home, given.store, given.count, given.seed),
        "full-disk": lambda: full_disk(given.home, given.store),
        "power": lambda: power_cuts(
            given.home, given.store, given.count, given.seed, without_fsync=given.without_fsync
        ),
    }[given.command]()
    sys.stdout.write(json.dumps(result) + "\n")
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
