"""
Planning recovery of work whose worker is gone: from evidence to a plan with one row for each problem.

Pure. Age proves nothing: a run is left alone while its owner lives or may live, however old it is, and recovered as
soon as its owner is proven dead or its lease has expired, however young it is. Age decides only without proof: for an
unreadable owner, a claim without an owner, or a stop that nobody can confirm. Recovery never executes work itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from adws.adw_modules import timestamps
from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import JsonObject, counted
from adws.adw_modules.interfaces import LeaseRow, Verdict
from adws.adw_modules.queue.model import LIVE_RUNS, UNCONFIRMED, Run, RunState
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState, is_terminal

#: Seconds without a sign of life after which something is recovered although nothing is proven about its owner.
THRESHOLD_SECONDS = 300.0
#: How many times workers may vanish with a run.
MAX_LOSSES = 5


class Mode(Enum):
    """Modes of recovery."""

    NONE = "none"  #: only report what would be done
    STALE = "stale"  #: recover what is proven abandoned or, without proof, has been silent for the threshold
    ALL = "all"  #: the same without the threshold; with force also from live owners


class RecoveryAction(Enum):
    """What recovery can do about a workflow."""

    LEAVE = "leave"  #: it has a live owner, or nothing is wrong
    REPORT = "report"  #: a problem that needs a person
    PROJECT = "project"  #: the database copy is behind the document
    INTERRUPT = "interrupt"  #: an attempt was cut off, and is closed
    REQUEUE = "requeue"  #: its run goes back to the queue
    ENQUEUE = "enqueue"  #: it should be worked on, but has no run
    FAIL = "fail"  #: it fails with its run: by the policy, or because its attempts are used up
    STOP = "stop"  #: it was to stop: it is paused and its run stopped
    BURY = "bury"  #: too many workers vanished with its run: the run is dead, the workflow fails
    END_RUN = "end_run"  #: it is parked or final, but a run still waits
    FREE_ISSUE = "free_issue"  #: it is final, but still has its issue
    END_LEFT = "end_left"  #: end processes that an attempt closed elsewhere may have left on this machine
    FORGET = "forget"  #: it was registered, but its creator died before writing a document


class Proof(Enum):
    """What is proven about the owner of a lease or claim."""

    FREE = "free"  #: there is no owner
    LIVE = "live"  #: its owner is or may be working: the lease has not expired, and the owner is not proven dead
    DEAD = "dead"  #: its owner is proven dead
    OVER = "lease_over"  #: the lease has expired
    NONE = "unproven"  #: there is no evidence


def mode_of(text: str) -> Mode:
    """Return the mode called *text*; raise UsageError, which names the modes, if it does not exist."""
    try:
        return Mode(text)
    except ValueError:
        known = ", ".join(mode.value for mode in Mode)
        raise UsageError(f"{text!r} is no mode of recovery; use one of {known}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """
    A lease of a workflow or a claim of a run, as recovery sees it.

    Proof decides first: a dead owner or an expired lease. Without proof, its age decides.
    """

    owner: str = ""  #: as text; "" without an owner
    verdict: Verdict = Verdict.UNKNOWN
    seconds_left: float = 0.0
    is_readable: bool = True  #: whether the record names the owner and its host
    since: str = ""  #: when it last changed; "" if unknown

    @property
    def is_live(self) -> bool:
        """Whether its owner works, as far as anybody can know."""
        return self.proof is Proof.LIVE

    @property
    def proof(self) -> Proof:
        """What is proven about its owner."""
        if not self.owner:
            return Proof.FREE
        if not self.is_readable:
            return Proof.NONE
        if self.verdict is Verdict.DEAD:
            return Proof.DEAD

        return Proof.LIVE if self.seconds_left > 0.0 else Proof.OVER

    def why_over(self) -> str:
        """Return why the claim has ended."""
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
    state: str = ""  #: of its document; "" if that is unreadable
    problem: str = ""  #: why it is unreadable
    is_unwritten: bool = False  #: it is registered but has no document
    has_issue: bool = False  #: an issue lock names it
    is_rolling_back: bool = False
    is_errand: bool = False  #: a run settled by itself: of a delivery, of the schedule or of a step
    open_attempt: str = ""  #: the phase whose attempt is recorded as running
    process: Verdict | None = None  #: what this machine knows of that attempt's process; None: it has none
    left_here: str = ""  #: an attempt closed elsewhere, whose processes may run on this machine
    exhausted_phase: str = ""  #: the next phase, if it has no attempt left
    revision: int = 0
    copied_revision: int | None = None  #: of the database copy; None: no copy to update
    lease: Claim = Claim()
    run_id: int | None = None  #: its unfinished run
    run_state: RunState | None = None
    run_claim: Claim = Claim()
    losses: int = 0  #: how many workers vanished with the run
    run: Run | None = None  #: the run and the lease as read, for applying the plan
    lease_row: LeaseRow | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How recovery decides, by the settings or the caller."""

    threshold_seconds: float = THRESHOLD_SECONDS
    is_forced: bool = False  #: also take from owners that are or may be alive; only in mode all
    fails_running: bool = False  #: running runs fail instead of continuing
    max_losses: int = MAX_LOSSES


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryStep:
    """One row of the plan."""

    adw_id: str
    action: RecoveryAction
    why: str
    run_id: int | None = None
    before: RunState | None = None  #: of the run
    after: RunState | None = None  #: of the run, after the step
    evidence: JsonObject = field(default_factory=dict, hash=False)

    @property
    def proof(self) -> str:
        """What is proven about the worker of its run (`Proof`)."""
        return str(self.evidence.get("proof") or Verdict.UNKNOWN.value)

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


