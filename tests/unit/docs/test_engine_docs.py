"""Every reason for a failure or a pause, every status of a phase and every decision of the advisor is documented."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from adws.adw_modules import retry_handler
from adws.adw_modules.engine import advisor, transitions
from adws.adw_modules.worker import control as worker_control

DOCS = Path(__file__).resolve().parents[3] / "docs"
OPERATIONS, WORKFLOWS = (DOCS / "operations.md").read_text(), (DOCS / "workflows.md").read_text()


FAILED = OPERATIONS.partition("## A workflow failed\n")[2].partition("\n## ")[0]
PAUSED = OPERATIONS.partition("`pause_reason` of a paused workflow")[2].partition("\n## ")[0]


def constants(source: str, pattern: str) -> set[str]:
    """Every text in *source*, a module, that looks like a reason; comments and docstrings do not count."""
    tree = ast.parse(source)
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {node.value for node in texts if id(node) not in said and re.fullmatch(pattern, node.value)}


def rows(part: str) -> set[str]:
    """Return the names that are explained in *part* of the page."""
    return set(re.findall(r"^- `(\w+)`: ", part, re.MULTILINE))


def test_the_page_explains_every_terminal_reason_and_no_other():
    sources = [Path(module.__file__).read_text() for module in (transitions, retry_handler, worker_control, advisor)]
    result = set().union(*(constants(source, r"(?=.{6})[A-Z]+(_[A-Z]+)*") for source in sources))

    assert {transitions.EXHAUSTED, transitions.HEALTH_BUDGET, "NEEDS_PERSON"} <= result
    assert rows(FAILED) == result


def test_the_page_explains_every_pause_reason_and_no_other():
    assert rows(PAUSED) == {
        transitions.AWAITING_APPROVAL,
        transitions.TOO_MANY_STOPS,
    }
    assert f": {transitions.MAX_SUSPENSIONS} attempts in a row" in PAUSED


def test_the_page_explains_every_status_of_a_phase():
    for status in [
        "queued",
        "running",
        "retry_wait",
        "waiting",
        "complete",
        "failed",
        "skipped",
        "interrupted",
        "suspended",
    ]:
        assert f"- `{status}`: " in WORKFLOWS, status


@pytest.mark.parametrize(("decision", "meaning"), advisor.DECISIONS.items())
def test_the_page_explains_every_decision_of_the_doctor(decision, meaning):
    assert f"- `{decision}`: " in WORKFLOWS
    assert meaning


def test_the_page_has_the_limits_of_the_advisor_and_of_waits():
    per_phase, calls = advisor.MAX_CALLS_PER_PHASE, advisor.MAX_CALLS
    flat = " ".join(WORKFLOWS.split())

    assert f"at most {per_phase} times for a phase and {calls} times for a workflow" in flat
    assert f"At most {advisor.MAX_REPLANS} times in a workflow" in flat
    assert f"After {retry_handler.MAX_NAMED_RESETS} quota resets in a row" in " ".join(OPERATIONS.split())
