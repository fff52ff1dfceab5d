"""
The settings: what may be set, to which values, and what each means.

A setting is one field of `Settings` with its default, kind and description; `adw config`, docs/settings.md and the
checks are derived from these fields. A table of `adw.toml` that holds something else, such as `[workflows.NAME]`, is
an entry of SECTIONS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adws.adw_modules.identifiers import hint
from adws.config import kinds
from adws.config.toml_file import ConfigSection, SettingsFile

if TYPE_CHECKING:
    from adws.adw_modules.queue.model import RunLimits
    from adws.adw_modules.workflow.model import Connection

AGENTS = ("claude", "codex", "gemini", "opencode", "aider")
MODEL_ROLES = ("base", "heavy", "lightweight", "advisor", "spare")
NOTIFY_EVENTS = ("failed", "paused", "approval", "completed", "quota", "breaker", "stuck", "report")
#: Jobs of the schedule, the same as `schedule.jobs.CRON_ENTRIES`.
CRON_JOBS = (
    "notify", "recover", "quota", "breakers", "poll_issues", "poll_comments", "redeliver", "gc", "gc_execute",
    "retention", "report",
)  # fmt: skip
#: How long a process may take to end once it was asked to, before it is killed: test runners and servers that write
#: something at their end need seconds, and nobody wants to wait longer for a stop.
GRACE_SECONDS = 10.0
#: A frontend's port is this much above its backend's, as in ADW: 9100 and 9200.
FRONTEND_OFFSET = 100


class Setting:
    """The declaration of one setting."""

    def __init__(
        self,
        default: str,
        kind: kinds.Kind,
        description: str,
        *,
        key: str = "",
        aliases: tuple[str, ...] = (),
        values: str = "",
        is_secret: bool = False,
        is_in_file: bool = True,
    ) -> None:
        self.default = default  #: as a user would write it; "": not set, and the value is None
        self.parse = kind.parse
        self.help = description
        self.key = key  #: section.key, as users write it; the variable is ADW_SECTION_KEY
        self.aliases = aliases  #: other variables that set it, known from other tools
        self.values = values or kind.values  #: the allowed values, for the reference page
        self.secret = is_secret
        self.is_in_file = is_in_file  #: whether adw.toml may set it; only a variable may set a secret

    def __set_name__(self, owner: type, name: str) -> None:
        """Derive the key from the field's name unless it was given, and the variable from the key."""
        self.name = name  #: attribute of Settings
        self.key = self.key or name.replace("_", ".", 1)
        self.env = f"ADW_{self.key.replace('.', '_').upper()}"


#: Declares a field; its annotation is the type of the value.
setting: Any = Setting


def optional(kind: kinds.Kind, description: str, **options: Any) -> Any:
    """Declare a setting without a default: it is None unless set."""
    return Setting("", kind, description, **options)


def secret(kind: kinds.Kind, description: str, *, aliases: tuple[str, ...] = ()) -> Any:
    """Declare a secret, which only an environment variable may set, because `adw.toml` is committed."""
    return optional(kind, description, aliases=aliases, is_secret=True, is_in_file=False)


