"""
Secrets of the kinds there are, every way to write one into a text, and the search for what came out.

What a text shows of a secret is looked for in pieces of 12 characters: as it is, reversed, in hex and in base64.
"""

from __future__ import annotations

import base64
import html
import json
import random
import re
import string
import traceback
from collections.abc import Callable
from urllib.parse import quote, unquote

ALPHANUMERIC = string.ascii_letters + string.digits


def draw(rng: random.Random, alphabet: str, low: int, high: int) -> str:
    # One blank after another is not: programs that put words in lines make one of them.
    text = "".join(rng.choices(alphabet, k=rng.randint(low, high))).replace("  ", " _")
    # Blanks around a secret are not part of it: whoever reads one from a file or a variable strips them.
    return text if text == text.strip() else f"q{text[1:-1]}z"


def make_secret(rng: random.Random) -> str:
    """Return a secret of one of the kinds that tools hand out, or one that a person would choose."""
    kinds = [
        lambda: "ghp_" + draw(rng, ALPHANUMERIC, 36, 36),
        lambda: "github_pat_" + draw(rng, ALPHANUMERIC + "_", 70, 82),
        lambda: "sk-ant-api03-" + draw(rng, ALPHANUMERIC + "-_", 80, 95),
        lambda: "AKIA" + draw(rng, string.ascii_uppercase + string.digits, 16, 16),
        lambda: draw(rng, ALPHANUMERIC + "/+", 40, 40),
        lambda: draw(rng, string.hexdigits.lower()[:16], 32, 64),
        lambda: draw(rng, ALPHANUMERIC + "!#$%&()*+,-./:;<=>?@[]^_{|}~", 16, 32),
        lambda: draw(rng, ALPHANUMERIC + "\"'\\ äöü€", 16, 32),
        lambda: draw(rng, ALPHANUMERIC, 12, 16),
    ]

    return rng.choice(kinds)()


def shifted(rng: random.Random, secret: str) -> str:
    return base64.b64encode(
        rng.randbytes(rng.randint(0, 5)) + secret.encode() + rng.randbytes(rng.randint(0, 5))
    ).decode()


def with_codes(rng: random.Random, secret: str) -> str:
    at = rng.randint(1, len(secret) - 1)

    return f"{secret[:at]}\x1b[{rng.randint(0, 97)}m{secret[at:]}\x1b[0m"


def wrapped(rng: random.Random, secret: str) -> str:
    at = rng.randint(1, len(secret) - 1)

    return f"{secret[:at]}\n    {secret[at:]}"


def failing(secret: str) -> str:
    try:
        raise ValueError(f"could not use {secret}")  # noqa: TRY301 - the traceback is the point
    except ValueError as exc:
        return "".join(traceback.format_exception(exc))


#: How a secret gets into a text.
WRITINGS = {
    "plain": lambda rng, secret: secret,
    "first characters cut": lambda rng, secret: secret[rng.randint(0, max(0, len(secret) - 12)) :],
    "last characters cut": lambda rng, secret: secret[: rng.randint(12, len(secret))],
    "url password": lambda rng, secret: f"https://x-access-token:{quote(secret, safe='')}@github.com/o/r.git",
    "url query": lambda rng, secret: f"https://h/x?page=1&q={quote(secret, safe='')}#top",
    "base64": shifted,
    "urlsafe base64": lambda rng, secret: shifted(rng, secret).replace("+", "-").replace("/", "_").rstrip("="),
    "hex": lambda rng, secret: secret.encode().hex(),
    "HEX": lambda rng, secret: secret.encode().hex().upper(),
    "reversed": lambda rng, secret: secret[::-1],
    "ansi": with_codes,
    "wrapped": wrapped,
    "json": lambda rng, secret: json.dumps({"x": secret}),
    "json in json": lambda rng, secret: json.dumps({"x": json.dumps([secret])}),
    "repr": lambda rng, secret: repr(secret),
    "bytes repr": lambda rng, secret: repr(secret.encode()),
    "traceback": lambda rng, secret: failing(secret),
    "assignment": lambda rng, secret: f"export MY_TOKEN={secret} && run",
}


def pieces(text: str) -> set[str]:
    return {text[at : at + 12] for at in range(len(text) - 11)}


