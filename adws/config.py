"""
The settings in force: where each is looked for, and the only place that reads the environment.

What is unknown, unreadable or set twice with different values is an error that names the variable or the file and line,
and all of them are told at once; no value is ever replaced by a default in silence. The command line wins over the
environment, that over `adw.toml`, that over the default. What there is to set stands in config_table.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from adws import config_connections, config_home, config_runs, config_values
from adws.adw_modules.errors import ConfigError, PlatformUnsupported
from adws.adw_modules.spelling import meant
from adws.config_file import ConfigSection, SettingsFile
from adws.config_setting import Section, Setting
from adws.config_table import (
    BY_NAME,
    GIVEN_VARIABLES,
    IGNORED_VARIABLES,
    RESERVED_PREFIXES,
    SECTIONS,
    SETTINGS,
)

if TYPE_CHECKING:
    from adws.adw_modules.connections import Connection
    from adws.adw_modules.run_limits import RunLimits

__all__ = [
    "BY_NAME",
    "IGNORED_VARIABLES",
    "RESERVED_PREFIXES",
    "SECTIONS",
    "SETTINGS",
    "ConfigSection",
    "Section",
    "Setting",
    "Settings",
    "from_environment",
    "load",
]


class Settings:
    """
    The settings in force; what each means stands in SETTINGS.

    Not a dataclass: every start of a command would pay for the code that is generated, and more with each setting.
    """

    home: Path
    state_dir: Path
    trees_dir: Path
    store: str
    database_url: str
    repository: str | None
    lease_ttl_seconds: float
    lease_renew_seconds: float
    lease_stop_seconds: float
    projector_interval_seconds: float
    max_document_bytes: int
    log_level: str
    log_format: str
    log_max_bytes: int
    log_backups: int
    max_attempts: int
    max_retries: int
    max_reworks: int
    default_workflow: str
    max_total_attempts: int
    max_minutes: float
    grace_seconds: float
    max_output_bytes: int
    cleanup_command: str | None
    recover_seconds: float
    recovery_mode: str
    recovery_threshold_seconds: float
    recovery_running: str
    recovery_max_losses: int
    forge: str
    local_forge_dir: Path
    forge_key: str | None
    github_api_url: str
    github_app_id: str | None
    github_app_key_file: Path | None
    github_token: str | None
    webhook_secret: str | None
    claude_path: str
    codex_path: str
    gemini_path: str
    opencode_path: str
    aider_path: str
    agent_name: str
    agent_permissions: str
    agent_model: str | None
    agent_model_base: str | None
    agent_model_heavy: str | None
    agent_model_lightweight: str | None
    agent_env: tuple[str, ...] | None
    agent_max_turns: int | None
    agent_billing: str
    doctor_enabled: bool
    doctor_call: str | None
    doctor_agent: str | None
    doctor_model: str | None
    doctor_models: tuple[str, ...] | None
    git_remote: str
    git_author: str | None
    worktree_enabled: bool
    workspace_publish_work: str
    ship_merge: str
    ship_draft: bool
    ship_labels: tuple[str, ...] | None
    ship_allow_paths: tuple[str, ...] | None
    ship_allow_workflow_files: bool
    ship_allow_agent_files: bool
    ship_max_files: int
    ship_max_lines: int
    worktree_include: str  #: see config_values.files_in
    worktree_setup: str | None  #: see config_values.commands_in
    ports_backend_start: int
    ports_frontend_start: int
    ports_count: int
    quota_min_free_disk: int
    quota_min_free_memory: int
    quota_max_worktrees: int
    quota_max_worktree_size: int
    quota_max_cost: float
    quota_max_cost_per_day: float
    quota_max_runs: int
    breakers_failure_threshold: int
    breakers_reset_timeout_seconds: float
    breakers_half_open_max_attempts: int
    web_host: str
    web_port: int
    web_token: tuple[str, ...] | None
    web_metrics_token: tuple[str, ...] | None
    web_metrics_open: bool
    web_public_url: str | None
    web_session_seconds: float
    web_read_only: bool
    web_workers: int
    web_header_seconds: float
    web_body_seconds: float
    web_max_body_bytes: int
    web_max_connections: int
    web_shutdown_seconds: float
    webhook_max_body_bytes: int
    webhook_sender_limit: int
    webhook_issue_limit: int
    webhook_secret_next: str | None
    webhook_label: str
    webhook_repositories: tuple[str, ...] | None
    webhook_login: str | None
    webhook_bots: tuple[str, ...] | None
    webhook_permission: str
    webhook_allow: tuple[str, ...] | None
    webhook_deny: tuple[str, ...] | None
    webhook_events: tuple[str, ...]
    webhook_followups: bool
    webhook_max_followups: int
    cron_notify: str  #: "": off, as all entries of the schedule
    cron_recover: str
    cron_quota: str
    cron_breakers: str
    cron_poll_issues: str
    cron_poll_comments: str
    cron_redeliver: str
    cron_gc: str
    cron_retention: str
    cron_report: str
    cron_gc_execute: bool
    cron_stuck_minutes: int
    notify_command: str | None  #: see config_values.commands_in
    notify_url: str | None
    notify_comment: bool
    notify_events: tuple[str, ...]
    notify_timeout_seconds: float
    notify_attempts: int
    retention_events_days: int  #: 0: for ever, as all of these
    retention_logs_days: int
    retention_deliveries_days: int
    retention_workflows_days: int
    worker_host: str | None  #: None: the machine's own name
    worker_tags: tuple[str, ...] | None
    runs_no_match_seconds: float
    runners_forget_seconds: float
    steps_max_result_bytes: int
    steps_http_allow: tuple[str, ...] | None
    steps_lane_seconds: float
    steps_batch: int
    file: SettingsFile  #: the home's adw.toml; one that is not there sets nothing
    origins: Mapping[str, Callable[[], str]]
    ignored: tuple[str, ...]  #: variables that are set and known, and change nothing yet

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        file: SettingsFile,
        origins: Mapping[str, Callable[[], str]],
        ignored: tuple[str, ...] = (),
    ) -> None:
        self.__dict__.update(values, file=file, origins=origins, ignored=ignored)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: what is in force does not change while a command runs."""
        raise AttributeError(f"{name} cannot be set: settings do not change")

    def origin(self, name: str) -> str:
        """Return where the value of a setting comes from, in words."""
        return self.origins[name]()

    def shown(self, name: str) -> str | int | float | None:
        """Return the value of a setting as it may be shown, if it has one: a secret as `set`, a password as `***`."""
        value = getattr(self, name)
        if value is None:
            return None
        if name == "database_url":
            return config_values.without_password(value)
        if BY_NAME[name].secret:
            return "set"

        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ", ".join(value)

        return str(value) if isinstance(value, Path) else value

    def section(self, name: str) -> ConfigSection:
        """Return a table of `adw.toml` that is no list of settings, one of SECTIONS; empty when it is not there."""
        if name not in {section.name for section in SECTIONS}:
            raise KeyError(f"{name} is not in SECTIONS of config_table.py")

        return self.file.section(name)

    @property
    def database_file(self) -> Path | None:
        """The SQLite file, whether it is there or not; None for a server."""
        path = self.database_url.removeprefix("sqlite:///")

        return Path(path) if path != self.database_url else None

    @property
    def connections(self) -> Mapping[str, Connection]:
        """Where sinks of steps save to, by name."""
        return config_connections.read_connections(self.file)

    @property
    def run_limits(self) -> RunLimits:
        """How many runs may go on at a time."""
        return config_runs.read_limits(self.file)

    @property
    def is_shared(self) -> bool:
        """Whether several machines can work on the same workflows: a server has all that is known about them."""
        return self.database_file is None and self.store == "database"

    @property
    def forge_kind(self) -> str:
        """Where issues and pull requests are: github, local or none."""
        if self.forge != "auto":
            return self.forge
        if self.repository and (self.github_token or self.github_app_id):
            return "github"

        return "local" if self.local_forge_dir.is_dir() else "none"

    def secrets(self) -> tuple[str, ...]:
        """Return the secret values themselves, for those who have to keep them out of what they write."""
        webhook = (self.webhook_secret, self.webhook_secret_next)
        web = (*(self.web_token or ()), *(self.web_metrics_token or ()))
        tokens = (self.github_token, *webhook, self.forge_key, self.notify_url, *web)

        return (*(token for token in tokens if token), *config_values.passwords(self.database_url))