class Settings:
    """
    The settings in force.

    Not a pydantic model: building one with so many fields takes longer than everything else a start does with settings,
    and commands that read no workflow would import pydantic just for this.
    """

    # --- places and the database -------------------------------------------------------------------------------

    home: Path = optional(kinds.path, "Directory of adw.toml, state and trees.", key="home", is_in_file=False)
    state_dir: Path = setting("state", kinds.path, "Where documents and database are.")
    trees_dir: Path = setting("trees", kinds.path, "Where git worktrees are made.")
    store: str = setting(
        "files",
        kinds.choice("files", "database"),
        "Workflow documents: JSON files, or rows of the database, which is the default with PostgreSQL; files beside "
        "PostgreSQL are for one machine only.",
        key="state.store",
    )
    database_url: str = setting(
        "sqlite:///{state_dir}/adw.db",
        kinds.database_url,
        "Database for what is shared: locks, leases, requests, events, lists.",
        is_secret=True,
    )
    repository: str | None = optional(
        kinds.repository,
        "Repository on GitHub whose issues are worked on.",
        key="github.repository",
        aliases=("GITHUB_REPO_URL",),
    )

    # --- leases, documents, logs -------------------------------------------------------------------------------

    lease_ttl_seconds: float = setting(
        "30",
        kinds.seconds,
        "A worker that is silent for this long loses its workflow. It renews its lease every third of it, and stops "
        "itself after two thirds without success.",
    )
    log_level: str = setting(
        "INFO", kinds.choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), "Least severe message that is logged."
    )
    log_format: str = setting(
        "auto",
        kinds.choice("auto", "json", "text"),
        "Form of log lines on stderr: auto is text on a terminal, JSON elsewhere.",
    )

    # --- limits of a workflow ----------------------------------------------------------------------------------

    max_attempts: int = setting(
        "5",
        kinds.whole(1),
        "Attempts a phase has in each round. A run fails after as many of its workers died, but not before 5.",
        key="limits.max_attempts",
    )
    gates_base: str = setting(
        "require",
        kinds.choice("require", "compare", "ignore"),
        "What a command gate that fails on the base commit means: require starts no agent, compare counts only new "
        "failures, ignore does not run gates there.",
    )
    default_workflow: str = setting(
        "sdlc",
        kinds.name,
        "Workflow that is run when none is named.",
        key="workflow.default",
    )
    max_minutes: float = setting(
        "720",
        kinds.seconds,
        "Minutes of work of a whole workflow, waiting left out; then it has failed.",
        key="limits.max_minutes",
        values="minutes",
    )

    # --- workers and recovery ----------------------------------------------------------------------------------

    cleanup_command: str | None = optional(
        kinds.shell,
        "Command that frees disk, memory or ports before a phase is retried that ran out of them.",
        key="worker.cleanup_command",
    )
    recovery_mode: str = setting(
        "stale",
        kinds.choice("none", "stale", "all"),
        "How far recovery goes. none: it only says what it would do. stale: runs of dead owners and of expired leases. "
        "all: also runs whose owner is unknown, at once.",
        aliases=("RUN_RECOVERY_MODE",),
    )
    recovery_threshold_seconds: float = setting(
        "300",
        kinds.seconds,
        "Seconds without a change after which mode stale recovers runs whose owner is unknown: it cannot be read, a "
        "claim has none, a stop is unconfirmed.",
        aliases=("RUN_RECOVERY_THRESHOLD",),
    )

    # --- the forge ---------------------------------------------------------------------------------------------

    forge: str = setting(
        "auto",
        kinds.choice("auto", "github", "local", "none", or_else=kinds.plugin("adw.forges")),
        "Where issues and pull requests are. auto: github when a repository and a token or an App are set, else local "
        "when its directory is there, else github when a repository is set, else none.",
        key="forge.kind",
    )
    forge_key: str | None = secret(
        kinds.token,
        "Secret by which adw knows its own pull requests and comments. Set it where machines share a database; else "
        "each home makes its own.",
    )
    github_api_url: str = setting(
        "https://api.github.com",
        kinds.web_url,
        "Address of GitHub's REST API; for GitHub Enterprise Server it ends in /api/v3.",
    )
    github_app_id: str | None = optional(
        kinds.token, "Id of the GitHub App that adw acts as, instead of a token.", values="id"
    )
    github_app_key_file: Path | None = optional(kinds.path, "File with the private key of the GitHub App, in PEM.")
    github_token: str | None = secret(
        kinds.token, "Token for GitHub.", aliases=("GITHUB_PAT", "GH_TOKEN", "GITHUB_TOKEN")
    )
    webhook_secret: tuple[str, ...] | None = secret(
        kinds.secrets,
        "Secret that GitHub signs webhook deliveries with. Two are both accepted, so that it can be replaced.",
        aliases=("GITHUB_WEBHOOK_SECRET",),
    )

    # --- agents ------------------------------------------------------------------------------------------------

    agent_programs: Mapping[str, str] | None = optional(
        kinds.pairs(AGENTS, kinds.program),
        "Programs of agents that are not found under their own name in PATH.",
        values="claude=/opt/claude, ...",
    )
    agent_name: str = setting("claude", kinds.choice(*AGENTS), "The agent that works on phases that name none.")
    agent_permissions: str = setting(
        "edit",
        kinds.choice("read", "edit", "all"),
        "What agents may do without asking: only read, also edit and run commands, or everything there is.",
    )
    agent_model: Mapping[str, str] | None = optional(
        kinds.pairs(MODEL_ROLES, kinds.model, alone=True),
        "The model of agents where nothing else names one; without it, the agent's own choice. Also models for a role: "
        "of workflows with the model set base, heavy or lightweight, of the agent that decides about failed attempts "
        "(advisor), and one that its rules may try a phase with (spare).",
        values="sonnet, heavy=opus, ...",
    )
    agent_env: tuple[str, ...] | None = optional(
        kinds.variables,
        "Names of further environment variables that agents get. They get their own credentials anyway, adw's never.",
    )
    agent_billing: str = setting(
        "auto",
        kinds.choice("auto", "api", "subscription"),
        "How agents are paid: by use (api), by the month (subscription: no budget counts), or as each says itself.",
    )

    # --- the sandbox -------------------------------------------------------------------------------------------

    sandbox_mode: str = setting(
        "auto",
        kinds.choice("auto", "off", "landlock", "bubblewrap"),
        "Box of agents, commands and gates: auto is the strongest one that works on this machine.",
    )
    sandbox_required: bool | None = optional(
        kinds.switch,
        "Whether a phase that cannot have its box fails, or runs without one, with a warning. Without it: fails for "
        "adw serve and what deliveries started.",
    )
    sandbox_user: str | None = optional(
        kinds.account, "Unprivileged user of this machine whom agents, commands and gates run as when adw is root."
    )
    sandbox_egress: tuple[str, ...] | None = optional(
        kinds.texts,
        "Hosts that boxed commands may reach besides the agent's provider: names, globs, HOST:PORT, presets.",
    )
    sandbox_read: tuple[str, ...] | None = optional(kinds.texts, "Further paths that boxed commands may read.")
    sandbox_write: tuple[str, ...] | None = optional(kinds.texts, "Further paths that boxed commands may write.")
    sandbox_command: str | None = optional(
        kinds.shell, "Program of your own that boxes the command behind it, such as a container runner."
    )
    sandbox_memory: int = setting(
        "8 GiB", kinds.size(or_off=True), "Memory that one attempt may use, with all that it starts; then it is killed."
    )

    # --- the advisor -------------------------------------------------------------------------------------------

    advisor_use: str = setting(
        "rules",
        kinds.choice("off", "rules", *AGENTS, or_else=kinds.call),
        "What decides about failed attempts: built-in rules, an agent, or a Python function; off: nothing does.",
    )

    # --- git and worktrees -------------------------------------------------------------------------------------

    git_remote: str = setting("origin", kinds.remote, "Git remote that branches are pushed to.")
    git_author: str | None = optional(
        kinds.person, "Author of the commits; without it, the one that git's own configuration names."
    )
    git_commit_message: str = setting(
        "<type>: <summary> (#<issue>)",
        kinds.commit_message,
        "First line of the commits that adw makes. <type>, <summary>, <issue>, <phase> and <id> are filled in.",
    )
    git_env: tuple[str, ...] | None = optional(
        kinds.variables,
        "Names of further environment variables that adw's git gets, for credential helpers and filters.",
    )
    worktree_enabled: bool = setting(
        "true",
        kinds.switch,
        "Work in a git worktree and on a branch of its own for each workflow, else in place. Outside a git repository "
        "a start is refused unless this is false, or adw run has --in-place.",
    )

    # --- shipping ----------------------------------------------------------------------------------------------

    ship_pull_request: str = setting(
        "draft",
        kinds.choice("draft", "ready", "squash", "merge", "rebase"),
        "What is made of the pull request: a draft, one that is ready for review, or one that is merged at once by "
        "squash, merge or rebase.",
    )
    ship_squash: bool = setting("false", kinds.switch, "Make one commit of the work before it is pushed.")
    ship_plan_file: bool = setting("false", kinds.switch, "Leave the file with the plan in the pull request.")
    ship_labels: tuple[str, ...] | None = optional(kinds.texts, "Labels that pull requests get.")
    ship_allow_paths: tuple[str, ...] | None = optional(
        kinds.texts,
        "Patterns of files that the check before a push lets through, whatever they are: also .github/workflows and "
        "its like, configuration of agents such as CLAUDE.md, and what looks like a secret in them.",
    )
    ship_max_lines: int = setting("20000", kinds.whole(1), "Most lines, added and removed, that one push may change.")

    # --- new worktrees -----------------------------------------------------------------------------------------

    worktree_include: tuple[str, ...] = setting(
        ".env, app/server/.env, .mcp.json, playwright-mcp-config.json",
        kinds.files,
        "Files of the main checkout that new worktrees get too; those that git does not ignore are left out.",
    )
    #: See kinds.commands_in.
    worktree_setup: str | None = optional(
        kinds.command_list,
        "Commands that set a new worktree up, such as npm ci; run one after the other, without a shell.",
    )

    # --- resources and breakers --------------------------------------------------------------------------------

    ports_backend_start: int = setting(
        "9100",
        kinds.whole(1024),
        "First port for backends of workflows, as many as quota.max_worktrees. Those for frontends begin 100 above, or "
        "higher when there are more.",
    )
    quota_min_free_disk: int = setting(
        "10 GiB",
        kinds.size(),
        "Disk that must be free to start work. An attempt that leaves less than a tenth of it is killed.",
    )
    quota_min_free_memory: int = setting("1 GiB", kinds.size(), "Memory that must be free to start work.")
    quota_max_worktrees: int = setting("15", kinds.whole(1), "Worktrees on one machine.")
    quota_max_worktree_size: int = setting(
        "5 GiB",
        kinds.size(or_off=True),
        "Disk that one worktree may take: a workflow whose worktree takes as much pauses.",
    )
    quota_max_cost: float = setting("10", kinds.amount, "What one workflow may cost.")
    quota_max_cost_per_day: float = setting("100", kinds.amount, "What all may cost from midnight UTC.")
    quota_max_runs: int = setting("15", kinds.whole(1), "Workflows that are worked on at once.")

    # --- the web server ----------------------------------------------------------------------------------------

    web_host: str = setting(
        "127.0.0.1",
        kinds.listen_host,
        "Address that adw serve listens at. Anything but loopback needs ADW_WEB_TOKEN and ADW_WEBHOOK_SECRET.",
    )
    web_port: int = setting("8001", kinds.whole(0, 65535), "Port that adw serve listens at; 0 takes any that is free.")
    web_token: tuple[str, ...] | None = secret(
        kinds.tokens,
        "Bearer token of the API, 16 characters or more. Several are all accepted. Without one the API is closed.",
    )
    web_metrics_token: tuple[str, ...] | None = secret(
        kinds.tokens,
        "Token that opens /metrics and nothing else, for Prometheus; ADW_WEB_TOKEN opens it too.",
    )
    web_public_url: str | None = optional(
        kinds.origin,
        "Where people reach the dashboard, when that is not the address it listens at. Requests for pages under other "
        "names are refused; with https cookies are sent over nothing else.",
    )
    web_read_only: bool = setting(
        "false",
        kinds.switch,
        "Whether the dashboard only shows, without buttons. The API is not touched by this.",
    )
    web_workers: int = setting(
        "2", kinds.whole(0, 64), "Workers that adw serve runs beside itself, each with one workflow at a time."
    )

    # --- webhooks ----------------------------------------------------------------------------------------------

    webhook_label: str = setting("adw", kinds.label, "Label that starts a workflow when an issue gets it.")
    webhook_login: str | None = optional(
        kinds.login,
        "Login of adw's own account, not of a person: issues assigned to it start a workflow; what it says is ignored.",
    )
    webhook_senders: tuple[str, ...] | None = optional(
        kinds.texts,
        "Logins that may ask for something; without people among them, everybody with the permission. One with ! in "
        "front may never; programs (NAME[bot]) only when listed.",
    )
    webhook_permission: str = setting(
        "write",
        kinds.choice("read", "triage", "write", "maintain", "admin"),
        "Permission in the repository that a person needs to ask for something.",
    )
    webhook_max_followups: int = setting(
        "0",
        kinds.whole(0),
        "How often a workflow continues because a reviewer requests changes or its checks fail; 0: never.",
    )

    # --- the schedule ------------------------------------------------------------------------------------------

    cron_jobs: tuple[str, ...] = setting(
        "notify, recover, quota, breakers, poll_issues, redeliver, gc, retention, report",
        kinds.choices(*CRON_JOBS),
        "Jobs of the schedule that run by themselves. gc lists orphaned resources, gc_execute removes them; "
        "poll_comments starts open issues without a comment, or whose latest comment is `adw`.",
    )

    # --- notifications -----------------------------------------------------------------------------------------

    #: See kinds.commands_in.
    notify_command: str | None = optional(
        kinds.command,
        "Command for each notification; ADW_NOTIFY_KIND, _TITLE, _TEXT, _ADW_ID, _KEY and _CREATED_AT say what "
        "happened.",
    )
    notify_url: str | None = secret(
        kinds.notify_url,
        "Address that each notification is posted to as JSON.",
    )
    notify_comment: bool = setting(
        "false", kinds.switch, "Whether notifications about a workflow are also comments on its issue."
    )
    notify_events: tuple[str, ...] = setting(
        ", ".join(NOTIFY_EVENTS), kinds.choices(*NOTIFY_EVENTS), "Events that people are notified of."
    )

    # --- retention: 0 is for ever ------------------------------------------------------------------------------

    retention_logs_days: int = setting(
        "90",
        kinds.whole(0, 36500),
        "Days that logs and output of attempts are kept after their workflow has finished; 0: for ever.",
    )
    retention_workflows_days: int = setting(
        "0",
        kinds.whole(0, 36500),
        "Days after which a finished workflow that owns nothing any more is deleted; 0: never.",
    )

    # --- what workers offer, and how long runs wait ------------------------------------------------------------

    worker_host: str | None = optional(
        kinds.machine,
        "Name of this machine, which runs can demand; default: its host name. Machines that share a database need "
        "different ones.",
    )
    worker_tags: tuple[str, ...] | None = optional(
        kinds.tags, "What workers here have to offer, for runs that demand it."
    )

    # --- calls of steps ----------------------------------------------------------------------------------------

    steps_http_allow: tuple[str, ...] | None = optional(
        kinds.hosts, "Hosts that steps may ask over HTTP; `*.example.com` means all below it. Without it, every host."
    )

    # --- where they come from ----------------------------------------------------------------------------------

    file: SettingsFile  #: the home's adw.toml; a missing one sets nothing
    ignored: tuple[str, ...]  #: known variables that are set but have no effect yet

    def __init__(
        self, values: Mapping[str, Any], *, file: SettingsFile, origins: Mapping[str, str], ignored: tuple[str, ...]
    ) -> None:
        """*origins* names the origin of each value; a value without an entry comes from *file*."""
        self.__dict__.update(values, file=file, ignored=ignored, _origins=origins)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: settings do not change while a command runs."""
        raise AttributeError(f"{name} cannot be set: settings do not change")

    def origin(self, name: str) -> str:
        """Return the origin of a setting's value, as text."""
        origins: Mapping[str, str] = self.__dict__["_origins"]

        return origins[name] if name in origins else self.file.where(BY_NAME[name].key)

    def shown(self, name: str) -> str | int | float | None:
        """Return the value of a setting as it may be shown, or None: a secret as `set`, a password as `***`."""
        value = getattr(self, name)
        if value is None:
            return None
        if name == "database_url":
            return kinds.without_password(value)
        if BY_NAME[name].secret:
            return "set"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ", ".join(value) or "none"
        if isinstance(value, dict):
            return ", ".join(f"{name}={text}" if name else text for name, text in value.items())

        return value if isinstance(value, int | float) else str(value)

    def section(self, name: str) -> ConfigSection:
        """Return the table *name* of SECTIONS from `adw.toml`, or an empty one."""
        if name not in SECTIONS:
            raise KeyError(f"{name} is not in SECTIONS of config/settings.py")

        return ConfigSection(name, self.file)

    @property
    def database_file(self) -> Path | None:
        """The SQLite file, which may not exist yet; None for a database server."""
        path = self.database_url.removeprefix("sqlite:///")

        return Path(path) if path != self.database_url else None

    @property
    def lease_renew_seconds(self) -> float:
        """How often a worker renews its lease."""
        return self.lease_ttl_seconds / 3

    @property
    def lease_stop_seconds(self) -> float:
        """How long after the last renewal a worker stops itself: well before another worker may take the workflow."""
        return self.lease_ttl_seconds * 2 / 3

    @property
    def grace_seconds(self) -> float:
        """How long a process may take to end by itself: no longer than an unrenewed lease still lasts."""
        return min(GRACE_SECONDS, self.lease_ttl_seconds / 3)

    @property
    def recover_seconds(self) -> float:
        """How often a worker recovers the runs of dead workers; leases expire after half this time."""
        return self.lease_ttl_seconds * 2

    @property
    def local_forge_dir(self) -> Path:
        """The directory of the local forge: issues and pull requests as files, and a bare git remote."""
        return self.state_dir / "local.forge"

    @property
    def ports_frontend_start(self) -> int:
        """The first port for frontends of workflows, above all ports for backends."""
        return self.ports_backend_start + max(FRONTEND_OFFSET, self.quota_max_worktrees)

    @property
    def is_shared(self) -> bool:
        """Whether several machines can work on the same workflows, because a database server has all their data."""
        return self.database_file is None and self.store == "database"

    @property
    def webhook_allow(self) -> tuple[str, ...]:
        """Logins of the only people who may make requests; empty: everyone with the permission."""
        return tuple(one for one in self.webhook_senders or () if not one.startswith("!") and not one.endswith("[bot]"))

    @property
    def webhook_deny(self) -> tuple[str, ...]:
        """Logins that may make no requests."""
        return tuple(one[1:] for one in self.webhook_senders or () if one.startswith("!"))

    @property
    def webhook_bots(self) -> tuple[str, ...]:
        """Logins of bots that may make requests."""
        return tuple(one for one in self.webhook_senders or () if not one.startswith("!") and one.endswith("[bot]"))

    @property
    def connections(self) -> Mapping[str, Connection]:
        """The databases that sinks of steps save to, by name."""
        from adws.adw_modules.workflow.model import Connection  # noqa: PLC0415 - few starts of adw need it

        tables = self.file.table("connections").items()

        return {name: Connection(name=name, **table) for name, table in tables if isinstance(table, dict)}

    @property
    def run_limits(self) -> RunLimits:
        """The limits of runs that execute at a time."""
        from adws.adw_modules.queue.model import RunLimits  # noqa: PLC0415 - few starts of adw need it

        tables = {scope: self.file.table(f"limits.{scope}") for scope in SCOPES}

        return RunLimits(
            scopes={
                scope: {_label(scope, name): most for name, most in table.items() if isinstance(most, int)}
                for scope, table in tables.items()
                if table
            }
        )

    @property
    def forge_kind(self) -> str:
        """The forge with issues and pull requests: github, local, none, or the name of a plugin."""
        if self.forge != "auto":
            return self.forge
        if self.repository and (self.github_token or self.github_app_id):
            return "github"
        if self.local_forge_dir.is_dir():
            return "local"

        # A repository without a token is an unfinished set-up: the GitHub forge refuses it and names what is missing.
        return "github" if self.repository else "none"

    def secrets(self) -> tuple[str, ...]:
        """Return the secret values, for code that has to keep them out of its output."""
        web = (*(self.webhook_secret or ()), *(self.web_token or ()), *(self.web_metrics_token or ()))
        tokens = (self.github_token, self.forge_key, self.notify_url, *web)

        return (*(token for token in tokens if token), *kinds.passwords(self.database_url))


