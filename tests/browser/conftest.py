"""Every test here opens pages in a real Chromium."""

from __future__ import annotations

import pytest

from tests.integration.web_lab import SECRET, TOKEN


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser/" in item.path.as_posix():
            item.add_marker("browser")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with workflows whose output the test writes, and its settings."""
    from tests.browser import ground

    for name, value in (("ADW_WEB_TOKEN", TOKEN), ("ADW_WEBHOOK_SECRET", SECRET), ("ADW_FORGE", "none")):
        monkeypatch.setenv(name, value)
    return ground.make_home(tmp_path)


@pytest.fixture
def served(home, browsing):
    """A server of that home with one worker, and those who look at its pages."""
    from tests.browser import ground

    with ground.serve(home, browsing) as found:
        yield found
