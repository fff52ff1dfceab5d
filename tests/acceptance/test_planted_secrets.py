"""
A thousand secrets are planted in everything that a workflow touches, and none is in what adw writes, shows or sends.

Real processes all the way: `adw serve` with a worker, commands, an agent, a server, a forge. Whoever looks afterwards
does not know the secrets, so what they see is what was stored.
"""

from __future__ import annotations

import json
import os
import random
import re
import sqlite3
import subprocess
import time
from contextlib import closing
from urllib.parse import urljoin

import httpx
import pytest

from tests import sampling
from tests.acceptance import cli_lab
from tests.acceptance.planted_lab import WHOLE, PlantedHome, telling_server
from tests.acceptance.serve_lab import serving
from tests.integration.web_lab import REPOSITORY, SECRET, TOKEN, labelled, signed
from tests.planted import Plants, Search
from tests.token_samples import TokenPlants

#: Seconds for a workflow; a server that knows a thousand secrets takes some to start.
PATIENCE = 120.0
#: Pages of the dashboard that are looked at, at most; those that everything begins at come first.
MOST_PAGES = 80
SITES = ("/", "/workflows", "/runs", "/runners", "/locks", "/deliveries")


@pytest.mark.parametrize("store", sampling.some(["files", "database"], 1))
def test_no_planted_secret_is_in_what_adw_writes_shows_or_sends(tmp_path, monkeypatch, repeat, store):
    # The same ones each time; unit tests draw others.
    plant_and_search(tmp_path, monkeypatch, store, Plants(random.Random(store), repeat(400, 1000)))


@pytest.mark.parametrize("store", sampling.some(["database", "files"], 1))
def test_no_token_that_only_its_shape_tells_is_in_what_adw_writes_shows_or_sends(tmp_path, monkeypatch, repeat, store):
    """
    Every kind of token, in every surrounding: some in each output, document, event, log, comment, delivery and answer.
    """
    plant_and_search(tmp_path, monkeypatch, store, TokenPlants(random.Random(store), repeat(8, 20)))


