"""One token of every kind that is known by its shape, and every surrounding in which one must be found."""

from __future__ import annotations

import base64
import html
import itertools
import json
import random
import string
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote, quote_plus, unquote

from tests import planted

_ALPHANUMERIC = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"
_UPPER = string.ascii_uppercase + string.digits
_URL_SAFE = _ALPHANUMERIC + "_-"


class Sample(NamedTuple):
    """A text that is secret in part or as a whole."""

    text: str
    secret: str


def samples(rng: random.Random) -> dict[str, Sample]:
    """Return one sample of every kind, drawn by *rng*, in the length that such tokens have."""

    def draw(count: int, alphabet: str = _ALPHANUMERIC) -> str:
        return "".join(rng.choices(alphabet, k=count))

    whole = {
        **{f"gh{kind}_": f"gh{kind}_{draw(36)}" for kind in "pousr"},
        "github_pat_": f"github_pat_{draw(22)}_{draw(59)}",
        **{
            f"gl{kind}-": f"gl{kind}-{draw(20)}"
            for kind in ("pat", "ptt", "rt", "dt", "cbt", "ft", "soat", "imt", "oas")
        },
        "glagent-": f"glagent-{draw(50, _URL_SAFE)}z",
        "sk-ant-": f"sk-ant-api03-{draw(93, _URL_SAFE)}AA",
        **{f"sk-{kind}-": f"sk-{kind}-{draw(60)}" for kind in ("proj", "svcacct", "admin", "or-v1")},
        "sk-": f"sk-{draw(48)}",
        "xoxb-": f"xoxb-{draw(12, string.digits)}-{draw(12, string.digits)}-{draw(24)}",
        "xoxe.xoxp-": f"xoxe.xoxp-1-{draw(60)}",
        "xapp-": f"xapp-1-A{draw(10, _UPPER)}-{draw(12, string.digits)}-{draw(40, _HEX)}",
        **{kind: f"{kind}{draw(16, _UPPER)}" for kind in ("AKIA", "ASIA", "ABIA", "ACCA")},
        "AIza": f"AIza{draw(34, _URL_SAFE)}z",
        "JSON web token": f"eyJ{draw(33)}.eyJ{draw(60)}.{draw(43, _URL_SAFE)}",
        "ya29.": f"ya29.a0{draw(60, _URL_SAFE)}",
        "GOCSPX-": f"GOCSPX-{draw(27)}z",
        "npm_": f"npm_{draw(36)}",
        "pypi-": f"pypi-AgEIcHlwaS5vcmc{draw(60, _URL_SAFE)}",
        **{f"{a}k_{b}_": f"{a}k_{b}_{draw(24)}" for a in "srp" for b in ("live", "test")},
        "whsec_": f"whsec_{draw(32)}",
        "hf_": f"hf_{draw(34)}",
        "SG.": f"SG.{draw(22)}.{draw(43)}",
        **{f"do{kind}_v1_": f"do{kind}_v1_{draw(64, _HEX)}" for kind in "opr"},
        **{f"shp{kind}_": f"shp{kind}_{draw(32, _HEX)}" for kind in ("at", "ca", "pa", "ss")},
        "dckr_pat_": f"dckr_pat_{draw(27)}",
        "dckr_oat_": f"dckr_oat_{draw(32)}",
        "hvs.": f"hvs.{draw(90)}",
        "hvb.": f"hvb.{draw(120)}",
        "age": f"AGE-SECRET-KEY-1{draw(58, _UPPER)}",
        "gsk_": f"gsk_{draw(52)}",
        "xai-": f"xai-{draw(80)}",
        "pplx-": f"pplx-{draw(48)}",
        "lin_api_": f"lin_api_{draw(40)}",
        "ATATT3": f"ATATT3{draw(180)}",
        **{f"bot of {n}": f"{draw(1, '123456789')}{draw(n - 1, string.digits)}:AA{draw(33)}" for n in (8, 9, 10)},
        "private key": f"-----BEGIN RSA PRIVATE KEY-----\n{draw(64)}\n{draw(64)}\n-----END RSA PRIVATE KEY-----",
    }
    result = {name: Sample(text, text) for name, text in whole.items()}

    def inside(name: str, text: str, secret: str) -> None:
        result[name] = Sample(text.format(secret), secret)

    inside("Slack webhook", f"https://hooks.slack.com/services/T{draw(8, _UPPER)}/B{draw(8, _UPPER)}/{{}}", draw(24))
    inside("Discord webhook", f"https://discord.com/api/webhooks/{draw(18, string.digits)}/{{}}", draw(68))
    inside("signed URL", "https://x.blob.example/f?sv=2020&sig={}", draw(43))
    inside("signature of a URL", "https://x.example/f?a=1&Signature={}", draw(43))
    inside("AWS signature", "https://s3.example/f?X-Amz-Signature={}", draw(64, _HEX))
    inside("AWS credential", "https://s3.example/f?X-Amz-Credential={}", draw(40))
    inside("AWS pair", f"AKIA{draw(16, _UPPER)} {{}}", f"{draw(12)}/{draw(15)}+{draw(11)}")
    inside("password of a URL", "postgresql://adw:{}@db.example/adw", draw(20))
    inside("user of a URL", "https://{}@git.example/o/r", f"a1b2c3{draw(34)}")
    inside("bearer", "Bearer {}", f"a1b2c3{draw(34)}")
    inside("basic", "Basic {}", base64.b64encode(f"user:{draw(22)}".encode()).decode())
    return result


