"""
The `adw.toml` that a repository begins with, and the lines of its `.gitignore`.

Pure: what was found goes in, a text that people read and change comes out. What was not found is left as a comment that
says how to write it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from adws.adw_modules import toml_text
from adws.adw_modules.project_rules import Command, Project

#: Where both state and worktrees are, when the repository has a directory of one of these names itself.
OWN_FOLDER = ".adw"

_HEAD = """\
# Settings of adw for this repository. What does not stand here has its default: `adw config` shows all that is in force
# and where it comes from. Tokens never stand here: they come from the environment, so that they are never committed.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What is known about a repository."""

    project: Project = field(default_factory=Project)
    repository: str = ""  #: owner/name on GitHub
    repository_source: str = ""
    remote: str = "origin"  #: where branches are pushed to
    agent: str = "claude"
    agents: tuple[str, ...] = ()  #: those that are installed
    folders: tuple[str, ...] = ("state", "trees")  #: where adw keeps what it makes, relative to the home


def ignored_lines(found: Findings) -> tuple[str, ...]:
    """Return what `.gitignore` has to say for adw: its directories, and the file with ports that worktrees get."""
    return (*(f"/{name}/" for name in found.folders), ".ports.env")


def settings_text(found: Findings) -> str:
    """Return the text of `adw.toml`."""
    parts = (
        _HEAD,
        *_places(found),
        *_remote(found),
        _github(found),
        _agent(found),
        *_setup(found),
        *_gates(found),
        _LIMITS,
    )

    return "\n".join(parts)


def _places(found: Findings) -> Iterator[str]:
    if found.folders == (OWN_FOLDER,):
        yield (
            "# The repository has a directory state or trees of its own, so adw keeps what it makes elsewhere.\n"
            f'[state]\ndir = "{OWN_FOLDER}/state"\n\n[trees]\ndir = "{OWN_FOLDER}/trees"\n'
        )


def _remote(found: Findings) -> Iterator[str]:
    if found.remote != "origin":
        yield f"# The remote that branches are pushed to.\n[git]\nremote = {toml_text.quoted(found.remote)}\n"


def _github(found: Findings) -> str:
    if not found.repository:
        return (
            "# No repository on GitHub was found, so there are no issues to take up and no pull requests: the work of\n"
            "# `adw run NUMBER --title TITLE --body TEXT` ends on a branch. With GitHub (and ADW_GITHUB_TOKEN set):\n"
            '# [github]\n# repository = "owner/name"\n'
        )

    return (
        f"# Found in: {found.repository_source}. The token comes from ADW_GITHUB_TOKEN (or GITHUB_TOKEN).\n"
        f"[github]\nrepository = {toml_text.quoted(found.repository)}\n"
    )


def _agent(found: Findings) -> str:
    there = f"Installed here: {', '.join(found.agents)}." if found.agents else "No agent was found here: install one."

    return (
        f"# The agent that works on phases. {there} `adw agents` shows what each can do.\n"
        f"[agent]\nname = {toml_text.quoted(found.agent)}\n"
        '# model = "sonnet"        # without it, the agent\'s own choice\n'
        '# permissions = "edit"    # read, edit, all: what it may do without asking\n'
    )


def _setup(found: Findings) -> Iterator[str]:
    commands = found.project.setup
    if not commands:
        yield (
            "# Each workflow works in a fresh git worktree. What has to be run there first, one command a line:\n"
            '# [worktree]\n# setup = "npm ci"\n'
        )
        return
    sources = ", ".join(dict.fromkeys(command.source for command in commands))
    lines = toml_text.quoted("\n".join(command.line for command in commands))
    yield (
        "# Each workflow works in a fresh git worktree. This is run there first, one command a line.\n"
        f"# Found in: {sources}.\n[worktree]\nsetup = {lines}\n"
    )


def _gates(found: Findings) -> Iterator[str]:
    yield _gate("lint", found.project.lint, 'command = ["make", "lint"]')
    yield _gate("test", found.project.test, 'command = ["make", "test"]')


def _gate(phase: str, command: Command | None, example: str) -> str:
    if command is None:
        return (
            f"# No command for {phase} was found. Without one the word of the agent counts. To let a command decide:\n"
            f"# [phases.{phase}]\n# gates = [{{ {example} }}]\n"
        )

    return (
        f"# The agent mends what {phase} finds; then this command decides. Found in: {command.source}.\n"
        f"[phases.{phase}]\ngates = [{{ {_written(command)} }}]\n"
    )


def _written(command: Command) -> str:
    if command.shell:
        return f"shell = {toml_text.quoted(command.shell)}"

    return f"command = {toml_text.listed(command.argv)}"


_LIMITS = """\
# Limits, with their defaults. `adw quota` shows how much of each is used.
# [quota]
# max_cost = 10               # US dollars that one workflow may cost
# max_cost_per_day = 100      # US dollars that all may cost in a day
# min_free_disk = "10 GiB"    # work starts only with as much room where worktrees are
"""