class _Given(NamedTuple):
    """A text somebody gave for a setting, and where; *origin* is computed only when asked for."""

    text: str
    origin: Callable[[], str]


def from_environment(overrides: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this process; *overrides* are those of its command line."""
    try:
        cwd = Path.cwd()
    except FileNotFoundError as exc:
        raise ConfigError(
            f"the current directory does not exist any more: change to another, {config_home.HINT}"
        ) from exc

    return load(env=os.environ, cwd=cwd, overrides=overrides or {})


def is_without_colour() -> bool:
    """Say whether the user wants no colours on a terminal: NO_COLOR is set, to whatever."""
    return bool(os.environ.get("NO_COLOR"))


def process_environment() -> Mapping[str, str]:
    """Return the environment of this process, for the processes it starts; they get what they are allowed of it."""
    return dict(os.environ)


def load(
    *, env: Mapping[str, str], cwd: Path, overrides: Mapping[str, str] | None = None, platform: str = os.name
) -> Settings:
    """Return the settings for a process in *cwd* with this environment; raise ConfigError with all that is wrong."""
    if platform == "nt":
        raise PlatformUnsupported
    problems = [*_unknown_variables(env), *_disagreements(env, cwd)]
    given = dict(_from_env(env)) | {
        name: _Given(text, _always("command line")) for name, text in (overrides or {}).items()
    }
    try:
        home = _home(given, cwd)
        file = SettingsFile.read(home.path / "adw.toml")
    except ConfigError as exc:
        raise ConfigError(*problems, *exc.problems) from exc
    problems += [*_problems_of(file), *config_runs.wrong_limits(file), *config_connections.wrong_connections(file)]

    return _build({**dict(_from_file(file)), **given}, home, file, problems, _ignored(env))


def _home(given: Mapping[str, _Given], cwd: Path) -> config_home.Found:
    """Return the home that was asked for, which must be there, else the one that is found."""
    if "home" not in given:
        return config_home.find_home(cwd)
    path, origin = _parsed(BY_NAME["home"], given["home"], cwd), given["home"].origin()
    if not isinstance(path, Path) or not path.is_dir():
        raise ConfigError(f"the home {path} ({origin}) is not a directory: create it, or name another")

    return config_home.Found(path, origin)


# --- the environment -------------------------------------------------------------------------------------------


def _from_env(env: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    """Yield what the environment sets."""
    for setting in SETTINGS:
        for name in _set_names(setting, env)[:1]:
            yield setting.name, _Given(env[name], _always(f"env {name}"))


def _set_names(setting: Setting, env: Mapping[str, str]) -> list[str]:
    """Return the variables that set *setting*; an empty one counts as not set."""
    return [name for name in (setting.env, *setting.aliases) if env.get(name)]


def _unknown_variables(env: Mapping[str, str]) -> Iterator[str]:
    known = {name for setting in SETTINGS for name in (setting.env, *setting.aliases)} | {
        *IGNORED_VARIABLES,
        *GIVEN_VARIABLES,
    }
    for name in sorted(env):
        if name.startswith("ADW_") and name not in known and not name.startswith(RESERVED_PREFIXES):
            yield f"the variable {name} is not a setting of adw{meant(name, known)}: unset it"


def _disagreements(env: Mapping[str, str], cwd: Path) -> Iterator[str]:
    """Yield a sentence for each variable that sets something else than another name of the same setting."""
    for setting in SETTINGS:
        first, *others = _set_names(setting, env) or [""]
        for name in others:
            if _meant(setting, env[name], cwd) != _meant(setting, env[first], cwd):
                yield f"{first} and {name} set {setting.name} to different values: unset one of them"


def _meant(setting: Setting, text: str, base: Path) -> object:
    """Return the value of *text*, or itself when it has none: two spellings of one value are the same."""
    try:
        return setting.parse(text.strip(), base)
    except ValueError:
        return text


def _ignored(env: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in IGNORED_VARIABLES if env.get(name))


# --- the file --------------------------------------------------------------------------------------------------


def _from_file(file: SettingsFile) -> Iterator[tuple[str, _Given]]:
    """Yield what `adw.toml` sets."""
    for setting in SETTINGS:
        if setting.key and (text := file.text(setting.key)):
            yield setting.name, _Given(text, partial(file.where, setting.key))


def _problems_of(file: SettingsFile) -> Iterator[str]:
    """Yield what is wrong with the file whatever its values; it is a file to commit, so a password is refused."""
    yield from file.unknown({setting.key for setting in SETTINGS if setting.key}, {one.name for one in SECTIONS})
    for setting in SETTINGS:
        if not setting.key or not file.has(setting.key):
            continue
        text = file.text(setting.key)
        if not text:
            yield f"{file.where(setting.key)}: {setting.key} must be a text or a number"
        elif setting.secret and config_values.without_password(text) != text:
            yield f"{file.where(setting.key)}: {setting.key} has a password: set {setting.env} instead"


# --- together --------------------------------------------------------------------------------------------------


def _always(text: str) -> Callable[[], str]:
    return lambda: text


def _build(
    given: Mapping[str, _Given],
    home: config_home.Found,
    file: SettingsFile,
    problems: list[str],
    ignored: tuple[str, ...],
) -> Settings:
    """Return the settings with every value parsed, defaults included; raise ConfigError with all *problems*."""
    found: dict[str, Any] = {"home": home.path}
    origins: dict[str, Callable[[], str]] = {"home": _always(home.origin)}
    for setting in SETTINGS[1:]:
        default = setting.default.replace("{state_dir}", str(found.get("state_dir", "")))
        one = given.get(setting.name, _Given(default, _always("default")))
        origins[setting.name] = one.origin
        try:
            found[setting.name] = _parsed(setting, one, home.path) if one.text else None
        except ConfigError as exc:
            problems += exc.problems
    if problems:
        raise ConfigError(*problems)
    if "store" not in given and not str(found["database_url"]).startswith("sqlite:"):
        found["store"], origins["store"] = "database", _always("default with PostgreSQL")
    settings = Settings(found, file=file, origins=origins, ignored=ignored)
    if wrong := list(_wrong_together(settings)):
        raise ConfigError(*wrong)

    return settings


def _parsed(setting: Setting, given: _Given, base: Path) -> object:
    """Return the value that is meant; the error names the place, and the value unless it is a secret."""
    try:
        return setting.parse(given.text.strip(), base)
    except ValueError as exc:
        # A URL with a user part may carry a token, whatever setting it was meant for.
        hidden = setting.secret or ("://" in given.text and "@" in given.text)
        shown = "" if hidden else f" is {given.text!r} but"
        raise ConfigError(f"{setting.name} ({given.origin()}){shown} {exc}") from None


def _wrong_together(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each group of settings that are right one by one and wrong together."""
    yield from _wrong_lease_times(settings)
    yield from _wrong_ports(settings)


def _wrong_ports(settings: Settings) -> Iterator[str]:
    """Yield a sentence for ports that do not exist, or that would be in two ranges."""
    count, starts = settings.ports_count, (settings.ports_backend_start, settings.ports_frontend_start)
    if max(starts) + count - 1 > 65535:
        yield f"ports_count is {count} ({settings.origin('ports_count')}): the last port would be above 65535"
    if abs(starts[0] - starts[1]) < count:
        yield (
            f"ports_backend_start {starts[0]} and ports_frontend_start {starts[1]} are less than ports_count {count} "
            "apart: their ranges would overlap"
        )


def _wrong_lease_times(settings: Settings) -> Iterator[str]:
    """Yield a sentence for lease times that could let two workers believe they own one workflow."""
    names = ("lease_renew_seconds", "lease_stop_seconds", "lease_ttl_seconds")
    for less, more in pairwise(names):
        low, high = getattr(settings, less), getattr(settings, more)
        if low >= high:
            yield (
                f"{less} is {low:g} ({settings.origin(less)}) and must be less than {more}, "
                f"which is {high:g} ({settings.origin(more)})"
            )
