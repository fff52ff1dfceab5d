"""
Which paths a pattern means.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.git.change_policy import matching, outside


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("docs", "docs/a.md", True),
        ("docs/", "docs/deep/a.md", True),
        ("docs", "docs", True),
        ("docs", "src/docs/a.md", True),
        ("docs", "docs2/a.md", False),
        ("/docs", "src/docs/a.md", False),
        ("*.md", "README.md", True),
        ("*.md", "docs/a.md", True),
        ("*.md", "a.mdx", False),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/deep/a.py", False),
        ("src/**/*.py", "src/a.py", True),
        ("src/**/*.py", "src/very/deep/a.py", True),
        ("src/**", "src/a/b.txt", True),
        ("src/**", "src", False),
        ("**/test_?.py", "x/test_a.py", True),
        ("test_?.py", "test_ab.py", False),
        ("./a.txt", "a.txt", True),
        ("a+b.txt", "a+b.txt", True),
        ("a+b.txt", "aab.txt", False),
        (".github/workflows", ".github/workflows/ci.yml", True),
        (".github/workflows", "sub/.github/workflows/ci.yml", False),
        ("a**b", "axxb", True),
    ],
)
def test_a_pattern_means(pattern, path, expected):
    assert (matching((path,), (pattern,)) == (path,)) is expected


def test_what_no_pattern_means_is_outside():
    assert outside(("a.py", "docs/x.md"), ("docs/", "*.txt")) == ("a.py",)


def test_without_patterns_everything_is_allowed():
    assert outside(("a.py",), ()) == ()
