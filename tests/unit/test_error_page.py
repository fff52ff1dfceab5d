"""The page about errors says what the table says."""

from __future__ import annotations

import re
from pathlib import Path

from adws.adw_modules import ambient
from adws.adw_modules.error_classes import CLASSES, ErrorCategory
from adws.adw_modules.error_patterns import CLOSING_LINES, LAST_LINES
from adws.testing import memory_parts

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()


def _row(found):
    retries = "as often as allowed" if found.max_retries is None else str(found.max_retries)
    return (found.name, found.category.value, retries if found.is_recoverable else "", found.advice)


def test_the_page_lists_every_class_as_it_is():
    rows = [
        tuple(cell.strip(" `") for cell in line.strip("|").split("|")) for line in PAGE.splitlines() if line[:1] == "|"
    ]

    assert {row for row in rows if row[0] in CLASSES} == {_row(found) for found in CLASSES.values()}
    assert {row[0] for row in rows} >= {category.value for category in ErrorCategory}
    text = " ".join(PAGE.split())
    assert f"the last {LAST_LINES} lines" in text
    assert f"in its last {CLOSING_LINES} lines" in text


def test_the_example_on_the_page_runs():
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    fetched = []

    with ambient.using(memory_parts()):
        exec(code, {"upload": dict, "fetch": fetched.append})

    assert fetched == ["https://example.org"]
