"""
What `adw init` finds in a repository and on this machine, and what it asks the person for.

Looks at files, git and PATH; asks no network. A question is asked only about what was not found, and only of somebody
who sits at a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import agents, project_rules, repository_name
from adws.adw_modules.errors import GitError
from adws.adw_modules.init_text import OWN_FOLDER, Findings
from adws.adw_modules.project_files import ProjectFiles

if TYPE_CHECKING:
    from adws.adw_modules.project_rules import Command, Project
    from adws.app import App

#: What is asked when nobody can answer: nothing.
Ask = Callable[[str], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What was said on the command line; "" is nothing."""

    test: str = ""
    lint: str = ""
    repository: str = ""
    agent: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What was found besides what goes into the settings."""

    default_branch: str = ""  #: "" when it cannot be told
    remotes: tuple[str, ...] = ()
    has_commits: bool = False


def look(app: App, wishes: Wishes, ask: Ask) -> tuple[Findings, Surroundings]:
    """Return what is known about the repository of a home; raise GitError when it is in none."""
    git = app.git_room.repository
    files = ProjectFiles(app.settings.home)
    _ = git.root  # refuses a directory that is in no repository, before anything is asked
    remotes = git.remotes()
    remote = next(iter(remotes)) if len(remotes) == 1 else app.settings.git_remote
    names = files.names()
    project = project_rules.detect(names, files.texts(project_rules.LOOKED_AT))
    repository, source = _repository(app, wishes, remotes.get(remote, ""), remote, ask)
    installed = tuple(name for name in agents.names() if not app.agents.preflight.missing(agents.profile(name)))
    found = Findings(
        project=_completed(project, wishes, ask),
        repository=repository,
        repository_source=source,
        remote=remote,
        agent=wishes.agent or _agent(app, installed),
        agents=installed,
        folders=_folders(app, names),
    )

    return found, Surroundings(
        default_branch=_default_branch(app),
        remotes=tuple(remotes),
        has_commits=git.commit_of("HEAD") is not None,
    )


def _repository(app: App, wishes: Wishes, address: str, remote: str, ask: Ask) -> tuple[str, str]:
    """Return the repository on GitHub and where it was found."""
    if wishes.repository:
        return wishes.repository, "the command line"
    if app.settings.repository:
        return app.settings.repository, app.settings.origin("repository")
    found = repository_name.on_github(address)
    if found:
        return found, f"the remote {remote}"
    said = ask("The repository on GitHub, as owner/name; empty when there is none")

    return said, "your answer" if said else ""


def _completed(project: Project, wishes: Wishes, ask: Ask) -> Project:
    test = _command(wishes.test, project.test, ask, "The command that runs the tests; empty when there is none")
    lint = _command(wishes.lint, project.lint, ask, "The command that checks the style; empty when there is none")

    return replace(project, test=test, lint=lint)


def _command(wished: str, found: Command | None, ask: Ask, question: str) -> Command | None:
    if wished.strip():
        return project_rules.given(wished, "the command line")
    if found is not None:
        return found
    said = ask(question)

    return project_rules.given(said, "your answer") if said else None


def _agent(app: App, installed: tuple[str, ...]) -> str:
    """Return the agent to work with: the one that is set, else the best supported one that is installed."""
    if app.settings.origin("agent_name") != "default" or not installed:
        return app.settings.agent_name

    return installed[0]


def _folders(app: App, names: Collection[str]) -> tuple[str, ...]:
    """Return where adw keeps what it makes; a directory of the repository's own is not used for it."""
    settings = app.settings
    is_ours = has_worked(settings.state_dir) or "adw.toml" in names
    if not is_ours and {"state/", "trees/"} & set(names):
        return (OWN_FOLDER,)
    places = (settings.state_dir, settings.trees_dir)

    return tuple(str(path.relative_to(settings.home)) for path in places if path.is_relative_to(settings.home))


def has_worked(state_dir: Path) -> bool:
    """Say whether adw has worked with this state directory."""
    return (state_dir / "adw.db").exists() or any(state_dir.glob("*/adw_state.json"))


def _default_branch(app: App) -> str:
    try:
        return app.git_room.repository.default_branch_known()
    except GitError:
        return ""
