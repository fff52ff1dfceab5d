"""
The part of the table of settings about the schedule and about notifications.

Apart from config_table.py because of its length; nobody reads it from here. Whether an expression names moments that
come is looked at by `adw cron`, which knows the calendar; here only its form is.
"""

from __future__ import annotations

import re
from pathlib import Path

from adws import config_values
from adws.config_setting import Setting

_CRON = r"[0-9A-Za-z*/,\-#]+( +[0-9A-Za-z*/,\-#]+){4}"
_WHEN = "five fields of cron in UTC, or off"
_SWITCHES = ("failed", "paused", "approval", "completed", "quota", "breaker", "stuck", "report")


def cron(text: str, _home: Path) -> str:
    """Return a cron expression of five fields, "" for off."""
    if text.casefold() == "off":
        return ""
    if re.fullmatch(_CRON, text.strip()) is None:
        raise ValueError("must be five fields, such as */5 * * * *, or off")

    return " ".join(text.split())


def web_address(text: str, _home: Path) -> str:
    """Return an address that something can be posted to."""
    if re.fullmatch(r"https?://[^\s/?#]+\S*", text) is None:
        raise ValueError("must be an address that begins with https:// or http://")

    return text


def notify_command(text: str, _home: Path) -> str:
    """Return one command; what only a shell understands is refused, because none is asked."""
    config_values.command_list(text, _home)
    if len(config_values.commands_in(text)) != 1:
        raise ValueError("must be one command")

    return text


def _entry(name: str, default: str, what: str) -> Setting:
    return Setting(f"cron_{name}", default, cron, f"When {what}.", f"cron.{name}", values=_WHEN)


CRON_SETTINGS: tuple[Setting, ...] = (
    _entry("notify", "* * * * *", "notifications are sent that no worker has sent"),
    _entry("recover", "*/2 * * * *", "work whose worker is gone is made ready to go on, and what is stuck is found"),
    _entry("quota", "*/5 * * * *", "quotas are looked at; people are told when one is used up, and when it is free"),
    _entry("breakers", "*/5 * * * *", "breakers whose time has come are made ready for a trial"),
    _entry("poll_issues", "*/5 * * * *", "open issues with the label are looked for that no delivery told of"),
    _entry("poll_comments", "off", "open issues without a comment, or whose latest comment is `adw`, are started"),
    _entry("redeliver", "*/10 * * * *", "GitHub is asked to bring deliveries again that failed"),
    _entry("gc", "30 3 * * *", "left-overs are looked for; cron.gc_execute removes them"),
    _entry("retention", "45 3 * * *", "what is older than the settings of retention say is forgotten"),
    _entry("report", "0 6 * * *", "the report of the day is made"),
    Setting(
        "cron_gc_execute",
        "false",
        config_values.switch,
        "Whether the schedule removes left-overs, too, and not only names them.",
        "cron.gc_execute",
        values="true, false",
    ),
    Setting(
        "cron_stuck_minutes",
        "120",
        config_values.whole(least=0),
        "So long an attempt may take that has no history of its own yet; longer ones are stuck. 0: nobody is told.",
        "cron.stuck_minutes",
        values="0 or more",
    ),
    Setting(
        "notify_command",
        "",
        notify_command,
        "Command that is run for each notification, in the home; ADW_NOTIFY_KIND, _TITLE, _TEXT, _ADW_ID, _KEY and "
        "_CREATED_AT say what happened.",
        "notify.command",
        values="COMMAND ARGUMENT ...",
    ),
    Setting(
        "notify_url",
        "",
        web_address,
        "Address that each notification is posted to as JSON. Such addresses carry a secret, so it is given by its "
        "variable only.",
        values="https://...",
        secret=True,
    ),
    Setting(
        "notify_comment",
        "false",
        config_values.switch,
        "Whether notifications about a workflow are also posted as comments on its issue.",
        "notify.comment",
        values="true, false",
    ),
    Setting(
        "notify_events",
        ", ".join(_SWITCHES),
        config_values.choices(*_SWITCHES),
        "What people are told about.",
        "notify.events",
        values=f"{', '.join(_SWITCHES)}, or none",
    ),
    Setting(
        "notify_timeout_seconds",
        "10",
        config_values.seconds_between(0.1, 300.0),
        "How long one notification may take; then it has failed.",
        "notify.timeout_seconds",
        values="0.1 to 300",
    ),
    Setting(
        "notify_attempts",
        "5",
        config_values.whole_between(1, 20),
        "How often a notification is tried by each channel.",
        "notify.attempts",
        values="1 to 20",
    ),
)
