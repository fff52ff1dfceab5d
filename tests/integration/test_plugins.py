"""
Plugins are found by their entry points and loaded when they are used; whatever is wrong with one is one sentence.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from adws import app as app_module
from adws.adw_modules import plugins
from adws.adw_modules.errors import ConfigError
from adws.adw_modules.plugins import FORGES, RUNNERS, SINKS, ForgeAround
from adws.adw_modules.redaction.redactor import Redactor
from adws.config import load as config_load
from adws.testing import FakeClock, MemoryForge
from tests import plugin_lab

SOURCE = """
class Good:
    made = 0
    def __init__(self, context):
        Good.made += 1
        self.context = context
    def check(self, phase):
        return "" if phase.options else "it needs options"
    def run(self, phase, context): ...
    def save(self, rows, *, sink_key, options): ...

def broken(context):
    raise RuntimeError("no licence")

def leaving(context):
    raise SystemExit(3)

class Poor:
    def __init__(self, context): ...

thing = 7
"""
POINTS = {
    RUNNERS: {
        "good": "a_package:Good",
        "broken": "a_package:broken",
        "leaving": "a_package:leaving",
        "poor": "a_package:Poor",
        "thing": "a_package:thing",
        "lost": "no_such_module:Thing",
    },
    SINKS: {"pipe": "a_package:Good"},
    FORGES: {"hill": "a_package:Good"},
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    place = plugin_lab.install(tmp_path / "site", "a_package", SOURCE, POINTS)
    monkeypatch.syspath_prepend(str(place))
    yield place
    sys.modules.pop("a_package", None)


@pytest.fixture
def found(installed):
    home = SimpleNamespace(
        settings=SimpleNamespace(home=Path("home"), section=lambda _name: SimpleNamespace(data={})),
        clock=FakeClock(),
        redactor=Redactor(),
        built_in_forge=lambda _kind: MemoryForge(),
        env={},
    )

    return plugins.Plugins(home)


def test_names_are_found_without_loading_anything(installed):
    assert plugins.names(RUNNERS) == ("broken", "good", "leaving", "lost", "poor", "thing")
    assert "a_package" not in sys.modules
    first = next(one for one in plugins.installed() if one.name == "pipe")
    assert (first.group, first.value, first.package, first.version) == (SINKS, "a_package:Good", "a_package", "1.0")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", "the runner broken (a_package:broken) cannot be used: RuntimeError: no licence"),
        ("leaving", "the runner leaving (a_package:leaving) cannot be used: SystemExit: 3"),
        ("poor", "the runner poor (a_package:Poor) cannot be used: it has no check"),
        ("thing", "the runner thing (a_package:thing) cannot be used: it has no check"),
        ("lost", "the runner lost (no_such_module:Thing) cannot be used: ModuleNotFoundError"),
        ("nobody", "there is no runner nobody: install the package that brings it"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence(found, name, words):
    with pytest.raises(ConfigError) as caught:
        found.runner(name)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_packages_with_one_name_are_both_refused(installed, found, tmp_path, monkeypatch):
    other = plugin_lab.install(tmp_path / "other", "b_package", SOURCE, {RUNNERS: {"good": "b_package:Good"}})
    monkeypatch.syspath_prepend(str(other))

    with pytest.raises(ConfigError, match="a_package:Good and b_package:Good both bring the runner good"):
        found.runner("good")


def test_a_forge_around_another_does_what_that_does_but_for_its_own():
    class Mine(ForgeAround):
        def login(self):
            return "me"

    inner = MemoryForge()
    mine = Mine(inner)

    assert mine.login() == "me"
    assert mine.default_branch() == inner.default_branch()
    assert [name for name in plugins._NEEDED[FORGES] if not hasattr(mine, name)] == []


# --- in a home -------------------------------------------------------------------------------------------------


def open_home(tmp_path, text):
    (tmp_path / "adw.toml").write_text(text)
    return app_module.open_home(config_load.load(env={}, cwd=tmp_path))


def test_what_stands_in_the_place_of_a_table_is_refused(installed, tmp_path):
    with open_home(tmp_path, "[plugins]\ngood = 3\n") as app, pytest.raises(ConfigError, match=r"plugins\.good"):
        app.plugins.runner("good")


def test_a_phase_may_name_the_runner_of_a_plugin_and_nothing_it_would_not_look_at(installed, tmp_path):
    text = "[[workflows.mine.phases]]\nname = 'build'\nrunner = '{}'\n{}"
    with open_home(tmp_path, text.format("good", "options = { speed = 3 }")) as app:
        assert app.workflows.without_runner(app.workflows.get("mine")) == {}
    with open_home(tmp_path, text.format("good", "")) as app:
        assert app.workflows.without_runner(app.workflows.get("mine")) == {"build": "it needs options"}
    with open_home(tmp_path, text.format("god", "")) as app, pytest.raises(ConfigError, match=r"no runner 'god'.*good"):
        app.workflows.get("mine")
    with (
        open_home(tmp_path, text.format("good", "prompt = 'plan.md'")) as app,
        pytest.raises(ConfigError, match="prompt is for agents, and the runner here is good"),
    ):
        app.workflows.get("mine")


def test_a_sink_of_a_plugin_has_options_and_no_table(installed, tmp_path):
    text = """
[[workflows.mine.phases]]
name = "build"
[[workflows.mine.phases.steps]]
name = "one"
tool = "command"
command = ["true"]
sink = {{ tool = "{}", {} }}
"""
    with open_home(tmp_path, text.format("pipe", "options = { any = 1 }")) as app:
        assert app.workflows.get("mine").phases[0].steps[0].sink.tool == "pipe"
    with (
        open_home(tmp_path, text.format("pipe", "table = 'x'")) as app,
        pytest.raises(ConfigError, match="table is not"),
    ):
        app.workflows.get("mine")
    with (
        open_home(tmp_path, text.format("pip", "options = {}")) as app,
        pytest.raises(ConfigError, match=r"no sink 'pip'.*pipe"),
    ):
        app.workflows.get("mine")


def test_a_plugin_builds_only_on_a_forge_that_comes_with_adw(installed, tmp_path):
    with open_home(tmp_path, "") as app:
        context = app.plugins.runner("good").context
        with pytest.raises(ConfigError, match="'hill' is no forge that comes with adw: name one of github, local"):
            context.built_in_forge("hill")
        forge = context.built_in_forge("local")
        assert forge.default_branch()
        forge.close()
