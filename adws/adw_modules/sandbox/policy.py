"""
What a sandboxed command may read, write and connect to.

Pure, except that it checks which paths exist. Every backend enforces the same policy; `probe.PROMISES` lists what some
cannot enforce.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

#: Read-only in every sandbox: system programs and libraries.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/snap", "/gnu/store")
#: Entries of /etc that no sandbox may read: passwords, keys, and who may become root.
ETC_HIDDEN = frozenset(
    {"shadow", "shadow-", "gshadow", "gshadow-", "sudoers", "sudoers.d", "ssh", "krb5.keytab", "security", "adw"}
)
#: Devices that programs expect.
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")
#: Entries of the shared git directory that git writes when it commits in a worktree.
GIT_WRITABLE = ("objects", "logs/refs/heads")
#: Entries of it that decide what runs or which objects count: read-only if the backend can exclude them.
GIT_PROTECTED = ("config", "config.worktree", "hooks", "info", "objects/info", "packed-refs", "shallow")

#: Agent -> its own files in the home directory: login, settings, conversations.
AGENT_HOMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "claude": (".claude", ".claude.json"),
        "codex": (".codex",),
        "gemini": (".gemini",),
        "opencode": (".local/share/opencode", ".local/state/opencode", ".config/opencode", ".cache/opencode"),
        "aider": (".aider", ".aider.conf.yml", ".aider.model.settings.yml"),
    }
)
#: Agent -> the variable that replaces these with another directory.
AGENT_HOME_VARIABLES: Mapping[str, str] = MappingProxyType(
    {"claude": "CLAUDE_CONFIG_DIR", "codex": "CODEX_HOME", "gemini": "GEMINI_CLI_HOME"}
)
#: Agent -> the hosts of its provider.
AGENT_HOSTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "claude": ("*.anthropic.com", "claude.ai", "*.claude.ai", "platform.claude.com"),
        "codex": ("api.openai.com", "auth.openai.com", "chatgpt.com", "*.chatgpt.com"),
        "gemini": ("*.googleapis.com", "accounts.google.com"),
        "opencode": ("opencode.ai", "*.opencode.ai", "models.dev", "*.anthropic.com", "api.openai.com"),
        "aider": ("*.anthropic.com", "api.openai.com", "*.googleapis.com", "openrouter.ai"),
    }
)
#: Writable directories of a sandbox: home, temporary files, results. Their parent is not writable.
SCRATCH = ("home", "tmp", "out")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
#: Cloud metadata addresses that the general checks miss (Azure, AWS over IPv6), and the prefix of IPv4 in IPv6 (NAT64).
_METADATA = frozenset({ipaddress.ip_address("168.63.129.16"), ipaddress.ip_address("fd00:ec2::254")})
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The sandbox rules of one command."""

    cwd: Path
    scratch: Path  #: a directory of this workflow that contains those of SCRATCH
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    protected: tuple[Path, ...] = ()  #: read-only although below a path of *write*, if the backend can do that
    egress: tuple[str, ...] = ()  #: hosts, globs, or host:port
    local_ports: tuple[int, ...] = ()  #: TCP ports of this machine that may be connected to
    bind_ports: tuple[int, ...] = ()  #: TCP ports that may be listened on


@dataclass(frozen=True, kw_only=True, slots=True)
class GitPlaces:
    """The git directories of a worktree."""

    common: Path  #: shared by all worktrees
    own: Path  #: the administrative directory of this worktree
    branch: str = ""  #: "": detached


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """Inputs of a policy besides the command."""

    home: Path  #: the home directory of the person
    env: Mapping[str, str] = field(repr=False)
    read: tuple[str, ...] = ()  #: sandbox.read
    write: tuple[str, ...] = ()  #: sandbox.write
    hidden: tuple[Path, ...] = ()  #: never part of a toolchain: state, worktrees, the main checkout


