"""What this machine is to adw, measured without leaving a trace."""

from __future__ import annotations

import errno
import os

import pytest

from adws.doctor import checks
from adws.testing import FakeClock


@pytest.fixture
def state(tmp_path):
    place = tmp_path / "state"
    place.mkdir(mode=0o700)
    return place


def storage(place):
    return checks.storage_facts(place, has_sqlite=True, clock=FakeClock())


def test_the_room_of_a_directory_that_is_not_made_yet_is_that_above_it(tmp_path):
    result = checks.disk_facts("worktrees", tmp_path / "a" / "b", min_free_bytes=5)

    assert result.free_bytes == pytest.approx(os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize, rel=0.1)
    assert (result.path, result.min_free_bytes) == (str(tmp_path / "a" / "b"), 5)


def test_a_sync_is_tried_and_leaves_nothing(state):
    result = storage(state)

    assert (result.sync_problem, result.sync_seconds, result.is_writable) == ("", 0.0, True)
    assert list(state.iterdir()) == []
    assert result.kind


def test_a_sync_that_fails_says_why(state, monkeypatch):
    def fail(_fd):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)

    assert (storage(state).sync_problem, storage(state).sync_seconds) == ("Input/output error", None)


def test_a_full_disk_is_a_failed_sync(state, monkeypatch):
    def fail(_fd, _payload):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", fail)

    assert storage(state).sync_problem == "No space left on device"


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR])
def test_where_there_are_no_files_without_a_name_the_directory_is_synced(state, monkeypatch, code):
    really_open = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, "not here")
        return really_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)

    assert storage(state).sync_problem == ""


def test_another_refusal_of_a_file_is_a_problem(state, monkeypatch):
    def refuse(_path, _flags, *_args, **_kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)

    assert storage(state).sync_problem == "Read-only file system"


def test_what_others_can_read_is_named(state):
    (state / "adw.db").touch(mode=0o600)
    (state / ".home-key").write_text("x")
    (state / ".home-key").chmod(0o640)
    (state / "1a2b3c4d").mkdir()
    (state / "1a2b3c4d" / "adw_state.json").touch(mode=0o600)
    (state / "link").symlink_to(state / ".home-key")
    state.chmod(0o755)

    assert storage(state).open_files == (str(state / ".home-key"),)
    state.chmod(0o777)
    assert storage(state).open_files == (str(state), str(state / ".home-key"))


def test_a_file_of_somebody_else_is_named(state, monkeypatch):
    (state / "adw.db").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    assert storage(state).owner_problem == f"{state} belongs to another user than the one who runs adw"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert storage(state).owner_problem == "", "root may use everybody's"


def test_a_directory_that_cannot_be_written_is_not_tried(state, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)

    result = storage(state)

    assert (result.is_writable, result.sync_seconds) == (False, None)


def test_without_a_table_of_mounts_the_file_system_is_not_known(state, monkeypatch, tmp_path):
    monkeypatch.setattr(checks, "MOUNT_TABLE", tmp_path / "nothing")

    assert storage(state).kind == ""
