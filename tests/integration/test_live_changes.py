"""Seeing changes in a real database, SQLite and PostgreSQL, and telling a browser of them over a real connection."""

from __future__ import annotations

import http.client
import threading
from contextlib import closing, contextmanager

import pytest

from adws.adw_modules.db.listing import HOME, WORKFLOW, ChangeFeed
from adws.adw_modules.errors import DatabaseError
from tests.contracts.worlds import FIRST, SECOND, database_world, make_document
from tests.integration.page_lab import Browser
from tests.integration.test_web_server import served
from tests.integration.web_lab import WebLab

PATIENCE = 30


@pytest.fixture
def database(database_url, open_db):
    return open_db(database_url)


@pytest.fixture
def world(database, clock):
    return database_world(database, clock)


@pytest.fixture
def changes(database):
    made = ChangeFeed(database)
    yield made
    made.close()


def test_the_first_look_says_yes_and_then_only_writes_do(world, changes):
    assert changes.has_changed()
    assert not changes.has_changed()
    world.catalogue.find_by_issue(1)
    assert not changes.has_changed(), "reading is no change"
    world.store.create(make_document())

    assert changes.has_changed()


def test_a_workflow_changes_with_its_own_writes_and_the_home_with_all(world, changes):
    topics = [HOME, WORKFLOW + FIRST, WORKFLOW + SECOND]
    first = world.store.create(make_document(FIRST))
    before = changes.marks(topics)
    assert changes.marks(topics) == before
    world.store.create(make_document(SECOND, issue_number=7))
    after = changes.marks(topics)

    assert after[WORKFLOW + FIRST] == before[WORKFLOW + FIRST]
    assert after[WORKFLOW + SECOND] != before[WORKFLOW + SECOND]
    world.store.save(first, fence=first.fence)
    assert changes.marks(topics)[WORKFLOW + FIRST] != before[WORKFLOW + FIRST]


# --- over a real connection --------------------------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path):
    with WebLab(tmp_path / "home") as made:
        yield made


@contextmanager
def listening(address, browser, topic="home", since=""):
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    with closing(http.client.HTTPConnection(*address, timeout=PATIENCE)) as connection:
        connection.request("GET", f"/live?topic={topic}&since={since}", headers={"Cookie": cookie})
        with connection.getresponse() as answer:
            yield answer


def messages(answer) -> list[bytes]:
    """Return the next message."""
    lines = []
    while (line := answer.readline()) not in {b"\n", b""}:
        lines.append(line.strip())
    return lines


def test_a_browser_is_told_when_something_happens_and_let_go_when_the_server_ends(lab):
    browser = Browser(lab).log_in()
    with served(lab) as address, listening(address, browser) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert messages(answer) == [b"retry: 5000"]
        first = messages(answer)
        assert first[1:] == [b"event: changed", b"data: home"]
        lab.start(7)
        second = messages(answer)
        assert second[1:] == [b"event: changed", b"data: home"]
        assert second[0] != first[0]
        lab.door.drain()
        while answer.readline():
            pass  # a start is more than one change


def test_a_browser_that_comes_back_is_told_nothing_new_but_of_what_it_missed(lab):
    browser = Browser(lab).log_in()
    adw_id = lab.start(7)
    with served(lab) as address:
        topic = f"workflow:{adw_id}"
        with listening(address, browser, topic) as answer:
            messages(answer)
            seen = messages(answer)[0].removeprefix(b"id: ").decode()
        with listening(address, browser, topic, since=seen) as again:
            messages(again)
            lab.post(f"/api/v1/workflows/{adw_id}/pause")
            told = messages(again)
            lab.door.drain()
        assert told[0] != f"id: {seen}".encode()


@pytest.mark.parametrize("topic", ["", "nothing", "workflow:", "workflow:../x", f"workflow:{'a' * 90}"])
def test_a_topic_that_is_none_is_refused(lab, topic):
    browser = Browser(lab).log_in()

    assert browser.ask("GET", f"/live?topic={topic}", headers={"Accept": "*/*"}).status_code == 422


def test_too_many_listeners_are_told_to_come_later(lab):
    lab.door._app.state.live._most = 0
    answer = Browser(lab).log_in().ask("GET", "/live?topic=home", headers={"Accept": "text/event-stream"})

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")


def test_without_somebody_who_listens_nobody_looks(lab):
    Browser(lab).log_in().see("/workflows")

    assert "adw-live" not in {thread.name for thread in threading.enumerate()}


def test_a_database_that_is_gone_is_looked_for_again(lab, tmp_path):
    changes = lab.app.changes()
    file = tmp_path / "home" / "state" / "adw.db"
    lab.start(7)
    assert changes.has_changed()
    file.rename(tmp_path / "away")
    assert changes.has_changed()
    with pytest.raises(DatabaseError):
        changes.marks([HOME])
    (tmp_path / "away").rename(file)

    assert changes.marks([HOME])
    changes.close()
