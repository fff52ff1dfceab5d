"""One JSON line for each record, with the fields of every line first, any value, and no secret."""

# ruff: noqa: G004, LOG004, LOG014, TRY301, TRY400 - log calls are what is tested here, wrong ones too

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import enum
import gc
import io
import json
import logging
import random
import string
import subprocess
import sys
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adws.adw_modules import structured_logger
from adws.adw_modules.errors import InvalidAdwId, UsageError
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.structured_logger import (
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_LINE_BYTES,
    MAX_TEXT,
    LogFile,
    QuietHandler,
    StructuredLogger,
    bind,
    configure,
    cut,
    fields_to_plain,
    shutdown,
    to_plain,
    write_entries,
)

SECRET = "Zk3vQ9xLm2Tt7pR5wYb8HnJ4"


@pytest.fixture
def stream():
    target = io.StringIO()
    configure("DEBUG", "json", target, redactor=Redactor([SECRET]))
    yield target
    shutdown()


@pytest.fixture
def log(stream):
    return StructuredLogger("1a2b3c4d", "plan")


def lines_of(stream):
    text = stream.getvalue()
    assert text == "" or text.endswith("\n")

    return [json.loads(line) for line in text.splitlines()]


def test_a_line_starts_with_the_fields_of_every_line_in_order(log, stream):
    log.info("Phase started", attempt=1)

    (line,) = lines_of(stream)
    assert list(line) == ["timestamp", "adw_id", "phase", "level", "message", "attempt"]
    assert line | {"timestamp": ""} == {
        "timestamp": "",
        "adw_id": "1a2b3c4d",
        "phase": "plan",
        "level": "INFO",
        "message": "Phase started",
        "attempt": 1,
    }


def test_the_moment_is_that_of_the_record_in_utc(stream):
    record = logging.makeLogRecord({"name": "adw.x", "msg": "m", "levelname": "INFO", "created": 1_700_000_000.25})

    line = json.loads(structured_logger.JsonLineFormatter().format(record))

    assert line["timestamp"] == "2023-11-14T22:13:20.250000Z"


@pytest.mark.parametrize("name", ["debug", "info", "warning", "error", "critical", "DEBUG", "Info", "WARN", "fatal"])
def test_level_names_are_taken_in_any_case(name, log, stream):
    log.log(name, "m")

    expected = {"WARN": "WARNING", "FATAL": "CRITICAL"}.get(name.upper(), name.upper())
    assert [line["level"] for line in lines_of(stream)] == [expected]


def test_an_unknown_level_is_an_error_that_names_the_levels(log, stream):
    with pytest.raises(UsageError, match="'loud' is not a log level: use debug, info, warning, error or critical"):
        log.log("loud", "m")
    with pytest.raises(ValueError, match="not a log level"):
        configure("loud")
    with pytest.raises(UsageError, match="'xml' is not a log format"):
        configure("info", "xml")
    assert lines_of(stream) == []


def test_every_method_has_its_level(log, stream):
    for name in ("debug", "info", "warning", "error", "critical"):
        getattr(log, name)(name)

    assert [(line["level"], line["message"]) for line in lines_of(stream)] == [
        (name.upper(), name) for name in ("debug", "info", "warning", "error", "critical")
    ]


def test_a_callers_field_never_replaces_one_of_every_line_and_is_not_lost(log, stream):
    taken = dict.fromkeys(["timestamp", "adw_id", "phase", "level", "message", "exception", "_truncated"], "mine")

    log.info("real", **taken, extra_level="also", self="s", name="n", msg="m", args="a", exc_info="text", stack_info=1)

    (line,) = lines_of(stream)
    assert (line["adw_id"], line["phase"], line["level"], line["message"]) == ("1a2b3c4d", "plan", "INFO", "real")
    assert {name: line[f"extra_{name}"] for name in taken if name != "level"} == {
        n: "mine" for n in taken if n != "level"
    }
    assert (line["extra_level"], line["extra_extra_level"]) == ("also", "mine")
    assert (line["self"], line["name"], line["msg"], line["args"], line["exc_info"]) == ("s", "n", "m", "a", "text")


