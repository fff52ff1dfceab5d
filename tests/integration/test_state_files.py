"""Documents in files: what a reader finds and what a writer does when files are lost, damaged, edited or taken over."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from adws.adw_modules import document as document_module
from adws.adw_modules import durable_file
from adws.adw_modules.atomic_state import AtomicStateWriter
from adws.adw_modules.errors import (
    DurabilityUnknown,
    Fenced,
    MigrationError,
    NewerVersion,
    StateConflict,
    StateCorrupt,
    StateError,
    StateExists,
    StateNotFound,
    StateReadFailed,
    StateUnserialisable,
    StateWriteFailed,
    UnsafePath,
)
from adws.adw_modules.events import Event
from adws.adw_modules.store import serialization
from adws.adw_modules.store.files import OUTBOX_WITHOUT_PROJECTION, FileStateStore
from adws.adw_modules.store.serialization import Revision
from adws.testing import FakeClock
from tests import sampling
from tests.contracts.store_contract import ADW_ID, new_document

DOCUMENT, PREVIOUS = "adw_state.json", "adw_state.json.prev"


class RecordingProjection:
    """A projection that notes what it gets; `commit` brings its copy up."""

    def __init__(self):
        self.writes: list[Revision] = []
        self.copies: dict[str, bytes] = {}
        self.confirmed: dict[str, int] = {}

    def update(self, revision, *, may_collect=False):
        self.writes.append(revision)

    def commit(self):
        for write in self.writes:
            self.copies[write.document.adw_id] = write.body
            self.confirmed[write.document.adw_id] = write.document.revision

    def confirmed_revision(self, adw_id):
        return self.confirmed.get(adw_id, 0)

    def copy_of(self, adw_id):
        return self.copies.get(adw_id)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def make(root, clock):
    """`make()` opens a further store on the same files, as another process would."""

    def make(**options):
        return FileStateStore(root, clock=clock, **options)

    return make


@pytest.fixture
def store(make):
    return make()


@pytest.fixture
def folder(root):
    return root / ADW_ID


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def event_types(document) -> list[str]:
    return [entry["event_type"] for entry in document.outbox]


def snapshot(folder: Path) -> dict:
    """Everything that a writer could change below *folder*."""
    return {
        str(path.relative_to(folder)): (path.lstat(), path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    } | {".": (folder.lstat().st_mtime_ns, b"")}


# --- on the disk -----------------------------------------------------------------------------------------------


def test_a_workflow_has_a_directory_with_its_document_and_its_predecessor(store, folder):
    first = store.create(new_document())
    assert names(folder) == [DOCUMENT]
    second = store.save(first, fence=1)
    third = store.save(second, fence=1)

    assert names(folder) == [DOCUMENT, PREVIOUS]
    assert json.loads((folder / PREVIOUS).read_bytes())["revision"] == 2
    assert json.loads((folder / DOCUMENT).read_bytes())["revision"] == third.revision == 3
    assert serialization.verify_checksum((folder / DOCUMENT).read_bytes()) is serialization.Seal.GOOD
    assert (folder / DOCUMENT).stat().st_nlink == 1


def test_files_and_directories_are_for_their_owner_alone(store, root, folder):
    before = os.umask(0)
    try:
        store.save(store.create(new_document()), fence=1)
    finally:
        os.umask(before)

    assert [path.stat().st_mode & 0o777 for path in (root, folder)] == [0o700, 0o700]
    assert [(folder / name).stat().st_mode & 0o777 for name in names(folder)] == [0o600, 0o600]


def test_the_mode_a_person_gave_the_document_is_kept(store, folder):
    first = store.create(new_document())
    (folder / DOCUMENT).chmod(0o644)
    store.save(first, fence=1)

    assert (folder / DOCUMENT).stat().st_mode & 0o777 == 0o644


def test_people_can_read_and_grep_the_document(store, folder):
    store.create(new_document(plan_file="specs/plan.md"))

    assert ' "plan_file": "specs/plan.md",' in (folder / DOCUMENT).read_text().splitlines()


def test_what_the_store_writes_the_plain_reader_reads(store, folder):
    created = store.create(new_document())

    assert AtomicStateWriter.read(folder / DOCUMENT) == created.model_dump(mode="json", by_alias=True)


def test_there_is_no_moment_without_a_document(store, make, folder, monkeypatch):
    document = store.save(store.create(new_document()), fence=1)
    reader, seen = make(), set()
    for name in ("unlink", "link", "rename", "fsync", "write"):
        real = getattr(os, name)

        def looked(*args, real=real, **options):
            seen.add(reader.load(ADW_ID).document.revision)
            result = real(*args, **options)
            seen.add(reader.load(ADW_ID).document.revision)
            return result

        monkeypatch.setattr(os, name, looked)
    store.save(document, fence=1)

    assert seen == {2, 3}


def test_reading_writes_nothing(store, make, folder):
    store.save(store.create(new_document()), fence=1)
    (folder / DOCUMENT).write_text("{ torn")
    before = snapshot(folder)
    for reader in (store, make()):
        reader.load(ADW_ID)
        reader.exists(ADW_ID)
        list(reader.ids())

    assert snapshot(folder) == before


def test_a_step_does_not_read_the_document_again_when_nobody_else_wrote(store, monkeypatch):
    document = store.create(new_document())
    reads: list[int] = []
    real = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: (reads.append(fd), real(fd, size))[1])
    for _ in range(3):
        document = store.save(document, fence=1)

    assert reads == []


def test_a_change_of_another_process_is_seen_although_this_one_remembers(store, make):
    mine = store.create(new_document())
    theirs = make()
    theirs.save(theirs.load(ADW_ID).document, fence=1)

    with pytest.raises(StateConflict):
        store.save(mine, fence=1)
    assert store.save(store.load(ADW_ID).document, fence=1).revision == 3


def test_an_edit_in_place_with_the_old_size_and_times_is_seen(store, folder):
    document = store.save(store.create(new_document(plan_file="aaaa")), fence=1)
    path = folder / DOCUMENT
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"aaaa"', b'"bbbb"'))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    with pytest.raises(StateConflict):
        store.save(document, fence=1)


def test_a_file_that_looks_the_same_from_outside_is_told_apart_by_its_checksum(store, make, folder, monkeypatch):
    document = store.create(new_document(count=1))
    theirs = make()
    theirs.save(theirs.load(ADW_ID).document.model_copy(update={"count": 2, "revision": 1}), fence=1)
    signature = store._known[ADW_ID].signature
    real = os.fstat

    class LooksTheSame:
        st_ino, st_size, st_mtime_ns, st_ctime_ns, st_mode = signature[:5]
        st_nlink = 1

    path = folder / DOCUMENT
    monkeypatch.setattr(os, "fstat", lambda fd: LooksTheSame if os.path.samestat(real(fd), path.stat()) else real(fd))
    with pytest.raises(StateConflict):
        store.save(document, fence=1)


def test_ids_leave_out_whatever_is_no_workflow(store, root, tmp_path):
    store.create(new_document())
    (root / "README.md").write_text("hello")
    (root / "adw.db").write_text("")
    (root / "empty1").mkdir()
    (root / ".hidden").mkdir()
    (root / "has space").mkdir()
    (root / "has space" / DOCUMENT).write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / DOCUMENT).write_text("{}")
    (root / "linked").symlink_to(tmp_path / "elsewhere")

    assert list(store.ids()) == [ADW_ID]


# --- damage ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small(store, folder):
    """A workflow at revision 3 with small files: the document, its bytes, and the bytes of its predecessor."""
    store.save(store.save(store.create(new_document()), fence=1), fence=1)
    return folder / DOCUMENT, (folder / DOCUMENT).read_bytes()


def is_noticed(store) -> bool:
    """Say whether a damaged document was replaced by the last good revision, and said so."""
    loaded = store.load(ADW_ID)
    kinds = [notice.kind for notice in loaded.notices]
    return loaded.document.revision == 2 and kinds in (["corrupt", "recovered"], ["foreign", "recovered"])


def test_every_single_flipped_bit_is_noticed_and_the_last_good_revision_used(store, small):
    path, good = small
    missed = []
    with path.open("r+b", buffering=0) as file:
        for position in range(len(good)):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([good[position] ^ (1 << bit)]), position)
                if not is_noticed(store):
                    missed.append((position, bit))
            os.pwrite(file.fileno(), good[position : position + 1], position)

    assert missed == []
    assert store.load(ADW_ID).notices == ()


def test_every_truncation_is_noticed_and_the_last_good_revision_used(store, small):
    path, good = small
    missed = []
    for length in range(len(good)):
        os.truncate(path, 0)
        path.write_bytes(good[:length])
        if not is_noticed(store):
            missed.append(length)

    assert missed == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: good + b"\n",
        lambda good: good.replace(b"\n", b"\r\n"),
        lambda good: json.dumps(json.loads(good)).encode(),
        lambda good: good.replace(b'"issue_number": 7', b'"issue_number": 8'),
        lambda good: good.replace(b'"state_version": "3.0"', b'"state_version": "2.0"'),
        lambda good: good.replace(b'"state_version": "3.0",\n', b""),
        lambda good: good[: good.rindex(b",\n")] + b"\n}\n",
        lambda good: b"\0" * len(good),
        lambda good: good + good,
        lambda good: b"",
    ],
    ids=["newline", "crlf", "compact", "field", "older", "unversioned", "no-checksum", "zeros", "twice", "empty"],
)
def test_any_other_change_is_noticed_too(store, small, damage):
    path, good = small
    bad = damage(good)
    assert bad != good
    path.write_bytes(bad)

    assert is_noticed(store)
    assert store.load(ADW_ID).document.revision == 2


def test_the_good_document_of_another_workflow_is_not_taken_for_ours(store, root, folder):
    store.save(store.create(new_document()), fence=1)
    store.create(new_document("5e6f7a8b", plan_file="theirs"))
    shutil.copy(root / "5e6f7a8b" / DOCUMENT, folder / DOCUMENT)
    loaded = store.load(ADW_ID)

    assert loaded.document.adw_id == ADW_ID
    assert "'5e6f7a8b'" in loaded.notices[0].reason


def test_a_lost_document_is_replaced_by_its_predecessor_and_that_is_said(store, folder):
    store.save(store.create(new_document()), fence=1)
    (folder / DOCUMENT).unlink()
    loaded = store.load(ADW_ID)

    assert loaded.document.revision == 1
    assert [(notice.kind, Path(notice.path).name) for notice in loaded.notices] == [("recovered", PREVIOUS)]
    assert store.exists(ADW_ID)
    assert list(store.ids()) == [ADW_ID]


def test_without_any_good_revision_the_error_names_path_and_reason(store, folder):
    store.create(new_document())
    (folder / DOCUMENT).write_bytes(b'{"adw_id": "1a2b')

    with pytest.raises(StateCorrupt, match="not JSON") as caught:
        store.load(ADW_ID)
    assert str(folder / DOCUMENT) in str(caught.value)
    assert "backup" in str(caught.value)
    with pytest.raises(StateCorrupt):
        store.load(ADW_ID)
    with pytest.raises(StateExists):
        store.create(new_document())
    assert (folder / DOCUMENT).read_bytes() == b'{"adw_id": "1a2b'


def test_a_lost_document_with_a_bad_predecessor_is_corrupt_and_not_unknown(store, folder):
    store.save(store.create(new_document()), fence=1)
    (folder / DOCUMENT).unlink()
    (folder / PREVIOUS).write_text("[]")

    with pytest.raises(StateCorrupt, match=r"prev is corrupt: .*a list"):
        store.load(ADW_ID)


def test_a_document_over_the_limit_is_corrupt_and_never_read_whole(make, store, folder):
    store.save(store.create(new_document()), fence=1)
    with (folder / DOCUMENT).open("wb") as file:
        file.truncate(1 << 30)
    loaded = store.load(ADW_ID)

    assert loaded.document.revision == 1
    assert "1073741824 bytes" in loaded.notices[0].reason


def test_a_sealed_document_with_fields_of_the_wrong_kind_is_refused_by_name(store, folder):
    data = json.loads(document_module.to_bytes(new_document()))
    AtomicStateWriter.write(folder / DOCUMENT, {**data, "phases": 5})

    with pytest.raises(StateError, match="phases"):
        store.load(ADW_ID)


# --- putting it right ------------------------------------------------------------------------------------------


def aside(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"{DOCUMENT}.{kind}*"))


def test_the_next_write_keeps_a_corrupt_document_aside_and_says_so(store, folder):
    store.save(store.create(new_document()), fence=1)
    (folder / DOCUMENT).write_bytes(b"{ torn")
    saved = store.save(store.load(ADW_ID).document, fence=2)

    assert saved.revision == 2
    assert [path.name for path in aside(folder, "corrupt")] == [f"{DOCUMENT}.corrupt-20260131T090000.000000Z"]
    assert aside(folder, "corrupt")[0].read_bytes() == b"{ torn"
    assert event_types(saved)[-2:] == ["document_quarantined", "document_recovered"]
    assert saved.outbox[-2]["data"]["path"] == str(aside(folder, "corrupt")[0])
    assert "not JSON" in saved.outbox[-2]["data"]["reason"]
    assert saved.outbox[-1]["data"]["revision"] == 1
    assert store.load(ADW_ID).notices == ()
    assert json.loads((folder / PREVIOUS).read_bytes())["revision"] == 1


def test_two_corrupt_documents_of_the_same_moment_are_both_kept(store, folder):
    store.save(store.create(new_document()), fence=1)
    for text in (b"{ one", b"{ two"):
        (folder / DOCUMENT).write_bytes(text)
        store.save(store.load(ADW_ID).document, fence=2)

    assert sorted(path.read_bytes() for path in aside(folder, "corrupt")) == [b"{ one", b"{ two"]


def test_a_hand_edit_is_never_applied_and_never_lost(store, folder):
    document = store.save(store.create(new_document(plan_file="ours.md")), fence=1)
    path = folder / DOCUMENT
    edited = path.read_bytes().replace(b"ours.md", b"mine.md")
    path.write_bytes(edited)

    loaded = store.load(ADW_ID)
    assert loaded.document.plan_file == "ours.md"
    assert "changed by hand" in loaded.notices[0].reason
    with pytest.raises(StateConflict):
        store.save(document, fence=1)
    saved = store.save(loaded.document, fence=1)

    assert saved.plan_file == "ours.md"
    assert [kept.read_bytes() for kept in aside(folder, "foreign")] == [edited]
    assert event_types(saved)[-1] == "document_foreign"
    assert saved.outbox[-1]["data"]["path"] == str(aside(folder, "foreign")[0])


def test_a_lost_document_is_written_again_with_an_event(store, folder):
    store.save(store.create(new_document()), fence=1)
    (folder / DOCUMENT).unlink()
    saved = store.save(store.load(ADW_ID).document, fence=1)

    assert event_types(saved)[-1] == "document_recovered"
    assert names(folder) == [DOCUMENT, PREVIOUS]
    assert store.load(ADW_ID).document == saved


def test_a_refused_write_moves_nothing_aside(store, folder):
    first = store.save(store.create(new_document(), events=()), fence=4)
    (folder / DOCUMENT).write_bytes(b"{ torn")
    before = names(folder)
    with pytest.raises(StateConflict):
        store.save(first, fence=4)

    assert names(folder) == before


# --- the database's copy ---------------------------------------------------------------------------------------


@pytest.fixture
def projection():
    return RecordingProjection()


@pytest.fixture
def projected(make, projection):
    return make(projection=projection)


def test_each_write_is_handed_over_with_its_events(projected, projection):
    document = projected.create(new_document(), events=[Event(event_type="workflow_created")])
    saved = projected.save(document, fence=2, events=[Event(event_type="state_set")])
    first, second = projection.writes

    assert (first.document, second.document) == (document, saved)
    assert [row["event_id"] for row in second.event_rows] == [f"{ADW_ID}.2.0"]
    assert document_module.parse(json.loads(second.body)) == projected.load(ADW_ID).document


def test_events_stay_in_the_document_until_the_database_has_them(projected, projection):
    document = projected.create(new_document(), events=[Event(event_type="workflow_created")])
    document = projected.save(document, fence=1, events=[Event(event_type="state_set")])
    assert [entry["revision"] for entry in document.outbox] == [1, 2]

    projection.confirmed[ADW_ID] = 1
    document = projected.save(document, fence=1, events=[Event(event_type="state_changed")])
    assert [entry["revision"] for entry in document.outbox] == [2, 3]

    projection.confirmed[ADW_ID] = 3
    assert projected.save(document, fence=1).outbox == []


def test_without_a_projection_the_newest_events_are_kept(store):
    document = store.create(new_document())
    document = store.save(document, fence=1, events=[Event(event_type="state_set")] * 150)
    document = store.save(document, fence=1, events=[Event(event_type="state_changed")] * 150)

    assert len(document.outbox) == OUTBOX_WITHOUT_PROJECTION
    assert document.outbox[-1]["event_id"] == f"{ADW_ID}.3.149"


def test_the_copy_is_used_when_it_is_newer_than_the_predecessor(projected, projection, folder):
    document = projected.create(new_document())
    for _ in range(3):
        document = projected.save(document, fence=1)
    projection.commit()
    (folder / DOCUMENT).write_bytes(b"{ torn")
    loaded = projected.load(ADW_ID)

    assert loaded.document == document
    assert [notice.kind for notice in loaded.notices] == ["corrupt", "recovered"]
    assert "database" in loaded.notices[1].path
    assert projected.save(loaded.document, fence=1).revision == 5


def test_the_predecessor_is_used_when_the_copy_is_older_or_bad(projected, projection, folder):
    document = projected.create(new_document())
    projection.commit()
    for _ in range(3):
        document = projected.save(document, fence=1)
    (folder / DOCUMENT).unlink()
    assert projected.load(ADW_ID).document.revision == 3

    theirs = document_module.to_bytes(new_document("5e6f7a8b", revision=99))
    for bad in (b"{ torn", theirs, b"[]"):
        projection.copies[ADW_ID] = bad
        assert projected.load(ADW_ID).document.revision == 3


def test_a_lost_directory_comes_back_from_the_copy(projected, projection, folder):
    document = projected.save(projected.create(new_document()), fence=1)
    projection.commit()
    shutil.rmtree(folder)

    loaded = projected.load(ADW_ID)
    assert loaded.document == document
    assert not folder.exists(), "reading writes nothing"
    saved = projected.save(loaded.document, fence=1)
    assert event_types(saved)[-1] == "document_recovered"
    assert projected.load(ADW_ID).document == saved
    assert projected.load(ADW_ID).notices == ()


# --- older versions --------------------------------------------------------------------------------------------

WILD = (
    b'{"adw_id": "1a2b3c4d", "issue_number": "42", "branch_name": "feature-x", "all_adws": ["adw_plan_iso"], "odd": 1}'
)


@pytest.fixture
def wild(folder):
    folder.mkdir(parents=True)
    (folder / DOCUMENT).write_bytes(WILD)
    (folder / DOCUMENT).chmod(0o644)
    return folder / DOCUMENT


def test_an_older_document_is_read_as_the_current_version_and_stays_as_it_is(store, wild, folder):
    before = snapshot(folder)
    loaded = store.load(ADW_ID)

    assert loaded.document.state_version == "3.0"
    assert loaded.document.issue_number == 42
    assert loaded.document.model_extra["odd"] == 1
    assert [(notice.kind, notice.path) for notice in loaded.notices] == [("migrated", str(wild))]
    assert "1.0" in loaded.notices[0].reason
    assert store.load(ADW_ID).document.branch_name == "feature-x"
    assert snapshot(folder) == before


def test_the_next_write_keeps_a_backup_of_the_older_document(store, wild, folder):
    saved = store.save(store.load(ADW_ID).document, fence=1)

    assert (folder / f"{DOCUMENT}.v1.0.bak").read_bytes() == WILD
    assert [entry["data"] for entry in saved.outbox if entry["event_type"] == "state_migrated"] == [
        {"from": "1.0", "to": "3.0", "backup": str(folder / f"{DOCUMENT}.v1.0.bak")}
    ]
    assert store.load(ADW_ID).notices == ()
    again = store.save(saved, fence=1)
    assert names(folder) == [DOCUMENT, PREVIOUS, f"{DOCUMENT}.v1.0.bak"]
    assert event_types(again).count("state_migrated") == 1


def test_a_backup_is_never_overwritten(store, wild, folder):
    (folder / f"{DOCUMENT}.v1.0.bak").write_text("an older one")
    store.save(store.load(ADW_ID).document, fence=1)

    assert (folder / f"{DOCUMENT}.v1.0.bak").read_text() == "an older one"
    assert (folder / f"{DOCUMENT}.v1.0.2.bak").read_bytes() == WILD


def test_a_newer_document_is_refused_and_left_alone(store, folder):
    data = json.loads(document_module.to_bytes(new_document()))
    AtomicStateWriter.write(folder / DOCUMENT, {**data, "state_version": "4.0"})
    before = (folder / DOCUMENT).read_bytes()

    for call in (lambda: store.load(ADW_ID), lambda: store.save(new_document(), fence=9)):
        with pytest.raises(NewerVersion):
            call()
    assert (folder / DOCUMENT).read_bytes() == before
    assert names(folder) == [DOCUMENT]


def test_an_older_document_that_cannot_be_brought_up_says_why(store, folder):
    folder.mkdir(parents=True)
    (folder / DOCUMENT).write_text('{"adw_id": "1a2b3c4d", "state_version": "0.1"}')

    with pytest.raises(MigrationError, match=r"0\.1"):
        store.load(ADW_ID)


# --- what is no file -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
@pytest.mark.parametrize("name", [DOCUMENT, ".adw_state.json.tmp.1"])
@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_refused_without_waiting(store, folder, tmp_path, kind, name):
    document = store.save(store.create(new_document()), fence=1)
    path, target = folder / name, tmp_path / "target"
    target.write_text("theirs")
    path.unlink(missing_ok=True)
    {"symlink": lambda: path.symlink_to(target), "fifo": lambda: os.mkfifo(path), "directory": path.mkdir}[kind]()

    with pytest.raises((UnsafePath, Fenced)) as caught:
        store.save(document, fence=1)
    assert isinstance(caught.value, Fenced) == (kind == "directory" and name != DOCUMENT)
    if name == DOCUMENT:
        with pytest.raises(UnsafePath, match=r"adw_state\.json"):
            store.load(ADW_ID)
        with pytest.raises(StateExists):
            store.create(new_document())
    assert target.read_text() == "theirs"


@pytest.mark.parametrize("kind", ["symlink", "file"])
def test_a_workflows_directory_must_be_a_real_one(store, root, folder, tmp_path, kind):
    store.create(new_document("5e6f7a8b"))
    if kind == "symlink":
        folder.symlink_to(root / "5e6f7a8b")
    else:
        folder.write_text("")
    calls = [
        lambda: store.load(ADW_ID),
        lambda: store.save(new_document(), fence=1),
        lambda: store.create(new_document()),
        lambda: store.revoke_writers(ADW_ID, fence=1),
        lambda: store.sweep(ADW_ID),
    ]
    for call in calls:
        with pytest.raises(UnsafePath, match="not a real directory"):
            call()


def test_a_document_that_may_not_be_read_is_not_taken_for_corrupt(store, folder, monkeypatch):
    store.save(store.create(new_document()), fence=1)
    real = os.open

    def denied(path, flags, *args, **options):
        if path == DOCUMENT:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(StateReadFailed, match="Permission denied"):
        store.load(ADW_ID)


# --- creating --------------------------------------------------------------------------------------------------


def test_a_directory_that_only_holds_a_lock_is_no_workflow_and_can_become_one(store, folder):
    folder.mkdir(parents=True)
    (folder / ".lock").write_text("")
    assert not store.exists(ADW_ID)
    store.create(new_document())

    assert names(folder) == [".lock", DOCUMENT]


@pytest.mark.parametrize("name", [DOCUMENT, PREVIOUS])
def test_an_id_is_taken_also_by_what_is_left_of_a_document(store, folder, name):
    folder.mkdir(parents=True)
    (folder / name).write_text("{ torn")

    with pytest.raises(StateExists):
        store.create(new_document())
    assert names(folder) == [name]


def test_a_new_workflow_is_synced_into_the_root(store, root, folder, monkeypatch):
    folder.mkdir(parents=True)  # as whoever takes the lock first leaves it
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), real(fd))[1])
    store.create(new_document())

    assert [path.stat().st_ino for path in (folder / DOCUMENT, folder, root)] == synced


def test_a_creator_that_was_overtaken_at_the_last_moment_overwrites_nothing(store, make, folder, monkeypatch):
    folder.mkdir(parents=True)  # so that the first sync is that of the new document
    real, created = os.fsync, []

    def overtaken(fd):
        monkeypatch.setattr(os, "fsync", real)
        created.append(make().create(new_document(fence=2, plan_file="faster")))
        real(fd)

    monkeypatch.setattr(os, "fsync", overtaken)
    with pytest.raises(StateExists):
        store.create(new_document(fence=1, plan_file="slower"))

    assert store.load(ADW_ID).document == created[0]
    assert names(folder) == [DOCUMENT]


def test_a_creation_that_was_killed_can_be_made_again(store, folder):
    folder.mkdir(parents=True)
    (folder / ".adw_state.json.tmp.1").write_text('{"half')
    store.create(new_document())

    assert names(folder) == [DOCUMENT]


# --- fences ----------------------------------------------------------------------------------------------------


def test_a_left_over_temp_of_a_dead_writer_with_our_fence_is_cleared(store, folder):
    document = store.create(new_document())
    (folder / ".adw_state.json.tmp.1").write_text("half")

    assert store.save(document, fence=1).revision == 2
    assert names(folder) == [DOCUMENT, PREVIOUS]


def test_a_live_writer_with_our_fence_is_not_disturbed(store, folder):
    document = store.create(new_document())
    temp = folder / ".adw_state.json.tmp.1"
    with temp.open("w") as live:
        live.write("working on it")
        fcntl.flock(live, fcntl.LOCK_EX)
        with pytest.raises(StateConflict):
            store.save(document, fence=1)

        assert temp.exists()
    assert store.save(document, fence=1).revision == 2


def test_fencing_out_takes_a_half_made_temp_away(store, folder):
    store.create(new_document())
    (folder / ".adw_state.json.tmp.1").write_text("half")
    store.revoke_writers(ADW_ID, fence=1)

    assert (folder / ".adw_state.json.tmp.1").is_dir()


def test_sweeping_removes_temps_and_fences_and_nothing_else(store, folder):
    document = store.save(store.create(new_document()), fence=1)
    (folder / ".lock").write_text("")
    (folder / ".adw_state.json.tmp.9").write_text("half")
    store.revoke_writers(ADW_ID, fence=3)
    assert len(names(folder)) == 7
    store.sweep(ADW_ID)
    store.sweep("5e6f7a8b")

    assert names(folder) == [".lock", DOCUMENT, PREVIOUS]
    assert store.load(ADW_ID).document == document


#: Every call through which a save touches the disk.
CALLS = ("open", "fstat", "stat", "write", "fchmod", "fsync", "unlink", "link", "rename", "close", "read", "pread")


def run_at_call(monkeypatch, number: int, action) -> list[str]:
    """Run *action* once, right before the *number*-th system call that this thread makes from now on."""
    me, seen = threading.get_ident(), []

    def wrap(name):
        real = getattr(os, name)

        def call(*args, **options):
            if threading.get_ident() == me:
                seen.append(name)
                if len(seen) == number:
                    action()
            return real(*args, **options)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, wrap(name))
    return seen


def in_another_thread(function):
    """Return *function* so that it runs to its end in a thread of its own."""

    def run() -> None:
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()

    return run


def calls_of_a_save(make, monkeypatch, **options) -> int:
    store = make(**options)
    document = store.save(store.create(new_document("cafe0000")), fence=1)
    with monkeypatch.context() as patch:
        seen = run_at_call(patch, 0, lambda: None)
        store.save(document, fence=1)
    return len(seen)


@pytest.mark.parametrize("state", ["good", "corrupt", "missing"])
def test_an_owner_stopped_before_any_system_call_never_overwrites_its_successor(make, monkeypatch, root, state):
    refused = 0
    for number in range(1, calls_of_a_save(make, monkeypatch) + 20):
        adw_id = f"{number:08x}"
        former, successor, after = make(), make(), []
        former.save(former.create(new_document(adw_id)), fence=1)
        if state == "corrupt":
            (root / adw_id / DOCUMENT).write_bytes(b"{ torn")
        if state == "missing":
            (root / adw_id / DOCUMENT).unlink()
        document = former.load(adw_id).document

        def take_over(adw_id=adw_id, successor=successor, after=after):
            successor.revoke_writers(adw_id, fence=1)
            value = successor.load(adw_id).document
            after.append(successor.save(value.model_copy(update={"plan_file": "successor"}), fence=2))

        with monkeypatch.context() as patch:
            run_at_call(patch, number, in_another_thread(take_over))
            try:
                late = former.save(document.model_copy(update={"plan_file": "former"}), fence=1)
            except (Fenced, StateConflict):
                refused += 1
                late = None
        if not after:
            take_over()
        final = make().load(adw_id)

        assert final.document == after[0], f"stopped before call {number}"
        assert final.notices == ()
        assert late is None or after[0].revision == late.revision + 1, "the successor built on what it was told"
    assert refused > 8


def test_a_fence_never_ends_up_in_the_place_of_a_lost_document(make, monkeypatch, root):
    for number in range(1, calls_of_a_save(make, monkeypatch) + 20):
        adw_id = f"{number:08x}"
        store = make()
        store.save(store.create(new_document(adw_id)), fence=1)
        (root / adw_id / DOCUMENT).unlink()
        document = store.load(adw_id).document
        revoke_writers = in_another_thread(lambda adw_id=adw_id: make().revoke_writers(adw_id, fence=1))
        with monkeypatch.context() as patch, contextlib.suppress(Fenced):
            run_at_call(patch, number, revoke_writers)
            store.save(document, fence=1)

        assert not (root / adw_id / DOCUMENT).is_dir(), f"fenced out before call {number}"
        assert make().load(adw_id).document.adw_id == adw_id


def test_a_stopped_owner_can_only_make_the_predecessor_the_present_document(make, monkeypatch, folder):
    former, successor = make(), make()
    document = former.save(former.create(new_document()), fence=1)

    def take_over():
        successor.revoke_writers(ADW_ID, fence=1)
        value = successor.load(ADW_ID).document
        for _ in range(3):
            value = successor.save(value, fence=2)

    with monkeypatch.context() as patch:
        real = os.link

        def stopped(*args, **options):
            patch.setattr(os, "link", real)
            in_another_thread(take_over)()
            return real(*args, **options)

        patch.setattr(os, "link", stopped)
        with pytest.raises(Fenced):
            former.save(document, fence=1)

    assert json.loads((folder / DOCUMENT).read_bytes())["revision"] == 5
    assert json.loads((folder / PREVIOUS).read_bytes())["revision"] == 4


# --- a failing disk --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code"),
    sampling.each_value_once(["good", "read before", "corrupt", "legacy"], [errno.EIO, errno.ENOSPC, errno.EDQUOT]),
)
def test_a_failure_of_any_system_call_leaves_a_whole_revision_and_no_temp(make, root, monkeypatch, kind, code):
    outcomes = set()
    for number in range(1, calls_of_a_save(make, monkeypatch) + 40):
        adw_id = f"{number:08x}"
        store = make()
        store.save(store.create(new_document(adw_id)), fence=1)
        if kind == "read before":
            store = make()
        if kind == "corrupt":
            (root / adw_id / DOCUMENT).write_bytes(b"{ torn")
        if kind == "legacy":
            (root / adw_id / DOCUMENT).write_bytes(WILD.replace(ADW_ID.encode(), adw_id.encode()))
        document = store.load(adw_id).document
        descriptors = len(list(Path("/proc/self/fd").iterdir()))

        def fail():
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            run_at_call(patch, number, fail)
            try:
                store.save(document, fence=1)
                outcome = "saved"
            except StateError as exc:
                outcome = type(exc).__name__
        outcomes.add(outcome)
        value = make().load(adw_id).document

        allowed = {"saved": (1,), "StateWriteFailed": (0,), "StateReadFailed": (0,), "DurabilityUnknown": (1,)}
        assert value.revision - document.revision in allowed[outcome], f"call {number}: {outcome}"
        assert [name for name in names(root / adw_id) if "tmp" in name] == []
        # A failed close leaves the descriptor open here, because the real close was not called.
        assert len(list(Path("/proc/self/fd").iterdir())) - descriptors <= 1
        assert make().save(value, fence=1).revision == value.revision + 1
    assert outcomes >= {"saved", "StateWriteFailed", "DurabilityUnknown"}


def test_a_write_whose_sync_failed_is_read_again_before_the_next_one(store, monkeypatch):
    document = store.create(new_document())
    real, calls = os.fsync, []

    def failing(fd):
        calls.append(fd)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(DurabilityUnknown):
            store.save(document.model_copy(update={"plan_file": "x"}), fence=1)
    assert len(calls) == 2, "a failed sync is not repeated"
    assert ADW_ID not in store._known

    with pytest.raises(StateConflict):
        store.save(document, fence=1)
    assert store.load(ADW_ID).document.plan_file == "x"
    assert store.save(store.load(ADW_ID).document, fence=1).revision == 3


def test_a_write_that_failed_hands_nothing_over(projected, projection, monkeypatch):
    document = projected.create(new_document())
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_args, **_options: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
        with pytest.raises(StateWriteFailed, match="old revision is intact"):
            projected.save(document, fence=1)

    assert [write.document.revision for write in projection.writes] == [1]


def test_an_interrupt_leaves_no_temp(store, folder, monkeypatch):
    document = store.create(new_document())

    def interrupt(_fd):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.save(document, fence=1)

    assert names(folder) == [DOCUMENT]
    assert store.save(document, fence=1).revision == 2


def test_a_directory_that_is_removed_under_a_writer_is_a_failed_write_and_not_a_takeover(store, folder, monkeypatch):
    document = store.create(new_document())
    real = os.rename

    def removed(*args, **options):
        shutil.rmtree(folder)
        return real(*args, **options)

    monkeypatch.setattr(os, "rename", removed)
    with pytest.raises(StateWriteFailed):
        store.save(document, fence=1)


# --- secrets and size ------------------------------------------------------------------------------------------


def test_secrets_reach_neither_the_file_nor_the_events_nor_the_returned_document(make, projection, folder):
    store = make(projection=projection, scrub=lambda text: text.replace(b"hunter2", b"[redacted]"))
    document = store.create(new_document(plan_file="hunter2"), events=[Event(event_type="state_set")])
    assert document.plan_file == "[redacted]"
    saved = store.save(document, fence=1, events=[Event(event_type="state_set", data={"old": "hunter2"})])

    assert saved.outbox[-1]["data"] == {"old": "[redacted]"}
    assert projection.writes[-1].event_rows[-1]["data"] == '{"old": "[redacted]"}'
    assert b"hunter2" not in (folder / DOCUMENT).read_bytes() + projection.writes[-1].body
    assert store.load(ADW_ID).document == saved
    assert [row["event_id"] for row in projection.writes[-1].event_rows] == [f"{ADW_ID}.2.0"]


def test_a_document_over_the_limit_is_refused_before_anything_is_written(make, folder):
    store = make(max_bytes=4000)
    document = store.create(new_document())

    with pytest.raises(StateUnserialisable, match="the limit is 4000"):
        store.save(document.model_copy(update={"plan_file": "x" * 4000}), fence=1)
    assert store.load(ADW_ID).document == document
    assert names(folder) == [DOCUMENT]


def test_not_found_is_said_by_id_and_not_by_path(store, root):
    with pytest.raises(StateNotFound) as caught:
        store.load(ADW_ID)
    assert str(root) not in str(caught.value)


# --- processes -------------------------------------------------------------------------------------------------

COUNTER = """
import sys
from pathlib import Path
from adws.adw_modules import document as documents
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.errors import StateConflict
from adws.adw_modules.store.files import FileStateStore
store = FileStateStore(Path(sys.argv[1]), clock=SystemClock())
done = 0
while done < int(sys.argv[2]):
    document = store.load("1a2b3c4d").document
    try:
        store.save(document.model_copy(update={"count": document.model_extra["count"] + 1}), fence=1)
        done += 1
    except StateConflict:
        pass
