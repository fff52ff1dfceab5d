"""
The settings in force: where each is looked for, and the only place that reads the environment.

What is unknown, unreadable or set twice with different values is an error that names the variable or the file and line,
and all of them are reported at once; no value is ever silently replaced by a default. The command line wins over the
environment, that over `adw.toml`, that over the default. What there is to set is in `config.settings`.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from adws.adw_modules.errors import ConfigError, PlatformUnsupported
from adws.adw_modules.identifiers import meant
from adws.config import settings
from adws.config import values as config_values
from adws.config.settings import (
    BY_NAME,
    GIVEN_VARIABLES,
    IGNORED_VARIABLES,
    RESERVED_PREFIXES,
    SECTIONS,
    SETTINGS,
    Section,
    Setting,
)

if TYPE_CHECKING:
    from adws.adw_modules.queue.model import RunLimits
    from adws.adw_modules.workflow.model import Connection

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


# Find the home: the directory that holds `adw.toml`, `state/` and `trees/`.
#
# It is the main checkout of the repository, also when adw is called from inside one of its worktrees. Git's own files
# are read directly: starting a git process would double the start-up time of every command.


#: What to do about a home that cannot be found, at the end of every message about it.
HINT = "set ADW_HOME, or use adw --home PATH"


class FoundHome(NamedTuple):
    """A home, and how it was found."""

    path: Path
    origin: str


def find_home(cwd: Path) -> FoundHome:
    """Return the main checkout of the repository *cwd* is in, else *cwd* itself."""
    dot_git = _dot_git_of(cwd)
    if dot_git is None:
        return FoundHome(cwd, "the current directory, which is in no git repository")
    if dot_git.is_file():
        return FoundHome(_main_checkout(dot_git), "the main checkout of the repository you are in")

    return FoundHome(dot_git.parent, "the repository you are in")


def is_in_repository(directory: Path) -> bool:
    """Say whether *directory* is in a checkout."""
    return _dot_git_of(directory) is not None


def _dot_git_of(directory: Path) -> Path | None:
    """Return what the checkout that *directory* is in has at `.git`: its git directory, or a file that leads to it."""
    result = (place / ".git" for place in (directory, *directory.parents))

    return next((dot_git for dot_git in result if dot_git.is_file() or _is_git_directory(dot_git)), None)


def _is_git_directory(dot_git: Path) -> bool:
    """Say whether git would take it for one; sandboxes of agents leave empty directories of this name about."""
    head = dot_git / "HEAD"

    return head.is_file() or head.is_symlink()


def _main_checkout(dot_git: Path) -> Path:
    """Return the main checkout that the worktree or submodule with this `.git` file belongs to."""
    git_dir = dot_git.parent / _pointer(dot_git, prefix="gitdir:")
    if not (git_dir / "commondir").is_file():
        return dot_git.parent  # a submodule, or a checkout whose git directory stands elsewhere
    common = (git_dir / _pointer(git_dir / "commondir")).resolve()
    if common.name != ".git":
        raise ConfigError(f"{dot_git.parent} is a worktree of {common}, which has no main checkout: {HINT}")

    return common.parent


def _pointer(path: Path, prefix: str = "") -> str:
    """Return the path written in one of git's one-line files."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {path} to find the home: {HINT}") from exc
    target = text.removeprefix(prefix).strip()
    if not text.startswith(prefix) or not target:
        raise ConfigError(f"{path} does not say where its git directory is: {HINT}")

    return target


# Read `adw.toml`: the settings in it, its other tables, and the line on which each thing stands.
#
# A file that cannot be used whole is refused whole: not a regular file, not UTF-8, not TOML.


_PLACE = r" \(at (?:line (\d+), column (\d+)|end of document)\)"
_SENSITIVE = r"(?i)token|secret|password|_pat\b"


