"""Every known flaw of an earlier design names the tests that catch it, and those tests exist."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LIST = ROOT / "tests" / "seed_flaws.toml"

#: S0-1 to S4-...: the five designs; W-...: code in the wild.
ID = re.compile(r"(S[0-4]|W)-[1-9][0-9]?")


def _problems(flaws: dict, root: Path) -> list[str]:
    """Return what is wrong with the list, one sentence each."""
    result = []
    for flaw_id, entry in flaws.items():
        if ID.fullmatch(flaw_id) is None:
            result.append(f"{flaw_id}: an id looks like S4-9 or W-3")
        if set(entry) != {"flaw", "tests"}:
            result.append(f"{flaw_id}: needs `flaw` and `tests`, and nothing else")
            continue
        if not entry["flaw"].strip() or "\n" in entry["flaw"]:
            result.append(f"{flaw_id}: `flaw` is one line")
        if not entry["tests"]:
            result.append(f"{flaw_id}: names no test")
        result += [f"{flaw_id}: there is no test {test}" for test in entry["tests"] if not has_test(test, root)]
    return result


def has_test(test_id: str, root: Path) -> bool:
    """Say whether *test_id* (`path::function` or `path::Class::function`) names a test; a class may inherit it."""
    file, *names = test_id.split("::")
    path = root / file
    if not names or not file.startswith("tests/") or not path.is_file():
        return False

    body = _statements(path, path.stat().st_mtime_ns)
    for name in names[:-1]:
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
        if not classes:
            return False
        body = classes[0].body
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    machines = {t.id for node in body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)}

    return names[-1] in functions or (names[-1].startswith("Test") and names[-1] in machines)


@functools.lru_cache(maxsize=8)  # the list is ordered by file, more or less
def _statements(path: Path, _changed_ns: int) -> list[ast.stmt]:
    return ast.parse(path.read_text()).body


def test_every_listed_flaw_has_a_test_that_exists():
    assert _problems(tomllib.loads(LIST.read_text()), ROOT) == []


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(
        "def test_a(): ...\nclass TestB:\n    def test_c(self): ...\nTestMachine = Machine.TestCase\n"
    )
    return tmp_path


@pytest.mark.parametrize("name", ["test_a", "TestB::test_c", "TestMachine"])
def test_a_test_that_exists_is_found(tree, name):
    assert _problems({"S4-9": {"flaw": "x", "tests": [f"tests/test_x.py::{name}"]}}, tree) == []


@pytest.mark.parametrize(
    ("flaw_id", "entry"),
    [
        ("S4-9", {"flaw": "x", "tests": ["tests/test_x.py::test_gone"]}),
        ("S4-9", {"flaw": "x", "tests": ["tests/test_gone.py::test_a"]}),
        ("S4-9", {"flaw": "x", "tests": ["tests/test_x.py::TestB::test_a"]}),
        ("S4-9", {"flaw": "x", "tests": ["tests/test_x.py"]}),
        ("S4-9", {"flaw": "x", "tests": []}),
        ("S4-9", {"flaw": "two\nlines", "tests": ["tests/test_x.py::test_a"]}),
        ("S4-9", {"flaw": "x"}),
        ("S5-1", {"flaw": "x", "tests": ["tests/test_x.py::test_a"]}),
        ("S4-0", {"flaw": "x", "tests": ["tests/test_x.py::test_a"]}),
    ],
)
def test_a_wrong_entry_is_named(tree, flaw_id, entry):
    (problem,) = _problems({flaw_id: entry}, tree)

    assert problem.startswith(flaw_id)
