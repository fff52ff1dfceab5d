"""
Rules that no linter states: each library is used in one place, and so are time, processes, environment and output.

import-linter checks which package imports which (see pyproject.toml); this reads the source itself.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "adws").rglob("*.py"))

#: library -> where it may be imported, as a path below adws/ (a directory ends with "/")
LIBRARIES = {
    "alembic": ["adw_modules/db/"],
    "click": ["cli/"],
    "cronsim": ["adw_triggers/trigger_cron.py"],
    "difflib": ["adw_modules/identifiers.py"],
    "fastapi": ["web/", "adw_triggers/"],
    "github": ["adw_modules/forge/github.py"],
    "httpx": ["adw_modules/steps/http_client.py", "adw_modules/schedule/notify.py"],
    "jinja2": ["adw_modules/expressions/expressions.py", "web/"],
    "procrastinate": ["adw_modules/db/", "adw_modules/queue/procrastinate.py"],
    "prometheus_client": ["adw_modules/reports/metrics.py"],
    "psutil": ["adw_modules/process/", "adw_modules/resources/", "adw_modules/git/"],
    "psycopg": ["adw_modules/db/", "adw_modules/queue/procrastinate.py", "adw_modules/steps/postgres_sink.py"],
    "psycopg_pool": ["adw_modules/db/", "adw_modules/queue/procrastinate.py"],
    "pydantic": [
        "adw_modules/deliveries/commands.py",
        "adw_modules/document.py",
        "adw_modules/forge/local.py",
        "adw_modules/workflow/model.py",
        "web/",
    ],
    "pydantic_core": ["adw_modules/document.py"],
    "random": ["adw_modules/clock.py", "testing/"],
    "rich": ["cli/output.py"],
    "secrets": ["adw_modules/clock.py"],
    "sqlalchemy": ["adw_modules/db/", "adw_modules/maintenance/move.py"],
    "sqlite3": ["adw_modules/db/", "adw_modules/steps/sinks.py"],
    "starlette": ["web/", "adw_triggers/"],
    "subprocess": ["adw_modules/process/"],
    "uuid": ["adw_modules/clock.py"],
    "uvicorn": ["web/"],
    "webbrowser": ["adw_modules/process/run.py"],
}

#: what is called or read -> where it may be
CALLS = {
    "datetime.datetime.now": ["adw_modules/clock.py"],
    "datetime.datetime.today": ["adw_modules/clock.py"],
    "datetime.datetime.utcnow": ["adw_modules/clock.py"],
    # git: the names of what it must not inherit, at the moment it starts
    "os.environ": ["adw_modules/git/git.py", "config/credentials.py", "config/load.py", "sample/agent.py"],
    "os.getenv": ["config/load.py"],
    "os.system": [],
    "os.popen": [],
    "os.urandom": ["adw_modules/clock.py"],
    "print": ["cli/output.py"],
    "sys.exit": ["cli/", "sample/agent.py"],
    "time.monotonic": ["adw_modules/clock.py"],
    "time.sleep": ["adw_modules/clock.py", "sample/agent.py"],
    "time.time": ["adw_modules/clock.py"],
}

#: Where `except Exception` may stand -> why
CATCH_ALL = {
    "adw_modules/plugins.py": "the user's plugin may raise anything; what it raises becomes one sentence",
    "cli/main.py": "the outermost frame of a process: a bug becomes a log file and an exit code",
    "adw_modules/ownership/lease_renewer.py": "its thread renews all that a process owns: a bug must not end it",
    "adw_modules/schedule/notify.py": "a sink: what a channel raises must not stop the work it tells of",
    "adw_modules/schedule/jobs.py": "a bug in one job is logged and written down; the others are done",
    "adw_modules/worker/worker.py": "a bug in one run is logged and parks its workflow; the others go on",
    "adw_modules/queue/procrastinate.py": "its thread brings runs to a worker: a bug must not leave it deaf",
    "adw_modules/store/projection.py": "a sink: the copy must not stop the work, and is made again",
    "adw_modules/error_handler.py": "the user's exception may raise anything when it is asked",
    "adw_modules/engine/attempt.py": "whatever a runner or a gate raises is a failed attempt",
    "adw_modules/steps/iteration_worker.py": "whatever a tool or a function of the user raises is a failed call",
    "adw_modules/steps/tools.py": "the import of the user's module may raise anything",
    "adw_modules/steps/http_client.py": "what the thread of a request raises is raised again by whoever waits for it",
    "adw_modules/engine/runner_python.py": "the user's module and its get_checkpoint may raise anything",
    "adw_modules/structured_logger.py": "a sink: neither a full disk nor the caller's __str__ may stop the work",
    "adw_modules/identifiers.py": "the __str__ of a stranger may raise anything",
    "adw_modules/retry_handler.py": "what an attempt or a hook raises is classified, noted, or raised again",
    "adw_modules/state_schema.py": "a registered migration may raise anything; the report names the step",
    "web/middleware.py": "the outermost frame of a request: a bug becomes a line in the log and a 500",
}


@pytest.fixture(scope="module", autouse=True)
def _trees_are_read_once() -> Iterator[None]:
    """The trees are kept for this file's tests only: together they are large."""
    yield
    _tree.cache_clear()


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def _place(path: Path) -> str:
    return path.relative_to(ROOT / "adws").as_posix()


