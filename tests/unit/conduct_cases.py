"""
What the tests of workers and recovery share: a home, a lease renewer whose thread sleeps, and crashes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from adws.adw_modules.document import PhaseRecord, WorkflowDocument
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import FailedRun, LeaseLost, RunFailed
from adws.adw_modules.interfaces import OwnerRecord, ProcessRecord
from adws.adw_modules.ownership.lease_renewer import LeaseRenewer, RenewalTimes
from adws.adw_modules.ownership.ownership import OwnedWorkflow
from adws.adw_modules.phase import PhaseContext, RunReport, Suspended
from adws.adw_modules.process.tree import ProcessEnding
from adws.adw_modules.queue.model import NewRun, Run, RunFactory, RunResult
from adws.adw_modules.recovery.recovery import Recovery
from adws.adw_modules.worker.claim import RunClaimer
from adws.adw_modules.worker.control import Control
from adws.adw_modules.worker.create_workflow import WorkflowCreator
from adws.adw_modules.worker.run_executor import RunExecutor
from adws.adw_modules.worker.worker import Worker, WorkerOptions
from adws.adw_modules.workflow.model import WorkflowSpec
from adws.config import load as config_load
from adws.testing import FakeClock, MemoryOrders, ScriptedRunner
from tests.homes import ABANDONED, lab_home
from tests.unit.engine_cases import ADW_ID, document_of, engine_home, home_with, spec_of

OTHER = "5e6f7a8b"
WELL = RunReport(ok=True, summary="done")
#: Worth another attempt.
BROKEN = RunFailed(FailedRun(exit_code=1, text="connection reset by peer"), "connection reset by peer")
#: What ends nothing and proves nothing: the process is on another machine.
FAR_AWAY = ProcessEnding(evidence="it was started on far-away, which is not this machine: nothing was signalled")
DOUBT = f"stop unconfirmed: what it had started could not be confirmed dead: {FAR_AWAY.evidence}"
#: Longer than any test: the renewer's thread sleeps, and the test looks itself.
NEVER = 3600.0
SPEC = spec_of("plan", "build")
#: The settings of a home with documents in files, and of one with documents in the database. Nothing is opened there.
IN_FILES, IN_DATABASE = (
    config_load.load(env={"ADW_HOME": str(Path(__file__).parent), "ADW_STATE_STORE": store}, cwd=Path("/"))
    for store in ("files", "database")
)


def obedient(context: PhaseContext) -> RunReport | Suspended:
    """A phase that ends when something is ordered, and well when nothing is."""
    order = context.orders.current()
    return Suspended(reason=order.reason) if order is not None else WELL


class Home:
    """Workflows, and everybody who works on them."""

    def __init__(self, scripts=None, *, clock: FakeClock | None = None) -> None:
        self.parts = lab_home(clock=clock)
        self.clock = self.parts.clock
        self.runs, self.requests, self.store = self.parts.runs, self.parts.requests, self.parts.store
        self.runner = ScriptedRunner(scripts)
        self.ended: list[object] = []  #: what `end_process` was given
        self.brought_up: list[str] = []  #: whose copy was brought up
        self.job_handlers: dict[str, object] = {}  #: kind of run -> what executes it
        self.settings = IN_FILES
        self.run_factory = RunFactory()
        self.workspace = SimpleNamespace(admit=lambda _session, **_how: None)
        self.quotas = SimpleNamespace(is_machine_full=lambda: False, reserve_in=lambda *_what: (0.0, None))
        self.has_forge = False
        self.executions = SimpleNamespace(wake=lambda _adw_id: 0)
        self.counters = SimpleNamespace(add=lambda _name, _labels, _amount: None)
        self.lease_renewer = LeaseRenewer(
            clock=self.clock,
            requests=self.requests,
            runs=self.runs,
            store=self.store,
            times=RenewalTimes(look=NEVER),
        )
        self.engine_changes: dict[str, object] = {}  #: parts of the engine that a test brings itself

    @property
    def engine(self) -> SimpleNamespace:
        return home_with(engine_home(self.clock, self.runner, self._end_process), **self.engine_changes)

    def _end_process(self, process: object) -> ProcessEnding:
        self.ended.append(process)
        return ProcessEnding(evidence="its process was ended", is_certain=True)

    # --- what `adws.app.Home` offers ---------------------------------------------------------------------------

    def __getattr__(self, name: str) -> object:
        """Return a part of the real home, or of the engine that plays its script."""
        if name in {
            "database",
            "ownership",
            "catalogue",
            "locks",
            "leases",
            "processes",
            "local_lock",
            "workers",
            "preflight",
        }:
            return getattr(self.parts, name)
        if name in {"status_comment", "service_guard", "agent_runner", "log_of"}:
            return getattr(self.engine, name)
        raise AttributeError(name)

    def load(self, adw_id: str) -> WorkflowDocument:
        return self.store.load(adw_id).document

    def job_handler(self, kind: str) -> object | None:
        return self.job_handlers.get(kind)

    def end_process_in_time(self, process: object) -> ProcessEnding:
        return self._end_process(process)

    def catch_up(self, adw_id: str) -> None:
        self.brought_up.append(adw_id)

    def free_left_behind(self) -> None:
        pass

    def changed(self, **parts) -> Changed:
        """Return the same home with other *parts*."""
        return Changed(self, parts)

    @property
    def run_executor(self) -> RunExecutor:
        return RunExecutor(self)

    @property
    def run_claimer(self) -> RunClaimer:
        return RunClaimer(self)

    def worker(
        self, *, recover=lambda: None, dispatcher=None, on_end=lambda _end: None, parts=None, **options
    ) -> Worker:
        """Return a worker of this home with other *parts*; it calls *recover* when it is time to recover."""
        listening = dispatcher or self.parts.dispatcher()
        home = self.changed(
            recovery=SimpleNamespace(recover=lambda **_how: recover()),
            dispatcher=lambda _tick: listening,
            **(parts or {}),
        )
        return Worker(home, WorkerOptions(**options), on_end=on_end)

    @property
    def control(self) -> Control:
        return Control(self)

    def recovery(self, **parts) -> Recovery:
        """Return what recovers this home, with other *parts*."""
        return Recovery(self.changed(**parts))

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

    def work(self, run: Run | None = None) -> RunResult:
        """Claim the next run and work on it, as a worker does."""
        return RunExecutor(self).work(run or self.claim())

    def crash(self, adw_id: str = ADW_ID, *, is_proven: bool = True) -> OwnerRecord:
        """Claim, begin an attempt and die in the middle of it; without *is_proven* nobody can look at the dead."""
        me = self.parts.processes.me("worker")
        run = next(run for run in self.runs.of_workflow(adw_id))
        claimed = self.runs.claim(me, ttl_seconds=30.0, run_id=run.run_id)
        assert claimed is not None
        self.runs.begin(claimed)
        owning = self.parts.ownership.own(adw_id)
        ABANDONED.append(owning)  # kept, because a block that is collected would be left in good order
        owned = owning.__enter__()
        dying = ScriptedRunner({record.name: [LeaseLost("its process died")] for record in owned.document.phases})
        session = WorkSession(home_with(self.engine, phase_runners={"scripted": dying}), owned, MemoryOrders())
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

    def hold(self, adw_id: str = ADW_ID) -> OwnedWorkflow:
        """Own a workflow as another process would, for as long as the test runs."""
        owning = self.parts.ownership.own(adw_id)
        ABANDONED.append(owning)
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
        result = [event.event_type for event in self.parts.events.of_workflow(adw_id)]
        return [kind for kind in result if not kinds or kind in kinds]

    def answers(self, adw_id: str = ADW_ID) -> list[str | None]:
        asked = (self.requests.get(number) for number in range(1, 100))
        return [request.outcome for request in asked if request is not None and request.adw_id == adw_id]


def launcher_of(home: Home, check: Callable[[WorkflowSpec], None] = lambda _spec: None) -> WorkflowCreator:
    """What creates workflows in *home*; *check* raises when a definition cannot be run."""
    workflows = SimpleNamespace(check_ready=check)
    return WorkflowCreator(
        ownership=home.parts.ownership,
        clock=home.clock,
        workflows=workflows,
        run_factory=RunFactory(),
        settings=home.settings,
    )


class Changed:
    """A home with some of its parts replaced."""

    def __init__(self, home: Home, parts: dict[str, object]) -> None:
        self._home = home
        self.__dict__.update(parts)

    def __getattr__(self, name: str) -> object:
        return getattr(self._home, name)

    @property
    def run_executor(self) -> RunExecutor:
        return RunExecutor(self)


def always(error: Exception) -> Callable[..., object]:
    """A method that fails."""

    def fail(*_args, **_keywords):
        raise error

    return fail
