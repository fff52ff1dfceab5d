"""The runs of workflows: what they demand, and the labels that limits count them under."""

from __future__ import annotations

import pytest

from adws.adw_modules.document import WorkflowRef
from adws.adw_modules.errors import UsageError
from adws.adw_modules.queue.model import NewRun, RunFactory
from adws.adw_modules.workflow.requirements import Requirements
from tests.contracts.worlds import FIRST, make_document

PHASES = [{"name": "plan", "runner": "agent"}, {"name": "build", "runner": "codex"}, {"name": "test", "runner": "x"}]


PROVIDERS = {"agent": "anthropic", "claude": "anthropic", "codex": "openai"}


def document(**changes):
    phases, demands = changes.pop("phases", PHASES), changes.pop("demands", {})
    made = make_document(**changes)
    made.workflow = WorkflowRef(name="sdlc", phases=phases, demands=demands)
    return made


def test_a_run_carries_its_repository_its_workflow_and_whom_its_agents_ask():
    run = RunFactory(providers=PROVIDERS).of(document(), "resume", asked_by="ada", priority=3)

    assert run == NewRun(
        adw_id=FIRST,
        kind="resume",
        asked_by="ada",
        priority=3,
        labels=frozenset({"repository:acme/widget", "workflow:sdlc", "provider:anthropic", "provider:openai"}),
    )


def test_a_document_that_names_no_repository_is_of_that_of_the_home_however_it_is_spelled():
    maker = RunFactory(repository="Acme/Widget")

    assert "repository:acme/widget" in maker.of(document(repository=""), "start").labels
    assert "repository:acme/widget" in maker.of(document(repository="ACME/widget"), "start").labels


def test_a_run_demands_what_its_frozen_definition_demands():
    run = RunFactory().of(document(demands={"host": "alpha", "tags": ["gpu"]}), "retry")

    assert run.demands == Requirements(host="alpha", tags=frozenset({"gpu"}))


def test_demands_that_make_no_sense_are_refused():
    with pytest.raises(UsageError, match="no demands of a run"):
        RunFactory().of(document(demands={"colour": "blue"}), "retry")
