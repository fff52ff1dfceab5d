"""
The wiring of the place a workflow works in, and of what carries its work out: worktree, ports, shipping, comment.

Apart from `app_work` because it is what touches git and the forge. A home that is in no git repository, or with
worktrees switched off, works in place: then nothing of git is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adws import app_forge, config, config_home
from adws.adw_modules.coordination.held_ports import held_by
from adws.adw_modules.coordination.left_behind import LeftBehind, LeftBehindParts
from adws.adw_modules.coordination.publishing import Publisher, PublisherParts
from adws.adw_modules.coordination.sticky import StickyComment
from adws.adw_modules.coordination.workspace import Workspace, WorkspaceParts
from adws.adw_modules.diff_gate import DiffRules
from adws.adw_modules.engine.runners.clean import CleanRunner
from adws.adw_modules.engine.runners.command import CommandRunner
from adws.adw_modules.engine.runners.external import ExternalRunner
from adws.adw_modules.engine.runners.pull_request import PullRequestDesk, PullRequestOptions
from adws.adw_modules.engine.runners.ship import ShipParts, ShipRunner
from adws.adw_modules.forge_effects import ForgeEffects
from adws.adw_modules.process_tree import Ending, end_recorded, recorded
from adws.adw_modules.steps import EXTERNAL
from adws.adw_modules.workflow import CLEAN, SHIP, Gate
from adws.app_home import Home

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.engine.attempt import WorkSession
    from adws.adw_modules.external_tasks import ExternalTasks
    from adws.adw_modules.forge import Forge
    from adws.adw_modules.interfaces_engine import PhaseContext, Runner
    from adws.adw_modules.interfaces_resources import Ports, Quotas
    from adws.adw_modules.outcome import RunReport, Suspended
    from adws.adw_modules.workflow import PhaseSpec
    from adws.app_resources import GitRoom


class HomeSpace(Home, Protocol):
    """What the parts of a home are to the place of work in it (`app.App`)."""

    @property
    def git_room(self) -> GitRoom: ...
    @property
    def ports(self) -> Ports: ...
    @property
    def quotas(self) -> Quotas: ...
    @property
    def forge(self) -> Forge: ...
    @property
    def external_tasks(self) -> ExternalTasks: ...


class SpaceRoom:
    """Workspace, shipping, cleaning and the comment of one home."""

    def __init__(self, app: HomeSpace, commands: CommandRunner) -> None:
        """*commands* runs what sets a new worktree up."""
        self._app = app
        self._commands = commands

    @cached_property
    def git(self) -> GitRoom | None:
        """The repository to work with; None: work is done in place."""
        settings = self._app.settings
        is_inside = settings.worktree_enabled and config_home.is_in_repository(settings.home)

        return self._app.git_room if is_inside else None

    @cached_property
    def host(self) -> str:
        """This machine, as the ledger names it."""
        return self._app.processes.me("worker").host

    @property
    def _host_if_shared(self) -> str:
        return self.host if self._app.settings.is_shared else ""

    @cached_property
    def workspace(self) -> Workspace:
        """The place of a workflow."""
        app, git = self._app, self.git
        parts = WorkspaceParts(host=self.host, quotas=app.quotas, trees_dir=app.settings.trees_dir)
        if git is not None:
            parts = replace(
                parts,
                is_shared=app.settings.is_shared,
                publisher=self._publisher(git),
                left_behind=self.left_behind,
                git=git.repository,
                workplace=git.workplace,
                ports=app.ports,
                remote=app.settings.git_remote,
                fill=partial(self._fill, git),
                write_ports=git.worktrees.write_ports,
            )

        return Workspace(parts)

    def _publisher(self, git: GitRoom) -> Publisher | None:
        """Return what brings work to the remote; None: no other machine can go on with it, and nobody asked for it."""
        settings, wanted = self._app.settings, self._app.settings.workspace_publish_work
        if not settings.is_shared and wanted != "always":
            return None

        return Publisher(
            PublisherParts(
                refs=git.remote_refs,
                workplace=git.workplace,
                host=self.host,
                remote=settings.git_remote,
                is_wanted=wanted != "never",
                is_required=wanted == "always",
                allowed_paths=settings.ship_allow_paths or (),
                has_secret=lambda line: bool(self._app.redactor.find(line)),
            )
        )

    @cached_property
    def left_behind(self) -> LeftBehind | None:
        """What takes away what workflows left here that moved; None: there is no other machine to move to."""
        git, app = self.git, self._app
        if git is None or not app.settings.is_shared:
            return None

        return LeftBehind(
            LeftBehindParts(
                host=self.host,
                git=git.repository,
                workplace=git.workplace,
                folder_of=lambda adw_id: app.settings.state_dir / adw_id,
                end_process=self._end_process,
            )
        )

    def _end_process(self, data: Mapping[str, object]) -> Ending:
        app, record = self._app, recorded(data)
        if record is None:
            return Ending(evidence="its record cannot be read, so nothing was signalled")

        return end_recorded(record, clock=app.clock, processes=app.processes, grace_seconds=app.settings.grace_seconds)

    def workplace_of(self, document: WorkflowDocument) -> Path:
        """Return where the phases of a workflow work: what the home is in the repository, in the worktree."""
        home = self._app.settings.home
        if not document.worktree_path:
            return home
        if self.git is None or not home.is_relative_to(self.git.repository.root):
            return Path(document.worktree_path)

        return Path(document.worktree_path) / home.relative_to(self.git.repository.root)

    def _fill(self, git: GitRoom, session: WorkSession, path: Path) -> None:
        phase, context = session.running()
        run = partial(self._set_up, phase, replace(context, cwd=path))
        _, notices = git.worktrees.fill(path, ports=held_by(session.document), run=run)
        for notice in notices:
            context.say(notice)

    def _set_up(self, phase: PhaseSpec, context: PhaseContext, argv: Sequence[str], *, cwd: Path, number: int) -> str:
        """Run a set-up command of a worktree as a process of the attempt; return why it failed, "" when it did not."""
        del cwd  # the context says it
        end = self._commands.run_beside(phase, Gate(kind="command", command=tuple(argv)), context, f"setup-{number}")
        if end.exit_code == 0 and end.timed_out is None and not end.ordered:
            return ""

        return f"it ended with exit code {end.exit_code}; adw logs {context.document.adw_id} has its output"

    # --- the forge ---------------------------------------------------------------------------------------------

    @property
    def has_forge(self) -> bool:
        """Whether issues and pull requests have a place."""
        return self._app.settings.forge_kind != "none"

    @cached_property
    def _key(self) -> bytes:
        return app_forge.key_of(self._app.settings, clock=self._app.clock)

    @cached_property
    def runners(self) -> dict[str, Runner]:
        """What ships, cleans up, and waits for what is done elsewhere."""
        git = self.git
        parts = ShipParts(
            git=git.repository if git else None,
            workplace=git.workplace if git else None,
            remote=self._app.settings.git_remote,
            rules=diff_rules(self._app.settings),
            has_secret=lambda line: bool(self._app.redactor.find(line)),
        )

        return {
            SHIP: _LateShip(self, parts),
            CLEAN: CleanRunner(git.repository if git else None, host=self._host_if_shared),
            EXTERNAL: ExternalRunner(lambda: self._app.external_tasks, clock=self._app.clock),
        }

    def desk(self) -> PullRequestDesk | None:
        """Return who puts pull requests up; None: there is no forge."""
        settings = self._app.settings
        if not self.has_forge:
            return None
        options = PullRequestOptions(
            is_draft=settings.ship_draft, labels=settings.ship_labels or (), merge=settings.ship_merge
        )

        return PullRequestDesk(self._app.forge, clock=self._app.clock, key=self._key, options=options)

    def report(self, session: WorkSession) -> None:
        """Tell the issue how the work stands, where there is a forge."""
        if self.has_forge:
            self._sticky.update(session)

    @cached_property
    def _sticky(self) -> StickyComment:
        return StickyComment(self._makers, clock=self._app.clock, host=self.host)

    def _makers(self) -> ForgeEffects:
        return ForgeEffects(self._app.forge, clock=self._app.clock, key=self._key)


class _LateShip:
    """The ship runner, built when something is shipped: only then the forge is opened."""

    def __init__(self, room: SpaceRoom, parts: ShipParts) -> None:
        self._room = room
        self._parts = parts

    def check(self, phase: PhaseSpec) -> str:
        return ShipRunner(self._parts).check(phase)

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended:
        return ShipRunner(replace(self._parts, desk=self._room.desk())).run(phase, context)


def diff_rules(settings: config.Settings) -> DiffRules:
    """Return what the check before a push lets through."""
    return DiffRules(
        allow_workflow_files=settings.ship_allow_workflow_files,
        allow_agent_files=settings.ship_allow_agent_files,
        allowed_paths=settings.ship_allow_paths or (),
        max_files=settings.ship_max_files,
        max_lines=settings.ship_max_lines,
    )
