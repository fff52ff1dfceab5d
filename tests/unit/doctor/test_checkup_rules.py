"""What the facts of `adw doctor` mean: how bad it is, and how to fix it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adws.adw_modules.db import sqlite
from adws.adw_modules.maintenance.check import Inconsistency
from adws.doctor import checks
from adws.doctor.checks import (
    OK,
    PROBLEM,
    WARNING,
    AgentFacts,
    DatabaseFacts,
    DiskFacts,
    Finding,
    ForgeFacts,
    GitFacts,
    SettingsFacts,
    StorageFacts,
    WebhookFacts,
    count,
)

GIB = 2**30

GIT = GitFacts(
    version="git version 2.43.0",
    numbers=(2, 43),
    author="Ada <ada@example.com>",
    is_repository=True,
    has_commits=True,
    remote_problem="",
)
AGENT = AgentFacts(name="claude", path="/bin/claude", version="2.1", is_logged_in=True, problem="", is_needed=True)
HOOK = WebhookFacts(has_secret=True, address="http://127.0.0.1:8001", is_answering=True)
DISK = DiskFacts(
    name="worktrees", path="/w", free_bytes=50 * GIB, min_free_bytes=10 * GIB, free_inodes=10**6, all_inodes=10**7
)
STORAGE = StorageFacts(path="/s", kind="ext4", has_sqlite=True, sync_seconds=0.004)
PORTS = {"described": "9100 to 9114", "count": 15, "free": 14, "reserved": 1}


def python(facts):
    return checks.python(**{"version": (3, 11, 7), "has_proc": True, **facts})


def clock(facts):
    return checks.clock(**{"year": 2026, **facts})


def ports(facts):
    return checks.ports(**{**PORTS, **facts})


SETTINGS = SettingsFacts(file="/h/adw.toml", has_file=True, default_workflow="sdlc")
FORGE = ForgeFacts(
    kind="github", repository="acme/shop", login="ada", may_push=True, scopes=("repo",), requests_left=4999
)

WELL = [
    (python, {}),
    (checks.git, GIT),
    (checks.git, replace(GIT, works_in_worktrees=False)),
    (checks.agents, (AGENT,)),
    (checks.webhook, HOOK),
    (checks.webhook, replace(HOOK, public_url="https://adw.example.com", public_problem="")),
    (checks.webhook, replace(HOOK, has_secret=False, is_answering=False)),
    (checks.disk, DISK),
    (checks.disk, replace(DISK, all_inodes=0, free_inodes=0)),
    (checks.storage, STORAGE),
    (checks.storage, replace(STORAGE, kind="", sync_seconds=None)),
    (clock, {}),
    (clock, {"skews": (("GitHub", 0.6), ("the database", -0.2))}),
    (ports, {}),
    (ports, {"count": 1, "free": 1, "reserved": 0}),
    (checks.settings, SETTINGS),
    (checks.settings, replace(SETTINGS, default_workflow="")),
    (checks.forge, FORGE),
    (checks.forge, replace(FORGE, scopes=None, may_push=None, requests_left=None)),
    (checks.forge, replace(FORGE, scopes=("public_repo",))),
    (checks.forge, ForgeFacts(kind="local")),
    (checks.forge, ForgeFacts(kind="gitlab", login="ada")),
    (checks.database, DatabaseFacts(name="sqlite:////s/adw.db", schema="0012")),
    (checks.database, DatabaseFacts(name="sqlite:////s/adw.db", is_made=False)),
]


@pytest.mark.parametrize(("judge", "facts"), WELL)
def test_what_is_well_is_told_and_needs_nothing(judge, facts):
    result = list(judge(facts))

    assert result
    assert {(one.level, one.fix) for one in result} == {(OK, "")}


@pytest.mark.parametrize(
    ("judge", "facts", "level", "what", "fix"),
    [
        (
            python,
            {"version": (3, 9, 2)},
            PROBLEM,
            "Python 3.9.2 is too old",
            "install Python",
        ),
        (python, {"has_proc": False}, WARNING, "no processes in /proc", "use Linux"),
        (checks.git, GitFacts(version=""), PROBLEM, "there is no git in PATH", "install git 2.36 or later"),
        (checks.git, replace(GIT, numbers=(2, 25)), PROBLEM, "is too old", "install git 2.36 or later"),
        (checks.git, replace(GIT, author=""), WARNING, "does not know who you are", "git config --global"),
        (checks.git, replace(GIT, is_repository=False), WARNING, "in no git repository", "git init"),
        (checks.git, replace(GIT, has_commits=False), PROBLEM, "has no commit", "git commit --allow-empty"),
        (checks.git, replace(GIT, lost_worktrees=("/t/a",)), WARNING, "gone: /t/a", "git worktree prune"),
        (checks.git, replace(GIT, unignored=("state/",)), WARNING, "does not ignore state/", "adw init"),
        (
            checks.git,
            replace(GIT, stale_locks=("/h/.git/index.lock",)),
            PROBLEM,
            "left",
            "rm /h/.git/index.lock",
        ),
        (
            checks.git,
            replace(GIT, remote_problem=None),
            WARNING,
            "no remote origin",
            "git remote add origin URL",
        ),
        (checks.git, replace(GIT, remote_problem="no answer"), PROBLEM, "origin: no answer", "git ls-remote"),
        (
            checks.agents,
            (replace(AGENT, is_logged_in=False, problem="claude is not logged in: start it once, and log in"),),
            PROBLEM,
            "claude: claude is not logged in",
            "start it once, and log in",
        ),
        (
            checks.agents,
            (replace(AGENT, path="", problem="there is no command 'x': it is not a file; set agent.programs"),),
            PROBLEM,
            "claude: there is no command 'x': it is not a file",
            "set agent.programs",
        ),
        (
            checks.agents,
            (replace(AGENT, is_needed=False, problem="it does not start"),),
            WARNING,
            "claude: it does not start",
            "adw workflow agents",
        ),
        (checks.webhook, replace(HOOK, has_secret=False), WARNING, "deliveries are not taken", "export ADW_WEB"),
        (checks.webhook, replace(HOOK, is_answering=False), WARNING, "nothing answers at http", "adw serve"),
        (checks.webhook, replace(HOOK, says="it answers 503"), PROBLEM, "it answers 503", "adw db check"),
        (
            checks.webhook,
            replace(HOOK, public_url="https://x.example", public_problem="it answers 502"),
            PROBLEM,
            "https://x.example does not lead here: it answers 502",
            "web.public_url",
        ),
        (checks.disk, replace(DISK, free_bytes=9 * GIB), PROBLEM, "no work starts below 10 GB", "adw admin gc"),
        (checks.disk, replace(DISK, free_bytes=11 * GIB), WARNING, "11 GB free", "quota.min_free_disk"),
        (checks.disk, replace(DISK, free_inodes=100), WARNING, "100 inodes left", "adw admin gc"),
        (checks.disk, replace(DISK, free_inodes=0), PROBLEM, "0 inodes left", "adw admin gc"),
        (checks.storage, replace(STORAGE, kind="tmpfs"), WARNING, "gone after a restart", "set state.dir"),
        (checks.storage, replace(STORAGE, kind="overlay"), WARNING, "gone with the container", "mount a volume"),
        (checks.storage, replace(STORAGE, kind="nfs4"), PROBLEM, "where SQLite loses data", "PostgreSQL"),
        (
            checks.storage,
            replace(STORAGE, kind="nfs4", has_sqlite=False),
            WARNING,
            "locks and syncs may not hold",
            "local disk",
        ),
        (checks.storage, replace(STORAGE, kind="9p"), WARNING, "locks and syncs may not hold", "local disk"),
        (checks.storage, replace(STORAGE, owner_problem="/s/adw.db belongs to x"), PROBLEM, "belongs", "chown"),
        (checks.storage, replace(STORAGE, is_writable=False), PROBLEM, "cannot be written", "chmod u+rwx /s"),
        (checks.storage, replace(STORAGE, sync_problem="I/O error"), PROBLEM, "I/O error", "set state.dir"),
        (checks.storage, replace(STORAGE, sync_seconds=0.4), WARNING, "takes 0.40 s", "faster disk"),
        (
            checks.storage,
            replace(STORAGE, open_files=("/s/adw.db",)),
            WARNING,
            "can read /s/adw.db",
            "chmod -R go",
        ),
        (clock, {"year": 1970}, PROBLEM, "the year 1970", "timedatectl"),
        (clock, {"goes_back": True}, PROBLEM, "goes back", "restart"),
        (clock, {"skews": (("GitHub", 7.0),)}, WARNING, "7 s ahead of that of GitHub", "time"),
        (clock, {"skews": (("GitHub", -90.0),)}, PROBLEM, "90 s behind that", "timedatectl"),
        (ports, {"free": 0}, PROBLEM, "0 of 15 pairs free", "adw admin ports"),
        (ports, {"free": 2}, WARNING, "2 of 15 pairs free", "ports.backend_start"),
        (checks.settings, replace(SETTINGS, has_file=False), WARNING, "there is no /h/adw.toml", "adw init"),
        (checks.settings, replace(SETTINGS, ignored=("A", "B")), WARNING, "A, B: set", "unset A B"),
        (
            checks.settings,
            replace(SETTINGS, idle_phases=("plan",)),
            PROBLEM,
            "nothing does plan",
            "adw workflow show sdlc",
        ),
        (
            checks.settings,
            replace(SETTINGS, missing_programs=(("test", "make"),)),
            PROBLEM,
            "test needs make, which is not in PATH",
            "install make",
        ),
        (checks.forge, ForgeFacts(kind="none"), WARNING, "no forge is configured", "github.repository"),
        (checks.forge, ForgeFacts(kind="github", problem="no", fix="do"), PROBLEM, "no", "do"),
        (checks.forge, replace(FORGE, may_push=False), PROBLEM, "ada may not push branches in", "write access"),
        (
            checks.forge,
            replace(FORGE, may_push=False, may_write_issues=False),
            PROBLEM,
            "may not push branches or write issues and comments",
            "write access",
        ),
        (
            checks.forge,
            replace(FORGE, scopes=()),
            PROBLEM,
            "scopes none, and needs public_repo or repo",
            "token",
        ),
        (
            checks.forge,
            replace(FORGE, scopes=("public_repo",), is_private=True),
            PROBLEM,
            "and needs repo",
            "ADW_GITHUB_TOKEN",
        ),
        (checks.forge, replace(FORGE, pushes_workflow_files=True), PROBLEM, "not the scope workflow", "token"),
        (checks.forge, replace(FORGE, requests_left=3), WARNING, "3 more requests this hour", "wait"),
    ],
)
def test_what_is_not_well_says_what_is_wrong_and_what_mends_it(judge, facts, level, what, fix):
    (result,) = [one for one in judge(facts) if one.level != OK]

    assert result.level == level
    assert what in result.what
    assert fix in result.fix


def test_an_agent_that_nobody_asked_for_is_not_missed():
    other = AgentFacts(name="codex", path="", version="", is_logged_in=None, problem="not there", is_needed=False)

    assert [one.what for one in checks.agents((AGENT, other))] == ["claude: 2.1, logged in"]
    assert [one.level for one in checks.agents((other,))] == [OK]


def test_of_many_names_a_few_are_told():
    (result,) = [one for one in checks.git(replace(GIT, lost_worktrees=tuple("abcde"))) if one.level == WARNING]

    assert "a, b, c and 2 more" in result.what


# --- the database ----------------------------------------------------------------------------------------------


def trouble(kind: str, text: str = "it is wrong", adw_id: str = "") -> Inconsistency:
    return Inconsistency(kind=kind, text=text, hint="do this", adw_id=adw_id)


@pytest.mark.parametrize(
    ("kind", "area", "level"),
    [
        ("storage", "database", PROBLEM),
        ("moved", "database", PROBLEM),
        ("schema", "database", WARNING),
        ("document", "database", PROBLEM),
        ("copy", "database", WARNING),
        ("lock", "locks", PROBLEM),
        ("owner", "locks", WARNING),
        ("run", "locks", WARNING),
        ("delivery", "database", WARNING),
    ],
)
def test_each_trouble_of_the_database_has_its_area_and_its_hint(kind, area, level):
    facts = DatabaseFacts(name="adw.db", schema="0012", troubles=(trouble(kind, adw_id="1a2b3c4d"),))

    (result,) = [one for one in checks.database(facts) if one.level != OK]

    assert result == Finding(area=area, level=level, what="1a2b3c4d: it is wrong", fix="do this")


@pytest.mark.parametrize("kind", ["storage", "schema", "moved"])
def test_locks_are_not_called_well_when_nobody_could_look(kind):
    facts = DatabaseFacts(name="adw.db", troubles=(trouble(kind),))

    assert "locks" not in {one.area for one in checks.database(facts)}


def test_the_worst_troubles_are_told_first_and_the_rest_is_counted():
    facts = DatabaseFacts(
        name="adw.db", troubles=(*(trouble("owner", f"{number}") for number in range(6)), trouble("lock", "locked"))
    )

    *told, rest = [one for one in checks.database(facts) if one.area == "locks"]

    assert [one.what for one in told] == ["locked", "0", "1", "2", "3"]
    assert (rest.what, rest.fix) == ("2 more like these", "adw db check")


@pytest.mark.parametrize(
    ("problem", "what", "fix"),
    [
        ("the server cannot be reached: start it", "the server cannot be reached", "start it"),
        ("broken", "broken", "adw db check"),
    ],
)
def test_a_database_that_cannot_be_reached_is_all_there_is_to_say(problem, what, fix):
    result = list(checks.database(DatabaseFacts(name="adw.db", problem=problem)))

    assert result == [Finding(area="database", level=PROBLEM, what=what, fix=fix)]


def test_findings_are_counted_by_level_and_told_to_programs():
    result = [Finding(area="git", level=PROBLEM, what="x", fix="y"), Finding(area="git", level=OK, what="z")]

    assert (count(result, PROBLEM), count(result, WARNING)) == (1, 0)
    assert result[0].to_json() == {"area": "git", "level": "problem", "what": "x", "fix": "y"}


# --- file systems ----------------------------------------------------------------------------------------------

MOUNTS = r"""
22 28 0:21 / / rw - ext4 /dev/sda1 rw
30 22 0:26 / /tmp rw - tmpfs tmpfs rw
31 22 0:27 / /mnt/my\040disk rw - nfs4 server:/x rw
32 22 0:28 / /tmp rw - xfs /dev/sdb rw
no mount at all
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/ada", "ext4"), ("/tmp/x", "xfs"), ("/mnt/my disk/x", "nfs4"), ("/tmpfile", "ext4")],
    ids=["root", "the-later-mount-is-on-top", "space", "name-that-begins-so"],
)
def test_a_path_is_on_the_file_system_of_the_nearest_mount(path, kind):
    assert sqlite.file_system_of(Path(path), MOUNTS) == kind


def test_without_a_table_of_mounts_nothing_is_known():
    assert sqlite.file_system_of(Path("/x"), "") == ""
