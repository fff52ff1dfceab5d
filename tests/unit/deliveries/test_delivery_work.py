"""Carrying out deliveries: who may, the result, and that it is done once, wherever it is cut off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.deliveries.commands import Actor
from adws.adw_modules.deliveries.handler import MAX_SECONDS, MAX_TRIES
from adws.adw_modules.errors import ForgeBusy, ForgeRefused, ForgeUnavailable
from adws.adw_modules.forge.model import NewPullRequest
from adws.adw_modules.interfaces import OwnerRecord
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_triggers import comment_commands
from tests.unit.conduct_cases import IN_DATABASE, OTHER, always
from tests.unit.delivery_lab import ADA, BRANCH, CHOSEN, DeliveryLab
from tests.unit.engine_cases import ADW_ID

EVE = Actor(login="eve")
BOT = Actor(login="helper[bot]", is_bot=True)


@pytest.fixture
def make_lab():
    """What makes a lab with settings; closed after the test."""
    made = []

    def make(**options: str) -> DeliveryLab:
        made.append(DeliveryLab(**options))
        return made[-1]

    yield make
    for one in made:
        one.home.lease_renewer.close()


@pytest.fixture
def lab(make_lab):
    return make_lab()


def only_comment(lab, number=None) -> str:
    [comment] = lab.comments(number)
    return comment.body


# --- starting --------------------------------------------------------------------------------------------------


def test_a_workflow_is_started_under_the_id_that_was_chosen(lab):
    row = lab.carry_out(lab.request(model_set="heavy", hint="use tabs"))

    document = lab.home.document(CHOSEN)
    assert (row.status, row.adw_id, row.outcome) == ("done", CHOSEN, f"workflow {CHOSEN} is started")
    assert (document.issue_number, document.current_state, document.model_set) == (lab.issue, "pending", "heavy")
    assert (document.issue.title, document.issue.body) == ("Add a button", "Blue."), "as a person sees it"
    assert [hint["text"] for hint in document.hints] == ["use tabs"]
    assert lab.home.parts.locks.verify(lab.issue, CHOSEN)
    assert lab.home.run(CHOSEN).state is RunState.PENDING
    assert lab.home.events("work_asked_for", adw_id=CHOSEN) == ["work_asked_for"]
    assert lab.comments() == (), "its own comment says how it stands"


def test_an_issue_that_a_workflow_has_gets_no_second_one_and_says_whose_it_is(lab):
    lab.stand("PAUSED")

    row = lab.carry_out(lab.request())

    assert (row.status, row.adw_id) == ("refused", ADW_ID)
    assert lab.workflows() == [ADW_ID]
    assert f"`{ADW_ID}` has this issue already and is paused: let it go on, or abandon it first." in only_comment(lab)


def test_what_was_refused_for_another_workflow_starts_one_when_it_is_replayed_later(lab):
    lab.stand("PAUSED")
    refused = lab.carry_out(lab.request())
    lab.home.control.abandon(ADW_ID, by="ada")

    lab.deliveries.again(refused.guid, asked_by="ada", adw_id="f00d0000")
    lab.work()

    row = lab.row(refused.guid)
    assert (row.status, row.adw_id, row.outcome) == ("done", "f00d0000", "workflow f00d0000 is started")
    assert lab.workflows() == sorted([ADW_ID, "f00d0000"])


def test_a_workflow_that_nobody_knows_is_named_with_those_there_are(lab):
    row = lab.carry_out(lab.request(workflow="sdcl"))

    assert row.status == "refused"
    assert "sdlc" in only_comment(lab)
    assert lab.workflows() == []


@pytest.mark.parametrize(
    ("is_gone", "why"),
    [
        (False, "issue 1 is closed: open it again first"),
        (True, "there is no issue 1 in acme/widget: give the number of an open issue"),
    ],
)
def test_nothing_is_started_for_an_issue_that_is_closed_or_gone_by_now(lab, is_gone, why):
    site = lab.forge._site
    site.issues[lab.issue] = replace(site.issues[lab.issue], state="closed")
    if is_gone:
        site.issues.clear()

    row = lab.carry_out(lab.request())

    assert (row.status, row.outcome, lab.workflows()) == ("refused", why, [])


def test_nothing_is_done_for_another_repository(make_lab):
    lab = make_lab(repository="acme/widget")

    row = lab.carry_out(lab.request(repository="evil/widget"))

    assert row.outcome == "it is about evil/widget, and this home works on acme/widget"
    assert lab.workflows() == []


def test_an_id_that_another_workflow_has_starts_nothing(lab):
    lab.home.create(CHOSEN, issue=99)

    row = lab.carry_out(lab.request())

    assert row.status == "failed"
    assert "belongs to another workflow" in row.outcome
    assert lab.home.document(CHOSEN).issue_number == 99


# --- continuing ------------------------------------------------------------------------------------------------


def test_a_workflow_that_stopped_is_resumed_when_it_is_named(lab):
    lab.stand("PAUSED")

    row = lab.carry_out(lab.request(adw_id=ADW_ID, hint="use tabs"))

    assert (row.status, row.adw_id) == ("done", ADW_ID)
    assert lab.home.state() == "planning"
    assert lab.home.run().state is RunState.PENDING
    assert [hint["text"] for hint in lab.home.document().hints] == ["use tabs"]


@pytest.mark.parametrize("kind", ["run", "resume", "retry", "stop", "abandon", "rollback", "status", "approve"])
def test_an_id_of_another_issue_in_a_comment_never_gets_in(lab, kind):
    """
    Whoever may write comments on issue 1 could else stop, continue or undo the work on issue 99.
    """
    lab.home.create(OTHER, issue=99, current_state="paused", resume_state="planning", has_run=False)
    lab.stand("PAUSED")
    asked = lab.request(adw_id=OTHER) if kind == "run" else lab.command(kind, adw_id=OTHER)

    row = lab.carry_out(asked)

    assert (row.status, row.outcome) == ("refused", f"there is no workflow {OTHER} of #{lab.issue}")
    assert (lab.home.state(OTHER), lab.home.runs.of_workflow(OTHER)) == ("paused", ())
    assert (lab.home.state(), lab.home.runs.of_workflow(ADW_ID)) == ("paused", ())


def test_a_workflow_whose_issue_another_has_is_not_resumed(lab):
    """
    Its document names the issue, but the lock does not name it.
    """
    lab.stand("PAUSED")
    lab.home.parts.locks.release(lab.issue, ADW_ID)
    lab.home.parts.locks.acquire(lab.issue, OTHER)

    row = lab.carry_out(lab.command("resume", adw_id=ADW_ID))

    assert row.status == "refused"
    assert f"belongs to workflow {OTHER}" in row.outcome
    assert (lab.home.state(), lab.home.runs.of_workflow(ADW_ID)) == ("paused", ())


@pytest.mark.parametrize("named", ["99999999", "../../etc", "x y"])
def test_an_id_that_nobody_has_is_refused(lab, named):
    row = lab.carry_out(lab.command("status", adw_id=named))

    assert (row.status, row.outcome) == ("refused", f"there is no workflow {named} of #{lab.issue}")


def test_a_command_on_an_issue_without_a_workflow_says_so(lab):
    row = lab.carry_out(lab.command("stop"))

    assert (row.outcome, row.adw_id) == (f"no workflow is known for #{lab.issue}", "")


# --- commands in each state ------------------------------------------------------------------------------------

_OVER = ("COMPLETED", "ABANDONED", "ROLLED_BACK")
#: command -> where the workflow stands -> state afterwards, and how the delivery ends; all others refuse.
DONE = {
    "status": dict.fromkeys(("ACTIVE", "WAITING", "PAUSED", "FAILED", *_OVER, "ROLLING_BACK")),
    "stop": {"ACTIVE": "paused", "WAITING": None, "PAUSED": None},
    "pause": {"ACTIVE": "paused", "WAITING": None, "PAUSED": None},
    "resume": {"ACTIVE": None, "PAUSED": "planning", "FAILED": "planning"},
    "retry": {"ACTIVE": None, "FAILED": "planning"},
    "approve": {"WAITING": "planning"},
    "reject": {"WAITING": "planning"},
    "abandon": {**dict.fromkeys(("ACTIVE", "WAITING", "PAUSED", "FAILED"), "abandoned"), "ABANDONED": None},
    "rollback": dict.fromkeys(("ACTIVE", "WAITING", "PAUSED", "FAILED", *_OVER, "ROLLING_BACK")),
}
CASES = [
    (kind, standing) for kind in DONE for standing in ("ACTIVE", "WAITING", "PAUSED", "FAILED", *_OVER, "ROLLING_BACK")
]


@pytest.mark.parametrize(("kind", "standing"), CASES)
def test_each_command_in_each_state_has_its_answer(lab, kind, standing):
    lab.stand(standing)
    before = lab.home.state()

    row = lab.carry_out(lab.command(kind))

    is_done = standing in DONE[kind]
    assert row.status == ("done" if is_done else "refused"), row.outcome
    assert row.adw_id == ADW_ID
    assert lab.home.state() == (DONE[kind].get(standing) or before)
    said = only_comment(lab)
    assert ADW_ID in said
    assert said.startswith("[adw] ")
    assert comment_commands.is_ours(said)


def test_what_is_merged_is_not_rolled_back(lab):
    lab.home.create(issue=lab.issue, current_state="completed", pr_merged=True, pr_number=8, has_run=False)

    row = lab.carry_out(lab.command("rollback"))

    assert row.status == "refused"
    assert "is merged, which is not undone" in row.outcome


def test_status_is_answered_with_the_table_of_phases(lab):
    lab.stand("PAUSED")

    lab.carry_out(lab.command("status"))

    assert "| plan | queued |" in only_comment(lab)


def test_the_live_owner_is_asked_and_marks_what_it_obeyed(lab):
    lab.stand("ACTIVE")
    held = lab.home.hold()

    row = lab.carry_out(lab.command("stop", "not now"))
    [request] = lab.home.requests.open_for(ADW_ID)

    assert row.outcome == f"workflow {ADW_ID} is running: its worker was asked, and acts within a moment"
    assert (request.kind, request.payload["reason"], request.payload["mark"]["by"]) == ("stop", "not now", "ada")
    held.give_back()
    lab.home.work()
    assert lab.home.state() == "paused"
    assert len(lab.home.document().deliveries) == 1
    assert lab.home.events("command_obeyed") == ["command_obeyed"]


def test_a_hint_that_was_asked_for_twice_is_written_once(lab):
    """
    Cut off after the request was left, the delivery leaves it once more.
    """
    lab.stand("ACTIVE")
    held = lab.home.hold()
    guid = lab.deliver(lab.command("resume", "use tabs"))
    killed = lab.claim()
    lab.deliveries.finish_with_run = always(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        lab.work(killed)
    del lab.deliveries.finish_with_run
    lab.home.runs.take_back(killed, reason="its worker died")
    lab.work()

    assert len(lab.home.requests.open_for(ADW_ID)) == 2
    held.give_back()
    lab.home.work()
    assert [hint["text"] for hint in lab.home.document().hints] == ["use tabs"]
    assert lab.row(guid).status == "done"


# --- who may ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["run", "resume", "stop", "rollback", "retry", "status", "approve", "abandon"])
def test_who_may_not_write_is_refused_before_anything_is_touched(lab, kind):
    lab.forge.people["eve"] = "read"
    lab.stand("PAUSED")
    asked = lab.request(actor=EVE) if kind == "run" else lab.command(kind, actor=EVE)

    row = lab.carry_out(asked)

    assert (row.status, row.outcome) == (
        "refused",
        "that needs the permission write or more, which eve does not have here",
    )
    assert (lab.home.state(), lab.workflows(), lab.home.runs.of_workflow(ADW_ID)) == ("paused", [ADW_ID], ())


def test_a_refusal_is_said_once_politely_and_without_what_starts_a_workflow(lab):
    guids = [lab.deliver(lab.command("stop", "/adw stop adw_plan_iso", actor=EVE)) for _ in range(3)]
    for _ in guids:
        lab.work()

    said = only_comment(lab)
    assert lab.forge.calls == ["create_comment"]
    assert [lab.row(guid).status for guid in guids] == ["refused"] * 3
    assert said.startswith("[adw] Sorry, nothing was done: that needs the permission write")
    assert "@" not in said
    assert comment_commands.read_comment(said) is None


def test_programs_may_only_when_they_are_listed(make_lab):
    refused, listed = make_lab(), make_lab(webhook_senders="helper[bot]")

    assert refused.carry_out(refused.request(actor=BOT)).status == "refused"
    assert listed.carry_out(listed.request(actor=BOT)).status == "done"


def test_the_lists_count_without_asking_the_forge(make_lab):
    lab = make_lab(webhook_senders="!ada")
    lab.forge.permission = always(ForgeUnavailable("not asked"))

    assert lab.carry_out(lab.request()).status == "refused"


def test_rights_are_looked_at_when_it_is_done_not_when_it_was_asked_for(lab):
    guid = lab.deliver(lab.request())
    lab.forge.people["ada"] = "read"

    lab.work()

    assert lab.row(guid).status == "refused"


# --- a forge in trouble ----------------------------------------------------------------------------------------


def test_a_forge_that_gives_no_answer_is_asked_again_later(lab):
    guid = lab.deliver(lab.request())
    lab.forge.permission = always(ForgeUnavailable("no answer"))

    end = lab.work()

    late = timestamps.parse(end.run.not_before) - lab.home.clock.now()
    assert (end.run.state, late.total_seconds(), end.run.reason) == (RunState.PENDING, 5.0, "no answer")
    assert (lab.row(guid).status, lab.workflows()) == ("received", [])
    del lab.forge.permission
    lab.home.clock.advance(6)
    lab.work()
    assert (lab.row(guid).status, lab.workflows()) == ("done", [CHOSEN])


def test_a_forge_that_never_answers_is_given_up_on_in_the_end(lab):
    guid = lab.deliver(lab.request())
    lab.forge.permission = always(ForgeUnavailable("no answer"))

    ends = []
    for _ in range(MAX_TRIES):
        ends.append(lab.work())
        lab.home.clock.advance(MAX_SECONDS + 1)

    assert [end.run.state for end in ends] == [RunState.PENDING] * (MAX_TRIES - 1) + [RunState.FAILED]
    assert (lab.row(guid).status, lab.row(guid).outcome) == ("failed", f"failed after {MAX_TRIES} tries: no answer")
    assert lab.home.runs.claim(lab.home.parts.processes.me("worker"), ttl_seconds=30.0) is None


def test_a_workflow_that_somebody_has_for_a_moment_is_waited_for(lab):
    lab.stand("PAUSED")
    held = lab.home.hold()
    guid = lab.deliver(lab.command("resume"))

    assert lab.work().run.state is RunState.PENDING
    held.give_back()
    lab.home.clock.advance(6)
    lab.work()

    assert (lab.row(guid).status, lab.home.state()) == ("done", "planning")


def test_an_answer_that_the_forge_does_not_take_changes_nothing(lab):
    lab.stand("PAUSED")
    lab.forge.create_comment = always(ForgeRefused(403, "the conversation is locked"))

    assert lab.carry_out(lab.command("resume")).status == "done"
    assert lab.home.state() == "planning"


# --- cut off anywhere ------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


class Wire:
    """Ends the process right before or right after one of the calls that it watches, by their order."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.passed: list[str] = []

    def watch(self, thing, *names: str) -> None:
        for name in names:
            setattr(thing, name, self._watched(getattr(thing, name), name))

    def _watched(self, call, name):
        def watched(*args, **keywords):
            self._pass(f"before {name}")
            answer = call(*args, **keywords)
            self._pass(f"after {name}")
            return answer

        return watched

    def _pass(self, where: str) -> None:
        self.passed.append(where)
        if len(self.passed) == self.at:
            raise Killed(where)