#: What stands between a word and a token and ends in a letter or a digit, or sets the token apart.
ESCAPES = (
    *(r"\n", r"\t", r"\r\n", r"\\n", r"\\\\n", r"\u000a", r"\\u000A", r"\x0a", r"\012", r"\0"),
    *("%0A", "%0d%0a", "%3D", "%250A", "%25253d", "&#10;", "&quot;"),
    *("\x1b[0m", "\x1b[31m", "\x1b[1;38;5;208m", "\x1b[K", r"\x1b[31m", r"\u001b[0m", r"\033[1m", r"\e[1m", "^[[31m"),
)


def _terminal_codes(text: str) -> str:
    # As `grep --color` writes a match, that of the first characters.
    return f"word\x1b[01;31m\x1b[K{text[:5]}\x1b[m\x1b[K{text[5:]}"


#: How a token gets into a text; most of these surroundings hid one before.
SURROUNDINGS: dict[str, Callable[[str], str]] = {
    "alone": lambda text: text,
    "in a sentence": lambda text: f"see {text} there",
    "on a line": lambda text: f"line\n{text}\nline",
    "assigned": lambda text: f"VALUE={text}",
    "in quotes": lambda text: f'x = "{text}"',
    **{f"after {escape!r}": lambda text, escape=escape: f"word{escape}{text}" for escape in ESCAPES},
    "repr": lambda text: repr(f"word\n{text}\nword"),
    "repr of bytes": lambda text: repr(f"word\n{text}\nword".encode()),
    "repr of repr": lambda text: repr(repr(f"word\t{text}\n")),
    "JSON": lambda text: json.dumps({"x": f"word\n{text}\nword"}),
    "JSON in JSON": lambda text: json.dumps({"x": json.dumps({"y": f"word\r\n{text}\r\nword"})}),
    "JSON in JSON in JSON": lambda text: json.dumps([json.dumps([json.dumps([f"word\n{text}"])])]),
    "JSON with escaped slashes": lambda text: json.dumps({"x": f"word\n{text}"}).replace("/", "\\/"),
    "percent codes": lambda text: quote(f"https://h/?x=word\n{text}", safe=""),
    "percent codes twice": lambda text: quote(quote(f"x={text}", safe=""), safe=""),
    "form": lambda text: f"x=1&y={quote_plus(text)}&z=2",
    "HTML": lambda text: f"<p>{html.escape(text)}</p>",
    "terminal codes inside": _terminal_codes,
    "terminal codes inside, in JSON": lambda text: json.dumps({"x": _terminal_codes(text)}),
    **{
        f"base64, {shift} before": lambda text, shift=shift: base64.b64encode(f"{'#' * shift}{text}#".encode()).decode()
        for shift in range(3)
    },
    "base64 of a file": lambda text: f"data: {base64.b64encode(f'A=1{chr(10)}B={text}{chr(10)}C=2'.encode()).decode()}",
    "URL-safe base64": lambda text: base64.urlsafe_b64encode(f"é {text}".encode()).decode().rstrip("="),
    "base64 in JSON": lambda text: json.dumps({"x": f"word\n{base64.b64encode(text.encode()).decode()}\n"}),
    "base64 in a URL": lambda text: f"https://h/?x={quote(base64.b64encode(text.encode()).decode(), safe='')}",
}


#: Of the ways to write a known secret, the surroundings that are like it.
_LIKE = {
    "plain": ("alone", "in a sentence"),
    "url query": ("percent codes",),
    "base64": ("base64, 0 before", "base64, 1 before", "base64, 2 before"),
}


def _is_key(text: str) -> bool:
    return text.startswith("-----BEGIN")


class TokenPlants(planted.Plants):
    """Hands out tokens that adw does not know, each in the surrounding whose turn it is."""

    def __init__(self, rng: random.Random, rounds: int) -> None:
        """*rounds* is how many of each kind there are."""
        self._secret_of: dict[str, str] = {}
        self._turns = itertools.cycle(SURROUNDINGS.items())
        self._variables: dict[str, str] = {}
        super().__init__(rng, rounds)

    def _draw(self, count: int) -> list[str]:
        drawn = [sample for _ in range(count) for sample in samples(self._rng).values()]
        self._secret_of.update((sample.text, sample.secret) for sample in drawn)
        self._rng.shuffle(drawn)
        texts = [sample.text for sample in drawn]
        # Some are wanted for places where nothing else may stand; those are taken from the end.
        kept = {*[text for text in texts if text.isalnum() and len(text) <= 100][:24], next(filter(_is_key, texts))}
        return sorted(texts, key=kept.__contains__)

    @property
    def hidden(self) -> dict[str, str]:
        """What must not be seen of all that was planted, and where that was."""
        return {self._secret_of[text]: where for text, where in self.where.items()}

    @property
    def env(self) -> dict[str, str]:
        """The variables that a phase tells: by their names adw cannot know that they have tokens."""
        return self._variables

    def names(self, secrets: list[str]) -> list[str]:
        """Return the names of the variables that have them."""
        names = {f"PLANTED_{self.secrets.index(secret):04}": secret for secret in secrets}
        self._variables.update(names)
        return list(names)

    def _write(self, secret: str, writings: tuple[str, ...]) -> tuple[str, str]:
        alike = _LIKE.get(writings[0]) if len(writings) == 1 else None
        name, surround = next(self._turns) if alike is None else ((name := self._rng.choice(alike)), SURROUNDINGS[name])

        return name, surround(secret)


def assert_gone(sample: Sample, output: str, what: str) -> None:
    """Fail when a piece of the secret is in *output*, as it is there or when escapes are taken off it."""
    for view in {output, unquote(unquote(output)), planted.unescaped(planted.unescaped(output)), html.unescape(output)}:
        planted.assert_hidden(sample.secret, view, what)
