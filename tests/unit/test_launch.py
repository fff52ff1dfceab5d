"""Starting a workflow: document, issue lock and run exist when it is accepted."""

from __future__ import annotations

import pytest

from adws.adw_modules.coordination.launch import Launcher, Start
from adws.adw_modules.document import FrozenIssue
from adws.adw_modules.errors import IssueLocked, StateWriteFailed, WorkflowInvalid
from adws.adw_modules.resume_rules import definition_of
from adws.adw_modules.runs import RunState
from adws.adw_modules.workflow import WorkflowSpec
from tests.unit.conduct_cases import SPEC, Home, always


@pytest.fixture
def home():
    made = Home()
    yield made
    made.keeper.close()


def launcher(home, check=lambda _spec: None) -> Launcher:
    return Launcher(ownership=home.parts.ownership, clock=home.clock, check=check)


def start(**fields) -> Start:
    return Start(**{"issue_number": 42, "spec": SPEC, "asked_by": "kim", "priority": 3, **fields})


def test_a_started_workflow_waits_for_a_worker_with_its_issue_and_its_definition(home):
    started = launcher(home).start(start(issue=FrozenIssue(title="Fix it"), model_set="base", max_minutes=5.0))

    stored = home.document(started.adw_id)
    assert (stored.current_state, stored.revision, stored.issue.title) == ("pending", 1, "Fix it")
    assert (stored.model_set, stored.max_minutes, stored.max_retries) == ("base", 5.0, 3)
    assert [record.name for record in stored.phases] == ["plan", "build"]
    assert isinstance(definition_of(stored), WorkflowSpec)
    assert definition_of(stored).phases == SPEC.phases
    run = home.run(started.adw_id)
    assert (run.state, run.kind, run.priority, run.asked_by) == (RunState.PENDING, "start", 3, "kim")
    assert home.parts.locks.verify(42, started.adw_id)
    assert home.parts.leases.read(started.adw_id).owner is None, "a worker may take it"


def test_a_started_workflow_is_carried_to_its_end(home):
    started = launcher(home).start(start())
    home.work()

    assert home.state(started.adw_id) == "completed"


def test_an_issue_that_belongs_to_another_workflow_is_refused_and_nothing_is_left(home):
    first = launcher(home).start(start())

    with pytest.raises(IssueLocked) as refused:
        launcher(home).start(start())

    assert refused.value.holder == first.adw_id
    assert list(home.store.ids()) == [first.adw_id]
    assert len(home.runs.page()) == 1


def test_a_definition_that_cannot_run_here_is_refused_before_anything_is_stored(home):
    with pytest.raises(WorkflowInvalid, match="no such prompt"):
        launcher(home, check=always(WorkflowInvalid("no such prompt"))).start(start())

    assert list(home.store.ids()) == []
    assert home.runs.page() == ()
    assert home.parts.locks.all() == ()


def test_a_document_that_cannot_be_written_leaves_neither_run_nor_lock(home, monkeypatch):
    full = StateWriteFailed("adw_state.json", OSError(28, "No space left on device"))
    with monkeypatch.context() as patch:
        patch.setattr(home.store, "create", always(full))
        with pytest.raises(StateWriteFailed):
            launcher(home).start(start())

    assert home.runs.page() == ()
    assert home.parts.locks.all() == ()


def test_who_starts_owns_the_workflow_inside_the_block(home):
    made = launcher(home)
    document = made.document(start(issue_number=None))

    with made.create(document, start(issue_number=None)) as owned:
        assert home.parts.leases.read(document.adw_id).owner == owned.lease.owner

    assert home.parts.leases.read(document.adw_id).owner is None
    assert home.parts.locks.all() == ()
