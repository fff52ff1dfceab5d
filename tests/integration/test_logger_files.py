"""The log on a real disk: rotation by several processes, modes, full disks, broken pipes, lost directories."""

from __future__ import annotations

import io
import json
import logging
import multiprocessing
import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.structured_logger import (
    JsonLineFormatter,
    LogFile,
    QuietHandler,
    StructuredLogger,
    WorkflowLogs,
    configure,
    shutdown,
    write_entries,
)
from adws.testing import home
from tests.log_files import open_log


@pytest.fixture(autouse=True)
def _clean_logging():
    yield
    shutdown()
    assert not [each for each in logging.getLogger("adw").handlers if isinstance(each, QuietHandler)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "1a2b3c4d" / "adw.log"


def lines_in(*paths):
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def files_of(path):
    return [each for each in sorted(path.parent.iterdir()) if not each.name.endswith(".lock")]


def test_a_workflow_has_its_own_file_that_only_its_user_can_read(path):
    with open_log(path.parents[1]):
        StructuredLogger("1a2b3c4d", "plan").info("mine", n=1)
        StructuredLogger("ffffffff", "plan").info("of another workflow")
        StructuredLogger("1a2b3c4d", "plan").debug("below the level")
    StructuredLogger("1a2b3c4d", "plan").warning("after the block")

    assert [line["message"] for line in lines_in(path)] == ["mine"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_level_that_was_chosen_stays_while_a_file_is_open(path):
    configure("error", "json", io.StringIO())
    with open_log(path.parents[1]):
        StructuredLogger("1a2b3c4d", "plan").info("too low")
        StructuredLogger("1a2b3c4d", "plan").error("high enough")

    assert [line["message"] for line in lines_in(path)] == ["high enough"]


def test_files_that_stay_open_after_the_console_was_shut_down_go_on(path):
    logger = logging.getLogger("adw")
    with open_log(path.parents[1]):
        configure("error", "json", io.StringIO())
        shutdown()
        StructuredLogger("1a2b3c4d", "plan").info("still here")
        assert logger.level == logging.INFO

    assert logger.level == logging.NOTSET
    assert [line["message"] for line in lines_in(path)] == ["still here"]


# --- the logs of a home ----------------------------------------------------------------------------------------


def entry(adw_id, message):
    head = {"timestamp": "2026-01-31T09:00:00.000000Z", "adw_id": adw_id, "phase": "plan", "level": "INFO"}
    return {**head, "message": message}


@pytest.fixture
def logs(tmp_path):
    made = WorkflowLogs(tmp_path, "adw.log", max_bytes=1024, backups=1)
    yield made
    made.close()


@pytest.fixture(params=[False, True], ids=["no_records", "records"])
def propagates(request, monkeypatch):
    """Say whether handlers of pytest get records, too; without them none is made for the line of an event."""

    def choose():
        monkeypatch.setattr(logging.getLogger("adw"), "propagate", request.param)

    return choose


def test_each_workflow_of_a_home_has_its_own_file_while_it_is_open(logs, tmp_path, propagates):
    propagates()
    with logs.open("1a2b3c4d"), logs.open("5e6f7a8b"):
        for adw_id in ("1a2b3c4d", "5e6f7a8b", "ffffffff"):
            StructuredLogger(adw_id, "plan").info(f"record of {adw_id}")
            write_entries(adw_id, [entry(adw_id, f"event of {adw_id}")], Redactor())
    StructuredLogger("1a2b3c4d", "plan").info("after the block")
    write_entries("1a2b3c4d", [entry("1a2b3c4d", "after the block")], Redactor())

    assert sorted(path.name for path in tmp_path.iterdir()) == ["1a2b3c4d", "5e6f7a8b"]
    for adw_id in ("1a2b3c4d", "5e6f7a8b"):
        path = tmp_path / adw_id / "adw.log"
        assert [line["message"] for line in lines_in(path)] == [f"record of {adw_id}", f"event of {adw_id}"]
        assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)


def test_a_log_that_is_open_already_is_shared_and_closed_by_who_opened_it_first(logs, tmp_path):
    with logs.open("1a2b3c4d"):
        with logs.open("1a2b3c4d"):
            StructuredLogger("1a2b3c4d", "plan").info("inner")
        StructuredLogger("1a2b3c4d", "plan").info("outer")

    assert [line["message"] for line in lines_in(tmp_path / "1a2b3c4d" / "adw.log")] == ["inner", "outer"]


def test_the_logger_is_left_as_it_was_when_the_logs_of_a_home_are_closed(logs):
    logger = logging.getLogger("adw")
    with logs.open("1a2b3c4d"):
        assert (logger.level, logger.handlers) == (logging.INFO, [logs])
    logs.close()

    assert (logger.level, logger.handlers) == (logging.NOTSET, [])


def test_lines_of_events_are_rotated_like_all_others(logs, tmp_path, propagates):
    propagates()
    with logs.open("1a2b3c4d"):
        for number in range(20):
            write_entries("1a2b3c4d", [entry("1a2b3c4d", f"{number} a"), entry("1a2b3c4d", f"{number} b")], Redactor())

    files = files_of(tmp_path / "1a2b3c4d" / "adw.log")
    assert [each.name for each in files] == ["adw.log", "adw.log.1"]
    assert all(each.stat().st_size <= 1024 for each in files)
    messages = [line["message"] for line in lines_in(*reversed(files))]
    assert messages == [f"{number} {half}" for number in range(20) for half in "ab"][-len(messages) :]


def test_a_home_that_works_takes_its_log_handler_away_when_it_is_closed():
    logger = logging.getLogger("adw")
    with home() as opened:
        with opened.log_of("1a2b3c4d"):
            StructuredLogger("1a2b3c4d", "plan").info("at work")
        assert [line["message"] for line in lines_in(opened.folder_of("1a2b3c4d") / "adw.log")] == ["at work"]

    assert (logger.level, logger.handlers) == (logging.NOTSET, [])


def test_a_full_file_is_moved_aside_and_the_oldest_is_dropped(path):
    log = StructuredLogger("1a2b3c4d", "plan")
    with open_log(path.parents[1], max_bytes=2048, backups=2):
        for number in range(100):
            log.info("m", number=number, filler="x" * 100)

    assert [each.name for each in files_of(path)] == ["adw.log", "adw.log.1", "adw.log.2"]
    assert all(each.stat().st_size <= 2048 for each in files_of(path))
    numbers = [line["number"] for line in lines_in(*reversed(files_of(path)))]
    assert numbers == list(range(numbers[0], 100))


def test_a_line_longer_than_the_file_may_be_is_written_all_the_same(path):
    with open_log(path.parents[1], max_bytes=1024, backups=1):
        StructuredLogger("1a2b3c4d", "plan").info("x" * 5000)
        StructuredLogger("1a2b3c4d", "plan").info("short")

    assert [len(line["message"]) for line in lines_in(path, path.with_name("adw.log.1"))] == [5, 5000]


def write_many(path, writer, count, backups):
    handler = LogFile(path, max_bytes=20_000, backups=backups)
    handler.setFormatter(JsonLineFormatter())
    logging.getLogger("adw").addHandler(handler)
    logging.getLogger("adw").setLevel("INFO")
    log = StructuredLogger("1a2b3c4d", "plan")
    for number in range(count):
        log.info("m", writer=writer, number=number, filler="y" * (number % 400))
    os._exit(1 if handler.failures else 0)


def test_several_processes_lose_and_tear_no_line_while_the_file_rotates(path):
    path.parent.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(str(path), n, 300, 500)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)

    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
    assert len(files_of(path)) > 1  # how often depends on how often the lock was free
    seen = [(line["writer"], line["number"]) for line in lines_in(*files_of(path))]
    assert sorted(seen) == [(writer, number) for writer in range(4) for number in range(300)]


