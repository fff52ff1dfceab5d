"""The pictures of the dashboard: the script takes those that the pages show, and no others lie around."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs" / "images"
PAGE = (ROOT / "docs" / "dashboard.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def screenshots():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts" / "lib"))
        import screenshots as module

        yield module
        for name in ("screenshots", "picture_home"):
            sys.modules.pop(name, None)


def test_the_page_about_the_dashboard_shows_every_picture_and_says_what_it_is(screenshots):
    shown = dict(re.findall(r"!\[([^]]*)\]\(images/([a-z-]+)\.png\)", PAGE))

    assert {name: what for what, name in shown.items()} == {one.name: one.what for one in screenshots.PICTURES}


def test_the_pictures_there_are_are_those_that_the_script_takes(screenshots):
    assert {path.name for path in IMAGES.iterdir()} == {f"{one.name}.png" for one in screenshots.PICTURES}


def test_the_readme_shows_one_of_them():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert re.findall(r"!\[[^]]+\]\(docs/images/([a-z-]+)\.png\)", readme) == ["overview"]


def test_every_picture_has_its_size_and_is_small(screenshots):
    for one in screenshots.PICTURES:
        data = (IMAGES / f"{one.name}.png").read_bytes()

        assert data.startswith(b"\x89PNG\r\n"), one.name
        assert struct.unpack(">II", data[16:24]) == tuple(int(side * one.scale) for side in one.size), one.name
        assert len(data) <= screenshots.MOST_BYTES, f"{one.name}: {len(data)} bytes"


def test_a_name_that_is_none_is_refused_before_anything_is_done(screenshots, capsys):
    assert screenshots.main(["overvew"]) == 2
    assert "no picture is called overvew" in capsys.readouterr().err
