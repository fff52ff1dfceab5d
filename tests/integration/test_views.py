"""What examples/sql.md says can be asked is asked, of real workflows, on both databases and with the same answers."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from adws import app as app_module
from adws.adw_modules.db import schema
from adws.adw_modules.interfaces import AgentSession, SessionStatus
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.reports import model as reports_model
from adws.adw_modules.reports.model import Window
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.adw_modules.workflow.model import PhaseSpec, RetrySpec, WorkflowSpec
from adws.adw_modules.workflow.requirements import Capabilities
from adws.config import load as config_load
from tests.contracts.worlds import make_owner

PAGE = (Path(__file__).resolve().parents[2] / "examples" / "sql.md").read_text()
#: What stands for a workflow in the texts.
NAMED = "fileorg-phase2-beta-release"
NEVER = RetrySpec(strategy="fixed", base_seconds=3600.0, max_seconds=3600.0)

#: The queries that tools of this kind are known to ask, word for word.
KNOWN_QUERIES = (
    """\
SELECT phase_id, state, attempts_used, max_attempts, last_failure_reason
FROM phases
WHERE run_id = 'fileorg-phase2-beta-release'
ORDER BY tier_id, phase_index;""",
    """\
SELECT
    phase_id,
    state,
    attempts_used,
    max_attempts,
    last_failure_reason,
    last_attempt_timestamp
FROM phases
WHERE run_id = 'fileorg-phase2-beta-release'
ORDER BY tier_id, phase_index;""",
    """\
SELECT
    phase_id,
    state,
    attempts_used,
    last_attempt_timestamp,
    NOW() - last_attempt_timestamp AS time_since_last_attempt
FROM phases
WHERE
    run_id = 'fileorg-phase2-beta-release'
    AND state = 'EXECUTING'
    AND last_attempt_timestamp < NOW() - INTERVAL '1 hour';""",
    """\
SELECT
    attempts_used,
    COUNT(*) AS phase_count,
    ARRAY_AGG(phase_id) AS phase_ids
