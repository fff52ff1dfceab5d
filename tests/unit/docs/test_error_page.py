"""The page about errors says what the table says."""

from __future__ import annotations

import re
from pathlib import Path

from adws.adw_modules import default_home
from adws.adw_modules.error_tables import CLASSES, CLOSING_LINES, LAST_LINES, ErrorCategory
from tests.homes import lab_home

PAGE = (Path(__file__).parents[3] / "docs" / "errors.md").read_text()


def _row(found):
    retries = "as often as allowed" if found.max_retries is None else str(found.max_retries)
    return (found.name, found.category.value, retries if found.is_recoverable else "", found.advice)


def test_the_page_lists_every_class_as_it_is():
    rows = [
        tuple(cell.strip(" `") for cell in line.strip("|").split("|")) for line in PAGE.splitlines() if line[:1] == "|"
    ]

    assert {row for row in rows if row[0] in CLASSES} == {_row(item) for item in CLASSES.values()}
    assert {row[0] for row in rows} >= {category.value for category in ErrorCategory}
    text = " ".join(PAGE.split())
    assert f"the last {LAST_LINES} lines" in text
    assert f"in its last {CLOSING_LINES} lines" in text


def test_the_example_on_the_page_runs():
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    fetched = []

    with default_home.using(lab_home()):
        exec(code, {"upload": dict, "fetch": fetched.append})

    assert fetched == ["https://example.org"]
