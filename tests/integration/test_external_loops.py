"""What is emitted over HTTP about a task: whose words are kept, and loops that are run outside of adw, to their end."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.test_web_external import Outside, code


class Loops(Outside):
    """A home with a task, and ways to tell of a loop that is run for it."""

    def loop(self, event_id: str, event_type: str, **fields):
        return self.emit(event_id=event_id, event_type=event_type, **fields)

    def begin_loop(self, size: int, **data):
        """Claim the task, if nobody has, and begin a loop under the name of the task."""
        if not self.get(self.path)["claim"]:
            self.say("claim", {"worker": "ci"})
        return self.loop("begin", "iterator_started", data={"collection_size": size, **data})


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def lab(request, tmp_path):
    env = {}
    if request.param == "postgresql":
        env["ADW_DATABASE_URL"] = request.getfixturevalue("pg_url")
    with Loops(tmp_path / "home", env) as lab:
        yield lab


def test_an_event_keeps_its_node_its_catalogue_and_its_parents(lab):
    lab.say("claim")
    lab.emit(event_id="first", event_type="step_started", node_id="fetch", node_name="Fetch", node_type="http")
    lab.emit(
        event_id="second",
        event_type="step_completed",
        node_id="fetch",
        catalog_id=789,
        parent_event_id="first",
        parent_execution_id=345678,
    )
    lab.emit(event_id="third", event_type="step_skipped", parent_event_id="789012")

    started, ended, skipped = lab.events("step_started", "step_completed", "step_skipped")
    assert (started["node_id"], started["node_name"], started["node_type"]) == ("fetch", "Fetch", "http")
    assert (started["catalog_id"], started["parent_execution_id"]) == ("outside@1", lab.adw_id)
    assert (ended["catalog_id"], ended["parent_execution_id"]) == ("789", "345678")
    assert ended["parent_event_id"] == started["event_id"], "an id that the sender gave leads to the stored event"
    assert skipped["parent_event_id"] == "789012"
    assert (skipped["node_id"], skipped["node_name"], skipped["node_type"]) == ("build", "build", "external")


def test_a_loop_that_is_run_outside_is_told_to_its_end_as_seed_001_says(lab):
    lab.say("claim", {"worker": "ci-7"})
    loop = f"{lab.task_id}.items"
    started = {"iterator_name": "item", "collection_size": 3, "mode": "async", "concurrency": 5, "chunk_size": None}
    assert lab.loop("s", "iterator_started", execution_id=loop, data=started).json()["is_new"] is True
    for index in (2, 0, 1):
        told = {"parent_execution_id": loop, "node_type": "http"}
        data = {"iteration_index": index, "element": {"n": index}}
        assert lab.loop(f"b{index}", "iteration_started", data=data, **told).status_code == 200
        if index == 1:
            failed = {"iteration_index": index, "error": {"message": "no such user"}, "status": "failed"}
            assert lab.loop(f"e{index}", "iteration_failed", data=failed, **told).status_code == 200
        else:
            done = {"iteration_index": index, "result": {"doubled": 2 * index}, "status": "success"}
            assert lab.loop(f"e{index}", "iteration_completed", data=done, **told).status_code == 200

    (begin,) = lab.events("iterator_started")
    assert (begin["execution_id"], begin["total_iterations"], begin["data"]["collection_size"]) == (loop, 3, 3)
    ends = lab.events("iteration_completed", "iteration_failed")
    assert [(one["event_type"], one["iteration_index"]) for one in ends] == [
        ("iteration_completed", 2),
        ("iteration_completed", 0),
        ("iteration_failed", 1),
    ]
    assert {(one["execution_id"], one["parent_execution_id"], one["node_type"]) for one in ends} == {
        (loop, loop, "http")
    }
    (end,) = lab.events("iterator_completed", "iterator_failed", "iterator_cancelled")
    assert (end["event_type"], end["execution_id"]) == ("iterator_completed", loop)
    assert (end["data"]["total_iterations"], end["data"]["successful"], end["data"]["failed"]) == (3, 2, 1)
    shown = lab.get(f"/api/v1/executions/{loop}")
    assert (shown["state"], shown["done"], shown["step"]) == ("completed", 3, "items")
    rows = lab.get(f"/api/v1/executions/{loop}/iterations")["iterations"]
    assert [json.loads(row["result"] or "null") for row in rows] == [{"doubled": 0}, None, {"doubled": 4}]
    assert [json.loads(row["element"]) for row in rows] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert rows[1]["error"] == "no such user"
    assert lab.state(lab.adw_id) == "building", "the loop is over, and its task is not"

    lab.say("report", {"claim": 1, "ok": True})
    lab.work()
    assert lab.state(lab.adw_id) == "completed"


def test_an_event_of_a_loop_that_is_sent_again_changes_nothing(lab):
    lab.begin_loop(2)
    for _ in range(3):
        lab.loop("b0", "iteration_started", data={"iteration_index": 0, "element": 1})
    answers = [lab.loop("e0", "iteration_completed", data={"iteration_index": 0}).json()["is_new"] for _ in range(3)]

    assert answers == [True, False, False]
    assert lab.begin_loop(2).json()["is_new"] is False
    kinds = lab.kinds()
    assert [kinds.count(kind) for kind in ("iterator_started", "iteration_started", "iteration_completed")] == [1, 1, 1]


def test_of_many_ends_of_one_iteration_at_once_one_counts(lab):
    lab.begin_loop(3)

    def end(number: int) -> int:
        return lab.loop(f"e{number}", "iteration_completed", data={"iteration_index": 1, "result": number}).status_code

    with ThreadPoolExecutor(8) as pool:
        answers = sorted(pool.map(end, range(8)))

    assert answers == [200] + [409] * 7
    assert len(lab.events("iteration_completed")) == 1


#: An event, what it says, and the words with which it is refused.
SENSELESS = [
    ("iterator_started", {}, "collection_size is null"),
    ("iterator_started", {"collection_size": -1}, "collection_size is -1"),
    ("iterator_started", {"collection_size": True}, "collection_size is true"),
    ("iterator_started", {"collection_size": 10_001}, "0 to 10000"),
    ("iterator_started", {"collection_size": 1, "mode": "sideways"}, "'sideways' is no mode of a loop"),
    ("iterator_started", {"collection_size": 1, "concurrency": "five"}, "concurrency must be a whole number"),
    ("iteration_completed", {}, "iteration_index is null"),
    ("iteration_completed", {"iteration_index": -1}, "iteration_index is -1"),
    ("iteration_completed", {"iteration_index": "0"}, 'iteration_index is "0"'),
    ("iteration_completed", {"iteration_index": 2}, "has 2 elements"),
]


def test_an_event_of_a_loop_that_makes_no_sense_is_refused_and_changes_nothing(lab):
    lab.begin_loop(2)
    before = lab.kinds()

    for kind, data, words in SENSELESS:
        answer = lab.loop("wrong", kind, data=data)

        assert answer.status_code == 422, data
        assert words in answer.json()["error"]["message"]
        assert lab.kinds() == before


def test_an_event_that_contradicts_its_loop_gets_409(lab):
    lab.say("claim")
    assert code(lab.loop("x", "iteration_completed", data={"iteration_index": 0})) == (409, "event_refused")
    lab.begin_loop(2)
    for kind, words in (
        ("iterator_started", "has begun already"),
        ("iterator_completed", "2 of 2 iterations"),
        ("iterator_failed", "2 of 2 iterations"),
    ):
        answer = lab.loop("y", kind, data={"collection_size": 2})
        assert code(answer) == (409, "event_refused")
        assert words in answer.json()["error"]["message"]
    answer = lab.loop("begin", "iteration_started", data={"iteration_index": 0})
    assert code(answer) == (409, "event_refused")
    assert "event_id begin was used for iterator_started" in answer.json()["error"]["message"]

    lab.loop("e0", "iteration_completed", data={"iteration_index": 0})
    lab.loop("e1", "iteration_completed", data={"iteration_index": 1})

    assert lab.loop("over", "iterator_completed").json()["is_new"] is False
    assert code(lab.loop("over-2", "iterator_failed")) == (409, "event_refused")
    assert code(lab.loop("e2", "iteration_failed", data={"iteration_index": 1})) == (409, "event_refused")
    assert lab.kinds().count("iterator_completed") == 1


def test_a_loop_that_fails_fast_cancels_what_has_not_begun(lab):
    lab.begin_loop(700, on_failure="fail_fast")
    lab.loop("b5", "iteration_started", data={"iteration_index": 5})
    lab.loop("e3", "iteration_failed", data={"iteration_index": 3, "error": "no such user"})

    assert len(lab.events("iteration_cancelled")) == 698
    refused = lab.loop("b4", "iteration_started", data={"iteration_index": 4})
    assert code(refused) == (409, "event_refused")
    lab.loop("e5", "iteration_completed", data={"iteration_index": 5})
    (end,) = lab.events("iterator_failed")
    counted = (end["data"]["successful"], end["data"]["failed"], end["data"]["cancelled"])
    assert counted == (1, 1, 698)


@pytest.mark.parametrize("way", ["iterator_cancelled", "report", "deadline", "abandon"])
def test_every_iteration_has_one_end_however_its_loop_is_given_up(lab, way):
    lab.begin_loop(4)
    lab.loop("b0", "iteration_started", data={"iteration_index": 0})
    lab.loop("b1", "iteration_started", data={"iteration_index": 1})
    lab.loop("e1", "iteration_completed", data={"iteration_index": 1})

    if way == "iterator_cancelled":
        answers = [lab.loop("stop", way, data={"reason": "not wanted"}).json()["is_new"] for _ in range(2)]
        assert answers == [True, False]
    elif way == "report":
        assert lab.say("report", {"claim": 1, "ok": True}).status_code == 200
    elif way == "deadline":
        lab.pass_deadline()
        lab.work()
    else:
        assert lab.post(f"/api/v1/workflows/{lab.adw_id}/abandon").status_code in (200, 202)
        lab.work()

    ends = lab.events("iteration_completed", "iteration_failed", "iteration_cancelled")
    assert sorted((one["iteration_index"], one["event_type"]) for one in ends) == [
        (0, "iteration_cancelled"),
        (1, "iteration_completed"),
        (2, "iteration_cancelled"),
        (3, "iteration_cancelled"),
    ]
    assert len(lab.events("iterator_cancelled")) == 1
    assert lab.get(f"/api/v1/executions/{lab.task_id}")["state"] == "cancelled"


def test_a_loop_of_another_task_and_the_end_of_a_task_by_its_loop_are_refused(lab):
    lab.begin_loop(2)

    assert code(lab.loop("a", "iterator_started", execution_id="1a2b3c4d.build.9.items"))[0] == 401
    away = lab.loop("b", "iteration_completed", parent_execution_id="123456", data={"iteration_index": 0})
    assert away.status_code == 422
    assert f"must be {lab.task_id}, or {lab.task_id}.NAME" in away.json()["error"]["message"]
    end = lab.loop("c", "action_completed", execution_id=f"{lab.task_id}.items")
    assert end.status_code == 422
    assert lab.get(lab.path)["state"] == "open"


def test_secrets_do_not_reach_the_events_and_rows_of_a_loop(lab):
    secret = "ghp_" + "a1B2" * 9
    lab.begin_loop(1)
    told = {"iteration_index": 0, "element": {"key": secret}}
    lab.loop("b0", "iteration_started", data=told, node_name=f"call {secret}")
    lab.loop("e0", "iteration_completed", data={"iteration_index": 0, "result": {"said": secret}})

    shown = json.dumps(
        [
            lab.get("/api/v1/events", adw_id=lab.adw_id, limit=1000),
            lab.get(f"/api/v1/executions/{lab.task_id}/iterations/0"),
        ]
    )
    assert secret not in shown


def test_only_variables_over_10_kb_are_truncated_and_all_others_are_kept(lab):
    lab.say("claim")
    small = {f"v{n}": "x" * 1000 for n in range(30)}

    lab.emit(
        event_type="step_completed",
        context={"vars": {**small, "large": "y" * 20_000}, "workload": {"url": "https://api.example.com"}},
        result={"id": 7, "rows": ["z" * 50] * 400},
        data={"note": "kept", "blob": "b" * 11_000},
    )

    (event,) = lab.events("step_completed")
    assert event["context"]["vars"] == {**small, "large": {"_truncated": True, "_size": 20_002}}
    assert event["context"]["workload"] == {"url": "https://api.example.com"}
    assert event["result"]["id"] == 7
    assert event["result"]["rows"]["_truncated"] is True
    assert event["data"] == {"note": "kept", "blob": {"_truncated": True, "_size": 11_002}}


def test_an_iteration_ends_once(lab):
    lab.begin_loop(2)
    lab.loop("e0", "iteration_completed", data={"iteration_index": 0, "result": 1})

    for number, kind in enumerate(("iteration_completed", "iteration_failed", "iteration_cancelled")):
        answer = lab.loop(f"again-{number}", kind, data={"iteration_index": 0, "result": 2})
        assert code(answer) == (409, "event_refused")
        assert "iteration 0" in answer.json()["error"]["message"]
        assert "it ends once" in answer.json()["error"]["message"]
    assert code(lab.loop("late", "iteration_started", data={"iteration_index": 0})) == (409, "event_refused")

    assert len(lab.events("iteration_completed", "iteration_failed", "iteration_cancelled")) == 1
    (row, _) = lab.get(f"/api/v1/executions/{lab.task_id}/iterations")["iterations"]
    assert (row["state"], row["result"]) == ("completed", "1")
