"""A violation of each invariant is planted, on disk, in the database, in git or as a process: verify names it."""

from __future__ import annotations

import pytest

from adws.adw_modules.document import AttemptRecord
from adws.adw_modules.events import Event
from adws.adw_modules.git import git as git_module
from adws.adw_modules.rollback.plan import RollbackOptions
from tests.integration.tidy_lab import ADW_ID, TidyHome, a_process, branch_of, git, in_database

OTHER = "5e6f7a8b"
SECRET = "ghp_" + "a1B2" * 9


@pytest.fixture
def lab(tmp_path) -> TidyHome:
    return TidyHome(tmp_path.resolve() / "home")


def found(app) -> list[tuple[int, str, str]]:
    return [(broken.invariant, broken.where, broken.what) for broken in app.verifier.check()]


def invariants(app) -> set[int]:
    return {number for number, _, _ in found(app)}


def change(app, adw_id: str = ADW_ID, **fields) -> None:
    """Write a document as no rule of adw would."""
    with app.ownership.own(adw_id) as owned:
        owned.save(owned.document.model_copy(update=fields))


def records(app, **changes):
    first, *others = app.store.load(ADW_ID).document.phases
    return [first.model_copy(update=changes), *others]


def test_nothing_is_wrong_with_a_home_at_work(lab):
    with lab.open() as app:
        lab.make(app)

        assert found(app) == []


def test_what_changes_between_two_checks_breaks_nothing(lab):
    with lab.open() as app:
        lab.make(app)
        git(lab.path, "branch", branch_of(OTHER, 9))
        verifier = app.verifier
        look = verifier._look

        def then_it_is_mended():
            seen = look()
            if branch_of(OTHER, 9) in lab.heads():
                git(lab.path, "branch", "-D", branch_of(OTHER, 9))
            return seen

        verifier._look = then_it_is_mended

        assert look() != ()
        assert verifier.check() == ()


def test_a_torn_document_breaks_the_first(lab):
    with lab.open() as app:
        lab.make(app)
    path = lab.path / "state" / ADW_ID / "adw_state.json"
    path.write_bytes(path.read_bytes()[:300])

    with lab.open() as app:
        broken = [where for number, where, _ in found(app) if number == 1]

    assert any(ADW_ID in where for where in broken)


def test_an_older_document_put_back_breaks_the_first(lab):
    path = lab.path / "state" / ADW_ID / "adw_state.json"
    with lab.open() as app:
        lab.make(app)
        old = path.read_bytes()
        change(app, plan_file="a")
        change(app, plan_file="b")
    path.write_bytes(old)
    for kept in path.parent.glob(".adw_state.json.*"):
        kept.unlink()

    with lab.open() as app:
        assert 1 in invariants(app)


def test_a_lock_that_names_another_workflow_breaks_the_fifth(lab):
    with lab.open() as app:
        issue = lab.make(app)
        app.locks.release(issue, ADW_ID)
        app.locks.acquire(issue, OTHER)

        assert [(number, where) for number, where, _ in found(app)] == [(5, ADW_ID)]


def test_a_fence_above_that_of_the_lease_breaks_the_fifth(lab):
    with lab.open() as app:
        lab.make(app)
    in_database(lab, "UPDATE workflow_states SET fence = 0")

    with lab.open() as app:
        assert [(number, where) for number, where, _ in found(app)] == [(5, ADW_ID)]


def test_a_worktree_and_a_branch_that_no_ledger_has_break_the_sixth(lab):
    with lab.open() as app:
        lab.make(app)
        branch = branch_of(OTHER, 9)
        app.git.add_worktree(lab.tree(OTHER), branch=branch, start="main", reason=git_module.lock_reason(OTHER))

        assert [(number, where) for number, where, _ in found(app)] == [
            (6, f"branch {branch}"),
            (6, f"worktree {lab.tree(OTHER)}"),
        ]


def test_a_port_that_no_ledger_has_breaks_the_sixth(lab):
    with lab.open() as app:
        lab.make(app)
        lab.make(app, OTHER)
        change(app, resources=[e for e in app.store.load(ADW_ID).document.resources if e.kind != "port"])

        assert {number for number, where, _ in found(app) if where.startswith("port")} == {6}


def test_what_is_left_of_a_rolled_back_workflow_breaks_the_seventh(lab):
    with lab.open() as app:
        issue = lab.make(app)
        app.rollbacks.rollback(ADW_ID, RollbackOptions(reason="x"))
        assert found(app) == []
        git(lab.path, "branch", branch_of(ADW_ID, issue), "main")

        broken = found(app)

    assert broken == [(7, ADW_ID, f"it is rolled back, and its branch {branch_of(ADW_ID, issue)} is there")]


@pytest.mark.parametrize("adw_id", [ADW_ID, OTHER])
def test_a_process_that_nobody_recorded_breaks_the_eighth(lab, adw_id):
    with lab.open() as app:
        lab.make(app)
        with a_process(lab, adw_id) as process:
            broken = found(app)

    assert [number for number, _, _ in broken] == [8]
    assert str(process.pid) in broken[0][1]


def test_a_process_that_runs_on_after_its_workflow_was_parked_breaks_the_eighth(lab):
    with lab.open() as app:
        lab.make(app, state="paused")
        made = AttemptRecord(
            number=1, started_at="2026-01-31T09:00:00.000000Z", status="suspended", process={"token": "t" * 32}
        )
        change(app, phases=records(app, attempts=[made]))
        with a_process(lab, ADW_ID):
            assert [number for number, _, _ in found(app)] == [8]


def test_a_process_of_another_home_is_none_of_ours(lab, tmp_path):
    with lab.open() as app:
        lab.make(app)
        with a_process(lab, ADW_ID, state_dir=tmp_path / "elsewhere"):
            assert found(app) == []


def test_a_secret_in_a_log_breaks_the_tenth_and_is_not_repeated(lab):
    with lab.open() as app:
        lab.make(app)
        log = lab.path / "state" / ADW_ID / "adw.log"
        log.write_text(f"it said token {SECRET}\n")

        broken = found(app)

    assert [(number, where) for number, where, _ in broken] == [(10, str(log))]
    assert SECRET not in str(broken)


def test_a_secret_in_an_event_breaks_the_tenth(lab):
    with lab.open() as app:
        lab.make(app)
        with app.ownership.own(ADW_ID) as owned:
            owned.save(owned.document, events=(Event(event_type="hint_given", data={"text": "placeholder"}),))
    in_database(lab, "UPDATE events SET data = replace(data, 'placeholder', ?)", SECRET)

    with lab.open() as app:
        broken = found(app)

    assert 10 in {number for number, where, _ in broken if where.startswith("event ")}