class SettingsFile:
    """A home's `adw.toml`; an absent file is like an empty one."""

    def __init__(self, path: Path, text: str = "") -> None:
        self.path = path
        self._text = text
        self._tables = _parse(path, text) if text else {}

    @classmethod
    def read(cls, path: Path) -> SettingsFile:
        """Return the file at *path*; raise ConfigError when it is there and cannot be read."""
        try:
            # Some editors put a byte order mark in front; it is no part of the text.
            return cls(path, _content(path).decode("utf-8-sig"))
        except FileNotFoundError:
            return cls(path)
        except UnicodeDecodeError as exc:
            line = exc.object[: exc.start].count(b"\n") + 1
            raise ConfigError(f"{path}:{line}: this is not UTF-8 text") from exc
        except OSError as exc:
            raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc

    def has(self, key: str) -> bool:
        """Say whether the file sets *key*, written with dots."""
        return self._at(key.split(".")) is not None

    def text(self, key: str) -> str:
        """Return the value of *key* as a user would write it in a variable; empty if it has no such spelling."""
        value = self._at(key.split("."))
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            return ", ".join(value)

        return str(value) if isinstance(value, str | int | float) else ""

    def where(self, key: str) -> str:
        """Return the place of *key* as `adw.toml:LINE`, with the file's whole path in front."""
        return f"{self.path}:{self.line_of(*key.split('.'))}"

    def unknown(self, settings: Collection[str], sections: Collection[str]) -> Iterator[str]:
        """Yield a sentence for each key that is neither one of *settings* nor in one of *sections*."""
        tables = {key.rpartition(".")[0] for key in settings}
        for path in _leaves(self._tables):
            key = _written(path)
            if key in settings or (key in tables and self._at(path) == {}):
                continue
            section = next((name for name in sections if _begins(path, name)), "")
            if section and self.table(section) is not None:
                continue
            place = f"{self.path}:{self.line_of(*path)}"
            if section:
                yield f"{place}: {section} must be a table, such as [{section}{'' if '.' in section else '.NAME'}]"
            else:
                yield f"{place}: {key} is not a setting of adw{_advice(key, {*settings, *sections})}"

    def section(self, name: str) -> ConfigSection:
        """Return the table *name*, as it is."""
        return ConfigSection(name, self)

    def table(self, name: str) -> Mapping[str, object] | None:
        """Return the table *name*, written with dots, None when the file has none."""
        value = self._at(name.split("."))

        return value if isinstance(value, dict) else None

    def line_of(self, *keys: str | int) -> int | None:
        """Return the line of the value with this path, or of the innermost table around it that is there."""
        for end in range(len(keys), 0, -1):
            if keys[:end] in self._lines:
                return self._lines[keys[:end]]

        return None

    def _at(self, path: Sequence[str]) -> object:
        value: object = self._tables
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None

        return value

    @cached_property
    def _lines(self) -> Mapping[KeyPath, int]:

        return lines_of(self._text)


class ConfigSection:
    """
    A table of `adw.toml` whose content belongs to somebody else than the settings, such as `[workflows.NAME]`.

    The keys given to `line_of` and `where` are those that lead into *data*: the line of
    `section.data["mine"]["phases"][2]["runner"]` is `section.line_of("mine", "phases", 2, "runner")`.
    """

    def __init__(self, name: str, file: SettingsFile) -> None:
        self.name = name
        self._file = file

    @property
    def data(self) -> Mapping[str, object]:
        """The content as it was parsed: dicts, lists, texts, numbers, dates; empty when the file has no such table."""
        return self._file.table(self.name) or {}

    @property
    def path(self) -> Path | None:
        """The file that has this table, None when there is none."""
        return None if self._file.table(self.name) is None else self._file.path

    def line_of(self, *keys: str | int) -> int | None:
        """
        Return the line on which *keys* lead to something; of a multi-line value it is the one with its key.

        What is not there has the line of the innermost table around it, so that an error about a missing key can name
        a place too. None when the file has no such table at all.
        """
        return self._file.line_of(*self.name.split("."), *keys)

    def where(self, *keys: str | int) -> str:
        """Return the place of *keys* for the beginning of an error, as `PATH:LINE`."""
        return f"{self._file.path}:{self.line_of(*keys)}" if self.path else str(self._file.path)


