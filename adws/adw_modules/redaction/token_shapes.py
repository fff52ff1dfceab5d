r"""
The second net: values hidden because they have the shape of a known kind of secret.

Pure. `SHAPES` is the only table of tokens: everything logged, stored, sent or shown is searched with it. A token is
found at a word boundary and after an escape (`\n`, `\u000a`, `%0A`, terminal codes), with some of its characters
escaped, and in base64. Each shape is first searched by one rare character, and no pattern tries the same characters
twice, so clean text costs little and the time is always linear.
"""

from __future__ import annotations

import base64
import binascii
import re
import string
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

from adws.adw_modules.redaction.patterns import Match, SourceMap, is_opaque

_LETTERS = frozenset(string.ascii_letters)
_WORD = _LETTERS.union(string.digits)


class _Shape(NamedTuple):
    """A kind of token."""

    gate: str  #: a character that each token of this kind contains and that is rare elsewhere
    near: str  #: a pattern for the text around the gate
    hint: str  #: a pattern for where such a token may be: starts with the gate, group 1 starts with the token
    pattern: str  #: pattern of the token from its start; group 1, if any, is the secret
    glue: frozenset[str]  #: characters that may not precede it
    accepts: Callable[[str], bool] | None  #: further check of the secret where the pattern is not enough


def _shape(
    prefix: str, body: str, *, glue: frozenset[str] = _WORD, accepts: Callable[[str], bool] | None = None
) -> _Shape:
    """Return the shape of tokens made of *prefix*, whose gate is in `<>`, and *body*."""
    before, _, rest = prefix.partition("<")
    gate, _, after = rest.partition(">")
    # The hint examines only the first part of the body, and only its minimum length: `[a-z]{10,}` is `[a-z]{10}`.
    shortest = body.removeprefix("(").partition("}")[0].partition(",")[0] + "}"
    hint = f"{gate}(?<=({before}{gate}))(?={after}{shortest})"
    pattern = f"{before}{gate}{after}{body}"

    near = after + shortest
    if before:
        # Check the text before the gate last if possible: most places are ruled out by what follows the gate.
        has_one_width = not {"(", ","}.intersection(after)
        near = f"{near}(?<={before}{gate}{near})" if has_one_width else f"(?<={before}{gate}){near}"

    return _Shape(gate, near, hint, pattern, glue, accepts)


