"""The soak of workflows: its requests cover every fault, its judgement fails closed, and a small one runs here."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

LIB = Path(__file__).parents[2] / "scripts" / "lib"
MODULES = ("soak", "soak_requests", "soak_sample", "soak_workflows")


@pytest.fixture(scope="module")
def soak():
    """The module that `scripts/soak/workflows` runs."""
    sys.path.insert(0, str(LIB))
    import soak_workflows

    yield soak_workflows
    sys.path.remove(str(LIB))
    for name in MODULES:
        sys.modules.pop(name, None)


def outcome(soak, **fields):
    """What comes of a soak in which all is well, but for what is given."""
    results = [
        soak.Result(
            request=request,
            adw_id=f"{number:08x}",
            state="completed" if request.is_recoverable else "rolled_back",
            is_settled=True,
            attempts=4,
            reworks=0,
        )
        for number, request in enumerate(soak.REQUESTS)
    ]
    made = soak.Outcome(
        seed=12345,
        started_at=datetime(2026, 1, 31, 9, tzinfo=UTC),
        seconds=61.2,
        results=tuple(results),
        findings=(),
        crashes=3,
    )

    return replace(made, **fields)


def change(made, number: int, **fields):
    """The same with another result for one request."""
    results = list(made.results)
    results[number] = replace(results[number], **fields)

    return replace(made, results=tuple(results))


def test_a_small_soak_ends_well(soak, seed, tmp_path):
    """
    Six requests at once with a fault each: a lost database, a full disk, a gate, a refusal, and two killed workers.
    """
    from soak_requests import SMALL

    said: list[str] = []

    done = soak.run(tmp_path, SMALL, seed=seed, say=said.append)

    assert soak.judge(done) == [], said
    assert done.crashes == 2
    assert {result.state for result in done.results} == {"completed", "rolled_back"}


def test_the_requests_differ_and_have_every_phase_and_every_kind_of_fault(soak):
    import soak_requests

    assert len({request.title for request in soak.REQUESTS}) == len(soak.REQUESTS) == 22
    assert len({request.workflow for request in soak.REQUESTS}) > 4
    assert len({request.label for request in soak.REQUESTS}) > 2
    assert soak_requests.problems_of(soak.REQUESTS) == []
    without = tuple(request for request in soak.REQUESTS if request.workflow != "swept")
    assert soak_requests.problems_of(without) == ["no fault for phase tidy"]


def test_an_outcome_without_trouble_passes(soak):
    assert soak.judge(outcome(soak)) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"state": "failed"}, "recoverable, and ended as failed"),
        ({"state": "building", "is_settled": False}, "stuck in building"),
        ({"problems": ("its pull requests are ['open', 'open'], not one that is open",)}, "not one that is open"),
    ],
    ids=["recoverable-failed", "stuck", "twice"],
)
def test_trouble_of_one_request_fails_the_soak(soak, fields, said):
    (problem,) = soak.judge(change(outcome(soak), 0, **fields))

    assert problem.startswith("Greet people by name: ")
    assert said in problem


def test_what_cannot_be_recovered_must_be_rolled_back(soak):
    (problem,) = soak.judge(change(outcome(soak), 21, state="failed"))

    assert problem == "Guess passwords of others: not recoverable, and ended as failed, not rolled back"


def test_more_than_four_fifths_must_be_completed(soak):
    made = outcome(soak)
    exactly = replace(made, results=(*made.results[:4], made.results[4]))

    assert soak.judge(exactly) == ["4 of 5 completed: not more than 80%"]


def test_what_verify_and_gc_find_fails_the_soak(soak):
    result = outcome(soak, findings=("adw admin gc found worktree x: there is no such workflow",))

    assert soak.judge(result) == ["adw admin gc found worktree x: there is no such workflow"]


def test_the_page_says_what_was_run_and_how_it_ended(soak):
    text = soak.page(change(outcome(soak), 0, state="failed"))

    assert "scripts/soak/workflows --seed 12345" in text
    assert "| outcome | FAILED |" in text
    assert "| completed | 19 of 22 |" in text
    assert "| Sort imports everywhere | sdlc | killed in lint, push_refused in ship | mend | completed | 4, 0 |" in text
    assert "| Greet people by name: recoverable, and ended as failed |" in text
    assert "| outcome | passed |" in soak.page(outcome(soak))
