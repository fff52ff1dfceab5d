"""What a command that worked on a workflow says at its end."""

from __future__ import annotations

import pytest

from adws.adw_modules import views
from adws.cli import work
from adws.cli.work import RunEnding
from tests.unit.timeline_cases import document, phase, tried

ID = "1a2b3c4d"


def ending(state="building", **facts):
    own = {name: facts.pop(name) for name in ("message", "has_worker", "signal_exit") if name in facts}
    return RunEnding(workflow=views.workflow(document(*facts.pop("phases", ()), current_state=state, **facts)), **own)


def build(*attempts, status="failed", **facts):
    return phase("build", *attempts, status=status, **facts)


def test_what_is_completed_is_done_and_shows_its_warnings():
    end = ending("completed", warnings=["clean failed"])

    assert work.lines(end) == [f"workflow {ID} is completed", "warning: clean failed"]
    assert work.exit_code(end) == 0
    assert work.told(end)["warnings"] == ["clean failed"]
    assert work.told(end)["next"] == []


def test_what_failed_says_where_why_and_what_helps():
    error = {"message": "red", "advice": "Mend the tests, then: adw retry ID."}
    failed = build(tried(1, 0, 1, "failed", error=error), last_failure_reason="3 tests are red")
    optional = phase("audit", status="failed", last_failure_reason="not needed")
    end = ending("failed", terminal_reason="NOT_RETRIED", phases=[optional, failed])

    assert work.lines(end) == [
        f"workflow {ID} failed in build (NOT_RETRIED): 3 tests are red",
        f"Mend the tests, then: adw retry {ID}.",
        f"next: adw logs {ID}, or adw status {ID}",
    ]
    assert work.exit_code(end) == 1
    told = work.told(end)
    assert (told["phase"], told["reason"], told["message"]) == ("build", "NOT_RETRIED", "3 tests are red")
    assert told["advice"] == f"Mend the tests, then: adw retry {ID}."


def test_a_failure_without_details_is_still_told():
    assert work.lines(ending("failed"))[0] == f"workflow {ID} failed in a phase"
    assert work.lines(ending("failed", failed_phase="testing"))[0] == f"workflow {ID} failed in testing"
    assert work.told(ending("failed", phases=[build()]))["advice"] is None


def test_what_waits_for_approval_is_no_failure():
    end = ending("paused", pause_reason="awaiting_approval", phases=[build(status="waiting")], signal_exit=130)

    assert work.lines(end) == [
        f"workflow {ID} waits for approval of build",
        f"next: adw approve {ID}, or adw reject {ID} -m TEXT",
    ]
    assert work.exit_code(end) == 0


@pytest.mark.parametrize(("reason", "said"), [("lunch", ": lunch"), (None, "")])
def test_what_was_paused_says_why_and_is_not_done(reason, said):
    end = ending("paused", pause_reason=reason)

    assert work.lines(end) == [f"workflow {ID} is paused{said}", f"next: adw resume {ID}"]
    assert work.exit_code(end) == 1


@pytest.mark.parametrize("code", [130, 143])
def test_a_signal_decides_the_exit_code_of_what_it_cut_short_only(code):
    assert work.exit_code(ending("paused", signal_exit=code)) == code
    assert work.exit_code(ending("building", signal_exit=code)) == code
    assert work.exit_code(ending("completed", signal_exit=code)) == 0
    assert work.exit_code(ending("failed", signal_exit=code)) == 1
    assert work.exit_code(ending("abandoned", signal_exit=code)) == 1


def test_what_is_not_over_says_who_goes_on():
    alone = ending(message="asked to end by SIGTERM")
    followed = ending(has_worker=True)

    assert work.lines(alone) == [
        f"workflow {ID} is building and waits for a worker (asked to end by SIGTERM)",
        f"next: adw resume {ID}, or adw worker",
    ]
    assert work.told(alone)["message"] == "asked to end by SIGTERM"
    assert work.lines(ending())[0] == f"workflow {ID} is building and waits for a worker"
    assert work.lines(followed) == [
        f"workflow {ID} is building, and a worker continues it",
        f"next: adw status {ID}, or adw pause {ID}",
    ]
    assert work.exit_code(alone) == work.exit_code(followed) == 1


def test_what_was_rolled_back_is_said_in_words():
    assert work.lines(ending("rolled_back")) == [f"workflow {ID} is rolled back"]
