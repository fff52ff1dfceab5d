"""`adw init`: look at a repository, and write what adw needs to work on it; nothing that is there is overwritten."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from adws.adw_modules import init_text, repository_name
from adws.adw_modules.project_files import ProjectFiles
from adws.adw_modules.workflow import AGENTS
from adws.cli import init_findings, main, output
from adws.cli.init_findings import Surroundings, Wishes

if TYPE_CHECKING:
    from adws.adw_modules.init_text import Findings
    from adws.adw_modules.project_rules import Command
    from adws.app import App

#: Prompts of the phases that an agent does, and of the small change that a comment asks for.
PROMPTS = ("plan", "build", "lint", "test", "review", "document", "patch")
_IGNORE_FILE = ".gitignore"


class Written(NamedTuple):
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
    only for what it cannot find. What is there already is never overwritten.
    """
    repository_name.normalise(repository)  # raises UsageError when it names none
    wishes = Wishes(test=test, lint=lint, repository=repository, agent=agent or "")
    may_ask = not (yes or as_json or dry_run) and sys.stdin is not None and sys.stdin.isatty()
    with main.open_home() as app:
        found, around = init_findings.look(app, wishes, _asked if may_ask else _unasked)
        written = _write(app, found, dry_run=dry_run)
        next_steps = _next(app, found, around, written)
        data: dict[str, output.Printable] = {
            "home": str(app.settings.home),
            "found": _data(app, found, around),
            "written": list(written.new),
            "left": dict(written.left),
            "dry_run": dry_run,
            "next": next_steps,
        }
        output.emit(data, _lines(app, found, around, written, next_steps, dry_run=dry_run), as_json=as_json)


def _asked(question: str) -> str:
    answer: str = click.prompt(question, default="", show_default=False, err=True)

    return answer.strip()


def _unasked(question: str) -> str:
    del question
    return ""


# --- writing ---------------------------------------------------------------------------------------------------


def _write(app: App, found: Findings, *, dry_run: bool) -> Written:
    """Write what is not there; with *dry_run* only say so."""
    files = ProjectFiles(app.settings.home)
    texts = {"adw.toml": init_text.settings_text(found)}
    texts |= {f"prompts/{name}.md": app.agents.prompts.shipped(name) for name in PROMPTS}
    new: list[str] = []
    left: dict[str, str] = {}
    for name, text in texts.items():
        is_new = not files.has(name) if dry_run else files.write_new(name, text)
        if is_new:
            new.append(name)
        else:
            left[name] = "it is there already"
    lines = [line for line in init_text.ignored_lines(found) if not _is_ignored(app, line)]
    if lines:
        new.append(_IGNORE_FILE)
    else:
        left[_IGNORE_FILE] = "git ignores what adw makes already"
    if lines and not dry_run:
        files.add_lines(_IGNORE_FILE, ["# what adw makes at run time", *lines])

    return Written(tuple(new), left)


def _is_ignored(app: App, line: str) -> bool:
    """Say whether git ignores what *line* stands for; of a directory, what is in it."""
    name = f"{line.lstrip('/')}x" if line.endswith("/") else line

    return app.git_room.repository.is_ignored(name)


# --- telling ---------------------------------------------------------------------------------------------------


def _next(app: App, found: Findings, around: Surroundings, written: Written) -> list[str]:
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


def _data(app: App, found: Findings, around: Surroundings) -> output.Printable:
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


def _command_data(command: Command | None) -> output.Printable:
    return None if command is None else {"command": command.line, "source": command.source}


def _lines(
    app: App, found: Findings, around: Surroundings, written: Written, steps: list[str], *, dry_run: bool
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


def _command_text(command: Command | None) -> str:
    return "no command found" if command is None else f"{command.line} ({command.source})"
