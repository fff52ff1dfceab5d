"""A creator that was stopped before its first write comes back too late: its issue may have another workflow."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import Fenced
from tests.integration.ownership_worker import ID, new_document, ownership

SUCCESSOR = "5e6f7a8b"


class StoppedBeforeCreate:
    """A store whose creator is stopped right before the first write, while *meanwhile* happens."""

    def __init__(self, store, meanwhile):
        self._store = store
        self._meanwhile = meanwhile

    def __getattr__(self, name):
        return getattr(self._store, name)

    def create(self, document, *, events=()):
        self._meanwhile()
        return self._store.create(document, events=events)


@pytest.mark.parametrize("home", ["files", "database"])
def test_a_creator_that_lost_its_issue_before_its_first_write_is_shut_out(tmp_path, home):
    root = tmp_path / "state"
    late, later = ownership(root, home=home), ownership(root, home=home, offset=31.0)

    def meanwhile() -> None:
        assert [lock.adw_id for lock in later.release_finished_locks()] == [ID]
        with later.create(new_document(SUCCESSOR)):
            pass

    late.store = StoppedBeforeCreate(late.store, meanwhile)
    with pytest.raises(Fenced), late.create(new_document()):
        pass

    assert list(later.store.ids()) == [SUCCESSOR], "one issue, one workflow"
    assert late.leases.read(ID) is None
    later.prove_continuing(SUCCESSOR, 42)


@pytest.mark.parametrize("home", ["files", "database"])
def test_a_creator_whose_lease_was_taken_before_its_first_write_is_shut_out(tmp_path, home):
    """The sweeper may itself be stopped between taking the lease and looking for a document."""
    root = tmp_path / "state"
    late, later = ownership(root, home=home), ownership(root, home=home, offset=31.0)

    def meanwhile() -> None:
        taken = later._take(ID)
        later.store.revoke_writers(ID, fence=taken.lease.fence - 1)

    late.store = StoppedBeforeCreate(late.store, meanwhile)
    with pytest.raises(Fenced), late.create(new_document()):
        pass

    assert not later.store.exists(ID)
