"""Writing and reading single state files on a real disk, with the disk failing at every step."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adws.adw_modules import durable_file
from adws.adw_modules.atomic_state import AtomicStateWriter
from adws.adw_modules.errors import (
    DurabilityUnknown,
    NewerVersion,
    StateCorrupt,
    StateInvalid,
    StateNotFound,
    StateReadFailed,
    StateUnserialisable,
    StateWriteFailed,
    UnsafePath,
    UsageError,
)
from adws.adw_modules.store import serialization

STATE = {"adw_id": "1a2b3c4d", "issue_number": 7, "state_version": "3.0", "note": "ü"}
NEWER = {**STATE, "note": "second"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "adw_state.json"


def names_beside(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# --- round trips and format ------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(path):
    AtomicStateWriter.write(path, STATE)

    assert AtomicStateWriter.read(path) == STATE
    assert names_beside(path) == ["adw_state.json"]


def test_paths_may_be_text_and_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    AtomicStateWriter.write("adw_state.json", STATE)
    AtomicStateWriter.write("a/b/adw_state.json", STATE)

    assert AtomicStateWriter.read("adw_state.json") == STATE
    assert AtomicStateWriter.read(str(tmp_path / "a/b/adw_state.json")) == STATE


def test_the_file_is_json_with_one_key_a_line_and_its_checksum_last(path):
    AtomicStateWriter.write(path, STATE)
    lines = path.read_text(encoding="utf-8").splitlines()

    assert ' "note": "ü",' in lines
    assert lines[-2].startswith(' "checksum": "sha256:')
    assert {key: value for key, value in json.loads(path.read_text()).items() if key != "checksum"} == STATE


def test_an_empty_state_has_a_checksum_too(path):
    AtomicStateWriter.write(path, {})

    assert serialization.verify_checksum(path.read_bytes()) is serialization.Seal.GOOD
    assert serialization.parse(path.read_bytes()) == {}


@pytest.mark.parametrize(
    "data",
    [{}, {"rows": [1, {"a": None}], "rate": 0.5}, {"adw_id": "not a document", "note": "ü"}, {"issue_number": 7}],
    ids=["empty", "nested", "with-an-id", "with-a-number"],
)
def test_any_json_object_is_written_and_read_back_as_it_is(path, data):
    AtomicStateWriter.write(path, data)

    assert AtomicStateWriter.read(path) == data


def test_any_mapping_can_be_written_and_is_not_changed(path):
    data = MappingProxyType(dict(STATE))
    AtomicStateWriter.write(path, data)

    assert AtomicStateWriter.read(path) == dict(data) == STATE


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text().filter(lambda key: key != "checksum"), JSON_VALUES, max_size=5))
@settings(deadline=None)
def test_text_of_any_json_comes_back_the_same_with_a_good_checksum(data):
    sealed = serialization.add_checksum(serialization.to_bytes(data))

    assert serialization.verify_checksum(sealed) is serialization.Seal.GOOD
    assert serialization.parse(sealed) == data
    assert json.loads(sealed)["checksum"].startswith("sha256:")


# --- values that would not come back the same ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (datetime(2026, 1, 31, tzinfo=UTC), "phases[1].at is a datetime"),
        ((1, 2), "phases[1].at is a tuple"),
        ({1, 2}, "phases[1].at is a set"),
        (b"x", "phases[1].at is a bytes"),
        (float("nan"), "phases[1].at is nan"),
        (float("-inf"), "phases[1].at is -inf"),
        ({1: "x"}, "phases[1].at has the key 1"),
        ({None: "x"}, "phases[1].at has the key None"),
        ("half \ud83d", "phases[1].at' holds half a character"),
        (10**5000, "cannot be written as JSON"),
    ],
    ids=["datetime", "tuple", "set", "bytes", "nan", "inf", "int-key", "none-key", "surrogate", "huge-int"],
)
def test_a_value_that_would_not_come_back_the_same_is_refused_by_name(path, value, named):
    AtomicStateWriter.write(path, STATE)

    with pytest.raises(StateUnserialisable) as caught:
        AtomicStateWriter.write(path, {**STATE, "phases": [{}, {"at": value}]})
    assert named in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    assert AtomicStateWriter.read(path) == STATE


def test_a_value_that_contains_itself_is_refused(path):
    loop: list = []
    loop.append(loop)

    with pytest.raises(StateUnserialisable, match="contains itself"):
        AtomicStateWriter.write(path, {**STATE, "loop": loop})
    assert not path.parent.exists()


@pytest.mark.parametrize("state", [[1], None, "text", 7])
def test_a_state_that_is_no_mapping_is_refused_in_a_sentence(path, state):
    with pytest.raises(StateUnserialisable, match=f"the state is a {type(state).__name__}, not a mapping: give a dict"):
        AtomicStateWriter.write(path, state)
    assert not path.parent.exists()


def test_the_checksum_key_belongs_to_adw(path):
    with pytest.raises(StateUnserialisable, match="leave it out"):
        AtomicStateWriter.write(path, {**STATE, "checksum": "mine"})


def test_a_state_over_the_size_limit_is_refused_on_both_ways(path):
    AtomicStateWriter.write(path, {**STATE, "body": "x" * 2000})

    with pytest.raises(StateUnserialisable, match="the limit is 1000"):
        AtomicStateWriter.write(path, {**STATE, "body": "y" * 2000}, max_bytes=1000)
    with pytest.raises(StateCorrupt, match="the limit is 1000"):
        AtomicStateWriter.read(path, max_bytes=1000)
    assert AtomicStateWriter.read(path)["body"] == "x" * 2000


@pytest.mark.parametrize("name", ["", ".", "..", "some/"])
def test_a_path_without_a_file_name_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="names no file"):
        AtomicStateWriter.write(name, STATE)


# --- reading ---------------------------------------------------------------------------------------------------


def test_a_missing_file_is_not_found(path):
    with pytest.raises(StateNotFound) as caught:
        AtomicStateWriter.read(path)
    assert isinstance(caught.value, FileNotFoundError)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"{", "not JSON"),
        (b'{"adw_id": "x"', "not JSON"),
        (b"\x00" * 64, "not JSON"),
        (b"\xff\xfe{}", "not UTF-8 at byte 0"),
        (b'{"a": "\xc3"}', "not UTF-8"),
        (b"[]", "a list, not an object"),
        (b'"text"', "a string, not an object"),
        (b"12", "a number, not an object"),
        (b"null", "null, not an object"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' stands twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digit"),
        (b'{"a": 1} trailing', "not JSON"),
    ],
    ids=lambda value: None if isinstance(value, str) else value[:14].decode("latin-1"),
)
def test_content_that_is_no_state_is_corrupt_with_path_and_reason(path, content, reason):
    path.parent.mkdir()
    path.write_bytes(content)

    with pytest.raises(StateCorrupt) as caught:
        AtomicStateWriter.read(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)
    assert path.read_bytes() == content


def test_every_required_field_that_is_missing_is_named(path):
    AtomicStateWriter.write(path, {"state_version": "3.0", "note": 1})

    with pytest.raises(StateInvalid, match="adw_id, issue_number") as caught:
        AtomicStateWriter.read(path)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ('{"a": 1}', "adw_id, issue_number"),
        ('{"adw_id": "1a2b3c4d"}', "issue_number"),
        ('{"issue_number": 7}', "adw_id"),
        ('{"state_version": "2.0", "adw_id": "1a2b3c4d"}', "issue_number"),
    ],
)
def test_a_field_that_only_the_migration_filled_in_is_missing(path, text, missing):
    path.parent.mkdir()
    path.write_text(text)

    with pytest.raises(StateInvalid) as caught:
        AtomicStateWriter.read(path)
    assert str(caught.value).endswith(f"lacks required fields: {missing}")


def test_an_old_file_is_migrated_in_memory_before_fields_are_required_and_stays_as_it_was(path):
    path.parent.mkdir()
    path.write_text('{"adw_id": "1a2b3c4d", "issue_number": "42", "all_adws": ["adw_plan_iso"], "mine": 1}')
    before = (path.read_bytes(), path.stat())
    state = AtomicStateWriter.read(path)

    assert state["state_version"] == "3.0"
    assert state["issue_number"] == 42
    assert state["mine"] == 1
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before[0], before[1].st_mtime_ns)
    assert names_beside(path) == ["adw_state.json"]


def test_a_newer_file_is_refused_as_such(path):
    AtomicStateWriter.write(path, {**STATE, "state_version": "99.0"})

    with pytest.raises(NewerVersion, match="upgrade adw"):
        AtomicStateWriter.read(path)


def test_every_flipped_bit_is_noticed(path):
    AtomicStateWriter.write(path, STATE)
    good = path.read_bytes()
    for position in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            assert serialization.verify_checksum(bytes(bad)) is not serialization.Seal.GOOD
    path.write_bytes(good.replace(b"1a2b3c4d", b"1a2b3c4e"))

    with pytest.raises(StateCorrupt, match="checksum does not match"):
        AtomicStateWriter.read(path)


def test_a_file_that_may_not_be_read_is_said_to_be_so(path, monkeypatch):
    AtomicStateWriter.write(path, STATE)

    def denied(*_args, **_options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(StateReadFailed, match="Permission denied") as caught:
        AtomicStateWriter.read(path)
    assert caught.value.errno == errno.EACCES


# --- what stands at the path -----------------------------------------------------------------------------------


def put_symlink(path: Path) -> None:
    target = path.with_name("target.json")
    target.write_text("{}")
    path.symlink_to(target)


def put_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(path.parent)
        server.bind(path.name)


OBSTACLES = {
    "symlink": put_symlink,
    "dangling-symlink": lambda path: path.symlink_to("nowhere"),
    "fifo": os.mkfifo,
    "directory": lambda path: path.mkdir(),
    "socket": put_socket,
}


@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES.keys())
@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_neither_read_nor_replaced_nor_waited_for(path, obstacle):
    path.parent.mkdir()
    obstacle(path)
    before = path.lstat()

    with pytest.raises(UnsafePath, match=r"adw_state\.json"):
        AtomicStateWriter.write(path, STATE)
    with pytest.raises(UnsafePath):
        AtomicStateWriter.read(path)
    assert os.path.samestat(before, path.lstat())
    assert ".adw_state.json.tmp" not in names_beside(path)


def test_the_target_of_a_symbolic_link_is_left_alone(path):
    path.parent.mkdir()
    put_symlink(path)

    with pytest.raises(UnsafePath, match="symbolic link"):
        AtomicStateWriter.write(path, STATE)
    assert path.with_name("target.json").read_text() == "{}"


@pytest.mark.parametrize("obstacle", ["symlink", "directory", "fifo"])
@pytest.mark.timeout(20)
def test_an_obstacle_at_the_temps_name_is_refused_and_left_alone(path, obstacle):
    AtomicStateWriter.write(path, STATE)
    temp = path.with_name(".adw_state.json.tmp")
    OBSTACLES[obstacle](temp)

    with pytest.raises(UnsafePath, match=r"\.adw_state\.json\.tmp"):
        AtomicStateWriter.write(path, NEWER)
    assert temp.lstat()
    assert AtomicStateWriter.read(path) == STATE


# --- modes and left-overs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_new_files_and_directories_are_for_their_owner_alone(path, umask):
    before = os.umask(umask)
    try:
        AtomicStateWriter.write(path.parent / "deeper" / "adw_state.json", STATE)
    finally:
        os.umask(before)

    for directory in (path.parent, path.parent / "deeper"):
        assert directory.stat().st_mode & 0o777 == 0o700
    assert (path.parent / "deeper" / "adw_state.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o400])
def test_the_mode_of_a_file_is_kept(path, mode):
    AtomicStateWriter.write(path, STATE)
    path.chmod(mode)
    before = os.umask(0o077)
    try:
        AtomicStateWriter.write(path, NEWER)
    finally:
        os.umask(before)

    assert path.stat().st_mode & 0o777 == mode
    assert AtomicStateWriter.read(path) == NEWER


def test_a_temp_that_a_dead_writer_left_is_swept(path):
    AtomicStateWriter.write(path, STATE)
    path.with_name(".adw_state.json.tmp").write_text("half a docu")
    AtomicStateWriter.write(path, NEWER)

    assert AtomicStateWriter.read(path) == NEWER
    assert names_beside(path) == ["adw_state.json"]


def test_a_writer_waits_for_the_one_before_it(path):
    AtomicStateWriter.write(path, STATE)
    directory = durable_file.open_directory(str(path.parent))
    fd = durable_file.claim_temp(directory, ".adw_state.json.tmp")
    second = threading.Thread(target=AtomicStateWriter.write, args=(path, NEWER))
    second.start()
    durable_file.fill(fd, serialization.add_checksum(serialization.to_bytes({**STATE, "note": "first"})), mode=0o600)
    os.rename(".adw_state.json.tmp", path.name, src_dir_fd=directory, dst_dir_fd=directory)
    durable_file.settle(directory, fd)
    second.join(20)
    os.close(directory)

    assert not second.is_alive()
    assert AtomicStateWriter.read(path) == NEWER
    assert names_beside(path) == ["adw_state.json"]


def test_a_live_writers_temp_is_never_taken_for_a_left_over(path):
    AtomicStateWriter.write(path, STATE)
    directory = durable_file.open_directory(str(path.parent))
    fd = durable_file.claim_temp(directory, ".adw_state.json.tmp")

    with pytest.raises(durable_file.TempBusy):
        durable_file.claim_temp(directory, ".adw_state.json.tmp")
    durable_file.discard_temp(directory, ".adw_state.json.tmp", fd)
    again = durable_file.claim_temp(directory, ".adw_state.json.tmp")
    durable_file.discard_temp(directory, ".adw_state.json.tmp", again)
    os.close(directory)

    assert names_beside(path) == ["adw_state.json"]


def test_many_writers_and_readers_see_whole_files_only(path, repeat):
    AtomicStateWriter.write(path, {**STATE, "by": 0, "filler": "0" * 3000})
    rounds, trouble, done = repeat(25, 500), [], threading.Event()

    def write(number: int) -> None:
        try:
            for _ in range(rounds):
                AtomicStateWriter.write(path, {**STATE, "by": number, "filler": str(number) * (2000 + number)})
        except BaseException as exc:  # noqa: BLE001 - told to the test below
            trouble.append(exc)

    def read() -> None:
        try:
            while not done.is_set():
                state = AtomicStateWriter.read(path)
                assert set(state["filler"]) == {str(state["by"])}
        except BaseException as exc:  # noqa: BLE001 - told to the test below
            trouble.append(exc)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    reader = threading.Thread(target=read)
    reader.start()
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done.set()
    reader.join()

    assert trouble == []
    assert names_beside(path) == ["adw_state.json"]


# --- a failing disk --------------------------------------------------------------------------------------------


def fail_once(monkeypatch, name: str, error: BaseException, *, call: int = 1) -> list[int]:
    """Let the *call*-th `os.<name>` raise *error*; the returned list grows with each call."""
    real, calls = getattr(os, name), []

    def failing(*args, **options):
        calls.append(1)
        if len(calls) == call:
            raise error
        return real(*args, **options)

    monkeypatch.setattr(os, name, failing)
    return calls


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE])
@pytest.mark.parametrize(("name", "call"), [("open", 2), ("write", 1), ("fchmod", 1), ("fsync", 1), ("rename", 1)])
def test_an_error_before_the_rename_leaves_the_old_file_and_no_temp(path, monkeypatch, name, call, code):
    AtomicStateWriter.write(path, STATE)
    before = open_descriptors()
    with monkeypatch.context() as patch:
        calls = fail_once(patch, name, OSError(code, os.strerror(code)), call=call)
        with pytest.raises(StateWriteFailed) as caught:
            AtomicStateWriter.write(path, NEWER)

    assert len(calls) >= call
    assert caught.value.errno == code
    assert str(path) in str(caught.value)
    assert AtomicStateWriter.read(path) == STATE
    assert names_beside(path) == ["adw_state.json"]
    assert open_descriptors() == before


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_an_error_after_the_rename_is_told_apart_and_the_sync_is_not_repeated(path, monkeypatch, code):
    AtomicStateWriter.write(path, STATE)
    before = open_descriptors()
    with monkeypatch.context() as patch:
        calls = fail_once(patch, "fsync", OSError(code, os.strerror(code)), call=2)
        with pytest.raises(DurabilityUnknown) as caught:
            AtomicStateWriter.write(path, NEWER)

    assert len(calls) == 2
    assert caught.value.errno == code
    assert AtomicStateWriter.read(path) == NEWER
    assert names_beside(path) == ["adw_state.json"]
    assert open_descriptors() == before


@pytest.mark.parametrize("name", ["write", "fchmod", "fsync", "rename"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
def test_an_interrupt_in_the_middle_leaves_no_temp_and_no_descriptor(path, monkeypatch, name, error):
    AtomicStateWriter.write(path, STATE)
    before = open_descriptors()
    with monkeypatch.context() as patch:
        fail_once(patch, name, error())
        with pytest.raises(error):
            AtomicStateWriter.write(path, NEWER)

    assert AtomicStateWriter.read(path) == STATE
    assert names_beside(path) == ["adw_state.json"]
    assert open_descriptors() == before


def test_short_writes_are_continued_to_the_last_byte(path, monkeypatch):
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, bytes(data[:3])))
        AtomicStateWriter.write(path, STATE)

    assert AtomicStateWriter.read(path) == STATE


def test_a_disk_that_takes_no_more_bytes_is_an_error_and_not_an_endless_loop(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda _fd, _data: 0)
        with pytest.raises(StateWriteFailed, match="no more bytes"):
            AtomicStateWriter.write(path, STATE)
    assert names_beside(path) == []


def test_a_file_size_limit_of_the_process_leaves_the_old_file(path):
    AtomicStateWriter.write(path, STATE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(StateWriteFailed) as caught:
            AtomicStateWriter.write(path, {**STATE, "note": "x" * 20_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)

    assert caught.value.errno == errno.EFBIG
    assert AtomicStateWriter.read(path) == STATE
    assert names_beside(path) == ["adw_state.json"]


def test_no_descriptor_is_leaked_by_success_or_refusal(path):
    AtomicStateWriter.write(path, STATE)
    before = open_descriptors()
    for _ in range(20):
        AtomicStateWriter.write(path, NEWER)
        AtomicStateWriter.read(path)
        with pytest.raises(StateNotFound):
            AtomicStateWriter.read(path.with_name("missing"))

    assert open_descriptors() == before


def test_the_order_of_a_write_is_the_one_that_survives_a_power_cut(path, monkeypatch):
    AtomicStateWriter.write(path, STATE)
    log: list[str] = []
    directories = {path.parent.stat().st_ino}

    def noted(name):
        real = getattr(os, name)

        def call(first, *args, **options):
            what = name
            if name == "fsync":
                what = "fsync directory" if os.fstat(first).st_ino in directories else "fsync file"
            log.append(what)
            return real(first, *args, **options)

        return call

    for name in ("write", "fchmod", "fsync", "rename"):
        monkeypatch.setattr(os, name, noted(name))
    AtomicStateWriter.write(path, NEWER)

    assert log == ["write", "fchmod", "fsync file", "rename", "fsync directory"]


def test_new_directories_are_synced_into_their_parents(tmp_path, monkeypatch):
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), real(fd))[1])
    AtomicStateWriter.write(tmp_path / "a" / "b" / "adw_state.json", STATE)

    for directory in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        assert directory.stat().st_ino in synced


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StateWriteFailed, match=r"file/adw_state\.json"):
        AtomicStateWriter.write(tmp_path / "file" / "adw_state.json", STATE)


KILLED = """
import os, signal, sys
from adws.adw_modules.atomic_state import AtomicStateWriter
name, path = sys.argv[1:]
real = getattr(os, name)
def kill(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(os, name, kill)
AtomicStateWriter.write(path, {"adw_id": "1a2b3c4d", "issue_number": 8, "state_version": "3.0"})
"""


@pytest.mark.parametrize("name", ["write", "fchmod", "fsync", "rename"])
def test_a_killed_writer_leaves_the_old_file_and_one_temp_that_the_next_one_sweeps(path, name):
    AtomicStateWriter.write(path, STATE)
    killed = subprocess.run([sys.executable, "-c", KILLED, name, str(path)], check=False)

    assert killed.returncode == -signal.SIGKILL
    assert AtomicStateWriter.read(path) == STATE
    assert names_beside(path) == [".adw_state.json.tmp", "adw_state.json"]
    AtomicStateWriter.write(path, NEWER)
    assert AtomicStateWriter.read(path) == NEWER
    assert names_beside(path) == ["adw_state.json"]


# --- the temp file ---------------------------------------------------------------------------------------------

TEMP = ".adw_state.json.tmp"


@pytest.fixture
def directory(tmp_path):
    fd = durable_file.open_directory(str(tmp_path))
    yield fd
    os.close(fd)


@pytest.mark.parametrize("is_held", [True, False])
def test_a_temp_that_is_cleared_between_its_open_and_its_lock_is_made_again(directory, tmp_path, monkeypatch, is_held):
    real, thieves = fcntl.flock, []

    def robbed(fd, operation):
        if not thieves:
            thieves.append(os.open(TEMP, os.O_RDONLY, dir_fd=directory))
            real(thieves[0], fcntl.LOCK_EX)
            (tmp_path / TEMP).unlink()
            if not is_held:
                real(thieves[0], fcntl.LOCK_UN)
        return real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", robbed)
    fd = durable_file.claim_temp(directory, TEMP)

    assert durable_file.is_at(directory, TEMP, fd)
    assert os.fstat(fd).st_nlink == 1
    durable_file.discard_temp(directory, TEMP, fd)
    os.close(thieves[0])


def test_an_interrupt_while_the_temp_is_locked_leaves_none(directory, tmp_path, monkeypatch):
    def interrupt(_fd, _operation):
        raise KeyboardInterrupt

    monkeypatch.setattr(fcntl, "flock", interrupt)
    before = open_descriptors()
    with pytest.raises(KeyboardInterrupt):
        durable_file.claim_temp(directory, TEMP)

    assert list(tmp_path.iterdir()) == []
    assert open_descriptors() == before


def test_a_temp_that_cannot_be_removed_does_not_hide_the_first_error_and_is_swept_later(path, monkeypatch):
    AtomicStateWriter.write(path, STATE)
    with monkeypatch.context() as patch:
        fail_once(patch, "rename", OSError(errno.EIO, "the first error"))
        fail_once(patch, "unlink", OSError(errno.EROFS, "the second error"))
        with pytest.raises(StateWriteFailed, match="the first error"):
            AtomicStateWriter.write(path, NEWER)
    assert names_beside(path) == [TEMP, "adw_state.json"]

    AtomicStateWriter.write(path, NEWER)
    assert names_beside(path) == ["adw_state.json"]


def test_a_close_that_was_interrupted_is_a_close(path, monkeypatch):
    real = os.close

    def interrupted(fd):
        monkeypatch.setattr(os, "close", real)
        real(fd)
        raise InterruptedError(errno.EINTR, "Interrupted system call")

    AtomicStateWriter.write(path, STATE)
    monkeypatch.setattr(os, "close", interrupted)
    AtomicStateWriter.write(path, NEWER)

    assert AtomicStateWriter.read(path) == NEWER


def test_a_file_that_grows_while_it_is_read_stops_at_the_limit(path, monkeypatch):
    AtomicStateWriter.write(path, STATE)
    real = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: real(fd, size) or b"x" * 1000)

    with pytest.raises(StateCorrupt, match="grew past the limit"):
        AtomicStateWriter.read(path, max_bytes=5000)


def test_a_directory_below_nothing_cannot_be_made(monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(StateWriteFailed):
        AtomicStateWriter.write("deeper/adw_state.json", STATE)


def test_only_an_indented_object_can_be_sealed():
    with pytest.raises(ValueError, match="indented JSON object"):
        serialization.add_checksum(b'{"a": 1}')
