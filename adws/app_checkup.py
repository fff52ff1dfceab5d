"""
The wiring of `adw doctor`: which facts are measured, by what, and which rules judge them.

Looks and changes nothing: the database is opened as it is, never made and never upgraded. What cannot be looked at is a
finding itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from adws import app_resources, config
from adws.adw_modules import agents, checkup_database, checkup_forge, checkup_rules, machine_facts
from adws.adw_modules.checkup import (
    PROBLEM,
    AgentFacts,
    ClockFacts,
    DatabaseFacts,
    Finding,
    ForgeFacts,
    GitFacts,
    PortFacts,
    SettingsFacts,
    StorageFacts,
    Trouble,
    WebhookFacts,
)
from adws.adw_modules.db import check as checking
from adws.adw_modules.db import opening, schema_version
from adws.adw_modules.db.ports import DatabasePortBook
from adws.adw_modules.errors import AdwError, DatabaseUnavailable, ForgeNotFound, ForgeRefused, GitError, RunFailed
from adws.adw_modules.http_client import HttpAnswer, HttpClient, HttpRequest
from adws.adw_modules.interfaces_engine import NoOrders
from adws.adw_modules.resources import ports as port_probe

if TYPE_CHECKING:
    from pathlib import Path

    from adws.adw_modules.db.check import Problem
    from adws.adw_modules.db.session import Database
    from adws.adw_modules.forge import ForgeAccess
    from adws.adw_modules.interfaces import PeekedState
    from adws.adw_modules.workflow import WorkflowSpec
    from adws.app import App

#: Seconds that a server has to answer.
ANSWER_SECONDS = 10.0


# --- the database ----------------------------------------------------------------------------------------------


def connect(app: App) -> Database:
    """Return the database as it is: `app.database` would upgrade it on the way."""
    return opening.connect(app.settings.database_url, clock=app.clock, boot_id=app.processes.boot_id)


def database_problems(app: App) -> tuple[Problem, ...]:
    """Return what does not fit in the database, or between it and the documents."""
    try:
        app.has_database()
    except DatabaseUnavailable as exc:
        # It is gone: then there is nothing else to check.
        text, _, hint = str(exc).rpartition(": ")
        return (checking.Problem(kind="storage", text=text, hint=hint),)
    with closing(connect(app)) as database:
        return checking.find_problems(
            database,
            home=app.settings.store,
            documents=lambda: _documents(app),
            repository=app.settings.repository or "",
            verdict=app.processes.verdict,
        )


def _documents(app: App) -> dict[str, PeekedState | str]:
    """Return every document, or why it cannot be read."""
    links = app.folders.links() if app.settings.store == "files" else ()
    found: dict[str, PeekedState | str] = {}
    for adw_id in (*app.store.ids(), *links):
        try:
            found[adw_id] = app.store.peek(adw_id)
        except AdwError as exc:
            found[adw_id] = str(exc)

    return found


# --- everything ------------------------------------------------------------------------------------------------


class Checkup:
    """Looks at one home and what it stands on."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._skews: list[tuple[str, float]] = []  #: of whom, and seconds that our clock is ahead of theirs
        self._http = HttpClient(app.clock)
        self._search_path = config.process_environment().get("PATH", "")
        self._reserved: frozenset[int] = frozenset()  #: ports that workflows have, as far as the database told

    def findings(self) -> Iterator[Finding]:
        """Yield what is found, area by area, as it is found."""
        with closing(self._http):
            for area, look in self._areas():
                try:
                    yield from look()
                except AdwError as exc:
                    yield Finding(area=area, level=PROBLEM, what=str(exc), mend="mend that, then adw doctor again")

    def _areas(self) -> Iterator[tuple[str, Callable[[], Iterator[Finding]]]]:
        yield "python", lambda: checkup_rules.python(machine_facts.python_facts())
        yield "git", lambda: checkup_rules.git(self._git())
        yield "settings", lambda: checkup_rules.settings(self._settings())
        yield "agents", lambda: checkup_rules.agents(tuple(self._agents()))
        yield "forge", lambda: checkup_forge.forge(self._forge())
        yield "webhook", lambda: checkup_rules.webhook(self._webhook())
        yield "database", lambda: checkup_database.database(self._database())
        yield "files", lambda: checkup_rules.storage(self._storage())
        yield "disk", self._disks
        yield "ports", lambda: checkup_rules.ports(self._ports())
        yield "clock", lambda: checkup_rules.clock(self._clock())

    # --- git ---------------------------------------------------------------------------------------------------

    def _git(self) -> GitFacts:
        settings = self._app.settings
        try:
            from adws.adw_modules.resources.git import OLDEST, numbers_of  # noqa: PLC0415 - it looks for git

            version = self._app.git_room.commands.version()
        except GitError:
            return GitFacts(version="")
        known = GitFacts(
            version=version,
            numbers=numbers_of(version),
            oldest=OLDEST,
            remote=settings.git_remote,
            works_in_worktrees=settings.worktree_enabled,
        )
        if known.numbers < known.oldest:
            return known

        return self._repository(known)

    def _repository(self, known: GitFacts) -> GitFacts:
        room = self._app.git_room
        author = room.commands.author()
        try:
            _ = room.repository.root
        except GitError:
            return replace(known, author=author)

        return replace(
            known,
            author=author,
            is_repository=True,
            has_commits=room.repository.commit_of("HEAD") is not None,
            lost_worktrees=tuple(str(tree.path) for tree in room.repository.worktrees() if tree.is_prunable),
            unignored=tuple(self._unignored()),
            remote_problem=room.repository.remote_problem(seconds=ANSWER_SECONDS),
            stale_locks=tuple(map(str, room.repository.dead_locks())),
        )

    def _unignored(self) -> Iterator[str]:
        settings = self._app.settings
        for path in (settings.state_dir, settings.trees_dir):
            if path.is_relative_to(settings.home):
                name = str(path.relative_to(settings.home))
                if not self._app.git_room.repository.is_ignored(f"{name}/x"):
                    yield f"{name}/"

    # --- settings and agents -----------------------------------------------------------------------------------

    def _settings(self) -> SettingsFacts:
        settings = self._app.settings
        known = self._app.workflows  # raises WorkflowInvalid when one is not sound
        spec = known.get(settings.default_workflow)

        return SettingsFacts(
            file=str(settings.file.path),
            has_file=settings.file.path.is_file(),
            ignored=settings.ignored,
            default_workflow=spec.name,
            idle_phases=tuple(known.without_runner(spec)),
            missing_programs=tuple(self._missing(spec)),
        )

    def _missing(self, spec: WorkflowSpec) -> Iterator[tuple[str, str]]:
        """Yield the phases whose command, or that of a gate, is not there; one below the home may be made later."""
        for phase in spec.phases:
            commands = [phase.command, *(gate.command for gate in phase.gates)]
            for program in dict.fromkeys(command[0] for command in commands if command):
                if "/" not in program and shutil.which(program, path=self._search_path) is None:
                    yield phase.name, program

    def _agents(self) -> Iterator[AgentFacts]:
        needed = self._needed_agents()
        for name in agents.names():
            if name not in needed and self._app.agents.preflight.missing(agents.profile(name)):
                continue
            _, state = self._app.agents.look(name)
            yield AgentFacts(
                name=name,
                path=state.path,
                version=state.version,
                is_logged_in=state.is_logged_in,
                problem=state.problem,
                is_needed=name in needed,
            )

    def _needed_agents(self) -> frozenset[str]:
        """Return the agents of the default workflow and of those of adw.toml, and that of the engine's doctor."""
        settings, known = self._app.settings, self._app.workflows
        own = [spec for spec in known.all() if spec.name in settings.section("workflows").data]
        runners = {phase.runner for spec in (known.get(settings.default_workflow), *own) for phase in spec.phases}
        usual = {settings.agent_name} if "agent" in runners else set[str]()

        return frozenset((runners & set(agents.names())) | usual | {settings.doctor_agent or ""}) - {""}

    # --- the outside -------------------------------------------------------------------------------------------

    def _forge(self) -> ForgeFacts:
        settings = self._app.settings
        kind, repository = settings.forge_kind, settings.repository or ""
        if kind in {"none", "local"}:
            return ForgeFacts(kind=kind, repository=repository)
        try:
            access = self._access()
        except ForgeNotFound:
            what = f"GitHub shows us no repository {repository}"
            return ForgeFacts(kind=kind, problem=what, mend="correct github.repository, or use a token that may see it")
        except ForgeRefused as exc:
            mend = "make a new token, and export ADW_GITHUB_TOKEN=..."
            return ForgeFacts(kind=kind, problem=f"GitHub does not accept our token: {exc}", mend=mend)
        except AdwError as exc:
            return ForgeFacts(kind=kind, problem=str(exc), mend="see whether github.api_url can be reached from here")

        return ForgeFacts(
            kind=kind,
            repository=repository,
            login=access.login,
            may_push=access.may_push,
            may_write_issues=access.may_write_issues,
            scopes=access.scopes,
            is_private=access.is_private,
            pushes_workflow_files=settings.ship_allow_workflow_files,
            requests_left=access.requests_left,
        )

    def _access(self) -> ForgeAccess:
        from adws.adw_modules.forge import ForgeAccess  # noqa: PLC0415 - see app_forge
        from adws.adw_modules.github import GitHubForge  # noqa: PLC0415 - PyGithub takes its time to import

        forge = self._app.forge
        if not isinstance(forge, GitHubForge):
            return ForgeAccess(login=forge.login())
        access = forge.access()
        if access.server_time:
            self._compare("GitHub", parsedate_to_datetime(access.server_time).timestamp())

        return access

    def _webhook(self) -> WebhookFacts:
        settings = self._app.settings
        host = f"[{settings.web_host}]" if ":" in settings.web_host else settings.web_host
        address = f"http://{host}:{settings.web_port}"
        answer = self._health(address)
        public = settings.web_public_url or ""

        return WebhookFacts(
            has_secret=bool(settings.webhook_secret),
            address=address,
            is_answering=isinstance(answer, HttpAnswer),
            says="" if isinstance(answer, str) or answer.status == 200 else f"it answers {answer.status}",
            public_url=public,
            public_problem=_how(self._health(public)) if public else None,
        )

    def _health(self, address: str) -> HttpAnswer | str:
        """Return the answer of a server about itself, or why there is none."""
        request = HttpRequest(method="GET", url=f"{address}/health", timeout_seconds=ANSWER_SECONDS, max_bytes=65_536)
        try:
            answer = self._http.ask(request, NoOrders())
        except RunFailed as exc:
            return str(exc)

        return answer if isinstance(answer, HttpAnswer) else "it was not asked"

    # --- the machine -------------------------------------------------------------------------------------------

    def _database(self) -> DatabaseFacts:
        app = self._app
        name = str(app.settings.shown("database_url"))
        try:
            is_made = app.has_database()
            found = database_problems(app) if is_made else ()
            schema = self._look_into_database() if is_made else None
        except AdwError as exc:
            return DatabaseFacts(name=name, problem=str(exc))
        troubles = (Trouble(kind=one.kind, text=one.text, hint=one.hint, adw_id=one.adw_id) for one in found)

        return DatabaseFacts(name=name, is_made=is_made, schema=schema, troubles=tuple(troubles))

    def _look_into_database(self) -> str | None:
        with closing(connect(self._app)) as database:
            server_time = database.server_time()
            if server_time is not None:
                self._compare("the database", server_time)
            schema = database.schema_version()
            if schema == schema_version.HEAD:
                here = self._app.processes.me("cli").host
                rows = DatabasePortBook(database, clock=self._app.clock).all()
                self._reserved = frozenset(row.port for row, _ in rows if row.host == here)

            return schema

    def _storage(self) -> StorageFacts:
        settings = self._app.settings
        file = settings.database_file

        return machine_facts.storage_facts(
            settings.state_dir,
            has_sqlite=file is not None and file.is_relative_to(settings.state_dir),
            clock=self._app.clock,
        )

    def _disks(self) -> Iterator[Finding]:
        settings, least = self._app.settings, self._app.settings.quota_min_free_disk
        places: dict[int, tuple[str, Path]] = {}  # by device: two directories on one disk are told of once
        for name, path in (("worktrees", settings.trees_dir), ("state", settings.state_dir)):
            places.setdefault(machine_facts.nearest(path).stat().st_dev, (name, path))
        for name, path in places.values():
            yield from checkup_rules.disk(machine_facts.disk_facts(name, path, min_free_bytes=least))

    def _ports(self) -> PortFacts:
        described = app_resources.port_range(self._app.settings)
        pairs = [described.pair(index) for index in range(described.count)]
        taken = [pair for pair in pairs if {pair.backend, pair.frontend} & self._reserved]
        free = [
            pair
            for pair in pairs
            if pair not in taken and port_probe.is_free(pair.backend) and port_probe.is_free(pair.frontend)
        ]

        return PortFacts(described=str(described), count=described.count, free=len(free), reserved=len(taken))

    def _clock(self) -> ClockFacts:
        clock = self._app.clock
        before = clock.monotonic()

        return ClockFacts(year=clock.now().year, goes_back=clock.monotonic() < before, skews=tuple(self._skews))

    def _compare(self, who: str, seconds: float) -> None:
        self._skews.append((who, self._app.clock.now().timestamp() - seconds))


def _how(answer: HttpAnswer | str) -> str:
    """Return what is wrong with an answer, "" when nothing is."""
    if isinstance(answer, str):
        return answer

    return "" if answer.status == 200 else f"it answers {answer.status}"
