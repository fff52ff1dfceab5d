"""
The type of everything that can stand in a state file.

One alias, so that "any JSON" is never written as `Any`.
"""

from __future__ import annotations

from typing import TypeAlias, Union

# A quoted name cannot stand in `X | Y` at run time, hence Union.
JsonValue: TypeAlias = Union[bool, int, float, str, list["JsonValue"], dict[str, "JsonValue"], None]  # noqa: UP007 - see above
JsonObject: TypeAlias = dict[str, JsonValue]
