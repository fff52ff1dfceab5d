"""How people may name workflows and commands: a part of an id, an issue, an old name, `adw help`."""

from __future__ import annotations

import pytest

from tests.acceptance import cli_lab


@pytest.fixture
def home(tmp_path):
    return cli_lab.make_home(tmp_path)


@pytest.fixture
def two(adw):
    """The ids of a workflow of issue 7 and of one of issue 8 in another repository."""
    first = adw("run", "7", "--workflow", "short", "--detach", "--json").json()["adw_id"]
    second = adw("run", "8", "--workflow", "short", "--repository", "acme/shop", "--detach", "--json").json()["adw_id"]

    return first, second


def test_a_workflow_is_named_by_its_id_a_part_of_it_or_its_issue(adw, two):
    first, second = two

    for typed in (first, f"adw-{first}", first[:7], "#7"):
        assert adw("status", typed, "--json").json()["adw_id"] == first, typed
    for typed in ("#8", "acme/shop#8", "https://github.com/acme/shop/issues/8"):
        assert adw("status", typed, "--json").json()["adw_id"] == second, typed


def test_what_names_no_workflow_is_refused_in_one_sentence(adw, two):
    missing = adw("status", "#99")
    elsewhere = adw("status", "acme/other#8")

    assert (missing.rc, missing.stderr) == (2, "adw: no workflow of issue #99: adw list shows the workflows\n")
    assert (elsewhere.rc, elsewhere.stdout) == (2, "")


def test_a_command_may_be_asked_for_by_help_and_by_the_name_it_had(adw):
    assert adw("help").stdout.splitlines()[0].startswith("Usage: adw ")
    assert adw("help", "db", "move").stdout.startswith("Usage: adw db move ")
    assert adw("help", "nonsense").rc == 2
    for old, new in (("runs", "adw queue runs"), ("gc", "adw admin gc"), ("explain", "adw status ID")):
        refused = adw(old)
        assert refused.rc == 2
        assert f"there is no command {old!r}; use {new}" in refused.stderr


def test_the_help_fits_on_one_screen(adw):
    assert len(adw("--help").stdout.splitlines()) <= 40
