"""
Logins to the dashboard: signed cookies, links that log in once, and tokens of forms.

Pure. No session is stored: the cookie names the person and the end of the session, and its signature proves that we
wrote it. The signing key is derived from the key of the home and the token shown at the login, so a different token or
home makes every cookie invalid.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import parse_qsl, urlsplit

from adws.adw_modules.interfaces import Clock

#: A longer cookie or link is rejected unread.
LONGEST = 2000
#: The most characters of a name.
LONGEST_NAME = 80
#: Seconds for which a link is valid.
LINK_SECONDS = 15 * 60

_MAC_DIGITS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class LoginSession:
    """A login."""

    session_id: str  #: hex digits that cannot be guessed
    name: str  #: the name that the person gave, or ""
    until: int  #: seconds since 1970
    key: bytes = field(repr=False)  #: the key that signs its cookie


def key_of(home_key: bytes, token: str) -> bytes:
    """Return the signing key of sessions that began with *token*."""
    return hmac.new(home_key, b"adw dashboard session\0" + token.encode(), hashlib.sha256).digest()


def link_key(home_key: bytes) -> bytes:
    """Return the signing key of login links."""
    return hmac.new(home_key, b"adw dashboard link", hashlib.sha256).digest()


def cookie_name(home_key: bytes, *, is_secure: bool) -> str:
    """Return the name of the cookie; each home has its own, because browsers share cookies between ports of a host."""
    digest = hmac.new(home_key, b"adw dashboard cookie", hashlib.sha256).hexdigest()[:12]

    return f"__Host-adw-{digest}" if is_secure else f"adw-{digest}"


# --- sessions --------------------------------------------------------------------------------------------------


def seal(session: LoginSession) -> str:
    """Return the cookie of *session*."""
    return _signed({"id": session.session_id, "name": session.name, "until": session.until}, session.key)


def unseal(cookie: str, keys: Sequence[bytes], *, now: float) -> LoginSession | None:
    """Return the session of *cookie*, or None if it is not ours or has expired."""
    for key in keys:
        match _read(cookie, key):
            case {"id": str(session_id), "name": str(name), "until": int(until)} if until > now:
                return LoginSession(session_id=session_id, name=name, until=until, key=key)

    return None


def name_of(said: str) -> str:
    """Return the given name as one line of limited length."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in said).split())[:LONGEST_NAME]


def asker(name: str) -> str:
    """Return the requester for the history; the login gives permission, the name is just a claim."""
    return f"{name} (dashboard)" if name else "the dashboard"


# --- forms -----------------------------------------------------------------------------------------------------


def csrf_of(known: LoginSession) -> str:
    """Return the CSRF token of this session's forms."""
    said = b"adw dashboard form\0" + known.session_id.encode()

    return hmac.new(known.key, said, hashlib.sha256).hexdigest()


def is_csrf(shown: str, known: LoginSession) -> bool:
    """Return whether *shown* is the CSRF token of this session."""
    return hmac.compare_digest(shown.encode("utf-8", "replace"), csrf_of(known).encode())


# --- messages for the next page --------------------------------------------------------------------------------


def seal_note(text: str, known: LoginSession) -> str:
    """Return a cookie that carries *text* to the next page of this session."""
    return _signed({"note": text[:500], "of": known.session_id}, known.key)


def unseal_note(cookie: str, known: LoginSession) -> str:
    """Return the text that `seal_note` wrote, or ""."""
    match _read(cookie, known.key):
        case {"note": str(text), "of": known.session_id}:
            return text

    return ""


# --- links that log in -----------------------------------------------------------------------------------------


def new_link(home_key: bytes, *, clock: Clock, name: str = "") -> str:
    """Return the signed part of a login link; read access to the key of the home is enough to create one."""
    made_at = int(clock.now().timestamp())

    return _signed({"link": clock.token(), "name": name_of(name), "made": made_at}, link_key(home_key))


def read_link(text: str, key: bytes, *, now: float, since: float) -> tuple[str, str] | None:
    """Return id and name of the link in *text*, or None if it is not ours, too old, or from before *since*."""
    match _read(text, key):
        # Accept up to a minute in the future: the clock may have been set back a little.
        case {"link": str(link_id), "name": str(name), "made": int(made)} if (
            max(since, now - LINK_SECONDS) <= made <= now + 60
        ):
            return link_id, name

    return None


def address_of_link(server: str, link: str) -> str:
    """Return the URL of a login link at *server*."""
    return f"{server.rstrip('/')}/login?link={link}"


# --- signatures ------------------------------------------------------------------------------------------------


def _signed(data: dict[str, str | int], key: bytes) -> str:
    text = json.dumps(data, separators=(",", ":"), sort_keys=True)
    body = base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()

    return f"{body}.{_mac(body, key)}"


def _read(text: str, key: bytes) -> dict[str, object] | None:
    """Return the data that `_signed` wrote, or None."""
    body, _, mac = text.rpartition(".")
    if not text.isascii() or len(text) > LONGEST or len(mac) != _MAC_DIGITS:
        return None
    if not hmac.compare_digest(mac, _mac(body, key)):
        return None
    try:
        result = json.loads(base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):  # pragma: no cover - text that we signed is valid
        return None

    return result if isinstance(result, dict) else None


