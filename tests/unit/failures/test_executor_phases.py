"""Executors in Python: which attempts go on from a checkpoint, what is kept when they fail, and when it goes."""

from __future__ import annotations

import contextlib
import sys
import types

import pytest

from adws.adw_modules.checkpoint import (
    CheckpointManager,
    PastCheckpoints,
    attempts_to_go_on_from,
    is_first,
    task_of,
    valid_since,
)
from adws.adw_modules.document import PhaseRecord
from adws.adw_modules.engine.gates import GateVerdict
from adws.adw_modules.engine.runner_python import PythonRunner
from adws.adw_modules.errors import DatabaseUnavailable, Fenced
from adws.adw_modules.phase import RunReport, Suspended
from tests.unit.engine_cases import ADW_ID, BROKEN, GATED, World, attempt, document_of, phase, spec_of

MODULE = "adw_test_executors"


class Steps:
    """Does five steps; says which, and breaks where it is told to."""

    done: list[int]
    breaks_at: dict[int, object]  # step -> what happens there, once

    def __init__(self) -> None:
        self.current = 0

    def execute(self, context):
        for step in range(self.current + 1, 6):
            broken = self.breaks_at.pop(step, None)
            if isinstance(broken, BaseException):
                raise broken
            if broken is not None:
                return broken
            self.done.append(step)
            self.current = step
            self.after_step(context)
        return {"steps": self.current}

    def after_step(self, context):
        """Nothing."""


class Keeping(Steps):
    """Tells what it has got when it is asked."""

    def supports_checkpoint(self):
        return True

    def get_checkpoint(self):
        return {"current": self.current} if self.current else None

    def resume_from_checkpoint(self, checkpoint):
        self.current = checkpoint["current"]


class Saving(Steps):
    """Saves after each step itself."""

    def resume_from_checkpoint(self, checkpoint):
        self.current = checkpoint["current"]

    def after_step(self, context):
        context.save_checkpoint({"current": self.current}, f"step {self.current}")


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, made)
    return made


class Lab:
    """A workflow whose build is an executor, and what became of it."""

    def __init__(self, module, *before, **changes):
        build = phase("build", runner="python", call=f"{MODULE}:Made", gates=GATED, **changes)
        self.module = module
        self.world = World(spec_of(*before, build, "test"))
        self.manager = CheckpointManager(self.world.parts.checkpoints, clock=self.world.clock)
        engine = self.world.engine
        engine.phase_runners["python"] = PythonRunner(checkpoints=self.manager)
        engine.say = lambda _adw_id, line: self.said.append(line)
        engine.checkpoint_manager = self.manager
        engine.past_checkpoints = PastCheckpoints(engine)
        self.said: list[str] = []
        self.done: list[int] = []

    def use(self, kind, **breaks):
        """Make *kind* the executor; `at_4=...` is what happens at step 4."""
        broken = {int(name.removeprefix("at_")): what for name, what in breaks.items()}
        self.module.Made = type("Made", (kind,), {"done": self.done, "breaks_at": broken})

    def attempt(self, **changes):
        self.world.clock.advance(600)
        return self.world.attempt(**changes)

    @property
    def task(self):
        return task_of(ADW_ID, "build")

    @property
    def statuses(self):
        return [item.status for item in self.world.record("build").attempts]


@pytest.fixture
def lab(module):
    return Lab(module)


# --- going on --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Keeping, Saving])
def test_an_executor_that_fails_at_step_4_goes_on_after_step_3(lab, kind):
    lab.use(kind, at_4=BROKEN)

    lab.attempt()
    assert lab.manager.load_checkpoint(lab.task) == {"current": 3}
    lab.attempt()

    assert (lab.done, lab.statuses) == ([1, 2, 3, 4, 5], ["failed", "succeeded"])
    assert lab.world.record("build").result == {"steps": 5}


