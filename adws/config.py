"""
The settings: one table, and the only place that reads the environment.

`adw config`, the documentation page and every error come from the table. What is unknown, unreadable or set twice with
different values is an error that names the variable or the file and line; no value is ever replaced by a default in
silence. The command line wins over the environment, that over `adw.toml`, that over the default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from adws import config_home, config_values
from adws.adw_modules.errors import ConfigError, PlatformUnsupported
from adws.config_file import SettingsFile

#: Names of variables that are not settings: those of the test suite.
RESERVED_PREFIXES = ("ADW_TEST_", "ADW_SOAK")
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Settings:
    """The settings in force; what each means stands in SETTINGS."""

    home: Path
    state_dir: Path
    trees_dir: Path
    store: str
    database_url: str = field(repr=False)
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
    recovery_mode: str
    recovery_threshold_seconds: float
    github_token: str | None = field(repr=False)
    webhook_secret: str | None = field(repr=False)
    claude_path: str
    git_remote: str
    origins: Mapping[str, Callable[[], str]] = field(repr=False)
    ignored: tuple[str, ...] = ()  #: variables that are set and known, and change nothing yet

    def origin(self, name: str) -> str:
        """Return where the value of a setting comes from, in words."""
        return self.origins[name]()

    def shown(self, name: str) -> str | int | float | None:
        """Return the value of a setting as it may be shown: a secret as `set`, a password in a URL as `***`."""
        value = getattr(self, name)
        if value is None:
            return "not set" if BY_NAME[name].secret else None
        if name == "database_url":
            return config_values.without_password(value)
        if BY_NAME[name].secret:
            return "set"

        return str(value) if isinstance(value, Path) else value

    @property
    def database_file(self) -> Path | None:
        """The SQLite file, whether it is there or not; None for a server."""
        path = self.database_url.removeprefix("sqlite:///")

        return Path(path) if path != self.database_url else None

    def secrets(self) -> tuple[str, ...]:
        """Return the secret values themselves, for those who have to keep them out of what they write."""
        tokens = (self.github_token, self.webhook_secret)

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


def load(
    *, env: Mapping[str, str], cwd: Path, overrides: Mapping[str, str] | None = None, platform: str = os.name
) -> Settings:
    """Return the settings for a process in *cwd* with this environment; raise ConfigError."""
    if platform == "nt":
        raise PlatformUnsupported
    _refuse_unknown_variables(env)
    given = dict(_from_env(env, cwd))
    given |= {name: _Given(text, _always("command line")) for name, text in (overrides or {}).items()}
    home = _home(given, cwd)
    in_file = _from_file(SettingsFile.read(home.path / "adw.toml"))

    ignored = tuple(name for name in IGNORED_VARIABLES if env.get(name))

    return replace(_build({**dict(in_file), **given}, home), ignored=ignored)


def _home(given: Mapping[str, _Given], cwd: Path) -> config_home.Found:
    """Return the home that was asked for, which must be there, else the one that is found."""
    if "home" not in given:
        return config_home.find_home(cwd)
    path, origin = _parsed(BY_NAME["home"], given["home"], cwd), given["home"].origin()
    if not isinstance(path, Path) or not path.is_dir():
        raise ConfigError(f"the home {path} ({origin}) is not a directory: create it, or name another")

    return config_home.Found(path, origin)


def _from_env(env: Mapping[str, str], cwd: Path) -> Iterator[tuple[str, _Given]]:
    """Yield what the environment sets; an empty variable counts as not set."""
    for setting in SETTINGS:
        names = [name for name in (setting.env, *setting.aliases) if env.get(name)]
        if not names:
            continue
        given = [_Given(env[name], _always(f"env {name}")) for name in names]
        parsed = [_parsed(setting, one, cwd) for one in given]
        for name, value in zip(names, parsed, strict=True):
            if value != parsed[0]:
                raise ConfigError(f"{names[0]} and {name} set {setting.name} to different values: unset one of them")
        yield setting.name, given[0]


def _refuse_unknown_variables(env: Mapping[str, str]) -> None:
    known = {name for setting in SETTINGS for name in (setting.env, *setting.aliases)} | {*IGNORED_VARIABLES}
    for name in sorted(env):
        if name.startswith("ADW_") and name not in known and not name.startswith(RESERVED_PREFIXES):
            raise ConfigError(
                f"the variable {name} is not a setting of adw{config_values.nearest(name, known)}: unset it"
            )


def _from_file(file: SettingsFile) -> Iterator[tuple[str, _Given]]:
    """Yield what `adw.toml` sets; it is a file to commit, so a password in it is refused."""
    file.refuse_unknown({setting.key for setting in SETTINGS if setting.key})
    for setting in SETTINGS:
        if not setting.key or not file.has(setting.key):
            continue
        text = file.text(setting.key)
        if setting.secret and config_values.without_password(text) != text:
            raise ConfigError(f"{file.where(setting.key)}: {setting.key} has a password: set {setting.env} instead")
        yield setting.name, _Given(text, partial(file.where, setting.key))


def _always(text: str) -> Callable[[], str]:
    return lambda: text


def _build(given: Mapping[str, _Given], home: config_home.Found) -> Settings:
    """Return the settings with every value parsed, defaults included."""
    found: dict[str, Any] = {"home": home.path}
    origins: dict[str, Callable[[], str]] = {"home": _always(home.origin)}
    for setting in SETTINGS[1:]:
        one = given.get(setting.name)
        default = setting.default.replace("{state_dir}", str(found.get("state_dir", "")))
        text, origins[setting.name] = (one.text, one.origin) if one else (default, _always("default"))
        found[setting.name] = _parsed(setting, _Given(text, origins[setting.name]), home.path) if text else None
    settings = Settings(**found, origins=origins)
    _check_together(settings)

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


def _check_together(settings: Settings) -> None:
    """Refuse lease times that could let two workers believe they own one workflow."""
    names = ("lease_renew_seconds", "lease_stop_seconds", "lease_ttl_seconds")
    for less, more in pairwise(names):
        low, high = getattr(settings, less), getattr(settings, more)
        if low >= high:
            raise ConfigError(
                f"{less} is {low:g} ({settings.origin(less)}) and must be less than {more}, "
                f"which is {high:g} ({settings.origin(more)})"
            )
