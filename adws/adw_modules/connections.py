"""
A named connection: where a sink saves to.

Nouns only. A connection has no password: it names the environment variable that has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: The databases that there can be connections to; each is the tool of a sink, too.
CONNECTION_TYPES = ("sqlite", "postgres")


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """A `[connections.NAME]`."""

    name: str
    type: str  #: sqlite | postgres
    path: str = ""  #: sqlite: the file, below the home unless it is absolute
    url: str = ""  #: postgres: `postgresql://user@host:5432/database`, without a password
    url_env: str = ""  #: postgres: the variable that has the whole address
    password_env: str = ""  #: postgres: the variable that has the password


def chosen(name: str, tool: str, types: Mapping[str, str]) -> str:
    """
    Return the connection that a sink with *tool* means by *name*, "" when it cannot be said.

    Without a name it is the only one of that type. *types* has the type of each connection.
    """
    if name:
        return name if types.get(name) == tool else ""
    fitting = [one for one, kind in types.items() if kind == tool]

    return fitting[0] if len(fitting) == 1 else ""