def plant_and_search(tmp_path, monkeypatch, store, plants):
    with telling_server(plants, len(plants.secrets) // 25) as url:
        planted = PlantedHome(tmp_path, plants, url)
        issue, second = put_issue(planted), put_issue(planted)
        for name, value in {
            **plants.env,
            "ADW_STATE_STORE": store,
            "ADW_WEB_TOKEN": TOKEN,
            "ADW_WEBHOOK_SECRET": SECRET,
            "ADW_GITHUB_REPOSITORY": REPOSITORY,
            "ADW_AGENT_PROGRAMS": f"claude={planted.agent.program}",
        }.items():
            monkeypatch.setenv(name, value)
        with serving(planted.home, "--workers", "1") as (server, client):
            client.timeout = PATIENCE
            done = carry_out(client, planted, issue)
            broken = give_up(client, planted, second)
            deliver(client, plants)
            answers = ask_badly(client, plants)
    for name in plants.env:
        monkeypatch.delenv(name)
    search = Search(plants.hidden)

    leaks = [leak for what, text in answers.items() for leak in search.leaks(what, text)]
    leaks += [leak for what in ("stdout", "stderr") for leak in search.leaks(what, getattr(server, what))]
    leaks += [leak for what, text in everything_stored(planted) for leak in search.leaks(what, text)]
    with serving(planted.home, "--workers", "0") as (_, client):
        leaks += [leak for what, text in everything_shown(client, [done, broken]) for leak in search.leaks(what, text)]
    leaks += [leak for what, text in everything_printed(planted, [done, broken]) for leak in search.leaks(what, text)]

    assert plants.left < 40, "nearly all of them were planted"
    assert leaks == []


# --- planting --------------------------------------------------------------------------------------------------


def put_issue(planted: PlantedHome) -> int:
    """Write an issue into the forge as a person does: adw had no say in it."""
    plants, share = planted.plants, planted.share
    with planted.lab.open() as app:
        number = app.forge.create_issue("Add a fine thing", "Please.", author="ada").number
    result = planted.home / "state" / "local.forge" / "issues" / f"{number}.json"
    data = json.loads(result.read_text())
    data["title"] = f"Add {plants.line('title of an issue', WHOLE)}"
    data["body"] = plants.text("text of an issue", share(4), WHOLE)
    result.write_text(json.dumps(data))
    return number


def carry_out(client: httpx.Client, planted: PlantedHome, issue: int) -> str:
    """Have the workflow done that tells everything; people who order something say secrets, too."""
    plants = planted.plants
    adw_id = start(client, "leaky", issue, plants)
    cli_lab.has_begun(planted.home, patience=PATIENCE)
    order(client, f"{adw_id}/pause", {"reason": plants.line("reason", WHOLE), "by": plants.take_plain("who pauses")})
    until(client, planted, adw_id, "paused")
    say_on_page(client, plants, adw_id)
    order(client, f"{adw_id}/resume", {"hint": plants.text("hint", 3, WHOLE), "by": plants.take_plain("who resumes")})
    cli_lab.has_begun(planted.home, patience=PATIENCE)
    cli_lab.let_go(planted.home)
    until(client, planted, adw_id, "paused", "failed")
    said = {"text": plants.text("approval", 3, WHOLE), "by": plants.take_plain("name of a person")}
    order(client, f"{adw_id}/approve", said)
    assert until(client, planted, adw_id, "completed", "failed") == "completed", client.get(
        f"/api/v1/workflows/{adw_id}"
    ).text
    return adw_id


def give_up(client: httpx.Client, planted: PlantedHome, issue: int) -> str:
    """Have a workflow fail, try it again with a hint, and give it up."""
    plants = planted.plants
    adw_id = start(client, "broken", issue, plants)
    until(client, planted, adw_id, "failed")
    hint = {"hint": plants.text("hint", 3, WHOLE), "by": plants.take_plain("name of a person"), "grant": 1}
    order(client, f"{adw_id}/retry", hint)
    until(client, planted, adw_id, "failed", fresh=True)
    order(client, f"{adw_id}/abandon", {"reason": plants.line("reason", WHOLE)})
    until(client, planted, adw_id, "abandoned")
    return adw_id


def say_on_page(client: httpx.Client, plants: Plants, adw_id: str) -> None:
    """Log in to the dashboard under a name that is a secret, and give a hint there."""
    with closing(log_in(client, plants.take_plain("name at the login"))) as browser:
        page = browser.get(f"/workflows/{adw_id}").text
        token = re.findall(r'name="csrf" value="([^"]+)"', page)[0]
        said = {"csrf": token, "text": plants.text("hint on a page", 2, WHOLE)}
        origin = str(client.base_url).rstrip("/")
        answer = browser.post(f"/workflows/{adw_id}/hint", data=said, headers={"Origin": origin})
    assert answer.status_code == 303, answer.text


def order(client: httpx.Client, path: str, said: dict) -> None:
    answer = client.post(f"/api/v1/workflows/{path}", json=said)
    assert answer.status_code in {200, 202}, answer.text


def start(client: httpx.Client, workflow: str, issue: int, plants: Plants) -> str:
    asked = {"workflow": workflow, "issue_number": issue, "by": plants.take_plain("who asks")}
    answer = client.post("/api/v1/workflows", json=asked)
    assert answer.status_code == 201, answer.text
    return answer.json()["adw_id"]


def until(client: httpx.Client, planted: PlantedHome, adw_id: str, *states: str, fresh: bool = False) -> str:
    """Return the state of a workflow when it is one of *states* and nobody works on it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        result = client.get(f"/api/v1/workflows/{adw_id}").json()
        attempts = sum(len(phase["attempts"]) for phase in result["phases"])
        if result["state"] in states and not result["owner"] and (not fresh or attempts > 1):
            return result["state"]
        assert time.monotonic() < deadline, result
        adw(planted, "events", adw_id, "--follow")  # waits until it stops, and leaves the machine to the worker


def adw(planted: PlantedHome, *command: str) -> str:
    """Return what a command prints that knows none of the secrets."""
    secret = planted.plants.env
    done = cli_lab.warm.run(
        [cli_lab.ADW, "--home", str(planted.home), *command],
        cwd=planted.home,
        env={name: value for name, value in os.environ.items() if name not in secret},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout + done.stderr


def deliver(client: httpx.Client, plants: Plants) -> None:
    """Send deliveries that tell secrets in every field."""
    for number in range(6):
        issue = {
            "number": 900 + number,
            "title": plants.line("title of a delivery", WHOLE),
            "body": plants.text("text of a delivery", 3, WHOLE),
            "state": "open",
            "user": {"login": "bob", "type": "User"},
            "labels": [{"name": "adw" if number % 2 else plants.line("label", ("plain",))}],
            "html_url": plants.line("address of a delivery", ("url query",)),
        }
        payload = {
            "action": "labeled" if number % 2 else plants.line("action of a delivery", ("plain",)),
            "label": {"name": "nothing"},
            "issue": issue,
            "comment": {"id": 1, "body": f"/adw {plants.line('comment', WHOLE)}", "user": {"login": "bob"}},
            "repository": {"full_name": REPOSITORY, "id": 5},
            "sender": {"login": plants.line("sender", ("plain",)), "type": "User"},
            "more": plants.nested("delivery", 3),
        }
        event = "issue_comment" if number > 3 else "issues"
        post(client, *signed(json.dumps(payload).encode(), guid=f"guid-{number}", event=event))
    post(client, *signed(plants.text("delivery that is no JSON", 2, WHOLE).encode(), guid="guid-x"))
    # One alone, in JSON in JSON in JSON: nothing else makes adw look closely.
    error = json.dumps({"error": json.dumps({"x": plants.take_escaped("JSON in JSON")})})
    assert post(client, *labelled(907, guid="guid-lone", action="said", more=error)) == 202


def post(client: httpx.Client, body: bytes, headers: dict[str, str]) -> int:
    """Deliver, and return how that is answered."""
    return client.post("/webhooks/github", content=body, headers=headers).status_code


def ask_badly(client: httpx.Client, plants: Plants) -> dict[str, str]:
    """Send requests that make no sense, with secrets in them; return what is answered."""

    def said(where: str) -> str:
        return plants.line(where, ("plain",))

    requests = {
        "path": ("GET", f"/api/v1/workflows/{said('path')}", {}),
        "page": ("GET", f"/{said('path of a page')}", {}),
        "query": ("GET", "/api/v1/runs", {"params": {"cursor": said("query"), said("name in a query"): "1"}}),
        "body": ("POST", "/api/v1/workflows", {"json": {"workflow": said("body"), said("key of a body"): 1}}),
        "no JSON": ("POST", "/api/v1/workflows", {"content": f'{{"x": {said("bad body")}'}),
        "id": ("POST", "/api/v1/workflows/1a2b3c4d/resume", {"json": {"hint": said("hint to nobody")}}),
        "token": ("GET", "/api/v1/workflows", {"headers": {"Authorization": f"Bearer {said('token').encode().hex()}"}}),
        "login": ("GET", "/login", {"params": {"next": said("next page"), "link": said("link")}}),
    }
    return {
        f"answer to a bad {name}": "{0.headers} {0.text}".format(client.request(method, path, **options))
        for name, (method, path, options) in requests.items()
    }


# --- looking ---------------------------------------------------------------------------------------------------


def everything_stored(planted: PlantedHome):
    """Yield every file below the home, every cell of the database, and what git and people were told."""
    home = planted.home
    inputs = {home / "adw.toml", home / "plant_functions.py"}
    for path in sorted(home.rglob("*")):
        if path.is_symlink() or not path.is_file() or path in inputs:  # a pipe is no file, and never ends
            continue
        if "/issues/" in str(path) and path.suffix == ".json":
            yield str(path.relative_to(home)), without_what_people_wrote(path.read_text())
        elif "/.git/objects/" not in str(path) and "remote.git/objects" not in str(path):
            yield str(path.relative_to(home)), path.read_bytes().decode("utf-8", "backslashreplace")
    with closing(sqlite3.connect(home / "state" / "adw.db")) as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in database.execute(f"SELECT * FROM {table}"):
                cells = (cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell) for cell in row)
                yield f"table {table}", "\n".join(cells)
    for place in (home, planted.lab.remote):
        done = subprocess.run(
            ["git", "log", "--all", "--format=%an %ae %s %b %D"], cwd=place, capture_output=True, text=True, check=True
        )
        yield f"commits of {place.name}", done.stdout
    yield "notifications", planted.told.read_text()


def without_what_people_wrote(text: str) -> str:
    data = json.loads(text)
    return json.dumps(
        {name: value for name, value in data.items() if name not in {"title", "body"}}, ensure_ascii=False
    )


def everything_shown(client: httpx.Client, ids: list[str]):
    """Yield every answer of the API, the page of metrics, and every page that links lead to."""
    paths = ["runs", "runners", "locks", "quota", "breakers", "deliveries", "retries", "external", "workflows"]
    paths += [f"{kind}/{adw_id}" for adw_id in ids for kind in ("workflows",)]
    paths += [f"events?limit=1000&adw_id={adw_id}" for adw_id in ids]
    paths += [f"workflows/{adw_id}/executions" for adw_id in ids]
    for path in paths:
        answer = client.get(f"/api/v1/{path}")
        assert answer.status_code == 200, (path, answer.text)
        yield f"API {path}", answer.text
    yield "metrics", client.get("/metrics").text
    with closing(log_in(client, "ada")) as browser:
        yield from crawl(browser, ids)


def log_in(client: httpx.Client, name: str) -> httpx.Client:
    """Return a client that is logged in to the dashboard as a browser is."""
    browser = httpx.Client(base_url=client.base_url, timeout=cli_lab.PATIENCE)
    page = browser.get("/login").text
    fields = dict(re.findall(r'<input[^>]*type="hidden"[^>]*name="([^"]+)"[^>]*value="([^"]*)"', page))
    origin = str(client.base_url).rstrip("/")
    answer = browser.post("/login", data={**fields, "token": TOKEN, "name": name}, headers={"Origin": origin})
    assert answer.status_code == 303, answer.text
    return browser


def crawl(browser: httpx.Client, ids: list[str]):
    """Yield every page that can be reached by links."""
    waiting, seen = [*SITES, *(f"/workflows/{adw_id}" for adw_id in ids)], set()
    while waiting and len(seen) < MOST_PAGES:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        answer = browser.get(path)
        assert answer.status_code == 200 or path not in SITES, answer.text
        yield f"page {path} ({answer.status_code})", f"{answer.text}"
        links = re.findall(r'(?:href|src)="([^"#]+)', answer.text)
        result = (urljoin(path, link.replace("&amp;", "&")) for link in links)
        waiting.extend(
            link for link in result if link.startswith("/") and not link.startswith(("//", "/live", "/static"))
        )
    assert len(seen) > 20


def everything_printed(planted: PlantedHome, ids: list[str]):
    """Yield what the commands print, for people and for programs."""
    commands = [
        ["list"],
        ["queue", "runs"],
        ["webhook", "deliveries"],
        ["report", "--by", "workflow"],
        ["admin", "breakers"],
        ["status"],
    ]
    commands += [["report", "--no-orphans"], ["report", "--no-orphans", "--html"]]
    commands += [[name, adw_id] for adw_id in ids for name in ("status", "events", "logs")]
    for command in commands:
        yield f"adw {' '.join(command)}", adw(planted, *command)
