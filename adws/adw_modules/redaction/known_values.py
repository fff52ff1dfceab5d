"""
The third net: values hidden because they are known, also in parts and in other spellings.

Pure. Each spelling of each secret (plain, reversed, base64 at its three alignments, hex, percent-encoded, JSON) is cut
into all its 12-character pieces. A text is sampled every 7 characters for the 6-character seeds of those pieces: each
run of 12 characters contains one sampled seed, so no piece is missed and clean text costs one lookup per step.
"""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from urllib.parse import quote, quote_plus

from adws.adw_modules.redaction.patterns import MASK, Match, SourceMap, is_secret_name

#: Length of the pieces of a secret that are hidden.
GRAM = 12
_SEED = 6
_STRIDE = GRAM - _SEED + 1
#: Shorter values are hidden only as whole words: `cat` is in `catalogue`.
SHORTEST_PIECE = 8
#: Maximum indexed length of one value.
_LONGEST_VALUE = 32_768
#: A piece with fewer distinct characters is a line of dashes or zeros, not a secret.
_FEWEST_CHARACTERS = 3
#: Maximum layers of escapes that are removed (text in text in text).
_LAYERS = 3

_INVISIBLE = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
#: Matches text that may interrupt a secret without being part of it (terminal codes, line breaks, invisible
#: characters), and encodings of one character (percent codes, JSON and Python escapes, HTML entities). It starts with a
#: plain set, at which the cases look back, because a pattern that starts with a set is searched several times as fast.
_NOISE = re.compile(
    rf"""
    [\r\n%&\\{_INVISIBLE}]
    (?:(?<=\x1b)(?:\[[0-?]*+[\ -/]*+[@-~]|\][^\x07\x1b]{{0,512}}+(?:\x07|\x1b\\)|[@-Z\\-_])
    |(?<=[\r\n])[\r\n]*+[ \t]*+
    |(?<=%)[0-7][0-9A-Fa-f]
    |(?<=\\)(?:u00[0-7][0-9A-Fa-f]|x[0-7][0-9A-Fa-f]|[nrtbf"'\\/]|\r?\n[ \t]*+)
    |(?<=&)(?:amp|lt|gt|quot|apos|\#39|\#x27|\#34);
    |(?<=[{_INVISIBLE}]))
    """,
    re.VERBOSE,
)
_SPECIAL = re.compile(rf"[\r\n%&\\{_INVISIBLE}]")
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'", "#39": "'", "#x27": "'", "#34": '"'}
_URL_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{1,20}://[^\s/?#:@]{0,256}:([^\s/]{1,1024})@")
#: Escapes that some programs write in JSON without need: `<`, `>`, `&` and the like.
_ASCII_ESCAPE = re.compile(rb"\\u00([2-7][0-9a-fA-F])")
_NEEDLESS_ESCAPE = re.compile(rb"\\(?:/|u00[2-7]|\\x)")
_ANY_ESCAPE = re.compile(rb"\\(?:[/\\]|u00[2-7])")
_PEM_FRAME = re.compile(r"-----[A-Z0-9 ]{4,80}-----")


def _plain(found: re.Match[str]) -> str:
    """Return the character that a piece of noise encodes, or ""."""
    token = found[0]
    if token[0] == "%":
        return _visible(token[1:])
    if token[0] == "&":
        return _NAMED[token[1:-1]]
    if token[0] != "\\":
        return ""
    if token[1] in "ux":
        return _visible(token[2:])

    return token[1] if token[1] in "\"'\\/" else ""


def _visible(digits: str) -> str:
    character = chr(int(digits, 16))

    return character if character.isprintable() else ""


def _layers(text: str) -> Iterator[tuple[str, ...]]:
    """Yield (text,), then (text, text without one layer of noise), and so on: the last item is the newest layer."""
    layers: tuple[str, ...] = (text,)
    yield layers
    while len(layers) <= _LAYERS and _SPECIAL.search(layers[-1]) is not None:
        plain = _NOISE.sub(_plain, layers[-1])
        if plain == layers[-1]:
            return
        layers = (*layers, plain)
        yield layers


def parts_of(value: str) -> tuple[str, ...]:
    """Return the secret parts of *value*: a URL's password, a key without its frame, the secret fields of JSON."""
    url = _URL_PASSWORD.match(value)
    if url is not None:
        return (url[1],)
    if value.lstrip()[:1] in {"{", "["}:
        try:
            return tuple(_secret_leaves(json.loads(value), under=""))
        except (ValueError, RecursionError):
            return (value,)

    return (_PEM_FRAME.sub("", value).strip(),)


