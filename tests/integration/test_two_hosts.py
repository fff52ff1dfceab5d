"""
Workflows on two machines that share PostgreSQL: one is killed and the other continues, and each undoes what is its own.
"""

from __future__ import annotations

import signal
import threading

import pytest

from adws.adw_modules.errors import GitError, QuotaExceeded
from adws.adw_modules.process import tree
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.workflow.model import PhaseSpec
from adws.adw_modules.workspace.relocation import Publisher
from tests.integration.two_hosts_lab import LEASE_SECONDS, PATIENCE, TwoHosts, make_two_hosts, until
from tests.integration.work_lab import PLAN, QUICK, git, step

pytestmark = pytest.mark.postgres

SHIP = PhaseSpec(name="ship", state="shipping", runner="ship", needs=("plan", "build"), on_rework="build", retry=QUICK)
CLEAN = PhaseSpec(name="clean", state="cleaning", runner="clean", is_required=False, retry=QUICK)
BUILD = step("build", "echo built >> app.py", "building")


@pytest.fixture
def two(tmp_path, pg_url) -> TwoHosts:
    return make_two_hosts(tmp_path, pg_url)


def hanging(two: TwoHosts) -> PhaseSpec:
    """A phase that hangs until somebody says `go`; then the next attempt does it at once."""
    shell = f"test -e {two.place}/go || {{ echo half > half.txt; echo up > {two.place}/up; sleep 600; }}"
    return step("build", f"{shell}; echo built >> app.py", "building")


def failing(two: TwoHosts, name: str, state: str) -> PhaseSpec:
    """A phase that fails for good until somebody fixes it."""
    line = f"test -e {two.place}/{name}-fixed && echo {name} >> app.py"
    return step(name, line, state, max_attempts=1, commits=True)


def moved_to_beta(two: TwoHosts, *more: PhaseSpec) -> str:
    """A workflow whose plan was made on alpha and whose build was made on beta, and that failed there after that."""
    adw_id = two.alpha.start(PLAN, failing(two, "build", "building"), *more, failing(two, "test", "testing"))
    two.alpha.work()
    (two.place / "build-fixed").touch()
    two.beta.resume(adw_id)
    two.beta.work()
    document = two.beta.document(adw_id)
    assert (document.current_state, document.failed_phase) == ("failed", "testing")

    return adw_id


def effects(document) -> dict[str, tuple[str, str | None]]:
    return {item.key: (item.outcome, item.host) for item in document.resources}


def first_claim_of_beta(two: TwoHosts, adw_id: str, seen: list[float]) -> None:
    """Note when, by the server's clock, beta first claimed the run."""
    sql = "SELECT claim_until FROM runs WHERE adw_id = :adw_id AND owner LIKE :owner"
    params = {"adw_id": adw_id, "owner": '%"host": "beta"%'}
    with two.alpha.open() as app:

        def look() -> bool:
            with app.database.read() as session:
                row = session.one(sql, params)
            if row is not None:
                seen.append(float(row[0]) - LEASE_SECONDS)
            return row is not None

        until(look, "beta claims the run")


