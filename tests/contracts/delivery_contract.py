"""What every store of deliveries keeps."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import Actor, Command, Delivery, RunRequest
from adws.adw_modules.deliveries.store import WINDOW
from adws.adw_modules.errors import (
    DeliveryConflict,
    DeliveryNotFound,
    InvalidAdwId,
    RunLost,
    TooManyRequests,
    UsageError,
)
from adws.adw_modules.forge.model import IssueText
from adws.adw_modules.interfaces import OwnerRecord
from adws.adw_modules.queue.model import RunEnd, RunState

WORKER = OwnerRecord(
    token="t" * 32, host="h", machine="m", boot_id="boot-1", pid_namespace="1", pid=7, start_ticks=1, role="worker"
)
REQUEST = RunRequest(
    repository="acme/widget",
    issue=IssueText(number=7, title="Add \N{LATIN SMALL LETTER E WITH ACUTE}", body="a\nb", labels=("adw", "bug")),
    actor=Actor(login="octocat"),
    cause="label",
    intent="acme/widget#7 label",
)
STOP = Command(kind="stop", repository="acme/widget", number=8, actor=Actor(login="mona"), intent="acme/widget#8 c1")


def delivery(guid: str, *, body: bytes | None = None, intent: str | None = None, **changes: object) -> Delivery:
    """A delivery that asks for a run, unlike every other but for what is given."""
    body = guid.encode() if body is None else body
    request = replace(REQUEST, intent=f"of {guid}" if intent is None else intent)
    made = Delivery(
        guid=guid,
        event="issues",
        action="labeled",
        hook="11",
        body=body,
        body_hash=hashlib.sha256(body).hexdigest(),
        sender="octocat",
        repository="acme/widget",
        number=7,
        verdict="run",
        reason="start the default workflow",
        request=commands.to_json(request),
        intent=request.intent,
    )
    return replace(made, **changes)


def ignored(guid: str, *, body: bytes | None = None) -> Delivery:
    return replace(
        delivery(guid, body=body), verdict="ignored", reason="the comment asks for nothing", request={}, intent=""
    )


def listed(stored: Delivery) -> Delivery:
    """A stored delivery as `get` and `page` return it."""
    return replace(stored, request={}, intent="", hook="", body=None, body_hash="")


def accepted(deliveries, made: Delivery) -> Delivery:
    """Accept one delivery; raise what is wrong with it."""
    [answer] = deliveries.accept([made])
    if isinstance(answer, Exception):
        raise answer
    return answer


class DeliveryContract:
    """Mix in and give `deliveries`, empty, with `runs` and `clock` that they work with."""

    def accepted(self, deliveries, made: Delivery, number: int = 1):
        return accepted(deliveries, replace(made, adw_id=f"a000000{number}"))

    # --- one that is new -------------------------------------------------------------------------------------------

    def test_a_delivery_that_asks_for_work_gets_a_run_of_its_own(self, deliveries, runs, clock):
        answer = self.accepted(deliveries, delivery("g1"))

        run = runs.get(answer.run_id)
        assert answer.is_new
        assert (run.kind, run.payload, run.asked_by) == ("delivery", {"guid": "g1"}, "octocat")
        assert run.state is RunState.PENDING
        assert listed(answer) == deliveries.get("g1")
        assert (answer.status, answer.adw_id, answer.outcome) == ("received", "a0000001", "")
        assert answer.received_at == timestamps.to_text(clock.now())
        assert answer.finished_at is None

    def test_several_are_kept_together_and_each_has_its_own_fate(self, deliveries, runs):
        """
        One that cannot be kept, or that came before, changes nothing for the others.
        """
        self.accepted(deliveries, delivery("g0"))
        made = [
            delivery("g1"),
            delivery("g0", body=b"another"),
            ignored("g2"),
            delivery("g1"),
            delivery("g3", verdict="nothing"),
            delivery("g4"),
        ]

        first, conflict, passed, again, wrong, last = deliveries.accept(made)

        assert isinstance(conflict, DeliveryConflict)
        assert isinstance(wrong, UsageError)
        assert (first.is_new, passed.run_id, again.is_new, last.is_new) == (True, None, False, True)
        assert again.run_id == first.run_id
        assert [runs.get(one.run_id).payload["guid"] for one in (first, last)] == ["g1", "g4"]
        assert {row.guid for row in deliveries.page()} == {"g0", "g1", "g2", "g4"}
        assert deliveries.accept([]) == []

    def test_an_id_that_is_taken_undoes_only_its_own_delivery(self, deliveries, runs, clock, monkeypatch):
        monkeypatch.setattr(clock, "token", lambda: "d1" * 16)

        first, second = deliveries.accept([delivery(f"g{n}", adw_id=f"a100000{n}") for n in (1, 2)])

        assert first.is_new
        assert isinstance(second, UsageError)
        assert "fresh one" in str(second)
        assert [row.guid for row in deliveries.page()] == ["g1"]
        assert len(runs.page()) == 1

    def test_everything_about_a_delivery_comes_back(self, deliveries):
        made = delivery("g1", body=b"\x00\xff" + "é".encode())
        self.accepted(deliveries, made)

        row = deliveries.get("g1")
        for name in ("guid", "event", "action", "sender", "repository", "number", "verdict", "reason"):
            assert getattr(row, name) == getattr(made, name)
        assert deliveries.body_of("g1") == made.body
        assert deliveries.request_of("g1") == made.request
        assert commands.from_json(deliveries.request_of("g1")) == replace(REQUEST, intent="of g1")
        assert row.deliveries == 1

    def test_a_command_is_kept_like_a_run(self, deliveries):
        self.accepted(deliveries, delivery("g1", verdict="command", request=commands.to_json(STOP)))

        assert commands.from_json(deliveries.request_of("g1")) == STOP

    def test_one_that_is_ignored_is_kept_with_its_reason_and_has_no_run(self, deliveries, runs, clock):
        answer = self.accepted(deliveries, ignored("g1"))

        assert answer.is_new
        assert (answer.status, answer.run_id, answer.adw_id) == ("done", None, "")
        assert answer.outcome == answer.reason == "the comment asks for nothing"
        assert answer.finished_at == timestamps.to_text(clock.now())
        assert deliveries.get("g1") == listed(answer)
        assert runs.page() == ()

    def test_the_long_body_of_one_that_is_ignored_is_not_kept(self, deliveries):
        self.accepted(deliveries, ignored("g1", body=b"x" * 65_536))
        self.accepted(deliveries, ignored("g2", body=b"y" * 65_537))
        self.accepted(deliveries, delivery("g3", body=b"z" * 65_537))

        assert deliveries.body_of("g1") == b"x" * 65_536
        assert deliveries.body_of("g2") is None
        assert deliveries.body_of("g3") == b"z" * 65_537

    def test_nothing_is_known_of_a_delivery_that_never_came(self, deliveries):
        assert deliveries.get("g1") is None
        assert deliveries.request_of("g1") is None
        assert deliveries.body_of("g1") is None
        with pytest.raises(DeliveryNotFound, match="g1"):
            deliveries.finish("g1", status="done", outcome="x")
        with pytest.raises(DeliveryNotFound, match="g1"):
            deliveries.again("g1", asked_by="me")

    def test_an_id_is_checked_before_anything_is_kept(self, deliveries, runs):
        with pytest.raises(InvalidAdwId):
            accepted(deliveries, delivery("g1", adw_id="../x"))

        assert deliveries.get("g1") is None
        assert runs.page() == ()

    def test_one_without_an_id_gets_a_fresh_one_or_that_which_it_names(self, deliveries):
        fresh = accepted(deliveries, delivery("g1"))
        named = accepted(deliveries, delivery("g2", request={**delivery("g2").request, "adw_id": "c0000001"}))

        assert len(fresh.adw_id) == 8
        assert named.adw_id == "c0000001"

    def test_another_verdict_is_refused(self, deliveries):
        with pytest.raises(UsageError, match="no verdict"):
            self.accepted(deliveries, delivery("g1", verdict="perhaps"))

    # --- one that came before --------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "again",
        [
            delivery("g1"),
            delivery("g2", body=b"g1", intent="another"),
            delivery("g2", body=b"g1", intent="another", hook="12", event="issue_comment"),
            delivery("g2", intent="of g1"),
        ],
        ids=["same-guid", "same-body", "same-body-other-hook", "same-intent"],
    )
    def test_the_same_again_gets_the_same_answer_and_starts_nothing(self, deliveries, runs, again):
        first = self.accepted(deliveries, delivery("g1"))
        second = self.accepted(deliveries, again, 2)

        assert not second.is_new
        assert second == replace(listed(first), deliveries=2)
        assert len(runs.page()) == 1
        assert deliveries.get("g1").deliveries == 2
        assert len(deliveries.page()) == 1

    def test_the_same_again_is_told_what_came_of_the_first(self, deliveries):
        self.accepted(deliveries, delivery("g1"))
        deliveries.finish("g1", status="done", outcome="workflow a0000001 was started")

        assert self.accepted(deliveries, delivery("g1"), 2).outcome == "workflow a0000001 was started"

    def test_an_ignored_one_that_comes_again_stays_ignored(self, deliveries, runs):
        self.accepted(deliveries, ignored("g1"))

        assert not self.accepted(deliveries, delivery("g1"), 2).is_new
        assert runs.page() == ()

    def test_those_without_an_intent_are_not_the_same(self, deliveries):
        self.accepted(deliveries, delivery("g1", intent=""))

        assert self.accepted(deliveries, delivery("g2", intent=""), 2).is_new
        assert self.accepted(deliveries, ignored("g3")).is_new
        assert self.accepted(deliveries, ignored("g4")).is_new

    def test_the_answer_is_that_of_the_one_with_the_same_body(self, deliveries):
        for guid in ("g1", "g2"):
            self.accepted(deliveries, ignored(guid))

        assert self.accepted(deliveries, ignored("g3", body=b"g2")).guid == "g2"

    def test_one_guid_with_another_body_is_refused(self, deliveries):
        self.accepted(deliveries, delivery("g1"))

        with pytest.raises(DeliveryConflict, match="another body"):
            self.accepted(deliveries, delivery("g1", body=b"other"), 2)
        assert deliveries.get("g1").deliveries == 1

    @pytest.mark.parametrize("what", ["guid", "body", "intent"])
    def test_of_many_at_once_that_are_the_same_one_starts_a_run(self, deliveries, runs, what):
        start = threading.Barrier(8)
        answers, troubles = [], []

        def send(number: int) -> None:
            for turn in range(5):
                unlike = f"{number}-{turn}"
                made = delivery(
                    "same" if what == "guid" else f"g{unlike}",
                    body=b"same" if what != "intent" else None,
                    intent="same" if what == "intent" else f"i{unlike}",
                )
                try:
                    if turn == 0:
                        start.wait()
                    answers.append(accepted(deliveries, replace(made, adw_id=f"a{number}{turn}00000")))
                except Exception as exc:  # noqa: BLE001 - told to the test, whatever it is
                    troubles.append(exc)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert troubles == []
        assert sum(answer.is_new for answer in answers) == 1
        assert {answer.adw_id for answer in answers} == {answers[0].adw_id}
        assert {answer.run_id for answer in answers} == {answers[0].run_id}
        assert len(runs.page()) == 1
        assert [row.deliveries for row in deliveries.page()] == [40]

    # --- what came of it -------------------------------------------------------------------------------------------

    def test_what_came_of_it_is_written_down(self, deliveries, clock):
        self.accepted(deliveries, delivery("g1"))
        clock.advance(3)
        deliveries.finish("g1", status="refused", outcome="octocat may only read")

        row = deliveries.get("g1")
        assert (row.status, row.outcome, row.adw_id) == ("refused", "octocat may only read", "a0000001")
        assert row.finished_at == timestamps.to_text(clock.now())

    @pytest.mark.parametrize(
        ("status", "adw_id", "kept"),
        [("refused", "", ""), ("refused", "b0000001", "b0000001"), ("done", "", "a0000001")],
    )
    def test_a_command_that_found_no_workflow_names_none(self, deliveries, status, adw_id, kept):
        self.accepted(deliveries, delivery("g1", verdict="command"))
        deliveries.finish("g1", status=status, outcome="x", adw_id=adw_id)

        assert deliveries.get("g1").adw_id == kept

    def test_a_delivery_ends_together_with_its_run(self, deliveries, runs):
        self.accepted(deliveries, delivery("g1"))
        run = runs.begin(runs.claim(WORKER, ttl_seconds=30))
        end = RunEnd(state=RunState.COMPLETED, reason="started")

        ended = deliveries.finish_with_run(run, end, status="done", outcome="started")

        assert (ended.state, ended.reason, deliveries.get("g1").status) == (RunState.COMPLETED, "started", "done")
        with pytest.raises(RunLost):
            deliveries.finish_with_run(run, end, status="failed", outcome="twice")
        assert deliveries.get("g1").status == "done", "both end, or none"

    def test_the_workflow_that_was_meant_can_be_named_at_the_end(self, deliveries):
        self.accepted(deliveries, delivery("g1"))
        deliveries.finish("g1", status="done", outcome="stopped", adw_id="b0000001")

        assert deliveries.get("g1").adw_id == "b0000001"

    @pytest.mark.parametrize("status", ["received", "ignored", ""])
    def test_a_delivery_ends_in_no_other_way(self, deliveries, status):
        self.accepted(deliveries, delivery("g1"))

        with pytest.raises(UsageError, match="done, refused, failed"):
            deliveries.finish("g1", status=status, outcome="x")

    # --- again -----------------------------------------------------------------------------------------------------

    def over(self, runs) -> None:
        run = runs.claim(WORKER, ttl_seconds=30)
        runs.finish(runs.begin(run), RunState.FAILED, reason="x")

    def test_a_kept_delivery_can_be_done_again(self, deliveries, runs):
        first = self.accepted(deliveries, delivery("g1"))
        self.over(runs)
        deliveries.finish("g1", status="failed", outcome="x")

        run = deliveries.again("g1", asked_by="person")

        row = deliveries.get("g1")
        assert run.run_id != first.run_id
        assert (run.kind, run.payload, run.asked_by) == ("delivery", {"guid": "g1"}, "person")
        assert (row.status, row.outcome, row.run_id, row.finished_at) == ("received", "", run.run_id, None)
        assert row.adw_id == "a0000001", "so that what it started before is found again"
        assert deliveries.request_of("g1") == delivery("g1").request

    def test_one_that_was_refused_for_another_workflow_starts_its_own_when_it_is_done_again(self, deliveries, runs):
        self.accepted(deliveries, delivery("g1"))
        self.over(runs)
        deliveries.finish("g1", status="refused", outcome="b0000001 is at work", adw_id="b0000001")

        deliveries.again("g1", asked_by="person", adw_id="a0000002")

        assert deliveries.get("g1").adw_id == "a0000002"

    def test_one_that_is_still_to_be_done_is_not_done_twice(self, deliveries, runs):
        first = self.accepted(deliveries, delivery("g1"))

        assert deliveries.again("g1", asked_by="person").run_id == first.run_id
        assert len(runs.page()) == 1

    def test_one_that_was_ignored_is_done_by_what_is_made_of_it_now(self, deliveries):
        self.accepted(deliveries, ignored("g1"))
        with pytest.raises(UsageError, match="asks for nothing: the comment asks for nothing"):
            deliveries.again("g1", asked_by="person", adw_id="a0000002")

        run = deliveries.again("g1", asked_by="person", instead=delivery("g1"), adw_id="a0000002")

        row = deliveries.get("g1")
        assert (row.verdict, row.reason, row.adw_id, row.run_id) == (
            "run",
            delivery("g1").reason,
            "a0000002",
            run.run_id,
        )
        assert deliveries.request_of("g1") == delivery("g1").request

    # --- lists and limits ------------------------------------------------------------------------------------------

    def test_deliveries_are_listed_newest_first_in_pages(self, deliveries):
        for number in range(1, 6):
            made = delivery(f"g{number}") if number % 2 else ignored(f"g{number}")
            self.accepted(deliveries, made, number)

        def guids(**query: object) -> list[str]:
            return [row.guid for row in deliveries.page(**query)]

        assert guids() == ["g5", "g4", "g3", "g2", "g1"]
        assert guids(limit=2) == ["g5", "g4"]
        assert guids(limit=2, before="g4") == ["g3", "g2"]
        assert guids(before="g1") == []
        assert guids(before="never-came") == []
        assert guids(verdicts=["ignored"]) == ["g4", "g2"]
        assert guids(verdicts=["run", "ignored", "run"], limit=3) == ["g5", "g4", "g3"]
        with pytest.raises(UsageError, match="at least 1"):
            deliveries.page(limit=0)

    def test_whether_anybody_asked_about_an_issue_is_known(self, deliveries):
        self.accepted(deliveries, delivery("g1"), 1)
        self.accepted(deliveries, replace(ignored("g3"), number=9))
        self.accepted(deliveries, delivery("g4", repository="acme/other"), 4)

        assert deliveries.has_requests_about("acme/widget", 7)
        assert deliveries.has_requests_about("acme/other", 7)
        assert not deliveries.has_requests_about("acme/widget", 9)

    def test_a_sender_over_the_limit_is_refused_and_a_repeat_gets_its_answer(self, deliveries, runs, clock):
        made = [delivery(f"g{number}", number=number) for number in range(1, 5)]

        answers = deliveries.accept([*made, made[0], delivery("g5", sender="mona"), ignored("g6")], sender_limit=3)

        assert [getattr(one, "deliveries", None) for one in answers] == [1, 1, 1, None, 2, 1, 1]
        assert isinstance(answers[3], TooManyRequests)
        assert len(runs.page()) == 4
        clock.advance(WINDOW.total_seconds() + 1)
        assert deliveries.accept([made[3]], sender_limit=3)[0].is_new

    def test_an_issue_over_the_limit_is_left_alone_and_others_are_not(self, deliveries, runs):
        made = [delivery(f"g{number}") for number in range(1, 4)]
        others = [delivery("g4", number=8), delivery("g5", repository="acme/other"), delivery("g6", number=None)]

        answers = deliveries.accept([*made, made[0], *others], issue_limit=2)

        assert [one.verdict for one in answers] == ["run", "run", "ignored", "run", "run", "run", "run"]
        assert (answers[2].status, answers[2].run_id) == ("done", None)
        assert answers[2].outcome == "issue 7 was asked about 2 times in an hour, and more may be a loop"
        assert deliveries.request_of("g3") == {}
        assert len(runs.page()) == 5

    # --- forgetting ------------------------------------------------------------------------------------------------

    def test_old_ones_are_forgotten_but_for_those_still_to_be_done(self, deliveries, runs, clock):
        self.accepted(deliveries, delivery("done"), 1)
        self.over(runs)
        self.accepted(deliveries, ignored("ignored"))
        self.accepted(deliveries, delivery("waiting"), 2)
        clock.advance(timedelta(days=15).total_seconds())
        self.accepted(deliveries, ignored("young"))

        before = timestamps.to_text(clock.now() - timedelta(days=14))
        assert deliveries.forget_before(before) == 2
        assert [row.guid for row in deliveries.page()] == ["young", "waiting"]
        assert deliveries.forget_before(before) == 0
        assert self.accepted(deliveries, delivery("done"), 3).is_new, "what is forgotten is new"
