"""`adw report --by workflow` and `adw resume --budget` as a person uses them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from adws import app as app_module
from adws.adw_modules import document
from adws.config import load as config_load
from tests import templates
from tests.contracts.worlds import make_document

FIRST, SECOND = "1a2b3c4d", "5e6f7a8b"
EARLY, LATE = "2026-01-30T09:00:00.000000Z", "2026-01-31T10:00:00.000000Z"
#: What stands beside a sum with every kind of figure in it.
ALL = "estimated, 1 of unknown cost, 1 on a subscription"
HEAVY = {"sqlalchemy", "alembic", "filelock", "psycopg", "psutil"}

WORKFLOWS = """
[quota]
max_cost = 1
min_free_disk = 1
min_free_memory = 1

[workflows.dear]
[[workflows.dear.phases]]
name = "plan"
shell = '''echo '{"cost_usd": 0.9}' > "$ADW_RESULT_FILE"'''
[[workflows.dear.phases]]
name = "build"
shell = '''test "$ADW_ATTEMPT" != 1 || exit 1; echo '{"cost_usd": 0.3}' > "$ADW_RESULT_FILE"'''
max_attempts = 1
"""


def usage(cost, provider="robots", **more):
    return {"provider": provider, "model": "robot-1", "tokens": {"input": 1200}, "cost_usd": cost, **more}


def ended(number, at, report=None, **more):
    return document.AttemptRecord(
        number=number, status="failed", started_at=at, ended_at=at, report=report, agent={"provider": "robots"}, **more
    )


@pytest.fixture
def spent(home):
    """Two workflows: one with every kind of figure, one that cost a round sum."""
    plan = [ended(1, EARLY, {"cost_usd": 0.1, "usage": usage(0.1)}), ended(2, LATE, model="robot-1")]
    build = [
        ended(1, LATE, {"cost_usd": 0.2, "usage": usage(0.2, is_estimated=True)}),
        ended(2, LATE, {"usage": usage(7.0, is_subscription=True)}),
    ]
    phases = [
        document.PhaseRecord(name="plan", state="planning", attempts=plan),
        document.PhaseRecord(name="build", state="building", attempts=build),
    ]
    cost = document.Cost(total_usd=0.1 + 0.2, is_estimated=True)
    other = [document.PhaseRecord(name="plan", state="planning", attempts=[ended(1, LATE, {"cost_usd": 4.0})])]
    with app_module.open_home(config_load.load(env={"ADW_HOME": str(home)}, cwd=home)) as app:
        for made in (
            make_document(FIRST, phases=phases, cost=cost, issue_number=1),
            make_document(SECOND, phases=other, cost=document.Cost(total_usd=4.0), issue_number=2, workflow="small"),
        ):
            with app.ownership.create(made):
                pass


def cells(done):
    """The lines of a table, each split at its columns, and what stands below."""
    assert done.rc == 0, done.stderr
    table, _, notes = done.stdout.partition("\n\n")
    return [re.split(r" {2,}", line) for line in table.splitlines()], notes.splitlines()


# --- looking ---------------------------------------------------------------------------------------------------


def test_a_home_where_nobody_worked_has_spent_nothing_and_gets_no_database(adw, home):
    done = adw("report", "--by", "workflow")

    assert (done.rc, done.stdout) == (0, "no attempt has cost anything\n")
    assert adw("report", "--by", "workflow", "--since", "7d").stdout.startswith("no attempt has cost anything since ")
    assert not (home / "state" / "adw.db").exists()


def test_all_workflows_are_shown_the_dearest_first(adw, spent):
    rows, notes = cells(adw("report", "--by", "workflow"))

    assert rows == [
        ["ID", "WORKFLOW", "COST USD", "ATTEMPTS", "TOKENS"],
        [SECOND, "small", "4.0000", "1", "0"],
        [FIRST, "sdlc", "0.3000", "4", "3,600", ALL],
        ["total", "4.3000", "5", "3,600", ALL],
    ]
    assert [note.partition(":")[0] for note in notes] == ["estimated", "unknown"]


def test_one_workflow_is_shown_by_phase_with_what_it_may_cost(adw, spent):
    rows, notes = cells(adw("report", f"adw-{FIRST}"))

    assert rows[1:] == [
        ["plan", "0.1000", "2", "1,200", "1 of unknown cost"],
        ["build", "0.2000", "2", "2,400", "estimated, 1 on a subscription"],
        ["total", "0.3000", "4", "3,600", ALL],
    ]
    assert notes[-1] == f"it may cost 10.0000 USD in all, 3% of it spent; adw resume {FIRST} --budget USD sets that"


def test_by_attempt_every_figure_says_what_it_is(adw, spent):
    rows, _ = cells(adw("report", "--by", "workflow", FIRST, "--by", "attempt"))

    assert rows[0] == [
        *("ID", "PHASE", "ATTEMPT", "STATUS", "ENDED (UTC)", "PROVIDER", "MODEL", "COST USD", "TOKENS"),
    ]
    assert {(row[1], row[2]): row[7:] for row in rows[1:-1]} == {
        ("plan", "1"): ["0.1000", "1,200"],
        ("plan", "2"): ["unknown", "0"],
        ("build", "1"): ["0.2000", "1,200", "estimated"],
        ("build", "2"): ["subscription", "1,200"],
    }
    assert rows[-1] == ["total", "0.3000", "3,600", ALL]


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("day", [("2026-01-30", 0.1), ("2026-01-31", 4.2)]),
        ("provider", [("robots", 4.3)]),
        ("phase", [("plan", 4.1), ("build", 0.2)]),
        ("workflow", [(SECOND, 4.0), (FIRST, 0.3)]),
    ],
)
def test_json_has_the_whole_figures_by_what_is_asked_for(adw, spent, by, keys):
    told = adw("report", "--by", "workflow", "--by", by, "--json").json()

    assert [(line["key"], pytest.approx(line["cost_usd"])) for line in told["lines"]] == keys
    assert told["total"]["cost_usd"] == pytest.approx(4.3)
    assert (told["total"]["unknown_attempts"], told["total"]["is_estimated"]) == (1, True)
    assert (told["by"], told["since"]) == (by, None)


def test_json_of_one_workflow_has_its_own_sum_unrounded_and_its_cap(adw, spent):
    told = adw("report", "--by", "workflow", FIRST, "--by", "attempt", "--json").json()

    assert (told["adw_id"], told["total_usd"], told["cap_usd"]) == (FIRST, 0.1 + 0.2, 10.0)
    assert [line["cost_usd"] for line in told["lines"] if line["is_unknown"]] == [None]


def test_since_takes_a_day_a_moment_or_a_span(adw, spent):
    assert adw("report", "--by", "workflow", "--since", "2026-01-31", "--json").json()["total"]["attempts"] == 4
    assert (
        adw("report", "--by", "workflow", "--since", "2026-01-31T10:00:01", "--json").json()["total"]["attempts"] == 0
    )
    assert adw("report", "--by", "workflow", FIRST, "--since", "9999w", "--json").json()["total"]["attempts"] == 4
    for wrong in ("yesterday", "7", "-7d", "2026-13-01", "999999999w"):
        done = adw("report", "--by", "workflow", "--since", wrong)
        assert (done.rc, done.stdout) == (2, ""), wrong
        assert wrong in done.stderr


def test_what_is_in_no_attempt_is_said(adw, spent, home):
    adw("state", "set", SECOND, 'cost={"total_usd": 6.5}')

    _, notes = cells(adw("report", "--by", "workflow", SECOND))

    assert notes[0] == "the workflow's own sum is 6.5000 USD: not all of it is in a recorded attempt"


def test_a_workflow_that_is_not_there_is_said_to_be_unknown(adw, spent):
    done = adw("report", "0000ffff")

    assert done.rc == 1
    assert "0000ffff" in done.stderr


def test_looking_at_costs_loads_no_heavy_library(adw, spent, home):
    script = (
        "import sys; from adws.cli import main\n"
        "code = main.run(['report', '--by', 'day']) or main.run(['report', '1a2b3c4d'])\n"
        f"print(code, sorted({HEAVY!r} & set(sys.modules)))"
    )
    env = {"ADW_HOME": str(home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env, cwd=home)

    assert done.stdout.splitlines()[-1] == "0 []", done.stdout


# --- a raised budget -------------------------------------------------------------------------------------------


@pytest.fixture
def failed(adw, home):
    """A workflow that may cost 1 USD, has cost 0.9, and failed."""
    templates.prepare_home(home)
    (home / "adw.toml").write_text(WORKFLOWS)
    return adw("run", "7", "--workflow", "dear", "--json").json()["adw_id"]


def test_the_cost_of_a_failed_workflow_is_kept_and_most_of_its_cap_was_warned_of(adw, failed):
    told = adw("events", failed, "--json").json()["events"]

    (warning,) = [event["data"] for event in told if event["event_type"] == "budget_warning"]
    assert (warning["cap_usd"], warning["spent_usd"]) == (1.0, 0.9)
    assert adw("report", failed, "--json").json()["total_usd"] == 0.9


def test_a_budget_is_set_by_retry_and_recorded_with_who_and_what_was_before(adw, failed):
    done = adw("retry", failed, "--grant", "1", "--budget", "5")

    assert done.rc == 0, done.stderr
    assert "may cost 5.0000 USD in all" in done.stderr
    told = adw("events", failed, "--json").json()["events"]
    (budget,) = [event["data"] for event in told if event["event_type"] == "budget_set"]
    assert (budget["usd"], budget["before"]) == (5.0, 1.0)
    assert budget["by"]
    shown = adw("report", failed, "--json").json()
    assert (shown["cap_usd"], shown["total_usd"]) == (5.0, pytest.approx(1.2))


def test_a_workflow_that_used_up_its_cap_goes_on_only_with_a_raised_one(adw, failed):
    adw("state", "set", failed, 'cost={"total_usd": 1.0}')

    refused = adw("resume", failed, "--from", "build")
    too_little = adw("resume", failed, "--from", "build", "--budget", "0.5")
    planned = adw("resume", failed, "--from", "build", "--budget", "5", "--dry-run")
    done = adw("resume", failed, "--from", "build", "--budget", "5")

    assert (refused.rc, too_little.rc, planned.rc, done.rc) == (2, 2, 0, 0), done.stderr
    assert "has cost 1.0000 of 1.0000 USD: allow it more with adw resume" in refused.stderr
    assert "give a larger amount" in too_little.stderr
    assert planned.stdout.endswith("and may cost 5.0000 USD in all\n")
    assert adw("status", failed, "--json").json()["state"] == "completed"


def test_a_budget_that_is_no_amount_is_refused(adw, failed):
    codes = {amount: adw("resume", failed, "--budget", amount).rc for amount in ("0", "-1", "nan", "much")}

    assert codes == dict.fromkeys(codes, 2)
    told = adw("events", failed, "--json").json()["events"]
    assert not [event for event in told if event["event_type"] == "budget_set"]
