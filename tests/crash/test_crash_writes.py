"""
Writers that are killed, starved, stopped and unplugged; what a reader then finds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.driving import drive

STORES = ["files", "database"]


def break_writer(command: str, home: Path, store: str, *more: object) -> dict:
    """Run the driver of this file; it ends with 1 where it found something, as some of these tests want it to."""
    return drive("driver", command, "--home", home, "--store", store, *more, codes=(0, 1))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", STORES)
def test_a_writer_killed_at_any_moment_loses_nothing_it_acknowledged(store, tmp_path, seed, repeat):
    """
    A load gives a valid revision at or after the last acknowledged one, and leaves at most one temporary file.
    """
    report = break_writer("kills", tmp_path, store, "--count", repeat(30, 2000), "--seed", seed)

    assert report["problems"] == []
    assert report["steps"] >= report["kills"] // 2


@pytest.mark.strace
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", STORES)
def test_any_failing_system_call_of_a_step_leaves_the_old_or_the_new_revision(store, tmp_path, seed, repeat):
    """
    A call fails with EIO, ENOSPC, EDQUOT, EINTR, or is killed at: old or new, never neither, never misreported.

    20 such cases, drawn anew for each run; every call with every fault in the soak.
    """
    report = break_writer("faults", tmp_path, store, "--count", repeat(20, 0), "--seed", seed)

    assert report["problems"] == []
    assert {"fsync", "fdatasync"} & set(report["syscalls"]), "the step did not sync: nothing was tested"
    assert report["cases"] >= 50


@pytest.mark.strace
@pytest.mark.timeout(900)
def test_the_first_write_of_an_old_document_keeps_a_durable_backup_before_it_replaces_anything(tmp_path, seed, repeat):
    """
    Killed or failing at any system call: the old document is in place, or the new one with its one backup beside it.
    """
    report = break_writer("migrations", tmp_path, "files", "--count", repeat(6, 0), "--seed", seed)

    assert report["problems"] == []
    # The last one is the update of the projection, when the document is durable.
    assert report["order"][1:] == ["link", "fsync", "fsync", "rename", "fsync", "fdatasync"]
    assert report["cases"] >= 15


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", STORES)
def test_eight_contending_writers_lose_no_update(store, tmp_path, repeat):
    """
    8 processes x 500 steps and more (fewer in the normal tier), each under an ownership of its own.
    """
    report = break_writer("contention", tmp_path, store, "--processes", "8", "--count", repeat(20, 2000))

    assert report["problems"] == []


@pytest.mark.strace
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", STORES)
def test_an_owner_stopped_at_any_system_call_cannot_overwrite_its_successor(store, tmp_path, seed, repeat):
    """
    SIGSTOP at each call of a step, takeover by another process, SIGCONT: the late write is refused.
    """
    report = break_writer("takeovers", tmp_path, store, "--count", repeat(5, 0), "--seed", seed)

    assert report["problems"] == []
    assert report["refused"] > 0


@pytest.mark.root
@pytest.mark.parametrize("store", STORES)
def test_a_full_disk_refuses_the_write_and_keeps_the_old_revision(store, tmp_path):
    """
    On a tmpfs of 1 MiB that other files fill up, a step fails with a typed error and the workflow can be read.
    """
    report = break_writer("full-disk", tmp_path, store)

    assert report["problems"] == []
    assert report["refused"] >= 1


@pytest.mark.root
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", STORES)
def test_power_cuts_lose_nothing_acknowledged(store, tmp_path, seed, repeat):
    """
    Power cuts under a writer on ext4, 200 in the soak: then the last acknowledged revision or a later one is there.
    """
    report = break_writer("power", tmp_path, store, "--count", repeat(4, 200), "--seed", seed)

    assert report["problems"] == []
    assert report["steps"] >= report["cuts"]


@pytest.mark.root
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", STORES)
def test_the_power_cut_harness_catches_a_build_that_does_not_sync(store, tmp_path, seed):
    """
    The same cuts under a writer whose fsync is taken out must show a loss, or the harness proves nothing.
    """
    report = break_writer("power", tmp_path, store, "--count", "100", "--seed", seed, "--without-fsync")

    assert report["problems"] != []
