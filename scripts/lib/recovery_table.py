"""
The table of docs/guarantees.md: what recovery does with a run, by its state and by what is known of its worker.

It is made by asking the rule itself, so it cannot say something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from adws.adw_modules import timestamps
from adws.adw_modules.interfaces import Verdict
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.recovery.plan import Claim, Evidence, Mode, Policy, RecoveryAction, plan_recovery

HEADER = ("Run", "Its worker", "`stale`", "`all`", "`all --force`")

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_YOUNG, _OLD = (timestamps.to_text(_NOW - timedelta(seconds=age)) for age in (10, 400))
_WORKER = "worker"
#: The claim as text -> the claim; proofs are shown for a run that changed a moment ago.
_KNOWN = {
    "alive": Claim(owner=_WORKER, verdict=Verdict.ALIVE, seconds_left=20.0, since=_OLD),
    "elsewhere, lease live": Claim(owner=_WORKER, seconds_left=20.0, since=_OLD),
    "dead": Claim(owner=_WORKER, verdict=Verdict.DEAD, seconds_left=20.0, since=_YOUNG),
    "lease expired": Claim(owner=_WORKER, seconds_left=-1.0, since=_YOUNG),
    "unknown, less than the threshold": Claim(owner=_WORKER, is_readable=False, seconds_left=20.0, since=_YOUNG),
    "unknown, the threshold": Claim(owner=_WORKER, is_readable=False, seconds_left=20.0, since=_OLD),
}
_MODES = ((Mode.STALE, False), (Mode.ALL, False), (Mode.ALL, True))
_SAID = {
    RecoveryAction.LEAVE: "kept",
    RecoveryAction.REQUEUE: "requeued",
    RecoveryAction.STOP: "stopped",
    RecoveryAction.FAIL: "failed",
    RecoveryAction.BURY: "dead",
}


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the rows below `HEADER`; states that are treated alike share theirs."""
    yield ("`pending`", "none", *["kept"] * len(_MODES))
    for known, claim in _KNOWN.items():
        same: dict[tuple[str, ...], list[str]] = {}
        for state in (RunState.CLAIMED, RunState.RUNNING, RunState.STOPPING):
            same.setdefault(tuple(_cells(state, claim)), []).append(f"`{state.value}`")
        for cells, states in same.items():
            yield (", ".join(states), known, *cells)
    dead = _KNOWN["dead"]
    yield ("`claimed`, `running`, last loss", "dead", *_cells(RunState.RUNNING, dead, losses=4))
    for words, since in (("less than ", _YOUNG), ("", _OLD)):
        claim = Claim(owner=_WORKER, seconds_left=-1.0, since=since)
        known = f"lease expired, processes not visible, {words}the threshold"
        yield ("`stopping`", known, *_cells(RunState.STOPPING, claim, process=Verdict.UNKNOWN))


def _cells(state: RunState, claim: Claim, *, losses: int = 0, process: Verdict | None = None) -> Iterator[str]:
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
        policy = Policy(is_forced=is_forced)
        step = plan_recovery([row], _NOW, mode, policy=policy)[-1]
        doubt = ", unconfirmed" if step.why.startswith("stop unconfirmed") else ""
        yield f"{_SAID[step.action]}{doubt}"