KILLS = {
    "start": (None, "run", ""),
    "refusal": (None, "stop", "eve"),
    "locked": ("PAUSED", "run", ""),
    "resume": ("PAUSED", "resume", ""),
    "approve": ("WAITING", "approve", ""),
    "reject": ("WAITING", "reject", ""),
    "stop": ("ACTIVE", "stop", ""),
    "abandon": ("FAILED", "abandon", ""),
    "rollback": ("FAILED", "rollback", ""),
    "status": ("PAUSED", "status", ""),
}


def carried_out(case: str, at: int) -> tuple[DeliveryLab, str, list[str]]:
    """Carry a delivery out, killed at the *at*-th place, and then once more by another worker."""
    standing, kind, login = KILLS[case]
    lab = DeliveryLab()
    if standing:
        lab.stand(standing)
    actor = Actor(login=login or "ada")
    asked = lab.request(actor=actor) if kind == "run" else lab.command(kind, "use tabs", actor=actor)
    guid = lab.deliver(asked)
    wire = Wire(at)
    wire.watch(lab.forge, "permission", "create_comment")
    wire.watch(lab.workflow_creator, "start")
    wire.watch(lab.deliveries, "finish", "finish_with_run")
    wire.watch(lab.home.store, "save")
    # What a new workflow is registered with is one transaction.
    wire.watch(lab.home.runs, "begin", *(["enqueue"] if case != "start" else []))
    run = lab.claim()
    try:
        lab.work(run)
    except Killed:
        wire.at = 0
        lab.home.parts.processes.kill(OwnerRecord.from_text(run.owner))
        lab.home.recovery(settings=IN_DATABASE).recover()  # the first that the next worker does
        if lab.home.runs.get(run.run_id).state is RunState.PENDING:
            lab.work(claimed(lab))
    lab.home.lease_renewer.close()
    return lab, guid, wire.passed


