"""The `adw` command as a person uses it: views, settings, and what is said when something is wrong."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from adws.adw_modules import document, timestamps
from adws.adw_modules.events import Event
from adws.adw_modules.store.files import FILE_NAME
from adws.app import open_home
from adws.config import load as config_load

ADW = str(Path(sysconfig.get_path("scripts")) / "adw")
ADW_ID = "1a2b3c4d"
PLANTED = "ghp_PlantedSecret0123456789abcdefghij12"
#: What a view must not load: each takes longer than the view itself.
HEAVY = ("sqlalchemy", "alembic", "filelock", "rich", "psutil")


def make_workflow(home, adw_id=ADW_ID, store="files", **fields):
    """Make a workflow in *home* the way adw does."""
    with open_home(config_load.load(env={"ADW_STATE_STORE": store}, cwd=home)) as app:
        now = timestamps.to_text(app.clock.now())
        draft = document.WorkflowDocument(**{"issue_number": 7} | fields, adw_id=adw_id, created_at=now, updated_at=now)
        with app.ownership.create(draft, events=[Event(event_type="workflow_created")]):
            pass


def files_in(home):
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if ".git" not in path.parts)


def one_line(text):
    assert text.startswith("adw: ")
    assert text.count("\n") == 1
    return text


# --- looking ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["files", "database"])
def test_a_workflow_is_shown_listed_and_told(adw, home, store):
    make_workflow(home, store=store, issue={"title": "Add a cart"}, workflow={"name": "sdlc"})
    env = {"ADW_STATE_STORE": store}

    status, listed, events = (adw(*args, env=env) for args in (("status", ADW_ID), ("list",), ("events", ADW_ID)))

    assert (status.rc, listed.rc, events.rc) == (0, 0, 0)
    assert "state     pending" in status.stdout
    assert "Add a cart" in status.stdout
    assert ADW_ID in listed.stdout
    assert "Add a cart" in listed.stdout
    assert "workflow_created" in events.stdout
    assert status.stderr + listed.stderr + events.stderr == ""


def test_json_is_one_document_everywhere(adw, home):
    make_workflow(home, issue={"title": "Add a cart \u202e\x1b[31m"})

    status = adw("status", ADW_ID, "--json").json()
    listed = adw("list", "--json").json()
    events = adw("events", ADW_ID, "--json").json()
    settings = adw("config", "--json").json()

    assert (status["adw_id"], status["state"], status["owner"]) == (ADW_ID, "pending", None)
    assert status["title"] == "Add a cart \u202e\x1b[31m"
    assert [row["adw_id"] for row in listed["workflows"]] == [ADW_ID]
    assert events["events"][0]["event_type"] == "workflow_created"
    assert settings["home"] == {"value": str(home), "origin": "env ADW_HOME"}


def test_a_title_cannot_drive_the_terminal(adw, home):
    make_workflow(home, issue={"title": "Add \x1b]0;owned\x07 a \u202etrac"})

    for shown in (adw("status", ADW_ID).stdout, adw("list").stdout):
        assert "Add ]0;owned a trac" in shown


def test_an_id_may_be_typed_with_its_prefix(adw, home):
    make_workflow(home)

    assert adw("status", f"adw-{ADW_ID}").rc == 0


def test_the_list_goes_page_by_page_and_can_be_filtered(adw, home):
    for number in range(1, 4):
        make_workflow(home, adw_id=f"{number:08x}", issue_number=number, workflow={"name": f"w{number}"})

    first = adw("list", "--limit", "2", "--json").json()
    second = adw("list", "--limit", "2", "--cursor", first["next_cursor"], "--json").json()
    ids = [row["adw_id"] for row in first["workflows"] + second["workflows"]]

    assert sorted(ids) == ["00000001", "00000002", "00000003"]
    assert len(second["workflows"]) == 1
    assert [row["adw_id"] for row in adw("list", "--issue", "2", "--json").json()["workflows"]] == ["00000002"]
    assert [row["adw_id"] for row in adw("list", "--workflow", "w3", "--json").json()["workflows"]] == ["00000003"]
    assert len(adw("list", "--state", "PENDING", "--json").json()["workflows"]) == 3
    assert adw("list", "--state", "failed", "--json").json()["workflows"] == []


def test_events_go_on_after_one_that_is_known(adw, home):
    make_workflow(home)
    last = adw("events", ADW_ID, "--json").json()["last"]

    assert adw("events", ADW_ID, "--after", last, "--json").json() == {"events": [], "last": None}


def test_looking_into_a_fresh_home_leaves_nothing_behind(adw, home):
    looks = (
        "list",
        f"status {ADW_ID}",
        f"events {ADW_ID}",
        "locks",
        "locks release 7",
        f"state show {ADW_ID}",
        "config",
    )
    for args in (look.split() for look in looks):
        adw(*args)
        adw(*args, env={"ADW_STATE_STORE": "database"})

    assert adw("list").stdout == "no workflows\n"
    assert files_in(home) == []


def test_looking_at_a_broken_document_makes_no_database(adw, home):
    file = home / "state" / ADW_ID / FILE_NAME
    file.parent.mkdir(parents=True)
    file.write_text("{ half a docu", encoding="utf-8")
    before = files_in(home)

    for args in (("status", ADW_ID), ("state", "show", ADW_ID), ("state", "show", "ffffffff")):
        done = adw(*args)
        assert done.rc == 1
        assert args[-1] in one_line(done.stderr)

    assert files_in(home) == before


def take_away(database):
    for path in database.parent.glob("adw.db*"):
        if not path.name.endswith((".write-lock", ".has-documents")):  # those are not the database
            path.unlink()


def make_empty(database):
    take_away(database)
    database.touch()


def overwrite(database):
    take_away(database)
    database.write_bytes(b"this was a database once " * 400)


def damage_pages(database):
    whole = bytearray(database.read_bytes())
    whole[4096:] = b"\xff" * (len(whole) - 4096)
    take_away(database)
    database.write_bytes(whole)


LOST = pytest.mark.parametrize(
    ("lose", "words"),
    [
        (take_away, "is missing or empty"),
        (make_empty, "is missing or empty"),
        (overwrite, "is corrupt: file is not a database"),
        (damage_pages, "is corrupt: database disk image is malformed"),
    ],
    ids=["missing", "empty", "no database", "damaged"],
)


@LOST
def test_the_status_tells_what_the_document_says_when_the_database_is_lost(adw, home, lose, words):
    make_workflow(home)
    lose(home / "state" / "adw.db")
    before = files_in(home)

    text, data = adw("status", ADW_ID), adw("status", ADW_ID, "--json").json()

    assert (text.rc, text.stderr) == (0, "")
    assert "state     pending" in text.stdout
    assert "owner     unknown" in text.stdout
    assert (data["state"], data["owner"]) == ("pending", None)
    assert words in data["database_problem"]
    assert text.stdout.splitlines()[-1] == f"note: {data['database_problem']}"
    assert "adw db rebuild" in data["database_problem"]
    assert files_in(home) == before


@LOST
@pytest.mark.parametrize("store", ["files", "database"])
def test_a_lost_database_is_one_sentence_and_never_an_empty_answer(adw, home, store, lose, words):
    make_workflow(home, store=store)
    lose(home / "state" / "adw.db")
    before = files_in(home)

    for args in (("list",), ("events", ADW_ID), ("admin", "locks"), ("admin", "locks", "release", "7")):
        done = adw(*args, env={"ADW_STATE_STORE": store})
        assert (done.rc, done.stdout) == (1, "")
        assert words in one_line(done.stderr)
        assert ("adw db rebuild" if store == "files" else "adw db restore") in done.stderr
    assert files_in(home) == before, "looking makes no database"


@LOST
def test_a_document_that_was_lost_with_its_database_is_not_said_to_be_unknown(adw, home, lose, words):
    make_workflow(home, store="database")
    lose(home / "state" / "adw.db")

    for args in (("status", ADW_ID), ("state", "show", ADW_ID)):
        done = adw(*args, env={"ADW_STATE_STORE": "database"})
        assert (done.rc, done.stdout) == (1, "")
        assert words in one_line(done.stderr)


def test_the_status_says_when_the_document_was_recovered(adw, home):
    make_workflow(home)
    file = home / "state" / ADW_ID / FILE_NAME
    file.write_text("{ half a docu", encoding="utf-8")

    text, data = adw("status", ADW_ID), adw("status", ADW_ID, "--json").json()

    assert "state     pending" in text.stdout
    assert [line.split(":")[1].strip() for line in text.stdout.splitlines() if line.startswith("note: ")] == [
        notice["path"] for notice in data["notices"]
    ]
    assert [notice["kind"] for notice in data["notices"]] == ["corrupt", "recovered"]
    assert data["notices"][0]["path"] == str(file)
    assert file.read_text(encoding="utf-8") == "{ half a docu", "looking changes nothing"


def old_document(home):
    """A document of which nobody wrote down when it was made."""
    file = home / "state" / ADW_ID / FILE_NAME
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"adw_id": ADW_ID, "issue_number": "7"}), encoding="utf-8")
    return file


def test_a_moment_that_nobody_knows_is_shown_as_unknown(adw, home):
    old_document(home)
    before, data = adw("status", ADW_ID).stdout, adw("status", ADW_ID, "--json").json()
    assert adw("state", "migrate").rc == 0
    after, listed = adw("status", ADW_ID).stdout, adw("list", "--json")

    assert all("1970" not in shown for shown in (before, after, listed.stdout, adw("list").stdout))
    assert "created   unknown" in before
    assert "created   unknown" in after
    assert data["created_at"] is None
    assert listed.json()["workflows"][0]["created_at"] is None
    assert "created_at          unknown" in adw("state", "show", ADW_ID).stdout


def test_the_status_says_when_the_document_is_an_old_one(adw, home):
    file = old_document(home)

    assert f"note: {file}: brought from version 1.0" in adw("status", ADW_ID).stdout
    assert [notice["kind"] for notice in adw("status", ADW_ID, "--json").json()["notices"]] == ["migrated"]


@pytest.mark.parametrize("args", [["status", ADW_ID], ["list"], ["events", ADW_ID], ["config"], ["status", "ffffffff"]])
def test_views_start_without_the_heavy_libraries(home, args):
    make_workflow(home)
    code = (
        "import json, sys\n"
        "from adws.cli import main\n"
        f"code = main.run({['--home', str(home), *args]!r})\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "print(json.dumps([code, loaded]))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout.splitlines()[-1]) == [1 if args[1:] == ["ffffffff"] else 0, []]


# --- what is wrong is said in one line -------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["files", "database"])
@pytest.mark.parametrize("is_empty", [True, False], ids=["fresh", "used"])
@pytest.mark.parametrize("command", ["status", "events"])
def test_an_unknown_id_is_said_in_one_line(adw, home, command, is_empty, store):
    if not is_empty:
        make_workflow(home, store=store)

    done = adw(command, "ffffffff", env={"ADW_STATE_STORE": store})

    assert done.rc == 1
    assert "ffffffff" in one_line(done.stderr)
    assert "adw list" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("bad", ["../x", "..", "a/b", "x" * 65, "-"])
def test_an_id_that_could_leave_its_directory_is_refused(adw, bad):
    done = adw("status", "--", bad)

    assert done.rc == 2
    assert "is not a workflow id" in one_line(done.stderr)


def test_an_unknown_command_is_refused_with_the_nearest_name(adw):
    done = adw("lst")

    assert done.rc == 2
    assert "there is no command 'lst'; did you mean list?" in done.stderr


def test_an_unknown_state_is_refused_with_those_there_are(adw):
    done = adw("list", "--state", "done")

    assert done.rc == 2
    assert "completed" in one_line(done.stderr)


def test_all_bad_settings_are_told_at_once(adw, home):
    (home / "adw.toml").write_text('[state]\nstore = "cloud"\nstroe = "x"\n[limits]\nmax_retries = -1\n')

    done = adw("config", env={"ADW_LOG_LEVEL": "loud"})

    assert done.rc == 2
    lines = done.stderr.splitlines()
    assert all(line.startswith("adw: ") for line in lines)
    assert [number for number in (2, 3, 5) if any(f"{home}/adw.toml:{number}" in line for line in lines)] == [2, 3, 5]
    assert any("ADW_LOG_LEVEL" in line for line in lines)
    assert len(lines) == 4


def test_a_pipe_as_settings_is_refused_and_not_waited_for(adw, home):
    os.mkfifo(home / "adw.toml")

    done = adw("list")

    assert done.rc == 2
    assert "adw.toml is not a regular file" in one_line(done.stderr)


def test_a_bad_setting_is_refused_with_file_and_line(adw, home):
    (home / "adw.toml").write_text('[state]\nstore = "cloud"\n')

    done = adw("config")

    assert done.rc == 2
    assert f"{home}/adw.toml:2" in one_line(done.stderr)
    assert "files, database" in done.stderr


def test_an_alias_and_its_name_set_differently_are_refused(adw):
    done = adw("config", env={"RUN_RECOVERY_MODE": "all", "ADW_RECOVERY_MODE": "none"})

    assert done.rc == 2
    assert "ADW_RECOVERY_MODE and RUN_RECOVERY_MODE" in one_line(done.stderr)


def test_a_home_that_is_not_there_is_refused(adw, tmp_path):
    done = adw("--home", str(tmp_path / "missing"), "config")

    assert done.rc == 2
    assert "is not a directory" in one_line(done.stderr)


def test_what_is_not_set_is_null_for_programs(adw):
    settings = adw("config", "--json").json()
    shown = {line.split()[0]: line for line in adw("config").stdout.splitlines() if line}

    for name in ("github.repository", "github.token", "webhook.secret"):
        assert settings[name] == {"value": None, "origin": "default"}
        assert "not set" in shown[name]


def test_the_common_and_the_changed_settings_are_shown_unless_all_are_asked_for(adw):
    env = {"ADW_SHIP_MAX_FILES": "7"}
    some, every = (adw("config", *args, "--json", env=env).json() for args in ((), ("--all",)))

    assert some["ship.max_files"] == {"value": 7, "origin": "env ADW_SHIP_MAX_FILES"}
    assert "ship.max_lines" not in some
    assert every["ship.max_lines"] == {"value": 20000, "origin": "default"}
    assert "adw config --all shows the rest" in adw("config").stdout


def test_secrets_are_not_shown(adw):
    env = {
        "GITHUB_PAT": PLANTED,
        "GITHUB_WEBHOOK_SECRET": PLANTED,
        "ADW_DATABASE_URL": f"postgresql://me:{PLANTED}@db.invalid/x",
    }

    for args in (("config",), ("config", "--json")):
        done = adw(*args, env=env)
        assert done.rc == 0
        assert "postgresql://me:***@db.invalid/x" in done.stdout
        assert PLANTED not in done.stdout + done.stderr


# --- where the home is -----------------------------------------------------------------------------------------


def where(adw, cwd):
    return adw("config", "--json", cwd=cwd, env={"ADW_HOME": ""}).json()["home"]["value"]


def test_the_home_is_the_main_checkout_also_from_its_worktrees_and_folders(adw, home):
    subprocess.run(["git", "worktree", "add", "-q", "trees/1a2b3c4d"], cwd=home, check=True, capture_output=True)
    folder = home / "src" / "deep"
    folder.mkdir(parents=True)

    assert where(adw, home) == str(home)
    assert where(adw, folder) == str(home)
    assert where(adw, home / "trees" / "1a2b3c4d") == str(home)


def test_without_git_the_home_is_the_current_directory(adw, nowhere):
    assert where(adw, nowhere) == str(nowhere.resolve())


# --- how a command ends ----------------------------------------------------------------------------------------


def buffered():
    """The environment without the variable that would hide trouble at the last flush."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize("args", [["list"], ["list", "--json"], ["config"], ["--help"]])
