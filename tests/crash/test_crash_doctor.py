"""What the doctor decided is done by whoever comes next, also when its worker was killed right after the write."""

from __future__ import annotations

import signal

import pytest

from tests import sampling
from tests.crash.driving import drive

#: decision -> the attempts that really ran, and the end
EXPECTED = {
    "retry": (["plan -", "build -", "build -"], "completed", None),
    "retry_model": (["plan -", "build -", "build large"], "completed", None),
    "replan": (["plan -", "build -", "plan - build failed: as told", "build -"], "completed", None),
    "skip": (["plan -", "build -"], "failed", "DOCTOR_SKIP"),
    "human": (["plan -", "build -"], "failed", "NEEDS_PERSON"),
}


@pytest.fixture(scope="module", params=sampling.some(["files", "database"], 1))
def played(request, tmp_path_factory) -> dict:
    """What was seen for each decision, all played by one run of the driver."""
    return drive("doctor_driver", tmp_path_factory.mktemp("doctor"), request.param, *EXPECTED, "asking")


@pytest.mark.parametrize("decision", EXPECTED)
def test_the_next_worker_goes_on_exactly_as_the_doctor_decided(decision, played):
    ran, state, reason = EXPECTED[decision]
    value = played[decision]

    after, end = value["after"], value["end"]
    assert (value["killed"], value["ended"]) == (-signal.SIGKILL, 0)
    assert (after["decisions"], after["doctor_calls"], after["build"][2]) == ([decision], 1, ["failed"])
    assert after["replans"] == (1 if decision == "replan" else 0)
    assert after["model"] == ("large" if decision == "retry_model" else None)
    assert [line.strip() for line in end["ran"]] == ran
    assert (end["state"], end["terminal_reason"]) == (state, reason)
    assert (end["asked"], end["doctor_calls"], end["decisions"]) == (["1"], 1, [decision])
    assert end["cost"] == 0.25 * len(ran)


def test_a_doctor_that_is_cut_off_has_used_its_call_and_the_work_goes_on(played):
    value = played["asking"]

    after, end = value["after"], value["end"]
    assert value["killed"] == -signal.SIGKILL
    assert (after["decisions"], after["doctor_calls"], after["build"][2]) == ([None], 1, ["running"])
    assert (end["state"], end["doctor_calls"], end["asked"]) == ("completed", 1, ["1"])
    assert end["build"] == ["complete", 2, ["interrupted", "succeeded"]]
