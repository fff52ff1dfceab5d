"""Every page, with something on it: nothing serious for axe, nothing too wide, no complaint, in each way to look."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests import browser_plugin
from tests.browser import ground
from tests.browser_plugin import DESK, PHONE, Browsing
from tests.integration.web_lab import SECRET, TOKEN, labelled

#: In the dark the same elements have other colours, and nothing else differs.
COLOURS = ["color-contrast", "link-in-text-block"]
LOOKS = {
    "light": {"scheme": "light", "size": DESK},
    "dark": {"scheme": "dark", "size": DESK},
    "phone": {"scheme": "light", "size": PHONE},
    "phone-dark": {"scheme": "dark", "size": PHONE},
}


@pytest.fixture(scope="module")
def seeded(chromium, tmp_path_factory):
    """A home with a workflow in every situation, served for all tests of this module."""
    with pytest.MonkeyPatch.context() as patch:
        settings = {"ADW_WEB_TOKEN": TOKEN, "ADW_WEBHOOK_SECRET": SECRET, "ADW_FORGE": "none"}
        for name, value in settings.items():
            patch.setenv(name, value)
        home = ground.make_home(tmp_path_factory.mktemp("everybody"))
        with ground.serve(home, Browsing(chromium)) as served:
            ids = {
                workflow: served.start(workflow, issue=number, title=f"{workflow}: an issue")
                for number, workflow in enumerate(("gated", "broken", "patient", "looped"), start=1)
            }
            for workflow in ("gated", "broken", "patient"):
                served.follow_until_it_rests(ids[workflow])
            served.until(lambda: _some_retry_waits(served, ids["looped"]), "no iteration waits for a retry")
            ids["scripted"] = served.start(issue=9, title="scripted: at work")
            served.has_begun()
            body, headers = labelled(33)
            assert served.client.post("/webhooks/github", content=body, headers=headers).status_code == 202
            yield served, ids
            with served.output():
                pass


def _some_retry_waits(served, adw_id: str) -> bool:
    found = served.client.get(f"/api/v1/workflows/{adw_id}/executions").json()["executions"]
    return any(one["waiting"] and not one["running"] for one in found)


def pages_of(served, ids) -> list[str]:
    """Return every page there is to look at."""
    [execution] = served.client.get(f"/api/v1/workflows/{ids['looped']}/executions").json()["executions"]
    loop = f"/workflows/{ids['looped']}/executions/{execution['execution_id']}"
    return [
        "/",
        "/workflows",
        "/workflows?state=failed",
        "/workflows?search=nothing-has-this-name",
        "/runs",
        "/runners",
        "/locks",
        "/deliveries",
        *(f"/workflows/{adw_id}" for adw_id in ids.values()),
        f"/workflows/{ids['broken']}/log",
        f"/workflows/{ids['broken']}/events",
        f"/workflows/{ids['broken']}/attempts/build/1",
        f"/workflows/{ids['gated']}/rollback",
        f"/workflows/{ids['gated']}/abandon",
        loop,
        f"{loop}/iterations/1",
        f"{loop}/iterations/2",
    ]


@pytest.mark.parametrize("look", LOOKS)
def test_no_page_keeps_anybody_out(seeded, browsing, look):
    served, ids = seeded
    page = browsing.page(served.address, **LOOKS[look])
    page.goto("/login")
    rules = COLOURS if LOOKS[look]["scheme"] == "dark" else None
    found = [f"/login: {flaw}" for flaw in browser_plugin.flaws(page, rules=rules)]
    ground.log_in(page)
    for path in pages_of(served, ids):
        page.goto(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        found += [f"{path}: {flaw}" for flaw in browser_plugin.flaws(page, rules=rules)]
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            found.append(f"{path}: is wider than the window")

    assert not found, "\n".join(found)


def test_a_page_that_is_not_there_says_so_and_keeps_nobody_out(seeded, browsing):
    served, _ = seeded
    browsing.forgive("status of 404")
    page = browsing.page(served.address)
    ground.log_in(page, "/workflows/00000000")

    expect(page.get_by_role("main")).to_contain_text("00000000")
    assert browser_plugin.flaws(page) == []
    page.goto("/nowhere")
    assert browser_plugin.flaws(page) == []


@pytest.mark.parametrize("path", ["/", "/workflows", "/runs", "/runners", "/locks", "/deliveries"])
def test_every_list_can_be_read_without_the_script(seeded, browsing, path):
    served, _ = seeded
    page = browsing.page(served.address, has_script=False)
    ground.log_in(page, path)

    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("main")).not_to_be_empty()
    for heading in page.get_by_role("heading").all():
        assert heading.inner_text().strip()
