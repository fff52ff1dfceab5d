"""The home that `adws.testing` offers is real, costs little, and leaves nothing behind."""

from __future__ import annotations

from adws import testing
from adws.adw_modules.interfaces import Verdict
from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.store.database import DatabaseStateStore
from adws.adw_modules.store.files import FileStateStore
from adws.testing import FakeClock, FakeProcesses


def test_its_directory_goes_when_it_is_closed():
    with testing.home() as home:
        home.runs.enqueue(NewRun(adw_id="1a2b3c4d"))
        place = home.settings.home
        assert (place / "state" / "adw.db").exists()

    assert not place.exists()


def test_a_directory_that_was_given_stays_and_can_be_opened_again(tmp_path):
    with testing.home(tmp_path) as home:
        home.runs.enqueue(NewRun(adw_id="1a2b3c4d"))

    with testing.home(tmp_path) as home:
        assert [run.adw_id for run in home.runs.page()] == ["1a2b3c4d"]


def test_homes_know_nothing_of_each_other():
    with testing.home() as one, testing.home() as other:
        one.runs.enqueue(NewRun(adw_id="1a2b3c4d"))

        assert other.runs.page() == ()


def test_settings_are_given_by_name_and_the_environment_does_not_count(monkeypatch, tmp_path):
    monkeypatch.setenv("ADW_LIMITS_MAX_ATTEMPTS", "9")
    (tmp_path / "adw.toml").write_text('[github]\nrepository = "acme/widget"\n')
    with testing.home(tmp_path, max_minutes=7, worktree_enabled=False, worker_tags=("big", "gpu")) as home:
        settings = home.settings

    assert (settings.max_minutes, settings.worktree_enabled, settings.worker_tags) == (7, False, ("big", "gpu"))
    assert (settings.repository, settings.origin("max_attempts")) == ("acme/widget", "default")


def test_documents_are_in_the_database_unless_files_are_asked_for():
    with testing.home() as home:
        assert isinstance(home.store, DatabaseStateStore)
    with testing.home(store="files") as home:
        assert isinstance(home.store, FileStateStore)


def test_time_is_the_clock_that_was_given():
    clock = FakeClock()
    with testing.home(clock=clock) as home:
        home.runs.enqueue(NewRun(adw_id="1a2b3c4d", not_before="2026-01-31T10:00:00.000000Z"))
        assert home.runs.seconds_to_next() == 3600.0
        clock.advance(3600.0)
        assert home.runs.seconds_to_next() == 0.0


def test_fake_owners_live_until_they_are_killed():
    processes = FakeProcesses(FakeClock().token)
    one, other = processes.me("worker"), processes.me("worker")
    processes.kill(one)

    assert (processes.verdict(one), processes.verdict(other)) == (Verdict.DEAD, Verdict.ALIVE)
    processes.lose_sight_of(other)
    assert processes.verdict(other) is processes.verdict(None) is Verdict.UNKNOWN
