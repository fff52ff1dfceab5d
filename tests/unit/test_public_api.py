"""
The API that others may rely on: what docs/library.md and docs/plugins.md import, and the names of the seeds.

tests/public_api.txt freezes it with its signatures. After an intended change:
scripts/test tests/unit/test_public_api.py --update-api
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "public_api.txt"
PAGES = ("docs/library.md", "docs/plugins.md")
#: module below adws -> names that users of earlier ADW set-ups import
SEED_NAMES = {
    "adw_modules.state_machine": ["WorkflowState", "StateTransition", "WorkflowStateMachine"],
    "adw_modules.state": ["ADWState"],
    "adw_modules.state_schema": ["StateSchema", "StateMigration"],
    "adw_modules.atomic_state": ["AtomicStateWriter"],
    "adw_modules.error_handler": ["ErrorClassifier", "ErrorCategory", "WorkflowError"],
    "adw_modules.rollback": ["WorkflowRollback", "mark_workflow_rolled_back"],
    "adw_modules.retry_handler": ["RetryStrategy"],
    "adw_modules.resource_manager": ["ResourceQuota"],
    "adw_modules.structured_logger": ["StructuredLogger"],
    "adw_triggers.trigger_webhook": ["handle_webhook_trigger"],
    "adw_triggers.trigger_cron": [],
    "durability": [
        "BackoffStrategy",
        "CheckpointManager",
        "CircuitBreaker",
        "CircuitBreakerConfig",
        "CircuitState",
        "CircuitBreakerRegistry",
        "RetryManager",
        "RetryPolicy",
    ],
}


def _documented() -> set[tuple[str, str]]:
    """Return module and name of everything that a Python example of the pages imports from adws."""
    blocks = [b for page in PAGES for b in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)]
    return {
        (node.module, alias.name)
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "adws"
        for alias in node.names
    }


def _described(module: str, name: str) -> Iterator[str]:
    value = getattr(importlib.import_module(module), name, None)
    if value is None:
        value = importlib.import_module(f"{module}.{name}")
    where = f"{module}.{name}"
    if inspect.isclass(value):
        if hasattr(value, "model_rebuild"):
            value.model_rebuild()  # a model that is built when it is first used has no signature before
        yield f"{where}{_signature(value)}"
        for member, what in sorted(vars(value).items()):
            if not member.startswith("_"):
                yield f"{where}.{member}{_signature(inspect.unwrap(getattr(what, '__func__', what)))}"
    else:
        yield f"{where}{_signature(value)}"


def _signature(value: object) -> str:
    if not callable(value):
        return ""
    try:
        return re.sub(r"<function (\S+) at 0x\w+>", r"\1", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return "(...)"


def test_the_documented_api_is_the_one_that_was_agreed(request):
    names = _documented() | {(f"adws.{module}", name) for module, names in SEED_NAMES.items() for name in names}
    current = sorted({line for module, name in names for line in _described(module, name)})
    if request.config.getoption("--update-api"):
        LIST.write_text("\n".join(current) + "\n")

    agreed = LIST.read_text().splitlines()
    assert current == agreed, "if this is intended: scripts/test tests/unit/test_public_api.py --update-api"


def test_every_module_of_the_seeds_can_be_imported():
    for module, names in SEED_NAMES.items():
        assert [name for name in names if not hasattr(importlib.import_module(f"adws.{module}"), name)] == []