def facts(lab: DeliveryLab, guid: str):
    """All that a person could distinguish afterwards."""
    documents = [lab.home.document(adw_id) for adw_id in lab.workflows()]
    return (
        lab.row(guid).status,
        lab.row(guid).adw_id,
        len(lab.comments()),
        [
            (
                one.adw_id,
                one.current_state,
                [hint["text"] for hint in one.hints],
                len(one.deliveries),
                [record.attempts_used for record in one.phases],
                lab.home.events("approval_given", "approval_refused", "resumed", "command_obeyed", adw_id=one.adw_id),
                [(run.kind, run.state) for run in lab.home.runs.of_workflow(one.adw_id)],
            )
            for one in documents
        ],
    )


@pytest.mark.parametrize("case", KILLS)
def test_killed_before_or_after_any_step_it_is_done_once(case):
    whole, guid, steps = carried_out(case, at=0)
    expected = facts(whole, guid)
    assert "after finish_with_run" in steps

    for at in range(1, len(steps) + 1):
        lab, again, passed = carried_out(case, at)
        assert facts(lab, again) == expected, f"killed {passed[at - 1]} ({at} of {steps})"


def test_a_workflow_that_was_registered_and_never_written_is_begun_again(lab):
    """
    Its creator died between the two: the issue would stay locked by a workflow without a document.
    """
    guid = lab.deliver(lab.request())
    parts, dead = lab.home.parts, lab.home.parts.processes.me("worker")
    start = NewWorkflow(issue_number=lab.issue, spec=lab.workflow("sdlc"), adw_id=CHOSEN)
    document = lab.workflow_creator.document(start)
    parts.registry.register(document, dead, ttl_seconds=30.0, run=NewRun(adw_id=CHOSEN))

    assert lab.work().run.state is RunState.PENDING, "he may still write it"
    parts.processes.kill(dead)
    lab.home.clock.advance(6)
    lab.work(claimed(lab))

    [made] = lab.workflows()
    assert (lab.row(guid).status, lab.row(guid).adw_id, lab.home.state(made)) == ("done", made, "pending")
    assert parts.locks.verify(lab.issue, made)


