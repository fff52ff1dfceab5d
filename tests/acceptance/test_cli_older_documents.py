"""Documents of older versions in `state/ID/`: every command works on them, and migrates them with its first write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import sampling, templates, warm
from tests.acceptance import cli_lab

DOCUMENTS = Path(__file__).parents[1] / "migration" / "documents"
#: Frozen documents of versions before the current one.
OLD = sorted(path.stem for path in DOCUMENTS.glob("v[12]_*.json") if not path.stem.endswith(".expected"))
#: Those whose workflow has ended, or whose pull request is merged: nothing goes on, and nothing is undone.
OVER = {"v1_completed", "v1_kotadb"}
#: The branch of v1_failed.
BRANCH = "bug-issue-58-adw-feedface-crash-on-start"
PHASES = ("plan", "build", "lint", "test", "review", "document", "ship", "clean")


@pytest.fixture
def home(tmp_path):
    """A repository with a remote and no database yet, whose workflow `whole` has a phase for every state."""
    place = tmp_path.resolve()
    templates.copy_repositories(place.parent / "older-documents", place, make_home)
    return place / "home"


def make_home(place: Path) -> None:
    """Make the repository in *place*, and its remote."""
    home = place / "home"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(place / "remote.git")], check=True)
    subprocess.run(["git", "init", "-q", "-b", "main", str(home)], check=True)
    git(home, "remote", "add", "origin", str(place / "remote.git"))
    phases = ",".join(f'{{ name = "{name}", shell = "echo {name} >> phases.txt" }}' for name in PHASES)
    (home / "adw.toml").write_text(f"[workflows.whole]\nphases = [{phases}]\n")
    (home / ".gitignore").write_text("/state/\n/agents/\n/trees/\n")
    git(home, "add", ".")
    git(home, "commit", "-q", "-m", "first")
    git(home, "push", "-q", "origin", "main")


def git(home, *args):
    """Run git in the repository and return its output."""
    done = subprocess.run(
        ["git", "-C", str(home), "-c", "user.name=ada", "-c", "user.email=ada@example.com", *args],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def put(home, name, *, under="state", **changes):
    """Put the frozen document *name* in its place, and return its id and its file."""
    data = {**json.loads((DOCUMENTS / f"{name}.json").read_text()), **changes}
    file = home / under / data["adw_id"] / "adw_state.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(data, indent=2))
    return data["adw_id"], file


def backups(file):
    return {path.name: path.read_bytes() for path in file.parent.glob("*.bak")}


def version(name):
    return "1.0" if name.startswith("v1") else "2.0"


def events(adw, adw_id):
    return [event["event_type"] for event in adw("events", adw_id, "--json").json()["events"]]


# --- going on --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sampling.some([name for name in OLD if name not in OVER and name != "v2_failed"], 4))
def test_resume_migrates_an_old_document_with_a_backup_and_carries_it_to_its_end(adw, home, name):
    adw_id, file = put(home, name)
    before = file.read_bytes()
    branch = json.loads(before).get("branch_name")
    if isinstance(branch, str):  # the older tool worked there
        git(home, "branch", branch)

    done = adw("resume", adw_id, "--workflow", "whole", "--json")

    stored = cli_lab.document(home, adw_id)
    assert (done.rc, done.json()["state"], stored["state_version"]) == (0, "completed", "3.0"), done.stderr
    assert backups(file) == {f"adw_state.json.v{version(name)}.bak": before}
    assert events(adw, adw_id).count("state_migrated") == 1
    assert not isinstance(branch, str) or stored["branch_name"] == branch
    assert adw("list", "--json").json()["workflows"][0]["adw_id"] == adw_id


def test_retry_grants_attempts_to_an_old_document_that_used_them_up(adw, home):
    adw_id, file = put(home, "v2_failed", pr_number=None)
    before = file.read_bytes()
    git(home, "branch", "bug-issue-77-adw-cafed00d-wrong-total")

    refused = adw("resume", adw_id, "--workflow", "whole")
    assert (refused.rc, file.read_bytes(), backups(file)) == (2, before, {})
    assert f"adw retry {adw_id} --grant N" in refused.stderr
    done = adw("retry", adw_id, "--grant", "1", "--workflow", "whole", "--json")

    assert (done.rc, done.json()["state"]) == (0, "completed"), done.stderr
    assert list(backups(file)) == ["adw_state.json.v2.0.bak"]


def test_an_old_document_goes_on_in_its_own_worktree_with_what_is_not_committed_there(adw, home):
    adw_id, _ = put(home, "v1_failed")
    git(home, "worktree", "add", "-q", "-b", BRANCH, "trees/feedface")
    (home / "trees" / "feedface" / "notes.txt").write_text("not committed\n")

    done = adw("resume", adw_id, "--workflow", "whole", "--json")

    assert (done.rc, done.json()["state"]) == (0, "completed"), done.stderr
    assert git(home, "show", f"{BRANCH}:notes.txt") == "not committed\n"
    assert "document" in git(home, "show", f"{BRANCH}:phases.txt").split()


def test_an_old_document_whose_branch_is_gone_does_not_start_over_without_it(adw, home):
    adw_id, _ = put(home, "v1_failed")

    done = adw("resume", adw_id, "--workflow", "whole", "--json")

    assert (done.rc, done.json()["state"]) == (1, "failed")
    assert f"git fetch origin {BRANCH}:{BRANCH} brings it back" in done.stderr
    assert not (home / "trees" / "feedface").exists()


def test_resume_takes_the_workflow_that_an_old_document_names(adw, home):
    adw_id, file = put(home, "v1_failed")

    foreseen = adw("resume", adw_id, "--dry-run")
    assert (foreseen.rc, foreseen.stdout, backups(file)) == (0, f"workflow {adw_id} continues with review\n", {})
    done = adw("resume", adw_id, "--detach")

    assert (done.rc, done.stdout) == (0, f"workflow {adw_id} continues with review\n")
    stored = cli_lab.document(home, adw_id)
    assert [(phase["name"], phase["status"]) for phase in stored["phases"]] == [
        ("plan", "complete"),
        ("build", "complete"),
        ("review", "queued"),
    ]


def test_a_refused_command_leaves_an_old_document_and_its_issue_as_they_were(adw, home):
    adw_id, file = put(home, "v2_failed")
    before = file.read_bytes()

    for command in (("resume",), ("retry",), ("approve",), ("pause",), ("resume", "--dry-run")):
        done = adw(command[0], adw_id, *command[1:])

        assert done.rc in {1, 2}, command
        assert done.stderr.startswith("adw: workflow cafed00d "), command
        assert (file.read_bytes(), backups(file)) == (before, {}), command
    assert adw("admin", "locks", "--json").json()["locks"] == []


@pytest.mark.parametrize("name", sorted(OVER))
def test_an_old_document_that_is_over_does_not_go_on(adw, home, name):
    adw_id, file = put(home, name)

    for command in (("resume",), ("retry",), ("abandon",), ("rollback",)):
        done = adw(*command, adw_id)
        assert done.rc in {1, 2}
        assert "completed" in done.stderr or "merged" in done.stderr
    assert backups(file) == {}


# --- ending ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "command"),
    sampling.each_value_once(sampling.some([name for name in OLD if name not in OVER], 4), ["abandon", "rollback"]),
)
def test_an_old_document_is_ended_and_its_issue_is_free(adw, home, name, command):
    state = {"abandon": "abandoned", "rollback": "rolled_back"}[command]
    adw_id, file = put(home, name, pr_number=None)
    before = file.read_bytes()

    done = adw(command, adw_id)

    assert (done.rc, cli_lab.document(home, adw_id)["current_state"]) == (0, state), done.stderr
    assert backups(file) == {f"adw_state.json.v{version(name)}.bak": before}
    assert adw("admin", "locks", "--json").json()["locks"] == []


def test_an_old_document_whose_issue_another_workflow_has_can_be_ended_and_does_not_go_on(adw, home):
    old, file = put(home, "v1_failed")
    mine = adw("run", "58", "--workflow", "whole", "--detach", "--json").json()["adw_id"]

    refused = adw("resume", old)
    assert (refused.rc, backups(file)) == (1, {})
    assert f"issue 58 belongs to workflow {mine}" in refused.stderr or mine in refused.stderr
    assert adw("abandon", old).rc == 0

    assert cli_lab.document(home, old)["current_state"] == "abandoned"
    assert [lock["adw_id"] for lock in adw("admin", "locks", "--json").json()["locks"]] == [mine]


def test_a_rollback_that_is_left_to_a_worker_migrates_first_and_is_made(adw, home):
    adw_id, file = put(home, "v1_running")

    assert adw("rollback", adw_id, "--detach").rc == 0
    assert list(backups(file)) == ["adw_state.json.v1.0.bak"]
    worked = adw("worker", "--once")

    assert worked.rc == 0, worked.stderr
    assert cli_lab.document(home, adw_id)["current_state"] == "rolled_back"


def test_a_rollback_removes_the_worktree_whose_path_an_older_tool_wrote_relative_to_the_repository(adw, home):
    adw_id, _ = put(home, "v1_failed")
    git(home, "worktree", "add", "-q", "-b", BRANCH, "trees/feedface")
    (home / "trees" / "feedface" / "notes.txt").write_text("not committed\n")

    done = adw("rollback", adw_id)

    assert done.rc == 0, done.stdout
    assert not (home / "trees" / "feedface").exists()
    assert git(home, "branch", "--list", BRANCH) == ""
    (patch,) = (home / "state" / adw_id).glob("*.patch")
    assert "not committed" in patch.read_text()


# --- changing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sampling.some(OLD, 4))
def test_state_set_migrates_an_old_document_with_a_backup(adw, home, name):
    adw_id, file = put(home, name)
    before = file.read_bytes()

    done = adw("state", "set", adw_id, "plan_file=specs/new.md")

    stored = cli_lab.document(home, adw_id)
    assert (done.rc, stored["plan_file"], stored["state_version"]) == (0, "specs/new.md", "3.0")
    assert backups(file) == {f"adw_state.json.v{version(name)}.bak": before}
    assert adw("admin", "verify").rc == 0


SCRIPT = """
import sys
from adws.adw_modules.state import ADWState
from adws.app import open_home
from adws.config import load

