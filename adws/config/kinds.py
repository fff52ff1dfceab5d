"""
The kinds of values of settings: what may be written, and how the text is parsed.

A parser takes the user's text and the home, and raises ValueError with the end of a sentence: "must be ...". It never
repeats the text, which may be a secret; the caller decides what may be shown.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from adws.adw_modules.errors import UsageError

Parser: TypeAlias = Callable[[str, Path], Any]

#: Everything between the first colon of the user part and the last @: a password may hold any character.
_USER_PART = r"^([^:/]+://[^:/?#@]*):(.*)@"
_URL_PARAMETER = r"(?i)([?&](?:password|passwd|sslpassword)=)([^&#]*)"

#: The minimum length of a token that the web server accepts.
SHORTEST_TOKEN = 16


class Kind(NamedTuple):
    """A kind of value."""

    values: str  #: what may be written, for the reference page
    parse: Parser


def kind(values: str) -> Callable[[Parser], Kind]:
    """Return a decorator that turns a parser into a kind described by *values*."""
    return lambda parse: Kind(values, parse)


def checked(is_allowed: Callable[[str], object], must_be: str, values: str) -> Kind:
    """Return the kind of a text that *is_allowed* accepts and that is kept unchanged."""

    def parse(text: str, _home: Path) -> str:
        if not is_allowed(text):
            raise ValueError(f"must be {must_be}")
        return text

    return Kind(values, parse)


def matching(pattern: str, must_be: str, values: str) -> Kind:
    """Return the kind of a text that matches *pattern*, which is compiled on first use."""
    return checked(lambda text: re.fullmatch(pattern, text), must_be, values)


def several(one: Kind, values: str) -> Kind:
    """Return the kind of a list of *one*, separated by commas."""
    return Kind(values, lambda text, home: tuple(one.parse(part.strip(), home) for part in text.split(",")))


# --- words -----------------------------------------------------------------------------------------------------


def choice(*allowed: str, or_else: Kind | None = None) -> Kind:
    """Return the kind of one word of a list, in any case; other texts are parsed by *or_else*."""
    spelling = {word.casefold(): word for word in allowed}
    values = ", ".join((*allowed, *([f"or {or_else.values}"] if or_else else [])))

    def parse(text: str, home: Path) -> str:
        if text.casefold() in spelling:
            return spelling[text.casefold()]
        if or_else is not None:
            with contextlib.suppress(ValueError):
                return str(or_else.parse(text, home))
        raise ValueError(f"must be one of {values}")

    return Kind(values, parse)


def choices(*allowed: str) -> Kind:
    """Return the kind of words of a list, separated by commas; `none` is the empty list."""
    words = several(choice(*allowed), "")

    def parse(text: str, home: Path) -> tuple[str, ...]:
        if text.casefold() == "none":
            return ()
        try:
            return tuple(words.parse(text, home))
        except ValueError:
            raise ValueError(f"must be words of {', '.join(allowed)}, separated by commas, or none") from None

    return Kind(f"{', '.join(allowed)}, or none", parse)


def pairs(names: tuple[str, ...], one: Kind, *, alone: bool = False) -> Kind:
    """
    Return the kind of `name=value, ...`, with a name of *names* and a value of the kind *one*.

    With *alone* a value may also be written without a name; its name is then "".
    """

    def parse(text: str, home: Path) -> dict[str, Any]:
        result = {}
        for part in text.split(","):
            name, separator, value = part.partition("=")
            if alone and not separator:
                name, value = "", part
            elif not separator or name.strip() not in names:
                raise ValueError(f"must be NAME=VALUE, separated by commas, where NAME is one of {', '.join(names)}")
            result[name.strip()] = one.parse(value.strip(), home)
        return result

    return Kind("NAME=VALUE, ...", parse)


@kind("true, false")
def switch(text: str, _home: Path) -> bool:
    """Return the boolean that *text* spells."""
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.casefold() not in words:
        raise ValueError("must be true or false")

    return words[text.casefold()]


# --- numbers ---------------------------------------------------------------------------------------------------


def whole(least: int, most: int | None = None) -> Kind:
    """Return the kind of a whole number within bounds."""

    def parse(text: str, _home: Path) -> int:
        if not _is_whole(text) or int(text) < least or (most is not None and int(text) > most):
            raise ValueError(f"must be a whole number{f', {least} or more' if most is None else f' from {values}'}")
        return int(text)

    values = f"{least} or more" if most is None else f"{least} to {most}"

    return Kind(values, parse)


def number(is_allowed: Callable[[float], bool], must_be: str, values: str) -> Kind:
    """Return the kind of a number that *is_allowed* accepts; it gets nan for a text that is not a number."""

    def parse(text: str, _home: Path) -> float:
        try:
            result = float(text)
        except ValueError:
            result = math.nan
        if not is_allowed(result):
            raise ValueError(f"must be a number of {must_be}")
        return result

    return Kind(values, parse)


seconds = number(lambda value: math.isfinite(value) and value > 0, "seconds above 0", "seconds")
amount = number(lambda value: math.isfinite(value) and value >= 0, "US dollars, 0 or more", "US dollars")


def size(*, or_off: bool = False) -> Kind:
    """Return the kind of a number of bytes, written plainly or with KiB, MiB or GiB; with *or_off* 0 is `off`."""
    units = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}

    def parse(text: str, _home: Path) -> int:
        if or_off and text.casefold() == "off":
            return 0
        digits = text.rstrip("BbIiKkMmGg ")
        unit = units.get(text[len(digits) :].strip().casefold())
        if unit is None or not _is_whole(digits) or int(digits) == 0:
            off = ", or off" if or_off else ""
            raise ValueError(f"must be a number of bytes above 0, or a number with KiB, MiB or GiB{off}")
        return int(digits) * unit

    return Kind("size or off" if or_off else "size", parse)


def _is_whole(text: str) -> bool:
    """Return whether *text* consists of at most 15 ASCII digits."""
    return text.isascii() and text.isdigit() and len(text) <= 15


# --- places ----------------------------------------------------------------------------------------------------


@kind("path")
def path(text: str, home: Path) -> Path:
    """Return an absolute path; a relative one starts at the adw home, and `~` is the user's directory."""
    try:
        expanded = Path(text).expanduser()
    except RuntimeError as exc:
        raise ValueError("must be a path whose ~ leads to a directory that is known") from exc
    if "\0" in text:
        raise ValueError("must be a path without a null character")

    return (home / expanded).resolve()


