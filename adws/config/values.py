"""
What the values of settings may look like: text in, value out.

Each parser takes the text a user gave and the home, and raises ValueError with the end of a sentence: "must be ...".
It never repeats the text, which may be a secret; the caller decides what may be shown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

# The patterns are texts: each is compiled when a value needs it, not at every start.
_SIZES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_REPOSITORY = r"(?:https?://[^/\s]+/|ssh://[^/\s]+/|[\w.-]+@[^:/\s]+:)?([\w.-]+/[\w.-]+?)(?:\.git)?/?"
#: Everything between the first colon of the user part and the last @: a password may hold any character.
_USER_PART = r"^([^:/]+://[^:/?#@]*):(.*)@"
_URL_PARAMETER = r"(?i)([?&](?:password|passwd|sslpassword)=)([^&#]*)"

#: Characters of the shortest token that the web server accepts.
SHORTEST_TOKEN = 16


def choice(*allowed: str) -> Callable[[str, Path], str]:
    """Return the parser of a choice from a list, in any case."""
    spelling = {word.casefold(): word for word in allowed}

    def parse(text: str, _home: Path) -> str:
        if text.casefold() not in spelling:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return spelling[text.casefold()]

    return parse


def choice_or_plugin(group: str, *allowed: str) -> Callable[[str, Path], str]:
    """Return the parser of a choice from a list, or of the name of a plugin of *group*."""
    parse_word = choice(*allowed)

    def parse(text: str, home: Path) -> str:
        try:
            return parse_word(text, home)
        except ValueError:
            from adws.adw_modules import plugins  # noqa: PLC0415 - every start reads settings; few homes have a plugin

            if text in plugins.names(group):
                return text
            raise ValueError(f"must be one of {', '.join(allowed)}, or the name of an installed plugin") from None

    return parse


def whole(*, least: int) -> Callable[[str, Path], int]:
    """Return the parser of a whole number."""

    def parse(text: str, _home: Path) -> int:
        if not _is_whole(text) or int(text) < least:
            raise ValueError(f"must be a whole number, {least} or more")
        return int(text)

    return parse


def whole_between(least: int, most: int) -> Callable[[str, Path], int]:
    """Return the parser of a whole number within bounds."""

    def parse(text: str, _home: Path) -> int:
        if not _is_whole(text) or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(text)

    return parse


def seconds_between(least: float, most: float) -> Callable[[str, Path], float]:
    """Return the parser of a time within bounds; not a number is within none."""

    def parse(text: str, _home: Path) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise ValueError(f"must be a number of seconds from {least:g} to {most:g}")
        return number

    return parse


def seconds(text: str, _home: Path) -> float:
    """Return a time above zero; not a number and infinity are refused."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number <= 0:
        raise ValueError("must be a number of seconds above 0")

    return number


def size(text: str, _home: Path) -> int:
    """Return a number of bytes, written plainly or with KiB, MiB or GiB."""
    digits = text.rstrip("BbIiKkMmGg ")
    unit = _SIZES.get(text[len(digits) :].strip().casefold())
    if unit is None or not _is_whole(digits) or int(digits) == 0:
        raise ValueError("must be a number of bytes above 0, or a number with KiB, MiB or GiB")

    return int(digits) * unit


def size_or_off(text: str, home: Path) -> int:
    """Return a number of bytes, 0 for off."""
    if text.strip().casefold() == "off":
        return 0
    try:
        return size(text, home)
    except ValueError as exc:
        raise ValueError(f"{exc}, or off") from exc


def path(text: str, home: Path) -> Path:
    """Return an absolute path; a relative one starts at the home, `~` is the person's directory."""
    try:
        expanded = Path(text).expanduser()
    except RuntimeError as exc:
        raise ValueError("must be a path whose ~ leads to a directory that is known") from exc
    if "\0" in text:
        raise ValueError("must be a path without a null character")

    return (home / expanded).resolve()


def database_url(text: str, home: Path) -> str:
    """Return the URL of a SQLite file (made absolute, from the home) or of a PostgreSQL database."""
    scheme, separator, rest = text.partition("://")
    if scheme in {"postgresql", "postgres", "postgresql+psycopg"} and rest.strip("/"):
        return f"postgresql{separator}{rest}"
    if scheme == "sqlite" and rest.startswith("/") and not rest.endswith("/") and ":memory:" not in rest:
        return f"sqlite:///{path(rest[1:], home)}"

    raise ValueError("must be sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME")