def test_when_a_machine_is_killed_another_goes_on_from_its_commits_once_the_lease_has_ended(two):
    adw_id = two.alpha.start(PLAN, hanging(two), SHIP, CLEAN)
    killed, other = two.alpha.worker(), None
    try:
        two.has_begun()
        plan = two.wip(adw_id)
        assert plan is not None
        assert plan == git(two.alpha.home / "trees" / adw_id, "rev-parse", "HEAD")
        other = two.beta.worker()
        until(lambda: "beta" in two.at_work(), "the other worker is there")
        killed.send_signal(signal.SIGKILL)
        killed.wait(PATIENCE)
        (two.place / "go").touch()
        with two.beta.open() as app, app.database.read() as session:
            row = session.one(
                "SELECT known.lease_until, asked.claim_until FROM workflow_states AS known JOIN runs AS asked"
                " ON asked.adw_id = known.adw_id WHERE known.adw_id = :adw_id",
                {"adw_id": adw_id},
            )
        lease_end, seen = max(map(float, row)), []
        watcher = threading.Thread(target=first_claim_of_beta, args=(two, adw_id, seen))
        watcher.start()
        until(lambda: two.beta.document(adw_id).current_state == "completed", "beta completes the workflow")
        watcher.join(PATIENCE)
        assert seen[0] >= lease_end
    finally:
        killed.kill()
        killed.wait(PATIENCE)
        if other is not None:
            other.terminate()
            other.wait(PATIENCE)

    document = two.beta.document(adw_id)
    assert [attempt.status for attempt in document.phases[1].attempts] == ["interrupted", "succeeded"]
    branch = git(two.remote, "rev-parse", f"refs/heads/{document.branch_name}")
    assert git(two.remote, "merge-base", plan, branch) == plan
    assert "half.txt" not in git(two.remote, "ls-tree", "--name-only", branch)
    [moved] = [event for event in two.beta.events(adw_id) if event.event_type == "work_moved"]
    assert moved.data == {"from": "alpha", "to": "beta", "commit": plan}
    assert two.wip(adw_id) is None
    assert two.beta.trees() == []
    assert effects(document)["worktree on alpha"] == ("made", "alpha")

    # It comes back: what it left is taken away there, its process too, and nowhere else.
    assert len(two.alpha.trees()) == 1
    record = document.phases[1].attempts[0].process
    with two.alpha.open() as app:
        left = tree.ProcessTree(app.processes, tree.recorded(record).identity, token=record["token"])
        assert left.members()
        two.alpha.work()
        assert not left.members()
    assert two.alpha.trees() == []
    assert two.alpha.branches() == ["main"]
    assert (two.alpha.home / "state" / adw_id / "left-on-alpha.patch").read_text().count("half.txt") > 0
    assert two.alpha.is_sound()
    assert two.beta.is_sound()


def test_a_stop_of_work_on_a_machine_that_was_lost_is_made_elsewhere_and_called_unconfirmed(two):
    """Nobody here can end what runs there; its own worker does when it comes back."""
    adw_id = two.alpha.start(PLAN, hanging(two))
    killed = two.alpha.worker()
    try:
        two.has_begun()
        killed.send_signal(signal.SIGKILL)
    finally:
        killed.kill()
        killed.wait(PATIENCE)

    code, said = two.beta.adw("pause", adw_id, "-m", "enough", "--wait", str(PATIENCE))

    why = "stop unconfirmed: what it had started could not be confirmed dead: it was started on alpha, which is not"
    assert (code, f"is paused; {why}" in said) == (1, True), said
    document, run = two.beta.document(adw_id), two.beta.runs(adw_id)[0]
    assert (document.current_state, run.state) == ("paused", RunState.STOPPED)
    assert document.pause_reason == run.reason
    assert run.reason.startswith(why)
    assert run.reason.endswith("(enough)")
    record = document.phases[1].attempts[0].process
    with two.alpha.open() as app:
        left = tree.ProcessTree(app.processes, tree.recorded(record).identity, token=record["token"])
        assert left.members()
        two.alpha.work()
        assert not left.members()


def test_a_machine_that_comes_back_ends_what_still_runs_there_before_it_goes_on(two):
    """Another one has closed the attempt and could not look: two would work in the same worktree."""
    adw_id = two.alpha.start(PLAN, hanging(two))
    killed = two.alpha.worker()
    try:
        two.has_begun()
        killed.send_signal(signal.SIGKILL)
    finally:
        killed.kill()
        killed.wait(PATIENCE)
    until(
        lambda: two.beta.adw("admin", "recover") and two.beta.runs(adw_id)[0].state is RunState.PENDING,
        "its work is resumed there",
    )
    record = two.beta.document(adw_id).phases[1].attempts[0].process
    assert "started on alpha" in record["in_doubt"]
    (two.place / "go").touch()

    with two.alpha.open() as app:
        left = tree.ProcessTree(app.processes, tree.recorded(record).identity, token=record["token"])
        assert left.members()
        run = app.runs.claim(app.processes.me("worker"), ttl_seconds=LEASE_SECONDS)
        end = app.run_executor.work(run)
        assert not left.members()

    assert end.run.state is RunState.COMPLETED
    document = two.alpha.document(adw_id)
    assert "in_doubt" not in document.phases[1].attempts[0].process
    told = [event.event_type for event in two.alpha.events(adw_id)]
    assert told.index("left_processes_ended") < [at for at, kind in enumerate(told) if kind == "attempt_started"][2]
    assert two.alpha.is_sound()