def _content(path: Path) -> bytes:
    """Return the bytes of a regular file; opening a pipe could block for ever, and a device may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ConfigError(f"{path} is not a regular file: put the settings in one, or remove it")

    return path.read_bytes()


def _advice(key: str, known: Collection[str]) -> str:
    if re.search(_SENSITIVE, key):
        return ": secrets are given by environment variables only, so that they are never committed"

    return meant(key, known) or "; docs/settings.md lists them all"


def _parse(path: Path, text: str) -> dict[str, object]:

    try:
        return tomllib.loads(text)
    except RecursionError as exc:
        raise ConfigError(f"{path}: arrays or tables are nested too deeply in it") from exc
    except tomllib.TOMLDecodeError as exc:
        place = re.search(_PLACE, str(exc))
        line = place[1] if place and place[1] else len(text.splitlines())
        raise ConfigError(f"{path}:{line}: this is not TOML: {re.sub(_PLACE, '', str(exc))}") from exc


def _written(path: Sequence[str]) -> str:
    """Return *path* as it stands in the file: a name that is no bare key in quotes."""
    return ".".join(name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else repr(name) for name in path)


def _begins(path: Sequence[str], name: str) -> bool:
    """Say whether *path* leads to the table *name*, written with dots, or into it."""
    names = name.split(".")

    return list(path[: len(names)]) == names


def _leaves(table: Mapping[str, object], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of everything in *table* that is no table; an empty table is a leaf too."""
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name)


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
    gates_base: str
    default_workflow: str
    max_total_attempts: int
    max_minutes: float
    max_outage_hours: int
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
    git_remote_url: str | None
    git_author: str | None
    git_env: tuple[str, ...] | None
    worktree_enabled: bool
    worktree_release: bool
    workspace_publish_work: str
    ship_merge: str
    ship_draft: bool
    ship_labels: tuple[str, ...] | None
    ship_allow_paths: tuple[str, ...] | None
    ship_allow_workflow_files: bool
    ship_allow_agent_files: bool
    ship_max_files: int
    ship_max_lines: int
    worktree_include: str  #: see values.files_in
    worktree_setup: str | None  #: see values.commands_in
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
    notify_command: str | None  #: see values.commands_in
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
        """Return where the value of a setting comes from, as text."""
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
        return settings.read_connections(self.file)

    @property
    def run_limits(self) -> RunLimits:
        """How many runs may go on at a time."""
        return settings.read_limits(self.file)

    @property
    def is_shared(self) -> bool:
        """Whether several machines can work on the same workflows: a server has all that is known about them."""
        return self.database_file is None and self.store == "database"

    @property
    def forge_kind(self) -> str:
        """Where issues and pull requests are: github, local, none, or the name of a plugin."""
        if self.forge != "auto":
            return self.forge
        if self.repository and (self.github_token or self.github_app_id):
            return "github"
        if self.local_forge_dir.is_dir():
            return "local"

        # A repository without a token is a set-up that is not finished: GitHub refuses it with what is missing.
        return "github" if self.repository else "none"

    def secrets(self) -> tuple[str, ...]:
        """Return the secret values themselves, for code that has to keep them out of what it writes."""
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
        raise ConfigError(f"the current directory does not exist any more: change to another, {HINT}") from exc

    return load(env=os.environ, cwd=cwd, overrides=overrides or {})


def is_without_colour() -> bool:
    """Say whether the user wants no colours on a terminal: NO_COLOR is set, to whatever."""
    return bool(os.environ.get("NO_COLOR"))