def test_one_without_checkpoints_starts_again_from_the_beginning(lab):
    lab.use(Steps, at_4=BROKEN)

    lab.attempt()
    lab.attempt()

    assert (lab.done, lab.statuses) == ([1, 2, 3, 1, 2, 3, 4, 5], ["failed", "succeeded"])


def test_one_that_says_it_does_not_support_them_is_not_asked(lab):
    class Refusing(Keeping):
        def supports_checkpoint(self):
            return False

    lab.use(Refusing, at_4=BROKEN)
    lab.attempt()
    assert lab.manager.load_checkpoint(lab.task) is None
    lab.manager.save_checkpoint(lab.task, {"current": 3})
    lab.attempt()

    assert lab.done == [1, 2, 3, 1, 2, 3, 4, 5]


def test_after_a_crash_it_goes_on_from_what_was_saved_while_it_ran(lab):
    """A process that is gone asks nobody what it has got: only what was saved is there."""
    lab.use(Saving, at_4=Fenced(ADW_ID, 1))  # leaves everything as it is, like a process that dies
    lab.world.clock.advance(600)
    with pytest.raises(Fenced):
        lab.world.attempt()
    assert lab.world.record("build").attempts[-1].status == "running"

    lab.attempt()

    assert lab.done == [1, 2, 3, 4, 5]
    assert lab.statuses == ["interrupted", "succeeded"]


@pytest.mark.parametrize(
    "stop", [Suspended(reason="drain"), KeyboardInterrupt(), RunReport(ok=False, error=BROKEN), TimeoutError("slow")]
)
def test_what_it_has_got_is_kept_at_every_kind_of_end(lab, stop):
    lab.use(Keeping, at_3=stop)
    lab.world.clock.advance(600)
    with contextlib.suppress(KeyboardInterrupt):
        lab.world.attempt()

    assert lab.manager.load_checkpoint(lab.task) == {"current": 2}
    if lab.world.state == "paused":
        lab.world.resume()
    lab.attempt()
    assert lab.done == [1, 2, 3, 4, 5]


def test_a_plain_function_has_the_checkpoint_and_a_way_to_save(lab):
    seen = []

    def work(context):
        seen.append(context.checkpoint)
        context.save_checkpoint({"tries": len(seen)}, "tried")
        if len(seen) < 3:
            raise BROKEN

    lab.module.Made = work
    for _ in range(3):
        lab.attempt()

    assert seen == [None, {"tries": 1}, {"tries": 2}]


def test_a_factory_gets_the_context_and_returns_the_executor(lab):
    lab.use(Saving, at_2=BROKEN)
    kind, given = lab.module.Made, []

    def make(context):
        given.append(context.attempt_number)
        return kind()

    lab.module.Made = make
    lab.attempt()
    lab.attempt()

    assert (lab.done, given) == ([1, 2, 3, 4, 5], [1, 2])


# --- when they go ----------------------------------------------------------------------------------------------


def test_checkpoints_go_when_the_phase_succeeds(lab):
    lab.use(Saving)

    lab.attempt()

    assert lab.manager.list_checkpoints(lab.task) == ()
    assert lab.world.parts.checkpoints.workflows() == ()


def test_those_of_other_phases_stay(lab):
    other = task_of(ADW_ID, "test")
    lab.manager.save_checkpoint(other, {"a": 1})
    lab.use(Saving)

    lab.attempt()

    assert lab.manager.load_checkpoint(other) == {"a": 1}


def test_checkpoints_stay_until_the_end_of_the_phase_is_stored(lab):
    """Who dies while a gate is asked has done all of the work: none of it is done again."""

    def die(*_args):
        raise Fenced(ADW_ID, 1)  # leaves everything as it is, like a process that dies

    lab.use(Saving)
    with pytest.raises(Fenced):
        lab.attempt(gates=die)
    assert lab.manager.load_checkpoint(lab.task) == {"current": 5}

    lab.attempt()

    assert (lab.done, lab.statuses) == ([1, 2, 3, 4, 5], ["interrupted", "succeeded"])
    assert lab.world.record("build").result == {"steps": 5}
    assert lab.manager.list_checkpoints(lab.task) == ()


