"""
By which names browsers may reach the dashboard, and from which pages its forms may come.

Pure. A page of a stranger whose name leads to this machine (DNS rebinding) shows its own name in the header Host, and
is refused. A form that a stranger's page sends shows where it comes from, and is refused.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

#: Names that lead to this machine and nowhere else.
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Addresses:
    """By which names this server may be called."""

    names: frozenset[str]  #: of hosts, in lower case, without a port
    public: str = ""  #: scheme and host that people outside use, "": none
    is_any_address: bool = False  #: it listens at every address of this machine: each of them is let pass, no names

    @property
    def is_https(self) -> bool:
        """Whether people reach it by https, through something that speaks http to us."""
        return self.public.startswith("https://")

    def is_ours(self, host: str) -> bool:
        """Say whether the header Host names this server; the port does not matter."""
        name = name_in(host)
        if name in self.names:
            return True

        return self.is_any_address and is_address(name)


def addresses_of(listening: str, public_url: str = "") -> Addresses:
    """Return the names of a server that listens at *listening* and is known outside as *public_url*."""
    names = set(LOOPBACK_NAMES)
    is_any = is_address(listening) and ipaddress.ip_address(listening).is_unspecified
    if not is_any:
        names.add(listening.lower())
    if public_url:
        names.add(name_in(urlsplit(public_url).netloc))

    return Addresses(names=frozenset(names), public=public_url, is_any_address=is_any)


def name_in(host: str) -> str:
    """Return the name in a header Host, without its port, "" for what is none."""
    text = host.strip().lower()
    if text.startswith("["):
        inside, bracket, rest = text[1:].partition("]")
        return inside if bracket and _is_port(rest) else ""
    name, colon, port = text.partition(":")

    return name.rstrip(".") if not colon or _is_port(f":{port}") else ""


def is_from_here(client: str, host: str) -> bool:
    """Say whether a request of the address *client* comes from this machine and is meant for it by its header Host."""
    return is_address(client) and ipaddress.ip_address(client).is_loopback and name_in(host) in LOOPBACK_NAMES


def is_address(name: str) -> bool:
    """Say whether *name* is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False

    return True


def why_foreign(head: Mapping[str, str], addresses: Addresses) -> str:
    """Return why a form does not come from a page of ours, "" when it does."""
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
    """Return *text* when it is a path of this server to go on to, else "/": nobody is sent elsewhere by our answer."""
    # A backslash is a slash to browsers, and two of them begin the name of a host.
    is_ours = text.startswith("/") and not text.startswith(("//", "/\\")) and len(text) <= 1000
    if not is_ours or not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        return "/"

    return text


def _is_port(text: str) -> bool:
    return not text or (text[0] == ":" and text[1:].isascii() and (text[1:].isdigit() or not text[1:]))
