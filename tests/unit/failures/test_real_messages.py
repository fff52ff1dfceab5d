"""
Plain texts get the category that a person would give them; `pytest -s` prints precision and recall.

A message is a trap when a search for "port", "disk", "space", "config", "missing", "not found", "timeout", "connection"
and "network" anywhere in it would give it a category that is wrong.
"""

from __future__ import annotations

import time
import tomllib
from pathlib import Path

import pytest

from adws.adw_modules.error_handler import ErrorClassifier, describe
from adws.adw_modules.error_tables import class_of_text
from adws.adw_modules.errors import FailedRun, RunFailed

TABLE = tomllib.loads((Path(__file__).parents[2] / "data" / "real_messages.toml").read_text())
#: program, message, the category that it has to get
MESSAGES = [(program, text, category) for category, rows in TABLE.items() for program, text in rows]
#: The category that a search for parts of words gives, as the design document sketches it.
PARTS = {
    "rate_limit": ("rate limit",),
    "resource": ("port", "disk", "space"),
    "configuration": ("config", "not found", "missing"),
    "transient": ("timeout", "connection", "network"),
}
CATEGORIES = ("transient", "rate_limit", "resource", "configuration")


def by_substring(text):
    return next((name for name, parts in PARTS.items() if any(part in text.lower() for part in parts)), "fatal")


def is_trap(text, category):
    return by_substring(text) not in {category, "fatal"}


def _category(text):
    return describe(Exception(text), "build").category.value


def _table(name, classify):
    """Return precision and recall of *classify* over all categories, and a printed line for each."""
    answers = [(classify(text), category) for _, text, category in MESSAGES]
    lines, found, right, wanted = [f"{name:<15} precision  recall"], 0, 0, 0
    for each in CATEGORIES:
        said = sum(answer == each for answer, _ in answers)
        hits = sum(answer == category == each for answer, category in answers)
        there = sum(category == each for _, category in answers)
        lines.append(f"{each:<15} {hits / max(said, 1):9.1%} {hits / there:7.1%}  ({hits} of {there})")
        found, right, wanted = found + said, right + hits, wanted + there
    lines.append(f"{'all':<15} {right / found:9.1%} {right / wanted:7.1%}  ({right} of {wanted})")

    return right / found, right / wanted, "\n".join(lines)


def test_the_table_has_150_messages_of_many_programs_and_half_of_them_are_traps():
    traps = [text for _, text, category in MESSAGES if is_trap(text, category)]

    assert len({text for _, text, _ in MESSAGES}) == len(MESSAGES) >= 150
    assert len(traps) * 2 >= len(MESSAGES)
    assert {"rustc", "tsc", "pytest", "jest", "git", "npm", "pip", "docker", "aws", "gcloud", "az", "claude"} <= {
        program for program, _, _ in MESSAGES
    }


def test_precision_and_recall_over_the_table_are_at_least_98_percent():
    precision, recall, lines = _table("adw", _category)
    substring = _table("parts of words", by_substring)
    traps = sum(is_trap(text, category) for _, text, category in MESSAGES)
    print(f"\n{len(MESSAGES)} messages, {traps} of them traps\n{lines}\n{substring[2]}")  # noqa: T201 - shown by pytest -s

    assert min(precision, recall) >= 0.98
    assert max(substring[:2]) < 0.6


@pytest.mark.parametrize("category", TABLE)
def test_real_messages_get_their_category(category):
    wrong = []
    for program, text in TABLE[category]:
        error = ErrorClassifier.classify(Exception(text), "build")
        said = (
            error.category.value,
            error.recoverable,
            error.metadata.get("requires_cleanup", False),
            error.metadata.get("requires_manual_intervention", False),
        )
        if said != (
            category,
            category in {"transient", "rate_limit", "resource"},
            category == "resource",
            category == "configuration",
        ):
            wrong.append((program, text, said))

    assert wrong == []


def test_words_inside_other_words_say_nothing():
    for text in [
        *("Failed to write report", "import in use", "the workspace is full", "transport is already allocated"),
        *("the report is in use", "Namespace already in use", "reports 9100 in use", "viewport is taken"),
        *("airport not found", "no import found", "misconfigured", "spaceship missing", "out of diskette"),
        *("passports are in use", "no free imports", "profile not found", "transmissing", "reconnection refusedly"),
        # Identifiers, options, paths and quoted names.
        *("test_port_9100_in_use", "src/port in use.py", "--port-in-use", "lib/disk full.rs", "rate_limit = 5"),
        *("x/timeout", "a.connection_refused", "no attribute 'timeout'", "no member `overloaded`", "timeout.py"),
        *("Setting DATABASE_URL", "error rate exceeded 5 percent", "Resource 'ENOENTRY'"),
    ]:
        assert class_of_text(text) is None, text


def test_codes_in_quotes_and_values_of_a_dict_count():
    assert class_of_text("Error: boom {\n  errno: -2,\n  code: 'ENOENT',\n  path: 'x'\n}") == "missing"
    assert class_of_text("{'type': 'error', 'error': {'type': 'rate_limit_error'}}") == "rate_limited"


def test_a_failed_test_that_speaks_of_files_and_networks_is_a_failure_of_the_work():
    output = (
        "tests/test_load.py F\n"
        "E       AssertionError: assert 'file not found' == 'ok'\n"
        "=========== short test summary info ===========\n"
        "FAILED tests/test_load.py::test_missing - FileNotFoundError: [Errno 2] No such file or directory: 'plan.md'\n"
        "FAILED tests/test_net.py::test_timeout - ConnectionRefusedError: [Errno 111] Connection refused\n"
        "2 failed, 12 passed in 0.31s\n"
    )

    assert describe(RunFailed(FailedRun(exit_code=1, text=output)), "test").klass == "failed"


def test_hostile_lines_are_read_in_no_time():
    started = time.process_time()
    for hostile in (
        *("'" + "a" * 8000, "'" * 8000, "`" * 8000, " " * 4000 + "x" * 4000, "could not find " + "x" * 8000),
        *("A_" * 4000, "port 1, 2" * 800, "/a" * 4000, "lost connection to a b " * 300, "AssertionErro" * 600),
    ):
        class_of_text(hostile)

    assert time.process_time() - started < 2.0
