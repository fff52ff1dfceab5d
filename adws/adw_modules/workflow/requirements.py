"""
What a run requires of its worker, and whether a worker meets that.

Pure. Requirements are stored as canonical text, so that equal requirements are equal rows; "" means none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import JsonObject

#: A tag or host name.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirements:
    """What a worker must have, all of it."""

    host: str = ""  #: "": any host
    tags: frozenset[str] = frozenset()

    def to_text(self) -> str:
        """Return the requirements as canonical text, "" for none."""
        result = self.to_json()

        return json.dumps(result, separators=(",", ":"), ensure_ascii=False) if result else ""

    def to_json(self) -> JsonObject:
        """Return the requirements as stored in a document, empty for none."""
        result: JsonObject = {}
        if self.host:
            result["host"] = self.host
        if self.tags:
            result["tags"] = sorted(self.tags)  # type: ignore[assignment]  # texts are JSON

        return result

    def describe(self) -> str:
        """Return the requirements in words."""
        host = [f"host {self.host}"] if self.host else []
        tags = [f"tag {tag}" for tag in sorted(self.tags)]

        return " and ".join([*host, *tags]) or "nothing"

    def also(self, *, host: str = "", tags: Iterable[str] = ()) -> Requirements:
        """Return these requirements with *host* replaced, if given, and *tags* added; raise UsageError."""
        return Requirements(host=checked_host(host) if host else self.host, tags=self.tags | checked_tags(tags))

    @classmethod
    def from_text(cls, text: str) -> Requirements:
        """Return the requirements in *text*; raise UsageError if it is invalid."""
        if not text:
            return cls()
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"{text!r} are no demands of a run") from exc

        return cls.from_json(data)

    @classmethod
    def from_json(cls, data: object) -> Requirements:
        """Return the requirements in *data*; raise UsageError if it is invalid."""
        if not isinstance(data, Mapping) or not data.keys() <= {"host", "tags"}:
            raise UsageError(f"{data!r} are no demands of a run: they have a host and tags")
        host, tags = data.get("host", ""), data.get("tags", [])
        if not isinstance(host, str) or not isinstance(tags, list):
            raise UsageError(f"{data!r} are no demands of a run: a host is a name, tags are a list of names")

        return cls(host=checked_host(host) if host else "", tags=checked_tags(tags))


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What a worker offers."""

    host: str
    tags: frozenset[str] = frozenset()


def meets(offer: Capabilities, demands: Requirements) -> bool:
    """Return whether a worker with *offer* may do a run with *demands*."""
    return demands.host in {"", offer.host} and demands.tags <= offer.tags


def checked_tags(tags: Iterable[object]) -> frozenset[str]:
    """Return *tags*; raise UsageError if one is invalid."""
    result = list(tags)
    for tag in result:
        if not isinstance(tag, str) or not _NAME.fullmatch(tag):
            raise UsageError(f"{tag!r} is no tag: use letters, digits and . _ : - (at most 100)")

    return frozenset(map(str, result))


def checked_host(host: str) -> str:
    """Return *host*; raise UsageError if it cannot be a host name."""
    if not _NAME.fullmatch(host):
        raise UsageError(f"{host!r} is no name of a host: use letters, digits and . _ : - (at most 100)")

    return host


NO_DEMANDS = Requirements()