def test_level_and_message_work_as_keywords_alone(log, stream):
    log.info(message="by keyword")
    log.log(level="error", message="both")
    log.log("info", message="one")
    log.info()

    assert [(line["level"], line["message"]) for line in lines_of(stream)] == [
        ("INFO", "by keyword"),
        ("ERROR", "both"),
        ("INFO", "one"),
        ("INFO", ""),
    ]


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    inner: object = None


class Rude:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class RudeMapping(dict):
    def items(self):
        raise RuntimeError("no items")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (datetime(2026, 1, 31, 10, tzinfo=timezone(timedelta(hours=1))), "2026-01-31T09:00:00.000000Z"),
        (datetime(2026, 1, 31, 10), "2026-01-31T10:00:00"),  # noqa: DTZ001 - a naive moment is what is tested
        (date(2026, 1, 31), "2026-01-31"),
        (timedelta(seconds=5), "0:00:05"),
        (Path("/srv/x"), "/srv/x"),
        (Colour.RED, "red"),
        ({Colour.RED: 1, 1: 2, "1": 3}, {"red": 1, "1": 2, "1'": 3}),
        (Point(1, Point(2)), {"x": 1, "inner": {"x": 2, "inner": None}}),
        (Point, "<class 'test_structured_logger.Point'>"),
        (ValueError("bad"), "ValueError: bad"),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset("a"), ["a"]),
        (b"\xff\x00a", "\\xff\x00a"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (10**5000, "[number of 16610 bits]"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.5"), "1.5"),
        ((1, True, None, 1.5), [1, True, None, 1.5]),
        (Rude(), "<Rude: no text, RuntimeError>"),
        (RudeMapping(a=1), "{'a': 1}"),
        ("\ud800", "\ud800"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value_serialises(value, plain, log, stream):
    log.info("m", value=value)

    (line,) = lines_of(stream)
    if isinstance(value, type):
        assert line["value"].endswith(".Point'>")
    else:
        assert line["value"] == plain


def test_cycles_depth_and_size_have_an_end():
    loop: dict[str, object] = {}
    loop["self"] = loop
    deep: object = 1
    for _ in range(MAX_DEPTH + 5):
        deep = [deep]

    assert to_plain(loop) == {"self": "[cycle]"}
    assert "[too deep]" in str(to_plain(deep))
    assert to_plain(list(range(MAX_ITEMS + 5)))[-1] == "[cut: 5 more]"
    assert to_plain({n: n for n in range(MAX_ITEMS + 5)})["[cut]"] == "5 more"
    assert cut("abcdef", 4) == "abcd... [2 characters cut]"
    assert len(to_plain("x" * 10**6)) < 70_000


class Colour(str):
    """A text of a kind of its own."""

    __slots__ = ()


def test_a_field_is_said_as_it_would_be_alone():
    for value in ["red", Colour("red"), None, True, 7, 10**900, 1.5, {"a": [1]}, {"x"}, Path("/a")]:
        assert fields_to_plain({"field": value}) == {"field": to_plain(value)}, value
        assert type(fields_to_plain({"field": Colour("red")})["field"]) is str, value


def test_the_name_of_a_field_can_be_long_or_no_text_at_all():
    assert list(fields_to_plain({"n" * (MAX_TEXT + 5): 1, 7: 2})) == [cut("n" * (MAX_TEXT + 5)), "7"]


@settings(max_examples=100)
@given(st.text(), st.dictionaries(st.text(), st.text() | st.binary() | st.floats() | st.lists(st.text()), max_size=4))
def test_one_record_is_one_line_of_ascii_whatever_is_in_it(message, fields):
    target = io.StringIO()
    configure("DEBUG", "json", target)
    try:
        StructuredLogger("1a2b3c4d", "plan").info(message, **fields)
    finally:
        shutdown()

    text = target.getvalue()
    assert text.count("\n") == 1
    assert text.isascii()
    assert text.rstrip("\n").isprintable()
    json.loads(text, parse_constant=pytest.fail)


def test_format_signs_and_line_breaks_are_only_text(log, stream):
    log.info('100%s {x} %(y)s\n{"level": "FAKE"}\x1b[2J\u202e')

    assert [line["message"] for line in lines_of(stream)] == ['100%s {x} %(y)s\n{"level": "FAKE"}\x1b[2J\u202e']


@pytest.mark.parametrize(
    "fields",
    [
        {"big": "x" * 10**6},
        {"big": "\u20ac" * 60_000},
        {"big": list(range(4000)), "other": ["y" * 100] * 900, "small": 1},
        {f"field_{n}": "z" * 100 for n in range(3000)},
        {"n" * 100_000: 1},
        {},
    ],
    ids=["text", "escaped", "lists", "many", "name", "message"],
)
def test_a_line_has_a_cap_and_says_that_it_was_cut(fields, log, stream):
    log.info("m" if fields else "\u20ac" * 60_000, **fields)

    text = stream.getvalue()
    assert len(text.encode()) <= MAX_LINE_BYTES
    (line,) = lines_of(stream)
    assert line["_truncated"] > MAX_LINE_BYTES
    assert line["adw_id"] == "1a2b3c4d"
    assert line["message"][0] in "m\u20ac"
    assert "small" not in fields or line["small"] == 1


def test_a_long_traceback_keeps_its_end_and_its_line_fits(log, stream):
    try:
        raise ValueError("\u20ac" * 30_000 + "THE END")
    except ValueError:
        log.exception("m", other="x" * 60_000)

    (line,) = lines_of(stream)
    assert len(stream.getvalue()) <= MAX_LINE_BYTES
    assert line["exception"]["type"] == "ValueError"
    assert "_truncated" in line


# --- exceptions ------------------------------------------------------------------------------------------------


def test_exception_logs_type_message_and_traceback(log, stream):
    try:
        raise ValueError("bad thing")
    except ValueError as error:
        log.exception("failed")
        log.error("again", exc_info=error)
        log.error("and again", exc_info=(type(error), error, None))

    first, second, third = lines_of(stream)
    assert (first["level"], first["exception"]["type"], first["exception"]["message"]) == (
        "ERROR",
        "ValueError",
        "bad thing",
    )
    assert "test_exception_logs_type" in first["exception"]["traceback"]
    assert second["exception"]["message"] == third["exception"]["message"] == "bad thing"
    assert "exc_info" not in first


def test_without_an_exception_there_is_no_exception_field(log, stream):
    log.exception("m")
    log.error("m", exc_info=True)
    log.error("m", exc_info=None)
    log.error("m", exc_info=False)

    assert all("exception" not in line and "exc_info" not in line for line in lines_of(stream))


# --- context ---------------------------------------------------------------------------------------------------


def test_bound_fields_are_in_every_record_of_the_block(log, stream):
    with bind(run=1, attempt=1):
        with bind(attempt=2):
            log.info("inner", own=3)
        log.info("outer", run="own wins")
    log.info("after")

    inner, outer, after = lines_of(stream)
    assert (inner["run"], inner["attempt"], inner["own"]) == (1, 2, 3)
    assert (outer["run"], outer["attempt"]) == ("own wins", 1)
    assert "run" not in after


def test_each_task_has_its_own_context(log, stream):
    async def work(number, turn):
        with bind(task=number):
            for _ in range(3):
                await turn.wait()
                log.info("m", expected=number)
                await asyncio.sleep(0)

    async def main():
        turn = asyncio.Event()
        tasks = [asyncio.create_task(work(number, turn)) for number in range(5)]
        turn.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())

    lines = lines_of(stream)
    assert len(lines) == 15
    assert all(line["task"] == line["expected"] for line in lines)


# --- loggers ---------------------------------------------------------------------------------------------------


def test_the_record_has_the_name_of_workflow_and_phase_and_the_place_of_the_call(log, stream, caplog):
    logging.getLogger("adw").addHandler(caplog.handler)
    try:
        log.info("m")
        log.log("info", "m")
    finally:
        logging.getLogger("adw").removeHandler(caplog.handler)

    assert {record.name for record in caplog.records} == {"adw.1a2b3c4d.plan"}
    assert {record.funcName for record in caplog.records} == {
        "test_the_record_has_the_name_of_workflow_and_phase_and_the_place_of_the_call"
    }


def test_ten_thousand_workflows_leave_no_logger_behind(stream):
    def count():
        return len(logging.Logger.manager.loggerDict)

    StructuredLogger("warmup", "plan").info("m")
    before = count()
    for number in range(10_000):
        StructuredLogger(f"{number:08x}", "plan").debug("m") if number % 100 == 0 else StructuredLogger(
            f"{number:08x}", "b"
        )
    gc.collect()

    assert count() == before


def test_a_workflow_id_is_checked_and_may_be_empty(stream):
    with pytest.raises(InvalidAdwId):
        StructuredLogger("../x", "plan")
    StructuredLogger("", "worker").info("m")

    (line,) = lines_of(stream)
    assert (line["adw_id"], line["phase"]) == ("", "worker")


def test_a_logger_of_the_callers_choice_is_used(caplog):
    chosen = logging.getLogger("somebody.else")
    with caplog.at_level("INFO", logger="somebody.else"):
        StructuredLogger("1a2b3c4d", "plan", logger=chosen, redactor=Redactor([SECRET])).info(f"m {SECRET}")
        StructuredLogger("1a2b3c4d", "plan", logger=chosen).debug("not enabled")

    (line,) = (json.loads(record.getMessage()) for record in caplog.records)
    assert (line["adw_id"], line["phase"], line["message"]) == ("1a2b3c4d", "plan", f"m {MASK}")


# --- handlers of an application --------------------------------------------------------------------------------

LOGS = """
from adws.adw_modules.structured_logger import StructuredLogger
log = StructuredLogger("1a2b3c4d", "plan")
log.debug("quiet")
log.warning("50 % done", attempt=1, token="{secret}")
try:
    raise ValueError("two\\nlines")
except ValueError:
    log.exception("Work failed")
"""


@pytest.mark.parametrize(
    ("setup", "prefixes"),
    [
        (
            'logging.basicConfig(level="INFO")',
            ["WARNING:adw.1a2b3c4d.plan:", "ERROR:adw.1a2b3c4d.plan:"],
        ),
        ('logging.basicConfig(format="%(message)s", stream=sys.stderr)', ["", ""]),
        ("", ["", ""]),
        ('logging.getLogger("adw").addHandler(logging.StreamHandler())', ["", ""]),
        ('logging.getLogger("adw.1a2b3c4d").addHandler(logging.StreamHandler())', ["", ""]),
        ('logging.getLogger("adw.1a2b3c4d.plan").addHandler(logging.StreamHandler())', ["", ""]),
        (
            (
                "q = queue.SimpleQueue(); logging.getLogger().addHandler(logging.handlers.QueueHandler(q)); "
                "l = logging.handlers.QueueListener(q, logging.StreamHandler()); l.start(); atexit.register(l.stop)"
            ),
            ["", ""],
        ),
    ],
    ids=["basicConfig", "basicConfig-message", "no-handler", "adw", "workflow", "phase", "queue"],
)
def test_every_handler_of_an_application_gets_the_json_line(setup, prefixes):
    script = f"import atexit, logging, logging.handlers, queue, sys\n{setup}\n{LOGS.format(secret=SECRET)}"

    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    lines = done.stderr.splitlines()
    assert [line.partition("{")[0] for line in lines] == prefixes
    first, second = (json.loads(line.removeprefix(prefix)) for line, prefix in zip(lines, prefixes, strict=True))
    assert (first["adw_id"], first["phase"], first["level"]) == ("1a2b3c4d", "plan", "WARNING")
    assert (first["message"], first["attempt"], first["token"]) == ("50 % done", 1, MASK)
    assert (second["message"], second["exception"]["type"]) == ("Work failed", "ValueError")


def test_a_level_on_the_logger_of_a_phase_counts_for_that_phase_alone(caplog):
    quiet = logging.getLogger("adw.5e6f7a8b.build")
    quiet.setLevel(logging.ERROR)

    with caplog.at_level("INFO"):
        for phase in ("build", "test"):
            StructuredLogger("5e6f7a8b", phase).info("m")

    assert [json.loads(record.getMessage())["phase"] for record in caplog.records] == ["test"]


def test_records_of_plain_logging_calls_are_redacted_and_placed_too(stream):
    logger = logging.getLogger("adw.locks")
    with bind(adw_id="1a2b3c4d", phase="build", run=7):
        logger.warning("took %s", SECRET, extra={"path": Path("/x"), "token": "abc"})
        try:
            raise ValueError(SECRET)
        except ValueError:
            logger.exception("failed")
    logging.getLogger("adw.locks").error("no exception", exc_info=True)

    first, third, fourth = lines_of(stream)
    assert (first["adw_id"], first["phase"], first["run"]) == ("1a2b3c4d", "build", 7)
    assert (first["message"], first["path"], first["token"]) == (f"took {MASK}", "/x", MASK)
    assert third["exception"]["message"] == MASK
    assert (fourth["phase"], fourth["exception"]["type"]) == ("adw.locks", "")
    assert SECRET not in stream.getvalue()


def test_a_plain_message_whose_arguments_do_not_fit_is_shown_with_them():
    record = logging.LogRecord("adw.x", logging.INFO, "f", 1, "does not fit %d", ("x",), None)

    line = json.loads(structured_logger.JsonLineFormatter().format(record))

    assert line["message"] == "does not fit %d ('x',)"


# --- set-up ----------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


class NoStream(io.StringIO):
    def isatty(self):
        raise ValueError("closed")


def test_a_terminal_gets_text_with_colours_and_everything_else_json():
    for target, options, start in [
        (Terminal(), {}, "20"),
        (Terminal(), {"format": "json"}, "{"),
        (io.StringIO(), {}, "{"),
        (io.StringIO(), {"format": "text"}, "20"),
        (NoStream(), {}, "{"),
    ]:
        configure("info", stream=target, **options)
        StructuredLogger("1a2b3c4d", "plan").error("m")
        shutdown()
        assert target.getvalue().startswith(start)
        assert ("\x1b[31m" in target.getvalue()) == (
            target.isatty() and not options if isinstance(target, Terminal) else False
        )


def test_no_colours_when_the_user_wants_none():
    target = Terminal()
    configure(stream=target, no_color=True)
    StructuredLogger("1a2b3c4d", "plan").error("m")
    shutdown()

    assert "\x1b" not in target.getvalue()


def test_configuring_again_replaces_the_first_and_keeps_the_level():
    first, second = io.StringIO(), io.StringIO()
    configure("info", stream=first)
    configure("error", stream=second)
    StructuredLogger("1a2b3c4d", "plan").info("too low")
    StructuredLogger("1a2b3c4d", "plan").error("m")
    shutdown()
    shutdown()

    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1
    assert not [each for each in logging.getLogger("adw").handlers if isinstance(each, QuietHandler)]


def test_without_a_stream_standard_error_is_used(capsys):
    configure("info", "text")
    StructuredLogger("", "").info("m")
    shutdown()

    assert " INFO     - - m\n" in capsys.readouterr().err


def test_text_shows_time_level_id_phase_message_and_fields():
    entry = {
        "timestamp": "2026-01-31T09:00:00.000000Z",
        "adw_id": "1a2b3c4d",
        "phase": "plan",
        "level": "INFO",
        "message": "Phase\tstarted\nnow",
        "attempt": 1,
        "why": "two words",
        "path": "/x",
        "list": [1, "é"],
    }

    assert structured_logger.TextFormatter(colour=True).line_of(entry) == (
        "2026-01-31T09:00:00.000000Z INFO     1a2b3c4d plan Phase started\\nnow "
        'attempt=1 why="two words" path=/x list=[1, "é"]'
    )


def test_text_has_nothing_a_terminal_would_obey():
    target = io.StringIO()
    configure("info", "text", target)
    log = StructuredLogger("1a2b3c4d", "pl\x1b[2Jan")
    try:
        raise ValueError("evil\n2026-01-31T09:00:00Z ERROR fake\x1b]0;title\x07")
    except ValueError:
        log.exception("a\x1b[31mb\x9bc\u202ed\r\ne\x00\ud800", **{"k\x07\u2066": "v\x1b[H\u200f"})
    shutdown()

    text = target.getvalue()
    assert all(character.isprintable() or character == "\n" for character in text)
    first, *rest = text.splitlines()
    assert " 1a2b3c4d plan abcd\\ne k=v" in first
    assert rest
    assert all(line.startswith("    ") for line in rest)


def test_a_failing_stream_is_counted_and_said_once(capsys):
    target = io.StringIO()
    handler = configure("info", "json", target)
    target.close()
    for _ in range(3):
        StructuredLogger("1a2b3c4d", "plan").info("m")
    shutdown()

    assert handler.failures == 3
    assert capsys.readouterr().err.count("cannot write the log") == 1


def test_a_handler_without_a_stream_and_without_standard_error_is_still_quiet(monkeypatch):
    handler = configure("info", "json", io.StringIO())
    handler.stream = None  # type: ignore[attr-defined]  # as after a daemon closed everything
    monkeypatch.setattr("sys.stderr", None)
    StructuredLogger("1a2b3c4d", "plan").info("m")
    shutdown()

    assert handler.failures == 1


def test_a_log_file_too_small_to_hold_a_line_is_refused():
    with pytest.raises(UsageError, match="at least 1024 bytes and 1 backup, not 10 and 1"):
        LogFile("x", max_bytes=10, backups=1)


# --- secrets ---------------------------------------------------------------------------------------------------


def pieces(text):
    return {text[at : at + 12] for at in range(len(text) - 11)}


def plant(log, rng, secret):
    """Log *secret* the way programs do by accident."""
    ways = [
        lambda: log.info(f"using {secret} now"),
        lambda: log.info("m", value={"a": [{"b": secret}], secret: 1}),
        lambda: log.info("m", **{secret: "as a name"}),
        lambda: log.info("m", data=secret.encode()),
        lambda: log.info("m", point=Point(1, [secret])),
        lambda: log.error("m", error=ValueError(f"could not use {secret}")),
        lambda: log.info("m", url=f"https://u:{secret}@h/x", coded=base64.b64encode(b"u:" + secret.encode())),
        lambda: log.info("m", hexed=secret.encode().hex(), cut=secret[rng.randint(0, 8) :]),
        lambda: log.info("m", ansi=f"{secret[:7]}\x1b[0m{secret[7:]}", argv=["run", "--token", secret]),
    ]
    for way in rng.sample(ways, 3):
        way()
    try:
        raise RuntimeError(f"nested {secret}") from ValueError(secret)
    except RuntimeError:
        with bind(bound=secret):
            log.exception("failed")


@pytest.fixture(scope="module")
def planted(seed):
    rng = random.Random(seed)
    secrets = ["".join(rng.choices(string.ascii_letters + string.digits, k=rng.randint(20, 48))) for _ in range(1000)]

    return rng, secrets, Redactor(secrets)


@pytest.mark.parametrize(("format_", "count"), [("json", 1000), ("text", 200)])
def test_none_of_a_thousand_planted_secrets_comes_out_of_the_logger(format_, count, planted):
    rng, secrets, redactor = planted
    target = io.StringIO()
    configure("debug", format_, target, redactor=redactor)
    log = StructuredLogger("1a2b3c4d", "plan")
    try:
        for secret in secrets[:count]:
            plant(log, rng, secret)
    finally:
        shutdown()

    shown = pieces(target.getvalue())
    for secret in secrets:
        hidden = (
            pieces(secret)
            | pieces(secret.encode().hex())
            | pieces(base64.b64encode(b"u:" + secret.encode()).decode()[3:-4])
        )
        assert not hidden & shown, f"{sorted(hidden & shown)[:3]} of {secret} came out"
    assert MASK in target.getvalue()


def test_other_handlers_never_see_the_secret_either(log, stream, caplog):
    logging.getLogger("adw").addHandler(caplog.handler)
    try:
        raise ValueError(SECRET)
    except ValueError:
        log.exception(f"failed {SECRET}", value=SECRET)
    finally:
        logging.getLogger("adw").removeHandler(caplog.handler)

    assert MASK in caplog.text
    assert SECRET not in caplog.text + str([vars(record) for record in caplog.records])


def test_the_moment_is_aware():
    assert to_plain(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00.000000Z"


# --- the lines of stored events --------------------------------------------------------------------------------

EVENT_LINE = {
    "timestamp": "2026-01-31T09:00:00.000000Z",
    "adw_id": "1a2b3c4d",
    "phase": "plan",
    "level": "INFO",
    "message": "Attempt 1/5",
    "event_type": "attempt_started",
    "attempt": 1,
    "details": {"state": "planning", "hosts": ["a", "b"], "cost": None},
}


@pytest.fixture(params=["no_records", "records"])
def alone(request):
    """Have only handlers of ours, so that no record is made, or those of pytest beside them; entered by the test."""

    @contextlib.contextmanager
    def change():
        logger = logging.getLogger("adw")
        others = [each for each in logger.handlers if not isinstance(each, QuietHandler)]
        for each in others:
            logger.removeHandler(each)
        yield
        for each in others:
            logger.addHandler(each)

    return change if request.param == "no_records" else contextlib.nullcontext


def fields_of(entry):
    return {name: value for name, value in entry.items() if name not in structured_logger.HEAD_FIELDS}


def test_the_line_of_an_event_is_the_one_that_a_logger_writes(log, stream, alone):
    with alone():
        write_entries("1a2b3c4d", [EVENT_LINE], Redactor())
    log.info(EVENT_LINE["message"], **fields_of(EVENT_LINE))

    written, logged = stream.getvalue().splitlines()
    assert written == json.dumps(EVENT_LINE)
    assert logged.replace(json.loads(logged)["timestamp"], EVENT_LINE["timestamp"]) == written


def test_lines_of_events_keep_to_the_level_of_the_logger_and_of_each_handler(stream, alone):
    entries = [EVENT_LINE | {"level": level, "message": level} for level in ("DEBUG", "INFO", "WARNING", "ERROR")]
    handler = logging.getLogger("adw").handlers[0]
    for logger_level, handler_level, expected in [
        ("DEBUG", "NOTSET", ["DEBUG", "INFO", "WARNING", "ERROR"]),
        ("WARNING", "NOTSET", ["WARNING", "ERROR"]),
        ("INFO", "ERROR", ["ERROR"]),
        ("CRITICAL", "NOTSET", []),
        ("DEBUG", "CRITICAL", []),
    ]:
        stream.truncate(0)
        stream.seek(0)
        logging.getLogger("adw").setLevel(logger_level)
        handler.setLevel(handler_level)

        with alone():
            write_entries("1a2b3c4d", entries, Redactor())

        assert [line["level"] for line in lines_of(stream)] == expected, (logger_level, handler_level)


def test_bound_fields_are_in_the_lines_of_events_and_redacted(stream, alone):
    with alone(), bind(run=7, token="abc", message="mine", attempt="of the block"):
        write_entries("1a2b3c4d", [EVENT_LINE], Redactor([SECRET]))

    (line,) = lines_of(stream)
    expected = {"run": 7, "token": MASK, "extra_message": "mine", **fields_of(EVENT_LINE)}
    assert list(line)[:5] == list(structured_logger.HEAD_FIELDS)
    assert fields_of(line) == expected


def test_a_terminal_gets_the_lines_of_events_as_text():
    target = Terminal()
    configure("info", "auto", target, no_color=True)
    write_entries("1a2b3c4d", [EVENT_LINE | {"details": {}}], Redactor())
    shutdown()

    facts = "event_type=attempt_started attempt=1 details={}"
    assert target.getvalue() == f"2026-01-31T09:00:00.000000Z INFO     1a2b3c4d plan Attempt 1/5 {facts}\n"


@pytest.mark.parametrize("name", ["adw", "adw.1a2b3c4d", "adw.1a2b3c4d.plan"])
def test_handlers_of_an_application_get_the_lines_of_events_with_their_moment(stream, caplog, name):
    logger, seen = logging.getLogger(name), type(caplog.handler)()
    logger.addHandler(seen)
    try:
        write_entries("1a2b3c4d", [EVENT_LINE], Redactor())
    finally:
        logger.removeHandler(seen)
        for known in ("adw.1a2b3c4d.plan", "adw.1a2b3c4d"):
            logging.Logger.manager.loggerDict.pop(known, None)

    (record,) = seen.records
    assert (record.name, json.loads(record.getMessage())) == ("adw.1a2b3c4d.plan", EVENT_LINE)
    assert datetime.fromtimestamp(record.created, UTC) == datetime(2026, 1, 31, 9, tzinfo=UTC)
    assert record.funcName == "test_handlers_of_an_application_get_the_lines_of_events_with_their_moment"
    assert lines_of(stream) == [EVENT_LINE]


def test_a_filter_or_a_format_of_an_application_counts_for_the_lines_of_events(stream, alone):
    handler = logging.getLogger("adw").handlers[0]
    handler.addFilter(lambda record: record.text != "Attempt 1/5")
    with alone():
        write_entries("1a2b3c4d", [EVENT_LINE, EVENT_LINE | {"message": "Phase failed"}], Redactor())
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s"))
        write_entries("1a2b3c4d", [EVENT_LINE | {"message": "Phase failed"}], Redactor())

    first, second = stream.getvalue().splitlines()
    assert (json.loads(first)["message"], second) == ("Phase failed", "adw.1a2b3c4d.plan INFO")


def test_lines_of_events_that_cannot_be_written_are_all_counted_and_said_once(capsys):
    target = io.StringIO()
    handler = configure("info", "json", target)
    target.close()
    write_entries("1a2b3c4d", [EVENT_LINE, EVENT_LINE], Redactor())
    write_entries("1a2b3c4d", [EVENT_LINE], Redactor())
    shutdown()

    assert handler.failures == 3
    assert capsys.readouterr().err.count("cannot write the log") == 1


def test_the_line_of_an_event_without_a_moment_stops_nothing(stream, alone):
    with alone():
        write_entries("1a2b3c4d", [EVENT_LINE | {"timestamp": ""}], Redactor())

    assert [line["message"] for line in lines_of(stream)] == ["Attempt 1/5"]
