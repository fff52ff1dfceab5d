"""
Load the settings in force; only this module reads the environment.

Unknown or unreadable values, and variables that contradict each other, are errors that name the variable or the file
and line. All are reported at once, and no value is silently replaced by a default. The command line wins over the
environment, the environment over `adw.toml`, and `adw.toml` over the default. `config.settings` declares the settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adws.adw_modules.errors import ConfigError, PlatformUnsupported
from adws.adw_modules.identifiers import meant
from adws.config import credentials, kinds
from adws.config.settings import (
    BY_NAME,
    GIVEN_VARIABLES,
    IGNORED_VARIABLES,
    RESERVED_PREFIXES,
    SECTIONS,
    SETTINGS,
    Setting,
    Settings,
    wrong_connections,
    wrong_limits,
)
from adws.config.toml_file import SettingsFile

#: The advice at the end of every message about a home that cannot be found.
_HINT = "set ADW_HOME, or use adw --home PATH"


# --- this process ----------------------------------------------------------------------------------------------


def from_environment(overrides: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this process; *overrides* are those of its command line."""
    try:
        cwd = Path.cwd()
    except FileNotFoundError as exc:
        raise ConfigError(f"the current directory does not exist any more: change to another, {_HINT}") from exc

    return load(env=process_environment(), cwd=cwd, overrides=overrides or {})


def is_without_colour() -> bool:
    """Return whether the user wants no colours on a terminal: NO_COLOR is set to any text."""
    return bool(os.environ.get("NO_COLOR"))


def leave_pydantic_plugins_out() -> None:
    """Keep pydantic from searching every distribution for plugins, which takes a sixth of the time of `adw status`."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def process_environment() -> Mapping[str, str]:
    """Return the environment of this process with its secrets; child processes get only the parts they may have."""
    return {**os.environ, **credentials.taken()}


# --- the settings ----------------------------------------------------------------------------------------------


def load(
    *, env: Mapping[str, str], cwd: Path, overrides: Mapping[str, str] | None = None, platform: str = os.name
) -> Settings:
    """Return the settings for a process in *cwd* with this environment; raise ConfigError with all problems."""
    if platform == "nt":
        raise PlatformUnsupported
    problems = list(_wrong_variables(env, cwd))
    given: dict[str, str] = {}
    origins: dict[str, str] = {}
    for setting in SETTINGS:
        if names := _set_names(setting, env):
            given[setting.name], origins[setting.name] = env[names[0]], f"env {names[0]}"
    for name, text in (overrides or {}).items():
        given[name], origins[name] = text, "command line"
    try:
        home, origins["home"] = _home(given.get("home"), origins.get("home", ""), cwd)
        file = SettingsFile.read(home / "adw.toml")
    except ConfigError as exc:
        raise ConfigError(*problems, *exc.problems) from exc
    problems += [*_wrong_keys(file), *wrong_limits(file), *wrong_connections(file)]

    result: dict[str, Any] = {"home": home}
    for setting in SETTINGS[1:]:
        name = setting.name
        if name in given:
            text = given[name]
        elif not setting.is_in_file or not (text := file.text(setting.key)):
            text = setting.default.replace("{state_dir}", str(result.get("state_dir", "")))
            origins[name] = "default"
        try:
            result[name] = setting.parse(text.strip(), home) if text else None
        except ValueError as exc:
            problems.append(_refusal(setting, text, origins.get(name) or file.where(setting.key), exc))
    if problems:
        raise ConfigError(*problems)
    if origins.get("store") == "default" and not result["database_url"].startswith("sqlite:"):
        result["store"], origins["store"] = "database", "default with PostgreSQL"
    ignored = tuple(name for name in IGNORED_VARIABLES if env.get(name))
    settings = Settings(result, file=file, origins=origins, ignored=ignored)
    if wrong := list(_wrong_together(settings)):
        raise ConfigError(*wrong)

    return settings


def _home(given: str | None, origin: str, cwd: Path) -> tuple[Path, str]:
    """Return the given home, which must exist, or else the one found, and its origin."""
    if given is None:
        return find_home(cwd)
    try:
        path: Path = BY_NAME["home"].parse(given.strip(), cwd)
    except ValueError as exc:
        raise ConfigError(_refusal(BY_NAME["home"], given, origin, exc)) from None
    if not path.is_dir():
        raise ConfigError(f"the home {path} ({origin}) is not a directory: create it, or name another")

    return path, origin


def _refusal(setting: Setting, text: str, origin: str, why: ValueError) -> str:
    """Return a sentence with the origin, and with the value unless it is secret."""
    # A URL with a user part may carry a token, in any setting.
    is_hidden = setting.secret or ("://" in text and "@" in text)

    return f"{setting.key} ({origin}){'' if is_hidden else f' is {text!r} but'} {why}"


def _set_names(setting: Setting, env: Mapping[str, str]) -> list[str]:
    """Return the variables that set *setting*; an empty variable counts as not set."""
    return [name for name in (setting.env, *setting.aliases) if env.get(name)]


def _wrong_variables(env: Mapping[str, str], cwd: Path) -> Iterator[str]:
    """Yield a sentence for each variable that is unknown or contradicts another name of its setting."""
    known = {*IGNORED_VARIABLES, *(name for setting in SETTINGS for name in (setting.env, *setting.aliases))}
    for name in sorted(env):
        if (
            name.startswith("ADW_")
            and name not in {*known, *GIVEN_VARIABLES}
            and not name.startswith(RESERVED_PREFIXES)
        ):
            yield f"the variable {name} is not a setting of adw{meant(name, known)}: unset it"
    for setting in SETTINGS:
        first, *others = _set_names(setting, env) or [""]
        for name in others:
            if _meaning(setting, env[name], cwd) != _meaning(setting, env[first], cwd):
                yield f"{first} and {name} set {setting.key} to different values: unset one of them"


def _meaning(setting: Setting, text: str, base: Path) -> object:
    """Return the value of *text*, so that two spellings compare equal, or *text* itself if it is invalid."""
    try:
        return setting.parse(text.strip(), base)
    except ValueError:
        return text


def _wrong_keys(file: SettingsFile) -> Iterator[str]:
    """Yield unknown keys, values of the wrong type, and passwords, which do not belong in a committed file."""
    in_file = [setting for setting in SETTINGS if setting.is_in_file]
    yield from file.unknown({setting.key for setting in in_file}, SECTIONS.keys())
    for setting in in_file:
        if file.value(*setting.key.split(".")) is None:
            continue
        text = file.text(setting.key)
        if not text:
            yield f"{file.where(setting.key)}: {setting.key} must be a text or a number"
        elif setting.secret and kinds.without_password(text) != text:
            yield f"{file.where(setting.key)}: {setting.key} has a password: set {setting.env} instead"


def _wrong_together(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each group of settings that are valid by themselves but not together."""
    last = settings.ports_frontend_start + settings.quota_max_worktrees - 1
    if last > 65535:
        yield (
            f"ports.backend_start is {settings.ports_backend_start} ({settings.origin('ports_backend_start')}): with "
            f"quota.max_worktrees {settings.quota_max_worktrees} the last port would be {last}, above 65535"
        )


