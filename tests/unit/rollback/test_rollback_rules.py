"""The plan of a rollback: what is done in which order, what is kept, what waits for what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adws.adw_modules import effects
from adws.adw_modules.document import Resource, RollbackRecord
from adws.adw_modules.interfaces import OwnerRecord
from adws.adw_modules.rollback import plan as rollback_plan
from adws.adw_modules.rollback.plan import ORDER, RollbackOptions, Step, plan_rollback
from tests.unit.engine_cases import ADW_ID, attempt, document_of, spec_of
from tests.unit.rollback_cases import BRANCH, WISHES, effect, ledger

ROOT = Path("/repo")


def document(resources=None, **fields):
    made = ledger(ROOT) if resources is None else resources
    return document_of(spec_of("plan"), resources=made, **fields)


def kinds(steps):
    return [step.kind for step in steps]


def step(**changes) -> Step:
    return Step(**{"key": "worktree", "kind": "worktree", "what": "remove the worktree", **changes})


def test_the_steps_come_in_the_order_of_kinds():
    steps = plan_rollback(document(), WISHES, external=["/repo/adw_test_external_1a2b3c4d"])

    assert kinds(steps) == [
        "process",
        "salvage",
        "pull_request",
        "remote_branch",
        "worktree",
        "branch",
        "port",
        "directory",
        "label",
        "comment",
        "lock",
        "state",
    ]
    assert all(item.status == "planned" for item in steps)


def test_the_newest_of_a_kind_comes_first():
    made = [effect(f"branch:{name}", "branch", branch=name) for name in ("old", "new")]

    steps = plan_rollback(document(made), WISHES)

    assert [item.key for item in steps if item.kind == "branch"] == ["branch:new", "branch:old"]


def test_what_is_undone_already_is_not_planned():
    over = [entry.model_copy(update={"outcome": "undone"}) for entry in ledger(ROOT)]

    steps = plan_rollback(document(over), WISHES)

    assert kinds(steps) == ["process", "salvage", "comment", "lock", "state"]


@pytest.mark.parametrize(
    ("resources", "options", "steps"),
    [
        ([], {"issue_number": None}, ["mark the workflow rolled back"]),
        ([], {"has_forge": False}, ["free issue #42", "mark the workflow rolled back"]),
        (
            [effect("comment:x", "comment", number=7)],
            {"issue_number": None},
            ["say on its pull request that it was rolled back", "mark the workflow rolled back"],
        ),
        (
            [effect("ports", "port", "intended", adw_id=ADW_ID)],
            {"issue_number": None},
            ["free its ports", "mark the workflow rolled back"],
        ),
        (
            [effect("ref:refs/tags/v1", "ref", "observed", ref="refs/tags/v1"), effect("moon", "moon")],
            {"issue_number": None},
            ["undo the moon moon", "undo the ref refs/tags/v1", "mark the workflow rolled back"],
        ),
    ],
    ids=["no-issue", "no-forge", "comment-on-a-pull-request", "ports-only-meant", "kinds-that-nobody-knows"],
)
def test_each_kind_of_effect_has_its_step(resources, options, steps):
    has_forge = options.pop("has_forge", True)

    planned = plan_rollback(document(resources, **options), WISHES, has_forge=has_forge)

    assert [item.what for item in planned if item.kind not in {"process", "salvage"}] == steps


def test_the_branch_is_kept_on_request_and_listed():
    steps = plan_rollback(document(), RollbackOptions(reason="x", keep_branch=True))

    assert [s.key for s in steps if s.status == "kept"] == [f"remote_branch:{BRANCH}", f"branch:{BRANCH}"]
    assert rollback_plan.kept(steps) == [
        f"not done: delete the remote branch {BRANCH}: kept on request",
        f"not done: delete the branch {BRANCH}: kept on request",
    ]


def test_what_another_workflow_made_is_kept_and_listed():
    """
    A follow-up works on the branch and the pull request of the workflow that it continues.
    """
    shared = document()
    for entry in shared.resources:
        if entry.kind in {"branch", "remote_branch", "pull_request"}:
            entry.undo["made_by"] = "0000aaaa"

    steps = plan_rollback(shared, RollbackOptions(reason="x"))

    kept = {step.kind: step.detail for step in steps if step.status == "kept"}
    assert kept == dict.fromkeys(("pull_request", "remote_branch", "branch"), "workflow 0000aaaa made it")


# --- going on --------------------------------------------------------------------------------------------------


def begun(*steps: Step, **fields):
    return document(rollback=RollbackRecord(reason="x", steps=[item.to_json() for item in steps]), **fields)


def test_what_was_finished_stays_finished_and_what_was_cut_off_is_planned_again():
    salvage = Step(key="salvage", kind="salvage", what="keep", status="done", facts={"heads": {"b": "1"}})
    cut_off = step(status="doing", facts={"learnt": 1})
    gone = Step(key="external:/repo/x", kind="directory", what="remove x", status="done")

    steps = {item.key: item for item in plan_rollback(begun(salvage, cut_off, gone), WISHES)}

    assert steps["salvage"] == salvage
    assert (steps["worktree"].status, steps["worktree"].facts["learnt"]) == ("planned", 1)
    assert steps["external:/repo/x"] == gone


def test_an_unfinished_step_for_something_that_is_not_there_any_more_is_dropped():
    left = Step(key="external:/repo/x", kind="directory", what="remove x", status="blocked")

    assert "external:/repo/x" not in [item.key for item in plan_rollback(begun(left), WISHES)]


@pytest.mark.parametrize(
    "made",
    [
        step(status="blocked", detail="why", host="h", effects=("worktree",), facts={"path": "/x"}),
        Step(key="x", kind="port", what="free", status="done"),
    ],
)
def test_a_step_comes_back_from_the_document_as_it_was(made):
    assert Step.from_json(made.to_json()) == made
    assert Step.from_json({**made.to_json(), "kind": "moon"}) is None
    assert Step.from_json({**made.to_json(), "what": 1}) is None
    bare = {**made.to_json(), "effects": None, "facts": None}
    assert Step.from_json(bare) == replace(made, effects=(), facts={})


def test_a_step_waits_for_what_could_be_lost_or_is_still_used():
    waiting = [
        step(key="processes", kind="process", what="end", status="blocked", detail="it lives"),
        step(key="salvage", kind="salvage", what="salvage", status="planned"),
    ]

    assert rollback_plan.waits_for(step(), waiting) == "end (it lives), salvage"
    assert rollback_plan.waits_for(step(), [replace(item, status="done") for item in waiting]) == ""
    assert rollback_plan.waits_for(step(kind="port"), waiting) == ""
    waits_itself = step(what="remove", status="blocked", detail="waits for: end (it lives)")
    assert rollback_plan.waits_for(step(kind="branch"), [waiting[0], waits_itself]) == "remove"


def test_every_kind_that_is_waited_for_comes_before_who_waits():
    for kind, needed in rollback_plan.NEEDS.items():
        assert all(ORDER.index(other) < ORDER.index(kind) for other in needed)


# --- facts and words -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "undo", "name"),
    [
        ("pull_request", {"pr_number": 7}, "#7"),
        ("pull_request", {"branch": "b"}, "of b"),
        ("pull_request", {}, "of key"),
        ("worktree", {"worktree_path": "/x"}, "/x"),
        ("branch", {"branch_name": "b"}, "b"),
        ("label", {"label": "adw"}, "adw"),
        ("label", {}, "key"),
    ],
)
def test_an_effect_is_called_by_what_the_ledger_knows(kind, undo, name):
    assert effects.name_of(Resource(key="key", kind=kind, undo=undo)) == name


def test_the_commit_of_an_effect_is_found_by_any_of_its_names():
    assert effects.commit_of({"sha": "1"}) == effects.commit_of({"commit": "1"}) == "1"
    assert effects.commit_of({"sha": 5}) == ""


def test_the_plan_says_what_will_be_done_and_what_is_over():
    lines = rollback_plan.plan_lines([step(), step(status="done", detail="it was empty"), step(status="blocked")])

    assert lines == [
        "will: remove the worktree",
        "done: remove the worktree (it was empty)",
        "blocked: remove the worktree",
    ]


def test_the_summary_tells_reason_what_was_undone_and_what_is_left():
    salvage = step(kind="salvage", what="salvage", status="done", detail="kept as refs/adw/salvage/x")
    text = rollback_plan.summary_text(ADW_ID, "why", [step(status="done"), salvage])

    assert text == (
        f"Workflow {ADW_ID} was rolled back.\n\n**Reason:** why\n\n**Undone:**\n- remove the worktree"
        "\n\n**Left:**\n- kept as refs/adw/salvage/x"
    )
    assert rollback_plan.summary_text(ADW_ID, "why", []).endswith("**Reason:** why")


# --- several machines ------------------------------------------------------------------------------------------


def moved():
    """A workflow that moved from far to here, where an attempt was cut off on far."""
    made = [
        *ledger(ROOT),
        effect("worktree on far", "worktree", host="far", path="/far/trees/x"),
        effect(f"branch:{BRANCH} on far", "branch", host="far", branch=BRANCH),
        effect("wip", "wip_ref", host="", ref=f"refs/adw/wip/{ADW_ID}", sha="c" * 40),
    ]
    return document(made)


def test_each_machine_ends_its_processes_and_keeps_its_work_itself():
    steps = plan_rollback(moved(), WISHES, host="here")

    assert [(item.key, item.host) for item in steps if item.kind in {"process", "salvage"}] == [
        ("processes", "here"),
        ("processes on far", "far"),
        ("salvage", "here"),
        ("salvage on far", "far"),
    ]
    assert [item.host for item in steps if item.kind == "worktree"] == ["far", "here"]
    assert [item.what for item in steps if item.kind == "wip_ref"] == [
        f"delete the ref refs/adw/wip/{ADW_ID} of the remote"
    ]


def test_an_attempt_that_was_cut_off_on_another_machine_is_ended_there():
    gone = OwnerRecord(
        token="t", host="gone", machine="m", boot_id="b", pid_namespace="n", pid=1, start_ticks=1, role="worker"
    )
    made = document()
    made.phases[0].attempts = [
        attempt(1, "interrupted", process={"token": "t", "identity": gone.to_text()}),
        attempt(2, "interrupted", process={"token": "u", "identity": "not a record"}),
        attempt(3, "interrupted", process={"token": "u"}),
        attempt(4, "succeeded", process={"token": "v", "identity": gone.to_text().replace("gone", "well")}),
    ]

    steps = plan_rollback(made, WISHES, host="here")

    assert [item.host for item in steps if item.kind == "process"] == ["here", "gone"]


def test_a_process_in_the_ledger_is_ended_where_it_is():
    far = OwnerRecord(
        token="t", host="far", machine="m", boot_id="b", pid_namespace="n", pid=1, start_ticks=1, role="worker"
    )
    started = effect("process:t", "process", host="far", token="t", identity=far.to_text())

    steps = plan_rollback(document([*ledger(ROOT), started]), WISHES, host="here")

    assert {item.key: item.effects for item in steps if item.kind == "process"} == {
        "processes": (),
        "processes on far": ("process:t",),
    }


def test_one_machine_does_not_wait_for_another():
    steps = plan_rollback(moved(), WISHES, host="here")
    here, far = (item for item in steps if item.kind == "worktree" and item.host in {"here", "far"})
    done = [replace(item, status="done") if item.host == "here" else item for item in steps]

    waits = {item.host: rollback_plan.waits_for(item, done) for item in (here, far)}

    assert waits["here"] == ""
    assert waits["far"].startswith("end the processes it started on far, keep its commits")
    assert rollback_plan.hosts_waited_for(done, host="here") == ("far",)
    assert rollback_plan.hosts_waited_for(done, host="far") == ()


def test_what_is_on_a_machine_that_is_given_up_is_over_and_listed():
    wishes = replace(WISHES, forget_hosts=("far",), by="ada")

    steps = plan_rollback(moved(), wishes, host="here")

    given_up = [item for item in steps if item.host == "far"]
    assert {item.status for item in given_up} == {"forgotten"}
    assert all(item.is_over and item.outcome == "forgotten" for item in given_up)
    said = rollback_plan.kept(steps)
    assert "left on far: remove the worktree /far/trees/x: far was declared lost by ada: the plan was wrong" in said
    assert "left on far: end the processes it started: far was declared lost by ada: the plan was wrong" in said
    assert rollback_plan.hosts_waited_for(steps, host="here") == ()
    nobody = plan_rollback(moved(), replace(wishes, by=""), host="here")
    assert "declared lost by a person" in next(item.detail for item in nobody if item.host == "far")


def test_what_lies_beside_the_files_of_another_machine_stays_on_the_list():
    there = step(key="external:/far/x", kind="directory", what="remove the directory /far/x", host="far")
    here = step(key="external:/repo/x", kind="directory", what="remove the directory /repo/x", host="here")
    begun = document(rollback=RollbackRecord(steps=[there.to_json(), here.to_json()]))

    steps = plan_rollback(begun, WISHES, host="here")

    assert [item.key for item in steps if item.kind == "directory"] == ["external:/far/x"]
    given_up = plan_rollback(begun, replace(WISHES, forget_hosts=("far",)), host="here")
    assert [item.status for item in given_up if item.kind == "directory"] == ["forgotten"]
