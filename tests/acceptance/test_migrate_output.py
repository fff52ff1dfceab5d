"""What `adw state migrate` tells besides its table, and that a dry run tells the same as the run."""

from __future__ import annotations

import json

import pytest

OLD = {"adw_id": "a1b2c3d4", "issue_number": "42", "all_adws": ["adw_plan_iso"]}


def put(home, **changes) -> None:
    data = {**OLD, **changes}
    path = home / "agents" / data["adw_id"] / "adw_state.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(data))


def refusals_in(rows) -> list[object]:
    return [row for row in rows if row["action"] == "refused: issue taken"]


@pytest.mark.parametrize("store", ["files", "database"])
def test_a_dry_run_refuses_what_the_run_refuses(adw, home, store):
    put(home)
    put(home, adw_id="b1b2c3d4")
    env = {"ADW_STATE_STORE": store}

    dry = adw("state", "migrate", "--dry-run", "--json", env=env)
    assert not (home / "state").exists(), "looking makes nothing"
    done = adw("state", "migrate", "--json", env=env)

    assert (dry.rc, done.rc) == (1, 1)
    refused = [
        [row for row in shown.json()["files"] if row["action"] == "refused: issue taken"] for shown in (dry, done)
    ]
    assert refused[0] == refused[1]
    assert len(refused[0]) == 1


@pytest.mark.parametrize("option", ["--dry-run", "--json"])
def test_a_document_that_stands_in_for_another_is_told(adw, home, option):
    put(home)
    assert adw("state", "migrate").rc == 0
    assert adw("state", "set", "a1b2c3d4", "branch_name=mine").rc == 0
    (home / "state" / "a1b2c3d4" / "adw_state.json").write_text("{torn")

    done = adw("state", "migrate", option)

    assert done.rc == 1
    assert "revision 2 was used, because" in done.stderr