#: The settings that most homes use; `adw config` shows these unless it gets --all.
COMMON = (
    "home", "state_dir", "store", "database_url", "repository", "github_token", "webhook_secret", "forge",
    "default_workflow", "agent_name", "agent_model", "agent_permissions", "max_attempts", "ship_pull_request",
    "quota_max_cost", "quota_max_cost_per_day", "quota_max_runs", "web_host", "web_port", "web_token",
)  # fmt: skip
SETTINGS: tuple[Setting, ...] = tuple(one for one in vars(Settings).values() if isinstance(one, Setting))
BY_NAME: Mapping[str, Setting] = {one.name: one for one in SETTINGS}

#: Prefixes of variables that are not settings but belong to the test suite.
RESERVED_PREFIXES = ("ADW_TEST_", "ADW_SOAK")
#: Variables that adw sets for the commands of a phase; an adw called by such a command ignores them.
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
#: Variables of ADW set-ups without a meaning here yet; they are no error, and `adw config` shows them as ignored.
IGNORED_VARIABLES = ("ADW_AUTO_MERGE", "ADW_CLEANUP_WORKTREES", "ADW_DEBUG", "CLAUDE_CODE_PATH")

#: A copy of `queue.model.SCOPES` and of its word for all names, because few starts of adw need that module.
SCOPES = ("repository", "workflow", "provider")
EVERY = "*"
#: The keys of `[connections.NAME]` by type, the same as `workflow.model.CONNECTION_TYPES`.
CONNECTION_KEYS: Mapping[str, tuple[str, ...]] = {
    "sqlite": ("type", "path"),
    "postgres": ("type", "url", "url_env", "password_env"),
}

