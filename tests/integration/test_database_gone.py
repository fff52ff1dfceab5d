"""A worker whose database is gone for good ends, and says so in one sentence."""

from __future__ import annotations

import pytest

from adws import app as app_module
from adws.adw_modules.errors import DatabaseUnavailable
from adws.adw_modules.worker.worker import WorkerOptions
from adws.config import load as config_load
from tests.crash.storm_postgres import running_server

#: Short: nobody brings this database back.
OPTIONS = WorkerOptions(patience_seconds=0.2)


def work_without(home, lose, **env):
    """Return what a worker says whose database is lost after it was opened."""
    (home / "adw.toml").write_text('[workflows.short]\n[[workflows.short.phases]]\nname = "plan"\nshell = "true"\n')
    with app_module.open_home(config_load.load(env={"ADW_HOME": str(home), **env}, cwd=home), role="worker") as app:
        worker = app.worker(OPTIONS)
        assert app.runs.page() == ()
        lose()
        with pytest.raises(DatabaseUnavailable) as raised:
            worker.run()

    return str(raised.value)


def test_a_worker_ends_when_its_file_was_deleted(tmp_path):
    def delete() -> None:
        for file in (tmp_path / "state").glob("adw.db*"):
            file.unlink()

    said = work_without(tmp_path, delete)

    assert said.startswith("the database has not answered for 0 s, so this worker stops: cannot use the database")
    assert "\n" not in said


@pytest.mark.postgres
def test_a_worker_ends_when_its_server_was_stopped(tmp_path):
    with running_server() as server:
        try:
            said = work_without(tmp_path, server.stop, ADW_DATABASE_URL=server.url)
        finally:
            server.restart("immediate")

    assert "so this worker stops: cannot reach the database" in said
    assert "\n" not in said