with open_home(load.from_environment({"home": sys.argv[1]})) as home:
    state = ADWState.load(sys.argv[2], home=home)
    print([notice.kind for notice in state.notices])
    state.update(plan_file="specs/new.md", mine={"kept": True})
    print(ADWState.load(sys.argv[2], home=home).notices, state.get("plan_file"))
"""


@pytest.mark.parametrize("name", sampling.some(OLD, 4))
def test_a_script_loads_and_updates_an_old_document(home, name):
    adw_id, file = put(home, name)
    before = file.read_bytes()

    done = warm.run(
        [sys.executable, "-c", SCRIPT, str(home), adw_id],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "['migrated']\n() specs/new.md\n"), done.stderr
    assert backups(file) == {f"adw_state.json.v{version(name)}.bak": before}


# --- looking ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("status",), ("state", "show")])
def test_a_view_of_an_old_document_names_the_command_that_migrates_it(adw, home, command):
    adw_id, file = put(home, "v2_seed_shape")
    before = file.read_bytes()

    done = adw(*command, adw_id)

    assert done.rc == 0
    assert (
        f"{file}: brought from version 2.0 to 3.0 in memory; its next write, or adw state migrate, stores it so"
    ) in done.stdout + done.stderr
    assert (file.read_bytes(), backups(file)) == (before, {})


@pytest.mark.parametrize(("store", "under"), [("database", "state"), ("database", "agents"), ("files", "agents")])
def test_a_command_that_finds_only_a_file_that_is_not_imported_names_the_command(adw, home, store, under):
    adw_id, file = put(home, "v1_tac7_core", under=under)

    for command in ("status", "resume", "retry", "rollback", "abandon", "events", "logs"):
        done = adw(command, adw_id, env={"ADW_STATE_STORE": store})

        told = f"{file}, of version 1.0, is not imported: adw state migrate does that"
        assert (done.rc, done.stderr) == (1, f"adw: no workflow state at {adw_id}; {told}\n"), command
    assert adw("state", "migrate", env={"ADW_STATE_STORE": store}).rc == 0
    assert adw("status", adw_id, env={"ADW_STATE_STORE": store}).rc == 0


@pytest.mark.parametrize("store", ["files", "database"])
def test_an_empty_list_names_the_command_that_brings_old_documents_in(adw, home, store):
    _, file = put(home, "v1_tac7_core")

    done = adw("list", env={"ADW_STATE_STORE": store})

    assert (done.rc, done.stdout) == (0, "no workflows\n")
    assert f"1 document is not listed, such as {file}: adw state migrate" in done.stderr


def test_the_check_of_a_database_names_the_command_for_a_document_it_does_not_know(adw, home):
    adw("run", "7", "--workflow", "whole", "--detach")
    adw_id, _ = put(home, "v1_tac7_core")

    (problem,) = [one for one in adw("db", "check", "--json").json()["problems"] if one["adw_id"] == adw_id]

    assert problem["hint"] == "adw state migrate stores it in version 3.0"


def test_two_commands_at_once_migrate_an_old_document_once(adw, home):
    adw_id, file = put(home, "v1_running")
    first = cli_lab.Beside(home, "state", "set", adw_id, "plan_file=a")
    second = cli_lab.Beside(home, "state", "set", adw_id, "branch_name=b")

    codes = {first.end(), second.end()}

    assert 0 in codes
    assert list(backups(file)) == ["adw_state.json.v1.0.bak"]
    assert cli_lab.document(home, adw_id)["state_version"] == "3.0"