@kind("paths, separated by commas, or none")
def files(text: str, _home: Path) -> tuple[str, ...]:
    """Return relative paths that stay inside the directory they are looked up in; `none` is the empty list."""
    if text.strip().casefold() == "none":
        return ()
    names = tuple(filter(None, (name.strip().removeprefix("./") for name in text.split(","))))
    for name in names:
        if name.startswith(("/", "~", "-")) or ".." in name.split("/") or not name.isprintable():
            raise ValueError("must be paths inside the repository, separated by commas, or none")

    return names


@kind("sqlite:///PATH, postgresql://USER:PASSWORD@HOST/NAME (also as postgresql+psycopg://)")
def database_url(text: str, home: Path) -> str:
    """Return the URL of a PostgreSQL database or of a SQLite file, whose path is made absolute from the home."""
    scheme, separator, rest = text.partition("://")
    if scheme in {"postgresql", "postgres", "postgresql+psycopg"} and rest.strip("/"):
        return f"postgresql{separator}{rest}"
    if scheme == "sqlite" and rest.startswith("/") and not rest.endswith("/") and ":memory:" not in rest:
        return f"sqlite:///{path.parse(rest[1:], home)}"

    raise ValueError("must be sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME")


@kind("owner/name or its URL")
def repository(text: str, _home: Path) -> str:
    """Return owner/name, taken from a URL if necessary."""
    pattern = r"(?:https?://[^/\s]+/|ssh://[^/\s]+/|[\w.-]+@[^:/\s]+:)?([\w.-]+/[\w.-]+?)(?:\.git)?/?"
    match = re.fullmatch(pattern, text)
    if match is None or set(match[1].split("/")) & {".", ".."}:
        raise ValueError("must be owner/name or the URL of a repository")

    return match[1]


