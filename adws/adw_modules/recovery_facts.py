"""
What recovery knows and what it plans and did, as nouns.

A claim is judged by proof first: a dead owner, a lease that is over. One that says nothing has to be judged by age.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from adws.adw_modules.errors import UsageError
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import Verdict
from adws.adw_modules.runs import RunState

#: Seconds without a sign of life after which something is taken back that nothing proves anything about.
THRESHOLD_SECONDS = 300.0
#: How often a worker may vanish with a run.
MAX_LOSSES = 5


class Mode(Enum):
    """How far recovery goes."""

    NONE = "none"  #: it only says what it would do
    STALE = "stale"  #: what is proven to be left, and what has been silent for the threshold where nothing is proven
    ALL = "all"  #: the same without waiting for the threshold; with force also what is alive


class Action(Enum):
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
    """What is known about whoever has something."""

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

    owner: str = ""  #: in words, "" when nobody has it
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
    """What the settings, or whoever asks, want of recovery."""

    threshold_seconds: float = THRESHOLD_SECONDS
    is_forced: bool = False  #: also take from owners that live or may live; only in mode all
    fails_running: bool = False  #: runs that were being worked on fail; else they go on
    max_losses: int = MAX_LOSSES


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryStep:
    """One row of the plan."""

    adw_id: str
    action: Action
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
    before: RunState
    after: RunState
    action: Action
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
        """How many runs went back to the queue."""
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
