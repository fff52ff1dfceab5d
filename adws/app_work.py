"""
The wiring of what runs workflows: engine, keeper, worker, control, recovery.

Apart from `app` because only commands that work need it; each part is built on first use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import adws
from adws import config
from adws.adw_modules.checkpoint import CheckpointManager
from adws.adw_modules.coordination.agent_desk import AgentDesk
from adws.adw_modules.coordination.control import Control
from adws.adw_modules.coordination.keeper import Keeper, KeeperTimes
from adws.adw_modules.coordination.launch import Launcher
from adws.adw_modules.coordination.left_behind import SweepParts, sweep
from adws.adw_modules.coordination.presence import Presence
from adws.adw_modules.coordination.recovery import Recovery, RecoveryParts
from adws.adw_modules.coordination.unmatched import UnmatchedRuns
from adws.adw_modules.coordination.worker import Worker, WorkerOptions
from adws.adw_modules.coordination.workflow_work import RunWork, WorkEnd, WorkParts
from adws.adw_modules.demands import Offer
from adws.adw_modules.engine.attempt import EngineParts
from adws.adw_modules.engine.gates import check_gates
from adws.adw_modules.engine.judgement import judge
from adws.adw_modules.engine.runners.command import CommandParts, CommandRunner
from adws.adw_modules.engine.runners.phase_checkpoints import PastCheckpoints
from adws.adw_modules.engine.runners.python_call import PythonRunner
from adws.adw_modules.recovery_facts import Policy, mode_of
from adws.adw_modules.run_waiting import Patience
from adws.adw_modules.runs import CRON, DELIVERY, ITERATION, ROLLBACK
from adws.adw_modules.steps import STEPS
from adws.adw_modules.structured_logger import open_log
from adws.adw_modules.workflow import Gate
from adws.app_deliveries import DeliveryRoom, HomeTidying
from adws.app_doctor import doctor_of
from adws.app_endings import Endings
from adws.app_home import HomeBooks
from adws.app_parties import open_parties
from adws.app_space import HomeSpace, SpaceRoom
from adws.app_steps import LateErrand, StepRoom

if TYPE_CHECKING:
    from adws.adw_modules.circuit_breaker import CircuitBreakerRegistry
    from adws.adw_modules.coordination.cron_work import CronRuns
    from adws.adw_modules.coordination.ownership import Takeover, WorkflowOwnership
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.engine.parties import Parties
    from adws.adw_modules.engine.parts import Doctor
    from adws.adw_modules.events import Event
    from adws.adw_modules.executions import Executions
    from adws.adw_modules.interfaces import (
        IssueLocks,
        LeaseBook,
        Requests,
    )
    from adws.adw_modules.interfaces_coordination import AgentSessions, Counters, Dispatcher, Runners
    from adws.adw_modules.interfaces_durability import CheckpointStore
    from adws.adw_modules.interfaces_engine import PhaseContext, Runner
    from adws.adw_modules.owner_record import OwnerRecord
    from adws.adw_modules.plugins import Plugins
    from adws.adw_modules.process_tree import Ending
    from adws.adw_modules.resources.ports import MachinePorts
    from adws.adw_modules.resources.quotas import MachineQuotas
    from adws.adw_modules.run_making import RunMaker
    from adws.adw_modules.runs import Terms
    from adws.adw_modules.workflow import PhaseSpec
    from adws.adw_modules.workflows import Workflows
    from adws.app_agents import AgentRoom


logger = logging.getLogger("adw.work")

#: Threads that recover workflows: while one waits for a disk or a server, others go on. A store in SQLite has one
#: writer at a time, and threads that wait for it cost more than they gain.
_THREADS = 4
#: The log of a workflow, in its own directory.
LOG_NAME = "adw.log"


class HomeSchedule(Protocol):
    """What the schedule of a home (`app_cron.CronRoom`) is to the work in it."""

    @property
    def cron_runs(self) -> CronRuns: ...


class HomeParts(HomeSpace, HomeBooks, Protocol):
    """What the parts of a home are to the work in it (`app.App`)."""

    say: Callable[[str, str], None]
    tell: Callable[[WorkflowDocument, Sequence[Event]], None]

    @property
    def leases(self) -> LeaseBook: ...
    @property
    def locks(self) -> IssueLocks: ...
    @property
    def ownership(self) -> WorkflowOwnership: ...
    @property
    def requests(self) -> Requests: ...
    @property
    def checkpoints(self) -> CheckpointStore: ...
    @property
    def breakers(self) -> CircuitBreakerRegistry: ...
    @property
    def sessions(self) -> AgentSessions: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def executions(self) -> Executions: ...
    @property
    def runners(self) -> Runners: ...
    @property
    def run_maker(self) -> RunMaker: ...
    @property
    def terms(self) -> Terms: ...
    @property
    def workflows(self) -> Workflows: ...
    @property
    def agents(self) -> AgentRoom: ...
    @property
    def plugins(self) -> Plugins: ...
    @property
    def ports(self) -> MachinePorts: ...
    @property
    def quotas(self) -> MachineQuotas: ...
    @property
    def tidy(self) -> HomeTidying: ...
    @property
    def cron(self) -> HomeSchedule: ...

    def bring_up(self, adw_id: str) -> None:
        """Bring the database copy of a document up."""

    def dispatcher(self, tick: Callable[[], object] | None = None) -> Dispatcher:
        """Return what brings runs to workers."""


class WorkRoom:
    """The parts that run the workflows of one home."""

    def __init__(self, app: HomeParts, *, env: Mapping[str, str] | None = None) -> None:
        """*env* is where the variables of processes come from."""
        self._app = app
        self._env = config.process_environment() if env is None else env
        self._swept_at = float("-inf")  #: when what workflows left here was last looked for

    def close(self) -> None:
        """End the keeper's thread, and let go of what calls hold open."""
        steps = self.__dict__.pop("steps", None)
        if steps is not None:
            steps.close()
        keeper = self.__dict__.pop("keeper", None)
        if keeper is not None:
            keeper.close()

    @cached_property
    def checkpoints(self) -> CheckpointManager:
        """What phases keep, to go on from there."""
        return CheckpointManager(self._app.checkpoints, clock=self._app.clock)

    @cached_property
    def commands(self) -> CommandRunner:
        """What runs commands, for phases and for gates."""
        app = self._app

        return CommandRunner(
            CommandParts(
                clock=app.clock,
                processes=app.processes,
                redactor=app.redactor,
                env=self._env,
                grace_seconds=app.settings.grace_seconds,
                max_output_bytes=app.settings.max_output_bytes,
                checkpoints=self.checkpoints,
            )
        )

    @cached_property
    def space(self) -> SpaceRoom:
        """The place of work, and what carries it out."""
        return SpaceRoom(self._app, self.commands)

    @cached_property
    def doctor(self) -> Doctor | None:
        """What looks at failed attempts."""
        app = self._app

        return doctor_of(app.settings, app.agents.runners, clock=app.clock, redact=app.redactor.redact_text)

    @cached_property
    def parties(self) -> Parties:
        """The outside parties of phases, and the breakers before them."""
        app = self._app

        return open_parties(
            app.settings,
            app.breakers,
            clock=app.clock,
            has_remote=self.space.git is not None,
            scrub=app.redactor.redact_text,
        )

    @cached_property
    def engine(self) -> EngineParts:
        """What an attempt is made with."""
        app = self._app

        return EngineParts(
            clock=app.clock,
            runners=self._runners(),
            judge=partial(judge, clock=app.clock, redact=app.redactor.redact),
            gates=partial(check_gates, run=self.commands.run_gate),
            folder_of=self.folder_of,
            workplace_of=self.space.workplace_of,
            end_process=self.end_process,
            say=self._app.say,
            tell=self._app.tell,
            log_of=self._log_of,
            clean_up=self._clean_up,
            redactor=app.redactor,
            prepare=self.space.workspace.prepare,
            around=self.space.workspace.around,
            conclude=self.space.workspace.conclude,
            effects_of=self.space.workspace.ledger,
            phase_over=PastCheckpoints(self.checkpoints, self.folder_of).forget,
            release=self.space.workspace.release,
            report=self.space.report,
            doctor=self.doctor,
            model_for=app.agents.model_for,
            harvest=app.agents.runner.harvest,
            agent_begun=self.agent_desk.begin,
            agent_ended=self.agent_desk.end,
            may_begin=self.parties.may_begin,
            answered=self.parties.answered,
            mended=self.parties.mended,
            settle_parties=self.parties.settle,
            let_go=self.parties.let_go,
            max_cost_usd=app.settings.quota_max_cost,
        )

    def _runners(self) -> Mapping[str, Runner]:
        """Return what runs phases, by name: those of adw and those of plugins."""
        app = self._app

        return app.plugins.with_runners(
            {
                "command": self.commands,
                "python": PythonRunner(search=(app.settings.home,), checkpoints=self.checkpoints),
                STEPS: self.steps.runner,
                **self.space.runners,
                **app.agents.runners,
            }
        )

    @cached_property
    def agent_desk(self) -> AgentDesk:
        """What writes down whose agents are at work."""
        return AgentDesk(lambda: self._app.sessions, host=self._app.processes.me("worker").host)

    def _clean_up(self, phase: PhaseSpec, context: PhaseContext) -> None:
        """Run the home's clean-up command before a phase is tried again that something was short for."""
        command = self._app.settings.cleanup_command
        if command:
            end = self.commands.run_beside(phase, Gate(kind="command", shell=command), context, "cleanup")
            context.say(f"clean-up ended with exit code {end.exit_code}")

    def _log_of(self, adw_id: str) -> AbstractContextManager[object]:
        settings = self._app.settings

        return open_log(
            self.folder_of(adw_id) / LOG_NAME,
            max_bytes=settings.log_max_bytes,
            backups=settings.log_backups,
            adw_id=adw_id,
        )

    def folder_of(self, adw_id: str) -> Path:
        """Return a workflow's own directory."""
        return self._app.settings.state_dir / adw_id

    def end_process(self, data: Mapping[str, object]) -> Ending:
        """End what is left of a recorded process, and say what was found, also when that proves nothing."""
        return self._endings.end_process(data)

    def end_former(self, takeover: Takeover) -> None:
        """End what the former owner of a workflow left running; raise WorkflowBusy when that cannot be ended."""
        self._endings.end_former(takeover)

    @cached_property
    def _endings(self) -> Endings:
        return Endings(self._app.settings, clock=self._app.clock, processes=self._app.processes)

    @cached_property
    def keeper(self) -> Keeper:
        """The thread that renews what we own and brings orders."""
        settings = self._app.settings

        return Keeper(
            clock=self._app.clock,
            requests=self._app.requests,
            runs=self._app.runs,
            times=KeeperTimes(
                renew=settings.lease_renew_seconds,
                give_up=settings.lease_stop_seconds,
                ttl=settings.lease_ttl_seconds,
            ),
        )

    @cached_property
    def parts(self) -> WorkParts:
        """What working on runs needs."""
        app = self._app

        return WorkParts(
            clock=app.clock,
            engine=self.engine,
            ownership=app.ownership,
            runs=app.runs,
            requests=app.requests,
            keeper=self.keeper,
            admit=self.space.workspace.admit,
            errands={
                ROLLBACK: LateErrand(lambda: app.tidy.rollback_runs),
                DELIVERY: LateErrand(lambda: self.deliveries.work),
                ITERATION: LateErrand(lambda: self.steps.lanes),
                CRON: LateErrand(lambda: app.cron.cron_runs),
            },
            wake=self.steps.wake,
        )

    @cached_property
    def steps(self) -> StepRoom:
        """What runs the steps of phases."""
        return StepRoom(self._app, self, env=self._env)

    @cached_property
    def deliveries(self) -> DeliveryRoom:
        """What carries out the deliveries that were accepted."""
        return DeliveryRoom(self._app, self)

    @cached_property
    def run_work(self) -> RunWork:
        """Work on one run."""
        return RunWork(self.parts)

    @cached_property
    def control(self) -> Control:
        """What people do to workflows."""
        app = self._app

        return Control(
            ownership=app.ownership,
            engine=self.engine,
            runs=app.runs,
            requests=app.requests,
            load=lambda adw_id: app.store.load(adw_id).document,
            maker=app.run_maker,
        )

    @cached_property
    def launcher(self) -> Launcher:
        """What starts workflows."""
        app = self._app

        return Launcher(ownership=app.ownership, clock=app.clock, check=app.workflows.check_ready, runs=app.run_maker)

    @cached_property
    def recovery(self) -> Recovery:
        """What finds work whose worker is gone."""
        app = self._app

        return Recovery(
            RecoveryParts(
                clock=app.clock,
                store=app.store,
                catalogue=app.catalogue,
                locks=app.locks,
                runs=app.runs,
                processes=app.processes,
                ownership=app.ownership,
                left=app.ownership,
                engine=self.engine,
                keeper=self.keeper,
                requests=app.requests,
                maker=app.run_maker,
                end_process=self._endings.end_in_time,
                bring_up=app.bring_up if app.settings.store == "files" else None,
                free_left_behind=self._free_left_behind,
                counters=app.counters,
                errands=self.parts.errands,
                mode=mode_of(app.settings.recovery_mode),
                threads=1 if app.settings.store == "database" and app.settings.database_file else _THREADS,
                policy=Policy(
                    threshold_seconds=app.settings.recovery_threshold_seconds,
                    fails_running=app.settings.recovery_running == "fail",
                    max_losses=app.settings.recovery_max_losses,
                ),
            )
        )

    def _free_left_behind(self) -> None:
        """Free ports of dead workers here, places of workflows that nobody works on, and what those left that moved."""
        self._app.ports.free_left_behind(self._app.processes.verdict)
        self._app.quotas.free_left_behind()
        self.steps.sweep()
        self._sweep()

    def _sweep(self) -> None:
        """Take away what workflows left here; not with a recovery between two others, for which somebody waits."""
        left, now = self.space.left_behind, self._app.clock.monotonic()
        if left is None or now - self._swept_at < self._app.settings.recover_seconds:
            return
        self._swept_at = now
        sweep(
            SweepParts(
                left=left,
                load=lambda adw_id: self._app.store.load(adw_id).document,
                ownership=self._app.ownership,
                engine=self.engine,
                keep=self.keeper.charge,
            )
        )

    def worker(
        self,
        options: WorkerOptions,
        *,
        on_end: Callable[[WorkEnd], None] = lambda _end: None,
        tick: Callable[[], object] | None = None,
    ) -> Worker:
        """Return a worker of this home; *tick* is for a dispatcher that can keep time (`App.dispatcher`)."""
        is_compared = False
        app, me = self._app, self._app.processes.me("worker")
        unmatched = self._unmatched(me)

        def recover() -> None:
            nonlocal is_compared
            self.recovery.recover(every_document=not is_compared)
            is_compared = True
            unmatched.give_up()
            # Those that left count for as long as a run may wait for them.
            app.runners.forget(silent_seconds=max(app.settings.runners_forget_seconds, unmatched.patience.no_match))

        return Worker(
            self.parts,
            dispatcher=app.dispatcher(tick),
            me=me,
            options=options,
            recover=recover,
            on_end=on_end,
            presence=Presence(
                app.runners,
                me=me,
                offer=options.terms.offer or Offer(host=me.host),
                places=options.concurrency,
                version=adws.__version__,
                clock=app.clock,
                every_seconds=app.settings.lease_renew_seconds,
            ),
        )

    def _unmatched(self, me: OwnerRecord) -> UnmatchedRuns:
        app = self._app

        return UnmatchedRuns(
            runs=app.runs,
            runners=app.runners,
            work=self.run_work,
            clock=app.clock,
            me=me,
            patience=Patience(no_match=app.settings.runs_no_match_seconds, lease=app.settings.lease_ttl_seconds),
            ttl_seconds=app.settings.lease_ttl_seconds,
        )
