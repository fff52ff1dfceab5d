"""`adw workflow list` as a person uses it."""

from __future__ import annotations

import pytest

DEFINITIONS = """\
[limits]
max_attempts = 4

[phases.plan]
command = ["make", "plan"]

[workflows.mine]
description = "Mine"

[[workflows.mine.phases]]
name = "build"
shell = "make build"
gates = [{ artifact = "dist/x" }, { human = true }]

[[workflows.mine.phases]]
name = "test"
call = "checks.run:all"
needs = ["build"]
required = false
"""


@pytest.fixture
def defined(home, monkeypatch):
    monkeypatch.setenv("ADW_AGENT_PROGRAMS", "claude=no-such-agent")
    (home / "adw.toml").write_text(DEFINITIONS)
    return home


def test_the_list_says_where_each_comes_from_and_whether_it_can_be_started(adw, defined):
    done = adw("workflow", "list")

    assert (done.rc, done.stderr) == (0, "")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in done.stdout.splitlines()}
    assert rows["WORKFLOW"] == "PHASES READY SOURCE"
    assert rows["mine"] == f"build test yes {defined / 'adw.toml'}:7"
    assert rows["plan"] == "plan yes built in"
    assert rows["plan_build"] == "plan build no, 1 of 2 without a runner built in"


def test_one_workflow_is_shown_under_any_of_its_names(adw, defined):
    done = adw("workflow", "show", "adw_plan_build_iso")

    assert done.rc == 0
    assert "Workflow     plan_build@1\n" in done.stdout
    assert "Also called  adw_plan_build, adw_plan_build_iso\n" in done.stdout
    assert "No runner yet: build; there is no program 'no-such-agent' in PATH: install it, or say" in done.stdout


def test_a_workflow_of_the_file_is_shown_whole(adw, defined):
    lines = [line.split() for line in adw("workflow", "show", "mine").stdout.splitlines()]

    assert ["build", "building", "command", "make", "build", "4", "yes", "artifact", "dist/x,", "human", "-"] in lines
    assert ["test", "testing", "python", "checks.run:all", "4", "no", "-", "build"] in lines


def test_programs_get_everything(adw, defined):
    listed = adw("workflow", "list", "--json").json()["workflows"]
    shown = adw("workflow", "show", "mine", "--json").json()

    assert shown in listed
    assert shown["ready"] is True
    assert shown["source"] == f"{defined / 'adw.toml'}:7"
    assert shown["phases"][1] == {
        "name": "test",
        "state": "testing",
        "runner": "python",
        "call": "checks.run:all",
        "needs": ["build"],
        "is_required": False,
        "max_attempts": 4,
        "ready": True,
        "runs": "checks.run:all",
    }
    [sdlc] = [one for one in listed if one["name"] == "sdlc"]
    assert sdlc["ready"] is False
    assert [phase["ready"] for phase in sdlc["phases"]] == [True, *[False] * 5, True, True]
    assert "adw_sdlc_complete_iso" in sdlc["aliases"]


def test_an_unknown_name_is_wrong_use(adw, home):
    done = adw("workflow", "show", "plan_biuld")

    assert (done.rc, done.stdout) == (2, "")
    assert done.stderr.startswith("adw: there is no workflow 'plan_biuld' (did you mean plan_build?); there are: sdlc,")


def test_a_bad_definition_is_wrong_use_and_names_file_and_line(adw, defined):
    (defined / "adw.toml").write_text(DEFINITIONS.replace("shell =", "shel ="))

    done = adw("workflow", "list")

    assert (done.rc, done.stdout) == (2, "")
    assert f"{defined / 'adw.toml'}:12: [workflows.mine] phase 'build': 'shel' is no key of a phase, did you mean" in (
        done.stderr
    )


def test_a_prompt_is_looked_for_in_the_home(adw, defined):
    (defined / "adw.toml").write_text('[[workflows.mine.phases]]\nname = "plan"\nprompt = "plan.md"\n')

    done = adw("workflow", "list")

    assert done.rc == 2
    assert "there is no prompt file plan.md: write it, or name another" in done.stderr
    (defined / "plan.md").write_text("Plan it.\n")
    assert adw("workflow", "list").rc == 0
