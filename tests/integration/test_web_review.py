"""What a workflow changed, on the pages and in the API: from its first commit to after its rollback."""

from __future__ import annotations

import json
import subprocess

import pytest

from adws.adw_modules.attempt_files import AttemptFiles
from tests.integration.page_lab import Browser
from tests.integration.web_lab import WebLab

SECRET = "the-token-of-somebody-0123456789"
HOSTILE = "<script>alert(1)</script>"
WORKFLOWS = f"""
[workflow]
default = "two"

[workflows.two]
[[workflows.two.phases]]
name = "plan"
shell = "mkdir -p src/app docs; echo '{HOSTILE}' > src/app/a.py; echo key $A_TOKEN > docs/plan.md; echo the plan"
gate = "human"
env = ["A_TOKEN"]
[[workflows.two.phases]]
name = "build"
shell = "echo two >> src/app/a.py; printf 'a\\\\000b' > logo.bin"

[workflows.idle]
[[workflows.idle.phases]]
name = "plan"
shell = "true"
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.integration.web_lab.WORKFLOWS", WORKFLOWS)
    monkeypatch.setenv("A_TOKEN", SECRET)
    home = tmp_path / "home"
    home.mkdir()
    (home / "app.py").write_text("print('one')\n")
    (home / ".gitignore").write_text("state/\ntrees/\nadw.toml\n")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "Begin"]):
        subprocess.run([*git, *command], cwd=home, check=True, capture_output=True)
    with WebLab(home, {"ADW_WORKTREE_ENABLED": "true", "ADW_SANDBOX_MODE": "off", "A_TOKEN": SECRET}) as made:
        yield made


@pytest.fixture
def browser(lab):
    return Browser(lab).log_in()


def diff_of(lab, adw_id, **wanted) -> dict:
    return lab.get(f"/api/v1/workflows/{adw_id}/diff", **wanted)


def test_the_changes_of_a_workflow_are_reviewed_approved_and_still_there_after_its_rollback(lab, browser):
    adw_id = lab.start(1)
    assert diff_of(lab, adw_id)["base"] is None, "nothing is committed before it has begun"
    lab.work()

    # Above the button that approves it: the tree, the patch with markup as text, and no secret.
    page = browser.see(f"/workflows/{adw_id}")
    above, _, _ = page.html.partition('action="/workflows/' + adw_id + '/approve"')
    assert "Changes to approve" in above
    assert "+&lt;script&gt;alert(1)&lt;/script&gt;" in above
    assert HOSTILE not in page.html
    assert SECRET not in page.html
    assert "#patch-1" in page.links()
    assert page.all("nav", aria_label="Changed files")
    assert "docs/plan.md" in page.text
    assert "src/app/" in page.text

    # Beside the transcript, with the same decision.
    review = browser.see(f"/workflows/{adw_id}/diff")
    assert "the plan" in review.text
    assert review.all("form", action=f"/workflows/{adw_id}/approve")
    browser.do(f"/workflows/{adw_id}/approve", {"text": "fine"})
    lab.work()
    assert lab.state(adw_id) == "completed"

    # In all, and by attempt.
    whole = diff_of(lab, adw_id)
    assert [(one["name"], one["status"], one["added"]) for one in whole["files"]] == [
        ("docs/plan.md", "added", 1),
        ("logo.bin", "added", None),
        ("src/app/a.py", "added", 2),
    ]
    assert whole["files"][0]["patch"] == "@@ -0,0 +1 @@\n+key [redacted]\n"
    assert whole["files"][1]["left_out"] == "binary file"
    assert (whole["added"], whole["deleted"], whole["file_count"], whole["is_cut"]) == (3, 0, 3, False)
    assert [(one["phase"], one["attempt"]) for one in whole["attempts"]] == [("plan", 1), ("build", 1)]
    build = diff_of(lab, adw_id, phase="build", attempt=1)
    assert [one["name"] for one in build["files"]] == ["logo.bin", "src/app/a.py"]
    assert build["files"][1]["patch"] == f"@@ -1 +1,2 @@\n {HOSTILE}\n+two\n"
    assert build["base"] == whole["attempts"][0]["head"]
    shown = browser.see(f"/workflows/{adw_id}/diff?phase=build&attempt=1")
    assert "Changes of build, attempt 1" in shown.text
    assert "plan.md" not in shown.text
    assert "binary" in shown.text
    assert "logo.bin" in browser.see(f"/workflows/{adw_id}/attempts/build/1").text

    # The worktree and the branch are gone, and the changes are not.
    browser.do(f"/workflows/{adw_id}/rollback", {"reason": "not wanted"})
    lab.work()
    assert lab.state(adw_id) == "rolled_back"
    branches = subprocess.run(["git", "branch"], cwd=lab.home, check=True, capture_output=True, text=True)
    assert adw_id not in branches.stdout
    after = diff_of(lab, adw_id)
    assert (after["files"], after["head"]) == (whole["files"], whole["head"])
    assert diff_of(lab, adw_id, phase="build", attempt=1)["files"] == build["files"]


def test_a_missing_diff_has_a_reason(lab, browser):
    adw_id = lab.start(1, "idle")
    lab.work()

    assert diff_of(lab, adw_id, phase="plan", attempt=1)["problem"] == "Attempt 1 of plan committed nothing."
    assert "committed nothing" in browser.see(f"/workflows/{adw_id}/diff?phase=plan&attempt=1").text
    assert "wrong" not in browser.see(f"/workflows/{adw_id}/diff").text
    half = lab.ask("GET", f"/api/v1/workflows/{adw_id}/diff", params={"phase": "plan"})
    assert half.status_code == 422
    assert "phase and attempt" in half.json()["error"]["message"]
    assert lab.ask("GET", "/api/v1/workflows/ffffffff/diff").status_code == 404
    assert Browser(lab).ask("GET", f"/workflows/{adw_id}/diff").status_code == 303
    assert "ffffffff" in browser.see("/workflows/ffffffff/diff", status=404).text
    assert lab.ask("GET", f"/api/v1/workflows/{adw_id}/diff", token=None).status_code == 401


STREAM = [
    {"type": "system", "subtype": "init", "session_id": "s-1", "model": "scripted"},
    {
        "type": "assistant",
        "message": {
            "id": "m-1",
            "content": [
                {"type": "text", "text": f"I read app.py {HOSTILE}"},
                {"type": "tool_use", "id": "t-1", "name": "Bash", "input": {"command": "cat app.py"}},
            ],
        },
    },
    {
        "type": "user",
        "message": {"content": [{"type": "tool_result", "tool_use_id": "t-1", "content": f"one\ntwo {SECRET}"}]},
    },
    {"type": "result", "subtype": "success", "is_error": False, "result": "done", "num_turns": 1},
]


def test_the_transcript_of_an_agent_is_readable_and_its_stream_a_link_away(lab, browser):
    adw_id = lab.start(1, "idle")
    lab.work()
    files = AttemptFiles(lab.app.settings.state_dir / adw_id, "plan", 1)
    files.write("stdout.log", "".join(f"{json.dumps(line)}\n" for line in STREAM).encode())
    files.write("stderr.log", b"a warning\n")
    files.write("transcript.log", b"I read app.py\nBash cat app.py\n")

    for path in ("/log", "/diff", "/attempts/plan/1"):
        page = browser.see(f"/workflows/{adw_id}{path}")
        assert f"agent I read app.py {HOSTILE}" in page.text, path
        assert HOSTILE not in page.html, path
        assert "Bash cat app.py -> ok: one (+1 line) one two [redacted]" in page.text, path
        assert SECRET not in page.html, path
        assert '"type"' not in page.text, path
    assert "I read app.py Bash cat app.py a warning" not in browser.see(f"/workflows/{adw_id}/log").text
    followed = browser.see(f"/workflows/{adw_id}")
    assert "Bash cat app.py" in followed.text
    assert '"type"' not in followed.text

    assert f"/workflows/{adw_id}/log?raw=true" in browser.see(f"/workflows/{adw_id}/log").links()
    raw = browser.see(f"/workflows/{adw_id}/log?raw=true")
    assert '{"type": "system"' in raw.text
    assert SECRET not in raw.html
    assert "agent I read" not in raw.text
    assert '{"type": "system"' in browser.ask("GET", f"/workflows/{adw_id}/log/tail?raw=true").text


def test_the_output_of_a_command_is_its_transcript(lab, browser):
    adw_id = lab.start(1)
    lab.work()

    for path in ("", "/log", "/diff", "/attempts/plan/1"):
        assert "== plan, attempt 1, stdout the plan" in browser.see(f"/workflows/{adw_id}{path}").text
