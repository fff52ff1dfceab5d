"""
The packages of adw as docs/architecture.md shows them: a line for each, and a figure of who imports whom.

Both are made from the code: the lines are the first lines of docstrings, the figure is the import graph, and the layers
are those of the import contracts in pyproject.toml.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
CORE = "adws.adw_modules"


def layers() -> list[list[str]]:
    """Return the packages of each layer, the uppermost first, by their full names."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    outer, inner = ([_names(one, layer) for layer in one["layers"]] for one in contracts if one["type"] == "layers")

    return [part for layer in outer for part in (inner if layer == [CORE] else [layer])]


def _names(contract: Mapping[str, list[str]], layer: str) -> list[str]:
    (container,) = contract["containers"]
    return [f"{container}.{name}" for name in re.findall(r"\w+", layer)]


def package_lines() -> Iterator[tuple[str, str]]:
    """Yield each package or module of the layers and what it is for, the uppermost first."""
    for layer in layers():
        for name in layer:
            yield name, _purpose(name)


def _purpose(name: str) -> str:
    path = ROOT / name.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text())) or ""

    return text.split("\n\n")[0].replace("\n", " ")


def figure() -> str:
    """Return the packages and their imports as a Mermaid flowchart; what follows from other arrows is left out."""
    result = layers()
    edges = _reduced(_imports([name for layer in result for name in layer]))
    lines = ["flowchart TB"]
    for number, layer in enumerate(result, 1):
        lines.append(f'  subgraph L{number}[" "]')
        lines += [f'    {_id(name)}["{_short(name)}"]' for name in layer]
        lines.append("  end")
    lines += [f"  {_id(upper)} --> {_id(lower)}" for upper in sorted(edges) for lower in sorted(edges[upper])]

    return "\n".join(lines)


def _imports(packages: list[str]) -> dict[str, set[str]]:
    graph = grimp.build_graph("adws", exclude_type_checking_imports=True, cache_dir=None)
    owner = {
        module: package
        for module in graph.modules
        for package in packages
        if module == package or module.startswith(package + ".")
    }
    edges: dict[str, set[str]] = {name: set() for name in packages}
    for module, package in owner.items():
        for imported in graph.find_modules_directly_imported_by(module):
            other = owner.get(imported)
            if other is not None and other != package:
                edges[package].add(other)

    return edges


def _reduced(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return *edges* without those that follow from two or more others."""
    reach: dict[str, set[str]] = {}

    def reached(name: str) -> set[str]:
        if name not in reach:
            reach[name] = set(edges[name]).union(*(reached(other) for other in edges[name]))
        return reach[name]

    return {
        name: {one for one in others if not any(one in reached(other) for other in others if other != one)}
        for name, others in edges.items()
    }


def _short(name: str) -> str:
    return name.removeprefix(CORE + ".").removeprefix("adws.")


def _id(name: str) -> str:
    return _short(name).replace(".", "_")
