"""The key of a home is made once, by the first process, and is not made again over a broken one."""

from __future__ import annotations

import pytest

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.errors import StateCorrupt, StateReadFailed, StateWriteFailed, UnsafePath
from adws.adw_modules.forge import text as forge_text
from adws.testing import FakeClock
from tests import forked


def test_a_key_is_made_once_and_is_for_its_owner_alone(tmp_path):
    path = tmp_path / "state" / forge_text.KEY_NAME

    key = forge_text.read_or_make(path, clock=SystemClock())

    assert len(key) == 32
    assert forge_text.read_or_make(path, clock=SystemClock()) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_processes_that_make_it_at_once_get_the_same(tmp_path):
    path = tmp_path / forge_text.KEY_NAME

    def work(number):
        (tmp_path / f"key-{number}").write_bytes(forge_text.read_or_make(path, clock=FakeClock(seed=number)))

    children = [forked.start(lambda number=number: work(number)) for number in range(8)]
    ends = [forked.is_well(child) for child in children]
    assert all(ends)

    assert len({(tmp_path / f"key-{number}").read_bytes() for number in range(8)}) == 1


def test_the_first_process_keeps_its_key(tmp_path, monkeypatch):
    path = tmp_path / forge_text.KEY_NAME
    first = forge_text.read_or_make(path, clock=FakeClock(seed=1))

    forge_text._make(path, b"0" * 64)

    assert forge_text.read_or_make(path, clock=FakeClock(seed=2)) == first


@pytest.mark.parametrize("text", ["", "short", "zz" * 32, "00" * 33, "x" * 5000, "\udcff"])
def test_a_broken_key_is_told_and_kept(tmp_path, text):
    path = tmp_path / forge_text.KEY_NAME
    path.write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(StateCorrupt, match="bring the old file back"):
        forge_text.read_or_make(path, clock=SystemClock())
    assert path.read_bytes() == text.encode("utf-8", "surrogateescape")


def test_a_link_or_a_directory_is_not_followed(tmp_path):
    (tmp_path / "there").write_text("00" * 32)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "there")

    with pytest.raises(UnsafePath):
        forge_text.read_or_make(link, clock=SystemClock())
    with pytest.raises(StateReadFailed):
        forge_text.read_or_make(tmp_path / "there" / "below", clock=SystemClock())


def test_a_directory_in_the_way_is_told(tmp_path):
    (tmp_path / f"{forge_text.KEY_NAME}.tmp").mkdir()

    with pytest.raises(UnsafePath, match="move it away"):
        forge_text.read_or_make(tmp_path / forge_text.KEY_NAME, clock=SystemClock())


def test_a_place_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(forge_text.os, "link", _no_space)

    with pytest.raises(StateWriteFailed, match="No space left"):
        forge_text.read_or_make(tmp_path / forge_text.KEY_NAME, clock=SystemClock())
    assert list(tmp_path.iterdir()) == []


def _no_space(*_args, **_kwargs):
    raise OSError(28, "No space left on device")