@kind("URL")
def web_url(text: str, _home: Path) -> str:
    """Return the address of a service without a trailing slash; refuse one with a user or a query."""
    if re.fullmatch(r"https?://[\w.-]+(?::\d{1,5})?(?:/[\w./-]*)?", text) is None:
        raise ValueError("must be an address such as https://github.example.com/api/v3")

    return text.rstrip("/")


@kind("URL without a path")
def origin(text: str, _home: Path) -> str:
    """Return scheme, host and port of an address that people use, without a trailing slash."""
    if re.fullmatch(r"https?://(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?/?", text) is None:
        raise ValueError("must be an address without a path, such as https://adw.example.com")

    return text.rstrip("/").lower()


@kind("A, B, ...")
def hosts(text: str, _home: Path) -> tuple[str, ...]:
    """Return names of hosts, separated by commas; `*.` before a name means its subdomains."""
    pattern = r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?|\[?[0-9a-f:]+\]?"
    result = tuple(part.strip().lower() for part in text.split(","))
    if not all(re.fullmatch(pattern, name) for name in result):
        raise ValueError("must be names of hosts such as api.example.com or *.example.com, separated by commas")

    return tuple(name.strip("[]") for name in result)


listen_host = matching(
    r"[A-Za-z0-9][A-Za-z0-9.-]*|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*",
    "a name or an address, such as 127.0.0.1, ::1 or 0.0.0.0, without a port",
    "an address of this machine",
)
notify_url = matching(r"https?://[^\s/?#]+\S*", "an address that begins with https:// or http://", "https://...")


# --- names and texts -------------------------------------------------------------------------------------------

name = matching(r"[A-Za-z0-9_][\w-]*", "a name: letters, digits, '-' and '_'", "a name of adw workflow list")
login = matching(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\[bot\])?", "the name of an account, without an @", "login")
account = matching(r"[a-z_][a-z0-9_-]{0,31}", "the name of a user of this machine", "name of a user")
person = matching(
    r"[^<>\n]*[^<>\s][^<>\n]* <[^<>@\s]+@[^<>@\s]+>",
    "a name and an address, such as Ada Example <ada@example.com>",
    "NAME <ADDRESS>",
)
commit_message = matching(
    r"(?=.*<(?:summary|issue|id)>)(?:[^<>\n]|<(?:type|summary|issue|phase|id)>){1,200}",
    "one line with <summary>, <issue> or <id>, and besides <type> and <phase>",
    "line of text",
)
#: A remote or model that a program would read as an option is refused.
remote = matching(r"(?!.*\.\.)[A-Za-z0-9_][\w./-]*", "the name of a git remote, such as origin", "name")
model = matching(r"[A-Za-z0-9][\w./:@\[\]-]*", "the name of a model, such as sonnet or openai/gpt-5", "name of a model")
variables = several(
    matching(r"[A-Za-z_][A-Za-z0-9_]*", "names of environment variables, separated by commas", ""), "A, B, ..."
)


label = checked(
    lambda text: text.isprintable() and len(text) <= 50,
    "the name of a label: one line of at most 50 characters",
    "name of a label",
)
token = checked(
    lambda text: text.isprintable() and " " not in text, "one word without spaces or control characters", "token"
)


@kind("A, B, ...")
def texts(text: str, _home: Path) -> tuple[str, ...]:
    """Return the texts of a list, separated by commas."""
    result = tuple(part.strip() for part in text.split(","))
    if not all(result) or not text.isprintable():
        raise ValueError("must be a list of texts, separated by commas")

    return result


@kind("text, or two separated by a space")
def secrets(text: str, home: Path) -> tuple[str, ...]:
    """Return secrets, separated by spaces: GitHub's webhook secrets may hold any other character."""
    result = tuple(token.parse(part, home) for part in text.split())
    if any(one.endswith(",") for one in result[:-1]):
        raise ValueError("must be one word, or two that are separated by a space and no comma")

    return result