def test_a_rollback_undoes_what_is_here_and_leaves_the_rest_to_a_worker_of_the_other_machine(two):
    adw_id = moved_to_beta(two)
    branch = two.beta.document(adw_id).branch_name

    code, said = two.beta.adw("rollback", adw_id)

    assert code == 1
    assert "it waits for a worker on alpha" in said
    assert two.wip(adw_id) is None
    assert (two.beta.trees(), two.beta.branches()) == ([], ["main"])
    assert len(two.alpha.trees()) == 1
    assert two.beta.document(adw_id).current_state == "failed"
    [run] = [run for run in two.beta.runs(adw_id) if run.state is RunState.PENDING]
    assert (run.kind, run.demands.host) == ("rollback", "alpha")
    two.beta.work()
    assert two.beta.runs(adw_id)[0].state is RunState.PENDING  # beta leaves it alone

    two.alpha.work()

    assert two.alpha.document(adw_id).current_state == "rolled_back"
    assert (two.alpha.trees(), two.alpha.branches()) == ([], ["main"])
    assert branch not in two.refs()
    assert two.alpha.is_sound()
    assert two.beta.is_sound()


def test_a_rollback_that_a_worker_makes_goes_from_machine_to_machine(two):
    adw_id = moved_to_beta(two)

    assert two.alpha.adw("rollback", adw_id, "--detach")[0] == 0
    two.alpha.work()
    assert two.alpha.document(adw_id).current_state == "failed"
    two.beta.work()

    assert two.beta.document(adw_id).current_state == "rolled_back"
    assert [*two.alpha.trees(), *two.beta.trees()] == []
    assert two.alpha.is_sound()
    assert two.beta.is_sound()


def test_a_machine_that_is_gone_for_good_is_given_up_by_a_person_and_what_is_there_is_listed(two):
    adw_id = moved_to_beta(two)
    assert two.beta.adw("rollback", adw_id)[0] == 1

    code, said = two.beta.adw("rollback", adw_id, "--forget-host", "alpha", "--reason", "it burned down")

    assert code == 0, said
    assert "left on alpha: remove the worktree" in said
    document = two.beta.document(adw_id)
    assert document.current_state == "rolled_back"
    assert effects(document)["worktree on alpha"] == ("forgotten", "alpha")
    [told] = [event for event in two.beta.events(adw_id) if event.event_type == "host_forgotten"]
    assert (told.data["host"], told.data["reason"]) == ("alpha", "it burned down")
    assert told.data["by"]
    assert two.beta.is_sound()

    # It was only unplugged: its worker takes away what the ledger says was given up.
    two.alpha.work()
    assert (two.alpha.trees(), two.alpha.branches()) == ([], ["main"])
    assert effects(two.alpha.document(adw_id))["worktree on alpha"] == ("undone", "alpha")
    assert two.alpha.is_sound()


def test_a_worker_gives_a_machine_up_when_somebody_asked_for_that_later(two):
    adw_id = moved_to_beta(two)
    two.beta.adw("rollback", adw_id)
    [waiting] = [run for run in two.beta.runs(adw_id) if run.state is RunState.PENDING]

    code, said = two.beta.adw("rollback", adw_id, "--forget-host", "alpha", "--detach")
    two.beta.work()

    assert code == 0, said
    runs = {run.run_id: run.state for run in two.beta.runs(adw_id)}
    assert runs[waiting.run_id] is RunState.STOPPED
    assert two.beta.document(adw_id).current_state == "rolled_back"


def test_only_another_machine_that_has_something_of_the_workflow_can_be_given_up(two):
    adw_id = moved_to_beta(two)

    code, said = two.beta.adw("rollback", adw_id, "--forget-host", "beta")
    assert (code, "this is beta: what is here is undone here" in said) == (2, True), said
    code, said = two.beta.adw("rollback", adw_id, "--forget-host", "gamma")
    assert (code, "has nothing on gamma: it has something on alpha, beta" in said) == (2, True), said

    assert two.beta.document(adw_id).rollback is None