def _is_allowed(path: Path, rooms: list[str]) -> bool:
    place = _place(path)
    return any(place.startswith(room) if room.endswith("/") else place == room for room in rooms)


def _imports(tree: ast.AST, *, at_run_time: bool = False) -> Iterator[tuple[int, str]]:
    """Yield line and full name of everything that is imported; under TYPE_CHECKING too, unless *at_run_time*."""
    hidden = _only_for_types(tree) if at_run_time else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node.lineno not in hidden:
            yield from ((node.lineno, alias.name) for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and node.lineno not in hidden:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _only_for_types(tree: ast.AST) -> set[int]:
    """Return the lines below `if TYPE_CHECKING:`, which never run."""
    blocks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    return {line for block in blocks for line in range(block.lineno, (block.body[-1].end_lineno or 0) + 1)}


def _uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and full name of every name that is used, with imports resolved: `now` of `datetime` and the like."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                known[alias.asname or top] = alias.name if alias.asname else top
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and (names := _dotted(node)):
            yield node.lineno, ".".join([known.get(names[0], names[0]), *names[1:]])


def _dotted(node: ast.expr) -> list[str]:
    """Return the names of `a.b.c`; none for what is an attribute of anything else, such as of a call."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value

    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def _is_or_is_in(name: str, thing: str) -> bool:
    return name == thing or name.startswith(thing + ".")


def test_a_library_is_imported_only_in_its_place():
    wrong = [
        f"{_place(path)}:{line}: {name} belongs to {', '.join(rooms)}"
        for path in FILES
        for line, name in _imports(_tree(path), at_run_time=True)
        for library, rooms in LIBRARIES.items()
        if _is_or_is_in(name, library) and not _is_allowed(path, rooms)
    ]

    assert wrong == []


def test_every_dependency_at_run_time_is_used():
    """
    What nobody imports is not installed.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {"PyGithub": "github"}
    names["prometheus-client"] = "prometheus_client"
    asked = [re.split(r"[\[>=<]", text)[0] for text in project["dependencies"]]
    imported = {name.split(".")[0] for path in FILES for _, name in _imports(_tree(path), at_run_time=True)}

    assert {names.get(name, name) for name in asked} - imported == set()


def test_time_randomness_environment_and_output_have_one_door_each():
    wrong = sorted(
        {
            f"{_place(path)}:{line}: {name} belongs to {', '.join(places) or 'no file'}"
            for path in FILES
            for line, name in _uses(_tree(path))
            for thing, places in CALLS.items()
            if _is_or_is_in(name, thing) and not _is_allowed(path, places)
        }
    )

    assert wrong == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os\nos.environ['X']", "os.environ"),
        ("from os import environ as e\ne['X']", "os.environ"),
        ("import datetime as d\nd.datetime.now()", "datetime.datetime.now"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("import time\nwait = time.sleep", "time.sleep"),
        ("print('x')", "print"),
    ],
)
def test_a_name_is_found_however_it_was_imported(source, found):
    """
    The check above would be blind if it knew only one spelling.
    """
    assert any(_is_or_is_in(name, found) for _, name in _uses(ast.parse(source)))