@kind("TOKEN, TOKEN, ...")
def tokens(text: str, home: Path) -> tuple[str, ...]:
    """Return secrets, separated by commas; refuse one short enough to be guessed."""
    result = tuple(token.parse(part.strip(), home) for part in text.split(","))
    if any(len(one) < SHORTEST_TOKEN for one in result):
        raise ValueError(f"must be tokens of {SHORTEST_TOKEN} characters or more, separated by commas")

    return result


@kind("name")
def machine(text: str, _home: Path) -> str:
    """Return the name of a machine, as requirements name it."""
    from adws.adw_modules.workflow.requirements import checked_host  # noqa: PLC0415 - few starts of adw need it

    try:
        return checked_host(text)
    except UsageError:
        raise ValueError("must be a name of letters, digits and . _ : - (at most 100)") from None


@kind("A, B, ...")
def tags(text: str, _home: Path) -> tuple[str, ...]:
    """Return tags, separated by commas."""
    from adws.adw_modules.workflow.requirements import checked_tags  # noqa: PLC0415 - few starts of adw need it

    try:
        return tuple(sorted(checked_tags(part.strip() for part in text.split(","))))
    except UsageError:
        raise ValueError("must be names of letters, digits and . _ : -, separated by commas") from None


# --- programs --------------------------------------------------------------------------------------------------


program = checked(
    lambda text: text.isprintable() and not text.startswith("-"), "the name or path of a program", "name or path"
)
shell = checked(str.isprintable, "one line for the shell", "one line for the shell")


call = checked(
    lambda text: text.count(":") == 1 and all(name.isidentifier() for name in text.replace(":", ".").split(".")),
    "the name of a Python function, such as package.module:function",
    "package.module:function",
)


def plugin(group: str) -> Kind:
    """Return the kind of the name of an installed plugin of *group*."""

    def is_there(text: str) -> bool:
        from adws.adw_modules import plugins  # noqa: PLC0415 - every start reads settings; few homes have a plugin

        return text in plugins.names(group)

    return checked(is_there, "the name of an installed plugin", "the name of a plugin")


@kind("one command a line")
def command_list(text: str, _home: Path) -> str:
    """Return commands, one per line; refuse shell operators, because no shell runs them."""
    for command in commands_in(text):
        if set(command) & {"&&", "||", "|", ";", "&", ">", ">>", "<"}:
            raise ValueError("must be one command a line, without what only a shell understands")

    return text


@kind("COMMAND ARGUMENT ...")
def command(text: str, home: Path) -> str:
    """Return one command; refuse shell operators, because no shell runs it."""
    command_list.parse(text, home)
    if len(commands_in(text)) != 1:
        raise ValueError("must be one command")

    return text


def commands_in(text: str | None) -> tuple[tuple[str, ...], ...]:
    """Return the commands of a `command_list`; raise ValueError for an unclosed quote."""
    if not text:
        return ()
    import shlex  # noqa: PLC0415 - few starts of adw need it

    try:
        return tuple(tuple(shlex.split(line)) for line in text.splitlines() if line.strip())
    except ValueError as exc:
        raise ValueError(f"must be one command a line ({str(exc).lower()})") from exc


# --- passwords in URLs -----------------------------------------------------------------------------------------


def without_password(url: str) -> str:
    """Return *url* with its password shown as `***`."""
    return re.sub(_URL_PARAMETER, r"\1***", re.sub(_USER_PART, r"\1:***@", url))


def passwords(url: str) -> tuple[str, ...]:
    """Return every password in *url*, both as written and percent-decoded."""
    user = re.match(_USER_PART, url)
    written = [user[2]] if user else []
    written += [item[2] for item in re.finditer(_URL_PARAMETER, url)]
    if "%" not in url:
        return tuple(filter(None, written))
    from urllib.parse import unquote  # noqa: PLC0415 - few passwords need it, and every start would pay

    return tuple(filter(None, dict.fromkeys([*written, *map(unquote, written)])))
