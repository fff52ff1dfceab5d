"""
Shared parts of the redaction nets, and the first net: values hidden because of their name.

Pure. A name is split into words (`githubToken`, `GITHUB_TOKEN` and `github-token` give the same two) and the words
decide, so `monkey`, `keyboard`, `max_tokens` and `primary_key` are not secrets. The tables below are the whole rule.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

#: Replacement for a secret.
MASK = "[redacted]"


class Match(NamedTuple):
    """A secret in a text, and where the context that identifies it begins."""

    context: int  #: start of the text needed to recognise it, such as the name before the value
    start: int
    end: int


class SourceMap:
    """Maps positions in `escapes.sub(plain, text)` to *text*; *plain* returns at most one character per escape."""

    __slots__ = ("_above", "_ends", "_starts")

    def __init__(self, text: str, escapes: re.Pattern[str], plain: Callable[[re.Match[str]], str]) -> None:
        #: One entry per unchanged run, one per decoded character, and one for the end.
        self._above: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        at = above = 0
        for item in escapes.finditer(text):
            above = self._add(above, at, item.start(), width=item.start() - at)
            above = self._add(above, item.start(), item.end(), width=len(plain(item)))
            at = item.end()
        self._above.append(self._add(above, at, len(text), width=len(text) - at))

    def _add(self, above: int, start: int, end: int, *, width: int) -> int:
        if width:
            self._above.append(above)
            self._starts.append(start)
            self._ends.append(end)

        return above + width

    def back(self, start: int, end: int) -> tuple[int, int]:
        """Return the span of the original text that the characters from *start* to *end* came from."""
        first = bisect_right(self._above, start) - 1
        last = bisect_right(self._above, end - 1) - 1
        is_run = self._above[last + 1] - self._above[last] > 1
        stop = self._starts[last] + end - self._above[last] if is_run else self._ends[last]

        return self._starts[first] + start - self._above[first], stop


#: Runs of one kind of character, without the separators in paths.
_RUN = re.compile(r"[a-z]+|[A-Z]+|[0-9]+|[^A-Za-z0-9/._\-]")
#: Threshold of runs per character: random text has about 0.6, paths about 0.25.
_RUNS_OF_CHANCE = 0.4


def is_opaque(value: str) -> bool:
    """Return whether *value* looks generated: long and mixing letters with digits, or one very long word."""
    if len(value) < 8:
        return False

    has_digit = any(character.isdigit() for character in value)
    has_letter = any(character.isalpha() for character in value)
    return (has_digit and has_letter and (len(value) >= 16 or not value.isalnum() or _is_mixed(value))) or (
        len(value) >= 24 and value.isalnum()
    )


def is_drawn(path: str) -> bool:
    """Return whether *path*, although it begins like a file path, looks randomly generated, whole or in part."""
    if any(len(part) >= 16 and is_opaque(part) for part in path.split("/")):
        return True

    # Base64 may begin with and contain slashes. Words in paths are longer than runs of one kind in random text.
    return len(path) >= 16 and len(_RUN.findall(path)) > len(path) * _RUNS_OF_CHANCE


def _is_mixed(value: str) -> bool:
    """Return whether letters and digits alternate more than in a word that ends in a number."""
    changes = sum(a.isdigit() != b.isdigit() for a, b in pairwise(value))

    return changes > 1


def _set_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


#: Words that make a name secret anywhere in it.
STRONG_WORDS = _set_of(
    "password passwords passwd passphrase passcode pwd secret secrets credential credentials creds authorization "
    "cookie cookies dsn jwt bearer apikey apikeys secretkey privatekey accesskey authtoken accesstoken refreshtoken "
    "sessiontoken clientsecret pgpassword htpasswd keytab"
)
#: Words that make a name secret only as the last word (before an optional number).
WEAK_WORDS = frozenset(["token", "auth", "pat"])
#: `key`, `keys` and `tokens` are secret after one of these.
KEY_OWNERS = _set_of(
    "api private secret access encryption encrypt signing sign ssh gpg pgp master auth service account deploy session "
    "client storage shared bearer refresh webhook host root admin app bot personal license subscription tls ssl rsa "
    "anthropic openai github gitlab gh aws azure gcp google slack stripe sendgrid twilio datadog sentry npm pypi "
    "claude linear jira cloudflare heroku supabase firebase mailgun"
)
#: `SOME_KEY` in capitals is an environment variable, and secret unless one of these words precedes `KEY`.
PLAIN_KEYS = _set_of(
    "primary foreign public sort partition cache idempotency event issue group row hash natural surrogate composite "
    "candidate unique index dedup lookup routing object bucket registry hot arrow function"
)
#: A name with such an ending describes a secret and is not one.
DESCRIBING_ENDS = _set_of(
    "count counts used usage limit limits budget total totals type types kind name names file files filename path "
    "dir directory length len min max size policy required expires expiry expiration ttl age at url uri endpoint field "
    "fields enabled disabled present status state index rate cost price ratio window version format prefix hint scope "
    "scopes manager store provider source rotation error errors stream reset changed missing valid invalid sock socket "
    "agent mode method id ids in per seconds"
)
#: A name with such a beginning is a yes-no question or a number, not a secret.
ASKING_STARTS = _set_of("is has had needs requires require no use uses max min num total")
#: A working directory, not a password.
NOT_SECRET = frozenset(["PWD", "OLDPWD", "pwd"])
#: Values that mean "no value".
EMPTY_VALUES = frozenset(["", "none", "null", "nil", "true", "false", "undefined", "unset", "empty"])

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
#: Headers whose value extends to the end of the line.
_HEADERS = _set_of("authorization proxy-authorization cookie set-cookie x-api-key x-auth-token")

# Possessive parts (`++`) prevent backtracking: a name is read once, from its first letter. The lookbehind comes after
# the first letter, because a pattern that starts with a character set is searched three times as fast.
_ASSIGNED = re.compile(
    r"""
    (?P<name>[A-Za-z_.\-](?<![A-Za-z0-9_.\-].)[A-Za-z0-9_.\-]*+) (?P<close>\\*+["'`])?+
    [ \t]{0,4}+ (?P<sep>=>|:=|={1,2}|:) [ \t]{0,4}+
    (?P<open>[bru]?\\*+["'`])?+
    """,
    re.VERBOSE,
)
_OPTION = re.compile(
    r"""--(?<![A-Za-z0-9_.\-]--)(?P<name>[A-Za-z][A-Za-z0-9_.\-]*+)[ \t]{1,4}+(?!-)(?P<open>["'`])?+"""
)
_SAID = re.compile(
    r"(?i:[tspa](?<![a-z0-9].)(?:oken|ecret|ass(?:word|wd|phrase)|pi[ _\-]?key)(?: is| was)?)[ \t]{1,4}"
    r"([^\s\"'`&:=,;]{8,})"
)
#: Names of secrets in the query of a URL that are ordinary words elsewhere.
_QUERY = re.compile(r"(?i:[?&](?:key|pw|pass|auth|code)=)([^\s&#\"'<>\\]{6,})")
_BARE = re.compile(r"""[^\s"'`&]++""")
_WORD_ONLY = re.compile(r"""[^\s"'`&:=,;(){}\[\]<>]++""")
_REST_OF_LINE = re.compile(r"""[^\r\n"'`]++""")
_TRAILING = ")]},;.>"
_QUOTES = ('"', "'", "`")
#: What follows a string in JSON.
_AFTER_STRING = re.compile(r"""\s*+(?:,\s*+(?:\\*+"|[\[{]|-?[0-9]+[,}\]]|true|false|null)|[}\]]++\s*+(?:[,\\"]|\Z))""")
#: Maximum characters of a name that are examined, from its end.
_LONGEST_NAME = 256


def words_of(name: str) -> tuple[str, ...]:
    """Return the words of *name* in lower case, whatever joins them."""
    return tuple(word.lower() for word in _WORD.findall(name))


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a value named *name* is a secret."""
    words = words_of(name)
    if not words or name in NOT_SECRET or words[0] in ASKING_STARTS:
        return False
    if words[-1].isdigit() and len(words) > 1:
        words = words[:-1]
    if words[-1] in DESCRIBING_ENDS:
        return words[-1] in {"id", "ids"} and "secret" in words
    if STRONG_WORDS.intersection(words) or words[-2:] == ("connection", "string"):
        return True
    if words[-1] in WEAK_WORDS:
        return True

    return _is_key_of_something(name, words)


def _is_key_of_something(name: str, words: tuple[str, ...]) -> bool:
    """Decide names that end in `key`, `keys` or `tokens`, most of which are harmless."""
    if len(words) == 1 or words[-1] not in {"key", "keys", "tokens"}:
        return False
    if words[-2] in KEY_OWNERS:
        return True

    return words[-1] == "key" and name.isupper() and words[-2] not in PLAIN_KEYS


def find_named(text: str) -> Iterator[Match]:
    """Yield the values in *text* that follow a secret's name: `k=v`, `--k v`, `"k": "v"`, header lines."""
    for pattern in (_ASSIGNED, _OPTION):
        at = 0
        while (item := pattern.search(text, at)) is not None:
            at = item.end()
            is_quoted_name = pattern is _ASSIGNED and item["close"] is not None
            if item["open"] is not None and not is_quoted_name and _AFTER_STRING.match(text, at) is not None:
                continue  # the quote ends a JSON string whose last word is the name
            name = item["name"][-_LONGEST_NAME:].strip(".-")
            # In JSON and in Python the `n` of an escaped line break precedes the name: `\\npassword=`.
            is_escaped = item.start() > 0 and text[item.start() - 1] == "\\"
            if is_secret_name(name) or (is_escaped and is_secret_name(name[1:])):
                # Hidden text is not searched again: a value with many names stays linear.
                at = _end_of_value(text, item, name)
                yield from _span(text, item.start() - is_escaped, item.end(), at)
    if "=" in text:
        for item in _QUERY.finditer(text):
            yield Match(item.start(), *item.span(1))
    lowered = text.lower()
    if not any(word in lowered for word in ("token", "secret", "pass", "key")):
        return
    for item in _SAID.finditer(text):
        if is_opaque(item[1].rstrip(_TRAILING)):
            yield from _span(text, item.start(), *item.span(1))


def _end_of_value(text: str, found: re.Match[str], name: str) -> int:
    """Return where the value after the name in *found* ends; its start if it is not a value."""
    start = found.end()
    if found["open"] is not None:
        return _end_of_quoted(text, start, found["open"].lstrip("bru"))
    if found.re is _OPTION or found["sep"] != ":":
        return _end_of(_BARE, text, start)
    if name.lower() in _HEADERS:
        return _end_of(_REST_OF_LINE, text, start)
    if STRONG_WORDS.isdisjoint(words_of(name)) and found["close"] is None:
        # `unexpected token: identifier` is a sentence; only generated-looking text is a value here.
        end = _end_of(_WORD_ONLY, text, start)
        return end if is_opaque(text[start:end]) else start
    if text.startswith(("{", "["), start) and not text.startswith(MASK, start):
        return start

    return _end_of(_BARE, text, start)


def _end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)

    return start if match is None else match.end()


def _span(text: str, context: int, start: int, end: int) -> Iterator[Match]:
    """Yield the span without trailing punctuation, unless it is empty, means "no value" or is already hidden."""
    value = text[start:end]
    if text.startswith(_QUOTES, end):
        value = value.rstrip("\\")  # the escape of a quote is not part of the value: JSON stays JSON
    if value.startswith(MASK) and not value[len(MASK) :].strip(_TRAILING):
        return
    value = value.rstrip(_TRAILING) or value
    if value.lower() in EMPTY_VALUES:
        return

    yield Match(context, start, start + len(value))


def _end_of_quoted(text: str, start: int, quote: str) -> int:
    """Return where the text opened by *quote* ends: at the same quote or at the end of the line."""
    at = text.find(quote, start)
    while at >= 0 and _is_escaped(text, start, at, quote):
        at = text.find(quote, at + len(quote))
    line_end = text.find("\n", start, at if at >= 0 else len(text))
    if line_end >= 0:
        return line_end

    return at if at >= 0 else len(text)


def _is_escaped(text: str, start: int, at: int, quote: str) -> bool:
    """Return whether the quote at *at* belongs to the value: it has more backslashes than the opening quote."""
    before = 0
    while at - before > start and text[at - before - 1] == "\\":
        before += 1

    return before % 2 == 1 if len(quote) == 1 else before > 0
