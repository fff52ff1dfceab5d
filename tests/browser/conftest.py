"""Every test here opens pages in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import browser_plugin
from tests.integration.web_lab import SECRET, TOKEN


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser/" in item.path.as_posix():
            item.add_marker("browser")


@pytest.fixture(scope="package", autouse=True)
def _settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("ADW_WEB_TOKEN", TOKEN), ("ADW_WEBHOOK_SECRET", SECRET), ("ADW_FORGE_KIND", "none")):
            patch.setenv(name, value)
        yield


# --- the browser -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="package")
def chromium():
    """
    The browser, one for all tests of this package that a process runs one after the other.

    It ends before a test of another package: while it is open an event loop counts as running, and others start one.
    """
    with browser_plugin.started() as opened:
        yield opened


@pytest.fixture
def browsing(chromium) -> Iterator[browser_plugin.Browsing]:
    """Opens pages; the test fails when one of them complained."""
    pages = browser_plugin.Browsing(chromium)
    yield pages
    pages.close()
    assert pages.left() == []


# --- servers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path):
    """A home of its own, with workflows whose output the test writes, and its settings."""
    from tests.browser import ground

    return ground.make_home(tmp_path)


@pytest.fixture(scope="package")
def _kept(tmp_path_factory):
    from tests.browser import ground

    with ground.Kept(lambda: tmp_path_factory.mktemp("kept")) as kept:
        yield kept


@pytest.fixture
def served(_kept, browsing):
    """A server with one worker, and those who look at its pages; other tests had workflows there before."""
    with _kept.lent(browsing, workers=1) as opened:
        yield opened


@pytest.fixture
def still(_kept, browsing):
    """A server without workers: nothing happens but what the test does; other tests did something before."""
    with _kept.lent(browsing, workers=0) as opened:
        yield opened


@pytest.fixture
def new(home, browsing):
    """A server of a home in which nothing was ever started, with one worker."""
    from tests.browser import ground

    with ground.serve(home, workers=1) as server:
        yield server.seen_by(browsing)
        browsing.close()  # before the server ends: a page whose server is gone rightly complains


@pytest.fixture(scope="package")
def _situations(tmp_path_factory):
    from tests.browser import ground

    with ground.serve(ground.make_home(tmp_path_factory.mktemp("situations")), workers=1) as server:
        yield server, ground.bring_about(server)


@pytest.fixture
def situations(_situations, browsing):
    """A server with a workflow in every situation, to be looked at and not to be changed; and their ids by name."""
    server, ids = _situations
    yield server.seen_by(browsing), ids
    browsing.close()
