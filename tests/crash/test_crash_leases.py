"""
Owners that are stopped, paused and taken over while others write: no stale write is ever accepted.
"""

from __future__ import annotations

import pytest

from tests.crash.driving import drive

PROCESSES = 6


@pytest.fixture(
    params=["files", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)],
)
def kept_in(request) -> tuple[str, str]:
    """The store, and the URL of its database; "": the home's own."""
    if request.param == "postgresql":
        return "database", request.getfixturevalue("pg_url")

    return ("files" if request.param == "files" else "database"), ""


@pytest.mark.timeout(900)
def test_no_stale_write_is_accepted_however_owners_are_stopped(kept_in, tmp_path, seed, repeat):
    """
    Revisions have no gap, and each is written under the highest fence that was taken by then.

    6 processes with leases of 0.3 s pause, and are stopped, for up to three times as long.
    """
    writes = repeat(15, 500)

    store, url = kept_in
    options = ("--processes", PROCESSES, "--writes", writes, "--seed", seed)
    result = drive("storm_leases", tmp_path / "home", store, *options, env={"ADW_DATABASE_URL": url})

    assert result["problems"] == []
    assert result["counts"]["saved"] >= writes
    assert result["counts"]["takeovers"] >= 3, "nobody was too slow: nothing was tested"
    assert result["counts"]["stubborn refused"] >= 3, "nobody wrote too late: nothing was tested"
