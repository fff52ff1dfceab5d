"""
Processes that contend for a few workflows, pause for longer than their leases last, and are stopped at any moment.

Run by test_crash_leases.py as a program of its own, so that forking is safe. Every contender tells in a pipe what it
did and when; at the end all of it is put in order and held against what must be true. Prints one JSON object;
`problems` is empty when all is well.
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
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

from adws import app as app_module
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.engine import transitions
from adws.adw_modules.errors import AdwError, Fenced, LeaseLost, StateConflict, WorkflowBusy
from adws.adw_modules.events import Event
from adws.adw_modules.process import tree
from adws.config import load as config_load
from adws.config.settings import Settings

#: A takeover ends what the former owner ran: loaded before the forks, else each child would load it anew.
LOADED = (transitions, tree)

IDS = ("aaaa0001", "aaaa0002", "aaaa0003")
START = "2026-01-31T09:00:00.000000Z"
LEASE_SECONDS = 0.3
LONGEST_PAUSE = 3 * LEASE_SECONDS
#: Every refusal that a writer may meet who was too slow.
REFUSED = (Fenced, StateConflict, LeaseLost)
BROKEN = 99


@dataclass(frozen=True, kw_only=True)
class Deed:
    """Something a contender did; moments are nanoseconds of the one clock that all processes share."""

    what: str  #: taken, shut, entered, saved, refused
    by: int  #: pid
    adw_id: str
    fence: int
    began: int
    ended: int
    revision: int = 0  #: what it wrote, 0: nothing
    how: str = ""  #: owned: as every owner writes; stubborn: by the store itself, without a look at the lease


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@cache
def settings_of(home: Path, store: str) -> Settings:
    """Return the settings of *home*, with leases that end soon."""
    env = {
        "ADW_HOME": str(home),
        "ADW_STATE_STORE": store,
        "ADW_LEASE_TTL_SECONDS": str(LEASE_SECONDS),
    }
    if os.environ.get("ADW_DATABASE_URL"):
        env["ADW_DATABASE_URL"] = os.environ["ADW_DATABASE_URL"]

    return config_load.load(env=env, cwd=home)


def make_workflows(home: Path, store: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    with app_module.open_home(settings_of(home, store)) as app:
        for number, adw_id in enumerate(IDS, start=1):
            new = WorkflowDocument(adw_id=adw_id, issue_number=number, created_at=START, updated_at=START)
            app.ownership.leave(new.model_copy(update={"plan_file": "0"}))


# --- a contender -----------------------------------------------------------------------------------------------


class Contender:
    """Owns what it can get, writes, pauses for too long, and goes on writing until it is refused."""

    def __init__(self, app: app_module.Home, *, home: Path, rng: random.Random, pipe: int) -> None:
        self._app = app
        self._home = home
        self._rng = rng
        self._pipe = pipe
        self._observe()

    def contend(self) -> None:
        """Go on until somebody says that it is enough."""
        while not (self._home / "enough").exists():
            adw_id = self._rng.choice(IDS)
            try:
                self._own(adw_id)
            except WorkflowBusy:
                self._app.clock.sleep(self._rng.uniform(0.005, 0.05))
            except REFUSED:
                continue  # taken over while it took over

    def _own(self, adw_id: str) -> None:
        began = now()
        with self._app.ownership.own(adw_id) as owned:
            fence, document = owned.lease.fence, owned.document
            wrote = document.revision if document.fence == fence else 0
            self._tell("entered", adw_id, fence, began, revision=wrote)
            try:
                for _ in range(self._rng.randint(1, 6)):
                    self._pause()
                    if self._rng.random() < 0.3:
                        owned.renew()
                    self._save(owned.document, fence, "owned", owned.save)
            except REFUSED:
                self._be_stubborn(adw_id, fence)

    def _be_stubborn(self, adw_id: str, fence: int) -> None:
        """Read what is there now and write on it under the old fence: the revision is right, only the fence is not."""
        for _ in range(self._rng.randint(1, 3)):
            try:
                value = self._app.store.load(adw_id).document
                if self._rng.random() < 0.3:
                    self._pause()
                self._save(value, fence, "stubborn", partial(self._app.store.save, fence=fence))
            except REFUSED:
                continue

    def _save(self, document: WorkflowDocument, fence: int, how: str, write: Callable[..., WorkflowDocument]) -> None:
        """Count one further, in the document and in its events."""
        number = int(document.plan_file or "0") + 1
        event = Event(event_type="state_set", data={"number": number, "by": os.getpid()})
        began = now()
        try:
            saved = write(document.model_copy(update={"plan_file": str(number)}), events=(event,))
        except REFUSED as exc:
            self._tell("refused", document.adw_id, fence, began, how=f"{how} {type(exc).__name__}")
            raise
        self._tell("saved", document.adw_id, fence, began, revision=saved.revision, how=how)

    def _pause(self) -> None:
        if self._rng.random() < 0.35:
            self._app.clock.sleep(self._rng.uniform(0.0, LONGEST_PAUSE))

    def _observe(self) -> None:
        """Tell of the moments after which an older fence is worth nothing."""
        take, revoke_writers = self._app.leases.take, self._app.store.revoke_writers

        def told_take(adw_id: str, *args: object, **options: object) -> object:
            began = now()
            answer = take(adw_id, *args, **options)
            if hasattr(answer, "lease"):
                self._tell("taken", adw_id, answer.lease.fence, began)
            return answer

        def told_fence_out(adw_id: str, *, fence: int) -> None:
            began = now()
            revoke_writers(adw_id, fence=fence)
            self._tell("shut", adw_id, fence + 1, began)

        self._app.leases.take = told_take
        self._app.store.revoke_writers = told_fence_out

    def _tell(self, what: str, adw_id: str, fence: int, began: int, **more: object) -> None:
        deed = Deed(what=what, by=os.getpid(), adw_id=adw_id, fence=fence, began=began, ended=now(), **more)
        # One write of less than PIPE_BUF: never mixed with another's, however its writer is stopped.
        os.write(self._pipe, json.dumps(asdict(deed)).encode() + b"\n")


def fork_contender(home: Path, store: str, seed: str, pipe: tuple[int, int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(pipe[0])
        with app_module.open_home(settings_of(home, store), role="worker") as app:
            Contender(app, home=home, rng=random.Random(seed), pipe=pipe[1]).contend()
        os._exit(0)
    except BaseException as exc:  # noqa: BLE001 - a child must not go on as its parent
        os.write(2, f"contender {os.getpid()}: {type(exc).__name__}: {exc}\n".encode())
        os._exit(BROKEN)


# --- the storm -------------------------------------------------------------------------------------------------


class Storm:
    """Stops contenders and lets them go on, at random, and reads what they tell."""

    def __init__(self, pids: list[int], pipe: int, rng: random.Random) -> None:
        self._pids = pids
        self._pipe = pipe
        self._rng = rng
        self._text = b""
        self._stopped: dict[int, float] = {}  #: pid -> when it goes on
        self.deeds: list[Deed] = []
        self.stops = 0

    def blow(self, *, is_enough: Callable[[Counter[str]], bool], seconds: float) -> str:
        """Go on until it is enough; return what is wrong if that does not come."""
        end = time.monotonic() + seconds
        while not is_enough(self.counts()):
            if time.monotonic() > end:
                return f"not enough after {seconds:.0f} s: {dict(self.counts())}"
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return "a contender ended by itself"
            self._stop_some()
            self._hear(self._rng.uniform(0.0, 0.1))

        return ""

    def end(self) -> list[str]:
        """Let all of them come to their end, and hear them out."""
        for pid in self._pids:
            os.kill(pid, signal.SIGCONT)
        while self._hear(60.0):
            pass
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self._pids]
        self._pids.clear()

        return [f"a contender ended with {code}" for code in codes if code]

    def kill(self) -> None:
        """Leave none behind, whatever went wrong."""
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def counts(self) -> Counter[str]:
        counts = Counter(deed.what for deed in self.deeds)
        counts["takeovers"] = sum(deed.what == "entered" and deed.revision > 0 for deed in self.deeds)
        counts["stubborn refused"] = sum(deed.how == "stubborn Fenced" for deed in self.deeds)
        counts["stops"] = self.stops
        return counts

    def _stop_some(self) -> None:
        for pid, until in list(self._stopped.items()):
            if time.monotonic() >= until:
                os.kill(pid, signal.SIGCONT)
                del self._stopped[pid]
        running = [pid for pid in self._pids if pid not in self._stopped]
        if len(running) > len(self._pids) // 2 and self._rng.random() < 0.5:
            pid = self._rng.choice(running)
            os.kill(pid, signal.SIGSTOP)
            self._stopped[pid] = time.monotonic() + self._rng.uniform(0.0, LONGEST_PAUSE)
            self.stops += 1

    def _hear(self, seconds: float) -> bool:
        """Read what was told; False when nobody is left to tell anything."""
        if not select.select([self._pipe], [], [], seconds)[0]:
            return True
        read = os.read(self._pipe, 1 << 16)
        *lines, self._text = (self._text + read).split(b"\n")
        self.deeds += [Deed(**json.loads(line)) for line in lines]

        return bool(read)


def storm(home: Path, store: str, *, processes: int, writes: int, seed: int) -> dict:
    """Let *processes* contend until *writes* writes were accepted, and say what is wrong with them."""
    make_workflows(home, store)
    pipe = os.pipe()
    pids = [fork_contender(home, store, f"{seed}/{number}", pipe) for number in range(processes)]
    os.close(pipe[1])
    made = Storm(pids, pipe[0], random.Random(seed))
    least = max(3, writes // 20)

    def is_enough(counts: Counter[str]) -> bool:
        return counts["saved"] >= writes and min(counts[what] for what in ("takeovers", "stubborn refused")) >= least

    try:
        late = made.blow(is_enough=is_enough, seconds=60.0 + writes)
        (home / "enough").touch()
        problems = [late, *made.end()]
    finally:
        made.kill()
    problems += check(home, store, made.deeds)

    return {"counts": dict(made.counts()), "problems": [problem for problem in problems if problem]}


# --- what must hold --------------------------------------------------------------------------------------------


def check(home: Path, store: str, deeds: Iterable[Deed]) -> list[str]:
    """Return what is wrong with all that was done, workflow by workflow."""
    by_workflow: dict[str, list[Deed]] = defaultdict(list)
    for deed in deeds:
        by_workflow[deed.adw_id].append(deed)
    problems = []
    with app_module.open_home(settings_of(home, store)) as app:
        for adw_id, done in sorted(by_workflow.items()):
            written = sorted((deed for deed in done if deed.revision), key=lambda deed: deed.revision)
            result = [*check_order(written), *check_barriers(store, done, written), *check_stored(app, adw_id, written)]
            problems += [f"{adw_id}: {problem}" for problem in result]

    return problems


def check_order(written: list[Deed]) -> Iterable[str]:
    """Revisions have no gap and no double; fences never go back; each fence is one owner's."""
    revisions = [deed.revision for deed in written]
    if revisions != list(range(2, len(written) + 2)):
        double = [revision for revision, count in Counter(revisions).items() if count > 1]
        missing = sorted({*range(2, max(revisions, default=1) + 1)} - {*revisions})
        yield f"{len(written)} writes were accepted; revisions missing: {missing[:5]}, written twice: {double[:5]}"
    for before, after in pairwise(written):
        if after.fence < before.fence:
            yield f"revision {after.revision} has fence {after.fence}, the one before it {before.fence}"
    owners: dict[int, set[int]] = defaultdict(set)
    for deed in written:
        owners[deed.fence].add(deed.by)
    yield from (f"fence {fence} was used by {sorted(pids)}" for fence, pids in owners.items() if len(pids) > 1)