# --- the home: the directory that holds adw.toml, state/ and trees/ --------------------------------------------
#
# The home is the main checkout of the repository, even if adw is called inside one of its worktrees. Git's files are
# read directly: starting a git process would double the start-up time of every command.


def find_home(cwd: Path) -> tuple[Path, str]:
    """Return the main checkout of the repository around *cwd*, or else *cwd* itself, and how it was found."""
    dot_git = _dot_git_of(cwd)
    if dot_git is None:
        return cwd, "the current directory, which is in no git repository"
    if not dot_git.is_file():
        return dot_git.parent, "the repository you are in"

    # In a worktree or a submodule .git is a file that points to the git directory.
    origin = "the main checkout of the repository you are in"
    git_dir = dot_git.parent / _pointer(dot_git, prefix="gitdir:")
    if not (git_dir / "commondir").is_file():
        return dot_git.parent, origin  # a submodule, or a checkout with a separate git directory
    common = (git_dir / _pointer(git_dir / "commondir")).resolve()
    if common.name != ".git":
        raise ConfigError(f"{dot_git.parent} is a worktree of {common}, which has no main checkout: {_HINT}")

    return common.parent, origin


def is_in_repository(directory: Path) -> bool:
    """Return whether *directory* is in a checkout."""
    return _dot_git_of(directory) is not None


def _dot_git_of(directory: Path) -> Path | None:
    """Return `.git` of the checkout around *directory*, a directory or a file that points to it, or None."""
    for place in (directory, *directory.parents):
        # Agents' sandboxes leave empty directories named .git behind; a real one has a HEAD.
        dot_git, head = place / ".git", place / ".git" / "HEAD"
        if dot_git.is_file() or head.is_file() or head.is_symlink():
            return dot_git

    return None


def _pointer(path: Path, prefix: str = "") -> str:
    """Return the path written in one of git's one-line files."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {path} to find the home: {_HINT}") from exc
    target = text.removeprefix(prefix).strip()
    if not text.startswith(prefix) or not target:
        raise ConfigError(f"{path} does not say where its git directory is: {_HINT}")

    return target
