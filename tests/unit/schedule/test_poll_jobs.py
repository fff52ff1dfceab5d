"""What no webhook told of is found, started once, and never twice with what the webhook told."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import timedelta
from types import SimpleNamespace

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.deliveries import commands
from adws.adw_modules.errors import ForgeRefused
from adws.adw_modules.forge.model import HookDelivery, Labelled
from adws.adw_modules.queue.model import DELIVERY
from adws.adw_modules.schedule import jobs
from adws.adw_modules.schedule.jobs import PollJobs, failed_deliveries
from adws.adw_modules.schedule.store import Tick
from adws.adw_triggers import delivery
from adws.adw_triggers.github_events import DeliveryRules
from adws.app import Home
from adws.testing import FakeClock, MemoryForge
from tests.contracts.worlds import make_document
from tests.homes import lab_home
from tests.unit.setting_cases import settings_with

TICK = Tick(name="poll_issues", due="now", token=1)
#: As deliveries are kept, and as people write it.
REPOSITORY, WRITTEN = "acme/widget", "Acme/Widget"


class KnowingForge(MemoryForge):
    """A forge that knows who labelled, and keeps deliveries."""

    def __init__(self, **fields) -> None:
        super().__init__(WRITTEN, **fields)
        self.labellers: dict[int, Labelled] = {}
        self.tries: tuple[HookDelivery, ...] = ()
        self.asked: list[tuple[int, int]] = []
        self.refuses = False

    def labelled(self, number: int, label: str) -> Labelled | None:
        return self.labellers.get(number)

    def hook_deliveries(self, *, since: str):
        if self.refuses:
            raise ForgeRefused(403, "Resource not accessible")
        return tuple(one for one in self.tries if one.at >= since)

    def redeliver(self, hook_id: int, delivery_id: int) -> None:
        self.asked.append((hook_id, delivery_id))


class Lab:
    def __init__(self) -> None:
        self.parts = lab_home(clock=FakeClock(), repository=REPOSITORY)
        self.clock = self.parts.clock
        self.forge = KnowingForge(clock=self.clock)
        self.deliveries = self.parts.deliveries

    def jobs(self, forge=None, **settings: str) -> PollJobs:
        place = SimpleNamespace(
            clock=self.clock,
            settings=settings_with(**{"webhook_secret": "hush-hush-hush-hush", **settings}),
            forge=forge or self.forge,
            deliveries=self.deliveries,
            catalogue=self.parts.catalogue,
        )
        return PollJobs(place)

    def label(self, number: int, *, by: str = "ada", ago: float = 600.0, is_bot: bool = False) -> Labelled:
        at = self.clock.now() - timedelta(seconds=ago)
        labelled = Labelled(
            login=by,
            at=timestamps.to_text(at),
            raw_at=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            created_at="2026-01-01T00:00:00Z",
            is_bot=is_bot,
        )
        self.forge.labellers[number] = labelled
        return labelled

    def requests(self):
        rows = self.deliveries.page()
        return [commands.from_json(self.deliveries.request_of(row.guid)) for row in reversed(rows)]


@pytest.fixture
def lab():
    return Lab()


# --- labels ----------------------------------------------------------------------------------------------------


def test_an_issue_with_the_label_that_nobody_told_of_is_asked_for_once(lab):
    issue = lab.forge.create_issue("Add a button", "Blue.", labels=("adw",), author="mona")
    lab.forge.create_issue("Not this one")
    lab.label(issue.number)

    first, again = lab.jobs().issues(TICK), lab.jobs().issues(TICK)

    assert (first.outcome, again.outcome) == ("1 with the label, 1 started", "1 with the label, 0 started")
    (request,) = lab.requests()
    assert (request.cause, request.actor.login, request.issue.title) == ("poll", "ada", "Add a button")
    assert [run.kind for run in lab.parts.runs.page()] == [DELIVERY]


def test_who_labelled_is_the_actor_and_not_who_wrote_the_issue(lab):
    issue = lab.forge.create_issue("Add a button", labels=("adw",), author="stranger")
    lab.label(issue.number, by="some-app[bot]", is_bot=True)

    lab.jobs().issues(TICK)

    assert (lab.requests()[0].actor.login, lab.requests()[0].actor.is_bot) == ("some-app[bot]", True)


def test_an_issue_that_has_or_had_a_workflow_is_left_alone(lab):
    issue = lab.forge.create_issue("Add a button", labels=("adw",))
    lab.label(issue.number)
    lab.parts.store.create(make_document(issue_number=issue.number, repository=WRITTEN, current_state="completed"))

    assert lab.jobs().issues(TICK).outcome == "1 with the label, 0 started"


def test_a_fresh_label_is_left_to_the_webhook_for_a_while(lab):
    issue = lab.forge.create_issue("Add a button", labels=("adw",))
    lab.label(issue.number, ago=30.0)
    assert lab.jobs().issues(TICK).details == ()

    lab.clock.advance(120.0)

    assert len(lab.jobs().issues(TICK).details) == 1


def delivered(lab, payload, event) -> commands.Delivery:
    """Return what a signed webhook makes of *payload*, kept."""
    body = json.dumps(payload).encode()
    digest = hmac.new(b"s" * 20, body, hashlib.sha256).hexdigest()
    headers = {
        "X-Hub-Signature-256": f"sha256={digest}",
        "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "X-GitHub-Event": event,
        "Content-Type": "application/json",
    }
    made = delivery.read(headers, body, DeliveryRules(secrets=("s" * 20,), repositories=(REPOSITORY,)))
    lab.deliveries.accept([made])
    return made


def issue_payload(issue, *, created="2026-01-01T00:00:00Z", updated) -> dict:
    return {
        "number": issue.number,
        "title": issue.title,
        "body": issue.body,
        "state": "open",
        "user": {"login": "mona", "type": "User"},
        "labels": [{"name": "adw"}],
        "html_url": issue.url,
        "created_at": created,
        "updated_at": updated,
    }


@pytest.mark.parametrize("is_new", [False, True], ids=["labelled-later", "opened-with-the-label"])
def test_a_label_that_the_webhook_told_has_the_same_intent_when_it_is_found(lab, is_new):
    """
    Also when both are stored at the same moment: the look before is then no help, the intent is.
    """
    issue = lab.forge.create_issue("Add a button", labels=("adw",))
    labelled = lab.label(issue.number)
    created = labelled.raw_at if is_new else "2026-01-01T00:00:00Z"
    labelled = Labelled(login="ada", at=labelled.at, raw_at=labelled.raw_at, created_at=created)
    payload = {
        "action": "labeled",
        "label": {"name": "adw"},
        "issue": issue_payload(issue, created=created, updated=labelled.raw_at),
        "repository": {"full_name": WRITTEN, "name": "widget", "owner": {"login": "acme"}},
        "sender": {"login": "ada", "type": "User"},
    }

    told = delivered(lab, payload, "issues")

    assert told.verdict == "run", told.reason
    assert told.request["intent"] == jobs.label_intent(REPOSITORY, issue.number, "adw", labelled)
    assert lab.jobs().issues(TICK).details == ()
    assert len(lab.deliveries.page()) == 1


# --- comments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comments", "starts"),
    [
        ([], True),
        (["adw"], True),
        ([" ADW\n"], True),
        (["hello"], False),
        (["adw", "wait"], False),
        (["adw it"], False),
    ],
    ids=["none", "the-word", "any-case", "others", "not-the-latest", "not-exactly"],
)
def test_issues_without_a_comment_or_with_the_word_as_the_latest_one_are_started_once(lab, comments, starts):
    issue = lab.forge.create_issue("Add a button", author="mona")
    for text in comments:
        lab.forge.seen_by("ada").create_comment(issue.number, text)

    lab.jobs().comments(TICK)
    lab.jobs().comments(TICK)

    assert len(lab.requests()) == int(starts)
    assert [request.actor.login for request in lab.requests()] == (["ada" if comments else "mona"] if starts else [])


def test_the_word_asks_again_with_each_comment(lab):
    issue = lab.forge.create_issue("Add a button", author="mona")
    for _ in range(2):
        lab.forge.seen_by("ada").create_comment(issue.number, "adw")
        lab.jobs().comments(TICK)

    assert len(lab.requests()) == 2


def test_our_own_comment_asks_for_nothing(lab):
    issue = lab.forge.create_issue("Add a button", author="mona")
    lab.forge.create_comment(issue.number, "adw")

    assert lab.jobs().comments(TICK).details == ()


def test_a_comment_that_the_webhook_told_has_the_same_intent_when_it_is_found(lab):
    issue = lab.forge.create_issue("Add a button", author="mona")
    comment = lab.forge.seen_by("ada").create_comment(issue.number, "adw")
    payload = {
        "action": "created",
        "comment": {"id": comment.comment_id, "body": "adw", "created_at": "2026-01-31T09:00:00Z"},
        "issue": issue_payload(issue, updated="2026-01-31T09:00:00Z"),
        "repository": {"full_name": WRITTEN, "name": "widget", "owner": {"login": "acme"}},
        "sender": {"login": "ada", "type": "User"},
    }

    assert delivered(lab, payload, "issue_comment").verdict == "run"
    assert lab.jobs().comments(TICK).details == ()


# --- deliveries that failed ------------------------------------------------------------------------------------


def attempt(lab, guid: str, number: int, *, is_ok=False, ago: float = 600.0) -> HookDelivery:
    at = timestamps.to_text(lab.clock.now() - timedelta(seconds=ago))
    return HookDelivery(hook_id=7, delivery_id=number, guid=guid, is_ok=is_ok, at=at, event="issues")


def test_deliveries_that_never_came_are_asked_for_again(lab):
    lab.forge.tries = (
        attempt(lab, "failed", 5, ago=60.0),
        attempt(lab, "failed", 4, ago=600.0),
        attempt(lab, "came", 3, is_ok=True, ago=60.0),
        attempt(lab, "came", 2, ago=600.0),
        attempt(lab, "old", 1, ago=4 * 86400.0),
    )

    end = lab.jobs().redeliver(TICK)

    assert lab.forge.asked == [(7, 5)]
    assert end.outcome == "1 delivery asked for again"


def test_one_that_failed_too_often_is_not_asked_for_any_more(lab):
    tries = tuple(attempt(lab, "failed", number, ago=float(number)) for number in range(jobs.MAX_TRIES))

    assert failed_deliveries(tries) == ()
    assert failed_deliveries(tries[1:]) == (tries[1],)


def test_one_that_is_here_is_not_asked_for_though_its_answer_was_lost(lab):
    issue = lab.forge.create_issue("Add a button", labels=("adw",))
    lab.label(issue.number)
    lab.jobs().issues(TICK)
    lab.forge.tries = (attempt(lab, lab.deliveries.page()[0].guid, 1),)

    lab.jobs().redeliver(TICK)

    assert lab.forge.asked == []


def test_a_token_that_may_not_see_hooks_is_told_what_to_do(lab):
    lab.forge.refuses = True

    assert "leave redeliver out of cron.jobs" in lab.jobs().redeliver(TICK).outcome


def test_without_a_webhook_or_a_forge_that_keeps_deliveries_nothing_is_asked_for(lab):
    assert "no webhook is set up" in lab.jobs(webhook_secret="").redeliver(TICK).outcome
    assert lab.jobs(MemoryForge()).redeliver(TICK).outcome == "this forge keeps no deliveries"


def test_without_a_forge_nothing_is_polled(tmp_path):
    settings = settings_with(tmp_path, forge="none", webhook_secret="hush-hush-hush-hush")
    jobs = PollJobs(Home(settings, clock=FakeClock(), role="cron"))

    for job in jobs.all().values():
        assert "no forge is configured" in job(TICK).outcome
