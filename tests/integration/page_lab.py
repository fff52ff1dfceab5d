"""A browser without a screen: asks the pages of a home, keeps cookies, and sends forms as a person would."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode

import httpx

from tests.integration.web_lab import TOKEN, WebLab

ORIGIN = "http://127.0.0.1:8001"


@dataclass
class Browser:
    """Looks at the pages of *lab*."""

    lab: WebLab
    origin: str = ORIGIN
    cookies: dict[str, str] = field(default_factory=dict)
    address: str = "127.0.0.1"  #: where it is

    def ask(self, method: str, path: str, *, headers: dict[str, str] | None = None, **request) -> httpx.Response:
        """Make one request; follow nothing."""
        head = {"Accept": "text/html,*/*", **(headers or {})}
        if self.cookies and "Cookie" not in head:
            head["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())

        async def one() -> httpx.Response:
            transport = httpx.ASGITransport(
                app=self.lab.door, raise_app_exceptions=False, client=(self.address, 40_000)
            )
            async with httpx.AsyncClient(transport=transport, base_url=self.origin) as client:
                return await client.request(method, path, headers=head, **request)

        answer = asyncio.run(one())
        for line in answer.headers.get_list("set-cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value
            if "max-age=0" in line.lower():
                del self.cookies[name]
        return answer

    def log_in(self, token: str = TOKEN, name: str = "Ada") -> Browser:
        answer = self.send("/login", {"token": token, "name": name}, csrf=None)
        assert answer.status_code == 303, answer.text
        return self

    def see(self, path: str, *, status: int = 200) -> Page:
        """Return a page that has to be there."""
        answer = self.ask("GET", path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        return Page(answer.text)

    def send(
        self, path: str, fields: dict[str, str] | None = None, *, csrf: str | None = "", headers=None
    ) -> httpx.Response:
        """Send a form; its token is that of the login unless another is given, None sends none."""
        token = self.csrf() if csrf == "" else csrf
        body = urlencode({**(fields or {}), **({} if token is None else {"csrf": token})})
        head = {
            "Origin": self.origin,
            "Sec-Fetch-Site": "same-origin",
            "Content-Type": "application/x-www-form-urlencoded",
            **(headers or {}),
        }
        head = {name: value for name, value in head.items() if value is not None}
        return self.ask("POST", path, content=body.encode(), headers=head)

    def csrf(self) -> str:
        """Return the token that our forms carry."""
        match = re.search(r'name="csrf" value="(\w+)"', self.ask("GET", "/login").text)
        assert match is not None
        return match[1]

    def do(self, path: str, fields: dict[str, str] | None = None) -> Page:
        """Send a form and return the page that follows."""
        answer = self.send(path, fields)
        assert answer.status_code == 303, answer.text
        return self.see(answer.headers["location"])


class Page(HTMLParser):
    """What is on a page: its text, elements and their attributes."""

    _VOID = frozenset({"meta", "link", "input", "img", "br", "hr"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._open: list[str] = []
        self._text: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], f"not closed: {self._open}"

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._text).split())

    def all(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        """Return the attributes of every element of this kind that has these."""
        return [
            item
            for name, item in self.elements
            if name == tag
            and all(item.get(key.rstrip("_").replace("_", "-")) == value for key, value in attributes.items())
        ]

    def links(self) -> list[str]:
        return [item.get("href", "") for item in self.all("a")]

    def handle_starttag(self, tag, attrs):
        result = {name: value or "" for name, value in attrs}
        assert len(result) == len(attrs), f"an attribute twice in {tag}"
        self.elements.append((tag, result))
        if tag not in self._VOID and tag not in {"path", "rect", "circle", "line", "use"}:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag):
        if tag in {"path", "rect", "circle", "line", "use"}:
            return
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        self._text.append(data)
