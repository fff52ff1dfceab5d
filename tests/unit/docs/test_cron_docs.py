"""The page about the schedule names every entry, channel and switch, and its files for systemd start what there is."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from adws.adw_modules.schedule import notify
from adws.adw_modules.schedule.jobs import CRON_ENTRIES
from adws.adw_modules.schedule.notify import message_of
from adws.adw_modules.schedule.store import NotificationRow

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def page() -> str:
    return (DOCS / "operations.md").read_text()


def test_every_entry_has_its_line(page):
    schedule = page.split("## The schedule\n")[1].split("\n## ")[0]

    assert re.findall(r"^- `(\w+)` \(", schedule, re.MULTILINE) == list(CRON_ENTRIES)


def test_every_switch_and_every_variable_is_named():
    page = (DOCS / "dashboard.md").read_text()
    row = NotificationRow(**{name: "" for name in NotificationRow.__slots__ if name != "token"})

    for word in notify.SWITCHES:
        assert f"`{word}`" in page
    for field in message_of(row, str):
        assert f"_{field.upper()}`" in page


@pytest.mark.parametrize("name", ["adw-cron.service", "adw-cron.timer"])
def test_the_files_for_systemd_can_be_read_and_are_named(name, page):
    result = configparser.ConfigParser(strict=False)
    result.optionxform = str
    result.read_string((DOCS / "deploy" / name).read_text())

    assert f"deploy/{name}" in page
    assert result["Unit"]["Description"]
    if name.endswith("service"):
        assert result["Service"]["ExecStart"].endswith("adw cron --once")