def claimed(lab):
    """Claim the run of the delivery, not that of the workflow."""
    me = lab.home.parts.processes.me("worker")
    [waits] = [run for run in lab.home.runs.page(states=(RunState.PENDING,)) if run.kind == "delivery"]
    return lab.home.runs.claim(me, ttl_seconds=30.0, run_id=waits.run_id)


def test_a_run_that_is_stopped_says_so_on_its_delivery(lab):
    guid = lab.deliver(lab.request())
    run = lab.claim()
    lab.home.runs.ask_to_stop(run.run_id, reason="stopped by bob")

    end = lab.work(run)

    assert end.run.state is RunState.STOPPED
    assert (lab.row(guid).status, lab.row(guid).outcome) == ("failed", "its run was stopped: stopped by bob")
    assert lab.workflows() == []


def test_a_delivery_of_another_version_fails_with_a_reason(lab):
    guid = lab.deliver(lab.request())
    lab.deliveries.request_of = lambda _guid: {"type": "dance"}

    end = lab.work()

    assert end.run.state is RunState.FAILED
    assert (lab.row(guid).status, "neither a run nor a command" in lab.row(guid).outcome) == ("failed", True)


def test_a_run_whose_delivery_is_forgotten_fails(lab):
    lab.deliver(lab.request())
    lab.deliveries.get = lambda _guid: None

    assert lab.work().run.state is RunState.FAILED