def test_a_reader_who_goes_away_is_no_noise(home, args):
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [ADW, "--home", str(home), *args],
        env=buffered(),
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writer)

    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("args", [["list"], ["config", "--json"], ["--help"], ["list", "--help"], ["--version"]])
def test_output_that_cannot_be_written_is_an_error(home, args):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [ADW, "--home", str(home), *args],
            env=buffered(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 1
    assert one_line(done.stderr) == "adw: could not write the output: No space left on device\n"


def in_shell(home, script):
    return subprocess.run(
        ["sh", "-c", script, ADW, str(home)], env=buffered(), capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("args", ["list", "list --json", "--help", f"state set {ADW_ID} branch_name=other"])
def test_a_closed_output_is_refused_before_anything_is_done(adw, home, args):
    make_workflow(home)

    done = in_shell(home, f'exec "$0" --home "$1" {args} >&-')

    assert done.returncode == 1
    assert "the output is closed" in one_line(done.stderr)
    assert adw("state", "show", ADW_ID, "--json").json()["revision"] == 1


def test_all_streams_may_be_closed(home):
    assert in_shell(home, 'exec "$0" --home "$1" list <&- >&- 2>&-').returncode == 1


@pytest.mark.parametrize("args", ["list", "list --json", "config", "--help"])
def test_the_first_line_can_be_taken_without_noise(home, args):
    make_workflow(home)

    done = in_shell(home, f'"$0" --home "$1" {args} | head -1')

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


def test_an_interrupt_ends_with_130_and_no_traceback(home):
    reader, writer = os.pipe()
    # More than the pipe can hold: the command waits in the middle of its output.
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    running = subprocess.Popen(
        [ADW, "--home", str(home), "config"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ADW_AGENT_PROGRAMS": "claude=" + "x" * size},
        # A shell may have started the tests with interrupts ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads before exec
    )

    os.close(writer)
    with os.fdopen(reader, "rb") as output:
        assert output.read(1)  # returns when the command is writing
        running.send_signal(signal.SIGINT)
        output.read()
    _, err = running.communicate(timeout=60)

    assert running.returncode == 130
    assert "Traceback" not in err