def build(
    surroundings: Surroundings,
    *,
    cwd: Path,
    scratch: Path,
    program: str = "",
    agent: str = "",
    git: GitPlaces | None = None,
    may_write: bool = True,
    files: Iterable[Path] = (),
    results: Iterable[Path] = (),
    egress: Iterable[str] = (),
    ports: Iterable[int] = (),
) -> Policy:
    """
    Return the policy of a command that runs in *cwd*.

    Without *may_write* the worktree and its git directories are read-only. *files* are additional paths to read,
    *results* additional paths to write; *ports* are the workflow's, which it may listen on and connect to.
    """
    read = [*map(Path, SYSTEM), *_etc(), Path("/proc"), Path("/sys"), *_devices()]
    read += [*_toolchains(surroundings), *_program(program), *_own_paths(surroundings.home, surroundings.read)]
    read += [*files]
    write = [*(scratch / name for name in SCRATCH), *results, *_own_paths(surroundings.home, surroundings.write)]
    write += agent_files(agent, home=surroundings.home, env=surroundings.env)
    protected: list[Path] = []
    read.append(cwd)
    if may_write:
        write.append(cwd)
    if git is not None:
        read += [git.common, git.own]
        protected = [git.common / name for name in GIT_PROTECTED]
    if git is not None and may_write:
        heads = git.common / "refs" / "heads"
        # The lock file of a branch is beside it, so the directory has to be writable.
        branch = [(heads / git.branch).parent] if git.branch else []
        write += [git.own, *(git.common / name for name in GIT_WRITABLE), *branch]
    hosts = [*egress, *(AGENT_HOSTS.get(agent, ())), *(_base_urls(surroundings.env) if agent else ())]
    own_ports = sorted({*ports})

    return Policy(
        cwd=cwd,
        scratch=scratch,
        read=_existing(read),
        write=_existing(write),
        protected=_existing(protected),
        egress=tuple(dict.fromkeys(host.lower() for host in hosts)),
        local_ports=tuple(sorted({*own_ports, *_local_ports(hosts)})),
        bind_ports=tuple(own_ports),
    )


# --- files -----------------------------------------------------------------------------------------------------


