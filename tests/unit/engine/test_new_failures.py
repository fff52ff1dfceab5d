"""
Which failures of a red gate are new, compared with its output on the base commit.
"""

from __future__ import annotations

from pathlib import Path

from adws.adw_modules.engine.base_check import new_failures, plain

RUFF = "app.py:10:1: F401 `os` imported but unused\nFound 1 error.\n"
PYTEST = """\
tests/test_app.py .F                                                     [100%]
E       assert 1 == 2
tests/test_app.py:12: AssertionError
FAILED tests/test_app.py::test_one - assert 1 == 2
1 failed, 1 passed in 0.02s
"""


def test_only_lines_that_tell_of_another_failure_are_new():
    for before, now, new in [
        (RUFF, RUFF, []),
        (RUFF, RUFF.replace(":10:", ":31:"), []),
        (RUFF, RUFF + "app.py:40:1: F401 `sys` imported but unused\n", ["app.py:40:1: F401 `sys` imported but unused"]),
        (RUFF, RUFF + "app.py:12:1: F401 `os` imported but unused\n", ["app.py:12:1: F401 `os` imported but unused"]),
        (RUFF, RUFF.replace("app.py", "new.py"), ["new.py:10:1: F401 `os` imported but unused"]),
        (PYTEST, PYTEST.replace("0.02s", "7.31s").replace("1 passed", "9 passed"), []),
        (PYTEST, PYTEST.replace("[100%]", "[ 50%]\ntests/test_new.py .     [100%]"), []),
        (
            PYTEST,
            PYTEST + "FAILED tests/test_app.py::test_two - KeyError: 'x'\n",
            ["FAILED tests/test_app.py::test_two - KeyError: 'x'"],
        ),
        ("it is red\n", "it is red\n", []),
        ("it is red\n", "it is worse\n", ["it is worse"]),
        ("it is red\n", "", []),
        ("", "app.py:1: broken\n", ["app.py:1: broken"]),
    ]:
        assert new_failures(before, now) == new, before


def test_colours_and_the_directory_of_the_checkout_are_not_compared():
    cwd = Path("/home/ada/trees/1a2b3c4d")

    assert plain(f"\x1b[31m{cwd}/app.py:1: x\x1b[0m in {cwd}", cwd) == "app.py:1: x in ."
