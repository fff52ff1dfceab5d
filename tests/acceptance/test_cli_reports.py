"""`adw report`, `adw status` and `adw report` as a person uses them, on both databases."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import timedelta
from html.parser import HTMLParser

import pytest

from adws import app as app_module
from adws.adw_modules import timestamps
from adws.adw_modules.document import AttemptRecord
from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.workflow.requirements import Capabilities
from adws.config import load as config_load
from tests import sampling, templates
from tests.contracts.report_contract import failed, phase, put, tried
from tests.contracts.worlds import FIRST, SECOND, THIRD, make_owner

HEAVY = {"sqlalchemy", "alembic", "filelock", "psycopg", "psutil"}
HOSTILE = "<script>alert(1)</script>\u202e"
DAY = "2026-01-31"

WORKFLOWS = """
[quota]
min_free_disk = 1
min_free_memory = 1

[workflows.shaky]
[[workflows.shaky.phases]]
name = "plan"
shell = '''echo '{"cost_usd": 0.25}' > "$ADW_RESULT_FILE"'''
[[workflows.shaky.phases]]
name = "build"
shell = '''test "$ADW_ATTEMPT" != 1 || { echo connection reset by peer >&2; exit 1; }'''
retry = { strategy = "fixed", base_seconds = 0.01, max_seconds = 0.01 }
[[workflows.broken.phases]]
name = "build"
shell = "exit 1"
max_attempts = 1
"""


#: The suite of tests/contracts/report_contract.py asks each store for the same sums.
PLACES = sampling.some(["files", "database", pytest.param("postgresql", marks=pytest.mark.postgres)], 2)


@pytest.fixture(params=PLACES)
def env(request, home, monkeypatch):
    """Where documents and sums are."""
    result = {"ADW_STATE_STORE": "files" if request.param == "files" else "database"}
    if request.param == "postgresql":
        result["ADW_DATABASE_URL"] = request.getfixturevalue("pg_url")
    else:
        templates.prepare_home(home)
    for name, value in result.items():
        monkeypatch.setenv(name, value)
    return result


@pytest.fixture
def app(home, env):
    with app_module.open_home(config_load.load(env={"ADW_HOME": str(home), **env}, cwd=home), role="worker") as opened:
        yield opened


@pytest.fixture
def filled(app):
    """A workflow that was completed, one that failed twice, and one with strange texts."""
    put(
        app,
        FIRST,
        state="completed",
        day=DAY,
        phases=[
            phase(attempts=tried("failed", "succeeded", day=DAY, report={"cost_usd": 1.5})),
            phase("ship", attempts_used=2),
        ],
    )
    put(
        app,
        SECOND,
        state="failed",
        day=DAY,
        phases=[phase(attempts=[failed("port 1 is taken"), failed("port 2 is taken")])],
    )
    put(app, THIRD, state="building", title=HOSTILE, phases=[phase(HOSTILE, [failed(HOSTILE)])])
    if hasattr(app.store, "catch_up"):
        app.projection.flush()


def test_a_home_where_nobody_worked_has_an_empty_report_and_gets_no_database(adw, home):
    done = adw("report")

    assert done.rc == 0
    assert "success  nothing ended" in done.stdout
    assert re.search(r"^  requests completed +nothing was asked for +all +not known$", done.stdout, re.MULTILINE)
    assert adw("status").stdout == "nothing is stuck\n"
    assert "<title>Report since " in adw("report", "--html").stdout
    assert not (home / "state" / "adw.db").exists()


def test_a_report_of_work_that_was_really_done(adw, home, env):
    (home / "adw.toml").write_text(WORKFLOWS)
    assert adw("run", "7", "--workflow", "shaky").rc == 0

    told = adw("report", "--since", "1d", "--no-orphans", "--json").json()

    assert (told["outcomes"]["completed"], told["outcomes"]["success_rate"]) == (1, 1.0)
    needed = {one["phase"]: one["needed"] for one in told["attempts"]}
    assert needed == {"plan": {"1": 1}, "build": {"2": 1}}
    assert (told["costs"]["cost_usd"], told["costs"]["by_phase"][0]["key"]) == (0.25, "plan")
    (failure,) = told["failures"]
    assert (failure["phase"], failure["count"], failure["category"]) == ("build", 1, "transient")
    assert "connection reset by peer" in failure["message"]
    assert (told["stuck"], told["orphans"]) == ([], None)


def test_a_report_has_the_success_metrics_of_work_that_was_really_done(adw, home, env):
    (home / "adw.toml").write_text(WORKFLOWS)
    assert adw("run", "7", "--workflow", "shaky").rc == 0
    given_up = adw("run", "8", "--workflow", "broken", "--json").json()["adw_id"]
    assert adw("abandon", given_up).rc == 0
    assert adw("run", "8", "--workflow", "shaky").rc == 0
    assert adw("run", "9", "--workflow", "broken").rc == 1

    shown, told = adw("report", "--since", "1d"), adw("report", "--since", "1d", "--json").json()
    page = adw("report", "--since", "1d", "--html").stdout

    rows = [tuple(re.split(r"  +", line.strip())) for line in shown.stdout.splitlines()]
    expected = [
        ("workflow success rate", "50%: 2 of 4 completed", "above 80%", "MISSED"),
        ("stuck over 4 hours", "0", "0", "met"),
        ("orphaned resources", "1", "0", "MISSED"),
        ("requests completed", "2 of 3", "all", "MISSED"),
        ("retries recovered", "2 of 4 failed attempts", "-"),
    ]
    begins = shown.stdout.splitlines().index("Success metrics:")
    assert rows[begins + 2 : begins + 7] == expected
    assert told["success_metrics"] == {
        "workflow_success_rate": {"value": 0.5, "of": None, "goal": "above 80%", "is_met": False},
        "stuck_over_4_hours": {"value": 0, "of": None, "goal": "0", "is_met": True},
        "orphaned_resources": {"value": 1, "of": None, "goal": "0", "is_met": False},
        "requests_completed": {"value": 2, "of": 3, "goal": "all", "is_met": False},
        "retries_recovered": {"value": 2, "of": 4, "goal": None, "is_met": None},
    }
    assert [(one["kind"], one["adw_id"]) for one in told["orphans"]] == [("workflow", given_up)]
    assert all(f"<td>{name.capitalize()}</td><td>{value}</td>" in page for name, value, *_ in expected)


def test_success_metrics_name_what_is_stuck_for_hours_and_what_nobody_looked_for(adw, app, filled):
    for adw_id, hours in (("0000000a", 5), ("0000000b", 3)):
        begun = AttemptRecord(number=1, started_at=timestamps.to_text(app.clock.now() - timedelta(hours=hours)))
        put(app, adw_id, phases=[phase(status="running", attempts_used=1, attempts=[begun])])
        app.runs.enqueue(NewRun(adw_id=adw_id))
        app.runs.begin(app.runs.claim(make_owner("gone"), ttl_seconds=0.0))
    if hasattr(app.store, "catch_up"):
        app.projection.flush()

    told = adw("report", "--since", "2026-01-01", "--no-orphans", "--json").json()["success_metrics"]
    shown = adw("report", "--since", "2026-01-01", "--no-orphans").stdout

    assert len(adw("status", "--json").json()["stuck"]) == 2
    assert told["stuck_over_4_hours"] == {"value": 1, "of": None, "goal": "0", "is_met": False}
    assert told["orphaned_resources"] == {"value": None, "of": None, "goal": "0", "is_met": None}
    assert re.search(r"^  orphaned resources +nobody looked; adw admin gc does +0 +not known$", shown, re.MULTILINE)
    assert told["retries_recovered"] == {"value": 1, "of": 4, "goal": None, "is_met": None}


def test_a_report_shows_everything_since_a_day(adw, filled):
    done = adw("report", "--since", "2026-01-01")

    assert done.rc == 0
    assert "success  50%: 1 of 2 completed" in done.stdout
    assert "spent    3.00 USD in 2 attempts" in done.stdout
    rows = [re.split(r"  +", line.strip()) for line in done.stdout.splitlines()]
    assert [DAY, "1", "1", "0", "0", "50%"] in rows
    assert ["build", "0", "1", "0", "0", "0", "2.00", "3", "0", "22 s"] in rows
    assert [FIRST, "sdlc", "completed", "3.0000", "2", DAY] in rows
    assert any(row[:5] == ["2", "build", "transient", "port 2 is taken", SECOND] for row in rows)
    assert "\u202e" not in done.stdout
    nothing = adw("report", "--since", "2026-02-01", "--json").json()
    assert (nothing["outcomes"]["ended"], nothing["failures"], nothing["states"]["completed"]) == (0, [], 1)
    assert adw("report", "--since", "2026-01-01", "--workflow", "other", "--json").json()["outcomes"]["ended"] == 0


def test_a_report_can_be_a_page_that_needs_nothing_else(adw, home, filled):
    done = adw("report", "--since", "2026-01-01", "--html", "report.html")

    assert (done.rc, done.stdout, done.stderr) == (0, "", "wrote report.html\n")
    page = (home / "report.html").read_text()
    assert adw("report", "--since", "2026-01-01", "--html").stdout.startswith("<!doctype html>")
    seen = Tags(page)
    assert seen.named >= {"svg", "style", "table"}
    assert not seen.named & {"script", "link", "iframe", "img"}
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


class Tags(HTMLParser):
    """The names of the tags of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.named: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        del attrs
        self.named.add(tag)


