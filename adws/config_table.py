"""
The table of settings: what may be set, where, to which values, and what it means.

A setting is one entry here and one field of `Settings` in config.py; a test compares the two. A table of `adw.toml`
that holds something else, such as `[workflows.NAME]`, is one entry of SECTIONS. Everything a user reads about settings
(`adw config`, docs/settings.md, the errors) comes from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from adws import config_values

#: Beginnings of the names of variables that are not settings: those of the test suite.
RESERVED_PREFIXES = ("ADW_TEST_", "ADW_SOAK")
#: Variables that adw gives to the commands of a phase. They say nothing to an adw that such a command calls.
GIVEN_VARIABLES = (
    "ADW_ATTEMPT",
    "ADW_HINTS_FILE",
    "ADW_ID",
    "ADW_ISSUE_FILE",
    "ADW_ISSUE_NUMBER",
    "ADW_PHASE",
    "ADW_PROCESS_TOKEN",
    "ADW_RESULT_FILE",
)
#: Variables of ADW set-ups that have no meaning here yet: they stop nothing, and `adw config` shows them as ignored.
IGNORED_VARIABLES = ("ADW_AUTO_MERGE", "ADW_CLEANUP_WORKTREES", "ADW_DEBUG")


class Setting(NamedTuple):
    """One thing a user may set."""

    name: str  #: attribute of Settings
    default: str  #: as a user would write it; "" means not set
    parse: Callable[[str, Path], object]  #: text and home -> value; ValueError says what it must be
    help: str
    key: str = ""  #: dotted key in adw.toml; "": cannot be set there
    aliases: tuple[str, ...] = ()  #: other variables that users of such tools know
    values: str = ""  #: what may be given, for the documentation
    secret: bool = False

    @property
    def env(self) -> str:
        """Name of the environment variable."""
        return f"ADW_{self.name.upper()}"


class Section(NamedTuple):
    """A table of `adw.toml` that is no list of settings: whoever it belongs to reads it, by `Settings.section`."""

    name: str  #: top-level key in adw.toml
    help: str


_AT_LEAST_ONE = config_values.whole(least=1)
_COUNT = config_values.whole(least=0)

SETTINGS: tuple[Setting, ...] = (
    Setting("home", "", config_values.path, "Directory of adw.toml, state and trees.", values="path"),
    Setting("state_dir", "state", config_values.path, "Where documents and database are.", "state.dir", values="path"),
    Setting("trees_dir", "trees", config_values.path, "Where git worktrees are made.", "trees.dir", values="path"),
    Setting(
        "store",
        "files",
        config_values.choice("files", "database"),
        "Home of the workflow documents: JSON files, or rows of the database.",
        "state.store",
        values="files, database",
    ),
    Setting(
        "database_url",
        "sqlite:///{state_dir}/adw.db",
        config_values.database_url,
        "Database for what is shared: locks, leases, requests, events, lists.",
        "database.url",
        values="sqlite:///PATH, postgresql://USER:PASSWORD@HOST/NAME",
        secret=True,
    ),
    Setting(
        "repository",
        "",
        config_values.repository,
        "Repository on GitHub whose issues are worked on.",
        "github.repository",
        aliases=("GITHUB_REPO_URL",),
        values="owner/name or its URL",
    ),
    Setting(
        "lease_ttl_seconds",
        "30",
        config_values.seconds,
        "A worker that is silent for this long loses its workflow.",
        "lease.ttl_seconds",
        values="seconds",
    ),
    Setting(
        "lease_renew_seconds",
        "10",
        config_values.seconds,
        "How often a worker says that it lives.",
        "lease.renew_seconds",
        values="seconds",
    ),
    Setting(
        "lease_stop_seconds",
        "20",
        config_values.seconds,
        "A worker stops itself when it could not say so for this long.",
        "lease.stop_seconds",
        values="seconds",
    ),
    Setting(
        "projector_interval_seconds",
        "0.2",
        config_values.seconds,
        "How often the database copy of the documents is brought up.",
        "state.projector_interval_seconds",
        values="seconds",
    ),
    Setting(
        "max_document_bytes",
        "16 MiB",
        config_values.size,
        "Largest workflow document that is written or read.",
        "state.max_document_bytes",
        values="bytes, or a number with KiB, MiB or GiB",
    ),
    Setting(
        "log_level",
        "INFO",
        config_values.choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
        "Least severe message that is logged.",
        "log.level",
        values="DEBUG, INFO, WARNING, ERROR, CRITICAL",
    ),
    Setting(
        "log_format",
        "auto",
        config_values.choice("auto", "json", "text"),
        "Form of log lines on stderr: auto is text on a terminal, JSON elsewhere.",
        "log.format",
        values="auto, json, text",
    ),
    Setting(
        "log_max_bytes",
        "10 MiB",
        config_values.size,
        "A log file that reaches this size is rotated.",
        "log.max_bytes",
        values="bytes, or a number with KiB, MiB or GiB",
    ),
    Setting("log_backups", "3", _COUNT, "Rotated log files that are kept.", "log.backups", values="0 or more"),
    Setting(
        "max_attempts",
        "5",
        _AT_LEAST_ONE,
        "Attempts a phase has in each round.",
        "limits.max_attempts",
        values="1 or more",
    ),
    Setting(
        "max_retries",
        "3",
        _COUNT,
        "How often a workflow may leave the failed state.",
        "limits.max_retries",
        values="0 or more",
    ),
    Setting(
        "max_reworks",
        "3",
        _COUNT,
        "How often tests or a review may send a workflow back to building.",
        "limits.max_reworks",
        values="0 or more",
    ),
    Setting(
        "default_workflow",
        "sdlc",
        config_values.name,
        "Workflow that is run when none is named.",
        "workflow.default",
        aliases=("DEFAULT_WORKFLOW",),
        values="a name of adw workflows",
    ),
    Setting(
        "max_total_attempts",
        "40",
        _AT_LEAST_ONE,
        "Attempts of a whole workflow, over all phases; then it has failed.",
        "workflow.max_total_attempts",
        values="1 or more",
    ),
    Setting(
        "max_minutes",
        "720",
        config_values.seconds,
        "Minutes of work of a whole workflow, waiting left out; then it has failed.",
        "workflow.max_minutes",
        values="minutes",
    ),
    Setting(
        "grace_seconds",
        "10",
        config_values.seconds,
        "How long a process has to end by itself after it was asked to, before it is killed.",
        "worker.grace_seconds",
        values="seconds",
    ),
    Setting(
        "max_output_bytes",
        "64 MiB",
        config_values.size,
        "Output of one attempt that is kept; what comes after is left out.",
        "worker.max_output_bytes",
        values="bytes, or a number with KiB, MiB or GiB",
    ),
    Setting(
        "cleanup_command",
        "",
        config_values.shell,
        "Command that frees disk, memory or ports before a phase is tried again that something was short for.",
        "worker.cleanup_command",
        values="one line for the shell",
    ),
    Setting(
        "recover_seconds",
        "60",
        config_values.seconds,
        "How often a worker looks for work whose worker is gone.",
        "worker.recover_seconds",
        values="seconds",
    ),
    Setting(
        "recovery_mode",
        "stale",
        config_values.choice("none", "stale", "all"),
        "Which unfinished workflows a starting worker takes up: none, those without a sign of life, or all whose "
        "owner is not alive.",
        "recovery.mode",
        aliases=("RUN_RECOVERY_MODE",),
        values="none, stale, all",
    ),
    Setting(
        "recovery_threshold_seconds",
        "300",
        config_values.seconds,
        "Age of the last sign of life after which a workflow counts as stale.",
        "recovery.threshold_seconds",
        aliases=("RUN_RECOVERY_THRESHOLD",),
        values="seconds",
    ),
    Setting(
        "github_token",
        "",
        config_values.token,
        "Token for GitHub.",
        aliases=("GITHUB_PAT", "GH_TOKEN", "GITHUB_TOKEN"),
        values="token",
        secret=True,
    ),
    Setting(
        "webhook_secret",
        "",
        config_values.token,
        "Secret that GitHub signs webhook deliveries with.",
        aliases=("GITHUB_WEBHOOK_SECRET",),
        values="token",
        secret=True,
    ),
    Setting(
        "claude_path",
        "claude",
        config_values.program,
        "The Claude Code program.",
        "agent.claude_path",
        aliases=("CLAUDE_CODE_PATH",),
        values="name or path",
    ),
    Setting(
        "git_remote",
        "origin",
        config_values.remote,
        "Git remote that branches are pushed to.",
        "git.remote",
        aliases=("ADW_GIT_REMOTE_NAME",),
        values="name",
    ),
)
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}

SECTIONS: tuple[Section, ...] = (
    Section("workflows", "Workflows of your own, each a table `[workflows.NAME]`."),
    Section("phases", "What the phases of built-in workflows run, each a table `[phases.NAME]`."),
)
