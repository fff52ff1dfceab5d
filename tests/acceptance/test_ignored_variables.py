"""Variables of other ADW set-ups stop nothing, and are not passed over in silence."""

from __future__ import annotations


def test_a_variable_without_a_meaning_here_is_shown_as_ignored(adw):
    env = {"ADW_DEBUG": "1", "ADW_AUTO_MERGE": ""}

    text, data = adw("config", env=env), adw("config", "--json", env=env)

    assert (text.rc, text.stderr) == (0, "")
    (line,) = [line for line in text.stdout.splitlines() if "ADW_DEBUG" in line]
    assert "ignored" in line
    assert "ADW_AUTO_MERGE" not in text.stdout, "an empty variable is not set"
    assert data.json()["ignored"] == ["ADW_DEBUG"]
    assert "ignored" not in adw("config", "--json").json()
