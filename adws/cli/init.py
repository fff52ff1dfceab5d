"""`adw init`: look at a repository, and write what adw needs to work on it; nothing that is there is overwritten."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from adws.adw_modules import identifiers
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.errors import ConfigError, GitError
from adws.adw_modules.workflow.model import AGENTS
from adws.cli import main, output
from adws.doctor import project_init
from adws.doctor.checks import PROBLEM, WARNING, Finding, count
from adws.doctor.project_init import OWN_FOLDER, Findings, ProjectFiles

if TYPE_CHECKING:
    from adws.app import Home
    from adws.doctor.project_init import Project, ProjectCommand


# What `adw init` finds in a repository and on this machine, and what it asks the person for.
#
# Reads files, git and PATH; uses no network. A question is asked only about what was not found, and only at a terminal.


#: What is asked when nobody can answer: nothing.
Ask = Callable[[str], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class InitOptions:
    """What was said on the command line; "" is nothing."""

    test: str = ""
    lint: str = ""
    repository: str = ""
    agent: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectFacts:
    """What was found besides what goes into the settings."""

    default_branch: str = ""  #: "" when it cannot be told
    remotes: tuple[str, ...] = ()
    has_commits: bool = False


def look(app: Home, wishes: InitOptions, ask: Ask) -> tuple[Findings, ProjectFacts]:
    """Return what is known about the repository of a home; raise GitError when it is in none."""
    git = app.git
    files = ProjectFiles(app.settings.home)
    _ = git.root  # refuses a directory that is in no repository, before anything is asked
    remotes = git.remotes()
    remote = next(iter(remotes)) if len(remotes) == 1 else app.settings.git_remote
    names = files.names()
    project = project_init.detect(names, files.texts(project_init.LOOKED_AT))
    repository, source = _repository(app, wishes, remotes.get(remote, ""), remote, ask)
    installed = tuple(
        name for name in agents_base.names() if not app.agent_preflight.missing(agents_base.profile(name))
    )
    result = Findings(
        project=_completed(project, wishes, ask),
        repository=repository,
        repository_source=source,
        remote=remote,
        agent=wishes.agent or _agent(app, installed),
        agents=installed,
        folders=_folders(app, names),
    )

    return result, ProjectFacts(
        default_branch=_default_branch(app),
        remotes=tuple(remotes),
        has_commits=git.commit_of("HEAD") is not None,
    )


def _repository(app: Home, wishes: InitOptions, address: str, remote: str, ask: Ask) -> tuple[str, str]:
    """Return the repository on GitHub and where it was found."""
    if wishes.repository:
        return wishes.repository, "the command line"
    if app.settings.repository:
        return app.settings.repository, app.settings.origin("repository")
    result = identifiers.on_github(address)
    if result:
        return result, f"the remote {remote}"
    said = ask("The repository on GitHub, as owner/name; empty when there is none")

    return said, "your answer" if said else ""


def _completed(project: Project, wishes: InitOptions, ask: Ask) -> Project:
    test = _command(wishes.test, project.test, ask, "The command that runs the tests; empty when there is none")
    lint = _command(wishes.lint, project.lint, ask, "The command that checks the style; empty when there is none")

    return replace(project, test=test, lint=lint)


def _command(wished: str, found: ProjectCommand | None, ask: Ask, question: str) -> ProjectCommand | None:
    if wished.strip():
        return project_init.given(wished, "the command line")
    if found is not None:
        return found
    said = ask(question)

    return project_init.given(said, "your answer") if said else None


def _agent(app: Home, installed: tuple[str, ...]) -> str:
    """Return the agent to work with: the one that is set, else the best supported one that is installed."""
    if app.settings.origin("agent_name") != "default" or not installed:
        return app.settings.agent_name

    return installed[0]


def _folders(app: Home, names: Collection[str]) -> tuple[str, ...]:
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


def _default_branch(app: Home) -> str:
    try:
        return app.git.default_branch_known()
    except GitError:
        return ""


#: Prompts of the phases that an agent does, and of the small change that a comment asks for.
PROMPTS = ("plan", "build", "lint", "test", "review", "document", "patch")
_IGNORE_FILE = ".gitignore"


class WrittenFiles(NamedTuple):
    """What was written, or would be, and what was left alone and why."""

    new: tuple[str, ...]
    left: dict[str, str]


@click.command()
@click.option("--test", metavar="COMMAND", default="", help="The command that runs the tests.")
@click.option("--lint", metavar="COMMAND", default="", help="The command that checks the style.")
@click.option("--repository", metavar="OWNER/NAME", default="", help="The repository on GitHub.")
@click.option("--agent", type=click.Choice(AGENTS), help="The agent that works on phases.")
@click.option("--yes", is_flag=True, help="Ask nothing: what is not found is left open.")
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@output.json_option
def init(*, test: str, lint: str, repository: str, agent: str | None, yes: bool, dry_run: bool, as_json: bool) -> None:
    """
    Look at the repository you are in, and write adw.toml, prompts and lines of .gitignore for it.

    Finds languages, test and lint commands, remote, default branch, agents and credentials, and asks, on a terminal,
    only for what it cannot find. What is there already is never overwritten. Run it again after you gave the remote
    another address: adw sends nothing to an address that it has not recorded.
    """
    identifiers.normalise(repository)  # raises UsageError when it names none
    wishes = InitOptions(test=test, lint=lint, repository=repository, agent=agent or "")
    may_ask = not (yes or as_json or dry_run) and sys.stdin is not None and sys.stdin.isatty()
    with main.open_home() as app:
        result, around = look(app, wishes, _asked if may_ask else _unasked)
        written = _write(app, result, dry_run=dry_run)
        if not dry_run and has_worked(app.settings.state_dir):
            app.git_commands.record_remote()  # who runs this says that the remote is where it should be
        next_steps = _next(app, result, around, written)
        data: dict[str, output.Printable] = {
            "home": str(app.settings.home),
            "found": _data(app, result, around),
            "written": list(written.new),
            "left": dict(written.left),
            "dry_run": dry_run,
            "next": next_steps,
        }
        output.emit(data, _lines(app, result, around, written, next_steps, dry_run=dry_run), as_json=as_json)


def _asked(question: str) -> str:
    answer: str = click.prompt(question, default="", show_default=False, err=True)

    return answer.strip()


def _unasked(question: str) -> str:
    del question
    return ""


# --- writing ---------------------------------------------------------------------------------------------------


def _write(app: Home, found: Findings, *, dry_run: bool) -> WrittenFiles:
    """Write what is not there; with *dry_run* only say so."""
    files = ProjectFiles(app.settings.home)
    texts = {"adw.toml": project_init.settings_text(found)}
    texts |= {f"prompts/{name}.md": app.prompts.shipped(name) for name in PROMPTS}
    new: list[str] = []
    left: dict[str, str] = {}
    for name, text in texts.items():
        is_new = not files.has(name) if dry_run else files.write_new(name, text)
        if is_new:
            new.append(name)
        else:
            left[name] = "it is there already"
    lines = [line for line in project_init.ignored_lines(found) if not _is_ignored(app, line)]
    if lines:
        new.append(_IGNORE_FILE)
    else:
        left[_IGNORE_FILE] = "git ignores what adw makes already"
    if lines and not dry_run:
        files.add_lines(_IGNORE_FILE, ["# what adw makes at run time", *lines])

    return WrittenFiles(tuple(new), left)


def _is_ignored(app: Home, line: str) -> bool:
    """Say whether git ignores what *line* stands for; of a directory, what is in it."""
    name = f"{line.lstrip('/')}x" if line.endswith("/") else line

    return app.git.is_ignored(name)


# --- telling ---------------------------------------------------------------------------------------------------


def _next(app: Home, found: Findings, around: ProjectFacts, written: WrittenFiles) -> list[str]:
    steps: list[str] = []
    if not around.has_commits:
        steps.append('git commit --allow-empty -m "Begin"    # worktrees need a commit to begin with')
    if found.agent not in found.agents:
        steps.append(f"install {found.agent}, or say where it is with agent.{found.agent}_path in adw.toml")
    if found.repository and not (app.settings.github_token or app.settings.github_app_id):
        steps.append("export ADW_GITHUB_TOKEN=...    # with gh: export ADW_GITHUB_TOKEN=$(gh auth token)")
    if written.new:
        steps.append("git add adw.toml prompts .gitignore    # then commit them")

    return [*steps, "adw doctor", "adw run ISSUE"]


def _data(app: Home, found: Findings, around: ProjectFacts) -> output.Printable:
    return {
        "languages": list(found.project.languages),
        "test": _command_data(found.project.test),
        "lint": _command_data(found.project.lint),
        "setup": [_command_data(command) for command in found.project.setup],
        "default_branch": around.default_branch or None,
        "remote": found.remote if found.remote in around.remotes else None,
        "repository": found.repository or None,
        "agents": list(found.agents),
        "agent": found.agent,
        "token": bool(app.settings.github_token),
    }


def _command_data(command: ProjectCommand | None) -> output.Printable:
    return None if command is None else {"command": command.line, "source": command.source}


def _lines(
    app: Home, found: Findings, around: ProjectFacts, written: WrittenFiles, steps: list[str], *, dry_run: bool
) -> list[str]:
    token = app.settings.origin("github_token") if app.settings.github_token else "not set"
    facts = [
        ("languages", ", ".join(found.project.languages) or "none that is known"),
        ("test", _command_text(found.project.test)),
        ("lint", _command_text(found.project.lint)),
        ("setup", "; ".join(map(_command_text, found.project.setup))),
        ("default branch", around.default_branch or "not known"),
        ("remote", found.remote if found.remote in around.remotes else "none"),
        ("GitHub", found.repository or "no repository on GitHub"),
        ("token", token),
        ("agents", ", ".join(found.agents) or "none installed"),
        ("agent", found.agent),
    ]
    wrote = "would write" if dry_run else "wrote"

    return [
        f"found in {app.settings.home}:",
        *(f"  {line}" for line in output.facts(facts)),
        *(f"{wrote} {name}" for name in written.new),
        *(f"left alone {name}: {why}" for name, why in written.left.items()),
        "next:",
        *(f"  {step}" for step in steps),
    ]


def _command_text(command: ProjectCommand | None) -> str:
    return "no command found" if command is None else f"{command.line} ({command.source})"


# `adw doctor`: the setup of this machine; each line says how it is, what is wrong, and the command that fixes it.


EXIT_PROBLEM = 1
_WIDTHS = (8, 9)  #: of level and area


@click.command()
@click.option("--diagram", is_flag=True, help="Print the states of a workflow and its moves as a Mermaid diagram.")
@output.json_option
def doctor(*, diagram: bool, as_json: bool) -> int:
    """
    Look at all that work stands on, and say what is wrong and what mends it. Nothing is changed.

    Python, git, settings, agents and their log-in, forge and token, webhooks, database, locks, file system, disk,
    ports, clock. The exit code is 1 when there is a problem; warnings do not count.
    """
    if diagram:
        return _show_diagram(as_json=as_json)
    result: list[Finding] = []
    for finding in _findings():
        result.append(finding)
        if not as_json:
            _show(finding)
    problems, warnings = count(result, PROBLEM), count(result, WARNING)
    data: output.Printable = {
        "ok": not problems,
        "problems": problems,
        "warnings": warnings,
        "findings": [finding.to_json() for finding in result],
    }
    output.emit(data, ["", _summary(problems, warnings)], as_json=as_json)

    return EXIT_PROBLEM if problems else main.EXIT_OK


def _findings() -> Iterator[Finding]:
    """Yield what is found; settings that cannot be read are all there is to say then."""
    from adws.doctor.checks import Checkup

    try:
        opened = main.open_home()
    except ConfigError as exc:
        for problem in exc.problems:
            yield Finding(area="settings", level=PROBLEM, what=problem, mend="correct it, then adw doctor again")
        return
    with opened as app:
        yield from Checkup(app).findings()


def _show(finding: Finding) -> None:
    level, area = finding.level.ljust(_WIDTHS[0]), finding.area.ljust(_WIDTHS[1])
    output.emit(None, f"{level} {area} {finding.what}", as_json=False)
    if finding.mend:
        output.emit(None, f"{' ' * (sum(_WIDTHS) + 2)}mend: {finding.mend}", as_json=False)


def _summary(problems: int, warnings: int) -> str:
    if not problems and not warnings:
        return "all is well"
    parts = [
        f"{number} {name}{'s' if number > 1 else ''}"
        for number, name in ((problems, PROBLEM), (warnings, WARNING))
        if number
    ]

    return ", ".join(parts)


def _show_diagram(*, as_json: bool) -> int:
    from adws.adw_modules.reports.charts import mermaid
    from adws.adw_modules.state_machine import StateTransition

    text = mermaid(StateTransition.TRANSITIONS)
    output.emit({"diagram": text}, text.rstrip("\n"), as_json=as_json)

    return main.EXIT_OK
