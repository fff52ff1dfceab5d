"""A home that may only be read: an archive, a colleague's, a disk that went read-only."""

from __future__ import annotations

import ctypes
import os
import sqlite3
import subprocess
import sysconfig
from contextlib import closing
from pathlib import Path

import pytest

from adws.app import open_home
from adws.config import load as config_load
from tests import sampling
from tests.contracts.worlds import FIRST, MOMENT, make_document

#: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: with them root may write anywhere.
_CAPABILITIES = (1, 2)
_PR_CAPBSET_DROP = 24


def _obey_modes() -> None:
    """Make file modes count for root too, from the next exec on."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in _CAPABILITIES:
        if os.geteuid() == 0 and libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot drop a capability")


@pytest.fixture
def run(home):
    """Run adw as somebody whom the modes of files bind."""
    command = Path(sysconfig.get_path("scripts")) / "adw"

    def start(*args: str, store: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(command), *args],
            cwd=home,
            env={**os.environ, "ADW_HOME": str(home), "ADW_STATE_STORE": store},
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=_obey_modes,
        )

    return start


def close_to_writers(state: Path, *, is_closed: bool = True) -> None:
    for path in (state, *state.rglob("*")):
        mode = 0o555 if path.is_dir() else 0o444
        path.chmod(mode if is_closed else mode | 0o200)


@pytest.mark.parametrize(("store", "is_at_work"), sampling.each_value_once(["files", "database"], [False, True]))
def test_the_views_show_a_home_that_may_only_be_read(home, run, store, is_at_work):
    settings = config_load.load(env={"ADW_HOME": str(home), "ADW_STATE_STORE": store}, cwd=home)
    with open_home(settings) as app, app.ownership.create(make_document()):
        pass
    (home / "state" / "adw.db.has-documents").unlink(missing_ok=True)  # as an older adw left it
    # Not an adw: a forked command and this process must not both have the database open.
    with closing(sqlite3.connect(home / "state" / "adw.db")) as writer:
        if is_at_work:
            writer.execute("INSERT INTO adw_locks VALUES ('', 43, ?, ?)", (FIRST, MOMENT))
            writer.commit()
            assert (home / "state" / "adw.db-wal").stat().st_size > 0
        close_to_writers(home / "state")
        before = sorted(path.name for path in (home / "state").rglob("*"))
        try:
            shown = {
                args: run(*args, store=store)
                for args in (
                    ("status", FIRST),
                    ("list",),
                    ("events", FIRST),
                    ("admin", "locks"),
                    ("state", "show", FIRST),
                    ("status",),
                    ("report", "--no-orphans"),
                )
            }
            refused = run("admin", "locks", "release", "42", "--repository", "acme/widget", store=store)
            assert sorted(path.name for path in (home / "state").rglob("*")) == before
        finally:
            close_to_writers(home / "state", is_closed=False)

    for args, done in shown.items():
        assert (done.returncode, done.stderr) == (0, ""), args
        assert (FIRST in done.stdout) or args[0] in {"events", "attempts", "stuck", "report"}, args
    assert "note:" not in shown["status", FIRST].stdout
    assert "workflow_created" in shown["events", FIRST].stdout
    assert "now      pending 1" in shown["report", "--no-orphans"].stdout
    assert ("#43" in shown["admin", "locks"].stdout) is is_at_work, "what is only in the log is seen too"
    assert refused.returncode == 1
    assert refused.stderr.startswith("adw: cannot ")
    assert refused.stderr.count("\n") == 1
