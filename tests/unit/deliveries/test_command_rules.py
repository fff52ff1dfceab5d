"""Who may ask for something, what a command means where a workflow stands, and that nothing is done twice."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import (
    Actor,
    CommandAction,
    No,
    WorkflowStanding,
    meaning,
    standing_of,
    why_not_listed,
    why_not_permitted,
)
from adws.adw_modules.document import REMEMBERED, Mark, Resource, RollbackRecord, is_marked, mark
from adws.adw_modules.state_machine import ACTIVE_STATES
from tests.unit.engine_cases import ADW_ID, document_of, draft_of, spec_of, types

ADA = Actor(login="Ada")
BOT = Actor(login="helper[bot]", is_bot=True)


def access(**lists: object) -> SimpleNamespace:
    """The settings that say who may ask."""
    usual = {"permission": "write", "allow": None, "deny": None, "bots": None}
    return SimpleNamespace(**{f"webhook_{name}": value for name, value in {**usual, **lists}.items()})


#: Every command in every state: what is done, or how the answer ends.
TABLE = {
    "status": dict.fromkeys(WorkflowStanding, CommandAction.STATUS),
    "pause": {
        "ACTIVE": CommandAction.PAUSE,
        "WAITING": "is waiting for approval already",
        "PAUSED": "is paused already",
        "FAILED": "is failed: nothing runs",
        "COMPLETED": "is completed: there is nothing to pause any more",
        "ABANDONED": "is abandoned: there is nothing to pause any more",
        "ROLLED_BACK": "is rolled back: there is nothing to pause any more",
        "ROLLING_BACK": "is being rolled back: that has to be over first",
    },
    "stop": {
        "ACTIVE": CommandAction.STOP,
        "WAITING": "is waiting for approval already",
        "PAUSED": "is paused already",
        "FAILED": "is failed: nothing runs",
        "COMPLETED": "is completed: there is nothing to stop any more",
        "ABANDONED": "is abandoned: there is nothing to stop any more",
        "ROLLED_BACK": "is rolled back: there is nothing to stop any more",
        "ROLLING_BACK": "is being rolled back: that has to be over first",
    },
    "resume": {
        "ACTIVE": "is at work already",
        "WAITING": "is waiting for approval: approve or reject decides",
        "PAUSED": CommandAction.RESUME,
        "FAILED": CommandAction.RESUME,
        "COMPLETED": "is completed: there is nothing to resume any more",
        "ABANDONED": "is abandoned: there is nothing to resume any more",
        "ROLLED_BACK": "is rolled back: there is nothing to resume any more",
        "ROLLING_BACK": "is being rolled back: that has to be over first",
    },
    "retry": {
        "ACTIVE": "is at work already",
        "WAITING": "is waiting for approval: approve or reject decides",
        "PAUSED": "is paused: resume makes it go on",
        "FAILED": CommandAction.RESUME,
        "COMPLETED": "is completed: there is nothing to retry any more",
        "ABANDONED": "is abandoned: there is nothing to retry any more",
        "ROLLED_BACK": "is rolled back: there is nothing to retry any more",
        "ROLLING_BACK": "is being rolled back: that has to be over first",
    },
    **{
        kind: {
            **{
                standing.name: f"does not wait for approval: it is {standing.value}"
                for standing in WorkflowStanding
                if standing is not WorkflowStanding.WAITING
            },
            "WAITING": CommandAction[kind.upper()],
        }
        for kind in ("approve", "reject")
    },
    "abandon": {
        **dict.fromkeys(("ACTIVE", "WAITING", "PAUSED", "FAILED"), CommandAction.ABANDON),
        "COMPLETED": "is completed: there is nothing to abandon any more",
        "ABANDONED": "is abandoned already",
        "ROLLED_BACK": "is rolled back: there is nothing to abandon any more",
        "ROLLING_BACK": "is being rolled back: that has to be over first",
    },
    "rollback": {
        **dict.fromkeys((one.name for one in WorkflowStanding), CommandAction.ROLL_BACK),
        "ROLLED_BACK": "is rolled back already",
    },
    "clean_up": {
        **dict.fromkeys(("WAITING", "PAUSED", "FAILED", "COMPLETED", "ABANDONED"), CommandAction.CLEAN_UP),
        "ACTIVE": "is at work: it finds the merge itself when it is done",
        "ROLLED_BACK": "is rolled back already",
        "ROLLING_BACK": "is being rolled back: that has to be over first",
    },
    "rework": {
        **dict.fromkeys(("WAITING", "PAUSED", "FAILED"), CommandAction.REWORK),
        "ACTIVE": "is at work: that has to be over first",
        "COMPLETED": CommandAction.FOLLOW_UP,
        "ABANDONED": "is abandoned: there is nothing to work on any more",
        "ROLLED_BACK": "is rolled back: there is nothing to work on any more",
        "ROLLING_BACK": "is being rolled back: that has to be over first",
    },
}
CASES = [
    (kind, standing, row[standing if standing in row else standing.name])
    for kind, row in TABLE.items()
    for standing in WorkflowStanding
]


# --- who -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actor", "settings", "why"),
    [
        (ADA, access(), ""),
        (ADA, access(allow=("ADA",)), ""),
        (ADA, access(allow=("bob",)), "Ada is not on the list of those who may"),
        (ADA, access(deny=("ada",)), "Ada is on the list of those who may not"),
        (ADA, access(allow=("ada",), deny=("ADA",)), "Ada is on the list of those who may not"),
        (BOT, access(), "helper[bot] is a program, and not on the list of those that may"),
        (BOT, access(bots=("Helper[bot]",)), ""),
        (BOT, access(bots=("Helper[bot]",), allow=("ada",)), ""),
        (BOT, access(bots=("Helper[bot]",), deny=("helper[BOT]",)), "helper[bot] is on the list of those who may not"),
        (Actor(login=""), access(), "nobody knows who asked for it"),
    ],
)
def test_the_lists_say_who_may_not(actor, settings, why):
    assert why_not_listed(actor, settings) == why


@pytest.mark.parametrize("permission", ["none", "read", "triage", "", "owner"])
def test_less_than_write_is_not_enough(permission):
    why = why_not_permitted(ADA, permission, access())

    assert why == "that needs the permission write or more, which Ada does not have here"


@pytest.mark.parametrize("permission", ["write", "maintain", "admin"])
def test_write_or_more_is_enough(permission):
    assert why_not_permitted(ADA, permission, access()) == ""


# --- what it means ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "standing", "expected"), CASES, ids=lambda one: getattr(one, "name", None))
def test_each_command_means_one_thing_in_each_state(kind, standing, expected):
    result = meaning(kind, standing, adw_id=ADW_ID)

    if isinstance(expected, CommandAction):
        assert result is expected
    else:
        assert result == No(why=f"workflow {ADW_ID} {expected}", is_done=expected.endswith("already"))


@pytest.mark.parametrize(
    ("fields", "standing"),
    [
        *(({"current_state": state.value}, WorkflowStanding.ACTIVE) for state in sorted(ACTIVE_STATES, key=str)),
        ({"current_state": "paused", "resume_state": "planning"}, WorkflowStanding.PAUSED),
        ({"current_state": "failed"}, WorkflowStanding.FAILED),
        ({"current_state": "completed"}, WorkflowStanding.COMPLETED),
        ({"current_state": "abandoned"}, WorkflowStanding.ABANDONED),
        ({"current_state": "rolled_back", "rollback": RollbackRecord()}, WorkflowStanding.ROLLED_BACK),
        ({"current_state": "abandoned", "rollback": RollbackRecord()}, WorkflowStanding.ROLLING_BACK),
    ],
)
def test_where_a_workflow_stands_is_read_off_its_document(fields, standing):
    assert standing_of(document_of(spec_of("plan", "build"), **fields)) is standing


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"current_state": "building"}, f"`{ADW_ID}` is at work on this issue already"),
        ({"current_state": "failed"}, f"`{ADW_ID}` has this issue already and is failed: let it go on, or abandon it"),
        ({"current_state": "paused", "resume_state": "planning"}, f"`{ADW_ID}` has this issue already and is paused"),
    ],
)
def test_who_asks_for_a_second_workflow_is_told_what_to_do_about_the_first(fields, said):
    document = document_of(spec_of("plan", "build"), **fields)

    assert commands.why_no_second(ADW_ID, document).startswith(said)
    assert "is at work on this issue already" in commands.why_no_second(ADW_ID, None)


@pytest.mark.parametrize(
    ("names", "first"), [(("plan", "build", "test"), "build"), (("plan",), "plan"), ((), "")], ids=str
)
def test_work_that_is_sent_back_begins_with_building(names, first):
    document = document_of(spec_of(*names)) if names else document_of(spec_of("plan"), phases=[])

    assert commands.first_to_rework(document) == first


def test_a_workflow_that_never_came_to_building_continues_where_it_is():
    early = document_of(spec_of("plan", "build"))
    late = document_of(spec_of("plan", "build"))
    late.phases[1] = late.phases[1].model_copy(update={"status": "complete"})

    assert (commands.rework_from(early), commands.rework_from(late)) == ("", "build")


def test_the_head_is_what_was_pushed_last():
    branch = Resource(key="remote_branch:b", kind="remote_branch", outcome="made", undo={"sha": "a" * 40})
    document = document_of(spec_of("plan"), branch_name="b", resources=[branch])

    assert commands.recorded_head(document) == "a" * 40
    assert commands.recorded_head(document_of(spec_of("plan"), branch_name="c", resources=[branch])) == ""


# --- once ------------------------------------------------------------------------------------------------------


def test_a_mark_is_written_once_and_told():
    draft = draft_of(document_of(spec_of("plan")))
    made = Mark(delivery="g#1", kind="stop", by="ada")

    mark(draft, made)
    mark(draft, made)
    mark(draft, None)

    assert draft.document.deliveries == ["g#1"]
    assert is_marked(draft.document, made)
    assert not is_marked(draft.document, None)
    assert types(draft) == ["command_obeyed"]
    assert draft.events[0].data == {"delivery": "g#1", "command": "stop", "by": "ada"}


def test_a_follow_up_is_counted_with_its_mark():
    draft = draft_of(document_of(spec_of("plan")))

    for number in (1, 1, 2):
        mark(draft, Mark(delivery=f"g#{number}", kind="rework", by="ada", is_follow_up=True))

    assert draft.document.followups == 2
    assert types(draft) == ["command_obeyed", "followup_begun"] * 2


def test_a_document_remembers_only_the_newest_deliveries():
    draft = draft_of(document_of(spec_of("plan")))

    for number in range(REMEMBERED + 5):
        mark(draft, Mark(delivery=str(number)))

    assert draft.document.deliveries == [str(number) for number in range(5, REMEMBERED + 5)]


def test_what_a_person_asked_for_at_a_door_is_told_once_with_who_and_from_where():
    draft = draft_of(document_of(spec_of("plan")))
    made = Mark(delivery="dashboard:1", kind="pause", by="ada (dashboard)", source="dashboard, 10.0.0.7")

    mark(draft, made)
    mark(draft, made)

    assert types(draft) == ["action_asked"]
    assert draft.events[0].data == {"action": "pause", "by": "ada (dashboard)", "from": "dashboard, 10.0.0.7"}


@pytest.mark.parametrize("source", ["", "dashboard, 10.0.0.7"])
def test_a_mark_travels_with_a_request(source):
    made = Mark(delivery="g#1", kind="stop", by="ada", is_follow_up=True, source=source)

    assert Mark.from_json(made.to_json()) == made
    assert Mark.from_json({"delivery": "g#1"}) == Mark(delivery="g#1")


@pytest.mark.parametrize("data", [None, "g#1", {}, {"delivery": 7}])
def test_what_is_no_mark_is_none(data):
    assert Mark.from_json(data) is None
