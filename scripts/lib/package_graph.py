"""
The packages of adw as docs/architecture.md lists them, the uppermost layer first.

The lines are the first lines of docstrings, and the layers those of the import contracts in pyproject.toml.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

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
    """Yield each package of the layers and what it is for, the uppermost first; modules beside them are left out."""
    for layer in layers():
        for name in layer:
            if (ROOT / name.replace(".", "/")).is_dir():
                yield name, _purpose(name)


def _purpose(name: str) -> str:
    file = ROOT / name.replace(".", "/") / "__init__.py"
    text = ast.get_docstring(ast.parse(file.read_text())) or ""

    return text.split("\n\n")[0].replace("\n", " ")
