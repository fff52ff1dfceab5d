"""What the views show, made from plain documents."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from adws.adw_modules import document, timestamps, views
from adws.adw_modules.events import Event, stamp
from adws.adw_modules.interfaces import (
    AgentSession,
    LeaseRow,
    LoadNotice,
    OwnerRecord,
    Page,
    SessionStatus,
    Verdict,
    WorkflowResult,
    WorkflowSummary,
)
from adws.cli import views as cli_views
from adws.cli.views import Status

NOW = datetime(2026, 1, 31, 9, 0, tzinfo=UTC)
EARLIER = timestamps.to_text(NOW - timedelta(minutes=5))
OWNER = OwnerRecord(
    token="t" * 32, host="forge", machine="m", boot_id="b", pid_namespace="n", pid=4711, start_ticks=9, role="worker"
)


def view(**changes):
    """The view of a document that has *changes*; `lease`, `verdict` and `notices` are about its owner and its load."""
    known = {name: changes.pop(name) for name in ("lease", "verdict", "notices") if name in changes}
    made = {"adw_id": "1a2b3c4d", "issue_number": 7, "created_at": EARLIER, "updated_at": EARLIER, **changes}
    return views.workflow(document.parse(made), **known)


def lines(**changes):
    return cli_views.status_lines(Status(view=view(**changes)), NOW)


def table(*phases):
    """The lines of the table of phases."""
    shown = lines(phases=list(phases))
    return shown[next(place for place, line in enumerate(shown) if line.startswith("PHASE ")) :]


def phase(name="build", **facts):
    return {"name": name, "state": "building", "status": "failed", "attempts_used": 2, "max_attempts": 2, **facts}


def attempt(number, status="failed", **facts):
    return {"number": number, "status": status, "started_at": EARLIER, **facts}


def test_the_status_of_a_fresh_workflow_shows_what_is_known_and_nothing_else():
    assert lines(revision=1) == [
        "id        1a2b3c4d",
        "state     pending",
        "issue     #7",
        "revision  1",
        "retries   0 of 3 used",
        "owner     nobody",
        "created   2026-01-31 08:55:00 UTC (5 min ago)",
        "updated   2026-01-31 08:55:00 UTC (5 min ago)",
    ]


def test_the_status_of_a_failed_workflow_says_where_why_and_what_is_left():
    test = phase(
        "test",
        attempts_used=6,
        max_attempts=5,
        granted=2,
        last_failure_reason="3 tests are red",
        retry_at=timestamps.to_text(NOW + timedelta(minutes=2)),
    )
    shown = "\n".join(
        lines(
            current_state="failed",
            failed_phase="test",
            terminal_reason="MAX_ATTEMPTS_EXHAUSTED",
            retry_count=2,
            reworks=1,
            pr_number=12,
            branch_name="feature-7",
            worktree_path="trees/1a2b3c4d",
            repository="acme/shop",
            issue={"title": "Add a cart"},
            workflow={"name": "sdlc"},
            cost={"total_usd": 1.234},
            phases=[test],
        )
    )

    for words in ("failed phase  test", "MAX_ATTEMPTS_EXHAUSTED", "2 of 3 used", "1 of 3 used", "#12", "feature-7"):
        assert words in shown
    for words in ("trees/1a2b3c4d", "acme/shop#7", "Add a cart", "workflow      sdlc", "1.23 USD"):
        assert words in shown
    row = "test   failed  6/7       0       -     -        -     2026-01-31 09:02:00 UTC (in 2 min)  3 tests are red"
    assert row in shown


def test_a_paused_workflow_says_where_it_goes_on():
    assert "state     paused (resumes with building)" in lines(current_state="paused", resume_state="building")


@pytest.mark.parametrize(
    ("verdict", "left", "words"),
    [
        (Verdict.ALIVE, 12.4, "worker 4711@forge, alive, lease 12 s left"),
        (Verdict.DEAD, -1.0, "worker 4711@forge, dead, lease over"),
        (None, 3.0, "worker 4711@forge, unknown, lease 3 s left"),
    ],
)
def test_the_owner_is_shown_with_its_liveness(verdict, left, words):
    lease = LeaseRow(adw_id="1a2b3c4d", fence=3, owner=OWNER, seconds_left=left)

    assert f"owner     {words}" in lines(lease=lease, verdict=verdict)


def test_the_token_of_the_owner_is_not_shown():
    lease = LeaseRow(adw_id="1a2b3c4d", fence=3, owner=OWNER, seconds_left=1.0)

    assert OWNER.token not in str(view(lease=lease, verdict=Verdict.ALIVE).to_json())


def test_what_was_noticed_while_reading_is_told_one_line_each():
    notices = (
        LoadNotice(kind="corrupt", path="/h/state/1a2b3c4d/adw_state.json", reason="it ends in the middle"),
        LoadNotice(kind="recovered", path="/h/state/1a2b3c4d/previous", reason="revision 3 was used"),
    )

    assert lines(notices=notices)[-3:] == [
        "",
        "note: /h/state/1a2b3c4d/adw_state.json: it ends in the middle",
        "note: /h/state/1a2b3c4d/previous: revision 3 was used",
    ]
    assert view(notices=notices[1:]).to_json()["notices"] == [
        {"kind": "recovered", "path": "/h/state/1a2b3c4d/previous", "reason": "revision 3 was used"}
    ]


def test_an_owner_that_the_database_cannot_tell_is_unknown_and_not_nobody():
    shown = cli_views.status_lines(Status(view=view(), database_problem="the database is gone"), NOW)

    assert "owner     unknown" in "\n".join(shown)
    assert shown[-1] == "note: the database is gone"


def test_warnings_and_a_begun_rollback_are_notices():
    shown = lines(warnings=["the branch was kept"], rollback={"reason": "x", "blocked_by": ["push", "pr"]})

    assert shown[-2:] == ["notice: the branch was kept", "notice: a rollback was begun, blocked by push, pr"]


def test_a_moment_that_nobody_knows_is_null_for_programs_and_unknown_for_people():
    unknown = timestamps.UNKNOWN_MOMENT
    data = view(created_at=unknown).to_json()
    page = Page(rows=(summary(1, created_at=unknown, updated_at=unknown),))

    row = cli_views.row_data(page.rows[0])

    assert (data["created_at"], data["updated_at"]) == (None, EARLIER)
    assert "created   unknown" in lines(created_at=unknown)
    assert (row["created_at"], row["updated_at"]) == (None, None)
    assert "  unknown  " in cli_views.list_lines(page, NOW)[1]


RESULT = WorkflowResult(
    phase="build",
    branch_name="adw/1",
    pr_number=57,
    pull_request_url="https://github.com/acme/widget/pull/57",
    cost_usd=1.25,
    work_seconds=725.0,
)


def summary(number, **changes):
    values = {
        "adw_id": f"{number:08x}",
        "repository": "",
        "issue_number": number,
        "title": "T" * 80,
        "workflow": "sdlc",
        "state": "building",
        "revision": 3,
        "created_at": EARLIER,
        "updated_at": EARLIER,
    }
    return WorkflowSummary(**values | changes)


def test_a_page_shows_one_line_for_each_workflow_and_how_to_go_on():
    rows = (
        summary(1, result=RESULT),
        summary(2, issue_number=None, title="x"),
        summary(31, result=replace(RESULT, pr_number=None, cost_usd=0.0, phase=None, work_seconds=7625.0)),
    )

    assert cli_views.list_lines(Page(rows=rows, next_cursor="abc"), NOW) == [
        "ID        STATE     PHASE  ISSUE  PR   USD   TIME     UPDATED    TITLE",
        f"00000001  building  build  #1     #57  1.25  12:05    5 min ago  {'T' * 32}...",
        "00000002  building  -      -      -    -     -        5 min ago  x",
        f"0000001f  building  -      #31    -    -     2:07:05  5 min ago  {'T' * 32}...",
        "more: add --cursor abc",
    ]
    assert max(map(len, cli_views.list_lines(Page(rows=rows), NOW))) == 100


def test_rows_of_several_repositories_name_them():
    rows = (summary(1, repository="acme/widget"), summary(2, repository="acme/gadget"))

    assert [line.split()[3] for line in cli_views.list_lines(Page(rows=rows), NOW)] == [
        "ISSUE",
        "acme/widget#1",
        "acme/gadget#2",
    ]


def test_an_empty_page_says_so():
    assert cli_views.list_lines(Page(rows=()), NOW) == ["no workflows"]


def test_the_list_as_data_names_the_owner_but_not_its_token():
    rows = (summary(1, owner=OWNER.to_text()), summary(2, owner="not a record"))

    assert [cli_views.row_data(row)["owner"] for row in rows] == ["worker 4711@forge", None]


def test_a_row_as_data_has_every_key_also_without_a_readable_document():
    with_result, without = map(cli_views.row_data, (summary(1, result=RESULT), summary(2)))

    assert with_result.keys() == without.keys()
    made = ("phase", "branch_name", "pr_number", "pull_request_url", "cost_usd", "work_seconds")
    assert [with_result[name] for name in made] == [
        "build",
        "adw/1",
        57,
        "https://github.com/acme/widget/pull/57",
        1.25,
        725.0,
    ]
    assert {without[name] for name in made} == {None}


def test_events_are_shown_in_order_with_their_facts():
    made = stamp(
        [
            Event(event_type="state_changed", data={"to": "b", "from": "a"}),
            Event(event_type="state_set", node_name="p", attempt_number=2),
        ],
        adw_id="1a2b3c4d",
        revision=4,
        created_at=EARLIER,
    )

    shown = cli_views.events_lines(made, NOW)

    assert "1a2b3c4d.4.0" in shown[1]
    assert shown[1].endswith("from=a to=b")
    assert shown[2].split()[-2:] == ["p", "2"]


def test_no_events_are_said_to_be_none():
    assert cli_views.events_lines((), NOW) == ["no events"]


@pytest.mark.parametrize(("total", "where"), [(3, "fetch[2]"), (1, "fetch"), (None, "fetch[2]")])
def test_an_event_of_a_loop_names_its_element(total, where):
    event = Event(event_type="iteration_completed", node_name="fetch", iteration_index=2, total_iterations=total)

    assert f" iteration_completed {where}" in cli_views.event_line(event)


def test_a_paused_workflow_says_why_and_one_that_goes_on_does_not():
    waiting = phase("plan", status="waiting")

    assert "why paused  lunch" in lines(current_state="paused", pause_reason="lunch")
    assert "why paused  waits for approval of plan" in lines(current_state="paused", phases=[waiting])
    assert not any("why paused" in line for line in lines(current_state="building", pause_reason="old"))


def test_a_failed_workflow_names_its_last_failed_phase_and_not_only_its_state():
    phases = [phase("audit"), phase("unit-tests"), phase("ship", status="queued")]

    assert "failed phase  unit-tests" in lines(current_state="failed", failed_phase="testing", phases=phases)
    assert "failed phase  testing" in lines(current_state="failed", failed_phase="testing")
    assert not any("failed phase" in line for line in lines(current_state="building", phases=phases))


def test_one_event_is_a_line_with_its_facts_in_few_words():
    error = {"message": "exit code 1", "metadata": {"class": "network"}}
    event = Event(
        event_type="attempt_failed",
        node_name="build",
        attempt_number=2,
        created_at=EARLIER,
        duration=1.5,
        data={"error": error, "why": "", "round": 1},
    )

    assert cli_views.event_line(event) == (
        f'{EARLIER} attempt_failed build 2 error="exit code 1" round=1 duration=1.500'
    )


def test_the_status_shows_the_agent_at_work_and_what_it_calls_its_session():
    session = AgentSession(
        session_id="1a2b3c4d.build.2",
        adw_id="1a2b3c4d",
        run_id=3,
        phase="build",
        attempt_number=2,
        agent="claude",
        host="forge",
        status=SessionStatus.RUNNING,
        executor_session_id="abc",
        started_at=EARLIER,
    )

    named = Status(view=view(), session=session)
    nameless = Status(view=view(), session=replace(session, executor_session_id=""))
    shown = named.to_json()["agent_session"]

    assert "agent     claude running: attempt 2 of build on forge, its session abc" in cli_views.status_lines(
        named, NOW
    )
    assert "agent     claude running: attempt 2 of build on forge" in cli_views.status_lines(nameless, NOW)
    assert (shown["session_id"], shown["ended_at"]) == ("1a2b3c4d.build.2", None)
    assert Status(view=view()).to_json()["agent_session"] is None


# --- phases ----------------------------------------------------------------------------------------------------


def test_totals_count_every_round_and_the_average_only_what_has_a_time():
    attempts = [
        attempt(1, duration=2.0, error={"message": "red", "category": "fatal"}),
        attempt(2, "suspended", duration=4.0),
        attempt(3, "interrupted", round=2),
    ]

    (data,) = view(phases=[phase(granted=1, attempts=attempts)]).to_json()["phases"]

    assert (data["total_attempts"], data["suspended_attempts"], data["max_attempts"]) == (3, 1, 3)
    assert (data["total_seconds"], data["average_seconds"]) == (6.0, 3.0)
    assert [(one["error"], one["category"]) for one in data["attempts"][:2]] == [("red", "fatal"), (None, None)]


def test_a_row_has_counters_times_and_the_failure_cut_to_fit():
    attempts = [attempt(1, duration=75.0), attempt(2, "suspended", duration=5.0), attempt(3, "parked")]
    long = phase(attempts=attempts, last_failure_reason="x" * 100)
    fresh = phase("test", status="queued", attempts_used=0, max_attempts=5)

    head, first, second = table(long, fresh)

    assert " ".join(head.split()) == "PHASE STATUS ATTEMPTS IN ALL TIME AVERAGE COST NEXT TRY LAST FAILURE"
    assert first.startswith(
        "build  failed  2/2       3 (1 suspended, 1 parked)  1 min 20 s  40 s     -     -         xxx"
    )
    assert first.endswith("...")
    assert second.split() == ["test", "queued", "0/5", "0", "-", "-", "-", "-", "-"]
    assert lines(phases=[]) == lines()


def test_agents_have_a_column_when_there_are_any():
    head, first, second = table(phase(attempts=[attempt(1, agent={"name": "claude"})]), phase("test"))

    assert (head.split()[2], first.split()[2], second.split()[2]) == ("AGENT", "claude", "-")


def test_the_newest_failure_that_was_not_made_good_is_told():
    old = phase("lint", last_failure_reason="style", last_attempt_timestamp="2026-01-31T08:00:00Z")
    new = phase("test", status="retry_wait", last_failure_reason="red", last_attempt_timestamp="2026-01-31T08:30:00Z")
    good = phase(status="complete", last_failure_reason="flaky", last_attempt_timestamp="2026-01-31T08:59:00Z")

    assert "last failure  test: red" in lines(phases=[new, old, good])
    assert not any("last failure" in line for line in lines(phases=[good]))


def test_hints_are_shown_with_what_is_known_about_them():
    full = {"text": "use less memory", "by": "ann", "at": timestamps.to_text(NOW), "phase": "test", "other": 1}

    assert lines(hints=[full, {"text": "hurry"}])[-3:] == [
        "",
        "hint: use less memory [for test, by ann, 2026-01-31 09:00:00 UTC (now)]",
        "hint: hurry",
    ]
    assert "other" not in view(hints=[full]).to_json()["hints"][0]


def test_a_wait_for_others_is_said_with_its_reason():
    waiting = phase(status="retry_wait", retry_at="2026-01-31T10:00:00Z", wait_reason="anthropic keeps failing")

    (line,) = (line for line in lines(phases=[waiting, phase("test")]) if line.startswith("waiting:"))

    assert line == "waiting: build until 2026-01-31 10:00:00 UTC (in 1 h): anthropic keeps failing"


def test_the_advisor_is_told_decision_by_decision():
    calls = [
        {"attempt": 2, "by": "rules", "decision": "retry_model", "reason": "too hard", "model": "large", "more": 1},
        {"attempt": 3, "by": "claude", "decision": "replan", "reason": "wrong", "problem": "it cannot be done: x"},
        {"attempt": 4, "by": "pkg:fn"},
    ]

    assert lines(phases=[phase(doctor=calls)])[-4:] == [
        "",
        "doctor: build, attempt 2: retry_model large: too hard [by rules]",
        "doctor: build, attempt 3: replan: wrong (it cannot be done: x) [by claude]",
        "doctor: build, attempt 4: was asked and gave no answer [by pkg:fn]",
    ]
    (data,) = view(phases=[phase(doctor=calls)]).to_json()["phases"]
    assert data["doctor"][0] == {key: calls[0][key] for key in ("attempt", "by", "decision", "reason", "model")}
