"""
What a run requires of the worker that does it, and whether a worker has that.

Pure. They are stored as one text with one spelling, so that equal requirements are equal rows, and "" is none at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import JsonObject

#: A tag, or the name of a host.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirements:
    """What a worker must be, all of it."""

    host: str = ""  #: "": any
    tags: frozenset[str] = frozenset()

    def to_text(self) -> str:
        """Return the demands in their one spelling, "" for none."""
        result = self.to_json()

        return json.dumps(result, separators=(",", ":"), ensure_ascii=False) if result else ""

    def to_json(self) -> JsonObject:
        """Return the demands as a document keeps them, empty for none."""
        result: JsonObject = {}
        if self.host:
            result["host"] = self.host
        if self.tags:
            result["tags"] = sorted(self.tags)  # type: ignore[assignment]  # texts are JSON

        return result

    def describe(self) -> str:
        """Return the demands in words."""
        host = [f"host {self.host}"] if self.host else []
        tags = [f"tag {tag}" for tag in sorted(self.tags)]

        return " and ".join([*host, *tags]) or "nothing"

    def also(self, *, host: str = "", tags: Iterable[str] = ()) -> Requirements:
        """Return these demands with another *host*, if one is named, and with *tags* besides; raise UsageError."""
        return Requirements(host=checked_host(host) if host else self.host, tags=self.tags | checked_tags(tags))

    @classmethod
    def from_text(cls, text: str) -> Requirements:
        """Return the demands written in *text*; raise UsageError for what is none."""
        if not text:
            return cls()
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"{text!r} are no demands of a run") from exc

        return cls.from_json(data)

    @classmethod
    def from_json(cls, data: object) -> Requirements:
        """Return the demands that *data* stand for; raise UsageError for what is none."""
        if not isinstance(data, Mapping) or not data.keys() <= {"host", "tags"}:
            raise UsageError(f"{data!r} are no demands of a run: they have a host and tags")
        host, tags = data.get("host", ""), data.get("tags", [])
        if not isinstance(host, str) or not isinstance(tags, list):
            raise UsageError(f"{data!r} are no demands of a run: a host is a name, tags are a list of names")

        return cls(host=checked_host(host) if host else "", tags=checked_tags(tags))


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What a worker has to offer."""

    host: str
    tags: frozenset[str] = frozenset()


def meets(offer: Capabilities, demands: Requirements) -> bool:
    """Say whether a worker with *offer* may do what *demands* that."""
    return demands.host in {"", offer.host} and demands.tags <= offer.tags


def checked_tags(tags: Iterable[object]) -> frozenset[str]:
    """Return *tags*; raise UsageError when one is no tag."""
    result = list(tags)
    for tag in result:
        if not isinstance(tag, str) or not _NAME.fullmatch(tag):
            raise UsageError(f"{tag!r} is no tag: use letters, digits and . _ : - (at most 100)")

    return frozenset(map(str, result))


def checked_host(host: str) -> str:
    """Return *host*; raise UsageError when it cannot be the name of one."""
    if not _NAME.fullmatch(host):
        raise UsageError(f"{host!r} is no name of a host: use letters, digits and . _ : - (at most 100)")

    return host


NO_DEMANDS = Requirements()