def _is_user_and_password(value: str) -> bool:
    """Return whether *value* is the base64 of `user:password`."""
    try:
        return b":" in base64.b64decode(value[: len(value) // 4 * 4])
    except ValueError:
        return False


_ANYWHERE: frozenset[str] = frozenset()
_SAFE = r"[A-Za-z0-9_\-]"
_SCHEME = r"[ \t+]{1,4}"
_SCHEME_VALUE = r"([A-Za-z0-9._~+/=\-]{8,})"
_QUERY_VALUE = r"([^\s&#\"'<>\\]{6,})"
#: The secret that belongs to the id of an AWS key: 40 characters.
_FORTY = r"(?<![A-Za-z0-9/+])([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])"
_FORTY_ESCAPED = r"(?:\\[a-z]|%[0-9A-F]{2}|\+)([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])"

#: Every kind of token, ordered by the gate.
SHAPES: tuple[_Shape, ...] = (
    _shape("(?i:[?&]sig)<=>", _QUERY_VALUE, glue=_ANYWHERE),
    _shape("(?i:[?&]signature)<=>", _QUERY_VALUE, glue=_ANYWHERE),
    _shape("(?i:[?&]x-amz-signature)<=>", _QUERY_VALUE, glue=_ANYWHERE),
    _shape("(?i:[?&]x-amz-credential)<=>", _QUERY_VALUE, glue=_ANYWHERE),
    _shape("<A>(?:KIA|SIA|BIA|CCA)", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _shape("<A>[KS]IA", rf"[A-Z0-9]{{16}}[^\r\n]{{0,100}}?{_FORTY}"),
    _shape("<A>[KS]IA", rf"[A-Z0-9]{{16}}[^\r\n]{{0,100}}?{_FORTY_ESCAPED}"),
    _shape("<A>Iza", _SAFE + "{30,}"),
    _shape("pypi-<A>gE", _SAFE + "{16,}"),
    _shape("<A>GE-SECRET-KEY-1", "[A-Za-z0-9]{16,}", glue=_ANYWHERE),
    _shape("<A>TATT3", r"[A-Za-z0-9_\-=]{16,}"),
    # A bot token: its number, a colon, 35 characters.
    *(_shape(f"[0-9]{{{digits}}}:<A>A", _SAFE + r"{32,34}(?![A-Za-z0-9_\-])") for digits in (8, 9, 10)),
    _shape("<B>(?i:earer)" + _SCHEME, _SCHEME_VALUE, glue=_LETTERS, accepts=is_opaque),
    _shape("<B>(?i:asic)" + _SCHEME, _SCHEME_VALUE, glue=_LETTERS, accepts=_is_user_and_password),
    _shape(r"S<G>\.", rf"{_SAFE}{{16,64}}\.{_SAFE}{{16,128}}"),
    # The glue includes every character of the body: otherwise each `-eyJ` of a long line would start a search.
    _shape("ey<J>", rf"{_SAFE}{{10,}}+(?:\.{_SAFE}{{4,}}+){{1,4}}+", glue=_WORD.union("_-")),
    _shape("GOCSP<X>-", _SAFE + "{16,}"),
    _shape("<b>(?i:earer)" + _SCHEME, _SCHEME_VALUE, glue=_LETTERS, accepts=is_opaque),
    _shape("<b>(?i:asic)" + _SCHEME, _SCHEME_VALUE, glue=_LETTERS, accepts=_is_user_and_password),
    _shape("<g>l(?:pat|ptt|rt|dt|cbt|ft|soat|agent|imt|oas)-", r"[A-Za-z0-9_.\-]{16,}"),
    _shape("g<h>[pousr]_", "[A-Za-z0-9_]{10,}"),
    _shape("git<h>ub_pat_", "[A-Za-z0-9_]{10,}"),
    _shape("w<h>sec_", r"[A-Za-z0-9+/=_\-]{16,}"),
    _shape("<h>f_", "[A-Za-z0-9]{30,}"),
    _shape("s<h>p(?:at|ca|pa|ss)_", "[A-Fa-f0-9]{24,}"),
    _shape(r"<h>v[sb]\.", _SAFE + "{20,}"),
    _shape("s<k>-ant-", _SAFE + "{8,}"),
    _shape("s<k>-(?:proj|svcacct|admin|None|or-v1)-", _SAFE + "{16,}"),
    _shape("s<k>-", "[A-Za-z0-9]{20,}"),
    _shape("[srp]<k>_(?:live|test)_", "[A-Za-z0-9]{10,}"),
    _shape("gs<k>_", "[A-Za-z0-9]{24,}"),
    _shape("dc<k>r_(?:pat|oat)_", _SAFE + "{16,}"),
    _shape(r"hooks\.slac<k>\.com/(?:services|workflows|triggers)/", r"([A-Za-z0-9_+/\-]{10,})", glue=_ANYWHERE),
    _shape("/api/webhoo<k>s/[0-9]{5,24}/", f"({_SAFE}{{16,}})", glue=_ANYWHERE),
    _shape("n<p>m_", "[A-Za-z0-9]{20,}"),
    _shape("lin_a<p>i_", "[A-Za-z0-9]{16,}"),
    _shape("do[opr]_<v>1_", "[a-f0-9]{32,}"),
    _shape(r"<x>ox[abeoprs](?:\.xox[a-z])?-", r"[A-Za-z0-9\-]{10,}"),
    _shape("<x>app-", r"[A-Za-z0-9\-]{10,}"),
    _shape("<x>ai-", "[A-Za-z0-9]{24,}"),
    _shape("ppl<x>-", "[A-Za-z0-9]{24,}"),
    _shape(r"<y>a29\.", r"[A-Za-z0-9_.\-]{16,}"),
)

#: The password of a URL. It may contain `@`, but not `/`, so a search ends at the next `://` at the latest.
_URL_PASSWORD = re.compile(r"://[^\s/?#\"'<>:@]{0,256}:([^\s/\"'<>]{1,1024})@")
#: The user name of a URL without password, which may be a token; ssh user names are not secrets.
_URL_USER = re.compile(r"(?<!ssh)://([^\s/?#\"'<>:@]{16,256})@")
_PEM_BEGIN = re.compile(r"-----BEGIN[ +][A-Z0-9 +]{0,40}PRIVATE[ +]KEY[A-Z +]{0,20}-----")
_PEM_END = re.compile(r"-----END[ +][A-Z0-9 +]{0,80}-----")
#: Maximum length of a private key; an unclosed one hides that much.
PEM_LONGEST = 32_768

#: What every text with a token has: a character that is found quickly, and a pattern, starting with it if possible.
_HINTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    *(
        (gate, re.compile(f"{gate}(?:{'|'.join(shape.near for shape in shapes)})", re.ASCII))
        for gate, shapes in groupby(SHAPES, key=lambda shape: shape.gate)
    ),
    ("@", re.compile(r"://[^\s/?#\"'<>:@]*+(?::[^\s/\"'<>@]*+|(?<=[^\s/?#\"'<>:@]{16}))@")),
    ("Y", re.compile(r"-----BEGIN[ +][A-Z0-9 +]{0,40}PRIVATE[ +]KEY")),
)

#: Escapes that end in a letter or digit but do not stand for one, directly before a token.
_ESCAPE_BEFORE = re.compile(
    r"""
    (?:\\+(?:[a-z]|[0-7]{1,3}|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})
    |%(?:25)*[0-9a-f]{2}
    |(?:\x1b|\x9b|\\+(?:x1b|u001b|033|e)|%(?:25)*1b|\^\[)(?:\[|%(?:25)*5b)?[0-?]*[\ -/]*[@-~]
    |\[[0-9;]+[mk])\Z
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_LONGEST_ESCAPE = 40

#: Terminal codes, which are removed, and escapes of printable characters, in any number of layers.
_CODES = re.compile(
    r"""
    [\x1b\\%&]
    (?:(?<=\x1b)(?:\[[0-?]*+[\ -/]*+[@-~]|[@-Z\\-_])
    |(?<=%)(?:25)*+1[bB](?:\[|%(?:25)*+5[bB])[0-?]*+[\ -/]*+[@-~]
    |(?<=%)(?:25)*(?P<percent>[2-7][0-9a-fA-F])
    |(?<=\\)(?<!\\\\)\\*+
     (?:(?:x1[bB]|u001[bB]|033|e)\[[0-?]*+[\ -/]*+[@-~]|(?:u00|x)(?P<escape>[2-7][0-9a-fA-F])|(?P<slash>/))
    |(?<=&)(?:(?P<amp>amp)|\#0*+(?P<decimal>[3-9][0-9]|1[01][0-9]|12[0-6])|\#x0*+(?P<entity>[2-7][0-9a-fA-F]));)
    """,
    re.VERBOSE,
)

#: What every text with such codes has. A pattern that starts with one character is searched several times as fast.
_CODE_HINTS = (
    ("\\", re.compile(r"\\(?:u00[1-7][0-9a-fA-F]|x[1-7][0-9a-fA-F]|033\[|e\[|/)")),
    ("%", re.compile(r"%(?:25)*[1-7][0-9a-fA-F]")),
    ("&", re.compile(r"&(?:amp|#)")),
    ("\x1b", re.compile(r"\x1b")),
)

#: Shortest base64 run that is decoded: a shorter one is not a token.
_SHORTEST_RUN = 24
_BASE64 = (string.ascii_letters + string.digits + "+/-_").encode()
#: Class of each byte: a capital letter, another base64 character, or neither.
_CLASSES = bytes(ord("X") if 65 <= byte <= 90 else ord("x") if byte in _BASE64 else ord(" ") for byte in range(256))
#: The base64 of a token has capital letters, also in its first half; hashes, UUIDs and most paths have none.
_FROM_CAPITAL = re.compile(rb"X[Xx]{12,}+")
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_PRINTED = re.compile(r"[\t\r\n -~]*")


class _Below(NamedTuple):
    """The original of a text whose codes were removed."""

    text: str
    places: SourceMap


def find(text: str) -> Iterator[Match]:
    """Yield every secret of a known kind in *text*, also escaped or in base64."""
    yield from _find_in(text)
    plain = _without_codes(text)
    if plain is None or not _may_have(plain):
        return
    below = _Below(text, SourceMap(text, _CODES, _plain))
    for match in _find_in(plain, below):
        start, end = below.places.back(match.start, match.end)
        context, _ = below.places.back(match.context, match.context + 1)
        edge = _context_of(text, context, _WORD)
        yield Match(context if edge is None else edge, start, end)


def may_have_tokens(payload: bytes) -> bool:
    """Return quickly whether `find` may find something in *payload*, which may be JSON."""
    text = payload.decode("latin-1")
    if _may_have(text):
        return True
    plain = _without_codes(text)

    return plain is not None and _may_have(plain)


def _may_have(text: str) -> bool:
    if _has_hint(text):
        return True
    decoded = _all_decoded(text)

    return decoded != "" and _has_hint(decoded)


def _has_hint(text: str) -> bool:
    for gate, pattern in _HINTS:  # noqa: SIM110 - runs at every step, and any() takes half as long again
        if gate in text and pattern.search(text) is not None:
            return True

    return False


def _find_in(text: str, below: _Below | None = None) -> Iterator[Match]:
    if _has_hint(text):
        yield from _find_tokens(text, below)
    decoded = _all_decoded(text)
    if decoded and _has_hint(decoded):
        for at, run in _base64_runs(text):
            yield from _find_in_base64(at, run)


def _find_tokens(text: str, below: _Below | None = None) -> Iterator[Match]:
    for shape in SHAPES:
        if shape.gate in text:
            yield from _find_shape(shape, text, below)
    if "@" in text:
        for item in _URL_PASSWORD.finditer(text):
            yield Match(item.start(), *item.span(1))
        for item in _URL_USER.finditer(text):
            if is_opaque(item[1]):
                yield Match(item.start(), *item.span(1))
    if "PRIVATE" in text:
        yield from _find_private_keys(text)


def _find_shape(shape: _Shape, text: str, below: _Below | None) -> Iterator[Match]:
    pattern = re.compile(shape.pattern, re.ASCII)  # not at import: most commands meet no token
    at = 0
    for place in re.finditer(shape.hint, text, re.ASCII):
        start = place.start(1)
        if start < at:
            continue
        context = _context_of(text, start, shape.glue)
        if context is None and below is not None:
            # A removed terminal code may have separated it from the word before.
            source, _ = below.places.back(start, start + 1)
            context = None if _context_of(below.text, source, shape.glue) is None else start
        found = None if context is None else pattern.match(text, start)
        if context is None or found is None:
            continue
        at = found.end()
        if shape.accepts is None or shape.accepts(found[pattern.groups]):
            yield Match(context, *found.span(pattern.groups))


def _context_of(text: str, start: int, glue: frozenset[str]) -> int | None:
    """Return where the context of a token at *start* begins, or None if it is part of a longer word."""
    if start == 0 or text[start - 1] not in glue:
        return start
    escape = _ESCAPE_BEFORE.search(text, max(0, start - _LONGEST_ESCAPE), start)

    return None if escape is None else escape.start()


def _find_private_keys(text: str) -> Iterator[Match]:
    """Yield the private keys in *text* with their frame; a truncated one reaches to the end."""
    at = 0
    while (begin := _PEM_BEGIN.search(text, at)) is not None:
        stop = min(len(text), begin.end() + PEM_LONGEST)
        end = _PEM_END.search(text, begin.end(), stop)
        at = stop if end is None else end.end()
        yield Match(begin.start(), begin.start(), at)


def _without_codes(text: str) -> str | None:
    """Return *text* without terminal codes and escapes of printable characters, or None if it has none."""
    for gate, pattern in _CODE_HINTS:
        if gate in text and pattern.search(text) is not None:
            return _CODES.sub(_plain, text)

    return None


def _plain(found: re.Match[str]) -> str:
    """Return the character that an escape encodes, or ""."""
    if digits := found["percent"] or found["escape"] or found["entity"]:
        return chr(int(digits, 16))
    if digits := found["decimal"]:
        return chr(int(digits))
    if found["amp"]:
        return "&"

    return found["slash"] or ""


def _base64_runs(text: str) -> Iterator[tuple[int, bytes]]:
    """Yield every part of *text* that may be base64 of a token, and where it begins."""
    if len(text) < _SHORTEST_RUN:
        return
    payload = text.encode("latin-1", "replace")  # one byte per character
    classes = payload.translate(_CLASSES)
    for item in _FROM_CAPITAL.finditer(classes):
        at = classes.rfind(b" ", 0, item.start()) + 1
        if item.end() - at >= _SHORTEST_RUN:
            yield at, payload[at : item.end()].translate(_TO_STANDARD)


def _all_decoded(text: str) -> str:
    """Return all base64 in *text* decoded, at each of the four possible alignments."""
    if _FROM_CAPITAL.search(text.encode("latin-1", "replace").translate(_CLASSES)) is None:
        return ""

    return b"\0".join([_decoded(run, first) for _, run in _base64_runs(text) for first in range(4)]).decode("latin-1")


def _decoded(run: bytes, first: int) -> bytes:
    length = len(run) - first
    whole = run[first : first + length - (length % 4 == 1)]  # a single character encodes nothing

    return binascii.a2b_base64(whole + b"==")


def _find_in_base64(at: int, run: bytes) -> Iterator[Match]:
    """Yield the tokens whose base64 is in *run*, which begins at *at*, including characters shared with neighbours."""
    for first in range(4):
        text = _decoded(run, first).decode("latin-1")
        for match in _find_tokens(text):
            if _PRINTED.fullmatch(text, match.start, match.end) is not None:
                start = at + first + match.start * 4 // 3
                end = at + first + -(-match.end * 4 // 3)
                yield Match(start, start, min(end, at + len(run)))
