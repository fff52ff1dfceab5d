"""A function of the user as the doctor of a real home: found there, asked, obeyed, and on record."""

from __future__ import annotations

import sys

import pytest

from adws import app as app_module
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.adw_modules.workflow.model import PhaseSpec, WorkflowSpec
from adws.config import load as config_load

SPEC = WorkflowSpec(
    name="failing", phases=(PhaseSpec(name="build", state="building", runner="command", shell="echo no; exit 1"),)
)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Write a doctor, let a worker run into a failure, and return the document."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(module: str, source: str):
        (tmp_path / f"{module}.py").write_text(source)
        env = {"ADW_HOME": str(tmp_path), "ADW_ADVISOR_USE": f"{module}:decide"}
        with app_module.open_home(config_load.load(env=env, cwd=tmp_path), role="worker") as app:
            adw_id = app.workflow_creator.start(NewWorkflow(issue_number=1, spec=SPEC)).adw_id
            app.worker(WorkerOptions(once=True)).run()
            return app.store.load(adw_id).document

    yield run
    for module in [name for name in sys.modules if name.startswith("doctor_of_home_")]:
        del sys.modules[module]


def test_a_function_in_the_home_decides_about_a_failed_attempt(work):
    document = work(
        "doctor_of_home_one",
        "def decide(case):\n    return {'decision': 'skip', 'reason': case['phase'] + ' ' + case['error']['class']}\n",
    )

    (record,) = document.phases
    assert (document.current_state, document.terminal_reason) == ("failed", "DOCTOR_SKIP")
    assert (record.attempts_used, record.doctor[0]["by"]) == (1, "doctor_of_home_one:decide")
    assert record.doctor[0]["reason"] == "build failed"


def test_a_function_that_cannot_be_imported_is_said_and_stops_nothing(work):
    document = work("doctor_of_home_two", "import no_such_module_of_anybody\n")

    (record,) = document.phases
    assert (document.current_state, record.status) == ("building", "retry_wait")
    assert record.doctor[0]["decision"] == "retry"
    assert "no_such_module_of_anybody" in record.doctor[0]["problem"]