def leave_pydantic_plugins_out() -> None:
    """Keep pydantic from searching every installed distribution for plugins: a sixth of the time of `adw status`."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


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
    problems += [*_problems_of(file), *settings.wrong_limits(file), *settings.wrong_connections(file)]

    return _build({**dict(_from_file(file)), **given}, home, file, problems, _ignored(env))


def _home(given: Mapping[str, _Given], cwd: Path) -> FoundHome:
    """Return the home that was asked for, which must be there, else the one that is found."""
    if "home" not in given:
        return find_home(cwd)
    path, origin = _parsed(BY_NAME["home"], given["home"], cwd), given["home"].origin()
    if not isinstance(path, Path) or not path.is_dir():
        raise ConfigError(f"the home {path} ({origin}) is not a directory: create it, or name another")

    return FoundHome(path, origin)


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
    home: FoundHome,
    file: SettingsFile,
    problems: list[str],
    ignored: tuple[str, ...],
) -> Settings:
    """Return the settings with every value parsed, defaults included; raise ConfigError with all *problems*."""
    result: dict[str, Any] = {"home": home.path}
    origins: dict[str, Callable[[], str]] = {"home": _always(home.origin)}
    for setting in SETTINGS[1:]:
        default = setting.default.replace("{state_dir}", str(result.get("state_dir", "")))
        one = given.get(setting.name, _Given(default, _always("default")))
        origins[setting.name] = one.origin
        try:
            result[setting.name] = _parsed(setting, one, home.path) if one.text else None
        except ConfigError as exc:
            problems += exc.problems
    if problems:
        raise ConfigError(*problems)
    if "store" not in given and not str(result["database_url"]).startswith("sqlite:"):
        result["store"], origins["store"] = "database", _always("default with PostgreSQL")
    settings = Settings(result, file=file, origins=origins, ignored=ignored)
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
        yield f"ports.count is {count} ({settings.origin('ports_count')}): the last port would be above 65535"
    if abs(starts[0] - starts[1]) < count:
        yield (
            f"ports.backend_start {starts[0]} and ports.frontend_start {starts[1]} are less than ports.count {count} "
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


# Say on which line each key of a TOML text stands.
#
# The standard library's parser keeps no positions. This reads only texts which that parser has accepted, so it needs to
# know where keys and values begin and end, and nothing about what they mean. It runs when somebody asks for a line.


#: The way to a value: names of keys, and the index of an element of an array.
KeyPath: TypeAlias = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[\s,]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
#: The long forms first. A long text may end in quotes of its own: the last three of a row close it.
_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}(?!")' r"|'''.*?'{3,5}(?!')" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
#: A number, a date or a word; a date and its time may be separated by a space.
_PLAIN = re.compile(r"[^,\]}#\n]+")


def lines_of(text: str) -> Mapping[KeyPath, int]:
    """Return the line of every key and element of *text*, which must be TOML; a table has that of its first mention."""
    return _Reader(text).read()


class _Reader:
    """Goes through the text once, from key to key."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._line, self._counted_to = 1, 0
        self._lines: dict[KeyPath, int] = {}
        self._elements: dict[KeyPath, int] = {}  #: array of tables -> how many it has so far

    def read(self) -> Mapping[KeyPath, int]:
        """Return the line of each path."""
        table: KeyPath = ()
        while self._skip_blank() < len(self._text):
            if self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._entry(table)

        return self._lines

    def _header(self) -> KeyPath:
        """Read `[table]` or `[[array of tables]]` and return the table that begins there."""
        width = 2 if self._text.startswith("[[", self._at) else 1
        self._at += width
        keys = self._key()
        path: KeyPath = ()
        for key in keys[:-1]:
            path = self._inside((*path, key))
        path = (*path, keys[-1])
        self._note(path)
        self._at += width
        if width == 1:
            return path
        self._elements[path] = self._elements.get(path, 0) + 1

        return self._inside(path)

    def _inside(self, path: KeyPath) -> KeyPath:
        """Return the table that *path* stands for: of an array of tables, its last element."""
        self._note(path)
        if path in self._elements:
            path = (*path, self._elements[path] - 1)
            self._note(path)

        return path

    def _entry(self, table: KeyPath) -> None:
        """Read `key = value`."""
        path = table
        for key in self._key():
            path = (*path, key)
            self._note(path)
        self._at += len("=")
        self._skip_blank()
        self._value(path)

    def _key(self) -> list[str]:
        """Read a dotted key and return its parts."""
        parts = []
        while True:
            self._skip_blank()
            parts.append(self._key_part())
            self._skip_blank()
            if not self._text.startswith(".", self._at):
                return parts
            self._at += len(".")

    def _key_part(self) -> str:
        if self._text[self._at] not in "\"'":
            return self._take(_BARE_KEY)
        written = self._take(_TEXT)

        # The parser of the standard library knows the escapes.
        return next(iter(tomllib.loads(f"{written} = 0")))

    def _value(self, path: KeyPath) -> None:
        first = self._text[self._at]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            self._take(_TEXT if first in "\"'" else _PLAIN)

    def _array(self, path: KeyPath) -> None:
        self._at += len("[")
        index = 0
        while self._text[self._skip_blank()] != "]":
            element = (*path, index)
            self._note(element)
            self._value(element)
            index += 1
        self._at += len("]")

    def _inline_table(self, path: KeyPath) -> None:
        self._at += len("{")
        while self._text[self._skip_blank()] != "}":
            self._entry(path)
        self._at += len("}")

    def _skip_blank(self) -> int:
        """Go on to what is not space, comma or comment, and return where that is."""
        self._take(_BLANK)

        return self._at

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError(f"line {self._line} of the text is not TOML")
        self._at = match.end()

        return match[0]

    def _note(self, path: KeyPath) -> None:
        """Write down that *path* stands here, unless it was mentioned before."""
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        self._lines.setdefault(path, self._line)


# How values are written in TOML. Pure.


def quoted(text: str) -> str:
    """Return *text* as a TOML string."""
    # JSON escapes what TOML wants escaped, but for one control character; half of a surrogate pair has no spelling.
    whole = text.encode("utf-8", "replace").decode()

    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")


def listed(texts: Iterable[str]) -> str:
    """Return *texts* as a TOML array in one line."""
    return f"[{', '.join(quoted(text) for text in texts)}]"