def test_a_child_of_a_fork_opens_the_file_for_itself(path):
    with open_log(path.parents[1]) as handler:
        log = StructuredLogger("1a2b3c4d", "plan")
        log.info("parent")
        owner = handler._owner
        child = os.fork()
        if child == 0:
            log.info("child")
            os._exit(0 if handler._owner == os.getpid() != owner and not handler.failures else 1)
        _, status = os.waitpid(child, 0)
        log.info("parent again")

    assert status == 0
    assert [line["message"] for line in lines_in(path)] == ["parent", "child", "parent again"]


def test_a_file_that_was_moved_by_somebody_else_is_not_followed(path):
    log = StructuredLogger("1a2b3c4d", "plan")
    with open_log(path.parents[1]):
        log.info("one")
        path.rename(path.with_name("moved"))
        log.info("two")

    assert [line["message"] for line in lines_in(path.with_name("moved"))] == ["one"]
    assert [line["message"] for line in lines_in(path)] == ["two"]


def test_a_busy_lock_delays_rotation_and_not_the_line(path):
    log = StructuredLogger("1a2b3c4d", "plan")
    with (
        open_log(path.parents[1], max_bytes=1024, backups=1),
        closing(LogFile(str(path), max_bytes=1024, backups=1)) as other,
    ):
        for _ in range(5):
            log.info("x" * 200)
        with other._locked(2):  # LOCK_EX, as a process does that was stopped while it rotated
            for _ in range(20):
                log.info("x" * 200)
        size_while_busy = path.stat().st_size
        log.info("x" * 200)

    assert size_while_busy > 4096
    assert path.stat().st_size < 1024
    assert len(lines_in(path.with_name("adw.log.1"))) > 10