def test_a_start_that_is_replayed_starts_nothing_new(lab):
    guid = lab.deliver(lab.request())
    lab.work()
    lab.deliveries.again(guid, asked_by="bob")

    lab.work(claimed(lab))

    assert lab.workflows() == [CHOSEN]
    assert lab.row(guid).status == "done"


# --- pull requests ---------------------------------------------------------------------------------------------


def merged(lab: DeliveryLab, standing: str) -> int:
    lab.stand(standing)
    number = lab.put_up()
    lab.forge.merge_pull_request(number, sha=lab.forge.pull_request(number).head_sha)
    return number


@pytest.mark.parametrize(
    ("standing", "state"),
    [
        ("COMPLETED", "completed"),
        ("PAUSED", "abandoned"),
        ("WAITING", "abandoned"),
        ("FAILED", "abandoned"),
        ("ABANDONED", "abandoned"),
    ],
)
def test_a_merge_frees_the_issue_and_is_written_down(lab, standing, state):
    number = merged(lab, standing)

    row = lab.carry_out(lab.command("clean_up", cause="pull_request", number=number, answers=False, actor=EVE))

    document = lab.home.document()
    assert (row.status, row.adw_id) == ("done", ADW_ID), row.outcome
    assert (document.current_state, document.pr_merged) == (state, True)
    assert lab.home.parts.locks.holder(lab.issue) is None
    assert (lab.comments(), lab.comments(number)) == ((), ())


