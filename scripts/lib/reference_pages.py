"""
Pages of reference that are made from the code: every field of a document, and every operation of the API.

Also the generated parts of the page about the five design documents.
"""

from __future__ import annotations

import inspect
import re
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adws import app as app_module
from adws.adw_modules import checkpoint, document, error_tables, events, state_machine, state_schema
from adws.adw_modules.circuit_breaker import CircuitBreakerConfig
from adws.adw_modules.identifiers import size_text
from adws.adw_modules.recovery import plan as recovery_plan
from adws.adw_modules.reports import reports
from adws.adw_modules.resources.quotas import Limits
from adws.adw_modules.retry_handler import RetryPolicy
from adws.adw_modules.workflow import library
from adws.config import load as config_load
from adws.web.app import create_api
from adws.web.dependencies import ServerState

#: The parts of a document, the whole first; each is a section of its page.
PARTS = (
    document.WorkflowDocument,
    document.PhaseRecord,
    document.AttemptRecord,
    document.HistoryEntry,
    document.Resource,
    document.WorkflowRef,
    document.FrozenIssue,
    document.Cost,
    document.RollbackRecord,
)
#: A field of a model as it stands in the source: name, type, default, what it means.
FIELD = re.compile(r"^    (\w+): ([^=#\n]+?)(?: = ([^#\n]*?))?(?:  #: (.*))?$", re.MULTILINE)
_ALIAS = re.compile(r'alias="(\w+)"')
#: Where the tests of the repository are, with the lists that name them.
TESTS = Path(__file__).resolve().parents[2] / "tests"
#: The design documents and what each is about.
SEEDS = {
    "000": "state persistence of an executor: attempts, phases, one loop",
    "001": "distributed loops and retries: events, queue, pagination, sinks",
    "002": "durable execution: checkpoints, backoff, circuit breakers",
    "003": "recovery at the start: claimed, running and stopping runs",
    "004": "ADW itself: state machine, state files, errors, rollback, locks, quotas, logging",
}


def schema_page(note: str) -> str:
    """Return docs/state-schema.md."""
    older = {step[0] for step in state_schema.StateMigration.registered()}
    versions = ", ".join(sorted(older))
    head = ("Field", "Type", "Default", "Meaning")
    sections = "\n".join(
        f"## {part.__name__}\n\n{inspect.getdoc(part)}\n\n{_table(head, fields(part))}\n" for part in PARTS
    )

    return f"""# The document of a workflow

{note}

The truth about a workflow: `state/ID/adw_state.json`, or its row in the database. This is version
{state_schema.CURRENT_VERSION}; files of the versions {versions} are read and brought up. Fields that adw does not know
are kept. The last line of a file is a checksum: a file that was changed by hand is kept aside and not used;
`adw state set ID key=value` changes a field. Moments are texts in UTC of a fixed width.

{sections}"""


def fields(part: type) -> list[tuple[str, ...]]:
    """Return each field of a part: name as it is written, type, default, meaning."""
    rows = []
    for name, kind, default, meaning in FIELD.findall(inspect.getsource(part)):
        alias = _ALIAS.search(default)
        rows.append((f"`{alias[1] if alias else name}`", f"`{kind.strip()}`", _default(default), meaning))

    return rows


def _default(text: str) -> str:
    if not text or text.startswith("Field(alias"):
        return "needed"
    made = re.fullmatch(r"Field\(default_factory=(\w+)\)", text)
    if made:
        return {"list": "`[]`", "dict": "`{}`"}.get(made[1], f"a new {made[1]}")

    return f"`{text}`"


def api_page(note: str) -> str:
    """Return docs/http-api.md."""
    described = describe()
    sections = "\n".join(_operation(*one, described) for one in _operations(described))

    return f"""# HTTP API: every operation

{note}

Made from `/api/v1/openapi.json`, which the server gives out. [api.md](api.md) explains tokens, pages, orders and
errors, which are the same for all.

{sections}"""


def describe() -> dict[str, Any]:
    """Return the description of the API."""
    with (
        tempfile.TemporaryDirectory() as place,
        app_module.open_home(config_load.load(env={}, cwd=Path(place)), role="docs") as home,
    ):
        return create_api(home, ServerState(home)).openapi()