def forms(secret: str) -> set[str]:
    """Return every piece of the secret that must not be seen: as it is, reversed, in hex, in base64."""
    raw = secret.encode()
    coded = [
        base64.b64encode(b"\0" * shift + raw).decode()[(0, 2, 3)[shift] : 8 * (shift + len(raw)) // 6]
        for shift in range(3)
    ]
    texts = [
        secret,
        secret[::-1],
        raw.hex(),
        raw.hex().upper(),
        *coded,
        *(c.replace("+", "-").replace("/", "_") for c in coded),
    ]

    return {piece for text in texts for piece in pieces(text)}


def assert_hidden(secret: str, output: str, what: str) -> None:
    leaked = forms(secret) & pieces(output)
    assert not leaked, f"{what}: {sorted(leaked)[:3]} of {secret!r} came out in {output[:300]!r}"


def filler(rng: random.Random) -> str:
    words = ["phase", "plan", "took", "12.5", "s", "in", "/srv/app", "ok:", "(retry", "2)", "=", "[INFO]", "\n", "→"]

    return " ".join(rng.choices(words, k=rng.randint(0, 8)))


class Search:
    """Looks for many secrets at once in whatever was written or shown."""

    def __init__(self, secrets: dict[str, str]) -> None:
        """*secrets* are those that were planted, each with where."""
        self._places = {piece: where for secret, where in secrets.items() for piece in forms(secret)}
        self._pieces = self._places.keys()

    def leaks(self, what: str, text: str) -> list[str]:
        """Return what of the secrets is in *text*, with where that secret was planted; at most a few."""
        result: dict[str, str] = {}
        for view in {text, html.unescape(text), unquote(text), unescaped(text)}:
            for at in range(len(view) - 11):
                piece = view[at : at + 12]
                if piece in self._pieces:
                    around = view[max(0, at - 60) : at + 30]
                    result.setdefault(self._places[piece], f"{what} shows {piece!r} in {around!r}")
        return [f"planted in {where}: {said}" for where, said in list(result.items())[:5]]


def unescaped(text: str) -> str:
    """Return *text* without the backslashes that JSON and Python write."""
    if "\\" not in text:
        return text
    return re.sub(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", _plain, text.replace("\\\\", "\\"), flags=re.DOTALL)


def _plain(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return {"n": "\n", "t": "\t", "r": "\r"}.get(code, code)


class Plants:
    """Hands secrets out to be planted, and remembers where each one went."""

    def __init__(self, rng: random.Random, count: int) -> None:
        self._rng = rng
        self.secrets = self._draw(count)
        self.where: dict[str, str] = {}  #: what was planted, and where
        self._left = (secret for secret in self.secrets if secret not in self.where)

    def _draw(self, count: int) -> list[str]:
        return list(dict.fromkeys(make_secret(self._rng) for _ in range(count)))

    @property
    def hidden(self) -> dict[str, str]:
        """What must not be seen of all that was planted, and where that was."""
        return self.where

    @property
    def env(self) -> dict[str, str]:
        """The variables by which whoever works knows them."""
        return {name_of(number): secret for number, secret in enumerate(self.secrets)}

    def take(self, where: str, count: int = 1) -> list[str]:
        """Return some that were not planted before."""
        taken = [next(self._left) for _ in range(count)]
        self.where.update(dict.fromkeys(taken, where))
        return taken

    @property
    def left(self) -> int:
        """How many were not planted yet."""
        return len(self.secrets) - len(self.where)

    def take_plain(self, where: str) -> str:
        """Return one of letters and digits alone, for where nothing else may stand."""
        return self._pick(where, lambda secret: secret.isascii() and secret.isalnum() and len(secret) <= 100)

    def take_escaped(self, where: str) -> str:
        """Return one that JSON writes in another way."""
        return self._pick(where, lambda secret: json.dumps(secret) != f'"{secret}"')

    def _pick(self, where: str, fits: Callable[[str], bool]) -> str:
        first = next(secret for secret in reversed(self.secrets) if fits(secret) and secret not in self.where)
        self.where[first] = where
        return first

    def names(self, secrets: list[str]) -> list[str]:
        """Return the names of the variables that have them."""
        place = {secret: name for name, secret in self.env.items()}
        return [place[secret] for secret in secrets]

    def text(self, where: str, count: int, writings: tuple[str, ...] = ()) -> str:
        """Return lines of ordinary text with secrets in them, each written in another way."""
        lines = []
        for secret in self.take(where, count):
            writing, written = self._write(secret, writings)
            self.where[secret] = f"{where}, {writing}"
            lines.append(f"{filler(self._rng)} {written} {filler(self._rng)}")
        return "\n".join(lines) + "\n"

    def _write(self, secret: str, writings: tuple[str, ...]) -> tuple[str, str]:
        writing = self._rng.choice(writings or tuple(sorted(WRITINGS)))

        return writing, WRITINGS[writing](self._rng, secret)

    def line(self, where: str, writings: tuple[str, ...] = ()) -> str:
        """Return one line with one secret."""
        return self.text(where, 1, writings).replace("\n", " ").strip()

    def nested(self, where: str, count: int) -> dict:
        """Return JSON with secrets as values and keys, deep inside."""
        value: dict = {"n": 7}
        for number, secret in enumerate(self.take(where, count)):
            shapes = (
                {"deep": [[{"x": [secret, filler(self._rng)]}]]},
                {f"key {secret} key": number},
                {"url": self._write(secret, ("url query",))[1]},
                {"text": json.dumps({"inner": [secret]})},
                {"coded": self._write(secret, ("base64",))[1]},
            )
            value[f"part{number}"] = shapes[number % len(shapes)]
        return value

    def cut(self, text: str) -> list[str]:
        """Return *text* in pieces of a few bytes, each as hex: how it is written, piece by piece."""
        raw, pieces_of_it, at = text.encode(), [], 0
        while at < len(raw):
            size = self._rng.randint(1, 40)
            pieces_of_it.append(raw[at : at + size].hex())
            at += size
        return pieces_of_it


def name_of(number: int) -> str:
    """Return the name of a variable that says that it has a secret."""
    return f"PLANTED_{number:04}_TOKEN"