def _existing(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the existing paths, each resolved (as rules and mounts need it) and by its own name."""
    both = (one for path in paths if path.exists() for one in (path.resolve(), path.absolute()))

    return tuple(dict.fromkeys(both))


def _etc() -> Iterator[Path]:
    with os.scandir("/etc") as entries:
        yield from (Path(entry.path) for entry in entries if entry.name not in ETC_HIDDEN)


def _devices() -> Iterator[Path]:
    yield from (Path("/dev", name) for name in DEVICES)


def _own_paths(home: Path, texts: Iterable[str]) -> Iterator[Path]:
    """Yield the paths that a person listed, with a leading ~/ expanded to *home*."""
    for text in texts:
        yield home / text[2:] if text.startswith("~/") else Path(text)


def _toolchains(surroundings: Surroundings) -> Iterator[Path]:
    """Yield the directories of PATH and the installation around each `bin`, but never a whole home directory."""
    home = surroundings.home
    too_wide = {home, home / ".local", home / ".cargo", *map(Path, ("/", "/home", "/root", "/var", "/srv"))}
    hidden = [path.resolve() for path in surroundings.hidden]
    for text in (*surroundings.env.get("PATH", os.defpath).split(os.pathsep), f"{sys.prefix}/bin"):
        place = Path(text)
        if not place.is_absolute() or not place.is_dir():
            continue
        yield place
        around = place.parent.resolve()
        holds_hidden = any(path == around or path.is_relative_to(around) for path in hidden)
        if place.name in {"bin", "sbin"} and around not in too_wide and not holds_hidden:
            yield around
    yield from (Path(place) for place in (sys.base_prefix, sys.prefix, *_LINKED_PYTHON, _PACKAGE))
    for variable, usual in (("RUSTUP_HOME", ".rustup"), ("CARGO_HOME", ".cargo/registry"), ("NVM_DIR", ".nvm")):
        yield Path(surroundings.env.get(variable) or home / usual)


#: adw itself: sandboxed programs may use its library, and it is not always installed below the prefix.
_PACKAGE = str(Path(__file__).parents[2])
#: Real location of the standard library and interpreter of a virtual environment.
_LINKED_PYTHON = (str(Path(os.__file__).resolve().parent), str(Path(sys.executable).resolve().parent))


def _program(program: str) -> Iterator[Path]:
    """Yield where a program is installed: its file, its node_modules, or its virtual environment."""
    if not program:
        return
    for path in (Path(program), Path(program).resolve()):
        parts = path.parts
        yield path
        if path.is_symlink():  # the link itself must be readable, not only its target
            yield path.parent
        if "node_modules" in parts:
            yield Path(*parts[: parts.index("node_modules") + 1])
        around = path.parent.parent
        if (around / "pyvenv.cfg").is_file():  # pipx and uv install agents so, with the interpreter elsewhere
            yield around
            yield (around / "bin" / "python").resolve().parent.parent


def agent_files(agent: str, *, home: Path, env: Mapping[str, str]) -> list[Path]:
    """Return the files of *agent* itself, below *home* unless a variable names another directory."""
    elsewhere = env.get(AGENT_HOME_VARIABLES.get(agent, ""))

    return [Path(elsewhere)] if elsewhere else [home / name for name in AGENT_HOMES.get(agent, ())]


# --- network ---------------------------------------------------------------------------------------------------


def split_port(entry: str) -> tuple[str, int | None]:
    """Return host and port of an entry such as `example.com`, `example.com:8080`, `[::1]:80`."""
    if entry.startswith("["):
        host, _, rest = entry[1:].partition("]")
        return host, int(rest[1:]) if rest[1:].isdigit() else None
    host, _, port = entry.rpartition(":")

    return (host, int(port)) if host and ":" not in host and port.isdigit() else (entry, None)


def match(egress: Iterable[str], host: str, port: int) -> str:
    """Return the entry of *egress* that allows *host*, or ""; an entry without a port allows 80 and 443."""
    name = host.lower().rstrip(".")
    for entry in egress:
        pattern, only = split_port(entry)
        if fnmatch.fnmatchcase(name, pattern) and (port == only if only is not None else port in {80, 443}):
            return entry

    return ""


def refusal(entry: str, address: str) -> str:
    """
    Return why the resolved address of an allowed host is refused, or "" if it is allowed.

    Loopback, link-local (cloud metadata), multicast and unspecified addresses need an entry that is the address itself
    (or localhost); private ones an entry that names the host exactly. A glob allows neither.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):  # an IPv4 address in IPv6 form leads to the same host
        translated = ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF) if ip in _NAT64 else None
        ip = ip.ipv4_mapped or ip.sixtofour or translated or ip
    name, _ = split_port(entry)
    is_metadata = ip in _METADATA
    if ip.is_global and not ip.is_multicast and not is_metadata:
        return ""
    if ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast or is_metadata:
        is_named = name == str(ip) or (ip.is_loopback and name in LOOPBACK_NAMES)
        return "" if is_named else f"{ip} is a loopback, link-local or metadata address"

    return "" if not set(name) & set("*?[") else f"{ip} is a private address"


def _base_urls(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the model hosts that the person configured by variables such as ANTHROPIC_BASE_URL."""
    for name, value in env.items():
        if name.endswith("_BASE_URL") and "://" in value:
            parts = urlsplit(value)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            if parts.hostname:
                yield f"{parts.hostname}:{port}"


def _local_ports(hosts: Iterable[str]) -> Iterator[int]:
    for entry in hosts:
        name, port = split_port(entry)
        if name in LOOPBACK_NAMES and port is not None:
            yield port