#: Result key -> the states of the runs counted under it.
_COUNTED = {
    "reset_to_pending": frozenset({RunState.PENDING}),
    "marked_failed": frozenset({RunState.FAILED, RunState.DEAD}),
    "marked_stopped": frozenset({RunState.STOPPED}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryResult:
    """The result of a recovery, with the same keys in every mode; if nothing was changed, all counts are 0."""

    mode: Mode
    is_dry_run: bool = False
    steps: tuple[RecoveryStep, ...] = ()  #: those that were done, or would be
    runs: tuple[RecoveryStep, ...] = ()  #: those of them that changed a run, with its new state

    @property
    def reset_to_pending(self) -> int:
        """How many runs were requeued or enqueued."""
        return self["reset_to_pending"]

    @property
    def marked_failed(self) -> int:
        """How many runs failed, dead ones included."""
        return self["marked_failed"]

    @property
    def marked_stopped(self) -> int:
        """How many runs were stopped."""
        return self["marked_stopped"]

    def __getitem__(self, key: str) -> int:
        """Return the number of runs counted under *key*, such as `marked_failed`; raise KeyError for an unknown key."""
        return len(self.run_ids(key))

    def run_ids(self, key: str) -> tuple[int, ...]:
        """Return the runs counted under *key*, in the order of the queue."""
        return tuple(sorted(step.run_id or 0 for step in self.runs if step.after in _COUNTED[key]))

    def metrics(self) -> Counter[tuple[str, str, str]]:
        """Return how many runs were recovered for each (verdict, mode, action)."""
        return Counter((step.proof, self.mode.value, step.action.value) for step in self.runs)

    def to_json(self) -> JsonObject:
        """Return the result for --json, the API and the log."""
        ids: JsonObject = {key: list(self.run_ids(key)) for key in _COUNTED}

        return {
            "mode": self.mode.value,
            "dry_run": self.is_dry_run,
            **{key: len(self.run_ids(key)) for key in _COUNTED},
            "run_ids": ids,
            "steps": [step.to_json() for step in self.steps],
        }


#: Why the policy `fail` fails a running run: in mode stale, and in mode all.
RESTARTED = "Coordinator restarted during execution"
STATE_UNKNOWN = "Coordinator restarted - execution state unknown"

_ACTIVE = frozenset(state.value for state in ACTIVE_STATES)
_ROLLED_BACK = WorkflowState.ROLLED_BACK.value


def plan_recovery(
    rows: Iterable[Evidence], now: datetime | None = None, mode: Mode = Mode.STALE, *, policy: Policy | None = None
) -> tuple[RecoveryStep, ...]:
    """
    Return what to do about each workflow, in the given order: one step for each problem.

    Ages are counted up to *now*; without it every claim counts as old. The plan of mode none is that of mode stale, to
    show what would be done.
    """
    planner = _Planner(now, mode, policy or Policy())

    return tuple(step for row in rows for step in planner.steps(row))


class _Planner:
    """The rules of recovery at one moment, in one mode."""

    def __init__(self, now: datetime | None, mode: Mode, policy: Policy) -> None:
        self._now = now
        self._mode = mode
        self._policy = policy

    def steps(self, row: Evidence) -> list[RecoveryStep]:
        """Return what to do about one workflow, or about a run without one."""
        if row.is_unwritten:
            kept = f"{row.lease.owner} is creating it" if row.lease.is_live else self._why_kept(row.lease)
            if kept:
                return [self._step(row, RecoveryAction.LEAVE, kept)]
            return [self._step(row, RecoveryAction.FORGET, f"it has no document, and {row.lease.why_over()}")]
        if row.is_errand:
            steps = self._about_errand(row)
        elif not row.state:
            steps = [self._step(row, RecoveryAction.REPORT, row.problem or "its document has no state")]
            # A worker will end the run of an unreadable document, with the reason.
            if row.run_state in LIVE_RUNS and not (self._why_run_kept(row) or self._why_kept(row.lease)):
                after = RunState.STOPPED if row.run_state is RunState.STOPPING else RunState.PENDING
                steps.append(self._step(row, RecoveryAction.REQUEUE, _why_lost(row), after=after))
        else:
            steps = []
            if row.copied_revision is not None and row.copied_revision < row.revision:
                why = f"the copy is at revision {row.copied_revision}, the document at {row.revision}"
                steps.append(self._step(row, RecoveryAction.PROJECT, why))
            if row.left_here:
                why = f"what {row.left_here} had started here may still run: it was closed on another machine"
                steps.append(self._step(row, RecoveryAction.END_LEFT, why))
            steps.extend(self._about_workflow(row))

        return steps or [self._step(row, RecoveryAction.LEAVE, "nothing is wrong")]

    def _about_workflow(self, row: Evidence) -> list[RecoveryStep]:
        kept = self._why_kept(row.lease)
        if kept:
            return [self._step(row, RecoveryAction.LEAVE, kept)]
        if row.is_rolling_back and row.state != _ROLLED_BACK:
            return self._about_run(row) if row.run_id is not None else []  # a person has to ask for the rest
        if row.state in _ACTIVE:
            return self._about_run(row)
        steps = []
        if row.run_id is not None and not (row.run_state in LIVE_RUNS and self._why_run_kept(row)):
            why = f"it is {row.state}, but run {row.run_id} still waits"
            steps.append(self._step(row, RecoveryAction.END_RUN, why, after=RunState.STOPPED))
        if row.has_issue and is_terminal(row.state):
            steps.append(self._step(row, RecoveryAction.FREE_ISSUE, f"it is {row.state}, and still has its issue"))

        return steps

    def _about_run(self, row: Evidence) -> list[RecoveryStep]:
        """Return what to do about the run of a workflow and its interrupted attempt."""
        is_work = row.state in _ACTIVE and not row.is_rolling_back
        is_exhausted = is_work and bool(row.exhausted_phase) and not row.open_attempt
        interrupt = []
        if is_work and row.open_attempt:
            why = f"{row.open_attempt} was cut off: {row.lease.why_over()}"
            interrupt = [self._step(row, RecoveryAction.INTERRUPT, why)]
        if row.run_state in LIVE_RUNS:
            kept = self._why_run_kept(row)
            if kept:
                return [*interrupt, self._step(row, RecoveryAction.LEAVE, kept)]
            if row.run_state is RunState.STOPPING:
                return [self._about_stop(row)]
        if is_exhausted:
            why = f"the attempts of {row.exhausted_phase} are used up"
            after = RunState.FAILED if row.run_id is not None else None
            return [self._step(row, RecoveryAction.FAIL, why, after=after)]
        if row.run_id is None:
            why = f"it is {row.state} and no run waits for it"
            return [*interrupt, self._step(row, RecoveryAction.ENQUEUE, why, after=RunState.PENDING)]
        if row.run_state not in LIVE_RUNS:
            return interrupt
        if row.losses + 1 >= self._policy.max_losses:
            return [self._buried(row, RunState.DEAD)]
        if row.run_state is RunState.RUNNING and self._policy.fails_running and is_work:
            why = STATE_UNKNOWN if self._mode is Mode.ALL else RESTARTED
            return [self._step(row, RecoveryAction.FAIL, why, after=RunState.FAILED)]

        return [*interrupt, self._step(row, RecoveryAction.REQUEUE, _why_lost(row), after=RunState.PENDING)]

    def _about_stop(self, row: Evidence) -> RecoveryStep:
        """Return the step that stops a run that was to stop: with proof at once, else after the threshold."""
        why = _why_lost(row)
        if row.process is not Verdict.UNKNOWN:
            return self._step(row, RecoveryAction.STOP, why, after=RunState.STOPPED)
        doubt = f"{why}; whether the processes of {row.open_attempt} are gone cannot be told from here"
        left = self._seconds_to_wait(row.run_claim)
        if left > 0.0:
            return self._step(row, RecoveryAction.LEAVE, f"{doubt}; it counts as stopped in {left:.0f} s")

        return self._step(row, RecoveryAction.STOP, f"{UNCONFIRMED}: {doubt}", after=RunState.STOPPED)

    def _about_errand(self, row: Evidence) -> list[RecoveryStep]:
        if row.run_state not in LIVE_RUNS or self._why_run_kept(row):
            return []
        if row.run_state is RunState.STOPPING:
            return [self._step(row, RecoveryAction.STOP, _why_lost(row), after=RunState.STOPPED)]
        if row.losses + 1 >= self._policy.max_losses:
            return [self._buried(row, RunState.FAILED)]

        return [self._step(row, RecoveryAction.REQUEUE, _why_lost(row), after=RunState.PENDING)]

    def _buried(self, row: Evidence, after: RunState) -> RecoveryStep:
        lost = counted(row.losses + 1, "worker")
        why = f"{lost} vanished with run {row.run_id}, the last time because {row.run_claim.why_over()}"

        return self._step(row, RecoveryAction.BURY, why, after=after)

    # --- what is proven, and what has to wait ------------------------------------------------------------------

    def _why_run_kept(self, row: Evidence) -> str:
        """Return why a run stays with its worker, or "" if it may be taken."""
        claim = row.run_claim
        if claim.proof is Proof.LIVE and not self._takes_all:
            return f"{claim.owner} has its run"

        return self._why_left_alone(claim) if claim.proof in (Proof.NONE, Proof.FREE) else ""

    def _why_kept(self, lease: Claim) -> str:
        """Return why a workflow stays with its owner, or "" if it may be taken."""
        if lease.proof is Proof.LIVE and not self._takes_all:
            return f"{lease.owner} works on it ({lease.verdict.value})"

        return self._why_left_alone(lease) if lease.proof is Proof.NONE else ""

    @property
    def _takes_all(self) -> bool:
        return self._mode is Mode.ALL and self._policy.is_forced

    def _why_left_alone(self, claim: Claim) -> str:
        """Return why *claim*, of which nothing is proven, is left alone, or "" if it has been silent long enough."""
        left = self._seconds_to_wait(claim)
        if left <= 0.0:
            return ""
        who = f"nobody can tell whether {claim.owner} lives" if claim.owner else "it has a worker, and nobody says who"

        return f"{who}: it is reclaimed in {left:.0f} s"

    def _seconds_to_wait(self, claim: Claim) -> float:
        """Return for how much longer an unproven claim is left alone; 0 in mode all."""
        age = self._age(claim)
        if self._mode is Mode.ALL or age is None:
            return 0.0

        return self._policy.threshold_seconds - age

    def _age(self, claim: Claim) -> float | None:
        """Return the seconds since the claim last changed, or None if unknown."""
        if self._now is None or not claim.since:
            return None
        try:
            return (self._now - timestamps.parse(claim.since)).total_seconds()
        except (ValueError, OverflowError):
            return None

    def _step(self, row: Evidence, action: RecoveryAction, why: str, *, after: RunState | None = None) -> RecoveryStep:
        has_worker = row.run_state in LIVE_RUNS
        claim = row.run_claim if has_worker else row.lease
        age = self._age(claim)
        evidence: JsonObject = {
            "owner": claim.owner,
            "proof": (Proof.NONE if has_worker and not claim.owner else claim.proof).value,
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


def _why_lost(row: Evidence) -> str:
    return f"run {row.run_id}: {row.run_claim.why_over()}"
