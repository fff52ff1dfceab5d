"""
The wiring of the forge: which one the settings mean, and what it needs.

Apart from `app` because only commands that speak to a forge need it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from adws import config
from adws.adw_modules.errors import ConfigError

if TYPE_CHECKING:
    from adws.adw_modules.forge import Forge
    from adws.adw_modules.interfaces import Clock
    from adws.adw_modules.plugins import Plugins
    from adws.adw_modules.process import SystemProcesses

_NONE = (
    "no forge is configured: set github.repository in adw.toml and ADW_GITHUB_TOKEN for GitHub, or "
    'kind = "local" under [forge] in adw.toml for issues and pull requests as files'
)


def open_forge(
    settings: config.Settings,
    *,
    clock: Clock,
    processes: SystemProcesses,
    scrub: Callable[[str], str],
    plugins: Plugins,
    kind: str = "",
) -> Forge:
    """Return the forge of the home, or that of *kind*; raise ConfigError when none is configured, or not wholly."""
    kind = kind or settings.forge_kind
    if kind == "github":
        return _github(settings, clock=clock, scrub=scrub)
    if kind == "local":
        return _local(settings, clock=clock, processes=processes, scrub=scrub)
    if kind == "none":
        raise ConfigError(_NONE)

    return plugins.new_forge(kind)


def key_of(settings: config.Settings, *, clock: Clock) -> bytes:
    """Return the key that markers on the forge are made with."""
    if settings.forge_key:
        return hashlib.sha256(settings.forge_key.encode()).digest()
    from adws.adw_modules import home_key

    return home_key.read_or_make(settings.state_dir / home_key.KEY_NAME, clock=clock)


def _github(settings: config.Settings, *, clock: Clock, scrub: Callable[[str], str]) -> Forge:
    if not settings.repository:
        raise ConfigError("GitHub needs github.repository: set it to owner/name in adw.toml")
    if settings.github_token and settings.github_app_id:
        raise ConfigError("github_token and github_app_id are both set: unset one of them")
    if not settings.github_token and not settings.github_app_id:
        raise ConfigError("GitHub needs a token (ADW_GITHUB_TOKEN), or github.app_id and github.app_key_file")
    from adws.adw_modules.github import GitHubAccess, timeout_for
    from adws.adw_modules.github_polling import PolledGitHub

    access = GitHubAccess(
        token=settings.github_token or "",
        app_id=settings.github_app_id or "",
        private_key=_private_key(settings) if settings.github_app_id else "",
        api_url=settings.github_api_url,
        timeout_seconds=timeout_for(ttl_seconds=settings.lease_ttl_seconds, stop_seconds=settings.lease_stop_seconds),
    )

    return PolledGitHub(settings.repository, access, clock=clock, scrub=scrub)


def _private_key(settings: config.Settings) -> str:
    file = settings.github_app_key_file
    if file is None:
        raise ConfigError("a GitHub App needs github.app_key_file: the file with its private key")
    try:
        return file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read the key of the GitHub App from {file}: {exc}") from exc


def _local(
    settings: config.Settings, *, clock: Clock, processes: SystemProcesses, scrub: Callable[[str], str]
) -> Forge:
    from adws.adw_modules.bare_git import BareRepository
    from adws.adw_modules.local_forge import REMOTE_NAME, LocalForge

    root = settings.local_forge_dir
    git = BareRepository(
        root / REMOTE_NAME,
        clock=clock,
        processes=processes,
        search_path=config.process_environment().get("PATH", ""),
    )
    forge = LocalForge(root, repository=settings.repository or "", git=git, clock=clock, scrub=scrub)
    forge.prepare()

    return forge
