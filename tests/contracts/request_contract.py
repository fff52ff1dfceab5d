"""What every Requests keeps."""

from __future__ import annotations

import threading

import pytest

from adws.adw_modules.errors import InvalidAdwId
from tests.contracts.worlds import FIRST, MOMENT, SECOND


class RequestContract:
    """Mix in and give a `world` fixture."""

    def test_a_request_waits_until_it_is_handled(self, world):
        asked = world.requests.ask(FIRST, "pause", payload={"why": "lunch", "n": [1, None]}, asked_by="ann")

        assert world.requests.open_for(FIRST) == (asked,)
        assert (asked.adw_id, asked.kind, asked.asked_by, asked.created_at) == (FIRST, "pause", "ann", MOMENT)
        assert asked.payload == {"why": "lunch", "n": [1, None]}
        assert (asked.handled_at, asked.outcome) == (None, None)

        assert world.requests.handled(asked.request_id, "paused") is True
        assert world.requests.open_for(FIRST) == ()

    def test_a_request_is_handled_once(self, world):
        asked = world.requests.ask(FIRST, "stop")

        assert world.requests.handled(asked.request_id, "stopped") is True
        assert world.requests.handled(asked.request_id, "again") is False

    def test_what_was_never_asked_cannot_be_handled(self, world):
        assert world.requests.handled(4711, "done") is False

    def test_requests_come_in_the_order_they_were_asked(self, world):
        kinds = ["pause", "hint", "stop", "rollback", "abandon"]
        for kind in kinds:
            world.requests.ask(FIRST, kind)

        assert [request.kind for request in world.requests.open_for(FIRST)] == kinds

    def test_an_owner_sees_its_own_requests_only(self, world):
        world.requests.ask(FIRST, "pause")
        world.requests.ask(SECOND, "stop")

        assert [request.kind for request in world.requests.open_for(SECOND)] == ["stop"]

    def test_of_many_threads_one_handles_it(self, world):
        asked = world.requests.ask(FIRST, "pause")
        start, won = threading.Barrier(8), []

        def compete(name: str) -> None:
            start.wait()
            if world.requests.handled(asked.request_id, name):
                won.append(name)

        threads = [threading.Thread(target=compete, args=(f"owner {n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(won) == 1

    def test_an_id_that_is_no_name_is_refused(self, world):
        with pytest.raises(InvalidAdwId):
            world.requests.ask("../etc", "pause")
        with pytest.raises(InvalidAdwId):
            world.requests.open_for("../etc")