def test_secrets_do_not_reach_a_page(adw, app, monkeypatch):
    secret = "ghp_" + "a1B2" * 9
    monkeypatch.setenv("GITHUB_TOKEN", secret)
    put(app, FIRST, phases=[phase(secret, [failed("ok")])])
    if hasattr(app.store, "catch_up"):
        app.projection.flush()

    page = adw("report", "--since", "2026-01-01", "--html", "--no-orphans", env={"GITHUB_TOKEN": secret}).stdout

    assert secret not in page


@pytest.mark.parametrize(
    ("args", "rc", "said"),
    [
        (("report", "--html", "--json"), 2, "--html and --json exclude each other"),
        (("report", "--since", "soon"), 2, "'soon' is neither a day nor a span of time"),
        (
            ("report", "--html", "/dev/null/x.html", "--no-orphans"),
            1,
            "could not write /dev/null/x.html: Not a directory",
        ),
        (("report", FIRST, "--workflow", "sdlc"), 2, "ID and --by show only costs"),
        (("report", "0000ffff"), 1, "0000ffff"),
        (("status", "0000ffff"), 1, "0000ffff"),
        (("status", "../etc"), 2, "etc"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(adw, home, args, rc, said):
    templates.prepare_home(home)

    done = adw(*args)

    assert (done.rc, done.stdout) == (rc, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_report_tells_the_attempts_until_success(adw, filled):
    lines = [line.split() for line in adw("report", "--since", "2026-01-01", "--no-orphans").stdout.splitlines()]
    assert ["PHASE", "1", "2", "3", "4", "5+", "MEAN", "FAILED", "CUT", "OFF", "WORK"] in lines
    assert ["build", "0", "1", "0", "0", "0", "2.00", "3"] in [line[:8] for line in lines]


def test_stuck_names_a_silent_worker_and_what_takes_longer_than_usual(adw, app):
    now = app.clock.now()
    today, earlier = timestamps.to_text(now)[:10], timestamps.to_text(now - timedelta(hours=1))
    put(
        app,
        FIRST,
        state="completed",
        day=today,
        phases=[phase(attempts=tried(*["succeeded"] * 5, day=today, seconds=30.0))],
    )
    begun = AttemptRecord(number=1, started_at=earlier)
    for adw_id, owner, seconds in ((SECOND, "slow", 300.0), (THIRD, "gone", 0.0)):
        put(app, adw_id, phases=[phase(status="running", attempts_used=1, attempts=[begun])])
        app.workers.register(make_owner(owner), Capabilities(host="testhost"), concurrency=1, version="1")
        app.runs.enqueue(NewRun(adw_id=adw_id))
        app.runs.begin(app.runs.claim(make_owner(owner), ttl_seconds=seconds))
    if hasattr(app.store, "catch_up"):
        app.projection.flush()

    told = {one["adw_id"]: one for one in adw("status", "--json").json()["stuck"]}

    assert {adw_id: one["kind"] for adw_id, one in told.items()} == {SECOND: "too_long", THIRD: "silent"}
    assert "of 5 that succeeded, 95 % took" in told[SECOND]["why"]
    assert told[THIRD]["commands"][0] == "adw admin recover"
    lines = [line.strip() for line in adw("status").stdout.splitlines()]
    at = next(at for at, line in enumerate(lines) if line.startswith(f"{SECOND}  building (Add a button), since "))
    assert lines[at + 1].startswith("attempt 1 at build takes 1 h 0 min so far: ")
    assert lines[at + 2] == f"type: adw logs {SECOND} -f, or adw pause {SECOND}"
    assert f"{THIRD}  building" in adw("report", "--no-orphans").stdout


@pytest.mark.parametrize("args", [["status"], ["status", FIRST]])
def test_looking_loads_no_heavy_library(home, args):
    templates.prepare_home(home)
    with app_module.open_home(config_load.load(env={"ADW_HOME": str(home)}, cwd=home), role="cli") as app:
        put(app, FIRST, state="completed", phases=[phase(attempts=tried("succeeded"))])
    code = (
        f"import sys, json; from adws.cli import main; code = main.run({args!r})\n"
        f"print(json.dumps([code, sorted({HEAVY!r} & set(sys.modules))]))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=home, env={"ADW_HOME": str(home)}, capture_output=True, text=True, check=False
    )

    assert json.loads(done.stdout.splitlines()[-1]) == [0, []], done.stderr