def repository(text: str, _home: Path) -> str:
    """Return owner/name, also of a GitHub URL."""
    match = re.fullmatch(_REPOSITORY, text)
    if match is None or set(match[1].split("/")) & {".", ".."}:
        raise ValueError("must be owner/name or the URL of a repository")

    return match[1]


def switch(text: str, _home: Path) -> bool:
    """Return whether something is on."""
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.casefold() not in words:
        raise ValueError("must be true or false")

    return words[text.casefold()]


def texts(text: str, _home: Path) -> tuple[str, ...]:
    """Return a list that is written with commas."""
    result = tuple(part.strip() for part in text.split(","))
    if not all(result) or not text.isprintable():
        raise ValueError("must be a list of texts, separated by commas")

    return result


def choices(*allowed: str) -> Callable[[str, Path], tuple[str, ...]]:
    """Return the parser of choices from a list, separated by commas; `none` is none of them."""
    parse_one = choice(*allowed)

    def parse(text: str, home: Path) -> tuple[str, ...]:
        if text.casefold() == "none":
            return ()
        try:
            return tuple(parse_one(part.strip(), home) for part in text.split(","))
        except ValueError:
            raise ValueError(f"must be words of {', '.join(allowed)}, separated by commas, or none") from None

    return parse


def repositories(text: str, home: Path) -> tuple[str, ...]:
    """Return repositories, separated by commas, each as owner/name."""
    return tuple(repository(part.strip(), home) for part in text.split(","))


def label(text: str, _home: Path) -> str:
    """Return the name of a label: one line, as long as forges allow."""
    if not text.isprintable() or len(text) > 50:
        raise ValueError("must be the name of a label: one line of at most 50 characters")

    return text


def login(text: str, _home: Path) -> str:
    """Return the name of an account, without an @; that of an App ends in [bot]."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\[bot\])?", text) is None:
        raise ValueError("must be the name of an account, without an @")

    return text


def person(text: str, _home: Path) -> str:
    """Return somebody as git names them."""
    if re.fullmatch(r"[^<>\n]*[^<>\s][^<>\n]* <[^<>@\s]+@[^<>@\s]+>", text) is None:
        raise ValueError("must be a name and an address, such as Ada Example <ada@example.com>")

    return text


def web_url(text: str, _home: Path) -> str:
    """Return the address of a service, without a slash at its end; one with a user or a query in it is refused."""
    if re.fullmatch(r"https?://[\w.-]+(?::\d{1,5})?(?:/[\w./-]*)?", text) is None:
        raise ValueError("must be an address such as https://github.example.com/api/v3")

    return text.rstrip("/")


def origin(text: str, _home: Path) -> str:
    """Return scheme, name and port of an address that people use, without a slash at its end."""
    if re.fullmatch(r"https?://(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?/?", text) is None:
        raise ValueError("must be an address without a path, such as https://adw.example.com")

    return text.rstrip("/").lower()


def token(text: str, _home: Path) -> str:
    """Return a secret; it is one run of visible characters."""
    if not text.isprintable() or " " in text:
        raise ValueError("must be one word without spaces or control characters")

    return text


def tokens(text: str, home: Path) -> tuple[str, ...]:
    """Return secrets that are written with commas; one that can be guessed is refused."""
    result = tuple(token(part.strip(), home) for part in text.split(","))
    if any(len(one) < SHORTEST_TOKEN for one in result):
        raise ValueError(f"must be tokens of {SHORTEST_TOKEN} characters or more, separated by commas")

    return result


def host(text: str, _home: Path) -> str:
    """Return the name or address of this machine to listen at, without a port."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*", text) is None:
        raise ValueError("must be a name or an address, such as 127.0.0.1, ::1 or 0.0.0.0, without a port")

    return text


def program(text: str, _home: Path) -> str:
    """Return the name or path of a program."""
    if text.startswith("-") or not text.isprintable():
        raise ValueError("must be the name or path of a program")

    return text


def name(text: str, _home: Path) -> str:
    """Return the name of something of ours, such as a workflow."""
    if re.fullmatch(r"[A-Za-z0-9_][\w-]*", text) is None:
        raise ValueError("must be a name: letters, digits, '-' and '_'")

    return text


