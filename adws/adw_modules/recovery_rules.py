"""
What to do about work whose worker is gone: a plan from evidence, one row for each thing that is wrong.

Pure. Age proves nothing: a run is left alone while its owner lives or may live, however long it takes, and taken back
as soon as its owner is proven dead or its lease is over, however young it is. Age decides only where nothing proves
either: an owner that cannot be read, a claim without an owner, a stop that nobody can confirm. Recovery never runs work
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

from adws.adw_modules import timestamps
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import Verdict
from adws.adw_modules.recovery_facts import Action, Claim, Evidence, Mode, Policy, Proof, RecoveryStep
from adws.adw_modules.runs import LIVE_RUNS, UNCONFIRMED, RunState
from adws.adw_modules.state_table import ACTIVE_STATES, WorkflowState, is_terminal

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
    is young. In mode none the plan is that of mode stale, for whoever wants to know what would be done.
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
            return self._about_errand(row) or [self._step(row, Action.LEAVE, "nothing is wrong")]
        if row.is_unwritten:
            return [self._about_unwritten(row)]
        if not row.state:
            report = self._step(row, Action.REPORT, row.problem or "its document says no state")
            return [report, *self._about_lost_run(row)]
        steps = []
        if row.copied_revision is not None and row.copied_revision < row.revision:
            why = f"the copy is at revision {row.copied_revision}, the document at {row.revision}"
            steps.append(self._step(row, Action.PROJECT, why))
        if row.left_here:
            why = f"what {row.left_here} had started here may still run: it was closed on another machine"
            steps.append(self._step(row, Action.END_LEFT, why))
        steps.extend(self._about_work(row))

        return steps or [self._step(row, Action.LEAVE, "nothing is wrong")]

    # --- workflows ---------------------------------------------------------------------------------------------

    def _about_work(self, row: Evidence) -> list[RecoveryStep]:
        kept = self._why_kept(row.lease)
        if kept:
            return [self._step(row, Action.LEAVE, kept)]
        if row.is_rolling_back and row.state != _ROLLED_BACK:
            return self._about_run(row) if row.run_id is not None else []  # whoever wants it finished says so
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
                return [*cut_off, self._step(row, Action.LEAVE, kept)]
            return self._about_taken_run(row, cut_off, is_work=is_work)
        if is_work and row.exhausted_phase and not row.open_attempt:
            return [self._exhausted(row)]
        if row.run_id is None:
            why = f"it is {row.state} and no run waits for it"
            return [*cut_off, self._step(row, Action.ENQUEUE, why, after=RunState.PENDING)]

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
            return [self._step(row, Action.FAIL, said, after=RunState.FAILED)]

        return [*cut_off, self._step(row, Action.REQUEUE, why, after=RunState.PENDING)]

    def _cut_off(self, row: Evidence) -> list[RecoveryStep]:
        if not row.open_attempt:
            return []

        return [self._step(row, Action.INTERRUPT, f"{row.open_attempt} was cut off: {row.lease.why_over()}")]

    def _about_stop(self, row: Evidence, why: str) -> RecoveryStep:
        """Return that a run that was to stop is stopped: by proof, or after the threshold without."""
        if row.process is not Verdict.UNKNOWN:
            return self._step(row, Action.STOP, why, after=RunState.STOPPED)
        doubt = f"{why}; whether the processes of {row.open_attempt} are gone cannot be told from here"
        left = self._seconds_to_wait(row.run_claim)
        if left > 0.0:
            return self._step(row, Action.LEAVE, f"{doubt}; it counts as stopped in {left:.0f} s")

        return self._step(row, Action.STOP, f"{UNCONFIRMED}: {doubt}", after=RunState.STOPPED)

    def _exhausted(self, row: Evidence) -> RecoveryStep:
        after = RunState.FAILED if row.run_id is not None else None

        return self._step(row, Action.FAIL, f"the attempts of {row.exhausted_phase} are used up", after=after)

    def _about_unwritten(self, row: Evidence) -> RecoveryStep:
        if row.lease.is_live:
            return self._step(row, Action.LEAVE, f"{row.lease.owner} is creating it")
        kept = self._why_kept(row.lease)
        if kept:
            return self._step(row, Action.LEAVE, kept)

        return self._step(row, Action.FORGET, f"it has no document, and {row.lease.why_over()}")

    def _about_leftover_run(self, row: Evidence) -> list[RecoveryStep]:
        has_worker = row.run_state in LIVE_RUNS
        if row.run_id is None or (has_worker and self._why_kept(row.run_claim, of_run=True)):
            return []
        why = f"it is {row.state}, but run {row.run_id} still waits"

        return [self._step(row, Action.END_RUN, why, after=RunState.STOPPED)]

    def _about_leftover_issue(self, row: Evidence) -> list[RecoveryStep]:
        if not row.has_issue or not is_terminal(row.state):
            return []

        return [self._step(row, Action.FREE_ISSUE, f"it is {row.state}, and still has its issue")]

    # --- runs without a document -------------------------------------------------------------------------------

    def _about_errand(self, row: Evidence) -> list[RecoveryStep]:
        if row.run_state not in LIVE_RUNS or self._why_kept(row.run_claim, of_run=True):
            return []
        why = f"run {row.run_id}: {row.run_claim.why_over()}"
        if row.run_state is RunState.STOPPING:
            return [self._step(row, Action.STOP, why, after=RunState.STOPPED)]
        if self._is_poison(row):
            return [self._buried(row, RunState.FAILED)]

        return [self._step(row, Action.REQUEUE, why, after=RunState.PENDING)]

    def _about_lost_run(self, row: Evidence) -> list[RecoveryStep]:
        """Return what to do about the run of a document that nobody can read: a worker ends it, and says why."""
        has_worker = row.run_state in LIVE_RUNS
        if not has_worker or self._why_kept(row.run_claim, of_run=True) or self._why_kept(row.lease):
            return []
        after = RunState.STOPPED if row.run_state is RunState.STOPPING else RunState.PENDING

        return [self._step(row, Action.REQUEUE, f"run {row.run_id}: {row.run_claim.why_over()}", after=after)]

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
        why = (
            f"{row.losses + 1} workers vanished with run {row.run_id}, the last time because {row.run_claim.why_over()}"
        )

        return self._step(row, Action.BURY, why, after=after)

    def _step(self, row: Evidence, action: Action, why: str, *, after: RunState | None = None) -> RecoveryStep:
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