def test_a_symbolic_link_is_not_written_through(path, tmp_path, capsys):
    path.parent.mkdir(parents=True)
    victim = tmp_path / "victim"
    path.symlink_to(victim)
    with open_log(path.parents[1]) as handler:
        StructuredLogger("1a2b3c4d", "plan").info("m")

    assert handler.failures == 1
    assert not victim.exists()


# --- failures --------------------------------------------------------------------------------------------------


def test_a_deleted_directory_is_counted_and_said_once_and_not_made_again(path, capsys):
    log = StructuredLogger("1a2b3c4d", "plan")
    with open_log(path.parents[1]) as handler:
        log.info("one")
        for each in path.parent.iterdir():
            each.unlink()
        path.parent.rmdir()
        for _ in range(3):
            log.info("lost")

    assert handler.failures == 3
    said = capsys.readouterr().err
    assert said == f"adw: cannot write the log {path}: No such file or directory; the work goes on without it\n"
    assert not path.parent.exists()


def test_a_directory_that_cannot_be_made_stops_nothing(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with open_log(tmp_path / "file") as handler:
        StructuredLogger("1a2b3c4d", "plan").info("m")

    assert handler.failures == 1
    assert "adw: cannot make " in capsys.readouterr().err


def test_a_full_disk_stops_nothing_and_is_said_once(capsys):
    with Path("/dev/full").open("w") as full:
        handler = configure("info", "json", full)
        for _ in range(3):
            StructuredLogger("1a2b3c4d", "plan").info("m")
        shutdown()

    assert handler.failures == 3
    assert capsys.readouterr().err.count("No space left on device; the work goes on") == 1


LIMITED = """
import resource, signal, sys
from pathlib import Path
from adws.adw_modules.structured_logger import StructuredLogger, WorkflowLogs
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = StructuredLogger("1a2b3c4d", "plan")
with WorkflowLogs(Path(sys.argv[1]), "adw.log").open("1a2b3c4d") as handler:
    log.info("first")
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
    log.info("x" * 300)
    log.info("y" * 300)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    log.info("last")
    print(handler.failures)
"""


def test_after_a_line_that_was_cut_by_a_full_disk_the_next_one_is_whole(path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path.parents[1])], capture_output=True, text=True, check=True
    )

    assert done.stdout == "2\n"
    assert done.stderr.count("the work goes on") == 1
    first, torn, last = path.read_text().splitlines()
    assert (json.loads(first)["message"], json.loads(last)["message"]) == ("first", "last")
    assert torn.startswith('{"timestamp"')


PIPED = """
import sys
from adws.adw_modules.structured_logger import StructuredLogger, configure
handler = configure("info", "json", sys.stderr)
sys.stdin.readline()
for number in range(100):
    StructuredLogger("1a2b3c4d", "plan").info("m", number=number)
print("work is done", handler.failures)
"""


def test_a_reader_that_went_away_stops_nothing_and_the_exit_is_clean():
    process = subprocess.Popen(
        [sys.executable, "-c", PIPED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    process.stderr.close()
    process.stdin.write("go\n")
    process.stdin.close()

    out = process.stdout.read()
    process.stdout.close()

    assert out == "work is done 100\n"
    assert process.wait() == 0


def test_a_stream_with_a_descriptor_gets_whole_lines(tmp_path):
    target = tmp_path / "out"
    with target.open("w") as stream:
        stream.write("before\n")
        configure("info", "json", stream)
        StructuredLogger("1a2b3c4d", "plan").info("m")
        shutdown()

    first, second = target.read_text().splitlines()
    assert first == "before"
    assert json.loads(second)["message"] == "m"
