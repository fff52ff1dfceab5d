"""
One workflow phase by phase on the GitHub emulator: by commands, by comments on the issue, and over the API.
"""

from __future__ import annotations

import json

import httpx
import pytest

from tests.acceptance.test_webhook_to_pull_request import WEB_TOKEN, ServedHome
from tests.emulator import Emulator
from tests.emulator_git import knowing_git
from tests.git_http import serving_git

PHASES = """
[phases.plan]
shell = "echo plan >> plan.md"
[phases.build]
shell = "cat plan.md && echo $ADW_ID >> built.txt"
[phases.test]
shell = "cat built.txt"
[phases.review]
shell = "cat built.txt"
[phases.document]
shell = "echo document >> manual.md"
"""
NAMES = ("plan", "build", "test", "review", "document", "ship")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    with Emulator.start(tmp_path_factory.mktemp("emulator")) as emulator:
        yield emulator


@pytest.fixture
def home(tmp_path, emulator):
    place, repository = tmp_path.resolve(), emulator.new_repository()
    remote = place / "remote.git"
    with (
        knowing_git(emulator.url, remote) as url,
        serving_git(remote, repository, host="localhost") as origin,
    ):
        made = ServedHome(place, emulator, url, repository=repository, origin=origin)
        file = made.path / "adw.toml"
        file.write_text(file.read_text() + PHASES)
        yield made


def check_shipped(home, issue: int, adw_id: str) -> None:
    """Look at one document, all of whose phases are complete, and at its one pull request."""
    [path] = home.path.glob("state/*/adw_state.json")
    made = json.loads(path.read_text())
    assert (made["adw_id"], made["current_state"]) == (adw_id, "completed")
    assert [(one["name"], one["status"]) for one in made["phases"]] == [(name, "complete") for name in NAMES]
    [pull] = home.get("/pulls?state=all")
    assert (pull["number"], pull["head"]["ref"], pull["draft"]) == (made["pr_number"], made["branch_name"], True)
    assert f"Closes #{issue}" in pull["body"]
    assert json.loads(home.adw("admin", "locks", "--json").stdout)["locks"] == []
    assert home.adw("admin", "verify").stdout == "all 11 invariants hold\n"


def test_separate_commands_with_one_id_end_with_a_pull_request(home, emulator):
    issue = emulator.create_issue(home.repository, "Add a door", "The house has none.", ())
    first = home.adw("run", str(issue), "--workflow", "adw_plan_iso", "--json")
    assert first.returncode == 0, first.stderr
    adw_id = json.loads(first.stdout)["adw_id"]

    for name in NAMES[1:]:
        done = home.adw("run", str(issue), "--workflow", f"adw_{name}_iso", "--id", adw_id)
        assert done.returncode == 0, (name, done.stdout, done.stderr)

    check_shipped(home, issue, adw_id)


def test_comments_on_the_issue_carry_one_workflow_to_a_pull_request(home, emulator):
    """Every spelling of an id is understood, and without one the last workflow of the issue is meant."""
    issue = emulator.create_issue(home.repository, "Add a door", "The house has none.", ())
    asked = (
        "adw_plan_iso",
        f"adw_build_iso {issue} {{}}",
        "adw_test_iso adw-{}",
        "adw_review_iso adw_id {}",
        "adw_document_iso",
        "/adw ship {}",
    )
    adw_id = ""

    with home.serving() as address:
        home.hook(address)

        def comment(text: str) -> dict:
            emulator._call("POST", f"/repos/{home.repository}/issues/{issue}/comments", {"body": text})
            comment.count += 1
            return home.finished(comment.count)

        comment.count = 0
        refused = comment("adw_build_iso")
        assert refused["status"] == "refused"
        assert f"issue {issue} has none" in refused["outcome"]
        for text in asked:
            done = comment(text.format(adw_id))
            assert done["status"] == "done", (text, done)
            adw_id = adw_id or done["adw_id"]
            assert done["adw_id"] == adw_id, text
            home.follow(adw_id)
        unknown = comment("adw_build_iso 00000000")
        assert (unknown["status"], unknown["outcome"]) == ("refused", f"there is no workflow 00000000 of #{issue}")

    check_shipped(home, issue, adw_id)
    said = home.comments(issue)
    assert any(f"Workflow {adw_id} continues with build (build)." in body for body in said)
    assert any(f"There is no workflow 00000000 of #{issue}." in body for body in said)


def test_the_api_carries_a_workflow_on_by_its_id_and_by_its_issue(home, emulator):
    issue = emulator.create_issue(home.repository, "Add a door", "The house has none.", ())

    with home.serving() as address:
        headers = {"Authorization": f"Bearer {WEB_TOKEN}"}
        with httpx.Client(base_url=f"{address}/api/v1", headers=headers, timeout=60) as api:
            none = api.post("/workflows", json={"issue_number": issue, "workflow": "build"})
            assert (none.status_code, f"issue {issue} has none" in none.json()["error"]["message"]) == (409, True)
            first = api.post("/workflows", json={"issue_number": issue, "workflow": "adw_plan_iso"})
            adw_id = first.json()["adw_id"]
            assert first.status_code == 201
            home.follow(adw_id)
            orders = (
                ("/workflows", {"issue_number": issue, "workflow": "adw_build_iso", "adw_id": adw_id}),
                (f"/workflows/{adw_id}/resume", {"workflow": "test"}),
                ("/workflows", {"issue_number": issue, "workflow": "review"}),
                (f"/workflows/{adw_id}/resume", {"workflow": "adw_document_iso"}),
                ("/workflows", {"issue_number": issue, "workflow": "adw_ship_iso", "adw_id": adw_id}),
            )
            for path, order in orders:
                answer = api.post(path, json=order)
                assert (answer.status_code, answer.json()["adw_id"]) == (200, adw_id), (order, answer.text)
                home.follow(adw_id)
            other = emulator.create_issue(home.repository, "Add a roof", "It rains in.", ())
            refused = api.post("/workflows", json={"issue_number": other, "workflow": "build", "adw_id": adw_id})
            assert refused.status_code == 409
            assert f"its document names issue {issue}" in refused.json()["error"]["message"]
            cleaned = api.post(f"/workflows/{adw_id}/resume", json={"workflow": "clean"})
            assert (cleaned.status_code, "nothing to clean up" in cleaned.text) == (409, True)

    check_shipped(home, issue, adw_id)
