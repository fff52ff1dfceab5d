"""The command line's frame: exit codes, what is printed, and that nothing is loaded before it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import types
from datetime import UTC, datetime, timedelta

import click
import pytest

from adws.adw_modules import identifiers
from adws.adw_modules.errors import AdwError, ConfigError, InvalidAdwId
from adws.cli import common as cli_common
from adws.cli import main, output
from adws.cli.main import Entry

NOW = datetime(2026, 1, 31, 9, 0, tzinfo=UTC)


@pytest.fixture
def command(monkeypatch):
    """`command(function)` makes a function the command `adw try` and returns what running it gives."""

    def run(function, *args):
        module = types.ModuleType("adws.cli.adw_command_of_a_test")
        module.try_ = click.command()(function)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(main.cli.sections, "Test", {"try": Entry("adw_command_of_a_test:try_", "Try.")})
        return main.run([*args, "try"])

    return run


def raising(error):
    def function():
        raise error

    return function


# --- exit codes ------------------------------------------------------------------------------------------------


def test_a_command_that_returns_nothing_exits_with_0(command):
    assert command(lambda: None) == 0


def test_a_command_may_return_its_exit_code(command):
    assert command(lambda: 7) == 7


@pytest.mark.parametrize(("error", "code"), [(AdwError("no luck"), 1), (ConfigError("no luck"), 2)])
def test_an_expected_error_is_one_line_and_its_own_exit_code(command, capsys, error, code):
    assert command(raising(error)) == code

    assert capsys.readouterr() == ("", "adw: no luck\n")


def test_a_message_of_several_lines_is_shown_as_one(command, capsys):
    command(raising(AdwError("first\n\x1b[31msecond")))

    assert capsys.readouterr().err == "adw: first [31msecond\n"


def test_several_settings_that_are_wrong_are_a_line_each(command, capsys):
    assert command(raising(ConfigError("first\nis wrong", "second is too"))) == 2

    assert capsys.readouterr().err == "adw: first is wrong\nadw: second is too\n"


def test_an_interrupt_exits_with_130_and_no_traceback(command, capsys):
    assert command(raising(KeyboardInterrupt())) == 130

    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("args", [["nonsense"], ["config", "--nonsense"], []], ids=["command", "option", "nothing"])
def test_wrong_use_exits_with_2(args, capsys):
    assert main.run(args) == 2

    assert "Usage: adw" in capsys.readouterr().err


def test_an_unknown_command_is_refused_with_the_nearest_name(capsys):
    main.run(["stauts"])

    assert "there is no command 'stauts'; did you mean status?" in capsys.readouterr().err


# --- bugs ------------------------------------------------------------------------------------------------------


def bug():
    main.load_settings()
    raise ZeroDivisionError("deep inside")


def test_a_bug_exits_with_3_and_leaves_its_traceback_in_the_home(command, capsys, home):
    (home / "state").mkdir()

    assert command(bug, "--home", str(home)) == 3

    (log,) = (home / "state" / "logs").iterdir()
    assert capsys.readouterr().err == f"adw: this is a bug in adw (ZeroDivisionError); the details are in {log}\n"
    assert "deep inside" in log.read_text()
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.mark.parametrize("knows_home", [True, False])
def test_a_bug_without_a_state_directory_leaves_its_traceback_in_the_temporary_directory(
    command, capsys, home, temporary, knows_home
):
    assert command(bug if knows_home else raising(ZeroDivisionError()), "--home", str(home)) == 3

    (log,) = temporary.iterdir()
    assert str(log) in capsys.readouterr().err
    assert not (home / "state").exists()


def test_a_bug_that_cannot_be_logged_is_shown(command, capsys, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")

    assert command(raising(ZeroDivisionError("deep inside"))) == 3

    assert "no log file could be written" in (shown := capsys.readouterr().err)
    assert "deep inside" in shown


@pytest.mark.parametrize("secret", ["ghp_PlantedSecret0123456789abcdefghij12", "a-plain-word-as-secret"])
def test_a_secret_in_an_error_does_not_reach_the_log(command, home, monkeypatch, secret):
    (home / "state").mkdir()
    monkeypatch.setenv("ADW_GITHUB_TOKEN", secret)
    monkeypatch.setenv("ADW_DATABASE_URL", "postgresql://me:pw-of-the-database@db/x")

    def leak():
        settings = main.load_settings()
        raise RuntimeError(f"bad token {settings.github_token} for {settings.database_url}")

    assert command(leak, "--home", str(home)) == 3

    (log,) = (home / "state" / "logs").iterdir()
    assert "bad token" in log.read_text()
    assert secret not in log.read_text()
    assert "pw-of-the-database" not in log.read_text()


# --- start-up --------------------------------------------------------------------------------------------------


def test_help_lists_every_command_and_imports_none_of_them():
    code = (
        "import sys\n"
        "from adws.cli import main\n"
        "code = main.run(['--help'])\n"
        "loaded = [n for n in sys.modules if n.startswith('adws.') and n not in sys.argv]\n"
        "print(code, loaded)\n"
    )
    allowed = [
        "adws.cli",
        "adws.cli.main",
        "adws.adw_modules",
        "adws.adw_modules.default_home",
        "adws.adw_modules.errors",
    ]

    done = subprocess.run([sys.executable, "-c", code, *allowed], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "0 []"
    for section, entries in main.COMMANDS.items():
        assert f"{section}:" in done.stdout
        for name, entry in entries.items():
            assert name in done.stdout
            assert entry.summary in done.stdout


# --- output ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b]0;title\x07x", "]0;titlex"),
        ("a\tb\nc\r\nd", "a b c  d"),
        ("csi \x9b31m", "csi 31m"),
        ("del \x7f", "del "),
        ("\u202egnp.exe\u2066\u200f", "gnp.exe"),
        ("line\u2028break", "line break"),
        ("half \ud800", "half "),
        ("Grüße, 世界 👩\u200d💻", "Grüße, 世界 👩\u200d💻"),
    ],
)
def test_what_could_drive_a_terminal_is_taken_out_of_text(text, shown):
    assert output.clean(text) == shown


def test_json_is_one_document_with_sorted_keys_and_everything_in_it(capsysbinary):
    data = {"b": "ü\x1b\x9b\u202e\u2028\ud800 👩\u200d💻", "a": [1, None]}
    output.emit(data, "text", as_json=True)

    printed = capsysbinary.readouterr().out.decode()
    assert json.loads(printed) == data
    assert printed.index('"a"') < printed.index('"b"')
    assert "ü" in printed
    assert "👩\u200d💻" in printed
    assert set(printed).isdisjoint("\x1b\x9b\u202e\u2028")


def test_text_is_cleaned_line_by_line(capsys):
    output.emit({}, "one\n\x1btwo", as_json=False)
    output.emit({}, ["three", "fo\nur"], as_json=False)

    assert capsys.readouterr().out == "one\ntwo\nthree\nfo ur\n"


def test_columns_are_aligned_also_for_wide_and_combining_characters():
    lines = output.table(("A", "B"), [("世界", "x"), ("e\u0301", "y"), ("abcd", "")])

    assert lines == ["A     B", "世界  x", "e\u0301     y", "abcd"]


def test_facts_without_a_value_are_left_out():
    assert output.facts([("state", "failed"), ("pull request", ""), ("id", "1a2b3c4d")]) == [
        "state  failed",
        "id     1a2b3c4d",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "now"), (0.4, "now"), (59, "59 s ago"), (60, "1 min ago"), (7200, "2 h ago"), (86400 * 3, "3 d ago")],
)
def test_an_age_is_told_in_its_largest_unit(seconds, words):
    assert identifiers.age(seconds) == words


def test_a_moment_is_shown_in_utc_with_its_age():
    then = (NOW - timedelta(minutes=5)).astimezone().isoformat()

    assert output.moment(then, NOW) == "2026-01-31 08:55:00 UTC (5 min ago)"
    assert output.moment((NOW + timedelta(hours=1)).isoformat(), NOW) == "2026-01-31 10:00:00 UTC (in 1 h)"
    assert output.moment("yesterday", NOW) == "yesterday"
    assert output.moment("1970-01-01T00:00:00.000000Z", NOW) == "unknown"


def test_long_text_is_cut_with_dots():
    assert identifiers.shortened("abcdef", 6) == "abcdef"
    assert identifiers.shortened("abc defg", 7) == "abc..."


# --- arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("1a2b3c4d", "1a2b3c4d"),
        ("adw-1a2b3c4d", "1a2b3c4d"),
        ("adw-release", "adw-release"),
        ("legacy_7", "legacy_7"),
    ],
)
def test_our_ids_may_be_typed_with_their_prefix(typed, meant):
    assert cli_common.workflow_id(typed) == meant


@pytest.mark.parametrize("typed", ["../x", "", "adw-../x", "a/b", "x" * 65])
def test_an_id_that_could_leave_its_directory_is_refused(typed):
    with pytest.raises(InvalidAdwId):
        cli_common.workflow_id(typed)