FROM phases
WHERE run_id = 'fileorg-phase2-beta-release'
GROUP BY attempts_used
ORDER BY attempts_used;""",
)


class Text(NamedTuple):
    """A query of the page."""

    dialects: str
    sql: str


TEXTS = tuple(
    Text(*found)
    for found in re.findall(r"^((?:PostgreSQL|SQLite)[^\n]*):\n\n```sql\n(.*?)\n```", PAGE, re.MULTILINE | re.DOTALL)
)


class _EarlierClock:
    """The clock of the machine, three hours ago."""

    def __init__(self, clock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now() - timedelta(hours=3)

    def __getattr__(self, name):
        return getattr(self._clock, name)


@pytest.fixture
def open_home(tmp_path, database_url):
    """`open_home(earlier=True)` opens a home with its documents in the database; earlier: three hours ago."""
    home = tmp_path / "home"
    home.mkdir()
    env = {"ADW_HOME": str(home), "ADW_DATABASE_URL": database_url, "ADW_STATE_STORE": "database"}
    opened = []

    def open_it(*, earlier: bool = False, **more: str):
        wrap = _EarlierClock if earlier else None
        settings = config_load.load(env={**env, **more}, cwd=home)
        opened.append(app_module.open_home(settings, role="worker", wrap_clock=wrap))
        return opened[-1]

    yield open_it
    for app in opened:
        app.close()


def step(name: str, shell: str, state: str, **fields) -> PhaseSpec:
    return PhaseSpec(name=name, state=state, runner="command", shell=shell, **{"retry": NEVER, **fields})


def carry_out(app, *phases: PhaseSpec) -> str:
    """Run a workflow as far as it goes now, and return its id."""
    adw_id = app.workflow_creator.start(
        NewWorkflow(issue_number=None, spec=WorkflowSpec(name="asked", phases=phases))
    ).adw_id
    app.worker(WorkerOptions(once=True, recover_seconds=3600.0)).run()

    return adw_id


def ask(app, dialects: str, start: str, adw_id: str = "") -> list[tuple]:
    """Ask what the page asks for this dialect."""
    word = "SQLite" if app.database.dialect == "sqlite" else "PostgreSQL"
    (text,) = [text.sql for text in TEXTS if word in text.dialects and dialects in text.dialects and start in text.sql]
    with app.database.read() as session:
        return session.all(text.replace(NAMED, adw_id).rstrip(";"))


def test_the_page_has_the_known_queries_word_for_word():
    on_page = [text.sql for text in TEXTS if "PostgreSQL" in text.dialects]

    assert [query for query in KNOWN_QUERIES if query not in on_page] == []


def test_every_query_of_the_page_runs_on_its_database(open_home):
    app = open_home()
    word = "SQLite" if app.database.dialect == "sqlite" else "PostgreSQL"
    texts = [text.sql for text in TEXTS if word in text.dialects]
    assert len(texts) == 13
    for sql in texts:
        with app.database.read() as session:
            assert session.all(sql.rstrip(";")) == []


def test_the_page_names_every_column_of_every_view(open_home):
    app = open_home()
    for view in schema.VIEWS:
        section = PAGE.split(f"## {view.name}\n")[1].split("\n## ")[0]
        named = [
            name
            for row in re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
            for name in re.findall(r"`(\w+)`", row)
        ]

        assert sorted(named) == sorted(_columns(app, view.name))


def test_the_page_names_every_column_and_every_kind_of_sums(open_home):
    section = PAGE.split("## report_sums\n")[1].split("\n## ")[0]
    columns, kinds = section.split("| kind |")

    named = re.findall(r"^\| (`[^|]*) \|", columns, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(named))) == sorted(_columns(open_home(), "report_sums"))
    told = re.findall(r"^\| (`[^|]*) \|", kinds, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(told))) == {
        "outcome",
        "attempt",
        "needed",
        "duration",
        "failure",
        *reports_model.COST_FIGURES,
    }


def _columns(app, name: str) -> list[str]:
    with app.database.read() as session:
        if app.database.dialect == "sqlite":
            return [row[1] for row in session.all(f"PRAGMA table_info({name})")]
        rows = session.all(
            "SELECT column_name FROM information_schema.columns WHERE table_name = :name", {"name": name}
        )

    return [row[0] for row in rows]


# --- phases ----------------------------------------------------------------------------------------------------


def test_phases_have_the_states_and_the_counts_of_their_documents(open_home):
    app = open_home()
    adw_id = carry_out(
        app,
        step("plan", "true", "planning"),
        step("zeal", "echo connection reset by peer >&2; exit 1", "building", max_attempts=3),
        step("build", "true", "building"),
    )

    rows = ask(app, "", "SELECT phase_id, state, attempts_used, max_attempts, last_failure_reason\n", adw_id)

    assert [row[:4] for row in rows] == [
        ("plan", "COMPLETE", 1, 5),
        ("zeal", "EXECUTING", 1, 3),
        ("build", "QUEUED", 0, 5),
    ]
    assert rows[0][4] is None
    assert "connection reset by peer" in rows[1][4]
    with app.database.read() as session:
        words = session.all("SELECT status FROM phases ORDER BY tier_id, phase_index")
    assert words == [("complete",), ("retry_wait",), ("queued",)]


def test_a_phase_that_an_open_breaker_holds_before_its_first_attempt_is_queued(open_home):
    app = open_home(ADW_FORGE_KIND="github", ADW_GITHUB_REPOSITORY="acme/web", GITHUB_TOKEN="ghp_" + "a" * 36)
    app.breakers.get("github").open_until(app.clock.now() + timedelta(hours=1), "network: no route")
    ship = PhaseSpec(name="ship", state="shipping", runner="ship", retry=NEVER)
    adw_id = carry_out(app, step("plan", "true", "planning"), ship)

    rows = ask(app, "", "SELECT phase_id, state, attempts_used, max_attempts, last_failure_reason\n", adw_id)

    assert [row[:3] for row in rows] == [("plan", "COMPLETE", 1), ("ship", "QUEUED", 0)]
    with app.database.read() as session:
        assert session.all("SELECT status FROM phases WHERE phase_id = 'ship'") == [("retry_wait",)]
    assert app.store.load(adw_id).document.phases[1].attempts == []


def test_phases_come_in_the_order_of_their_tiers_and_not_of_their_names(open_home):
    app = open_home()
    adw_id = carry_out(
        app,
        step("second", "true", "planning"),
        step("first", "true", "planning"),
        step("beta", "true", "building", tier=2),
        step("alpha", "exit 1", "building", tier=10, is_required=False, max_attempts=1),
    )

    rows = ask(app, "with the start", "last_attempt_timestamp\nFROM phases", adw_id)

    assert [row[0] for row in rows] == ["second", "first", "beta", "alpha"]
    assert [row[1] for row in rows] == ["COMPLETE", "COMPLETE", "COMPLETE", "FAILED"]
    with app.database.read() as session:
        assert session.all("SELECT tier_id FROM phases ORDER BY tier_id, phase_index") == [(0,), (0,), (2,), (10,)]


def test_a_phase_that_hangs_in_its_first_attempt_is_stuck_after_an_hour(open_home, monkeypatch):
    """Its attempt has neither failed nor ended: only its start tells."""
    app, later = open_home(earlier=True), open_home()
    result = {}

    def look(context) -> None:
        adw_id = context.document.adw_id
        result["stuck"] = ask(later, "", "time_since_last_attempt", adw_id)

    monkeypatch.setattr("tests.integration.test_views.hang", look, raising=False)
    hanging = PhaseSpec(name="hang", state="planning", runner="python", call="tests.integration.test_views:hang")
    carry_out(app, hanging, step("build", "true", "building"))

    ((phase, state, attempts, began, since),) = result["stuck"]
    assert (phase, state, attempts) == ("hang", "EXECUTING", 1)
    assert timedelta(hours=3) <= _span(since) < timedelta(hours=4)
    assert _moment(began) < datetime.now(UTC) - timedelta(hours=2)


def test_a_phase_that_began_a_moment_ago_or_is_over_is_not_stuck(open_home):
    fresh = carry_out(open_home(), step("plan", "echo connection reset by peer >&2; exit 1", "planning"))
    old = carry_out(open_home(earlier=True), step("plan", "true", "planning"))
    app = open_home()

    assert ask(app, "", "time_since_last_attempt", fresh) == []
    assert ask(app, "", "time_since_last_attempt", old) == []


def test_attempts_are_counted_by_how_many_phases_needed_them(open_home):
    app = open_home()
    adw_id = carry_out(
        app,
        step("plan", "true", "planning"),
        step("build", "true", "building"),
        step("test", "echo connection reset by peer >&2; exit 1", "testing"),
        step("ship", "true", "shipping"),
    )

    rows = ask(app, "", "phase_count", adw_id)

    assert [(used, count, sorted(_list(names))) for used, count, names in rows] == [
        (0, 1, ["ship"]),
        (1, 3, ["build", "plan", "test"]),
    ]


def test_moments_of_a_phase_that_is_over_are_those_of_its_attempt(open_home):
    app = open_home()
    adw_id = carry_out(app, step("plan", "true", "planning"))
    (attempt,) = app.store.load(adw_id).document.phases[0].attempts

    with app.database.read() as session:
        row = session.one("SELECT last_attempt_timestamp, started_at, updated_at, completed_at, created_at FROM phases")

    assert [_moment(value) for value in row[:4]] == [
        _moment(attempt.started_at),
        _moment(attempt.started_at),
        _moment(attempt.ended_at),
        _moment(attempt.ended_at),
    ]
    assert _moment(row[4]) == _moment(app.store.load(adw_id).document.created_at)


def test_a_granted_attempt_counts_and_a_row_without_a_document_has_no_phases(open_home):
    app = open_home()
    adw_id = carry_out(app, step("plan", "exit 1", "planning", max_attempts=2))
    with app.ownership.own(adw_id) as owned:
        owned.document.phases[0].granted = 3
        owned.save(owned.document)
    with app.database.write() as session:
        session.run(
            "INSERT INTO workflow_states SELECT 'ffffffff', repository, issue_number, title, workflow, state, 0, fence,"
            " owner, lease_until, lease_boot, taken_at, home, schema_version, is_costing, created_at, updated_at,"
            " '' FROM workflow_states"
        )

    with app.database.read() as session:
        assert session.all("SELECT run_id, max_attempts FROM phases") == [(adw_id, 5)]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("a\x00b", "a\ufffdb"),
        ("\x00\x00", "\ufffd\ufffd"),
        ("back\\u0000slash", "back\\u0000slash"),
        ("both \\\x00 and \\\\u0000", "both \\\ufffd and \\\\u0000"),
        ("naïve ✓", "naïve ✓"),
    ],
)
def test_whatever_an_agent_said_the_view_can_show_it(open_home, reason, shown):
    """Neither database shows a NUL; escaped in a document it must not make the view useless."""
    app = open_home()
    adw_id = carry_out(app, step("plan", "exit 1", "planning"))
    with app.ownership.own(adw_id) as owned:
        owned.document.phases[0].last_failure_reason = reason
        owned.save(owned.document)

    with app.database.read() as session:
        (result,) = session.one("SELECT last_failure_reason FROM phases")
        session.all("SELECT * FROM tasks")

    assert result == shown


def test_a_moment_that_is_none_does_not_make_the_view_useless(open_home):
    app = open_home()
    adw_id = carry_out(app, step("plan", "exit 1", "planning"))
    with app.ownership.own(adw_id) as owned:
        owned.document.phases[0].retry_at = "soon"
        owned.save(owned.document)

    with app.database.read() as session:
        assert session.one("SELECT retry_at FROM phases") == ("soon" if app.database.dialect == "sqlite" else None,)


# --- tasks -----------------------------------------------------------------------------------------------------


def test_tasks_have_the_names_and_values_of_durable_tasks(open_home, monkeypatch):
    app = open_home()

    def keep_and_fail(context) -> None:
        context.save_checkpoint({"page": 3}, "third")
        raise InterruptedError("somebody else has it")

    monkeypatch.setattr("tests.integration.test_views.hang", keep_and_fail, raising=False)
    keeping = PhaseSpec(
        name="fetch", state="planning", runner="python", call="tests.integration.test_views:hang", retry=NEVER
    )
    adw_id = carry_out(app, keeping, step("build", "true", "building", retry=RetrySpec()))

    ((task, resume_from, checkpoint_at, attempts, limit),) = ask(app, "in the middle", "FROM tasks")

    kept = app.checkpoints.latest(task)
    assert (task, resume_from, attempts, limit) == (f"{adw_id}/fetch", "third", 1, 5)
    assert (kept.data, kept.step_name, _moment(kept.created_at)) == ({"page": 3}, "third", _moment(checkpoint_at))
    with app.database.read() as session:
        rows = session.all("SELECT phase, backoff_strategy, backoff_base_seconds FROM tasks ORDER BY phase")
        names = session.all("SELECT id, task_id, checkpoint_data, step_name, created_at FROM task_checkpoints")
    assert rows == [("build", None, None), ("fetch", "fixed", 3600.0)]
    assert names == [(kept.checkpoint_id, task, '{"page": 3}', "third", kept.created_at)]


def test_a_task_of_a_later_round_has_the_checkpoints_of_that_round(open_home):
    app = open_home()
    adw_id = carry_out(app, step("plan", "exit 1", "planning"))
    with app.ownership.own(adw_id) as owned:
        owned.document.phases[0].round = 2
        owned.save(owned.document)

    with app.database.read() as session:
        assert session.one("SELECT id FROM tasks") == (f"{adw_id}/plan/2",)


# --- runs ------------------------------------------------------------------------------------------------------


def test_runs_have_the_names_of_run_coordinators(open_home):
    app, owner = open_home(earlier=True), make_owner("a")
    for adw_id in ("aaaaaaaa", "bbbbbbbb", "cccccccc"):
        app.runs.enqueue(NewRun(adw_id=adw_id))
    held, failed = (app.runs.begin(app.runs.claim(owner, ttl_seconds=60.0)) for _ in range(2))
    app.runs.finish(failed, RunState.FAILED, reason="its repository is gone")
    session = AgentSession(
        session_id="aaaaaaaa.plan.1",
        adw_id="aaaaaaaa",
        run_id=held.run_id,
        phase="plan",
        attempt_number=1,
        agent="claude",
        host="here",
        status=SessionStatus.RUNNING,
        started_at=held.started_at,
    )
    _store(app, session)
    later = open_home()

    ((run_id, session_id, status, runner, since),) = ask(later, "", "AS held")
    with later.database.read() as session:
        rows = session.all(
            "SELECT status, runner_id, claimed_at, error, completed_at, started_at, type FROM run_status"
            " ORDER BY run_id"
        )

    assert (run_id, session_id, status, runner) == (held.run_id, "aaaaaaaa.plan.1", "running", owner.token)
    assert _span(since) >= timedelta(hours=3) - timedelta(seconds=1)
    assert [(row[0], row[1], row[3], row[6]) for row in rows] == [
        ("running", owner.token, None, "start"),
        ("failed", None, "its repository is gone", "start"),
        ("pending", None, None, "start"),
    ]
    assert [row[2] is None for row in rows] == [False, True, True]
    assert [row[4] is None for row in rows] == [True, False, True]
    assert _moment(rows[0][5]) == _moment(held.started_at)


@pytest.mark.parametrize("record", ["{torn", "no JSON", "[]", "5", '{"token": 5}', '{"pid": 1, "token": "x"', ""])
def test_an_owner_record_that_cannot_be_read_breaks_no_row(open_home, record):
    app, owner = open_home(), make_owner("a")
    for adw_id in ("aaaaaaaa", "bbbbbbbb"):
        app.runs.enqueue(NewRun(adw_id=adw_id))
    first, second = (app.runs.begin(app.runs.claim(owner, ttl_seconds=60.0)) for _ in range(2))
    with app.database.write() as session:
        session.run("UPDATE runs SET owner = :owner WHERE run_id = :run_id", {"owner": record, "run_id": first.run_id})

    with app.database.read() as session:
        rows = session.all("SELECT run_id, status, runner_id FROM run_status ORDER BY run_id")

    assert [row[:2] for row in rows] == [(first.run_id, "running"), (second.run_id, "running")]
    assert rows[1][2] == owner.token
    assert rows[0][2] in {None, 5}


def test_a_dead_letter_counts_as_failed_and_keeps_its_own_word(open_home):
    app = open_home()
    app.runs.enqueue(NewRun(adw_id="aaaaaaaa"))
    with app.database.write() as session:
        session.run("UPDATE runs SET state = 'dead', finished_at = updated_at, reason = 'poison'")

    with app.database.read() as session:
        assert session.all("SELECT status, state, error FROM run_status") == [("failed", "dead", "poison")]
    assert ask(app, "how many", "GROUP BY status") == [("failed", 1)]


def _store(app, session: AgentSession) -> None:
    values = {name: getattr(session, name) for name in AgentSession.__slots__} | {"status": session.status.value}
    with app.database.write() as writing:
        writing.run(
            "INSERT INTO sessions (session_id, adw_id, run_id, phase, attempt_number, agent, host, status,"
            " executor_session_id, reason, started_at, ended_at) VALUES (:session_id, :adw_id, :run_id, :phase,"
            " :attempt_number, :agent, :host, :status, :executor_session_id, :reason, :started_at, :ended_at)",
            values,
        )


# --- reading both dialects -------------------------------------------------------------------------------------


def _moment(value: object) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(str(value))


def _span(value: object) -> timedelta:
    return value if isinstance(value, timedelta) else timedelta(seconds=float(str(value)))


def _list(value: object) -> list[str]:
    return value if isinstance(value, list) else json.loads(str(value))


# --- sums of reports -------------------------------------------------------------------------------------------


def test_sums_say_what_adw_report_says(open_home):
    app = open_home()
    cost = """echo '{"cost_usd": 0.5}' > "$ADW_RESULT_FILE"; """
    carry_out(app, step("plan", cost + "true", "planning"), step("build", "true", "building"))
    carry_out(app, step("plan", cost + "exit 1", "planning", max_attempts=1))
    app.reports.refresh()
    (day,) = app.reports.outcomes(Window())

    (ended,) = ask(app, "", "AS ended")
    assert (ended[0], int(ended[1]), int(ended[2])) == (day.day, 1, 2)
    assert [
        (row[0], int(row[1]), int(row[2])) for row in ask(app, "", "AS times\nFROM report_sums\nWHERE kind = 'needed'")
    ] == [
        ("build", 1, 1),
        ("plan", 1, 1),
    ]
    ((phase, spent, attempts),) = ask(app, "", "AS cost_usd")
    assert (phase, float(spent), int(attempts)) == ("plan", 1.0, 2), "what failed cost something, too"
    ((phase, item, times, example),) = ask(app, "", "AS example")
    assert (phase, int(times), item.partition(":")[0]) == ("plan", 1, app.reports.failures(Window())[0].category)
    assert example == app.reports.failures(Window())[0].message


def test_a_worker_that_is_silent_is_found_with_what_it_has(open_home):
    app, earlier = open_home(), open_home(earlier=True)
    carry_out(app, step("plan", "echo connection reset by peer >&2; exit 1", "planning"))
    for opened, name, adw_id in ((earlier, "old", "1a2b3c4d"), (app, "new", "5e6f7a8b")):
        opened.workers.register(make_owner(name), Capabilities(host="testhost"), concurrency=1, version="1")
        opened.runs.enqueue(NewRun(adw_id=adw_id))
        opened.runs.claim(make_owner(name), ttl_seconds=30.0)

    ((adw_id, _run, host, _heard),) = ask(app, "", "worker.heartbeat_at")

    assert (adw_id, host) == ("1a2b3c4d", "testhost")