def refuse_gates(*_args):
    return GateVerdict(passed=False, reason="red")


def not_secured(*_args):
    raise OSError("the disk is full")


@pytest.mark.parametrize(
    "later",
    [{"gates": refuse_gates}, {"conclude": not_secured}],
    ids=["a-gate-refuses-it", "it-cannot-be-secured"],
)
def test_work_that_was_done_and_did_not_pass_is_done_anew(lab, later):
    lab.use(Saving)
    lab.attempt(**later)

    lab.attempt()

    assert (lab.done, lab.statuses) == ([1, 2, 3, 4, 5, 1, 2, 3, 4, 5], ["failed", "succeeded"])


def test_what_was_saved_after_work_was_refused_is_gone_on_from(lab):
    lab.use(Saving)
    lab.attempt(gates=refuse_gates)
    lab.use(Saving, at_3=BROKEN)
    lab.attempt()

    lab.attempt()

    assert (lab.done, lab.statuses) == ([1, 2, 3, 4, 5, 1, 2, 3, 4, 5], ["failed", "failed", "succeeded"])


def test_a_result_that_cannot_be_stored_is_made_anew(lab):
    class Odd(Saving):
        def execute(self, context):
            super().execute(context)
            return RunReport(ok=True, cost_usd=-1.0)

    lab.use(Odd)
    lab.attempt()
    lab.world.resume()
    lab.use(Saving)

    lab.attempt()

    assert (lab.done, lab.statuses) == ([1, 2, 3, 4, 5, 1, 2, 3, 4, 5], ["failed", "succeeded"])


def test_they_go_too_when_a_person_has_to_approve_the_work(lab):
    lab.use(Saving)

    lab.attempt(gates=lambda *_args: GateVerdict(passed=False, needs_human=True, reason="look at it"))

    assert lab.statuses == ["succeeded"]
    assert lab.manager.list_checkpoints(lab.task) == ()


def test_nothing_is_deleted_for_a_phase_that_keeps_none(lab, monkeypatch):
    asked = []
    monkeypatch.setattr(lab.world.parts.checkpoints, "delete", lambda *args, **_more: asked.append(args))
    lab.use(Saving)
    lab.attempt()
    lab.attempt()

    assert lab.world.record("test").status == "complete"
    assert asked == [(lab.task,)]


def test_none_are_looked_for_after_a_first_attempt_that_saved_none(lab, monkeypatch):
    asked = []
    latest = lab.world.parts.checkpoints.latest
    monkeypatch.setattr(lab.world.parts.checkpoints, "latest", lambda task: asked.append(task) or latest(task))
    lab.use(Steps)
    lab.attempt()
    assert (lab.statuses, asked) == (["succeeded"], [])


def test_they_are_looked_for_when_another_process_may_have_saved_some(lab):
    lab.use(Saving, at_4=BROKEN)
    lab.attempt()
    lab.manager.saved.clear()  # as in a process that begins
    lab.use(Keeping)
    lab.attempt()

    assert (lab.done, lab.statuses) == ([1, 2, 3, 4, 5], ["failed", "succeeded"])
    assert lab.manager.list_checkpoints(lab.task) == ()


def test_a_success_stands_when_they_cannot_be_deleted(lab, monkeypatch, caplog):
    def refuse(*_args, **_more):
        raise DatabaseUnavailable("the disk is full")

    lab.use(Saving)
    monkeypatch.setattr(lab.world.parts.checkpoints, "delete", refuse)

    lab.attempt()

    assert lab.statuses == ["succeeded"]
    assert [record.action for record in caplog.records if record.name == "adw.checkpoints"] == ["checkpoints_left"]


