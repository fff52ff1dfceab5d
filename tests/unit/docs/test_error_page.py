"""The page about errors says what the table says."""

from __future__ import annotations

import re
from pathlib import Path

from adws.adw_modules.error_tables import CLASSES, LAST_LINES, ErrorCategory

PAGE = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()


def test_the_page_lists_every_class_as_it_is():
    section = PAGE.split("## Errors and retries\n")[1].split("\n## ")[0]
    parts = re.split(r"^`(\w+)`: ", section, flags=re.MULTILINE)[1:]

    assert parts[::2] == ["transient", "rate_limit", "resource", "configuration", "fatal"]
    assert {*parts[::2]} == {category.value for category in ErrorCategory}
    for category, part in zip(parts[::2], parts[1::2], strict=True):
        lines = re.findall(r"^- `(\w+)`(?: \((\d) retr(?:y|ies)\))?: (.*)$", part, re.MULTILINE)
        assert lines == [
            (
                one.name,
                str(one.max_retries) if one.is_recoverable and one.max_retries is not None else "",
                # What to type after each of them is said once.
                one.advice.replace(", then: adw retry ID.", ".") if category == "configuration" else one.advice,
            )
            for one in CLASSES.values()
            if one.category.value == category
        ]
    assert f"the last {LAST_LINES} lines" in " ".join(section.split())