def copied_marker(lab: DeliveryLab, number: int) -> int:
    """Close another pull request whose text has the marker of ours."""
    body = lab.forge.pull_request(number).body
    lab.forge.push("copied")
    copied = lab.forge.create_pull_request(NewPullRequest(title="t", body=body, head="copied", base="main")).number
    lab.forge.close_pull_request(copied)
    return copied


def without_marker(lab: DeliveryLab, number: int) -> int:
    """Close ours after its marker was taken out."""
    pulls = lab.forge._site.pulls
    pulls[number] = replace(pulls[number], body="no marker", state="closed")
    return number


@pytest.mark.parametrize(
    ("kind", "prepare", "why"),
    [
        ("clean_up", lambda _lab, number: number, "pull request #2 is not merged"),
        ("abandon", lambda _lab, number: number, "pull request #2 is open again"),
        ("abandon", without_marker, "no workflow is known for #2"),
        ("abandon", copied_marker, "no workflow is known for #3"),
    ],
    ids=["not merged", "open again", "of others", "copied marker"],
)
def test_what_the_forge_does_not_confirm_changes_nothing(lab, kind, prepare, why):
    lab.stand("PAUSED")
    number = prepare(lab, lab.put_up())

    row = lab.carry_out(lab.command(kind, cause="pull_request", number=number, answers=False))

    assert (row.status, row.outcome) == ("refused", why)
    assert (lab.home.state(), lab.home.document().pr_merged) == ("paused", False)


def test_a_pull_request_that_is_closed_without_a_merge_gives_its_workflow_up(lab):
    lab.stand("PAUSED")
    number = lab.put_up()
    lab.forge.close_pull_request(number)

    row = lab.carry_out(
        lab.command("abandon", "closed without a merge", cause="pull_request", number=number, answers=False, actor=EVE)
    )

    assert (row.status, lab.home.state()) == ("done", "abandoned")
    assert lab.home.parts.locks.holder(lab.issue) is None


@pytest.mark.parametrize(("state", "end"), [("closed", ("done", "abandoned")), ("open", ("refused", "failed"))])
def test_an_issue_that_is_closed_gives_its_workflow_up_unless_it_is_open_again(lab, state, end):
    lab.stand("FAILED")
    site = lab.forge._site
    site.issues[lab.issue] = replace(site.issues[lab.issue], state=state)

    row = lab.carry_out(lab.command("abandon", "closed", cause="closed", answers=False))

    assert (row.status, lab.home.state()) == end


