"""Every reason that a document can give for its end or its pause is explained on the page of the engine."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from adws.adw_modules import retry_handler
from adws.adw_modules.engine import advisor, transitions
from adws.adw_modules.worker import control as worker_control

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "engine.md").read_text()


def constants(source: str, pattern: str) -> set[str]:
    """Every text in *source*, a module, that looks like a reason; comments and docstrings do not count."""
    tree = ast.parse(source)
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {node.value for node in texts if id(node) not in said and re.fullmatch(pattern, node.value)}


def rows(heading: str) -> set[str]:
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) - {"terminal_reason", "pause_reason"}


def test_the_page_explains_every_terminal_reason_and_no_other():
    sources = [Path(module.__file__).read_text() for module in (transitions, retry_handler, worker_control, advisor)]
    result = set().union(*(constants(source, r"(?=.{6})[A-Z]+(_[A-Z]+)*") for source in sources))

    assert {transitions.EXHAUSTED, transitions.HEALTH_BUDGET, "NEEDS_PERSON"} <= result
    assert rows("Why a workflow has failed") == result


def test_the_page_explains_every_pause_reason_and_no_other():
    assert rows("Why a workflow is paused") == {transitions.AWAITING_APPROVAL, transitions.TOO_MANY_STOPS}
    assert f"{transitions.MAX_SUSPENSIONS} of these came in a row" in PAGE


@pytest.mark.parametrize(
    "status",
    ["queued", "running", "retry_wait", "waiting", "complete", "failed", "skipped", "interrupted", "suspended"],
)
def test_the_page_explains_every_status_of_a_phase(status):
    assert f"| `{status}` |" in PAGE


@pytest.mark.parametrize(("decision", "meaning"), advisor.DECISIONS.items())
def test_the_page_explains_every_decision_of_the_doctor(decision, meaning):
    assert f"| `{decision}` |" in PAGE
    assert meaning


def test_the_page_has_the_limits_of_the_doctor_and_of_waits():
    per_phase, calls = advisor.MAX_CALLS_PER_PHASE, advisor.MAX_CALLS

    assert f"at most {per_phase} times for a phase and {calls}\ntimes for a workflow" in PAGE
    assert f"At most {advisor.MAX_REPLANS} times in a workflow" in PAGE
    assert f"After {retry_handler.MAX_NAMED_RESETS} such resets\n  in a row" in PAGE


def test_the_example_on_the_page_runs():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    exec(compile(example, "engine.md", "exec"), {})