def _operations(described: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _operation(method: str, path: str, operation: Mapping[str, Any], described: Mapping[str, Any]) -> str:
    rows = [
        (f"`{one['name']}`", one["in"], _kind(one["schema"]), _meaning(one) or _meaning(one["schema"]))
        for one in operation.get("parameters", ())
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    rows += [(f"`{name}`", "body", _kind(kind), _meaning(kind)) for name, kind in _properties(body, described)]
    answers = ", ".join(status for status in operation["responses"] if status.startswith("2"))
    token = "" if operation.get("security") else " Needs no token."
    text = " ".join((operation.get("description") or operation.get("summary", "")).split())
    table = f"\n{_table(('Name', 'In', 'Type', 'Meaning'), rows)}\n" if rows else ""

    return f"## {method} {path}\n\n{text}{token} Answers {answers}.\n{table}"


def _meaning(one: Mapping[str, Any]) -> str:
    return str(one.get("description", ""))


def _properties(schema: Mapping[str, Any], described: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    name = next((one["$ref"] for one in (schema, *schema.get("anyOf", ())) if "$ref" in one), "").rpartition("/")[2]
    yield from described["components"]["schemas"].get(name, {}).get("properties", {}).items()


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"] if one.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])

    return str(schema.get("type", "any"))


# --- the five documents ----------------------------------------------------------------------------------------


def seed_documents() -> list[tuple[str, ...]]:
    """Return each design document: number, subject, how many of its gaps have tests that would have caught them."""
    gaps = Counter(name.split("-")[0] for name in tomllib.loads((TESTS / "seed_flaws.toml").read_text()))

    return [(seed, about, str(gaps[f"S{int(seed)}"])) for seed, about in SEEDS.items()]


def seed_facts() -> list[tuple[str, str]]:
    """Return the numbers that the documents give too, as the code has them."""
    table, machine = state_machine.StateTransition.TRANSITIONS, state_machine.Position()
    workflows, older = library.built_in_names(), sorted({step[0] for step in state_schema.StateMigration.registered()})
    retry, breaker, limits = RetryPolicy(), CircuitBreakerConfig(), Limits()
    modes = ", ".join(f"`{mode.value}`" for mode in recovery_plan.Mode)
    sizes = f"{size_text(limits.max_worktree_size)}, {size_text(limits.min_free_disk)}"

    return [
        ("states of a workflow, moves between them", f"{len(table)}, {sum(map(len, table.values()))}"),
        ("attempts of a phase, retries of a workflow", f"{library.DEFAULT_MAX_ATTEMPTS}, {machine.max_retries}"),
        (
            "version of a workflow's document, older ones that are read",
            f"{state_schema.CURRENT_VERSION}; {', '.join(older)}",
        ),
        ("workflows that come with adw", f"{len(workflows)}: {', '.join(f'`{name}`' for name in workflows)}"),
        ("categories of errors", ", ".join(f"`{category.value}`" for category in error_tables.ErrorCategory)),
        ("classes of errors below them", str(len(error_tables.CLASSES))),
        (
            "`RetryPolicy`: attempts, first wait, longest wait",
            f"{retry.max_attempts}, {retry.backoff_base_seconds:g} s, {retry.backoff_max_seconds:g} s",
        ),
        (
            "circuit breaker: failures that open it, seconds until a trial, trials at a time",
            f"{breaker.failure_threshold}, {breaker.reset_timeout_seconds:g}, {breaker.half_open_max_attempts}",
        ),
        ("checkpoints that are kept of a task, size of one", f"{checkpoint.KEEP}, {size_text(checkpoint.MAX_BYTES)}"),
        ("modes of recovery, its threshold", f"{modes}; {recovery_plan.THRESHOLD_SECONDS:g} s"),
        ("workers that a run may lose", str(recovery_plan.MAX_LOSSES)),
        (
            "quotas: worktrees, size of one, disk that stays free, cost of a workflow",
            f"{limits.max_worktrees}, {sizes}, {limits.max_cost:g} USD",
        ),
        (
            "goal for the success rate, hours until stuck counts",
            f"above {reports.SUCCESS_GOAL:.0%}, {reports.STUCK_HOURS}",
        ),
        ("kinds of events", str(len(events.EVENT_TYPES))),
    ]


def seed_points() -> list[tuple[str, ...]]:
    """Return each point in which adw fell short of a document, with the tests that cover it."""
    points = tomllib.loads((TESTS / "seed_points.toml").read_text())["points"]

    return [
        (str(number), point["seed"], point["point"], "<br>".join(f"`{test}`" for test in point["tests"]) or "-")
        for number, point in enumerate(points, start=1)
    ]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]

    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
