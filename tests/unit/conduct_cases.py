"""
What the tests of the conductors share: a home in memory, a keeper whose thread sleeps, and crashes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from adws.adw_modules.coordination.control import Control
from adws.adw_modules.coordination.keeper import Keeper, KeeperTimes
from adws.adw_modules.coordination.recovery import Recovery, RecoveryParts
from adws.adw_modules.coordination.workflow_work import RunWork, WorkEnd, WorkParts
from adws.adw_modules.document import PhaseRecord, WorkflowDocument
from adws.adw_modules.engine.attempt import EngineParts, WorkSession
from adws.adw_modules.engine.gates import check_gates
from adws.adw_modules.engine.judgement import judge
from adws.adw_modules.errors import LeaseLost
from adws.adw_modules.interfaces import Owned
from adws.adw_modules.interfaces_engine import PhaseContext, ProcessRecord
from adws.adw_modules.outcome import RunReport, Suspended
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.process_tree import Ending
from adws.adw_modules.runs import NewRun, Run
from adws.adw_modules.workflow import WorkflowSpec
from adws.testing import FakeClock, MemoryOrders, MemoryParts, ScriptedRunner, memory_parts
from tests.unit.engine_cases import ADW_ID, document_of, no_command, spec_of

OTHER = "5e6f7a8b"
WELL = RunReport(ok=True, summary="done")
#: Worth another attempt.
BROKEN = ConnectionError("connection reset by peer")
#: What ends nothing and proves nothing: the process is on another machine.
FAR_AWAY = Ending(evidence="it was started on far-away, which is not this machine: nothing was signalled")
DOUBT = f"stop unconfirmed: what it had started could not be confirmed dead: {FAR_AWAY.evidence}"
#: Longer than any test: the keeper's thread sleeps, and the test looks itself.
NEVER = 3600.0
SPEC = spec_of("plan", "build")


def obedient(context: PhaseContext) -> RunReport | Suspended:
    """A phase that ends when something is ordered, and well when nothing is."""
    order = context.orders.current()
    return Suspended(reason=order.reason) if order is not None else WELL


class Home:
    """Workflows in memory, and everybody who works on them."""

    def __init__(self, scripts=None, *, clock: FakeClock | None = None) -> None:
        self.parts: MemoryParts = memory_parts(clock=clock)
        self.clock = self.parts.clock
        self.runs, self.requests, self.store = self.parts.runs, self.parts.requests, self.parts.store
        self.runner = ScriptedRunner(scripts)
        self.ended: list[object] = []  #: what `end_process` was given
        self.brought_up: list[str] = []  #: whose copy was brought up
        self.keeper = Keeper(clock=self.clock, requests=self.requests, runs=self.runs, times=KeeperTimes(look=NEVER))
        self.engine_changes: dict[str, object] = {}  #: parts of the engine that a test brings itself
        self._dropped: list[AbstractContextManager[Owned]] = []

    @property
    def engine(self) -> EngineParts:
        made = EngineParts(
            clock=self.clock,
            runners={"scripted": self.runner},
            judge=partial(judge, clock=self.clock),
            gates=partial(check_gates, run=no_command),
            folder_of=Path,
            workplace_of=lambda _document: Path(),
            end_process=self._end_process,
        )
        return replace(made, **self.engine_changes)

    def _end_process(self, process: object) -> Ending:
        self.ended.append(process)
        return Ending(evidence="its process was ended", is_certain=True)

    @property
    def work_parts(self) -> WorkParts:
        return WorkParts(
            clock=self.clock,
            engine=self.engine,
            ownership=self.parts.ownership,
            runs=self.runs,
            requests=self.requests,
            keeper=self.keeper,
        )

    @property
    def control(self) -> Control:
        return Control(
            ownership=self.parts.ownership,
            engine=self.engine,
            runs=self.runs,
            requests=self.requests,
            load=lambda adw_id: self.store.load(adw_id).document,
        )

    def recovery(self, **changes) -> Recovery:
        parts = RecoveryParts(
            clock=self.clock,
            store=self.store,
            catalogue=self.parts.catalogue,
            locks=self.parts.locks,
            runs=self.runs,
            processes=self.parts.processes,
            ownership=self.parts.ownership,
            left=self.parts.ownership,
            engine=self.engine,
            keeper=self.keeper,
            requests=self.requests,
            bring_up=self.brought_up.append,
            end_process=self._end_process,
        )
        return Recovery(replace(parts, **changes))

    # --- working -----------------------------------------------------------------------------------------------

    def create(
        self, adw_id: str = ADW_ID, spec: WorkflowSpec = SPEC, *, issue: int | None = 42, has_run: bool = True, **fields
    ) -> None:
        document = document_of(spec, adw_id=adw_id, issue_number=issue, **fields)
        with self.parts.ownership.create(document, run=NewRun(adw_id=adw_id) if has_run else None):
            pass

    def claim(self) -> Run:
        run = self.runs.claim(self.parts.processes.me("worker"), ttl_seconds=30.0)
        assert run is not None, "nothing is due"
        return run

    def work(self, run: Run | None = None) -> WorkEnd:
        """Claim the next run and work on it, as a worker does."""
        return RunWork(self.work_parts).work(run or self.claim())

    def crash(self, adw_id: str = ADW_ID, *, is_proven: bool = True) -> OwnerRecord:
        """Claim, begin an attempt and die in the middle of it; without *is_proven* nobody can look at the dead."""
        me = self.parts.processes.me("worker")
        run = next(run for run in self.runs.of_workflow(adw_id))
        claimed = self.runs.claim(me, ttl_seconds=30.0, run_id=run.run_id)
        assert claimed is not None
        self.runs.begin(claimed)
        owning = self.parts.ownership.own(adw_id)
        self._dropped.append(owning)  # kept, because a block that is collected would be left in good order
        owned = owning.__enter__()
        dying = ScriptedRunner({record.name: [LeaseLost("its process died")] for record in owned.document.phases})
        session = WorkSession(replace(self.engine, runners={"scripted": dying}), owned, MemoryOrders())
        with suppress(LeaseLost):
            session.attempt()
        end = self.parts.processes.kill if is_proven else self.parts.processes.lose_sight_of
        end(me)
        end(owned.lease.owner)
        self.parts.local_lock.let_go(adw_id)
        return owned.lease.owner

    def give_process(self) -> None:
        """Write down that the attempt which was cut off had a process, which is dead."""
        record = ProcessRecord(
            token="t" * 32,
            identity=self.parts.processes.me("worker"),
            argv=("agent",),
            started_at="2026-01-31T09:00:00Z",
        )
        document = self.document()
        attempt = document.phases[0].attempts[-1].changed(process=record.to_json())
        phase = document.phases[0].changed(attempts=[attempt])
        fence = self.parts.leases.read(ADW_ID).fence
        self.store.save(document.changed(phases=[phase, *document.phases[1:]]), fence=fence)
        self.parts.processes.kill(record.identity)

    def hold(self, adw_id: str = ADW_ID) -> Owned:
        """Own a workflow as another process would, for as long as the test runs."""
        owning = self.parts.ownership.own(adw_id)
        self._dropped.append(owning)
        return owning.__enter__()

    # --- looking -----------------------------------------------------------------------------------------------

    def document(self, adw_id: str = ADW_ID) -> WorkflowDocument:
        return self.store.load(adw_id).document

    def state(self, adw_id: str = ADW_ID) -> str:
        return self.document(adw_id).current_state

    def record(self, name: str, adw_id: str = ADW_ID) -> PhaseRecord:
        return next(record for record in self.document(adw_id).phases if record.name == name)

    def run(self, adw_id: str = ADW_ID) -> Run:
        return self.runs.of_workflow(adw_id)[0]

    def events(self, *kinds: str, adw_id: str = ADW_ID) -> list[str]:
        found = [event.event_type for event in self.store.events_of(adw_id)]
        return [kind for kind in found if not kinds or kind in kinds]

    def answers(self, adw_id: str = ADW_ID) -> list[str | None]:
        asked = (self.requests.get(number) for number in range(1, 100))
        return [request.outcome for request in asked if request is not None and request.adw_id == adw_id]


def always(error: Exception) -> Callable[..., object]:
    """A method that fails."""

    def fail(*_args, **_keywords):
        raise error

    return fail