#: Tables of `adw.toml` that are not settings, and what each holds; their users read them with `Settings.section`.
SECTIONS: Mapping[str, str] = {
    "workflows": "Workflows of your own, each a table `[workflows.NAME]`.",
    "phases": "What the phases of built-in workflows run, each a table `[phases.NAME]`.",
    **{
        f"limits.{scope}": f'How many runs of a {scope} are executed at a time: a name and a number; `"*"` is for each '
        "that is not listed."
        for scope in SCOPES
    },
    "connections": "Databases that sinks of steps save to, each a table `[connections.NAME]`, without passwords.",
    "plugins": "What plugins are given, each a table `[plugins.NAME]`: see docs/plugins.md.",
    "prices": "Prices of models, each a table `[prices.MODEL]`: US dollars for a million tokens.",
}

_SECRET = re.compile(r"passw|pwd|secret|token|credential|api_?key", re.IGNORECASE)


# --- [limits.SCOPE] --------------------------------------------------------------------------------------------


def wrong_limits(file: SettingsFile) -> Iterator[str]:
    """Yield a sentence for each invalid limit."""
    for scope in SCOPES:
        seen: set[str] = set()
        for name, most in file.table(f"limits.{scope}").items():
            place = f"{file.path}:{file.line_of('limits', scope, name)}"
            least = int(name == EVERY)  # one name may have 0; 0 for all names would stop all work
            if not isinstance(most, int) or isinstance(most, bool) or most < least:
                yield f"{place}: the limit of {scope} {name!r} must be a whole number, {least} or more"
            elif not name or "|" in name:
                yield f"{place}: {name!r} cannot be the name of a {scope}"
            elif _label(scope, name) in seen:
                yield f"{place}: the {scope} {name!r} has two limits: leave one out"
            seen.add(_label(scope, name))