def test_an_attempt_is_made_when_stale_ones_cannot_be_deleted(lab, monkeypatch):
    def refuse(*_args, **_more):
        raise DatabaseUnavailable("the disk is full")

    lab.use(Saving)
    lab.attempt(gates=refuse_gates)
    monkeypatch.setattr(lab.world.parts.checkpoints, "delete", refuse)

    lab.attempt()

    assert lab.statuses == ["failed", "succeeded"]
    assert lab.said == ["the checkpoints of phase build could not be deleted: the disk is full"]


def test_a_new_round_begins_at_the_beginning(module):
    """A phase that is done anew, on what was reviewed, must not take its earlier steps as done."""
    lab = Lab(module, max_attempts=1)
    lab.use(Saving, at_4=BROKEN)
    lab.attempt()
    lab.world.resume(from_phase="build")

    lab.attempt()

    assert lab.world.record("build").round == 2
    assert lab.done == [1, 2, 3, 1, 2, 3, 4, 5]
    assert lab.manager.list_checkpoints(lab.task) == (), "those of the earlier round are gone"


def test_a_checkpoint_from_before_an_earlier_phase_was_done_again_is_not_used(module):
    """What it had built on is another now."""
    lab = Lab(module, "plan")
    lab.world.runner.scripts = {}
    lab.use(Saving, at_4=BROKEN)
    lab.attempt()
    lab.attempt()
    assert lab.manager.load_checkpoint(lab.task) == {"current": 3}
    lab.world.clock.advance(60)
    again = (
        lab.world.document.phases[0]
        .attempts[-1]
        .model_copy(update={"number": 2, "started_at": lab.world.clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")})
    )
    lab.world.change(lambda draft: draft.change_phase(0, attempts=[*draft.phase(0).attempts, again]))

    lab.attempt()

    assert lab.done == [1, 2, 3, 1, 2, 3, 4, 5]


def test_whoever_lost_the_workflow_saves_nothing(lab):
    def work(context):
        lab.world.parts.leases.take(
            ADW_ID, lab.world.parts.processes.me("other"), ttl_seconds=30.0, dead_fence=context.document.fence
        )
        context.save_checkpoint({"late": True})

    lab.module.Made = work

    with pytest.raises(Fenced):
        lab.attempt()

    assert lab.manager.load_checkpoint(lab.task) is None


# --- what goes wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda: [1], "TypeError: a checkpoint must be a dict"),
        (lambda: {1: 2}, "keys must be texts"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_checkpoint_that_cannot_be_got_does_not_hide_the_failure(lab, answer, words):
    class Broken(Keeping):
        def get_checkpoint(self):
            return answer()

    lab.use(Broken, at_2=BROKEN)

    lab.attempt()

    failed = lab.world.record("build").attempts[-1]
    assert failed.error["message"] == str(BROKEN)
    assert words in BROKEN.__notes__[-1]
    assert any("no checkpoint was saved" in line and words in line for line in lab.said)


def test_one_that_has_nothing_yet_saves_nothing(lab):
    lab.use(Keeping, at_1=BROKEN)

    lab.attempt()

    assert lab.manager.load_checkpoint(lab.task) is None
    assert lab.said == []


def test_what_resuming_raises_fails_the_attempt(lab):
    class Picky(Saving):
        def resume_from_checkpoint(self, checkpoint):
            raise BROKEN

    lab.use(Picky, at_3=BROKEN)
    lab.attempt()

    lab.attempt()

    assert (lab.done, lab.statuses) == ([1, 2], ["failed", "failed"])
    assert lab.manager.load_checkpoint(lab.task) == {"current": 2}


def test_one_that_cannot_resume_and_says_it_can_is_told_so(lab):
    class Boasting(Steps):
        def supports_checkpoint(self):
            return True

    lab.use(Boasting)

    lab.attempt()

    said = lab.world.record("build").attempts[-1].error["message"]
    assert "supports checkpoints and has no method resume_from_checkpoint: add it" in said
    assert lab.done == []


class Slow:
    async def execute(self, context):
        """Never awaited."""


class SlowResume(Steps):
    async def resume_from_checkpoint(self, checkpoint):
        """Never awaited."""


class Needy:
    def __init__(self, thing):
        """Nobody gives it one."""

    def execute(self, context):
        """Never called."""


class Idle:
    """Does nothing."""


async def slow(context):
    """Never awaited."""


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Slow, "is async, and adw calls it as a plain function: call asyncio.run inside of it"),
        (SlowResume, "is async"),
        (slow, "is async"),
        (Needy, "cannot be made without arguments (missing a required argument: 'thing')"),
        (Idle, "is a class without a method execute"),
    ],
)
def test_what_cannot_be_an_executor_is_found_by_the_check(module, made, words):
    module.Made = made
    spec = phase("build", runner="python", call=f"{MODULE}:Made")

    result = PythonRunner().check(spec)

    assert result.startswith(f"phase build cannot be run: {MODULE}:Made ")
    assert words in result


