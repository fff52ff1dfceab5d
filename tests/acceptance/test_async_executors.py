"""An async function or executor is refused before the first attempt; a coroutine is never the result of a phase."""

from __future__ import annotations

import json

import pytest

CODE = """
import asyncio

class Slow:
    async def execute(self, context):
        return {}

class Stream:
    async def execute(self, context):
        yield {}

class SlowResume:
    def execute(self, context):
        return {}
    async def resume_from_checkpoint(self, checkpoint):
        pass

class SlowCall:
    async def __call__(self, context):
        return {}

async def slow(context):
    return {}

call = SlowCall()

def hidden(context):
    return slow(context)

class Hidden:
    def execute(self, context):
        return slow(context)

def plain(context):
    return asyncio.run(slow(context))
"""
REFUSED = ("Slow", "Stream", "SlowResume", "slow", "call")
HIDDEN = ("hidden", "Hidden")


@pytest.fixture
def workflows(home):
    (home / "work.py").write_text(CODE)
    phases = "".join(
        f'[[workflows.w-{name.lower()}-{number}.phases]]\nname = "build"\ncall = "work:{name}"\n'
        for number, name in enumerate((*REFUSED, *HIDDEN, "plain"))
    )
    (home / "adw.toml").write_text(f"[worktree]\nenabled = false\n{phases}")
    return {name: f"w-{name.lower()}-{number}" for number, name in enumerate((*REFUSED, *HIDDEN, "plain"))}


@pytest.mark.parametrize("name", REFUSED)
def test_an_async_executor_is_refused_in_one_sentence_and_nothing_is_created(adw, home, workflows, name):
    done = adw("run", "7", "--title", "t", "--workflow", workflows[name])

    assert done.rc == 1
    assert done.stderr.strip() == (
        f"adw: phase build cannot be run: work:{name} is async, and adw calls it as a plain function: call asyncio.run "
        "inside of it"
    )
    assert not any((home / "state").glob("*/adw_state.json"))


@pytest.mark.parametrize("name", HIDDEN)
def test_a_function_that_returns_a_coroutine_fails_at_once_and_says_why(adw, home, workflows, name):
    done = adw("run", "7", "--title", "t", "--workflow", workflows[name], "--json")

    adw_id = json.loads(done.stdout)["adw_id"]
    (phase,) = adw("status", adw_id, "--json").json()["phases"]
    assert (done.rc, len(phase["attempts"])) == (1, 1)
    assert "is async, and adw calls it as a plain function" in phase["attempts"][0]["error"]
    assert "never awaited" not in done.stderr


def test_a_function_that_runs_its_own_event_loop_works(adw, home, workflows):
    assert adw("run", "7", "--title", "t", "--workflow", workflows["plain"]).rc == 0
