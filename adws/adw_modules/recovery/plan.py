"""
What to do about work whose worker is gone: a plan from evidence, one row for each thing that is wrong.

Pure. Age proves nothing: a run is left alone while its owner lives or may live, however long it takes, and taken back
as soon as its owner is proven dead or its lease is over, however young it is. Age decides only where nothing proves
either: an owner that cannot be read, a claim without an owner, a stop that nobody can confirm. Recovery never runs work
itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import MappingProxyType

from adws.adw_modules import timestamps
from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import JsonObject, counted
from adws.adw_modules.interfaces import Verdict
from adws.adw_modules.queue.model import LIVE_RUNS, UNCONFIRMED, RunState
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState, is_terminal

# What recovery knows and what it plans and did, as data types.
#
# A claim is judged by proof first: a dead owner, a lease that is over. One that says nothing has to be judged by age.


#: Seconds without a sign of life after which something is taken back that nothing proves anything about.
THRESHOLD_SECONDS = 300.0
#: How often a worker may vanish with a run.
MAX_LOSSES = 5


class Mode(Enum):
    """How far recovery goes."""

    NONE = "none"  #: it only says what it would do
    STALE = "stale"  #: what is proven to be left, and what has been silent for the threshold where nothing is proven
    ALL = "all"  #: the same without waiting for the threshold; with force also what is alive


class RecoveryAction(Enum):
    """What recovery can do about a workflow."""

    LEAVE = "leave"  #: somebody works on it, or nothing is wrong
    REPORT = "report"  #: something is wrong that a person has to look at
    PROJECT = "project"  #: the database copy is behind the document
    INTERRUPT = "interrupt"  #: an attempt was cut off: close it
    REQUEUE = "requeue"  #: its run goes back to the queue
    ENQUEUE = "enqueue"  #: it should be worked on, and no run says so
    FAIL = "fail"  #: it has failed, with its run: the policy says so, or its attempts are used up
    STOP = "stop"  #: it was to stop: it is paused, and its run is stopped
    BURY = "bury"  #: too many workers vanished with its run: the run is dead, the workflow failed
    END_RUN = "end_run"  #: it is parked or over, and a run still waits
    FREE_ISSUE = "free_issue"  #: it is over, and still has its issue
    END_LEFT = "end_left"  #: what an attempt left that was closed elsewhere may run here: end it
    FORGET = "forget"  #: it was registered, and its creator died before there was a document


class Proof(Enum):
    """What is known about the owner of something."""

    FREE = "free"  #: nobody has it
    LIVE = "live"  #: its owner works, or may work: the lease runs, and no proof of death
    DEAD = "dead"  #: its owner is proven dead
    OVER = "lease_over"  #: its lease is over
    NONE = "unproven"  #: there is nothing to go by


def mode_of(text: str) -> Mode:
    """Return the mode called *text*; raise UsageError, which names the modes there are."""
    try:
        return Mode(text)
    except ValueError:
        known = ", ".join(mode.value for mode in Mode)
        raise UsageError(f"{text!r} is no mode of recovery; use one of {known}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A lease or a claim, as recovery sees it."""

    owner: str = ""  #: as text, "" when nobody has it
    key: str = ""  #: the record of its owner as text: what *owners* of a plan is looked up by
    verdict: Verdict = Verdict.UNKNOWN
    seconds_left: float = 0.0
    is_readable: bool = True  #: whether the record says who its owner is, and on which host
    since: str = ""  #: when it last changed; "": nobody knows

    @property
    def is_live(self) -> bool:
        """Whether its owner works, as far as anybody can know."""
        return self.proof is Proof.LIVE

    @property
    def proof(self) -> Proof:
        """What is known about it."""
        if not self.owner:
            return Proof.FREE
        if not self.is_readable:
            return Proof.NONE
        if self.verdict is Verdict.DEAD:
            return Proof.DEAD

        return Proof.LIVE if self.seconds_left > 0.0 else Proof.OVER

    def why_over(self) -> str:
        """Return what ended it."""
        if not self.owner:
            return "nobody owns it"
        if not self.is_readable:
            return f"nobody can tell whether {self.owner} lives"
        if self.verdict is Verdict.DEAD:
            return f"its owner {self.owner} is dead"
        if self.seconds_left > 0.0:
            return f"it is taken by force from {self.owner} ({self.verdict.value})"

        return f"the lease of {self.owner} is over since {-self.seconds_left:.0f} s"


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is known about one workflow."""

    adw_id: str
    state: str = ""  #: of its document, "" when that cannot be read
    problem: str = ""  #: why it cannot
    is_unwritten: bool = False  #: it is registered and has no document
    has_issue: bool = False  #: an issue lock names it
    is_rolling_back: bool = False
    is_errand: bool = False  #: no workflow, but a run of its own: what a delivery or the schedule asks for
    open_attempt: str = ""  #: the phase whose attempt is recorded as running
    process: Verdict | None = None  #: what is known here of the process of that attempt; None: it has none
    left_here: str = ""  #: the attempt that was closed elsewhere and whose processes may run on this machine
    exhausted_phase: str = ""  #: the phase that comes next and has no attempt left
    revision: int = 0
    copied_revision: int | None = None  #: of the database copy; None: there is no copy to bring up
    lease: Claim = Claim()
    run_id: int | None = None  #: its unfinished run
    run_state: RunState | None = None
    run_claim: Claim = Claim()
    losses: int = 0  #: how often a worker vanished with the run


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What the settings, or the caller, want of recovery."""

    threshold_seconds: float = THRESHOLD_SECONDS
    is_forced: bool = False  #: also take from owners that live or may live; only in mode all
    fails_running: bool = False  #: runs that were being worked on fail; else they go on
    max_losses: int = MAX_LOSSES


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryStep:
    """One row of the plan."""

    adw_id: str
    action: RecoveryAction
    why: str
    run_id: int | None = None
    before: RunState | None = None  #: of the run
    after: RunState | None = None  #: of the run, when the step is done
    evidence: JsonObject = field(default_factory=dict, hash=False)

    def to_json(self) -> JsonObject:
        """Return the row for --json."""
        return {
            "adw_id": self.adw_id,
            "action": self.action.value,
            "why": self.why,
            "run_id": self.run_id,
            "from": self.before.value if self.before else None,
            "to": self.after.value if self.after else None,
            "evidence": self.evidence,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """What became of one run."""

    run_id: int
    adw_id: str
    before: RunState | None  #: None: it is new
    after: RunState
    action: RecoveryAction
    proof: str  #: what was known about its worker (`Proof`)


#: Result key -> the states that runs are in which it counts.
_COUNTED = {
    "reset_to_pending": frozenset({RunState.PENDING}),
    "marked_failed": frozenset({RunState.FAILED, RunState.DEAD}),
    "marked_stopped": frozenset({RunState.STOPPED}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryResult:
    """What a recovery did, under the same names in every mode; one that changed nothing counts nothing."""

    mode: Mode
    is_dry_run: bool = False
    steps: tuple[RecoveryStep, ...] = ()  #: those that were done, or would be
    runs: tuple[Recovered, ...] = ()  #: every run that it changed

    @property
    def reset_to_pending(self) -> int:
        """How many runs went back to the queue, or into it."""
        return len(self.run_ids("reset_to_pending"))

    @property
    def marked_failed(self) -> int:
        """How many runs failed, those among them that were given up for good."""
        return len(self.run_ids("marked_failed"))

    @property
    def marked_stopped(self) -> int:
        """How many runs were stopped."""
        return len(self.run_ids("marked_stopped"))

    def __getitem__(self, key: str) -> int:
        """Return what is counted under *key*, such as `marked_failed`; raise KeyError for what is not counted."""
        return len(self.run_ids(key))

    def run_ids(self, key: str) -> tuple[int, ...]:
        """Return the runs that are counted under *key*, in the order of the queue."""
        return tuple(sorted(run.run_id for run in self.runs if run.after in _COUNTED[key]))

    def metrics(self) -> Counter[tuple[str, str, str]]:
        """Return how many runs were recovered for each (verdict, mode, action)."""
        return Counter((run.proof, self.mode.value, run.action.value) for run in self.runs)

    def to_json(self) -> JsonObject:
        """Return it for --json, the API and the log."""
        ids: JsonObject = {key: list(self.run_ids(key)) for key in _COUNTED}

        return {
            "mode": self.mode.value,
            "dry_run": self.is_dry_run,
            **{key: len(self.run_ids(key)) for key in _COUNTED},
            "run_ids": ids,
            "steps": [step.to_json() for step in self.steps],
        }


#: Why a run that was being worked on is failed by the policy `fail`: in mode stale, and in mode all.
RESTARTED = "Coordinator restarted during execution"
STATE_UNKNOWN = "Coordinator restarted - execution state unknown"

_ACTIVE = frozenset(state.value for state in ACTIVE_STATES)
_ROLLED_BACK = WorkflowState.ROLLED_BACK.value
_GONE = frozenset({Proof.DEAD, Proof.OVER})


def plan_recovery(
    rows: Iterable[Evidence],
    owners: Mapping[str, Verdict] = MappingProxyType({}),
    now: datetime | None = None,
    mode: Mode = Mode.STALE,
    *,
    policy: Policy | None = None,
) -> tuple[RecoveryStep, ...]:
    """
    Return what to do about each workflow, in the order given; several steps where several things are wrong.

    *owners* says what is known about each owner, by its record; *now* is what ages are counted to: without it nothing
    is young. In mode none the plan is that of mode stale, to show what would be done.
    """
    planner = _Planner(now, mode, policy or Policy())

    return tuple(step for row in rows for step in planner.steps(_judged(row, owners)))


def _judged(row: Evidence, owners: Mapping[str, Verdict]) -> Evidence:
    if not owners:
        return row
    lease, claim = row.lease, row.run_claim

    on_lease, on_run = owners.get(lease.key, lease.verdict), owners.get(claim.key, claim.verdict)
    if (on_lease, on_run) == (lease.verdict, claim.verdict):
        return row

    return replace(row, lease=replace(lease, verdict=on_lease), run_claim=replace(claim, verdict=on_run))


class _Planner:
    """The rules, for one moment and one mode."""

    def __init__(self, now: datetime | None, mode: Mode, policy: Policy) -> None:
        self._now = now
        self._mode = mode
        self._policy = policy

    def steps(self, row: Evidence) -> list[RecoveryStep]:
        """Return what to do about one workflow."""
        if row.is_errand:
            return self._about_errand(row) or [self._step(row, RecoveryAction.LEAVE, "nothing is wrong")]
        if row.is_unwritten:
            return [self._about_unwritten(row)]
        if not row.state:
            report = self._step(row, RecoveryAction.REPORT, row.problem or "its document says no state")
            return [report, *self._about_lost_run(row)]
        steps = []
        if row.copied_revision is not None and row.copied_revision < row.revision:
            why = f"the copy is at revision {row.copied_revision}, the document at {row.revision}"
            steps.append(self._step(row, RecoveryAction.PROJECT, why))
        if row.left_here:
            why = f"what {row.left_here} had started here may still run: it was closed on another machine"
            steps.append(self._step(row, RecoveryAction.END_LEFT, why))
        steps.extend(self._about_work(row))

        return steps or [self._step(row, RecoveryAction.LEAVE, "nothing is wrong")]

    # --- workflows ---------------------------------------------------------------------------------------------

    def _about_work(self, row: Evidence) -> list[RecoveryStep]:
        kept = self._why_kept(row.lease)
        if kept:
            return [self._step(row, RecoveryAction.LEAVE, kept)]
        if row.is_rolling_back and row.state != _ROLLED_BACK:
            return self._about_run(row) if row.run_id is not None else []  # finishing it has to be asked for
        if row.state not in _ACTIVE:
            return [*self._about_leftover_run(row), *self._about_leftover_issue(row)]

        return self._about_run(row)

    def _about_run(self, row: Evidence) -> list[RecoveryStep]:
        """Return what to do about the run of a workflow, and about an attempt that was cut off."""
        is_work = row.state in _ACTIVE and not row.is_rolling_back
        cut_off = self._cut_off(row) if is_work else []
        if row.run_state in LIVE_RUNS:
            kept = self._why_kept(row.run_claim, of_run=True)
            if kept:
                return [*cut_off, self._step(row, RecoveryAction.LEAVE, kept)]
            return self._about_taken_run(row, cut_off, is_work=is_work)
        if is_work and row.exhausted_phase and not row.open_attempt:
            return [self._exhausted(row)]
        if row.run_id is None:
            why = f"it is {row.state} and no run waits for it"
            return [*cut_off, self._step(row, RecoveryAction.ENQUEUE, why, after=RunState.PENDING)]

        return cut_off

    def _about_taken_run(self, row: Evidence, cut_off: list[RecoveryStep], *, is_work: bool) -> list[RecoveryStep]:
        """Return what to do about a run whose worker is gone."""
        why = f"run {row.run_id}: {row.run_claim.why_over()}"
        if row.run_state is RunState.STOPPING:
            return [self._about_stop(row, why)]
        if is_work and row.exhausted_phase and not row.open_attempt:
            return [self._exhausted(row)]
        if self._is_poison(row):
            return [self._buried(row, RunState.DEAD)]
        if row.run_state is RunState.RUNNING and self._policy.fails_running and is_work:
            said = STATE_UNKNOWN if self._mode is Mode.ALL else RESTARTED
            return [self._step(row, RecoveryAction.FAIL, said, after=RunState.FAILED)]

        return [*cut_off, self._step(row, RecoveryAction.REQUEUE, why, after=RunState.PENDING)]

    def _cut_off(self, row: Evidence) -> list[RecoveryStep]:
        if not row.open_attempt:
            return []

        return [self._step(row, RecoveryAction.INTERRUPT, f"{row.open_attempt} was cut off: {row.lease.why_over()}")]

    def _about_stop(self, row: Evidence, why: str) -> RecoveryStep:
        """Return that a run that was to stop is stopped: by proof, or after the threshold without."""
        if row.process is not Verdict.UNKNOWN:
            return self._step(row, RecoveryAction.STOP, why, after=RunState.STOPPED)
        doubt = f"{why}; whether the processes of {row.open_attempt} are gone cannot be told from here"
        left = self._seconds_to_wait(row.run_claim)
        if left > 0.0:
            return self._step(row, RecoveryAction.LEAVE, f"{doubt}; it counts as stopped in {left:.0f} s")

        return self._step(row, RecoveryAction.STOP, f"{UNCONFIRMED}: {doubt}", after=RunState.STOPPED)

    def _exhausted(self, row: Evidence) -> RecoveryStep:
        after = RunState.FAILED if row.run_id is not None else None

        return self._step(row, RecoveryAction.FAIL, f"the attempts of {row.exhausted_phase} are used up", after=after)

    def _about_unwritten(self, row: Evidence) -> RecoveryStep:
        if row.lease.is_live:
            return self._step(row, RecoveryAction.LEAVE, f"{row.lease.owner} is creating it")
        kept = self._why_kept(row.lease)
        if kept:
            return self._step(row, RecoveryAction.LEAVE, kept)

        return self._step(row, RecoveryAction.FORGET, f"it has no document, and {row.lease.why_over()}")

    def _about_leftover_run(self, row: Evidence) -> list[RecoveryStep]:
        has_worker = row.run_state in LIVE_RUNS
        if row.run_id is None or (has_worker and self._why_kept(row.run_claim, of_run=True)):
            return []
        why = f"it is {row.state}, but run {row.run_id} still waits"

        return [self._step(row, RecoveryAction.END_RUN, why, after=RunState.STOPPED)]

    def _about_leftover_issue(self, row: Evidence) -> list[RecoveryStep]:
        if not row.has_issue or not is_terminal(row.state):
            return []

        return [self._step(row, RecoveryAction.FREE_ISSUE, f"it is {row.state}, and still has its issue")]

    # --- runs without a document -------------------------------------------------------------------------------

    def _about_errand(self, row: Evidence) -> list[RecoveryStep]:
        if row.run_state not in LIVE_RUNS or self._why_kept(row.run_claim, of_run=True):
            return []
        why = f"run {row.run_id}: {row.run_claim.why_over()}"
        if row.run_state is RunState.STOPPING:
            return [self._step(row, RecoveryAction.STOP, why, after=RunState.STOPPED)]
        if self._is_poison(row):
            return [self._buried(row, RunState.FAILED)]

        return [self._step(row, RecoveryAction.REQUEUE, why, after=RunState.PENDING)]

    def _about_lost_run(self, row: Evidence) -> list[RecoveryStep]:
        """Return what to do about the run of a document that nobody can read: a worker ends it, and says why."""
        has_worker = row.run_state in LIVE_RUNS
        if not has_worker or self._why_kept(row.run_claim, of_run=True) or self._why_kept(row.lease):
            return []
        after = RunState.STOPPED if row.run_state is RunState.STOPPING else RunState.PENDING

        return [self._step(row, RecoveryAction.REQUEUE, f"run {row.run_id}: {row.run_claim.why_over()}", after=after)]

    # --- what is proven, and what has to wait ------------------------------------------------------------------

    def _why_kept(self, claim: Claim, *, of_run: bool = False) -> str:
        """Return why its owner keeps something, "" when it may be taken."""
        proof = claim.proof
        if proof is Proof.LIVE:
            works = f"{claim.owner} has its run" if of_run else f"{claim.owner} works on it ({claim.verdict.value})"
            return "" if self._takes_all_by_force() else works
        if proof in _GONE or (proof is Proof.FREE and not of_run):
            return ""
        left = self._seconds_to_wait(claim)
        if left <= 0.0:
            return ""
        who = f"nobody can tell whether {claim.owner} lives" if claim.owner else "it has a worker, and nobody says who"

        return f"{who}: it is taken back in {left:.0f} s"

    def _takes_all_by_force(self) -> bool:
        return self._mode is Mode.ALL and self._policy.is_forced

    def _seconds_to_wait(self, claim: Claim) -> float:
        """Return how long something that nothing is proven about is still left alone; nobody waits in mode all."""
        age = self._age(claim)
        if self._mode is Mode.ALL or age is None:
            return 0.0

        return self._policy.threshold_seconds - age

    def _age(self, claim: Claim) -> float | None:
        """Return the seconds since the claim last changed, None when nobody knows."""
        if self._now is None or not claim.since:
            return None
        try:
            return (self._now - timestamps.parse(claim.since)).total_seconds()
        except (ValueError, OverflowError):
            return None

    def _is_poison(self, row: Evidence) -> bool:
        return row.losses + 1 >= self._policy.max_losses

    def _buried(self, row: Evidence, after: RunState) -> RecoveryStep:
        lost = counted(row.losses + 1, "worker")
        why = f"{lost} vanished with run {row.run_id}, the last time because {row.run_claim.why_over()}"

        return self._step(row, RecoveryAction.BURY, why, after=after)

    def _step(self, row: Evidence, action: RecoveryAction, why: str, *, after: RunState | None = None) -> RecoveryStep:
        claim = row.run_claim if row.run_state in LIVE_RUNS else row.lease
        age = self._age(claim)
        evidence: JsonObject = {
            "owner": claim.owner,
            "proof": claim.proof.value if claim.owner or row.run_state not in LIVE_RUNS else Proof.NONE.value,
            "verdict": claim.verdict.value,
            "lease_seconds_left": round(claim.seconds_left, 3),
            "age_seconds": None if age is None else round(age, 3),
            "losses": row.losses,
        }

        return RecoveryStep(
            adw_id=row.adw_id,
            action=action,
            why=why,
            run_id=row.run_id,
            before=row.run_state,
            after=after,
            evidence=evidence,
        )


# What recovery does with a run in each state, for each thing that can be known of its worker: a table for people.
#
# Pure. It is made by asking the rule itself, so it cannot say something else.


HEADER = ("State of the run", "What is known of its worker", "`stale`", "`all`", "`all --force`")

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_YOUNG, _OLD = (timestamps.to_text(_NOW - timedelta(seconds=age)) for age in (10, 400))
_WORKER = "worker"
#: The claim as text -> the claim; proofs are shown for a run that changed a moment ago.
_KNOWN = {
    "it is alive": Claim(owner=_WORKER, verdict=Verdict.ALIVE, seconds_left=20.0, since=_OLD),
    "it is elsewhere, its lease runs": Claim(owner=_WORKER, seconds_left=20.0, since=_OLD),
    "it is dead": Claim(owner=_WORKER, verdict=Verdict.DEAD, seconds_left=20.0, since=_YOUNG),
    "its lease is over": Claim(owner=_WORKER, seconds_left=-1.0, since=_YOUNG),
    "nothing, for less than the threshold": Claim(owner=_WORKER, is_readable=False, seconds_left=20.0, since=_YOUNG),
    "nothing, for the threshold": Claim(owner=_WORKER, is_readable=False, seconds_left=20.0, since=_OLD),
}
_MODES = ((Mode.STALE, False), (Mode.ALL, False), (Mode.ALL, True))
_SAID = {
    RecoveryAction.LEAVE: "kept",
    RecoveryAction.REQUEUE: "goes back to the queue",
    RecoveryAction.STOP: "stopped",
    RecoveryAction.FAIL: "failed",
    RecoveryAction.BURY: "dead",
}


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the rows below `HEADER`."""
    yield ("`pending`", "it has none", *["kept"] * len(_MODES))
    for state in (RunState.CLAIMED, RunState.RUNNING, RunState.STOPPING):
        for known, claim in _KNOWN.items():
            yield (f"`{state.value}`", known, *_cells(state, claim))
    dead = _KNOWN["it is dead"]
    yield ('`running`, with `recovery.running = "fail"`', "it is dead", *_cells(RunState.RUNNING, dead, fails=True))
    yield ("`claimed` or `running`, for the last time", "it is dead", *_cells(RunState.RUNNING, dead, losses=4))
    for words, since in (("less than", _YOUNG), ("", _OLD)):
        claim = Claim(owner=_WORKER, seconds_left=-1.0, since=since)
        known = f"its lease is over, its processes cannot be looked at, for {words} the threshold"
        yield ("`stopping`", known, *_cells(RunState.STOPPING, claim, process=Verdict.UNKNOWN))


def _cells(
    state: RunState, claim: Claim, *, fails: bool = False, losses: int = 0, process: Verdict | None = None
) -> Iterator[str]:
    row = Evidence(
        adw_id="1a2b3c4d",
        state="building",
        open_attempt="build" if state is not RunState.CLAIMED else "",
        process=process,
        run_id=1,
        run_state=state,
        run_claim=claim,
        losses=losses,
    )
    for mode, is_forced in _MODES:
        policy = Policy(is_forced=is_forced, fails_running=fails)
        step = plan_recovery([row], {}, _NOW, mode, policy=policy)[-1]
        doubt = ", and says that nobody confirmed it" if step.why.startswith("stop unconfirmed") else ""
        yield f"{_SAID[step.action]}{doubt}"