def _mac(body: str, key: bytes) -> str:
    return hmac.new(key, body.encode(), hashlib.sha256).hexdigest()


# --- host names and origins that requests may use (pure) -------------------------------------------------------
#
# A foreign page whose name resolves to this machine (DNS rebinding) shows its own name in the Host header and is
# refused. A form sent by a foreign page shows its origin and is refused.


#: Names that always mean this machine.
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Addresses:
    """The host names of this server that requests may use."""

    names: frozenset[str]  #: in lower case, without a port
    public: str = ""  #: scheme and host for people outside, or ""
    is_any_address: bool = False  #: listens on all interfaces: accept any IP address, but no further names

    @property
    def is_https(self) -> bool:
        """Whether browsers use https, through a proxy that speaks http to this server."""
        return self.public.startswith("https://")

    def is_ours(self, host: str) -> bool:
        """Return whether the Host header *host* names this server; the port is ignored."""
        name = name_in(host)
        if name in self.names:
            return True

        return self.is_any_address and is_address(name)


def addresses_of(listening: str, public_url: str = "") -> Addresses:
    """Return the names of a server that listens at *listening* and is reached from outside at *public_url*."""
    names = set(LOOPBACK_NAMES)
    is_any = is_address(listening) and ipaddress.ip_address(listening).is_unspecified
    if not is_any:
        names.add(listening.lower())
    if public_url:
        names.add(name_in(urlsplit(public_url).netloc))

    return Addresses(names=frozenset(names), public=public_url, is_any_address=is_any)


def name_in(host: str) -> str:
    """Return the name in a Host header without the port, or "" if it is malformed."""
    text = host.strip().lower()
    if text.startswith("["):
        inside, bracket, rest = text[1:].partition("]")
        return inside if bracket and _is_port(rest) else ""
    name, colon, port = text.partition(":")

    return name.rstrip(".") if not colon or _is_port(f":{port}") else ""


def is_address(name: str) -> bool:
    """Return whether *name* is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False

    return True


def why_foreign(head: Mapping[str, str], addresses: Addresses) -> str:
    """Return why a form does not come from a page of ours, or ""."""
    site = head.get("sec-fetch-site", "same-origin")
    if site != "same-origin":
        return "the form was sent by a page of another site"
    origin = head.get("origin", "")
    if not origin:
        return "the browser does not say which page sent the form"
    if origin == addresses.public:
        return ""
    parts = urlsplit(origin)
    if parts.scheme not in {"http", "https"} or parts.netloc.lower() != head.get("host", "").strip().lower():
        return "the form was sent by a page of another address"

    return ""


def own_path(text: str) -> str:
    """Return *text* if it is a path of this server, else "/", so that redirects never lead elsewhere."""
    # Browsers read a backslash as a slash, and two slashes begin a host name.
    is_ours = text.startswith("/") and not text.startswith(("//", "/\\")) and len(text) <= 1000
    if not is_ours or not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        return "/"

    return text


def _is_port(text: str) -> bool:
    return not text or (text[0] == ":" and text[1:].isascii() and (text[1:].isdigit() or not text[1:]))


# --- forms: fields of limited number and size, each once (pure) ------------------------------------------------


#: The largest form in bytes; a login form is smaller, because anyone may send one.
MOST_BYTES = 64 * 1024
MOST_LOGIN_BYTES = 4 * 1024
#: The most fields of a form: a page with all its workflows selected has a little over 50.
MOST_FIELDS = 100

_KIND = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form; a missing field is empty."""

    fields: Mapping[str, str]

    def text(self, name: str, *, most: int = 2000) -> str:
        """Return a field, stripped and truncated to *most* characters."""
        return self.fields.get(name, "").strip()[:most]

    def is_set(self, name: str) -> bool:
        """Return whether a box was ticked."""
        return bool(self.fields.get(name))


class BadForm(ValueError):
    """The body is not a valid form; the text says why."""


def parse(body: bytes, kind: str, *, most_bytes: int = MOST_BYTES) -> Form:
    """Return the fields in *body*, whose content type is *kind*; raise BadForm."""
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
    # Browsers end lines with CR LF; the rest of adw uses LF.
    return Form({name: value.replace("\r\n", "\n").replace("\0", "") for name, value in fields.items()})


# --- the logins of one server: a token or a link gets a cookie, and logging out ends it ------------------------
#
# Without tokens in the settings there are only links, and a restart ends every login: nothing would tell which cookies
# are still valid.


#: The most used links and ended sessions that are remembered, until they would have expired anyway.
_MOST_REMEMBERED = 10_000


#: How long a login to the dashboard lasts.
SESSION_SECONDS = 12 * 3600.0


