"""
Hosts of package registries for the presets `pypi`, `npm`, `debian` and `crates`.

The hosts come from each registry's configured client, so that a mirror works without further settings. The client runs
outside the sandbox, in a directory that no phase can write to: registry settings of a repository do not count.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tomllib
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.process.run import capture
from adws.adw_modules.sandbox.egress import EgressProxy

#: Seconds that a client has to print its configuration.
_SECONDS = 20.0
#: Prints the hosts of pip's default index.
_PIP_DEFAULT = (
    "from pip._internal.models.index import PyPI as i; print(i.simple_url, 'https://' + i.file_storage_domain)"
)
_PIP_INDEX = ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
_PIP_VARIABLES = (*_PIP_INDEX, "PIP_EXTRA_INDEX_URL", "UV_INDEX")

#: Preset -> the person's files with the registry and its credentials.
_FILES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "pypi": (".config/pip/pip.conf", ".pip/pip.conf", ".config/uv/uv.toml"),
        "npm": (".npmrc",),
        "crates": (".cargo/config.toml", ".cargo/config"),
    }
)

_KNOWN: dict[tuple[str, str, str], tuple[str, ...]] = {}


def expanded(entries: Iterable[str], *, env: Mapping[str, str]) -> list[str]:
    """Return *entries* with each preset replaced by its hosts; raise ConfigError if no client reports any."""
    result: list[str] = []
    for entry in entries:
        if entry in PRESETS:
            key = (entry, env.get("PATH", os.defpath), env.get("HOME", ""))
            if key not in _KNOWN:
                _KNOWN[key] = _hosts(entry, env)
            result.extend(_KNOWN[key])
        else:
            result.append(entry)

    return result


def files_of(entries: Iterable[str]) -> list[str]:
    """Return the files, relative to a home directory, that clients of the presets in *entries* need in a sandbox."""
    return [name for entry in entries for name in _FILES.get(entry, ())]


def _hosts(preset: str, env: Mapping[str, str]) -> tuple[str, ...]:
    hosts = []
    for url in PRESETS[preset](env):
        parts = urlsplit(url.removeprefix("sparse+"))
        if parts.hostname and parts.scheme in {"http", "https"}:
            port = parts.port
            hosts.append(f"{parts.hostname}:{port}" if port else parts.hostname)
    if not hosts:
        raise ConfigError(
            f"egress has {preset}, and no client of it says which hosts it uses: "
            "install and configure the client on this machine, or list the hosts"
        )

    return tuple(dict.fromkeys(hosts))


def _say(argv: list[str], env: Mapping[str, str], **more: str) -> str:
    """Return the output of a client, or "" if it is missing or fails."""
    program = shutil.which(argv[0], path=env.get("PATH", os.defpath))
    if program is None:
        return ""
    try:
        answer = capture([program, *argv[1:]], cwd=Path("/"), env={**env, **more}, seconds=_SECONDS)
    except OSError:
        return ""

    return answer[1].decode("utf-8", "replace") if answer is not None and answer[0] == 0 else ""


def _pypi(env: Mapping[str, str]) -> Iterator[str]:
    named = [url for name in _PIP_VARIABLES for url in env.get(name, "").split()]
    is_replaced = any(env.get(name) for name in _PIP_INDEX)
    pip = next(
        (argv for argv in (["pip"], ["pip3"], ["python3", "-m", "pip"]) if _say([*argv, "--version"], env)), None
    )
    for line in _say([*pip, "config", "list"], env).splitlines() if pip is not None else ():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in {"index-url", "extra-index-url", "find-links"}:
            named += [word for item in value.strip("'\"").split("\\n") for word in item.split()]
            is_replaced |= name == "index-url"
    yield from (url.rpartition("=")[2] if "=http" in url else url for url in named)  # uv writes name=url
    for python in () if is_replaced else ("python3", sys.executable):
        if said := _say([python, "-I", "-c", _PIP_DEFAULT], env):
            yield from said.split()
            return


def _npm(env: Mapping[str, str]) -> Iterator[str]:
    try:
        settings = json.loads(_say(["npm", "config", "list", "--json", "--long"], env) or "{}")
    except ValueError:
        settings = {}
    for key, value in settings.items():
        if key == "registry" or key.endswith(":registry"):
            yield str(value)


def _debian(env: Mapping[str, str]) -> Iterator[str]:
    yield from _say(["apt-get", "indextargets", "--format", "$(REPO_URI)"], env).split()


def _crates(env: Mapping[str, str]) -> Iterator[str]:
    folder = Path(env.get("CARGO_HOME") or Path(env.get("HOME", "/")) / ".cargo")
    indexes: list[str] = []
    for name in ("config.toml", "config"):
        try:
            said = tomllib.loads((folder / name).read_text())
        except (OSError, ValueError):
            continue
        for table in ("source", "registries"):
            for one in said.get(table, {}).values():
                indexes += [str(one[key]) for key in ("registry", "index") if key in one]
    if not indexes:
        indexes = [f"https://{host}/" for host in _asked_for(["cargo", "search", "--limit=1", "adw"], env)]
    yield from indexes
    for index in indexes:  # the crates themselves may be at another host
        with contextlib.suppress(OSError, ValueError):
            yield str(json.loads(_fetch(f"{index.removeprefix('sparse+').rstrip('/')}/config.json"))["dl"])


def _fetch(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{url} is no address")
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer:  # noqa: S310 - http and https only
        return bytes(answer.read(65536))


def _asked_for(argv: list[str], env: Mapping[str, str]) -> list[str]:
    """Return the hosts that a client tries to reach, observed by a proxy that denies everything."""
    proxy = EgressProxy(())
    try:
        address = f"http://127.0.0.1:{proxy.port}"
        _say(
            argv,
            env,
            HTTPS_PROXY=address,
            https_proxy=address,
            HTTP_PROXY=address,
            http_proxy=address,
            CARGO_NET_RETRY="0",
        )
    finally:
        proxy.close()

    return [host.removesuffix(":443") for host in proxy.denied]


#: Preset -> the function that yields the URLs its client uses.
PRESETS: Mapping[str, Callable[[Mapping[str, str]], Iterator[str]]] = MappingProxyType(
    {"pypi": _pypi, "npm": _npm, "debian": _debian, "crates": _crates}
)
