"""What the installed command ends with: 0 well, 1 expected trouble, 2 wrong usage, 3 a bug, 130 an interrupt."""

from __future__ import annotations

from tests.acceptance import cli_lab
from tests.acceptance.cli_lab import Terminal

#: Loaded by Python itself before the command: a home cannot be opened, by a mistake of ours.
BREAKING = """
import adws.app

def open_home(*args, **more):
    raise ZeroDivisionError("deep inside")

adws.app.open_home = open_home
"""


def test_what_went_well_is_0(adw):
    assert adw("list").rc == 0


def test_expected_trouble_is_1_in_one_sentence(adw):
    done = adw("status", "1a2b3c4d")

    assert (done.rc, done.stdout) == (1, "")
    assert done.stderr.startswith("adw: ")
    assert done.stderr.count("\n") == 1


def test_wrong_usage_is_2(adw):
    done = adw("list", "--no-such-option")

    assert done.rc == 2
    assert "No such option" in done.stderr


def test_a_bug_is_3_and_names_the_log_that_has_its_traceback(adw, home, tmp_path):
    place = tmp_path / "broken"
    place.mkdir()
    (place / "sitecustomize.py").write_text(BREAKING)
    (home / "state").mkdir(exist_ok=True)

    done = adw("list", env={"PYTHONPATH": str(place)})

    assert (done.rc, done.stdout) == (3, "")
    (log,) = (home / "state" / "logs").iterdir()
    assert done.stderr == f"adw: this is a bug in adw (ZeroDivisionError); the details are in {log}\n"
    assert "deep inside" in log.read_text()


def test_an_interrupt_is_130(tmp_path):
    with Terminal(cli_lab.make_home(tmp_path), "worker") as worker:
        worker.until("worker is ready")
        worker.ctrl_c()

        assert worker.end() == 130
