"""
Rollbacks over a real repository with a bare remote, a local forge, a real database and real ports; killed for real.

What depends on the database is shown on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adws.adw_modules.document import AttemptRecord
from adws.adw_modules.interfaces import ProcessRecord
from adws.adw_modules.rollback.plan import RollbackOptions
from tests import forked
from tests.integration.tidy_lab import ADW_ID, TidyHome, a_process, branch_of, git

WISHES = RollbackOptions(reason="the plan was wrong")


@pytest.fixture
def lab(tmp_path) -> TidyHome:
    return TidyHome(tmp_path.resolve() / "home")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def make_home(request, tmp_path) -> Callable[..., TidyHome]:
    """`make_home("name")` makes a home with a database of its own, once for each dialect."""
    new_database = request.getfixturevalue("new_pg_url") if request.param == "postgresql" else str

    def make(name: str = "home", **options) -> TidyHome:
        return TidyHome(tmp_path.resolve() / name, database=new_database(), **options)

    return make


def what_is_left(home: TidyHome, app, issue: int) -> dict[str, object]:
    pulls = app.forge.pull_requests_of(branch_of(ADW_ID, issue))
    document = app.store.load(ADW_ID).document
    return {
        "heads": home.heads(),
        "remote": home.remote_heads(),
        "trees": git(home.path, "worktree", "list", "--porcelain").count("worktree "),
        "tree": home.tree().exists(),
        "pulls": [pull.state for pull in pulls],
        "closing comments": [len(app.forge.comments(pull.number)) for pull in pulls],
        "comments": len(app.forge.comments(issue)),
        "ports": app.ports.all(),
        "locks": app.locks.all(),
        "state": document.current_state,
        "open": [entry.key for entry in document.resources if entry.outcome in {"intended", "made", "adopted"}],
        "salvaged": bool(git(home.path, "for-each-ref", "refs/adw/salvage")),
        "patch": "not committed" in (home.path / "state" / ADW_ID / "salvage.patch").read_text(),
    }


GONE = {
    "heads": {"main"},
    "remote": {"main"},
    "trees": 1,
    "tree": False,
    "pulls": ["closed"],
    "closing comments": [1],
    "comments": 2,
    "ports": (),
    "locks": (),
    "state": "rolled_back",
    "open": [],
    "salvaged": True,
    "patch": True,
}


@pytest.mark.parametrize("store", ["files", "database"])
def test_nothing_is_left_but_the_salvage(make_home, store):
    lab = make_home(store=store)
    with lab.open() as app:
        issue = lab.make(app)

        report = app.rollbacks.rollback(ADW_ID, WISHES)

        assert report.is_complete, report.blocked_by
        assert what_is_left(lab, app, issue) == GONE
        assert app.verifier.check() == ()
        assert app.collector.find() == ()


def test_the_salvage_brings_the_work_back(lab):
    with lab.open() as app:
        lab.make(app)
        app.rollbacks.rollback(ADW_ID, WISHES)

    git(lab.path, "checkout", "-q", "-b", "again", f"refs/adw/salvage/{ADW_ID}")
    git(lab.path, "apply", str(lab.path / "state" / ADW_ID / "salvage.patch"))
    assert (lab.path / "greet.py").read_text().endswith("'hello'\n")
    assert (lab.path / "draft.txt").read_text() == "not committed"


def test_a_rollback_killed_for_real_ends_the_same_when_it_is_run_again(make_home, rng, repeat):
    """
    The child is killed right before or right after an act on git, forge, ports or the document.
    """
    counted = make_home("counted")
    with counted.open() as app:
        counted.make(app)
        moments = _roll_back_until(app, None)
    assert moments > 40

    for turn in range(repeat(2, 60)):
        moment = rng.randrange(moments)
        home = make_home(f"turn{turn}")
        with home.open() as app:
            issue = home.make(app)

        def in_child(home=home, moment=moment) -> None:
            with home.open() as app:
                _roll_back_until(app, moment)

        child = forked.start(in_child)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

        with home.open() as app:
            report = app.rollbacks.rollback(ADW_ID, WISHES)
            assert report.is_complete, (moment, report.blocked_by)
            assert what_is_left(home, app, issue) == GONE, moment
            assert app.verifier.check() == (), moment
            assert app.collector.find() == (), moment


def _roll_back_until(app, moment: int | None) -> int:
    """Roll back, killed at *moment*; return how many moments there were."""
    passed = [0]

    def watch(inner, *names):
        return _Watched(inner, names, passed, moment)

    app.tell = lambda _document, _events: _pass_by(passed, moment)  # before the engine is built
    app.git_if_any = watch(app.git_if_any, "remove_worktree", "delete_branch", "keep_commits", "delete_remote_branch")
    app.ports = watch(app.ports, "free")
    app.forge_if_any = watch(app.forge_if_any, "close_pull_request", "create_comment", "edit_comment")
    app.rollbacks.rollback(ADW_ID, WISHES)
    return passed[0]


def _pass_by(passed: list[int], moment: int | None) -> None:
    if passed[0] == moment:
        os.kill(os.getpid(), signal.SIGKILL)
    passed[0] += 1


class _Watched:
    def __init__(self, inner, names, passed, moment) -> None:
        self._inner, self._names, self._passed, self._moment = inner, names, passed, moment

    def __getattr__(self, name):
        result = getattr(self._inner, name)
        if name not in self._names:
            return result

        def call(*args, **keywords):
            _pass_by(self._passed, self._moment)
            answer = result(*args, **keywords)
            _pass_by(self._passed, self._moment)
            return answer

        return call


# --- what is not as it was left --------------------------------------------------------------------------------


def test_an_empty_directory_of_a_worktree_that_was_never_made_is_removed(lab):
    with lab.open() as app:
        lab.make(app)
        app.git.remove_worktree(lab.tree(), reason=f"adw {ADW_ID}")
        lab.tree().mkdir()

        assert app.rollbacks.rollback(ADW_ID, WISHES).is_complete
        assert not lab.tree().exists()


# --- what is not ours ------------------------------------------------------------------------------------------


def test_a_stranger_who_listens_on_our_port_lives_on(lab):
    with lab.open() as app:
        lab.make(app)
        row = app.ports.all()[0]
    with lab.open() as app, socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", row.port))
        stranger.listen()

        report = app.rollbacks.rollback(ADW_ID, WISHES)

        assert report.is_complete
        with socket.create_connection(("127.0.0.1", row.port), timeout=5):
            pass


def test_a_recorded_process_is_ended_and_one_that_nobody_recorded_lives_on(make_home, tmp_path):
    lab = make_home()
    with lab.open() as app, a_process(lab, ADW_ID) as agent:
        lab.make(app)
        stat = app.processes.stat(agent.pid)
        identity = replace(app.processes.me("agent"), pid=agent.pid, start_ticks=stat.start_ticks)
        record = ProcessRecord(token="t" * 32, identity=identity, argv=("agent",), started_at="")
        moment = "2026-01-31T09:00:00.000000Z"
        running = AttemptRecord(number=1, started_at=moment, status="running", process=record.to_json())
        with app.ownership.own(ADW_ID) as owned:
            first, second = owned.document.phases
            worked = second.model_copy(update={"status": "running", "attempts_used": 1, "attempts": [running]})
            owned.save(owned.document.model_copy(update={"phases": [first, worked]}))
        with a_process(lab, ADW_ID, state_dir=tmp_path, token="u" * 32) as stranger:
            report = app.rollbacks.rollback(ADW_ID, WISHES)

            assert report.is_complete, report.blocked_by
            assert agent.wait(timeout=20) < 0
            assert stranger.poll() is None
        assert app.store.load(ADW_ID).document.phases[1].attempts[0].status == "interrupted"


def test_external_directories_are_found_at_the_root_of_the_repository_wherever_one_stands(lab, monkeypatch, tmp_path):
    with lab.open() as app:
        lab.make(app)
        made = [lab.path / f"adw_{kind}_external_{ADW_ID}" for kind in ("test", "build")]
        for path in made:
            (path / "deep").mkdir(parents=True)
        elsewhere = tmp_path / made[0].name
        elsewhere.mkdir()
        monkeypatch.chdir(tmp_path)

        app.rollbacks.rollback(ADW_ID, WISHES)

        assert not any(path.exists() for path in made)
        assert elsewhere.exists()


def test_an_external_directory_that_is_a_link_is_left(lab, tmp_path):
    with lab.open() as app:
        lab.make(app)
        (tmp_path / "precious").mkdir()
        Path(lab.path / f"adw_test_external_{ADW_ID}").symlink_to(tmp_path / "precious")

        report = app.rollbacks.rollback(ADW_ID, WISHES)

        assert (tmp_path / "precious").exists()
        assert any("external" in line for line in report.kept)