def model(text: str, _home: Path) -> str:
    """Return the name of a model; one that an agent would read as an option is refused."""
    if re.fullmatch(r"[A-Za-z0-9][\w./:@\[\]-]*", text) is None:
        raise ValueError("must be the name of a model, such as sonnet or openai/gpt-5")

    return text


def models(text: str, home: Path) -> tuple[str, ...]:
    """Return the names of models, separated by commas."""
    return tuple(model(name.strip(), home) for name in text.split(","))


def call(text: str, _home: Path) -> str:
    """Return the name of a Python function with its module."""
    module, _, function = text.partition(":")
    if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError("must be written as package.module:function")

    return text


def variables(text: str, _home: Path) -> tuple[str, ...]:
    """Return the names of environment variables, separated by commas."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in names):
        raise ValueError("must be names of environment variables, separated by commas")

    return names


def shell(text: str, _home: Path) -> str:
    """Return one line for the shell."""
    if not text.isprintable():
        raise ValueError("must be one line for the shell")

    return text


def remote(text: str, _home: Path) -> str:
    """Return the name of a git remote; one that git would read as an option is refused."""
    if re.fullmatch(r"[A-Za-z0-9_][\w./-]*", text) is None or ".." in text:
        raise ValueError("must be the name of a git remote, such as origin")

    return text


def remote_url(text: str, _home: Path) -> str:
    """Return the address of a git remote; one with a password, or that git would read as an option, is refused."""
    if re.fullmatch(r"[^\s\x00-\x1f-][^\s\x00-\x1f]*", text) is None or passwords(text):
        raise ValueError("must be the address of a git remote without a password, such as git@github.com:acme/shop.git")

    return text


def amount(text: str, _home: Path) -> float:
    """Return a sum of money, 0 or more; not a number and infinity are refused."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ValueError("must be a number of US dollars, 0 or more")

    return number


def file_list(text: str, _home: Path) -> str:
    """Return paths separated by commas, each below the directory they will be looked for in; `none` names none."""
    for name in files_in(text):
        if name.startswith(("/", "~", "-")) or ".." in name.split("/") or not name.isprintable():
            raise ValueError("must be paths inside the repository, separated by commas, or none")

    return text


def files_in(text: str) -> tuple[str, ...]:
    """Return the paths of a list that `file_list` let pass."""
    names = (name.strip().removeprefix("./") for name in text.split(","))

    return tuple(name for name in names if name) if text.strip().casefold() != "none" else ()


def command_list(text: str, _home: Path) -> str:
    """Return commands, one a line; what only a shell understands is refused, because none is asked."""
    for command in commands_in(text):
        if set(command) & {"&&", "||", "|", ";", "&", ">", ">>", "<"}:
            raise ValueError("must be one command a line, without what only a shell understands")

    return text


def commands_in(text: str | None) -> tuple[tuple[str, ...], ...]:
    """Return the commands of a list that `command_list` let pass; raise ValueError for one with an open quote."""
    if not text:
        return ()
    import shlex  # noqa: PLC0415 - few starts of adw need it

    try:
        return tuple(tuple(shlex.split(line)) for line in text.splitlines() if line.strip())
    except ValueError as exc:
        raise ValueError(f"must be one command a line ({str(exc).lower()})") from exc


def without_password(url: str) -> str:
    """Return *url* with its password shown as `***`."""
    return re.sub(_URL_PARAMETER, r"\1***", re.sub(_USER_PART, r"\1:***@", url))


def passwords(url: str) -> tuple[str, ...]:
    """Return every password in *url*, as written and with its percent signs resolved."""
    user = re.match(_USER_PART, url)
    written = [user[2]] if user else []
    written += [item[2] for item in re.finditer(_URL_PARAMETER, url)]
    if "%" not in url:
        return tuple(filter(None, written))
    from urllib.parse import unquote  # noqa: PLC0415 - few passwords need it, and every start would pay

    return tuple(filter(None, dict.fromkeys([*written, *map(unquote, written)])))


def _is_whole(text: str) -> bool:
    """Say whether *text* is a whole number of plain digits, and not so long that it is nonsense."""
    return text.isascii() and text.isdigit() and len(text) <= 15
