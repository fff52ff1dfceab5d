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


def storage(place, level="problem"):
    """Return what is found of *level*, but for the type of the file system."""
    _, *result = checks.storage(place, has_sqlite=True, clock=FakeClock())
    return [one.what for one in result if one.level == level]


def test_a_sync_is_tried_and_leaves_nothing(state):
    assert storage(state, "ok") == [f"what is written in {state} is synced in 0.0 ms"]
    assert storage(state) == []
    assert list(state.iterdir()) == []


def test_a_slow_disk_is_named(state, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(os, "fsync", lambda _fd: clock.advance(0.2))

    assert [one.fix for one in checks.storage(state, has_sqlite=False, clock=clock) if "takes 0.40 s" in one.what] == [
        "use a faster disk: set state.dir"
    ]


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("fsync", errno.EIO, "Input/output error"),
        ("write", errno.ENOSPC, "No space left on device"),
        ("open", errno.EROFS, "Read-only file system"),
    ],
)
def test_a_sync_that_fails_says_why(state, monkeypatch, call, code, said):
    def fail(*_args, **_kwargs):
        raise OSError(code, said)

    monkeypatch.setattr(os, call, fail)

    assert storage(state) == [f"what is written in {state} cannot be synced: {said}"]


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR])
def test_where_there_are_no_files_without_a_name_the_directory_is_synced(state, monkeypatch, code):
    really_open = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, "not here")
        return really_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)

    assert storage(state) == []


def test_what_others_can_read_is_named(state):
    (state / "adw.db").touch(mode=0o600)
    (state / ".home-key").write_text("x")
    (state / ".home-key").chmod(0o640)
    (state / "1a2b3c4d").mkdir()
    (state / "1a2b3c4d" / "adw_state.json").touch(mode=0o600)
    (state / "link").symlink_to(state / ".home-key")
    state.chmod(0o755)

    assert storage(state, "warning") == [f"others on this machine can read {state / '.home-key'}"]
    state.chmod(0o777)
    assert storage(state, "warning") == [f"others on this machine can read {state}, {state / '.home-key'}"]


def test_a_file_of_somebody_else_is_named(state, monkeypatch):
    (state / "adw.db").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    assert storage(state) == [f"{state} belongs to another user than the one who runs adw"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert storage(state) == [], "root may use everybody's"


def test_a_directory_that_cannot_be_written_is_not_tried(state, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)

    assert storage(state) == [f"{state} cannot be written"]
    assert storage(state, "ok") == []


def test_without_a_table_of_mounts_the_file_system_is_not_known(state, monkeypatch, tmp_path):
    monkeypatch.setattr(checks, "MOUNT_TABLE", tmp_path / "nothing")

    first = next(checks.storage(state, has_sqlite=True, clock=FakeClock()))

    assert first.what == f"{state} is on a file system that cannot be told"