"""


def test_processes_that_count_lose_nothing_even_under_one_fence(store, root, repeat):
    each = repeat(20, 300)
    store.create(new_document(count=0))
    workers = [subprocess.Popen([sys.executable, "-c", COUNTER, str(root), str(each)]) for _ in range(4)]

    assert [worker.wait(120) for worker in workers] == [0] * 4
    assert store.load(ADW_ID).document.model_extra["count"] == 4 * each
    assert store.load(ADW_ID).document.revision == 4 * each + 1


def raising(code: int):
    def fail(*_args, **_options):
        raise OSError(code, os.strerror(code))

    return fail


def test_a_root_that_cannot_be_listed_is_said_to_be_so(make, root):
    root.write_text("a file")

    with pytest.raises(StateReadFailed, match="could not read"):
        list(make().ids())
    with pytest.raises(StateWriteFailed, match="could not write"):
        make().create(new_document())


def test_a_directory_that_cannot_be_opened_is_said_to_be_so(store, folder, monkeypatch):
    document = store.create(new_document())
    monkeypatch.setattr(os, "open", raising(errno.EACCES))

    with pytest.raises(StateReadFailed, match=f"{folder}.*Permission denied"):
        store.load(ADW_ID)
    with pytest.raises(StateWriteFailed, match=f"{folder}.*Permission denied"):
        store.save(document, fence=1)


@pytest.mark.parametrize(("name", "method"), [("mkdir", "revoke_writers"), ("listdir", "sweep")])
def test_a_fence_that_cannot_be_made_or_removed_is_an_error(store, monkeypatch, name, method):
    store.create(new_document())
    calls = {"revoke_writers": lambda: store.revoke_writers(ADW_ID, fence=1), "sweep": lambda: store.sweep(ADW_ID)}
    real = getattr(os, name)

    def full(path, *args, **options):
        if isinstance(path, int) or "dir_fd" in options:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *args, **options)

    monkeypatch.setattr(os, name, full)
    with pytest.raises(StateWriteFailed, match="No space left"):
        calls[method]()


def test_a_workflow_without_a_readable_document_can_still_be_fenced(store, folder):
    store.create(new_document())
    (folder / DOCUMENT).write_text("{ torn")
    store.revoke_writers(ADW_ID, fence=2)

    assert [name for name in names(folder) if "tmp" in name] == [f".adw_state.json.tmp.{n}" for n in (0, 1, 2)]


def test_a_directory_without_a_document_is_not_found_by_a_writer_either(store, folder):
    folder.mkdir(parents=True)

    with pytest.raises(StateNotFound, match=ADW_ID):
        store.save(new_document(), fence=1)
    assert names(folder) == []


def test_a_directory_that_vanishes_again_is_a_failed_write(store, folder, monkeypatch):
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (real(fd), shutil.rmtree(folder, ignore_errors=True)))

    with pytest.raises(StateWriteFailed, match="removed a moment after"):
        store.create(new_document())


def test_a_store_forgets_the_oldest_knowledge_before_it_grows_without_end(store, monkeypatch):
    monkeypatch.setattr("adws.adw_modules.store.files.MAX_REMEMBERED", 2)
    saved = [store.create(new_document(f"{number:08x}")) for number in range(5)]

    assert len(store._known) <= 2
    assert [store.save(document, fence=1).revision for document in saved] == [2] * 5


def test_a_scrubber_that_finds_nothing_changes_nothing(make):
    store = make(scrub=lambda text: text)
    document = store.create(new_document(plan_file="plan.md"))

    assert store.load(ADW_ID).document == document


# --- the predecessor -------------------------------------------------------------------------------------------


def third_revision(store):
    return store.save(store.save(store.create(new_document()), fence=1), fence=1)


def test_a_file_that_somebody_reads_is_left_alone(store, folder):
    document = third_revision(store)
    with (folder / PREVIOUS).open("rb") as slow_reader:
        before = slow_reader.read(10)
        store.save(document, fence=1)

        assert json.loads(before + slow_reader.read())["revision"] == 2
    assert json.loads((folder / DOCUMENT).read_bytes())["revision"] == 4
    assert json.loads((folder / PREVIOUS).read_bytes())["revision"] == 3


def test_a_file_with_a_name_of_somebody_else_is_left_alone(store, folder):
    document = third_revision(store)
    os.link(folder / PREVIOUS, folder / "a-copy-somebody-keeps")

    store.save(document, fence=1)

    assert json.loads((folder / "a-copy-somebody-keeps").read_bytes())["revision"] == 2


def test_the_predecessor_of_a_broken_document_is_not_written_over(store, make, folder, monkeypatch):
    document = third_revision(store)
    (folder / DOCUMENT).write_bytes(b"{ torn")
    document = store.load(ADW_ID).document

    def cut(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", cut)
        with pytest.raises(KeyboardInterrupt):
            store.save(document, fence=1)

    assert make().load(ADW_ID).document.revision == 2


def test_a_lock_that_an_outsider_has_on_the_predecessor_stops_no_write(store, folder):
    document = third_revision(store)
    with (folder / PREVIOUS).open("rb") as outsider:
        fcntl.flock(outsider, fcntl.LOCK_EX)
        for _ in range(3):
            document = store.save(document, fence=1)

    assert document.revision == 6
    assert names(folder) == [DOCUMENT, PREVIOUS]


def test_a_written_file_is_unlocked_though_a_forked_child_has_its_descriptor(store, folder, monkeypatch):
    document = third_revision(store)
    inherited = []
    real_settle = durable_file.settle

    def settle(directory, fd):
        inherited.append(os.dup(fd))  # it shares the lock, as the descriptor of a forked child does
        real_settle(directory, fd)

    monkeypatch.setattr(durable_file, "settle", settle)
    store.save(document, fence=1)

    with (folder / DOCUMENT).open("rb") as outsider:
        fcntl.flock(outsider, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(inherited.pop())