def test_a_command_on_a_pull_request_means_the_workflow_that_opened_it(lab):
    lab.stand("PAUSED")
    number = lab.put_up()

    row = lab.carry_out(lab.command("resume", number=number))

    assert (row.status, lab.home.state(), len(lab.comments(number))) == ("done", "planning", 1)


# --- follow-ups ------------------------------------------------------------------------------------------------


def review(lab: DeliveryLab, number: int, **fields):
    return lab.command("rework", "rename it", number=number, cause="review", answers=False, **fields)


@pytest.mark.parametrize(
    ("standing", "status"), [("PAUSED", "suspended"), ("WAITING", "waiting"), ("FAILED", "failed")]
)
def test_a_workflow_that_waits_goes_back_to_building_with_what_the_reviewer_said(lab, standing, status):
    lab.stand(standing)
    lab.pass_plan(status)
    number = lab.put_up()

    row = lab.carry_out(review(lab, number))

    document = lab.home.document()
    assert (row.status, row.adw_id, document.current_state) == ("done", ADW_ID, "building"), row.outcome
    assert (document.followups, lab.home.record("build").status) == (1, "queued")
    assert [hint["text"] for hint in document.hints] == ["rename it"]
    assert lab.home.events("followup_begun") == ["followup_begun"]
    assert lab.workflows() == [ADW_ID]


def test_a_workflow_that_never_built_continues_with_what_the_reviewer_said(lab):
    lab.stand("PAUSED")
    number = lab.put_up()

    assert lab.carry_out(review(lab, number)).status == "done"
    assert (lab.home.state(), lab.home.record("plan").round) == ("planning", 1)


def test_a_completed_workflow_is_gone_on_with_by_a_new_one_on_its_branch(lab):
    """
    What is completed has no way back: a new workflow has its branch and its pull request, and what the reviewer said.
    """
    lab.stand("COMPLETED")
    number = lab.put_up()

    row = lab.carry_out(review(lab, number))

    document = lab.home.document(CHOSEN)
    assert (row.status, row.adw_id) == ("done", CHOSEN)
    assert (document.continues, document.followups) == (ADW_ID, 1)
    assert (document.branch_name, document.pr_number, document.issue_number) == (
        lab.home.document().branch_name,
        number,
        lab.issue,
    )
    assert [record.name for record in document.phases] == ["build"], "it is planned already"
    assert [hint["text"] for hint in document.hints] == ["rename it"]
    assert {entry.undo["made_by"] for entry in document.resources} == {ADW_ID}
    assert lab.home.parts.locks.verify(lab.issue, CHOSEN)
    assert lab.home.state() == "completed"


def test_an_issue_with_an_open_pull_request_gets_no_second_one_from_a_label(lab):
    lab.stand("COMPLETED")
    number = lab.put_up()

    rows = [lab.carry_out(lab.request()) for _ in range(3)]

    assert {(row.status, row.adw_id) for row in rows} == {("refused", ADW_ID)}
    assert f"issue {lab.issue} has the open pull request #{number} of workflow {ADW_ID}" in rows[0].outcome
    assert len(lab.comments()) == 1, "it is said once"
    assert lab.workflows() == [ADW_ID]


def test_what_a_comment_wants_changed_goes_to_the_branch_of_the_open_pull_request(lab):
    lab.stand("COMPLETED")
    number = lab.put_up()

    row = lab.carry_out(lab.request(hint="paint it red", cause="comment"))

    document = lab.home.document(CHOSEN)
    assert (row.status, row.adw_id) == ("done", CHOSEN), row.outcome
    assert (document.continues, document.pr_number) == (ADW_ID, number)
    assert [hint["text"] for hint in document.hints] == ["paint it red"]


@pytest.mark.parametrize("how", ["again", "closed", "merged"])
def test_a_second_workflow_is_started_when_that_is_said_or_the_pull_request_is_over(lab, how):
    lab.stand("COMPLETED")
    number = lab.put_up()
    site = lab.forge._site
    if how != "again":
        site.pulls[number] = replace(site.pulls[number], state="closed", is_merged=how == "merged")

    row = lab.carry_out(lab.request(is_again=how == "again"))

    assert (row.status, row.adw_id, lab.home.document(CHOSEN).continues) == ("done", CHOSEN, None), row.outcome