def check_barriers(store: str, done: list[Deed], written: list[Deed]) -> Iterable[str]:
    """No write was accepted that began when a higher fence had been taken."""
    # In the database the takeover itself is the barrier; a document in a file is shut a moment later, before it is
    # read, so that nothing is decided in between.
    kinds = {"entered", "shut"} if store == "files" else {"entered", "shut", "taken"}
    barriers = sorted((deed.ended, deed.fence) for deed in done if deed.what in kinds)
    for deed in written:
        # The write that completes a takeover is part of entering: it may itself be too late, and is refused then.
        highest = max((fence for moment, fence in barriers if moment < deed.began), default=0)
        if deed.fence < highest:
            yield f"revision {deed.revision} was accepted under fence {deed.fence}, {highest} had been taken before"


def check_stored(app: app_module.Home, adw_id: str, written: list[Deed]) -> Iterable[str]:
    """The document and its events tell the same story as the writers."""
    try:
        document = app.store.load(adw_id).document
        app.catch_up(adw_id)
    except AdwError as exc:
        yield f"cannot be read: {exc}"
        return
    saves = [deed for deed in written if deed.what == "saved"]
    if (document.revision, document.plan_file) != (len(written) + 1, str(len(saves))):
        yield f"revision {document.revision} counts {document.plan_file}; {len(saves)} of {len(written)} writes counted"
    events = [event for event in app.events.of_workflow(adw_id, limit=100_000) if event.event_type == "state_set"]
    told = [(event.revision, event.data["number"], event.data["by"]) for event in events]
    expected = [(deed.revision, number, deed.by) for number, deed in enumerate(saves, start=1)]
    if sorted(told) != expected:
        yield f"{len(told)} events tell of {len(expected)} writes, or not of the same"


def main() -> int:
    """Blow once and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("store", choices=("files", "database"))
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--writes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.getLogger("adw").addHandler(logging.NullHandler())
    result = storm(given.home, given.store, processes=given.processes, writes=given.writes, seed=given.seed)
    sys.stdout.write(json.dumps(result) + "\n")

    return 0


if __name__ == "__main__":
    sys.exit(main())