def _label(scope: str, name: str) -> str:
    """Return *name* as labels of runs spell it: to forges Acme/Widget and acme/widget are the same."""
    return name.casefold() if scope == "repository" else name


# --- [connections.NAME] ----------------------------------------------------------------------------------------
#
# The file is committed, so it holds no password: a connection names the environment variable that has it.


def wrong_connections(file: SettingsFile) -> Iterator[str]:
    """Yield a sentence for each problem of a connection."""
    for name, table in file.table("connections").items():
        for key, why in _wrong_connection(name, table):
            place = file.line_of("connections", name, *([key] if key else []))
            yield f"{file.path}:{place}: [connections.{name}] {why}"


def _wrong_connection(name: str, table: object) -> Iterator[tuple[str, str]]:
    """Yield the key (or "" for the table) and the description of each problem."""
    if not isinstance(table, dict):
        yield "", f"must be a table, such as [connections.{name}]"
        return
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", name):
        yield "", f"{name!r} cannot be the name of a connection: use letters, digits, '-' and '_', a letter first"
    kind = table.get("type")
    if not isinstance(kind, str) or kind not in CONNECTION_KEYS:
        known = ", ".join(CONNECTION_KEYS)
        what = hint(kind, CONNECTION_KEYS) if isinstance(kind, str) else f": say which, one of {known}"
        yield "type", f"has no type that is known{what}"
        return
    wrong_keys = list(_wrong_connection_keys(kind, table))
    yield from wrong_keys
    if wrong_keys:
        return
    if kind == "sqlite":
        if "path" not in table:
            yield "", "has no path: name the file, such as data/results.db"
        elif "\0" in table["path"]:
            yield "path", "path holds a NUL character"
    elif ("url" in table) == ("url_env" in table):
        what = "url, such as postgresql://user@host/database, or url_env, the variable that has it"
        yield "", f"needs {what}; one of them"
    elif "url_env" in table and "password_env" in table:
        yield "password_env", "password_env goes with url; the address in url_env has its password"
    elif "url" in table and (why := _why_no_url(table["url"])):
        yield "url", f"url {why}"


