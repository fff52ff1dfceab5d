"""The next phase is read off the document alone, and so is what its attempts add up to."""

from __future__ import annotations

import pytest

from adws.adw_modules.document import PhaseRecord
from adws.adw_modules.engine.transitions import (
    AllPassed,
    AttemptTotals,
    Blocked,
    choose,
    is_exhausted,
    limit,
    over_budget,
    totals,
)
from adws.adw_modules.errors import StateInvalid
from tests.unit.engine_cases import attempt, document_of, phase, records_of, spec_of


def record(*attempts, **fields) -> PhaseRecord:
    return PhaseRecord(**{"name": "build", "state": "building", "attempts": list(attempts), **fields})


def with_status(spec, **status):
    return [item.model_copy(update={"status": status.get(item.name, item.status)}) for item in records_of(spec)]


# --- which phase -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["queued", "running", "retry_wait", "waiting", "failed", "interrupted", "suspended"])
def test_a_required_phase_is_chosen_until_it_is_complete(status):
    spec = spec_of("plan", "build")

    result = choose(spec, with_status(spec, plan=status))

    assert result.spec.name == "plan"


def test_no_phase_of_a_later_tier_is_chosen_after_one_that_failed():
    spec = spec_of(phase("plan"), phase("build", tier=1), phase("test", tier=2))

    result = choose(spec, with_status(spec, plan="complete", build="failed"))

    assert result.spec.name == "build"


def test_nothing_is_left_when_every_phase_passed():
    spec = spec_of("plan", phase("build", is_required=False))

    assert choose(spec, with_status(spec, plan="complete", build="failed")) == AllPassed()


def test_a_phase_whose_needs_can_never_be_met_is_blocked_and_says_by_what():
    spec = spec_of("plan", phase("lint", is_required=False), phase("review", needs=("plan", "lint")))

    result = choose(spec, with_status(spec, plan="complete", lint="skipped"))

    assert result == Blocked(spec=spec.phases[2], index=2, missing=("lint",))


@pytest.mark.parametrize("names", [["plan"], ["plan", "test"], ["build", "plan"], []])
def test_a_document_with_other_phases_than_its_definition_is_refused(names):
    """
    A phase that the document does not have would be one that nobody misses: the workflow would complete without it.
    """
    records = [PhaseRecord(name=name, state="planning", status="complete") for name in names]

    with pytest.raises(StateInvalid, match="does not have the phases of its definition tried@7"):
        choose(spec_of("plan", "build"), records)


# --- attempts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "granted", "is_used_up"), [(0, 0, False), (2, 0, False), (3, 0, True), (3, 1, False), (4, 1, True)]
)
def test_a_round_has_as_many_attempts_as_its_definition_and_people_allow(used, granted, is_used_up):
    result = record(attempts_used=used, max_attempts=3, granted=granted)

    assert limit(result) == 3 + granted
    assert is_exhausted(result) is is_used_up


def test_totals_go_over_all_rounds_and_leave_out_what_is_not_known():
    result = record(
        attempt(1, "failed", duration=10.0),
        attempt(2, "interrupted"),
        attempt(3, "suspended", duration=5.0),
        attempt(4, "succeeded", duration=15.0, round=2),
    )

    assert totals(result) == AttemptTotals(attempts=4, counted=3, seconds=30.0, average_seconds=10.0)
    assert totals(record()) == AttemptTotals(attempts=0, counted=0, seconds=0, average_seconds=None)


# --- the health budget -----------------------------------------------------------------------------------------


def spent(*attempts, **fields):
    spec = spec_of("plan", "build")
    document = document_of(spec, **fields)
    document.phases[1].attempts = list(attempts)
    return over_budget(document)


def test_the_budget_of_attempts_leaves_out_suspended_ones_and_without_one_nothing_is_over_it():
    made = [attempt(1), attempt(2, "suspended"), attempt(3, "interrupted")]

    assert spent(*made, max_total_attempts=3) == ""
    assert spent(*made, max_total_attempts=2) == "2 of 2 attempts are used"
    assert spent(*(attempt(number, duration=1e6) for number in range(1, 100))) == ""


def test_the_budget_of_minutes_counts_work_of_every_kind():
    made = [attempt(1, duration=60.0), attempt(2, "suspended", duration=30.0)]

    assert spent(*made, max_minutes=2) == ""
    assert spent(*made, max_minutes=1.5) == "1.5 of 1.5 minutes are used"