@pytest.mark.parametrize("made", [Keeping, Steps, dict.fromkeys, lambda _context: Keeping()])
def test_what_can_be_one_passes_the_check(module, made):
    module.Made = made

    assert PythonRunner().check(phase("build", runner="python", call=f"{MODULE}:Made")) == ""


def test_an_async_executor_of_a_factory_fails_the_attempt_in_words(lab):
    lab.module.Made = lambda _context: Slow()

    lab.attempt()

    assert "is async" in lab.world.record("build").attempts[-1].error["message"]


def test_without_a_place_for_checkpoints_saving_says_so(lab):
    lab.use(Saving)
    lab.world.engine.phase_runners["python"] = PythonRunner()

    lab.attempt()

    assert "checkpoints are kept for phases with the runner python" in str(
        lab.world.record("build").attempts[-1].error["message"]
    )


# --- which attempts count --------------------------------------------------------------------------------------


def _document(plan, build):
    spec = spec_of("plan", "build")
    records = [
        PhaseRecord(name=name, state="building", attempts=[attempt(n, round=r, started_at=at) for n, r, at in made])
        for name, made in (("plan", plan), ("build", build))
    ]
    return document_of(spec, phases=records)


@pytest.mark.parametrize(
    ("plan", "build", "number", "since", "earlier"),
    [
        ([(1, 1, "01")], [(1, 1, "02")], 1, "02", ()),
        ([(1, 1, "01")], [(1, 1, "02"), (2, 1, "03")], 1, "02", (1,)),
        ([(1, 1, "01")], [(1, 1, "02"), (2, 1, "03"), (3, 1, "04")], 1, "02", (2, 1)),
        ([(1, 1, "01"), (2, 1, "03")], [(1, 1, "02"), (2, 1, "04")], 1, "03", ()),
        ([(1, 1, "01"), (2, 1, "03")], [(1, 1, "02"), (2, 1, "04"), (3, 1, "05")], 1, "03", (2,)),
        ([(1, 1, "01")], [(1, 1, "02"), (2, 2, "03")], 2, "03", ()),
        ([(1, 1, "01")], [(1, 1, "02"), (2, 2, "03"), (3, 2, "04")], 2, "03", (2,)),
    ],
    ids=["first", "second", "third", "replanned", "after-replan", "new-round", "second-of-round"],
)
def test_an_attempt_goes_on_from_those_of_its_round_after_the_last_change_before_it(
    plan, build, number, since, earlier
):
    document = _document(plan, build)

    assert valid_since(document, "build", number) == since
    assert attempts_to_go_on_from(document, "build", number) == earlier
    assert is_first(document, "build", number) is (sum(item[1] == number for item in build) == 1)


def test_a_phase_that_the_document_does_not_know_has_nothing_to_go_on_from():
    document = _document([], [])

    assert (valid_since(document, "other", 1), attempts_to_go_on_from(document, "other", 1)) == ("", ())
    assert is_first(document, "other", 1)
