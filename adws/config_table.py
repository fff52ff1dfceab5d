"""
The table of settings: what may be set, where, to which values, and what it means.

A setting is one entry here, or in a part of this table (config_workspace.py, config_web.py, config_webhook.py,
config_cron.py, config_runs.py), and one field of `Settings` in config.py; a test compares the two. A table of
`adw.toml` that holds something else, such as `[workflows.NAME]`, is one entry of SECTIONS. Everything a user reads
about settings (`adw config`, docs/settings.md, the errors) comes from here.
"""

from __future__ import annotations

from collections.abc import Mapping

from adws import config_values
from adws.config_connections import CONNECTION_SECTION
from adws.config_cron import CRON_SETTINGS
from adws.config_retention import RETENTION_SETTINGS
from adws.config_runs import LIMIT_SECTIONS, RUN_SETTINGS
from adws.config_setting import Section, Setting
from adws.config_steps import STEP_SETTINGS
from adws.config_web import WEB_SETTINGS
from adws.config_webhook import WEBHOOK_SETTINGS
from adws.config_workspace import WORKSPACE_SETTINGS

#: Beginnings of the names of variables that are not settings: those of the test suite.
RESERVED_PREFIXES = ("ADW_TEST_", "ADW_SOAK")
#: Variables that adw gives to the commands of a phase. They say nothing to an adw that such a command calls.
GIVEN_VARIABLES = (
    "ADW_ATTEMPT",
    "ADW_BACKEND_PORT",
    "ADW_CHECKPOINT_FILE",
    "ADW_FRONTEND_PORT",
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
        "Home of the workflow documents: JSON files, or rows of the database. Without it, and with PostgreSQL: rows of "
        "the database; files beside PostgreSQL are for one machine only, because no other can read them.",
        "state.store",
        values="files, database",
    ),
    Setting(
        "database_url",
        "sqlite:///{state_dir}/adw.db",
        config_values.database_url,
        "Database for what is shared: locks, leases, requests, events, lists.",
        "database.url",
        values="sqlite:///PATH, postgresql://USER:PASSWORD@HOST/NAME (also as postgresql+psycopg://)",
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
        "How often tests, a review or a conflict with the base may send a workflow back to building.",
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
        "How far recovery goes. none: it only says what it would do. stale: it takes back what has a dead owner or a "
        "lease that is over. all: also what nothing proves anything about, without waiting for the threshold.",
        "recovery.mode",
        aliases=("RUN_RECOVERY_MODE",),
        values="none, stale, all",
    ),
    Setting(
        "recovery_threshold_seconds",
        "300",
        config_values.seconds,
        "Seconds without a change after which mode stale takes back what nothing proves anything about: an owner that "
        "cannot be read, a claim without an owner, a stop that nobody can confirm.",
        "recovery.threshold_seconds",
        aliases=("ADW_RECOVERY_THRESHOLD", "RUN_RECOVERY_THRESHOLD"),
        values="seconds",
    ),
    Setting(
        "recovery_running",
        "resume",
        config_values.choice("resume", "fail"),
        "What becomes of a workflow whose worker was gone in the middle of it: it goes on, or it has failed.",
        "recovery.running",
        values="resume, fail",
    ),
    Setting(
        "recovery_max_losses",
        "5",
        config_values.whole(least=1),
        "How often a worker may vanish with a run; then the run is dead and its workflow has failed.",
        "recovery.max_losses",
        values="a number from 1",
    ),
    Setting(
        "forge",
        "auto",
        config_values.choice_or_plugin("adw.forges", "auto", "github", "local", "none"),
        "Where issues and pull requests are. auto: github when a repository and a token or an App are set, else local "
        "when its directory is there, else none. Other names are those of plugins.",
        "forge.kind",
        values="auto, github, local, none, or the name of a plugin",
    ),
    Setting(
        "local_forge_dir",
        "{state_dir}/local.forge",
        config_values.path,
        "Directory of the local forge: issues and pull requests as files, and a bare git remote.",
        "forge.dir",
        values="path",
    ),
    Setting(
        "forge_key",
        "",
        config_values.token,
        "Secret by which adw knows its own pull requests and comments. Set it where several machines share a "
        "database; else each home makes its own.",
        values="token",
        secret=True,
    ),
    Setting(
        "github_api_url",
        "https://api.github.com",
        config_values.web_url,
        "Address of GitHub's REST API; for GitHub Enterprise Server it ends in /api/v3.",
        "github.api_url",
        values="URL",
    ),
    Setting(
        "github_app_id",
        "",
        config_values.token,
        "Id of the GitHub App that adw acts as, instead of a token.",
        "github.app_id",
        values="id",
    ),
    Setting(
        "github_app_key_file",
        "",
        config_values.path,
        "File with the private key of the GitHub App, in PEM.",
        "github.app_key_file",
        values="path",
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
    *(
        Setting(
            f"{name}_path",
            name,
            config_values.program,
            f"The {title} program.",
            f"agent.{name}_path",
            values="name or path",
        )
        for name, title in (("codex", "Codex"), ("gemini", "Gemini CLI"), ("opencode", "OpenCode"), ("aider", "aider"))
    ),
    Setting(
        "agent_name",
        "claude",
        config_values.choice("claude", "codex", "gemini", "opencode", "aider"),
        "The agent that works on phases that name none.",
        "agent.name",
        values="claude, codex, gemini, opencode, aider",
    ),
    Setting(
        "agent_permissions",
        "edit",
        config_values.choice("read", "edit", "all"),
        "What agents may do without asking: only read, also edit and run commands, or everything there is.",
        "agent.permissions",
        values="read, edit, all",
    ),
    Setting(
        "agent_model",
        "",
        config_values.model,
        "The model of agents where nothing else names one; without it, the agent's own choice.",
        "agent.model",
        values="name",
    ),
    *(
        Setting(
            f"agent_model_{name}",
            "",
            config_values.model,
            f"The model of workflows with the model set {name}; without it, that of the agent for such work.",
            f"agent.model_{name}",
            values="name",
        )
        for name in ("base", "heavy", "lightweight")
    ),
    Setting(
        "agent_env",
        "",
        config_values.variables,
        "Names of further environment variables that agents get. Their own credentials they get anyway, adw's never.",
        "agent.env",
        values="A, B, ...",
    ),
    Setting(
        "agent_max_turns",
        "",
        _AT_LEAST_ONE,
        "Most turns of one attempt, for agents that can limit them; without it, as many as the agent takes.",
        "agent.max_turns",
        values="1 or more",
    ),
    Setting(
        "agent_billing",
        "auto",
        config_values.choice("auto", "api", "subscription"),
        "How agents are paid: by use (api), by the month (subscription: no budget counts), or as each says itself.",
        "agent.billing",
        values="auto, api, subscription",
    ),
    Setting(
        "doctor_enabled",
        "true",
        config_values.switch,
        "Whether a doctor looks at failed attempts: by rules, unless a function or an agent is set.",
        "doctor.enabled",
        values="true, false",
    ),
    Setting(
        "doctor_call",
        "",
        config_values.call,
        "Python function that decides about failed attempts.",
        "doctor.call",
        values="package.module:function",
    ),
    Setting(
        "doctor_agent",
        "",
        config_values.choice("claude", "codex", "gemini", "opencode", "aider"),
        "Agent that decides about failed attempts.",
        "doctor.agent",
        values="claude, codex, gemini, opencode, aider",
    ),
    Setting(
        "doctor_model",
        "",
        config_values.model,
        "Model of the agent that decides about failed attempts; without it, the agent's own choice.",
        "doctor.model",
        values="name of a model",
    ),
    Setting(
        "doctor_models",
        "",
        config_values.models,
        "Further models that the doctor may try a phase with, besides those of the phase itself.",
        "doctor.models",
        values="A, B, ...",
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
    Setting(
        "git_author",
        "",
        config_values.person,
        "Who commits what phases did; without it, whoever git's own configuration names.",
        "git.author",
        values="NAME <ADDRESS>",
    ),
    *WORKSPACE_SETTINGS,
    *WEB_SETTINGS,
    *WEBHOOK_SETTINGS,
    *CRON_SETTINGS,
    *RETENTION_SETTINGS,
    *RUN_SETTINGS,
    *STEP_SETTINGS,
)
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}

SECTIONS: tuple[Section, ...] = (
    Section("workflows", "Workflows of your own, each a table `[workflows.NAME]`."),
    Section("phases", "What the phases of built-in workflows run, each a table `[phases.NAME]`."),
    *LIMIT_SECTIONS,
    CONNECTION_SECTION,
    Section("plugins", "What plugins are given, each a table `[plugins.NAME]`: see docs/plugins.md."),
    Section("prices", "Prices of models, each a table `[prices.MODEL]`: US dollars for a million tokens."),
)
