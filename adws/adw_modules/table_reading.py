"""
Read a table of `adw.toml` key by key into the fields of a noun.

Words only. Every key that is not known and every value of the wrong kind becomes a problem at its own place; nothing is
left out in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from adws.adw_modules import table_values
from adws.adw_modules.spelling import hint
from adws.adw_modules.table_values import BadValue
from adws.adw_modules.workflow import Problem

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Key(NamedTuple):
    """A key of a table."""

    field: str  #: where its value goes in the noun
    read: Callable[[object], object]  #: raises BadValue, or Refused with problems further inside


class Refused(Exception):
    """Something inside a value is wrong."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__()
        self.problems = problems


def read_table(
    raw: object, keys: Mapping[str, Key], what: str, problems: list[Problem], *, elsewhere: Mapping[str, str] = _NOTHING
) -> dict[str, object]:
    """
    Return the fields in *raw* and add a problem for each key that is not known or has a bad value.

    *elsewhere* says of keys that are known in other places what to do about them. Raises BadValue when *raw* is no
    table.
    """
    fields: dict[str, object] = {}
    given: dict[str, str] = {}  #: field -> the key that gave it
    for key, value in table_values.table(raw).items():
        if key not in keys:
            unknown = elsewhere.get(key) or f"{key!r} is no key of {what}{hint(key, keys, 'the keys are')}"
            problems.append(Problem(path=(key,), message=unknown))
            continue
        name = keys[key].field
        if name in given:
            problems.append(Problem(path=(key,), message=f"give {given[name]} or {key}, not both"))
            continue
        given[name] = key
        try:
            fields[name] = keys[key].read(value)
        except BadValue as exc:
            problems.append(Problem(path=(key,), message=f"{key} {exc}"))
        except Refused as exc:
            problems += [problem.below(key) for problem in exc.problems]

    return fields


def whole_table(raw: object, keys: Mapping[str, Key], what: str) -> dict[str, object]:
    """Return the fields in *raw*; raise Refused with all that is wrong in it, BadValue when it is no table."""
    problems: list[Problem] = []
    fields = read_table(raw, keys, what, problems)
    if problems:
        raise Refused(problems)

    return fields


def list_of(raw: Sequence[object], read: Callable[[object], object], what: str) -> list[object]:
    """Return what *read* makes of each element; raise Refused with all that is wrong in them."""
    found: list[object] = []
    problems: list[Problem] = []
    for index, element in enumerate(raw):
        try:
            found.append(read(element))
        except BadValue as exc:
            problems.append(Problem(path=(index,), message=f"{what} {exc}"))
        except Refused as exc:
            problems += [problem.below(index) for problem in exc.problems]
    if problems:
        raise Refused(problems)

    return found


def keys_of(renamed: Mapping[str, str] = _NOTHING, /, **readers: Callable[[object], object]) -> Mapping[str, Key]:
    """Return a table of keys; *renamed* has the fields of those that are called otherwise in the noun."""
    return MappingProxyType({key: Key(renamed.get(key, key), read) for key, read in readers.items()})