def test_everything_is_caught_only_at_the_outermost_frame_and_in_sinks():
    wrong = [
        f"{_place(path)}:{node.lineno}"
        for path in FILES
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ExceptHandler) and _catches_all(node) and _place(path) not in CATCH_ALL
    ]

    assert wrong == []


def _catches_all(handler: ast.ExceptHandler) -> bool:
    """Say whether it hides bugs: a handler that ends in a bare `raise` only cleans up."""
    if isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None:
        return False
    return handler.type is None or re.search(r"\b(Base)?Exception\b", ast.unparse(handler.type)) is not None


#: a marker -> what must follow it on the line
EXCEPTIONS = {
    "noqa": re.compile(r"noqa: [A-Z]+[0-9]+(, ?[A-Z]+[0-9]+)* - \S.{5,}"),
    "type: ignore": re.compile(r"type: ignore\[[a-z-]+(, ?[a-z-]+)*\]  ?(#|-) ?\S.{5,}"),
    "pragma: no cover": re.compile(r"pragma: no (cover|branch) - \S.{5,}"),
    "pragma: no branch": re.compile(r"pragma: no (cover|branch) - \S.{5,}"),
}


def _unexplained(comment: str) -> list[str]:
    return [mark for mark, shape in EXCEPTIONS.items() if mark in comment and not shape.search(comment)]


def test_every_exception_from_a_rule_gives_its_reason():
    wrong = []
    for path in [*FILES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "scripts").rglob("*.py"))]:
        if not any(mark in path.read_text() for mark in EXCEPTIONS):
            continue  # without a word of it, no comment has it either
        with path.open("rb") as file:
            comments = [token for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT]
        wrong += [f"{path.relative_to(ROOT)}:{c.start[0]}: {c.string}" for c in comments if _unexplained(c.string)]

    assert wrong == []


@pytest.mark.parametrize(
    "comment",
    ["# noqa", "# noqa: S603", "# type: ignore", "# type: ignore[arg-type]", "# pragma: no cover", "# noqa: S603 -"],
)
def test_an_exception_without_a_reason_is_found(comment):
    assert _unexplained(comment)


def test_pure_modules_import_nothing_that_acts():
    """
    What is pure needs no fake and no clean-up in a test.
    """
    pure = _pure_files()
    acting = {"socket", "threading", "multiprocessing", "fcntl", "shutil", "tempfile", "signal", "logging", "sqlite3"}
    wrong = [
        f"{_place(path)}:{line}: {name}"
        for path in pure
        for line, name in _imports(_tree(path))
        if name.split(".")[0] in acting
    ]

    assert pure
    assert wrong == []


def _pure_files() -> list[Path]:
    sys.path.insert(0, str(ROOT / "scripts" / "lib"))
    try:
        import checks
    finally:
        sys.path.pop(0)
    return [ROOT / name for name in checks.pure_files()]


#: What `adw status|list|events|locks` stand on.
LOOKING = ["errors", "events", "ids", "interfaces", "owner_record", "state_files", "atomic_state", "clock", "process"]


def test_what_only_looks_loads_no_slow_library():
    """
    `adw status` must start before a person notices.
    """
    modules = [name for name in LOOKING if (ROOT / f"adws/adw_modules/{name}.py").exists()]
    code = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module("adws.adw_modules." + name)
print(*sorted({{"sqlalchemy", "alembic", "filelock", "psycopg", "rich"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


def test_importing_the_package_opens_nothing():
    code = "import sys, adws; print('adws.app' in sys.modules, 'adws.config.load' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "False"]


def test_a_file_of_tests_has_a_name_of_its_own():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]

    assert sorted(names) == sorted(set(names))
