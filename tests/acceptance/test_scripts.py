"""
The scripts of the README: they set themselves up once, may run at the same time, and say what is wrong.

A real installation takes a minute and a package index, so pip is replaced here by a recorder; the build machine does
the real one with every run.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Stands for `python` in the fake virtual environment: writes down what it is asked, and answers like a good one. Its
#: pip takes a moment, so that two which are not kept apart would meet.
RECORDER = """#!/bin/sh
root={root}
case "$*" in
  *"-m pip"*) echo "pip $*" >>"$root/calls"; sleep 0.2; exit {pip_exit} ;;
  *"sys.version_info"*) exit 0 ;;
  *) echo "run $*" >>"$root/calls" ;;
esac
"""

#: Stands for python3: makes the fake virtual environment, and is a real Python for the rest.
PYTHON3 = """#!/bin/sh
case "$*" in
  "-m venv"*)
    echo "venv" >>{root}/calls
    mkdir -p {root}/.venv/bin
    echo "version = 3.12.0" >{root}/.venv/pyvenv.cfg
    cp {root}/recorder {root}/.venv/bin/python ;;
  *) exec {python} "$@" ;;
esac
"""


class Checkout:
    """A copy of the scripts, with Python and pip replaced by recorders."""

    def __init__(self, root: Path, pip_exit: int = 0) -> None:
        self.root = root
        shutil.copytree(ROOT / "scripts", root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, root)
        (root / "bin").mkdir()
        self.put("recorder", RECORDER.format(root=root, pip_exit=pip_exit))
        self.put("bin/python3", PYTHON3.format(root=root, python=sys.executable))
        # The script that prepares uses sys.executable to make the venv: let that be the recorder too.
        module = root / "scripts/lib/environment.py"
        module.write_text(module.read_text().replace("[sys.executable, ", f"['{root}/bin/python3', "))

    def put(self, name: str, text: str) -> None:
        path = self.root / name
        path.write_text(text)
        path.chmod(0o755)

    def start(self, script: str, *args: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}
        command = [str(self.root / "scripts" / script), *args]
        return subprocess.Popen(command, cwd="/", env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, script: str, *args: str) -> tuple[int, str]:
        process = self.start(script, *args)
        _, stderr = process.communicate(timeout=60)
        return process.returncode, stderr

    def calls(self) -> list[str]:
        """Return what was started since the last call."""
        path = self.root / "calls"
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        path.unlink()
        return lines


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def _kinds(calls: list[str]) -> list[str]:
    return [call.split()[0] for call in calls]


def test_the_first_run_installs_pinned_versions_and_the_second_starts_no_pip(checkout):
    assert checkout.run("test", "-k", "x")[0] == 0
    first = checkout.calls()
    assert checkout.run("test", "-k", "x")[0] == 0
    second = checkout.calls()

    assert _kinds(first) == ["venv", "pip", "pip", "run"]
    assert all("--constraint constraints.txt" in call for call in first if call.startswith("pip"))
    assert ".[dev]" in first[2]
    assert _kinds(second) == ["run"]


def test_arguments_go_through_to_pytest(checkout):
    checkout.run("test", "-k", "two words", "-x")

    assert checkout.calls()[-1].endswith("-k two words -x")


@pytest.mark.parametrize(
    ("script", "program"), [("soak/all", "scripts/lib/soak.py"), ("soak/workflows", "scripts/lib/soak_workflows.py")]
)
def test_a_soak_sets_itself_up_and_is_given_its_seed(checkout, script, program):
    assert checkout.run(script, "--seed", "7")[0] == 0

    calls = checkout.calls()
    assert _kinds(calls) == ["venv", "pip", "pip", "run"]
    assert calls[-1].endswith(f"{program} --seed 7")


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", ".venv/pyvenv.cfg"])
def test_a_change_of_what_decides_installs_again(checkout, name):
    checkout.run("test")
    checkout.calls()
    path = checkout.root / name
    path.write_text(path.read_text() + "\n# changed\n")
    checkout.run("test")

    assert _kinds(checkout.calls()) == ["pip", "pip", "run"]


def test_the_demo_needs_no_more_than_the_run_time_packages(checkout):
    checkout.run("demo")

    install = checkout.calls()[2]
    assert install.endswith("--editable .")


def test_the_demo_leaves_an_installation_for_development_alone(checkout):
    checkout.run("test")
    checkout.calls()
    checkout.run("demo")

    assert _kinds(checkout.calls()) == ["run"]


def test_the_tests_add_what_the_demo_did_not_need(checkout):
    checkout.run("demo")
    checkout.calls()
    checkout.run("test")

    assert _kinds(checkout.calls()) == ["pip", "pip", "run"]


def test_two_that_run_at_once_set_up_once(checkout):
    both = [checkout.start("test"), checkout.start("test")]
    for process in both:
        process.communicate(timeout=60)

    assert [process.returncode for process in both] == [0, 0]
    assert sorted(_kinds(checkout.calls())) == ["pip", "pip", "run", "run", "venv"]


def test_an_installation_that_failed_is_said_and_tried_again(tmp_path):
    checkout = Checkout(tmp_path, pip_exit=1)

    code, said = checkout.run("test")
    first = _kinds(checkout.calls())
    checkout.run("test")

    assert code == 1
    assert "pip could not install what adw needs" in said
    assert "Traceback" not in said
    assert first == ["venv", "pip"]
    assert _kinds(checkout.calls()) == ["pip"]


def test_without_a_suitable_python_one_sentence_says_so(checkout, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "dirname"):
        (tools / name).symlink_to(shutil.which(name))
    for name in ("python3", "python"):
        (tools / name).write_text("#!/bin/sh\nexit 1\n")
        (tools / name).chmod(0o755)
    done = subprocess.run(
        [tools / "sh", checkout.root / "scripts/test"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr == "adw needs Python 3.11 or newer and found none as python3: install it, then run this again.\n"
    assert not (checkout.root / ".venv").exists()


def test_the_import_contracts_catch_what_they_are_for(tmp_path):
    """That they hold for adw as it is, `scripts/check imports` says."""
    shutil.copytree(ROOT / "adws", tmp_path / "adws", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    wrong = {
        "adws/adw_modules/surprise.py": "",  # a capability that no layer lists
        "adws/surprise.py": "",  # a package that no layer lists
        "adws/adw_modules/identifiers.py": "\nimport adws.config.load\n",  # upwards
        "adws/adw_modules/errors.py": "\nimport adws.adw_modules.identifiers\n",  # a cycle
    }
    for name, text in wrong.items():
        with (tmp_path / name).open("a") as file:
            file.write(text)
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}

    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    upwards, cycle = "adws.adw_modules.identifiers -> adws.config.load", ".identifiers -> .errors"
    named = ["- adws.adw_modules.surprise\n", "- adws.surprise\n", upwards, cycle]
    assert [name for name in named if name not in done.stdout] == []


@pytest.fixture(scope="module")
def soak():
    spec = importlib.util.spec_from_file_location("soak", ROOT / "scripts/lib/soak.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["soak"]


REPORT = """<testsuites><testsuite>
<testcase classname="tests.crash.test_kill" name="test_a" time="3.5"><properties>
<property name="repeat" value="2000"/></properties></testcase>
<testcase classname="tests.unit.test_b" name="test_b" time="0.1"><skipped message="needs strace"/></testcase>
<testcase classname="tests.unit.test_b" name="test_c" time="0.1"><failure message="a | b&#10;more"/></testcase>
</testsuite></testsuites>"""


def test_the_page_of_a_soak_says_what_was_run_and_how_it_ended(soak):
    from datetime import UTC, datetime

    run = soak.Run(
        seed=12345,
        started_at=datetime(2026, 1, 31, 9, tzinfo=UTC),
        seconds=61.2,
        arguments=(),
        exit_code=1,
        cases=soak.read_report(REPORT),
    )
    page = soak.page(run)

    assert "| outcome | FAILED (exit code 1) |" in page
    assert "| tests | 1 passed, 1 failed, 1 skipped |" in page
    assert "scripts/soak/all --seed 12345" in page
    assert "| `tests/crash/test_kill::test_a` | 2000 | passed | 3.5 |" in page
    assert "| `tests/unit/test_b::test_b` | needs strace | skipped | 0.1 |" in page
    assert "| `tests/unit/test_b::test_c` | a \\| b | failed | 0.1 |" in page


def test_an_unknown_check_is_named_with_those_there_are():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/lib/checks.py", "spelling"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "no check is called spelling: there are format, lint, types" in done.stderr
