"""
The wiring of steps: where executions are kept, who works on their lanes, and the runner of phases made of steps.

Apart from `app_work` because of its length; each part is built on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from adws import config
from adws.adw_modules.demands import Demands
from adws.adw_modules.fanout.lanes import LaneParts, Lanes
from adws.adw_modules.fanout.step_runner import StepParts, StepRunner
from adws.app_calls import CallRoom, HomeCalls

if TYPE_CHECKING:
    from pathlib import Path

    from adws.adw_modules.checkpoint import CheckpointManager
    from adws.adw_modules.coordination.keeper import Keeper
    from adws.adw_modules.coordination.workflow_work import Errand, WorkEnd
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.executions import Executions
    from adws.adw_modules.interfaces import StateStore
    from adws.adw_modules.interfaces_engine import RunQueue
    from adws.adw_modules.process_tree import Ending
    from adws.adw_modules.run_making import RunMaker
    from adws.adw_modules.runs import Run
    from adws.adw_modules.steps import StepSpec
    from adws.app_space import SpaceRoom


class HomeSteps(HomeCalls, Protocol):
    """What the parts of a home are to its steps (`app.App`)."""

    settings: config.Settings
    say: Callable[[str, str], None]

    @property
    def executions(self) -> Executions: ...
    @property
    def runs(self) -> RunQueue: ...
    @property
    def store(self) -> StateStore: ...
    @property
    def run_maker(self) -> RunMaker: ...


class StepWork(Protocol):
    """What the work in a home is to its steps (`app_work.WorkRoom`)."""

    @property
    def keeper(self) -> Keeper: ...
    @property
    def checkpoints(self) -> CheckpointManager: ...
    @property
    def space(self) -> SpaceRoom: ...
    def folder_of(self, adw_id: str) -> Path:
        """Return a workflow's own directory."""

    def end_process(self, data: Mapping[str, object]) -> Ending:
        """End what is left of a recorded process, and say what was found."""


class StepRoom:
    """The steps of the workflows of one home."""

    def __init__(self, app: HomeSteps, work: StepWork, *, env: Mapping[str, str]) -> None:
        self._app = app
        self._work = work
        self._env = env

    def close(self) -> None:
        """Let go of what calls hold open."""
        room = self.__dict__.pop("call_room", None)
        if room is not None:
            room.close()

    @cached_property
    def call_room(self) -> CallRoom:
        """What makes calls."""
        return CallRoom(self._app, env=self._env)

    @cached_property
    def runner(self) -> StepRunner:
        """What runs phases that are made of steps."""
        app = self._app

        return StepRunner(
            StepParts(
                clock=app.clock,
                executions=lambda: app.executions,
                calls=lambda: self.call_room.calls,
                checkpoints=self._work.checkpoints,
                labels_of=lambda document: app.run_maker.of(document, "resume").labels,
                demands_of=self._demands_of,
                redact=app.redactor.redact,
            )
        )

    @cached_property
    def lanes(self) -> Lanes:
        """What works on the lanes of executions."""
        app, work = self._app, self._work

        return Lanes(
            LaneParts(
                clock=app.clock,
                runs=app.runs,
                executions=app.executions,
                keeper=work.keeper,
                calls=self.call_room.calls,
                load=lambda adw_id: app.store.load(adw_id).document,
                workplace_of=work.space.workplace_of,
                folder_of=work.folder_of,
                end_process=work.end_process,
                say=app.say,
                lane_seconds=app.settings.steps_lane_seconds,
                batch=app.settings.steps_batch,
            )
        )

    def wake(self, adw_id: str) -> None:
        """Make the run of a workflow due that waits for executions which have ended."""
        self._app.executions.wake(adw_id)

    def sweep(self) -> None:
        """Cancel what workflows that are over left, and wake those that a crash kept from being woken."""
        self._app.executions.cancel_left()
        self._app.executions.wake()

    def _demands_of(self, document: WorkflowDocument, step: StepSpec) -> Demands:
        """Return what a worker needs to make the calls of *step*: the machine with the worktree, if there are more."""
        wanted = Demands.from_json(document.workflow.demands) if document.workflow else Demands()
        if not self._app.settings.database_url.startswith("postgresql") or not _needs_place(step):
            return wanted

        return replace(wanted, host=self._app.processes.me("worker").host)


def _needs_place(step: StepSpec) -> bool:
    """Say whether calls of *step* touch files: those of another machine are not theirs."""
    return step.tool != "http" or (step.sink is not None and step.sink.tool != "postgres")


class LateErrand:
    """An errand whose parts are built when the first run of its kind comes: few workers ever do one."""

    def __init__(self, build: Callable[[], Errand]) -> None:
        self._build = build

    def work(self, run: Run) -> WorkEnd:
        """Do what *run* is for."""
        return self._build().work(run)

    def give_up(self, run: Run, why: str) -> None:
        """Write down that it will not be done."""
        self._build().give_up(run, why)
