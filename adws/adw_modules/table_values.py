"""
Read single values of a table: each function returns the value, or says by BadValue what it must be.

Words only. The message goes on where the name of the key stops: "must be a text".
"""

from __future__ import annotations

from collections.abc import Mapping


class BadValue(ValueError):
    """A value is of another kind than its key asks for."""


def table(value: object) -> Mapping[str, object]:
    """Return a table."""
    if not isinstance(value, Mapping):
        raise BadValue("must be a table")

    return value


def tables(value: object) -> list[object]:
    """Return a list, whose elements are read one by one."""
    if not isinstance(value, list):
        raise BadValue("must be a list of tables, each begun by [[workflows.NAME.phases]]")

    return value


def text(value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise BadValue("must be a text")

    return value


def texts(value: object) -> tuple[str, ...]:
    """Return a list of texts."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadValue('must be a list of texts, such as ["one", "two"]')

    return tuple(value)


def argv(value: object) -> tuple[str, ...]:
    """Return a command as its arguments."""
    if isinstance(value, str):
        raise BadValue('must be a list, such as ["make", "plan"]; for one line use shell')

    return texts(value)


def whole(value: object) -> int:
    """Return a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadValue("must be a whole number")

    return value


def flag(value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise BadValue("must be true or false")

    return value


def yes(value: object) -> bool:
    """Return true: the key says something by being there."""
    if value is not True:
        raise BadValue("must be true, or be left out")

    return True


def seconds(value: object) -> float:
    """Return a number of seconds."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadValue("must be a number of seconds")

    return value


def number(value: object) -> float:
    """Return a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadValue("must be a number")

    return value


def clock(value: object) -> float | None:
    """Return a number of seconds, None for false."""
    if value is False:
        return None
    try:
        return seconds(value)
    except BadValue as exc:
        raise BadValue(f"{exc}, or false for no limit") from None
