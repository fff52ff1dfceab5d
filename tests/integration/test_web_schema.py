"""The API against its own description: whatever a client makes of it, no 5xx, and every answer is one described."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis import checks as all_checks

from tests.integration.web_lab import TOKEN, WebLab

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
#: What must hold for every answer. What is sent is checked by tests of our own: a well-formed order about a workflow
#: that is not there is a 404, which the description cannot know.
CHECKS = (
    all_checks.not_a_server_error,
    all_checks.status_code_conformance,
    all_checks.content_type_conformance,
    all_checks.response_headers_conformance,
    all_checks.response_schema_conformance,
)
OPERATIONS = (
    "get_health",
    "get_metrics",
    "list_workflows",
    "get_workflow",
    "get_workflow_diff",
    "start_workflow",
    "pause_workflow",
    "resume_workflow",
    "retry_workflow",
    "stop_workflow",
    "abandon_workflow",
    "approve_workflow",
    "reject_workflow",
    "rollback_workflow",
    "list_runs",
    "list_events",
    "list_locks",
    "list_quotas",
    "list_breakers",
    "list_deliveries",
    "list_runners",
    "list_sessions",
    "recover_runs",
    "list_external_tasks",
    "show_external_task",
    "claim_external_task",
    "beat_external_task",
    "report_external_task",
    "emit_event",
    "list_executions",
    "show_execution",
    "list_iterations",
    "show_iteration",
    "list_retries",
    "cancel_retry",
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with WebLab(tmp_path_factory.mktemp("web") / "home") as made:
        yield made


@pytest.fixture(scope="module")
def schema(lab):
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", lab.door, headers=AUTHORIZED)


def test_every_operation_is_tried(schema):
    assert sorted(OPERATIONS) == sorted(item.ok().definition.raw["operationId"] for item in schema.get_all_operations())


def test_every_operation_is_on_the_page_about_the_api(schema):
    page = (Path(__file__).resolve().parents[2] / "docs" / "http-api.md").read_text()
    paths = {item.ok().path for item in schema.get_all_operations()}

    assert [path for path in sorted(paths) if f"{path}`" not in page] == []


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, id=f"{name}-{mode.value}")
        for name in OPERATIONS
        for mode in GenerationMode
        if not (name in {"get_health", "get_metrics"} and mode is GenerationMode.NEGATIVE)  # no input can be wrong
    ],
)
def test_no_request_makes_the_api_fail_or_leave_its_description(lab, schema, repeat, name, mode):
    operation = schema.find_operation_by_id(name)
    known = lab.start(1) if not lab.app.locks.holder(1) else lab.app.locks.holder(1).adw_id
    cases = operation.as_strategy(generation_mode=mode)

    @hypothesis.settings(
        max_examples=repeat(5, 100),
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=cases, is_known=hypothesis.strategies.booleans())
    def run(case, is_known):
        if is_known and mode is GenerationMode.POSITIVE and "adw_id" in (case.path_parameters or {}):
            case.path_parameters["adw_id"] = known
        case.call_and_validate(headers=AUTHORIZED, checks=CHECKS)

    run()