def test_a_follow_up_of_a_follow_up_is_counted_and_bounded(lab):
    lab.stand("COMPLETED")
    number = lab.put_up()
    made = []
    for count in range(4):
        adw_id = f"0000000{count}"
        row = lab.carry_out(review(lab, number), adw_id=adw_id)
        made.append((row.status, row.outcome))
        if row.status == "done":
            lab.home.work()  # builds, and is completed
            assert lab.home.state(adw_id) == "completed"

    assert [status for status, _ in made] == ["done", "done", "done", "refused"]
    assert made[-1][1] == "the work was sent on 3 of 3 times already: a person has to decide"
    assert lab.home.document("00000002").continues == ADW_ID, "the pull request has the marker of the first"


def test_follow_ups_have_to_be_switched_on(make_lab):
    lab = make_lab(webhook_max_followups="0")
    lab.stand("COMPLETED")
    number = lab.put_up()

    row = lab.carry_out(review(lab, number))

    assert row.status == "refused"
    assert "webhook.max_followups is 0" in row.outcome
    assert lab.workflows() == [ADW_ID]


def test_red_checks_count_only_for_the_commit_that_was_pushed(lab):
    lab.stand("COMPLETED")
    number = lab.put_up()
    head = lab.forge.pull_request(number).head_sha
    told = {"number": number, "cause": "checks", "answers": False, "actor": EVE}

    old = lab.carry_out(lab.command("rework", "tests ended as failure", head_sha="f" * 40, **told))
    now = lab.carry_out(lab.command("rework", "tests ended as failure", head_sha=head, **told))

    assert (old.status, now.status, lab.workflows()) == ("refused", "done", sorted([ADW_ID, CHOSEN]))


@pytest.mark.parametrize(
    ("prepare", "actor", "why"),
    [
        (lambda lab, _number: lab.forge.push(BRANCH), ADA, "has commits that are not of workflow"),
        (lambda lab, number: lab.forge.close_pull_request(number), ADA, "pull request #2 is not open any more"),
        (lambda _lab, _number: None, EVE, "that needs the permission write or more"),
    ],
    ids=["commits of others", "closed", "without permission"],
)
def test_a_review_sends_nothing_on(lab, prepare, actor, why):
    lab.stand("COMPLETED")
    number = lab.put_up()
    prepare(lab, number)

    row = lab.carry_out(review(lab, number, actor=actor))

    assert row.status == "refused"
    assert why in row.outcome
    assert (lab.workflows(), lab.comments(number)) == ([ADW_ID], ())


def test_a_reviewer_of_work_under_way_leaves_a_hint(lab):
    lab.stand("ACTIVE")
    number = lab.put_up()

    assert lab.carry_out(review(lab, number)).status == "done"
    assert [hint["text"] for hint in lab.home.document().hints] == ["rename it"]
    assert lab.home.document().followups == 0


def test_a_delivery_is_replayed_once_more_on_request(lab):
    lab.stand("PAUSED")
    guid = lab.deliver(lab.command("resume"))
    lab.work()
    lab.home.control.pause(ADW_ID, by="bob")

    lab.deliveries.again(guid, asked_by="bob")
    lab.work()

    assert lab.home.state() == "planning"
    assert (lab.row(guid).status, len(lab.comments())) == ("done", 1)
    assert lab.forge.calls == ["create_comment"], "the same was said before"


def test_a_forge_says_itself_when_to_come_again(lab):
    lab.deliver(lab.request())
    lab.forge.permission = always(ForgeBusy(90.0))

    end = lab.work()

    assert (timestamps.parse(end.run.not_before) - lab.home.clock.now()).total_seconds() == 90.0


def test_of_two_answers_that_were_posted_at_once_the_first_stays(lab):
    """
    A worker that was taken for dead may post its answer at the same moment.
    """
    lab.stand("PAUSED")
    post = lab.forge.create_comment

    def posted_twice(number, body):
        post(number, body)
        return post(number, body)

    lab.forge.create_comment = posted_twice
    lab.carry_out(lab.command("status"))

    [comment] = lab.comments()
    assert comment.comment_id == 1
