"""
Read `[connections.NAME]` of adw.toml: where sinks save to.

A file to commit holds no password: a connection names the environment variable that has it, and one that is written
down is refused. Read and checked when the settings are loaded; apart from config.py because of its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from adws.adw_modules.spelling import hint
from adws.config_setting import Section

if TYPE_CHECKING:
    from adws.adw_modules.connections import Connection
    from adws.config_file import SettingsFile

CONNECTION_SECTION = Section(
    "connections", "Databases that sinks of steps save to, each a table `[connections.NAME]`, without passwords."
)
#: As `connections.CONNECTION_TYPES`, which few starts of adw need -> the keys of each type.
KEYS: Mapping[str, tuple[str, ...]] = {
    "sqlite": ("type", "path"),
    "postgres": ("type", "url", "url_env", "password_env"),
}

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"passw|pwd|secret|token|credential|api_?key", re.IGNORECASE)
_SCHEMES = ("postgresql", "postgres")


def read_connections(file: SettingsFile) -> Mapping[str, Connection]:
    """Return the connections in a file that `wrong_connections` found nothing wrong with."""
    from adws.adw_modules.connections import Connection  # noqa: PLC0415 - few starts of adw need it

    tables = file.table(CONNECTION_SECTION.name) or {}

    return {name: Connection(name=name, **table) for name, table in tables.items() if isinstance(table, dict)}


def wrong_connections(file: SettingsFile) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with a connection."""
    for name, table in (file.table(CONNECTION_SECTION.name) or {}).items():
        for key, why in _wrong(name, table):
            keys = (CONNECTION_SECTION.name, name, key) if key else (CONNECTION_SECTION.name, name)
            yield f"{file.path}:{file.line_of(*keys)}: [connections.{name}] {why}"


def _wrong(name: str, table: object) -> Iterator[tuple[str, str]]:
    """Yield a key, "" for the whole, and what is wrong there."""
    if not isinstance(table, dict):
        yield "", f"must be a table, such as [connections.{name}]"
        return
    if not _NAME.fullmatch(name):
        yield "", f"{name!r} cannot be the name of a connection: use letters, digits, '-' and '_', a letter first"
    kind = table.get("type")
    if not isinstance(kind, str) or kind not in KEYS:
        what = hint(kind, KEYS) if isinstance(kind, str) else f": say which, one of {', '.join(KEYS)}"
        yield "type", f"has no type that is known{what}"
        return
    wrong_keys = [*_wrong_keys(kind, table)]
    yield from wrong_keys
    if not wrong_keys:
        yield from _wrong_sqlite(table) if kind == "sqlite" else _wrong_postgres(table)


def _wrong_keys(kind: str, table: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if key not in KEYS[kind]:
            if _SECRET.search(key) and not key.endswith("_env"):
                yield key, f"{key} stands in a file that is committed: name an environment variable in password_env"
            else:
                yield key, f"{key!r} is no key of a connection of the type {kind}{hint(key, KEYS[kind])}"
        elif not isinstance(value, str) or not value.strip():
            yield key, f"{key} must be a text that is not empty"
        elif key.endswith("_env") and not _VARIABLE.fullmatch(value):
            # Not shown: somebody may have written the password itself.
            yield key, f"{key} must be the name of an environment variable, not a value"


def _wrong_sqlite(table: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if "path" not in table:
        yield "", "has no path: name the file, such as data/results.db"
    elif "\0" in table["path"]:
        yield "path", "path holds a NUL character"


def _wrong_postgres(table: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if ("url" in table) == ("url_env" in table):
        yield (
            "",
            "needs url, such as postgresql://user@host/database, or url_env, the variable that has it; one of them",
        )
        return
    if "url_env" in table and "password_env" in table:
        yield "password_env", "password_env goes with url; the address in url_env has its password"
    if "url" in table and (why := _why_no_url(table["url"])):
        yield "url", f"url {why}"


def _why_no_url(url: str) -> str:
    """Return what is wrong with *url*, which is not shown: it may hold a password."""
    from urllib.parse import parse_qsl, urlsplit  # noqa: PLC0415 - few starts of adw have connections

    try:
        parts = urlsplit(url)
        names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
        is_address = parts.scheme in _SCHEMES and bool(parts.path.strip("/")) and (parts.port or 1) > 0
    except ValueError:
        return "is no address, such as postgresql://user@host:5432/database"
    if parts.password is not None or any(map(_SECRET.search, names)):
        return "holds a password, and this file is committed: name an environment variable in password_env"
    if not is_address:
        return "is no address of a database, such as postgresql://user@host:5432/database"

    return ""
