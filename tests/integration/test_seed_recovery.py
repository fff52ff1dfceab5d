"""Recovery of runs on real databases: the table of states, its classic test, its tree, and what usually goes wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from adws.adw_modules import default_home, timestamps
from adws.adw_modules.errors import ConfigError, RunLost, UsageError
from adws.adw_modules.interfaces import AgentSession, SessionStatus
from adws.adw_modules.queue.model import NO_TERMS, RunState
from adws.adw_modules.recovery.plan import MAX_LOSSES, Mode, Policy
from adws.adw_modules.recovery.recovery import RunQueue, recover_all_active_runs, recover_stale_runs
from adws.config import load as config_load
from tests import sampling
from tests.integration.recovery_lab import RecoveryLab

KEYS = {"mode", "dry_run", "reset_to_pending", "marked_failed", "marked_stopped", "run_ids", "steps"}
DEAD = {"is_dead": True}
ELSEWHERE = {"machine": "another", "host": "far-away"}


#: Stores with the database that leases and runs are in: each of both once, and all four pairs in the soak.
PLACES = [
    pytest.param((store, url), marks=pytest.mark.postgres if url == "pg_url" else ())
    for store, url in sampling.each_value_once(["files", "database"], ["sqlite_url", "pg_url"])
]


@pytest.fixture(params=PLACES, ids="-".join)
def lab(request, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    store, url = request.param
    made = RecoveryLab(home=home, url=request.getfixturevalue(url), store=store)
    yield made
    made.close()


def states(app, *ids: str) -> list[str]:
    return [app.runs.of_workflow(adw_id)[0].state.value for adw_id in ids]


def make_four(lab, app) -> tuple[str, str, str, str]:
    """The runs of the classic test: pending, claimed, running, stopping; the last three of a worker that is dead."""
    dead = lab.open(**DEAD)
    ids = tuple(lab.start(app, number) for number in range(1, 5))
    lab.claim(dead, ids[1])
    lab.run(dead, ids[2])
    app.runs.ask_to_stop(lab.run(dead, ids[3]).run_id, reason="enough")
    assert states(app, *ids) == ["pending", "claimed", "running", "stopping"]
    return ids


# --- the table, and the classic test ---------------------------------------------------------------------------


def test_the_four_runs_of_the_classic_test_end_as_its_table_says(lab):
    app = lab.open()
    pending, claimed, running, stopping = make_four(lab, app)

    result = recover_stale_runs(stale_threshold_seconds=300, fails_running=True, home=app)

    assert states(app, pending, claimed, running, stopping) == ["pending", "pending", "failed", "stopped"]
    assert (result.reset_to_pending, result.marked_failed, result.marked_stopped) == (1, 1, 1)
    assert app.runs.of_workflow(running)[0].reason == "Coordinator restarted during execution"
    document = app.store.load(running).document
    assert (document.current_state, document.terminal_reason) == ("failed", "INTERRUPTED")
    assert document.phases[0].attempts[-1].status == "interrupted"
    assert document.phases[0].last_failure_reason == "Coordinator restarted during execution"
    stopped = app.store.load(stopping).document
    assert (stopped.current_state, stopped.pause_reason) == ("paused", "enough")


def test_running_work_continues_unless_the_policy_says_otherwise(lab):
    app = lab.open()
    *_, running, _ = make_four(lab, app)

    result = recover_stale_runs(home=app)

    assert states(app, running) == ["pending"]
    assert (result.reset_to_pending, result.marked_failed, result.marked_stopped) == (2, 0, 1)
    document = app.store.load(running).document
    assert (document.current_state, document.phases[0].status) == ("planning", "interrupted")


def test_mode_all_says_that_the_state_is_unknown(lab):
    app = lab.open()
    *_, running, _ = make_four(lab, app)

    result = recover_all_active_runs(fails_running=True, home=app)

    assert app.runs.of_workflow(running)[0].reason == "Coordinator restarted - execution state unknown"
    assert result.run_ids("marked_failed") == (app.runs.of_workflow(running)[0].run_id,)


def test_recovering_again_does_nothing_more(lab):
    app = lab.open()
    ids = make_four(lab, app)
    recover_stale_runs(home=app)
    lab.flush(app)
    before = [(app.store.load(one).document.revision, app.runs.of_workflow(one)) for one in ids]

    again = recover_all_active_runs(home=app)

    assert (again.runs, again.steps) == ((), ())
    assert [(app.store.load(one).document.revision, app.runs.of_workflow(one)) for one in ids] == before


# --- the decision tree -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["stale", "all"])
def test_the_claim_of_a_runner_that_is_alive_is_kept(lab, mode):
    app, alive = lab.open(), lab.open()
    adw_id = lab.start(app)
    run = lab.claim(alive, adw_id)
    lab.set_run(app, run.run_id, updated_at="2020-01-01T00:00:00.000000Z")

    assert RunQueue(recovery_mode=mode, home=app).recovered.runs == ()
    assert states(app, adw_id) == ["claimed"]


def test_the_claim_of_a_runner_that_is_not_alive_goes_back(lab):
    app = lab.open()
    adw_id = lab.start(app)
    lab.claim(lab.open(**DEAD), adw_id)

    queue = RunQueue(home=app)

    assert queue.recovered.reset_to_pending == 1
    assert [run.adw_id for run in queue.waiting()] == [adw_id]


def test_what_runs_on_another_machine_is_left_until_its_lease_is_over(lab):
    app = lab.open()
    adw_id = lab.start(app)
    lab.run(lab.open(**ELSEWHERE), adw_id)

    assert recover_stale_runs(0, home=app).runs == ()
    assert recover_all_active_runs(home=app).runs == (), "mode all ignores age, not liveness"
    lab.end_leases(app)

    assert recover_stale_runs(home=app).reset_to_pending == 1
    assert states(app, adw_id) == ["pending"]


def test_force_takes_work_from_who_may_live(lab):
    app = lab.open()
    adw_id = lab.start(app)
    worker = lab.open(**ELSEWHERE)
    run = lab.run(worker, adw_id)

    result = recover_all_active_runs(force=True, home=app)

    assert result.reset_to_pending == 1
    assert states(app, adw_id) == ["pending"]
    with pytest.raises(RunLost):
        worker.runs.renew(run, ttl_seconds=30.0)


def test_mode_none_changes_nothing_and_says_what_it_would_do(lab):
    app = lab.open()
    ids = make_four(lab, app)

    result = RunQueue(recovery_mode="none", home=app).recovered

    assert states(app, *ids) == ["pending", "claimed", "running", "stopping"]
    assert (result.reset_to_pending, result.marked_failed, result.marked_stopped) == (0, 0, 0)
    assert {(step.run_id, step.action.value) for step in result.steps} >= {
        (app.runs.of_workflow(ids[1])[0].run_id, "requeue"),
        (app.runs.of_workflow(ids[3])[0].run_id, "stop"),
    }


# --- one test for each thing that is usually got wrong ---------------------------------------------------------


def test_the_threshold_is_read_and_an_unknown_mode_is_refused(tmp_path):
    env = {"ADW_HOME": str(tmp_path), "RUN_RECOVERY_THRESHOLD": "17", "RUN_RECOVERY_MODE": "all"}
    settings = config_load.load(env=env, cwd=tmp_path)
    assert (settings.recovery_threshold_seconds, settings.recovery_mode) == (17.0, "all")
    short = config_load.load(env={"ADW_HOME": str(tmp_path), "ADW_RECOVERY_THRESHOLD_SECONDS": "18"}, cwd=tmp_path)
    assert short.recovery_threshold_seconds == 18.0

    for name in ("ADW_RECOVERY_MODE", "RUN_RECOVERY_MODE"):
        with pytest.raises(ConfigError, match="none, stale, all"):
            config_load.load(env={"ADW_HOME": str(tmp_path), name: "some"}, cwd=tmp_path)
    with pytest.raises(UsageError, match="'some' is no mode of recovery; use one of none, stale, all"):
        RunQueue(recovery_mode="some")


def test_the_threshold_decides_only_where_nothing_is_proven(lab):
    """A claim without an owner says nothing but when it was last changed."""
    app = lab.open()
    adw_id = lab.start(app)
    run = lab.claim(app, adw_id)
    minute_ago = timestamps.to_text(app.clock.now() - timedelta(seconds=60))
    lab.set_run(app, run.run_id, owner="", claim_until=0.0, claim_boot="", updated_at=minute_ago)

    assert recover_stale_runs(300, home=app).runs == ()
    assert recover_stale_runs(30, home=app).reset_to_pending == 1


def test_age_is_not_liveness(lab):
    """A long run that lives is kept, a young one whose worker died is recovered."""
    app, alive, dead = lab.open(), lab.open(), lab.open(**DEAD)
    old, young = lab.start(app, 1), lab.start(app, 2)
    run = lab.run(alive, old)
    lab.set_run(app, run.run_id, started_at="2020-01-01T00:00:00.000000Z", updated_at="2020-01-01T00:00:00.000000Z")
    lab.run(dead, young)

    result = recover_stale_runs(home=app)

    assert states(app, old, young) == ["running", "pending"]
    assert result.run_ids("reset_to_pending") == (app.runs.of_workflow(young)[0].run_id,)


def test_the_late_report_of_a_former_owner_changes_nothing(lab):
    app, dead = lab.open(), lab.open(**DEAD)
    adw_id = lab.start(app)
    late = lab.claim(dead, adw_id)
    recover_stale_runs(home=app)
    again = lab.claim(app, adw_id)

    for report in (
        lambda: dead.runs.begin(late),
        lambda: dead.runs.finish(late, RunState.COMPLETED),
        lambda: dead.runs.requeue(late),
    ):
        with pytest.raises(RunLost, match="not yours any more"):
            report()
    assert (app.runs.get(again.run_id).state, again.token) == (RunState.CLAIMED, late.token + 1)


def test_a_run_that_every_worker_dies_of_is_given_up(lab):
    app, dead = lab.open(), lab.open(**DEAD)
    adw_id = lab.start(app)
    seen = []
    for _ in range(MAX_LOSSES):
        lab.claim(dead, adw_id)
        recover_stale_runs(home=app)
        seen += states(app, adw_id)

    assert seen == ["pending"] * (MAX_LOSSES - 1) + ["dead"]
    run, document = app.runs.of_workflow(adw_id)[0], app.store.load(adw_id).document
    assert (run.losses, run.reason.startswith("5 workers vanished with run")) == (MAX_LOSSES, True)
    assert (document.current_state, document.terminal_reason) == ("failed", "POISON_RUN")
    lab.flush(app)
    assert recover_stale_runs(home=app).steps == (), "and it stays so"


def test_a_stop_is_confirmed_by_the_end_of_its_processes(lab):
    """The intent is a row, and what a dead worker left running is ended before anybody says stopped."""
    app = lab.open()
    *_, stopping = make_four(lab, app)

    (stopped,) = [run for run in recover_stale_runs(home=app).runs if run.after is RunState.STOPPED]

    run = app.runs.get(stopped.run_id)
    assert (run.adw_id, run.reason) == (stopping, "enough")
    assert lab.events(app, stopping, "run_recovered")[0]["to"] == "stopped"


def test_a_stop_that_nobody_can_confirm_says_so_and_only_after_the_threshold(lab):
    """Its processes are on a machine that cannot be asked."""
    app = lab.open()
    far = lab.open(**ELSEWHERE)
    adw_id = lab.start(app)
    run = lab.run(far, adw_id)
    record_process(app, adw_id, far)
    app.runs.ask_to_stop(run.run_id, reason="enough")
    lab.end_leases(app)

    assert recover_stale_runs(300, home=app).runs == ()
    assert states(app, adw_id) == ["stopping"]
    recover_stale_runs(0, home=app)

    run = app.runs.get(run.run_id)
    assert (run.state, run.reason.startswith("stop unconfirmed: ")) == (RunState.STOPPED, True)
    assert "far-away" in run.reason
    assert "enough" in run.reason


def record_process(app, adw_id: str, worker) -> None:
    """Write a process of *worker* down with the attempt that runs, as the worker would have."""
    identity = worker.processes.me("worker")
    fence = app.leases.read(adw_id).fence
    document = app.store.load(adw_id).document
    attempt = document.phases[0].attempts[-1]
    process = {"token": "t" * 32, "identity": identity.to_text(), "argv": ["agent"], "started_at": attempt.started_at}
    phase = document.phases[0].changed(attempts=[attempt.changed(process=process)])
    app.store.save(document.changed(phases=[phase, *document.phases[1:]]), fence=fence)


@pytest.mark.parametrize("since", ["2020-01-01T00:00:00Z", "2020-01-01T00:00:00.500000+00:00", "", "no time at all"])
def test_moments_are_compared_as_moments(lab, since):
    """However they are spelled; one that nobody can read is not young."""
    app = lab.open()
    run = lab.claim(app, lab.start(app))
    lab.set_run(app, run.run_id, owner="", claim_until=0.0, claim_boot="", updated_at=since)

    assert recover_stale_runs(300, home=app).reset_to_pending == 1


def test_sessions_follow_their_runs_and_no_others(lab):
    """Claimed, running and stopping ones, each with a status that says what happened."""
    app = lab.open()
    ids = make_four(lab, app)
    alive = lab.open()
    busy = lab.start(app, 9)
    lab.run(alive, busy)
    for adw_id in (*ids[1:], busy):
        app.sessions.open(
            AgentSession(
                session_id=f"{adw_id}.plan.1",
                adw_id=adw_id,
                run_id=None,
                phase="plan",
                attempt_number=1,
                agent="claude",
                host="here",
                status=SessionStatus.RUNNING,
            )
        )

    recover_stale_runs(home=app)

    result = {session.adw_id: session for one in (*ids, busy) for session in app.sessions.of_workflow(one)}
    assert [result[one].status.value for one in ids[1:]] == ["failed", "failed", "stopped"]
    assert all(result[one].ended_at for one in ids[1:])
    assert "is dead" in result[ids[1]].reason
    assert [session.adw_id for session in app.sessions.live()] == [busy]


def test_every_mode_answers_under_the_same_names_with_the_runs_it_changed(lab):
    app = lab.open()
    ids = make_four(lab, app)
    runs = {one: app.runs.of_workflow(one)[0].run_id for one in ids}

    answers = [RunQueue(recovery_mode=mode, home=app).recovered.to_json() for mode in ("none", "stale", "all")]

    assert [set(answer) for answer in answers] == [KEYS] * 3
    counted = ("reset_to_pending", "marked_failed", "marked_stopped")
    assert [[answer[key] for key in counted] for answer in answers] == [[0, 0, 0], [2, 0, 1], [0, 0, 0]]
    assert answers[1]["run_ids"] == {
        "reset_to_pending": [runs[ids[1]], runs[ids[2]]],
        "marked_failed": [],
        "marked_stopped": [runs[ids[3]]],
    }


def test_there_is_no_copy_of_the_queue_that_could_be_behind(lab):
    """What one process recovers, a queue that another one opened before shows at once."""
    app, other = lab.open(), lab.open()
    make_four(lab, app)
    queue = RunQueue(recovery_mode="none", home=other)
    assert (len(queue.active()), len(queue.waiting())) == (3, 1)

    recover_stale_runs(home=app)

    assert (len(queue.active()), len(queue.waiting())) == (0, 3)


def test_what_was_first_is_first_after_recovery_and_restart(lab):
    app, dead = lab.open(), lab.open(**DEAD)
    ids = [lab.start(app, number) for number in range(1, 6)]
    for adw_id in (ids[3], ids[1]):
        lab.claim(dead, adw_id)
    recover_stale_runs(home=app)

    restarted = lab.open()
    queue = RunQueue(home=restarted)
    me = restarted.processes.me("worker")
    claimed = [queue.claim(me).adw_id for _ in ids]

    assert claimed == ids
    assert queue.claim(me) is None


def test_the_queue_by_its_short_name_keeps_to_the_limits_of_the_home(lab):
    (lab.home / "adw.toml").write_text("[limits.workflow]\ntried = 1\n")
    app = lab.open()
    for number in (1, 2):
        lab.start(app, number)
    queue, me = RunQueue(home=app), app.processes.me("worker")
    assert queue.claim(me) is not None

    assert queue.claim(me) is None
    assert queue.claim(me, terms=NO_TERMS) is not None


def test_recovery_works_in_the_home_that_is_named_and_nowhere_else(lab, tmp_path):
    """Nothing is opened, made or removed but there."""
    app = lab.open()
    make_four(lab, app)
    before = sorted(path.name for path in tmp_path.iterdir())

    with default_home.using(app):
        assert recover_stale_runs().reset_to_pending == 2

    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_every_recovered_run_leaves_an_event_a_count_and_a_line_in_the_log(lab, caplog):
    app = lab.open()
    _, claimed, running, stopping = make_four(lab, app)

    recover_stale_runs(home=app)

    for adw_id, before, after in (
        (claimed, "claimed", "pending"),
        (running, "running", "pending"),
        (stopping, "stopping", "stopped"),
    ):
        (told,) = lab.events(app, adw_id, "run_recovered")
        assert (told["from"], told["to"], told["verdict"], told["mode"]) == (before, after, "dead", "stale")
        assert told["run_id"] == app.runs.of_workflow(adw_id)[0].run_id
        assert told["why"]
    assert app.tally.counted()["adw_runs_recovered_total"] == {
        ("dead", "stale", "requeue"): 2.0,
        ("dead", "stale", "stop"): 1.0,
    }
    said = [record.step for record in caplog.records if getattr(record, "action", "") == "recovered"]
    assert sorted(step for step in said if step != "project") == ["requeue", "requeue", "stop"]


# --- further ---------------------------------------------------------------------------------------------------


def test_a_worker_that_starts_recovers_by_the_settings(lab):
    lab.env["ADW_RECOVERY_MODE"] = "none"
    app = lab.open()
    ids = make_four(lab, app)

    assert app.recovery.recover().mode is Mode.NONE
    assert states(app, *ids) == ["pending", "claimed", "running", "stopping"]


def test_of_several_recoveries_at_once_each_run_is_recovered_by_one(lab):
    app, dead = lab.open(), lab.open(**DEAD)
    ids = [lab.start(app, number) for number in range(1, 13)]
    for adw_id in ids:
        lab.run(dead, adw_id)
    others = [lab.open() for _ in range(4)]

    with ThreadPoolExecutor(len(others)) as pool:
        results = list(pool.map(lambda other: recover_stale_runs(home=other), others))

    for other in others:
        lab.flush(other)
    recovered = [run for result in results for run in result.run_ids("reset_to_pending")]
    assert sorted(recovered) == [app.runs.of_workflow(adw_id)[0].run_id for adw_id in ids]
    assert {app.runs.of_workflow(adw_id)[0].losses for adw_id in ids} == {1}
    assert [len(lab.events(app, adw_id, "run_recovered")) for adw_id in ids] == [1] * len(ids)
    assert all(len(app.store.load(adw_id).document.phases[0].attempts) == 1 for adw_id in ids)


def test_many_are_recovered_in_batches(lab):
    app, dead = lab.open(), lab.open(**DEAD)
    ids = [lab.start(app, number) for number in range(1, 71)]
    for adw_id in ids:
        lab.run(dead, adw_id)

    result = app.recovery.recover(policy=Policy())

    assert result.reset_to_pending == 70
    assert set(states(app, *ids)) == {"pending"}
    assert [run.adw_id for run in RunQueue("none", home=app).waiting()] == ids
    assert all(app.leases.read(adw_id).owner is None for adw_id in ids)
