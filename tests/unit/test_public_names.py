"""
The names others may rely on, frozen in tests/public_names.txt: a change is seen in review.

After a change that is meant: `scripts/test tests/unit/test_public_names.py --update-names`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "public_names.txt"


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _names_of(path: Path) -> Iterator[str]:
    module = _module_name(path)
    yield module
    for line in _names_in(ast.parse(path.read_text()).body):
        yield f"{module}.{line}"


def _names_in(body: list[ast.stmt]) -> Iterator[str]:
    """Yield public functions with their signature, classes with their bases and members, and constants."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            _is_public(node.name) or node.name == "__init__"
        ):
            yield _signature(node)
        if isinstance(node, ast.ClassDef) and _is_public(node.name):
            yield f"{node.name}({', '.join(ast.unparse(base) for base in node.bases)})"
            yield from (f"{node.name}.{line}" for line in _names_in(node.body))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_public(node.target.id):
            yield f"{node.target.id}: {ast.unparse(node.annotation)}"
        if isinstance(node, ast.Assign):
            targets = [t.id for t in node.targets if isinstance(t, ast.Name)]
            yield from (f"{name} =" for name in targets if _is_public(name))


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    kind = "".join(
        f"@{mark} "
        for decorator in node.decorator_list
        if (mark := ast.unparse(decorator)) in {"property", "classmethod", "staticmethod"}
    )
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""

    return f"{node.name}({ast.unparse(node.args)}){returns} {kind}".rstrip()


def _current() -> list[str]:
    files = sorted((ROOT / "adws").rglob("*.py"))
    # Alembic's revisions are run by name and imported by nobody.
    public = [
        path
        for path in files
        if all(_is_public(part) or part == "__init__.py" for part in path.relative_to(ROOT).parts)
    ]
    return sorted({line for path in public if "versions" not in path.parts for line in _names_of(path)})


def test_the_public_names_are_those_that_were_agreed(request):
    current = _current()
    if request.config.getoption("--update-names"):
        LIST.write_text("\n".join(current) + "\n")

    agreed = LIST.read_text().splitlines()
    gone = sorted(set(agreed) - set(current))
    new = sorted(set(current) - set(agreed))

    assert (gone, new) == ([], []), "if this is meant: scripts/test tests/unit/test_public_names.py --update-names"
    assert agreed == current


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(a: int, *, b=1) -> str: ...", ["f(a: int, *, b=1) -> str"]),
        ("def _f(): ...", []),
        ("LIMIT: int = 3\n_hidden = 1", ["LIMIT: int"]),
        ("A = B = 1", ["A =", "B ="]),
        (
            "class C(Base):\n x: int\n def __init__(self): ...\n def _p(self): ...",
            ["C(Base)", "C.x: int", "C.__init__(self)"],
        ),
        ("class C:\n @property\n def p(self) -> int: ...", ["C()", "C.p(self) -> int @property"]),
    ],
    ids=["function", "private", "constant", "two-names", "class", "property"],
)
def test_what_counts_as_a_public_name(source, names):
    assert list(_names_in(ast.parse(source).body)) == names