def test_work_that_could_not_be_published_waits_for_its_machine(two, monkeypatch):
    def refuse(*_args: object) -> None:
        raise GitError("the remote refused it")

    adw_id = two.alpha.start(PLAN, failing(two, "build", "building"), SHIP, CLEAN)
    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "_push", refuse)
        two.alpha.work()
    (two.place / "build-fixed").touch()
    two.beta.resume(adw_id)

    two.beta.work()

    run = two.beta.runs(adw_id)[0]
    assert (run.state, run.demands.host) == (RunState.PENDING, "alpha")
    assert "only a worker there can continue it" in run.reason
    assert two.wip(adw_id) is None
    [told] = [event for event in two.beta.events(adw_id) if event.event_type == "work_not_published"]
    assert told.data["host"] == "alpha"
    two.alpha.work()
    assert two.alpha.document(adw_id).current_state == "completed"


def test_what_looks_like_a_secret_stays_on_its_machine(two):
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
    plan = step("plan", f"echo 'token = {token[:24]}'{token[24:40]} > plan.md", "planning")
    adw_id = two.alpha.start(plan, failing(two, "build", "building"))

    two.alpha.work()

    assert two.wip(adw_id) is None
    [told] = [event for event in two.alpha.events(adw_id) if event.event_type == "work_not_published"]
    assert "what looks like a secret at plan.md:1" in told.data["why"]
    (two.place / "build-fixed").touch()
    two.beta.resume(adw_id)
    two.beta.work()
    assert two.beta.runs(adw_id)[0].demands.host == "alpha"


def test_a_workflow_that_comes_back_begins_from_what_the_other_machine_did(two):
    adw_id = moved_to_beta(two)
    (two.alpha.home / "trees" / adw_id / "draft.txt").write_text("not committed\n")
    (two.place / "test-fixed").touch()
    two.alpha.resume(adw_id)

    two.alpha.work()

    document = two.alpha.document(adw_id)
    assert document.current_state == "completed"
    tree = two.alpha.home / "trees" / adw_id
    assert tree.joinpath("app.py").read_text() == "print('one')\nbuild\ntest\n"
    assert not tree.joinpath("draft.txt").exists()
    assert "draft.txt" in (two.alpha.home / "state" / adw_id / "left-on-alpha.patch").read_text()
    assert effects(document)["worktree"] == ("made", "alpha")
    assert effects(document)["worktree on beta"] == ("made", "beta")
    two.beta.work()
    assert two.beta.trees() == []
    assert two.alpha.is_sound()
    assert two.beta.is_sound()


def test_gc_here_leaves_what_is_on_the_other_machine_and_says_who_can_look(two):
    adw_id = moved_to_beta(two)
    (two.place / "test-fixed").touch()
    two.beta.resume(adw_id)
    two.beta.work()
    assert two.beta.document(adw_id).current_state == "completed"

    code, said = two.beta.adw("admin", "gc", "--execute")

    assert code == 0, said
    assert f"workflow {adw_id} is completed and has something on alpha" in said
    assert len(two.alpha.trees()) == 1
    code, said = two.alpha.adw("admin", "gc", "--execute")
    assert (code, two.alpha.trees()) == (0, []), said


def test_worktrees_are_counted_on_each_machine_and_money_on_all_together(tmp_path, pg_url):
    two = make_two_hosts(tmp_path, pg_url, ADW_QUOTA_MAX_WORKTREES="1", ADW_QUOTA_MAX_COST_PER_DAY="1")
    first, second, third = (two.alpha.start(PLAN, title=f"Thing {number}") for number in range(3))
    with two.alpha.open() as alpha, two.beta.open() as beta:
        alpha.quotas.admit(first, estimated_cost=0.4)
        with pytest.raises(QuotaExceeded, match="1 of 1 worktrees"):
            alpha.quotas.admit(second, estimated_cost=0.1)
        beta.quotas.admit(second, estimated_cost=0.4)
        beta.quotas.release(second)
        with pytest.raises(QuotaExceeded, match="cost_per_day"):
            beta.quotas.admit(third, estimated_cost=0.7)
