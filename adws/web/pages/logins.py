"""
The logins of one server: who shows a token or a link gets a cookie, and who logs out has none any more.

Without tokens in the settings there are links only, and a restart ends every login: nobody could say otherwise which
cookies are still to count.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Sequence
from functools import cached_property

from adws.adw_modules.interfaces import Clock
from adws.web.pages import session_rules
from adws.web.pages.session_rules import Known, Link, Session

#: Used links and ended sessions that are remembered; both are forgotten when they are over anyway.
_MOST_REMEMBERED = 10_000


class Logins:
    """Gives out cookies and knows them again. Threads may share it."""

    def __init__(
        self, *, home_key: Callable[[], bytes], tokens: Sequence[str], clock: Clock, session_seconds: float
    ) -> None:
        """*home_key* is read when somebody logs in for the first time."""
        self._read_key = home_key
        self._tokens = tuple(tokens)
        self._clock = clock
        self._session_seconds = session_seconds
        self._guard = threading.Lock()
        self._over: dict[str, float] = {}  #: used link or ended session -> when it may be forgotten
        self._started = clock.now().timestamp()

    @property
    def has_tokens(self) -> bool:
        """Whether one can log in with a token."""
        return bool(self._tokens)

    def by_token(self, shown: str, name: str) -> str | None:
        """Return the cookie of somebody who shows *shown*, None when it is no token of ours."""
        # A list, not next() over a generator: the time it takes shall not tell which one fits.
        fits = [hmac.compare_digest(shown.encode("utf-8", "replace"), token.encode()) for token in self._tokens]
        if not any(fits):
            return None

        return self._cookie(session_rules.key_of(self._home_key, self._tokens[fits.index(True)]), name)

    def by_link(self, text: str) -> str | None:
        """Return the cookie of somebody who comes by a link, None when it is none of ours or was used."""
        now = self._clock.now().timestamp()
        key = session_rules.link_key(self._home_key)
        link = session_rules.unseal_link(text, key, now=now, since=int(self._started))
        if link is None or not self._end(link.link_id, until=now + 2 * session_rules.LINK_SECONDS):
            return None

        return self._cookie(self._keys[0], link.name)

    def link(self, name: str = "") -> str:
        """Return what the address of a new login link carries."""
        return new_link(self._home_key, clock=self._clock, name=name)

    def known(self, cookie: str) -> Known | None:
        """Return the session of *cookie*, None when it is not good."""
        if not cookie:
            return None
        known = session_rules.unseal(cookie, self._keys, now=self._clock.now().timestamp())

        return known if known is not None and self.is_good(known) else None

    def is_good(self, known: Known) -> bool:
        """Say whether a login that was good still is."""
        return known.session.session_id not in self._over and known.session.until > self._clock.now().timestamp()

    def end(self, known: Known) -> None:
        """Log somebody out: the cookie does not count any more, wherever it is."""
        self._end(known.session.session_id, until=float(known.session.until))

    def cookie_name(self, *, is_secure: bool) -> str:
        """Return the name of the cookie."""
        return session_rules.cookie_name(self._home_key, is_secure=is_secure)

    def _cookie(self, key: bytes, name: str) -> str:
        until = int(self._clock.now().timestamp() + self._session_seconds)
        session = Session(session_id=self._clock.token(), name=session_rules.name_of(name), until=until)

        return session_rules.seal(session, key)

    def _end(self, identity: str, *, until: float) -> bool:
        """Remember that *identity* is used up; False when it was before, or nothing more can be remembered."""
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
        """Those of the tokens; without tokens one that only this server knows."""
        return tuple(session_rules.key_of(self._home_key, token) for token in self._tokens or (self._clock.token(),))


def new_link(home_key: bytes, *, clock: Clock, name: str = "") -> str:
    """Return what the address of a login link carries; whoever may read the key of the home may make one."""
    link = Link(link_id=clock.token(), name=session_rules.name_of(name), made_at=int(clock.now().timestamp()))

    return session_rules.seal_link(link, session_rules.link_key(home_key))


def address_of_link(server: str, link: str) -> str:
    """Return the whole address of a login link at *server*."""
    return f"{server.rstrip('/')}/login?link={link}"