def _secret_leaves(value: object, *, under: str) -> Iterator[str]:
    """Yield the texts in *value* that have a secret's name."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _secret_leaves(item, under=key)
    elif isinstance(value, list):
        for item in value:
            yield from _secret_leaves(item, under=under)
    elif isinstance(value, str) and is_secret_name(under):
        yield from parts_of(value)


def spellings(value: str) -> set[str]:
    """Return *value* and all its other spellings that are searched for."""
    return _codings(value) | _escapes(value) | _escapes(value[::-1])


def _codings(value: str) -> set[str]:
    """Return *value* and its encodings as a whole: reversed, hex, base64 and the like."""
    raw = value.encode("utf-8", "surrogatepass")
    result = {value, value[::-1], raw.hex(), raw.hex().upper(), value.replace(" ", "+")}
    for shift in range(3):
        result.update(_base64_inside(raw, shift))

    return result


def _escapes(value: str) -> set[str]:
    """Return the spellings of *value* with escapes for URLs, JSON and Python."""
    raw = value.encode("utf-8", "surrogatepass")
    percent = {quote(raw, safe=""), quote(raw, safe="/"), quote_plus(raw), "".join(f"%{byte:02X}" for byte in raw)}
    said = repr(value)
    texts = {json.dumps(value), json.dumps(value, ensure_ascii=False), repr(raw)[1:], said, json.dumps(said[1:-1])}

    return {
        *percent,
        *(_lower_percent(text) for text in percent),
        *(text[1:-1] for text in texts),
        *(_upper_unicode(text[1:-1]) for text in texts),
        "".join(f"\\x{byte:02x}" for byte in raw),
    }


def _lower_percent(text: str) -> str:
    return re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), text)


def _upper_unicode(text: str) -> str:
    return re.sub(r"(?<=\\u)[0-9a-f]{4}", lambda found: found[0].upper(), text)


def _base64_inside(raw: bytes, shift: int) -> tuple[str, str]:
    """Return the base64 of *raw* after *shift* other bytes, without the characters that depend on its neighbours."""
    first = -(-8 * shift // 6)
    last = 8 * (shift + len(raw)) // 6
    text = base64.b64encode(bytes(shift) + raw).decode("ascii")[first:last]

    return text, text.replace("+", "-").replace("/", "_")


class ValueNet:
    """An index of known secrets; built once, never changed."""

    __slots__ = ("_grams", "_needles", "_ordered", "_seeds", "_words", "has_words", "whole")

    def __init__(self, known_values: Iterable[str]) -> None:
        # Parts of the mask are not hidden: the mask itself would be redacted again and again.
        values = {value for value in known_values if value.strip() and value.lower() not in MASK}
        words = {value for value in values if len(value) < SHORTEST_PIECE}
        grams: set[str] = set()
        seeds: set[str] = set()
        needles: set[str] = set()
        for value in values - words:
            needles.update(spellings(value) if len(value) < GRAM else {value})
            for part in parts_of(value):
                if len(part) >= GRAM:
                    texts = _texts_of(part[:_LONGEST_VALUE])
                    grams.update(_windows(texts, GRAM, _FEWEST_CHARACTERS))
                    seeds.update(_windows(texts, _SEED, 1))
                elif len(part) >= SHORTEST_PIECE:
                    needles.update(spellings(part))

        self._words = tuple(re.compile(rf"(?<!\w){re.escape(word)}(?!\w)") for word in sorted(words))
        #: Whether some values are hidden as whole words: nothing else searched is shorter than SHORTEST_PIECE.
        self.has_words = bool(words)
        self._grams = frozenset(grams)
        self._ordered: list[str] | None = None  # needed only for streams
        self._seeds = frozenset(seeds)
        self._needles = tuple(sorted(n for n in needles if len(n) >= SHORTEST_PIECE and not _is_covered(n, grams)))
        self.whole = WholeValues(values - words)

    def find(self, text: str) -> Iterator[Match]:
        """Yield where *text* contains a known secret or a piece of one, despite noise between its characters."""
        for pattern in self._words:
            for item in pattern.finditer(text):
                yield Match(item.start(), *item.span())
        if not self._grams and not self._needles:
            return
        for layers in _layers(text):
            spans = list(self._find_in(layers[-1]))
            maps = [SourceMap(below, _NOISE, _plain) for below in layers[-2::-1]] if spans else []
            for start, end in spans:
                for each in maps:
                    start, end = each.back(start, end)  # noqa: PLW2901 - one layer down each time
                yield Match(start, start, end)

    def has_any(self, text: str) -> bool:
        """Return whether `find` finds anything in *text*."""
        return next(self.find(text), None) is not None

    def _find_in(self, view: str) -> Iterator[tuple[int, int]]:
        for needle in self._needles:
            at = view.find(needle)
            while at >= 0:
                yield at, at + len(needle)
                at = view.find(needle, at + len(needle))
        samples = [view[at : at + _SEED] for at in range(0, len(view) - _SEED + 1, _STRIDE)]
        if self._seeds.isdisjoint(samples):
            return
        for number, sample in enumerate(samples):
            if sample in self._seeds:
                seed = number * _STRIDE
                for at in range(max(0, seed - _STRIDE + 1), seed + 1):
                    if view[at : at + GRAM] in self._grams:
                        yield at, at + GRAM

    def may_begin_at_end_of(self, text: str) -> bool:
        """Return whether the last 4 to 11 characters of *text* begin a piece of a secret."""
        plain = _NOISE.sub(_plain, text[-256:])

        return any(self._is_beginning(plain[-length:]) for length in range(4, GRAM) if len(plain) >= length)

    def _is_beginning(self, text: str) -> bool:
        ordered = self._ordered
        if ordered is None:
            ordered = self._ordered = sorted(self._grams)  # concurrent threads compute the same list
        at = bisect_left(ordered, text)
        if at < len(ordered) and ordered[at].startswith(text):
            return True

        return any(needle.startswith(text) for needle in self._needles)


def _texts_of(part: str) -> set[str]:
    """Return the spellings of *part* that are long enough to be indexed."""
    # Escapes of plain characters are removed from the text before the search; others have to be indexed.
    is_plain = part.isascii() and part.isprintable()
    texts = _codings(part) if is_plain else spellings(part)

    return {text for spelling in texts for *_, text in _layers(spelling) if len(text) >= GRAM}


def _windows(texts: Iterable[str], length: int, fewest: int) -> set[str]:
    """Return every run of *length* characters in *texts* with at least *fewest* distinct characters."""
    result = {text[at : at + length] for text in texts for at in range(len(text) - length + 1)}

    return {run for run in result if len(set(run)) >= fewest} if fewest > 1 else result


def _is_covered(needle: str, grams: set[str]) -> bool:
    """Return whether every piece of *needle* is in the index, so that it needs no search of its own."""
    return len(needle) >= GRAM and all(needle[at : at + GRAM] in grams for at in range(len(needle) - GRAM + 1))


class WholeValues:
    """
    The fast check for the path that writes documents: whether bytes contain a whole known value.

    Long spellings, if there are many, are found by sparse samples; few or short ones by a plain search each.
    """

    __slots__ = ("_hidden", "_long", "_seeds", "_short", "_stride")

    _SAMPLE = 8
    #: Up to this many long spellings, a search for each is faster than samples.
    _FEW = 24

    def __init__(self, values: Collection[str]) -> None:
        #: Escapes in which a value could hide; most values are spelled the same in nested text.
        has_special = any(json.dumps(value) != f'"{value}"' for value in values)
        self._hidden = _ANY_ESCAPE if has_special else _NEEDLESS_ESCAPE
        needles = {
            spelling.encode("utf-8", "surrogatepass")
            for value in values
            for spelling in spellings(value[:_LONGEST_VALUE])
        }
        needles.update([_without_json_escapes(needle) for needle in needles])
        needles = {needle for needle in needles if len(needle) >= SHORTEST_PIECE}
        self._short = tuple(sorted(needle for needle in needles if len(needle) < 3 * self._SAMPLE))
        self._long = tuple(sorted(needles.difference(self._short)))
        shortest = min(map(len, self._long), default=3 * self._SAMPLE)
        self._stride = min(shortest, 64) - self._SAMPLE + 1
        self._seeds = frozenset(
            needle[at : at + self._SAMPLE] for needle in self._long for at in range(min(self._stride, len(needle)))
        )

    def is_in(self, payload: bytes) -> bool:
        """Return whether *payload* contains a whole known secret in any spelling."""
        if not self._short and not self._long:
            return False
        for _ in range(_LAYERS):
            if self._has(payload):
                return True
            if b"\\" not in payload or self._hidden.search(payload) is None:
                return False
            payload = _without_json_escapes(payload)

        return self._has(payload)

    def _has(self, payload: bytes) -> bool:
        if any(needle in payload for needle in self._short):
            return True
        if len(self._long) > self._FEW:
            width = self._SAMPLE
            samples = [payload[at : at + width] for at in range(0, len(payload) - width + 1, self._stride)]
            if self._seeds.isdisjoint(samples):
                return False

        return any(needle in payload for needle in self._long)


def _without_json_escapes(payload: bytes) -> bytes:
    """
    Return *payload* without one layer of JSON escapes, except those that are spellings of a value.

    This handles nested text and unnecessary escapes.
    """
    # JSON contains no NUL, so NUL marks the place of an escaped backslash.
    plain = payload.replace(b"\\\\", b"\0").replace(b'\\"', b'"').replace(b"\\/", b"/")
    return _ASCII_ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), plain).replace(b"\0", b"\\")
