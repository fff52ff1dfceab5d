"""The style sheet of the dashboard: a name means one thing, on every page."""

from __future__ import annotations

import re
from pathlib import Path

from adws.web import dashboard as pages

SHEET = (Path(pages.__file__).parent / "static" / "adw.css").read_text(encoding="utf-8")


def begun(text: str) -> list[str]:
    """Return the classes that are defined in *text*, alone: not beside a tag or inside of something else."""
    # What holds for some windows only is indented.
    rules = re.findall(r"^([^\s@/}][^{}]*)\{", text, flags=re.MULTILINE)
    return [one.strip() for rule in rules for one in rule.split(",") if re.fullmatch(r"\.[\w-]+", one.strip())]


def test_no_class_is_styled_in_two_parts_of_the_sheet():
    """Who writes one page and takes a name that another page has changes both."""
    parts = [set(begun(part)) for part in re.split(r"/\* --- .*? -+ \*/", SHEET)]

    names = sorted(name for part in parts for name in part)
    assert len(parts) > 5
    assert len(names) > 60
    assert [name for name in set(names) if names.count(name) > 1] == []
