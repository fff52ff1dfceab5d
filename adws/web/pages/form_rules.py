"""
What a browser sends with a form: fields of bounded number and size, each once.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

#: Bytes of a form, at most; that of a login is shorter, because anybody may send one.
MOST_BYTES = 64 * 1024
MOST_LOGIN_BYTES = 4 * 1024
#: Fields of a form, at most.
MOST_FIELDS = 50

_KIND = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form; one that is not there is empty."""

    fields: Mapping[str, str]

    def text(self, name: str, *, most: int = 2000) -> str:
        """Return a field, without blanks around it and at most so many characters."""
        return self.fields.get(name, "").strip()[:most]

    def is_set(self, name: str) -> bool:
        """Say whether a box was ticked."""
        return bool(self.fields.get(name))


class BadForm(ValueError):
    """What came is no form of ours; the text says why."""


def parse(body: bytes, kind: str, *, most_bytes: int = MOST_BYTES) -> Form:
    """Return the fields in *body*, which is said to be of the type *kind*; raise BadForm."""
    if kind.partition(";")[0].strip().lower() != _KIND:
        raise BadForm(f"a form is sent as {_KIND}")
    if len(body) > most_bytes:
        raise BadForm(f"the form is larger than {most_bytes} bytes")
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=MOST_FIELDS,
        )
    except ValueError as exc:
        raise BadForm("the form cannot be read") from exc
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise BadForm("a field of the form comes twice")
    # Browsers end lines with CR LF; everything behind this has LF.
    return Form({name: value.replace("\r\n", "\n").replace("\0", "") for name, value in fields.items()})
