"""A backup is whole or refused, and what comes back goes on above everything that was seen."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import tarfile
from pathlib import Path

import pytest

from adws.adw_modules import document as document_module
from adws.adw_modules import timestamps
from adws.adw_modules.db.migrate import connect
from adws.adw_modules.errors import (
    BackupError,
    DatabaseCorrupt,
    Fenced,
    SchemaMismatch,
    WorkflowBusy,
)
from adws.adw_modules.events import Event
from adws.adw_modules.maintenance import backup
from adws.adw_modules.maintenance.backup import (
    BackupReport,
    RestoreReport,
    make_backup,
    restore,
)
from adws.app import Home, open_home
from adws.config import load as config_load
from adws.testing import FakeClock

A, B = "aaaaaaaa", "bbbbbbbb"


@pytest.fixture(params=["files", "database"])
def kind(request):
    return request.param


class Place:
    """A home that can be opened, backed up and restored."""

    def __init__(self, path: Path, kind: str, database_url: str | None = None) -> None:
        self.path = path
        self.kind = kind
        self.env = {"ADW_HOME": str(path), "ADW_STATE_STORE": kind}
        if database_url is not None:
            self.env["ADW_DATABASE_URL"] = database_url
        path.mkdir()

    def open(self) -> Home:
        return open_home(config_load.load(env=self.env, cwd=self.path))

    def make(self, adw_id: str, issue_number: int = 42, **fields) -> None:
        with self.open() as app:
            now = timestamps.to_text(app.clock.now())
            document = {"adw_id": adw_id, "issue_number": issue_number, "created_at": now, "updated_at": now, **fields}
            with app.ownership.create(document_module.parse(document)):
                pass

    def change(self, adw_id: str, **fields) -> None:
        with self.open() as app, app.ownership.own(adw_id) as owned:
            owned.save(owned.document.model_copy(update=fields), events=(Event(event_type="state_set"),))

    def document(self, adw_id: str) -> document_module.WorkflowDocument:
        with self.open() as app:
            return app.store.load(adw_id).document

    def event_types(self, adw_id: str) -> list[str]:
        with self.open() as app:
            return [event.event_type for event in app.events.of_workflow(adw_id)]

    def back_up(self, path: Path) -> BackupReport:
        with self.open() as app:
            return make_backup(path, app, adw_version="1.2.3")

    def restore(self, path: Path, *, force: bool = False) -> RestoreReport:
        with self.open() as app:
            return restore(path, app, force=force)


@pytest.fixture
def place(tmp_path, kind):
    return Place(tmp_path / "home", kind)


@pytest.fixture
def other(tmp_path, kind):
    return Place(tmp_path / "other", kind)


@pytest.fixture
def archive(tmp_path):
    return tmp_path / "backup.tar.gz"


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def pack(path: Path, files: dict[str, bytes], *, manifest: dict | None = None) -> None:
    """Write an archive by hand, with a good manifest unless another is given."""
    listed = {name: {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)} for name, body in files.items()}
    whole = {"format": 1, "document_version": "3.0", "files": listed, **(manifest or {})}
    with tarfile.open(path, "w:gz") as archive:
        for name, body in [*files.items(), ("manifest.json", json.dumps(whole).encode())]:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))


# --- there and back --------------------------------------------------------------------------------------------


def test_an_empty_home_gets_everything_back(place, other, archive):
    place.make(A, branch_name="adw/a")
    place.make(B, 43, repository="octo/cat")
    place.change(A, branch_name="adw/b")
    with place.open() as app:
        app.requests.ask(A, "pause")
        app.checkpoints.add("one", "task", '{"step": 3}', step_name=None, keep=9)
    made = place.back_up(archive)
    assert (made.workflows, made.events, made.has_database, made.note) == (2, 3, True, "")

    report = other.restore(archive)

    assert (report.workflows, report.replaced, report.has_database) == ((A, B), (), True)
    document = other.document(A)
    assert (document.branch_name, document.revision) == ("adw/b", 3), "its own two, and the one that tells of this"
    assert other.event_types(A) == ["workflow_created", "state_set", "backup_restored"]
    with other.open() as app:
        assert app.locks.verify(43, B, "octo/cat")
        assert [request.kind for request in app.requests.open_for(A)] == ["pause"], "the database came as a whole"
        assert app.checkpoints.latest("task").data == {"step": 3}
        assert app.database.integrity_problems() == []
    other.change(A, branch_name="adw/c")
    assert other.document(A).branch_name == "adw/c"


class BusyFolders:
    """Folders whose workflows go on while they are copied."""

    def __init__(self, folders, *, before, after) -> None:
        self._folders, self._before, self._after = folders, before, after

    def files(self, adw_id: str):
        self._before()
        yield from self._folders.files(adw_id)
        self._after()

    def read(self, adw_id: str, name: str):
        return self._folders.read(adw_id, name)


def test_a_backup_of_a_home_at_work_has_each_event_up_to_its_documents_and_none_after(tmp_path, archive):
    place = Place(tmp_path / "home", "files")
    place.make(A)

    def work(name: str) -> None:
        place.change(A, branch_name=name)
        place.change(A, branch_name=name)  # and so the events of the first have left the document

    with place.open() as app:
        app.folders = BusyFolders(app.folders, before=lambda: work("seen"), after=lambda: work("too late"))
        make_backup(archive, app, adw_version="1.2.3")

    events = [json.loads(line) for line in members(archive)["events.jsonl"].splitlines()]
    document = json.loads(members(archive)[f"state/{A}/adw_state.json"])
    assert document["branch_name"] == "seen"
    assert {1, 2} <= {event["revision"] for event in events}
    assert max(event["revision"] for event in events) <= document["revision"]


def test_a_restored_workflow_continues_above_everything_seen(place, archive):
    """Events are known by their revision: going back to an old one would lose the next ones without a word."""
    place.make(A)
    place.back_up(archive)
    for number in range(3):
        place.change(A, branch_name=f"adw/{number}")
    seen = place.document(A)
    place.restore(archive, force=True)

    after = place.document(A)
    assert after.revision > seen.revision
    assert after.fence > seen.fence
    place.change(A, branch_name="next")
    assert place.event_types(A) == ["workflow_created", *["state_set"] * 3, "backup_restored", "state_set"]
    with place.open() as app, pytest.raises(Fenced):
        app.store.save(place.document(A), fence=seen.fence)


def test_an_issue_that_went_to_another_workflow_stays_there(place, other, archive):
    place.make(A)
    place.back_up(archive)
    other.make(B)

    report = other.restore(archive)

    assert [(conflict.keeper, conflict.others) for conflict in report.conflicts] == [(B, (A,))]
    with other.open() as app:
        assert app.locks.verify(42, B)


def test_a_backup_of_files_comes_back_into_a_database_store_and_the_other_way(tmp_path, archive, kind):
    source = Place(tmp_path / "source", kind)
    source.make(A, branch_name="adw/a")
    source.back_up(archive)
    target = Place(tmp_path / "target", "database" if kind == "files" else "files")
    target.restore(archive)

    assert target.document(A).branch_name == "adw/a"
    assert target.event_types(A) == ["workflow_created", "backup_restored"]


def test_a_home_whose_database_is_damaged_gets_that_of_the_backup(place, archive):
    place.make(A)
    place.back_up(archive)
    (place.path / "state/adw.db").write_bytes(b"not a database " * 1000)
    for ending in ("-wal", "-shm"):
        (place.path / f"state/adw.db{ending}").unlink(missing_ok=True)

    report = place.restore(archive, force=True)

    assert report.has_database
    assert place.event_types(A) == ["workflow_created", "backup_restored"]
    assert list((place.path / "state").glob("adw.db.before-restore-*"))


def test_a_lost_home_without_a_database_in_the_backup(tmp_path, archive):
    """Documents alone are enough."""
    source = Place(tmp_path / "source", "files")
    source.make(A)
    for path in (source.path / "state").glob("adw.db*"):
        path.unlink()
    assert not source.back_up(archive).has_database
    target = Place(tmp_path / "target", "files")

    assert target.restore(archive).workflows == (A,)
    assert target.event_types(A)[-1] == "backup_restored"


@pytest.mark.postgres
def test_a_server_gives_documents_and_events_and_names_its_own_tool_for_the_rest(tmp_path, archive, pg_url, kind):
    place = Place(tmp_path / "home", kind, pg_url)
    place.make(A, branch_name="old")
    made = place.back_up(archive)
    assert (made.workflows, made.events, made.has_database) == (1, 1, False)
    assert "pg_dump" in made.note
    assert {f"state/{A}/adw_state.json", "events.jsonl"} <= members(archive).keys()
    place.change(A, branch_name="new")

    report = place.restore(archive, force=True)

    assert (report.replaced, report.has_database) == ((A,), False)
    assert place.document(A).branch_name == "old"
    assert place.event_types(A) == ["workflow_created", "state_set", "backup_restored"]
    local = Place(tmp_path / "local", "files")
    local.restore(archive)
    assert local.document(A).branch_name == "old"


# --- what is in it ---------------------------------------------------------------------------------------------


def test_the_archive_is_for_its_owner_alone_and_lists_every_file(place, archive):
    place.make(A)
    place.back_up(archive)

    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    result = members(archive)
    manifest = json.loads(result.pop("manifest.json"))
    assert {name: hashlib.sha256(body).hexdigest() for name, body in result.items()} == {
        name: entry["sha256"] for name, entry in manifest["files"].items()
    }
    assert (manifest["workflows"], manifest["adw_version"], manifest["document_version"]) == (1, "1.2.3", "3.0")
    assert {"adw.db", "events.jsonl", f"state/{A}/adw_state.json"} <= result.keys()


def test_locks_temps_and_links_are_left_out(tmp_path, archive):
    place = Place(tmp_path / "home", "files")
    place.make(A)
    folder = place.path / "state" / A
    (folder / ".adw_state.json.tmp.7").write_text("half a write")
    (folder / ".adw_state.json.tmp.8").mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "logs").mkdir()
    (folder / "logs" / "run.jsonl").write_text("{}\n")
    (folder / "bad\nname").write_text("x")
    report = place.back_up(archive)

    names = {name.removeprefix(f"state/{A}/") for name in members(archive) if name.startswith("state/")}
    assert names == {"adw_state.json", "logs/run.jsonl"}
    assert report.left_out == (f"state/{A}/bad\nname",)


def test_a_document_that_is_written_meanwhile_is_a_whole_revision(tmp_path, archive, monkeypatch):
    place = Place(tmp_path / "home", "files")
    place.make(A)
    real = backup.ArchiveWriter.add

    def writes_meanwhile(self, name, source):
        if name == backup.DATABASE:
            place.change(A, branch_name="meanwhile")
        real(self, name, source)

    monkeypatch.setattr(backup.ArchiveWriter, "add", writes_meanwhile)
    place.back_up(archive)
    monkeypatch.undo()
    target = Place(tmp_path / "target", "files")
    target.restore(archive)

    assert target.document(A).branch_name == "meanwhile"
    assert target.event_types(A)[-1] == "backup_restored"


def test_a_damaged_database_is_not_backed_up_in_silence(tmp_path, archive):
    place = Place(tmp_path / "home", "files")
    place.make(A)
    for path in (place.path / "state").glob("adw.db-*"):
        path.unlink()
    (place.path / "state/adw.db").write_bytes(b"not a database " * 1000)

    with pytest.raises(BackupError, match="run adw db rebuild first"):
        place.back_up(archive)
    assert not archive.exists()


def test_nothing_is_left_of_a_backup_that_failed(place, archive, monkeypatch):
    place.make(A)

    def disk_full(self, name, payload):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backup.ArchiveWriter, "add", disk_full)
    with pytest.raises(BackupError, match="No space left on device"):
        place.back_up(archive)
    assert [path.name for path in archive.parent.iterdir()] == ["home"]


# --- what is refused -------------------------------------------------------------------------------------------


@pytest.fixture
def target(tmp_path):
    return Place(tmp_path / "target", "files")


def everything(path: Path) -> list[str]:
    return sorted(str(item.relative_to(path)) for item in path.rglob("*"))


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "state/../../evil",
        f"state/{A}/../../../evil",
        f"state/{A}/./x",
        "state/adw_state.json",
        "state/../adw.db",
        "state/bad id/adw_state.json",
        "evil.sh",
        f"state/{A}/a\x00b",
        f"state/{A}//x",
        ".",
    ],
)
def test_a_member_that_points_elsewhere_is_refused(target, archive, name):
    pack(archive, {name: b"x"})
    with pytest.raises(BackupError):
        target.restore(archive)

    assert not list(archive.parent.rglob("evil*"))
    assert [path for path in everything(target.path) if "aaaa" in path] == []


@pytest.mark.parametrize("kind_of", ["SYMTYPE", "LNKTYPE", "DIRTYPE", "FIFOTYPE", "CHRTYPE"])
def test_a_member_that_is_no_file_is_refused(target, archive, kind_of):
    with tarfile.open(archive, "w:gz") as made:
        member = tarfile.TarInfo(f"state/{A}/adw_state.json")
        member.type, member.linkname = getattr(tarfile, kind_of), "/etc/passwd"
        made.addfile(member)

    with pytest.raises(BackupError, match="does not belong there"):
        target.restore(archive)


def test_a_changed_byte_is_noticed_before_anything_is_changed(tmp_path, archive, target):
    source = Place(tmp_path / "source", "files")
    source.make(A)
    source.back_up(archive)
    files = members(archive)
    manifest = json.loads(files.pop("manifest.json"))
    files[f"state/{A}/adw_state.json"] = files[f"state/{A}/adw_state.json"].replace(b"42", b"43", 1)
    pack(archive, files, manifest=manifest)

    with pytest.raises(
        BackupError, match=f"damaged: state/{A}/adw_state.json is missing or not what the manifest says"
    ):
        target.restore(archive)
    assert [path for path in everything(target.path) if A in path] == []


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_an_archive_that_is_cut_off_is_refused(tmp_path, archive, target, cut):
    source = Place(tmp_path / "source", "files")
    source.make(A)
    source.back_up(archive)
    archive.write_bytes(archive.read_bytes()[:-cut])

    with pytest.raises(BackupError, match="cut off"):
        target.restore(archive)
    assert [path for path in everything(target.path) if A in path] == []


def test_files_without_a_manifest_entry_are_refused(target, archive):
    pack(archive, {f"state/{A}/x": b"x"}, manifest={"files": {}})
    with pytest.raises(BackupError, match="damaged"):
        target.restore(archive)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"format": 2}, "has format 2, this adw reads format 1: upgrade adw"),
        ({"document_version": "9.0"}, "documents of version 9.0, this adw knows up to 3.0: upgrade adw"),
        ({"files": []}, "the manifest of .* cannot be read"),
    ],
    ids=["newer-format", "newer-documents", "bad-manifest"],
)
def test_what_this_adw_cannot_read_is_refused(target, archive, manifest, message):
    pack(archive, {}, manifest=manifest)
    with pytest.raises(BackupError, match=message):
        target.restore(archive)


def test_a_backup_whose_database_is_damaged_or_newer_changes_nothing(tmp_path, archive, target):
    source = Place(tmp_path / "source", "files")
    source.make(A)
    source.back_up(archive)
    files = members(archive)
    del files["manifest.json"]
    with source.open() as app, app.database.write() as session:
        session.run("UPDATE alembic_version SET version_num = '9999'")
    newer = tmp_path / "newer.db"
    database = connect(f"sqlite:///{source.path}/state/adw.db", clock=FakeClock())
    database.copy_to(newer)
    database.close()
    for content, error in ((b"not a database " * 1000, DatabaseCorrupt), (newer.read_bytes(), SchemaMismatch)):
        pack(archive, {**files, "adw.db": content})
        with pytest.raises(error):
            target.restore(archive)
        assert [path for path in everything(target.path) if A in path] == []


def test_a_newer_document_is_refused(target, archive):
    body = json.dumps({"adw_id": A, "issue_number": 1, "state_version": "9.0"}).encode()
    pack(archive, {f"state/{A}/adw_state.json": body})
    with pytest.raises(BackupError, match=f"workflow {A} of the backup: the document has version 9.0"):
        target.restore(archive)


def test_a_document_of_another_workflow_is_not_restored(target, archive):
    body = json.dumps({"adw_id": B, "issue_number": 1, "state_version": "1.0"}).encode()
    pack(archive, {f"state/{A}/adw_state.json": body, f"state/{B}/adw_state.json": b"{"})
    report = target.restore(archive)

    assert report.workflows == ()
    assert report.unreadable[A] == f"it is the document of '{B}'"
    assert "corrupt" in report.unreadable[B]


def test_an_old_document_without_an_issue_is_restored_as_what_it_is(target, archive):
    body = json.dumps({"adw_id": A, "all_adws": ["adw_plan_iso"]}).encode()
    pack(archive, {f"state/{A}/adw_state.json": body})

    report = target.restore(archive)

    assert (report.workflows, report.unreadable) == ((A,), {})
    assert target.document(A).issue_number is None
    assert target.document(A).current_state == "paused"


def test_what_is_not_restored_is_named_for_what_it_is(target, archive):
    unsealed = json.dumps({"adw_id": A, "issue_number": 1, "state_version": "3.0"}).encode()
    pack(archive, {f"state/{A}/adw_state.json": unsealed, f"state/{B}/adw_state.json.prev": unsealed})

    report = target.restore(archive)

    assert report.unreadable == {
        A: "it has no checksum: it was not written by adw",
        B: "the backup has files of it, but no document",
    }


class WatchedReconstruction:
    """A reconstruction that calls *on_put* before it writes."""

    def __init__(self, inner, on_put) -> None:
        self._inner, self._on_put = inner, on_put

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def put(self, contents):
        self._on_put()
        return self._inner.put(contents)


def restored_with(place, archive, **changed) -> RestoreReport:
    """Restore in a home whose parts *changed* makes differ."""
    with place.open() as app:
        for name, make in changed.items():
            setattr(app, name, make(app))
        return restore(archive, app, force=True)


def test_nobody_can_begin_to_work_on_what_is_being_replaced(place, archive):
    place.make(A)
    place.back_up(archive)
    held = []

    def watched(app):
        return WatchedReconstruction(app.reconstruction, lambda: held.append(app.local_lock.is_held(A)))

    restored_with(place, archive, reconstruction=watched)

    assert held
    assert all(held)
    with place.open() as app:
        assert not app.local_lock.is_held(A), "and it is free again"


def test_an_owner_that_comes_right_after_does_not_make_the_restore_fail(place, archive):
    place.make(A, branch_name="old")
    place.back_up(archive)
    place.change(A, branch_name="new")

    class Busy:
        def own(self, adw_id: str):
            raise WorkflowBusy(adw_id, "somebody")

    report = restored_with(place, archive, ownership=lambda _app: Busy())

    assert report.untold == (A,)
    assert report.to_json()["untold"] == [A]
    assert place.document(A).branch_name == "old"


def test_a_restore_leaves_no_staging_behind(place, archive):
    place.make(A)
    place.back_up(archive)
    place.restore(archive, force=True)

    assert not [name for name in everything(place.path) if "restor" in name and "before" not in name]