def _wrong_connection_keys(kind: str, table: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if key not in CONNECTION_KEYS[kind]:
            if _SECRET.search(key) and not key.endswith("_env"):
                yield key, f"{key} would be in a file that is committed: name an environment variable in password_env"
            else:
                yield key, f"{key!r} is no key of a connection of the type {kind}{hint(key, CONNECTION_KEYS[kind])}"
        elif not isinstance(value, str) or not value.strip():
            yield key, f"{key} must be a text that is not empty"
        elif key.endswith("_env") and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
            # The value is not shown: it may be the password itself.
            yield key, f"{key} must be the name of an environment variable, not a value"


def _why_no_url(url: str) -> str:
    """Return what is wrong with *url*, without showing it, because it may hold a password."""
    from urllib.parse import parse_qsl, urlsplit  # noqa: PLC0415 - few starts of adw have connections

    try:
        parts = urlsplit(url)
        names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
        is_postgres = parts.scheme in {"postgresql", "postgres"}
        is_address = is_postgres and bool(parts.path.strip("/")) and (parts.port or 1) > 0
    except ValueError:
        return "is no address, such as postgresql://user@host:5432/database"
    if parts.password is not None or any(map(_SECRET.search, names)):
        return "holds a password, and this file is committed: name an environment variable in password_env"

    return "" if is_address else "is no address of a database, such as postgresql://user@host:5432/database"
