"""`adw init`: inspect a repository and write the files that adw needs; existing files are not overwritten."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

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
    from adws.doctor.project_init import ProjectCommand


#: Prompts of the agent's phases, and of the small change that a comment requests.
PROMPTS = ("plan", "build", "lint", "test", "review", "document", "patch")
_IGNORE_FILE = ".gitignore"


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
    identifiers.normalise(repository)  # raises UsageError if it is not a repository
    may_ask = not (yes or as_json or dry_run) and sys.stdin is not None and sys.stdin.isatty()

    def ask(question: str) -> str:
        """Return the answer of the person at the terminal, or "" if nobody can be asked."""
        return str(click.prompt(question, default="", show_default=False, err=True)).strip() if may_ask else ""

    with main.open_home() as app:
        settings, git = app.settings, app.git
        _ = git.root  # refuses a directory outside a repository before asking anything
        remotes = git.remotes()
        remote = next(iter(remotes)) if len(remotes) == 1 else settings.git_remote
        files = ProjectFiles(settings.home)
        names = files.names()
        source = "the command line"
        if not repository:
            repository, source = _repository(app, remotes.get(remote, ""), remote, ask)
        project = project_init.detect(names, files.texts(project_init.LOOKED_AT))
        runs_tests = _command(test, project.test, ask, "The command that runs the tests; empty when there is none")
        checks_style = _command(lint, project.lint, ask, "The command that checks the style; empty when there is none")
        installed = tuple(
            name for name in agents_base.names() if not app.agent_preflight.missing(agents_base.profile(name))
        )
        # The agent in the settings, else the best supported installed one.
        is_set = settings.origin("agent_name") != "default" or not installed
        found = Findings(
            project=replace(project, test=runs_tests, lint=checks_style),
            repository=repository,
            repository_source=source,
            remote=remote,
            agent=agent or (settings.agent_name if is_set else installed[0]),
            agents=installed,
            folders=_folders(app, names),
        )
        branch = ""  # unknown
        with suppress(GitError):
            branch = git.default_branch_known()
        new, left = _write(app, found, dry_run=dry_run)
        if not dry_run and has_worked(settings.state_dir):
            app.git_commands.record_remote()  # the person who runs this confirms the remote
        next_steps = _next_steps(app, found, has_files=bool(new))
        known, known_remote = found.project, remote if remote in remotes else None
        token = settings.origin("github_token") if settings.github_token else ""
        setup = [_command_data(command) for command in known.setup]
        #: Findings: name and value for programs, name and text for people.
        facts: list[tuple[str, output.Printable, str, str]] = [
            ("languages", known.languages, "languages", ", ".join(known.languages) or "none that is known"),
            ("test", _command_data(known.test), "test", _command_text(known.test)),
            ("lint", _command_data(known.lint), "lint", _command_text(known.lint)),
            ("setup", setup, "setup", "; ".join(map(_command_text, known.setup))),
            ("default_branch", branch or None, "default branch", branch or "not known"),
            ("remote", known_remote, "remote", known_remote or "none"),
            ("repository", found.repository or None, "GitHub", found.repository or "no repository on GitHub"),
            ("token", bool(token), "token", token or "not set"),
            ("agents", found.agents, "agents", ", ".join(found.agents) or "none installed"),
            ("agent", found.agent, "agent", found.agent),
        ]
        data: dict[str, output.Printable] = {
            "home": str(settings.home),
            "found": {name: value for name, value, _, _ in facts},
            "written": new,
            "left": left,
            "dry_run": dry_run,
            "next": next_steps,
        }
        lines = [
            f"found in {settings.home}:",
            *(f"  {line}" for line in output.facts((label, text) for _, _, label, text in facts)),
            *(f"{'would write' if dry_run else 'wrote'} {name}" for name in new),
            *(f"left alone {name}: {why}" for name, why in left.items()),
            "next:",
            *(f"  {step}" for step in next_steps),
        ]
        output.emit(data, lines, as_json=as_json)


def _repository(app: Home, address: str, remote: str, ask: Callable[[str], str]) -> tuple[str, str]:
    """Return the repository on GitHub, and where it was found."""
    if app.settings.repository:
        return app.settings.repository, app.settings.origin("repository")
    if result := identifiers.on_github(address):
        return result, f"the remote {remote}"
    said = ask("The repository on GitHub, as owner/name; empty when there is none")

    return said, "your answer" if said else ""


def _command(
    wished: str, found: ProjectCommand | None, ask: Callable[[str], str], question: str
) -> ProjectCommand | None:
    if wished.strip():
        return project_init.given(wished, "the command line")
    if found is not None:
        return found
    said = ask(question)

    return project_init.given(said, "your answer") if said else None


def _command_data(command: ProjectCommand | None) -> output.Printable:
    return None if command is None else {"command": command.line, "source": command.source}


def _command_text(command: ProjectCommand | None) -> str:
    return "no command found" if command is None else f"{command.line} ({command.source})"


def _folders(app: Home, names: Collection[str]) -> tuple[str, ...]:
    """Return the directories for state and worktrees, avoiding directories of the repository itself."""
    settings = app.settings
    is_ours = has_worked(settings.state_dir) or "adw.toml" in names
    if not is_ours and {"state/", "trees/"} & set(names):
        return (OWN_FOLDER,)
    places = (settings.state_dir, settings.trees_dir)

    return tuple(str(path.relative_to(settings.home)) for path in places if path.is_relative_to(settings.home))


def has_worked(state_dir: Path) -> bool:
    """Return whether adw has already used this state directory."""
    return (state_dir / "adw.db").exists() or any(state_dir.glob("*/adw_state.json"))


def _write(app: Home, found: Findings, *, dry_run: bool) -> tuple[list[str], dict[str, str]]:
    """Write missing files, unless *dry_run*; return the new files, and those left alone with the reason."""
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
    # For a directory, check whether git ignores a file in it.
    tried = {line: f"{line.lstrip('/')}x" if line.endswith("/") else line for line in project_init.ignored_lines(found)}
    lines = [line for line, name in tried.items() if not app.git.is_ignored(name)]
    if lines:
        new.append(_IGNORE_FILE)
    else:
        left[_IGNORE_FILE] = "git ignores what adw makes already"
    if lines and not dry_run:
        files.add_lines(_IGNORE_FILE, ["# what adw makes at run time", *lines])

    return new, left


def _next_steps(app: Home, found: Findings, *, has_files: bool) -> list[str]:
    steps: list[str] = []
    if app.git.commit_of("HEAD") is None:
        steps.append('git commit --allow-empty -m "Begin"    # worktrees need a commit to begin with')
    if found.agent not in found.agents:
        steps.append(f"install {found.agent}, or say where it is with agent.programs in adw.toml")
    if found.repository and not (app.settings.github_token or app.settings.github_app_id):
        steps.append("export ADW_GITHUB_TOKEN=...    # with gh: export ADW_GITHUB_TOKEN=$(gh auth token)")
    if has_files:
        steps.append("git add adw.toml prompts .gitignore    # then commit them")

    return [*steps, "adw doctor", "adw run ISSUE"]


# --- `adw doctor`: each line says what is there, what is wrong, and the command that fixes it ------------------


EXIT_PROBLEM = 1
_WIDTHS = (8, 9)  #: columns of level and area


@click.command()
@click.option("--diagram", is_flag=True, help="Print the states of a workflow and its moves as a Mermaid diagram.")
@output.json_option
def doctor(*, diagram: bool, as_json: bool) -> int:
    """
    Check everything that a workflow needs, and suggest a fix for each problem. Nothing is changed.

    Python, git, settings, agents and their log-in, forge and token, webhooks, database, locks, file system, disk,
    ports, clock. The exit code is 1 when there is a problem; warnings do not count.
    """
    if diagram:
        from adws.adw_modules.reports.charts import mermaid
        from adws.adw_modules.state_machine import StateTransition

        text = mermaid(StateTransition.TRANSITIONS)
        output.emit({"diagram": text}, text.rstrip("\n"), as_json=as_json)
        return main.EXIT_OK
    result: list[Finding] = []
    for finding in _findings():
        result.append(finding)
        if not as_json:
            level, area = finding.level.ljust(_WIDTHS[0]), finding.area.ljust(_WIDTHS[1])
            output.emit(None, f"{level} {area} {finding.what}", as_json=False)
            if finding.fix:
                output.emit(None, f"{' ' * (sum(_WIDTHS) + 2)}fix: {finding.fix}", as_json=False)
    problems, warnings = count(result, PROBLEM), count(result, WARNING)
    data: output.Printable = {
        "ok": not problems,
        "problems": problems,
        "warnings": warnings,
        "findings": [finding.to_json() for finding in result],
    }
    counts = [
        identifiers.counted(number, name) for number, name in ((problems, PROBLEM), (warnings, WARNING)) if number
    ]
    output.emit(data, ["", ", ".join(counts) or "all is well"], as_json=as_json)

    return EXIT_PROBLEM if problems else main.EXIT_OK


def _findings() -> Iterator[Finding]:
    """Yield the findings; if the settings cannot be read, only their problems."""
    from adws.doctor.checks import Checkup

    try:
        opened = main.open_home()
    except ConfigError as exc:
        for problem in exc.problems:
            yield Finding(area="settings", level=PROBLEM, what=problem, fix="correct it, then adw doctor again")
        return
    with opened as app:
        yield from Checkup(app).findings()
