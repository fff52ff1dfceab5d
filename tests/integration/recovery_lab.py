"""A home over a real database, and workers in it that are proven dead, out of sight, or alive."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from adws import app as app_module
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import AdwError, LeaseLost
from adws.adw_modules.interfaces import OwnerRecord
from adws.adw_modules.phase import NoOrders
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.queue.model import Run
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.workflow.model import PhaseSpec, WorkflowSpec
from adws.config import load as config_load
from adws.testing import ScriptedRunner

SPEC = WorkflowSpec(
    name="tried",
    phases=(
        PhaseSpec(name="plan", state="planning", runner="command", shell="true"),
        PhaseSpec(name="build", state="building", runner="command", shell="true"),
    ),
)


class OtherProcesses(SystemProcesses):
    """The processes of this machine, as whoever is not this process: its records are changed by *changes*."""

    changes: dict[str, object] = {}  # noqa: RUF012 - set for each one that is made

    def me(self, role: str) -> OwnerRecord:
        mine = super().me(role)
        return replace(mine, **{"start_ticks": mine.start_ticks + 1, **self.changes})


@dataclass
class RecoveryLab:
    """A home, and what is done in it."""

    home: Path
    url: str
    store: str
    env: dict[str, str] = field(default_factory=dict)
    _apps: list[app_module.Home] = field(default_factory=list)
    #: Blocks that dead workers were in: one that is collected would be left in good order, under the eyes of a test.
    _dropped: list[AbstractContextManager[object]] = field(default_factory=list)

    def open(self, **changes: object) -> app_module.Home:
        """Open the home; with *changes* as a process that is not this one: dead, unless they say something else."""
        env = {
            "ADW_HOME": str(self.home),
            "ADW_DATABASE_URL": self.url,
            "ADW_STATE_STORE": self.store,
            "ADW_FORGE_KIND": "none",
            "ADW_WORKTREE_ENABLED": "false",
            "ADW_SANDBOX_MODE": "off",
            **self.env,
        }
        app = app_module.open_home(config_load.load(env=env, cwd=self.home), role="worker")
        if changes:
            other = OtherProcesses(clock=app.clock)
            other.changes = {name: value for name, value in changes.items() if name != "is_dead"}
            app.__dict__["processes"] = other
        self._apps.append(app)
        return app

    def close(self) -> None:
        for owning in self._dropped:
            with suppress(AdwError):
                owning.__exit__(None, None, None)
        for app in self._apps:
            app.close()

    # --- work that is left ---------------------------------------------------------------------------------------

    def start(self, app: app_module.Home, number: int = 1) -> str:
        return app.workflow_creator.start(NewWorkflow(issue_number=number, spec=SPEC)).adw_id

    def claim(self, worker: app_module.Home, adw_id: str, *, ttl_seconds: float = 3600.0) -> Run:
        run_id = worker.runs.of_workflow(adw_id)[0].run_id
        run = worker.runs.claim(worker.processes.me("worker"), ttl_seconds=ttl_seconds, run_id=run_id)
        assert run is not None
        return run

    def run(self, worker: app_module.Home, adw_id: str, **claim) -> Run:
        """Claim the run of a workflow, begin an attempt of it and go no further."""
        run = self.claim(worker, adw_id, **claim)
        dying = ScriptedRunner({phase.name: [LeaseLost("its process died")] for phase in SPEC.phases})
        owning = worker.ownership.own(adw_id, run=run)
        self._dropped.append(owning)
        owned = owning.__enter__()
        with suppress(LeaseLost):
            real, worker.phase_runners = worker.phase_runners, {"command": dying}
            try:
                WorkSession(worker, owned, NoOrders()).attempt()
            finally:
                worker.phase_runners = real
        worker.local_lock.let_go(adw_id)
        begun = worker.runs.get(run.run_id)
        assert begun is not None
        return begun

    # --- rows ----------------------------------------------------------------------------------------------------

    def set_run(self, app: app_module.Home, run_id: int, **columns: object) -> None:
        """Change columns of a run behind everybody's back."""
        names = ", ".join(f"{name} = :{name}" for name in columns)
        with app.database.write() as session:
            assert session.run(f"UPDATE runs SET {names} WHERE run_id = :run_id", {**columns, "run_id": run_id}) == 1

    def end_leases(self, app: app_module.Home) -> None:
        """Let every lease and every claim be over."""
        with app.database.write() as session:
            session.run("UPDATE workflow_states SET lease_until = lease_until - 100000 WHERE owner <> ''")
            session.run("UPDATE runs SET claim_until = claim_until - 100000 WHERE owner <> ''")

    def flush(self, app: app_module.Home) -> None:
        """Bring the copies of documents in files up."""
        if self.store == "files":
            app.projection.flush()

    def events(self, app: app_module.Home, adw_id: str, event_type: str) -> list[dict]:
        self.flush(app)
        return [event.data for event in app.events.of_workflow(adw_id) if event.event_type == event_type]
