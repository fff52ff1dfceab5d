"""
A package with plugins, as pip would leave it: a module and the record of its entry points, found by way of a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(place: Path, module: str, source: str, points: Mapping[str, Mapping[str, str]], *, version="1.0") -> Path:
    """Leave the package *module* in the directory *place*; *points* is group -> name -> object."""
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{module}.py").write_text(source)
    record = place / f"{module}-{version}.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
    lines = [
        line
        for group, names in points.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in names.items()))
    ]
    (record / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return place
