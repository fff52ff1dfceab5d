"""Starting a workflow: document, issue lock and run exist when it is accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adws.adw_modules.document import FrozenIssue, Resource
from adws.adw_modules.engine.resume import definition_of
from adws.adw_modules.errors import IssueLocked, StateExists, StateWriteFailed, WorkflowInvalid
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.workflow.model import WorkflowSpec
from adws.adw_modules.workflow.requirements import Requirements
from tests.unit.conduct_cases import SPEC, Home, always
from tests.unit.conduct_cases import launcher_of as workflow_creator
from tests.unit.engine_cases import document_of


@pytest.fixture
def home():
    made = Home()
    yield made
    made.lease_renewer.close()


def start(**fields) -> NewWorkflow:
    return NewWorkflow(**{"issue_number": 42, "spec": SPEC, "asked_by": "kim", "priority": 3, **fields})


def test_a_started_workflow_waits_for_a_worker_with_its_issue_and_its_definition(home):
    started = workflow_creator(home).start(start(issue=FrozenIssue(title="Fix it"), model_set="base"))

    stored = home.document(started.adw_id)
    assert (stored.current_state, stored.revision, stored.issue.title) == ("pending", 1, "Fix it")
    limits = (stored.max_retries, stored.max_reworks, stored.max_total_attempts, stored.max_minutes)
    assert (stored.model_set, limits) == ("base", (3, 3, 40, 720.0)), "as the settings say"
    assert [record.name for record in stored.phases] == ["plan", "build"]
    assert isinstance(definition_of(stored), WorkflowSpec)
    assert definition_of(stored).phases == SPEC.phases
    run = home.run(started.adw_id)
    assert (run.state, run.kind, run.priority, run.asked_by) == (RunState.PENDING, "start", 3, "kim")
    assert home.parts.locks.verify(42, started.adw_id)
    assert home.parts.leases.read(started.adw_id).owner is None, "a worker may take it"


def test_an_issue_that_belongs_to_another_workflow_is_refused_and_nothing_is_left(home):
    first = workflow_creator(home).start(start())

    with pytest.raises(IssueLocked) as refused:
        workflow_creator(home).start(start())

    assert refused.value.holder == first.adw_id
    assert list(home.store.ids()) == [first.adw_id]
    assert len(home.runs.page()) == 1


def test_a_definition_that_cannot_run_here_is_refused_before_anything_is_stored(home):
    with pytest.raises(WorkflowInvalid, match="no such prompt"):
        workflow_creator(home, check=always(WorkflowInvalid("no such prompt"))).start(start())

    assert list(home.store.ids()) == []
    assert home.runs.page() == ()
    assert home.parts.locks.all() == ()


def test_a_document_that_cannot_be_written_leaves_neither_run_nor_lock(home, monkeypatch):
    full = StateWriteFailed("adw_state.json", OSError(28, "No space left on device"))
    with monkeypatch.context() as patch:
        patch.setattr(home.store, "create", always(full))
        with pytest.raises(StateWriteFailed):
            workflow_creator(home).start(start())

    assert home.runs.page() == ()
    assert home.parts.locks.all() == ()


def test_a_workflow_can_be_started_under_an_id_that_was_chosen_before(home):
    asked = start(adw_id="c0ffee00", delivery="guid", cause="label", hint="use tabs")

    made = workflow_creator(home).start(asked)

    assert (made.adw_id, made.deliveries) == ("c0ffee00", ["guid"])
    assert [(hint["text"], hint["by"]) for hint in made.hints] == [("use tabs", "kim")]
    told = [event for event in home.parts.events.of_workflow("c0ffee00") if event.event_type == "work_asked_for"]
    assert [event.data for event in told] == [{"delivery": "guid", "cause": "label", "by": "kim"}]
    with pytest.raises(StateExists):
        workflow_creator(home).start(start(adw_id="c0ffee00", issue_number=43))


def test_a_workflow_that_continues_another_shares_its_branch_and_pull_request_and_nothing_else(home):
    effects = [
        Resource(key="worktree", kind="worktree", outcome="made", undo={"path": "/t"}),
        Resource(key="branch:b", kind="branch", outcome="made", undo={"branch": "b"}),
        Resource(key="remote_branch:b", kind="remote_branch", outcome="adopted", undo={"made_by": "0000aaaa"}),
        Resource(key="pull_request", kind="pull_request", outcome="failed"),
        Resource(key="comment:sticky", kind="comment", outcome="made"),
    ]
    before = document_of(SPEC, branch_name="b", pr_number=8, followups=1, continues="0000aaaa", resources=effects)

    made = workflow_creator(home).start(start(continues=before, delivery="guid"))

    assert (made.continues, made.followups, made.branch_name, made.pr_number) == ("0000aaaa", 2, "b", 8)
    assert [(entry.key, entry.outcome, entry.undo["made_by"]) for entry in made.resources] == [
        ("branch:b", "adopted", before.adw_id),
        ("remote_branch:b", "adopted", "0000aaaa"),
    ]


def test_the_first_run_demands_what_the_definition_says_unless_the_start_says_otherwise(home):
    gpu, alpha = Requirements(tags=frozenset({"gpu"})), Requirements(host="alpha")
    by_definition = workflow_creator(home).start(start(issue_number=1, spec=replace(SPEC, demands=gpu)))
    by_start = workflow_creator(home).start(start(issue_number=2, demands=alpha))

    assert [run.demands for run in home.runs.page()] == [alpha, gpu]
    assert by_definition.workflow.demands == {"tags": ["gpu"]}
    assert by_start.workflow.demands == {"host": "alpha"}
    assert all(f"workflow:{by_start.workflow.name}" in run.labels for run in home.runs.page())