class Logins:
    """Issues and checks cookies; thread-safe."""

    def __init__(
        self, *, home_key: Callable[[], bytes], tokens: Sequence[str], clock: Clock, session_seconds: float
    ) -> None:
        """*home_key* is read at the first login."""
        self._read_key = home_key
        self._tokens = tuple(tokens)
        self._clock = clock
        self._session_seconds = session_seconds
        self._guard = threading.Lock()
        self._over: dict[str, float] = {}  #: used link or ended session -> time after which to forget it
        self._started = clock.now().timestamp()

    @property
    def has_tokens(self) -> bool:
        """Whether logins with a token are possible."""
        return bool(self._tokens)

    def by_token(self, shown: str, name: str) -> str | None:
        """Return the cookie of a new login with the token *shown*, or None if it is wrong."""
        # A list, not next() over a generator: the time must not reveal which token matches.
        fits = [hmac.compare_digest(shown.encode("utf-8", "replace"), token.encode()) for token in self._tokens]
        if not any(fits):
            return None

        return self._cookie(key_of(self._home_key, self._tokens[fits.index(True)]), name)

    def by_link(self, text: str) -> str | None:
        """Return the cookie of a new login by a link, or None if the link is invalid or used."""
        now = self._clock.now().timestamp()
        link = read_link(text, link_key(self._home_key), now=now, since=int(self._started))
        if link is None or not self._end(link[0], until=now + 2 * LINK_SECONDS):
            return None

        return self._cookie(self._keys[0], link[1])

    def link(self, name: str = "") -> str:
        """Return the signed part of a new login link."""
        return new_link(self._home_key, clock=self._clock, name=name)

    def known(self, cookie: str) -> LoginSession | None:
        """Return the session of *cookie*, or None if it is invalid."""
        if not cookie:
            return None
        known = unseal(cookie, self._keys, now=self._clock.now().timestamp())

        return known if known is not None and self.is_good(known) else None

    def is_good(self, known: LoginSession) -> bool:
        """Return whether a login is still valid."""
        return known.session_id not in self._over and known.until > self._clock.now().timestamp()

    def end(self, known: LoginSession) -> None:
        """End a login; its cookie is refused from now on."""
        self._end(known.session_id, until=float(known.until))

    def cookie_name(self, *, is_secure: bool) -> str:
        """Return the name of the cookie."""
        return cookie_name(self._home_key, is_secure=is_secure)

    def _cookie(self, key: bytes, name: str) -> str:
        until = int(self._clock.now().timestamp() + self._session_seconds)

        return seal(LoginSession(session_id=self._clock.token(), name=name_of(name), until=until, key=key))

    def _end(self, identity: str, *, until: float) -> bool:
        """Record *identity* as used; return False if it was used before or the record is full."""
        with self._guard:
            now = self._clock.now().timestamp()
            for old in [known for known, forget in self._over.items() if forget <= now]:
                del self._over[old]
            if identity in self._over or len(self._over) >= _MOST_REMEMBERED:
                return False
            self._over[identity] = until

            return True

    @cached_property
    def _home_key(self) -> bytes:
        return self._read_key()

    @cached_property
    def _keys(self) -> tuple[bytes, ...]:
        """Return the keys of the tokens, or one random key of this server if there are no tokens."""
        return tuple(key_of(self._home_key, token) for token in self._tokens or (self._clock.token(),))


# --- limits of wrong tokens, counted separately for the login and the API --------------------------------------
#
# After a few failures an address has to wait, longer each time. After many failures in all, every address waits, so
# that a thousand addresses are no way around the limit. Correct tokens are not counted.


#: Failures before one address waits, and before all of them wait.
FREE, FREE_TOGETHER = 5, 100
FIRST_WAIT_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 900.0
#: Shorter than for one address, because it also delays people who know the token.
LONGEST_TOGETHER_SECONDS = 30.0
#: Failures are forgotten after this time without another.
FORGET_SECONDS = 3600.0
#: The most addresses remembered; the one with the oldest failure is dropped first.
MOST_ADDRESSES = 1000


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last: float = 0.0  #: by the monotonic clock


class TokenLimit:
    """Counts failures; thread-safe."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._guard = threading.Lock()
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._together = _Failures()

    def seconds_left(self, address: str) -> float:
        """Return the seconds that *address* has to wait before it may retry."""
        with self._guard:
            now = self._monotonic()
            alone = self._left(self._failures.get(address, _Failures()), FREE, now)
            together = self._left(self._together, FREE_TOGETHER, now)

            return max(alone, min(together, LONGEST_TOGETHER_SECONDS))

    def failed(self, address: str) -> None:
        """Count a wrong token."""
        with self._guard:
            now = self._monotonic()
            for one in (self._failures.setdefault(address, _Failures()), self._together):
                if now - one.last > FORGET_SECONDS:
                    one.count = 0
                one.count += 1
                one.last = now
            self._failures.move_to_end(address)
            while len(self._failures) > MOST_ADDRESSES:
                self._failures.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """Forget the failures of *address*."""
        with self._guard:
            self._failures.pop(address, None)

    @staticmethod
    def _left(failures: _Failures, free: int, now: float) -> float:
        if failures.count < free or now - failures.last > FORGET_SECONDS:
            return 0.0
        # Cap the exponent, not only the product: 2.0 ** 1025 raises OverflowError.
        wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(failures.count - free, 32))

        return max(0.0, failures.last + wait - now)
