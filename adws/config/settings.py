"""
The table of settings: what may be set, where, to which values, and what it means.

A setting is one entry in a part of this table and one field of `Settings` in `config.load`; a test compares the two. A
table of `adw.toml` that holds something else, such as `[workflows.NAME]`, is one entry of SECTIONS. Everything a user
reads about settings (`adw config`, docs/settings.md, the errors) comes from here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import hint
from adws.config import values as config_values

if TYPE_CHECKING:
    from adws.adw_modules.queue.model import RunLimits
    from adws.adw_modules.workflow.model import Connection
    from adws.config.load import SettingsFile


# What a setting is: a name, where it may be given, what it means.
#
# Data types only; the table of settings is made of them.


class Setting(NamedTuple):
    """One thing a user may set."""

    name: str  #: attribute of Settings
    default: str  #: as a user would write it; "" means not set
    parse: Callable[[str, Path], object]  #: text and home -> value; ValueError says what it must be
    help: str
    key: str = ""  #: dotted key in adw.toml; "": cannot be set there
    aliases: tuple[str, ...] = ()  #: other variables that users of such tools know
    values: str = ""  #: what may be given, for the documentation
    secret: bool = False

    @property
    def env(self) -> str:
        """Name of the environment variable."""
        return f"ADW_{self.name.upper()}"


class Section(NamedTuple):
    """A table of `adw.toml` that is no list of settings: its user reads it, by `Settings.section`."""

    name: str  #: key in adw.toml, with dots
    help: str


# The part of the table of settings about the schedule and about notifications.
#
# Only the form of a cron expression is checked here; `adw cron`, which knows the calendar, checks that it names moments
# to come.


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
    _entry(
        "quota",
        "*/5 * * * *",
        "quotas are looked at; people are told when one is used up, and when it is free; workflows whose worktree is "
        "too large are paused",
    ),
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


# The part of the table of settings about how long finished workflows and their data are kept.


_MOST = 36500


def days(*, least: int = 1) -> Callable[[str, Path], int]:
    """Return the parser of a number of days, at least so many; 0 is for ever."""

    def parse(text: str, _home: Path) -> int:
        is_whole = text.isascii() and text.isdigit()
        if not is_whole or (int(text) and not least <= int(text) <= _MOST):
            raise ValueError(f"must be a whole number of days from {least} to {_MOST}, or 0 for ever")
        return int(text)

    return parse


RETENTION_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "retention_events_days",
        "365",
        days(),
        "Days that events of finished workflows are kept; 0: for ever.",
        "retention.events_days",
        values="0, or 1 to 36500",
    ),
    Setting(
        "retention_logs_days",
        "90",
        days(),
        "Days that logs and the output of attempts are kept after their workflow has finished; 0: for ever.",
        "retention.logs_days",
        values="0, or 1 to 36500",
    ),
    Setting(
        "retention_deliveries_days",
        "14",
        days(least=3),
        "Days that deliveries are kept: as long, one that comes again starts nothing; 0: for ever.",
        "retention.deliveries_days",
        aliases=("ADW_WEBHOOK_KEEP_DAYS",),
        values="0, or 3 to 36500",
    ),
    Setting(
        "retention_workflows_days",
        "0",
        days(),
        "Days after which a finished workflow is forgotten with all that is stored of it, once nothing that it made "
        "stands any more; 0: never.",
        "retention.workflows_days",
        values="0, or 1 to 36500",
    ),
)


# The part of the table of settings about workers, what they offer, and how many runs go on at a time.
#
# `[limits.SCOPE]` of adw.toml is no list of settings where its keys are names: that is read and checked here, when the
# settings are loaded.


#: As `model.EVERY`, which few starts of adw need.
EVERY = "*"


def host_name(text: str, _home: Path) -> str:
    """Return the name of a machine, as demands name it."""
    from adws.adw_modules.workflow.requirements import checked_host  # noqa: PLC0415 - few starts of adw need it

    try:
        return checked_host(text)
    except UsageError:
        raise ValueError("must be a name of letters, digits and . _ : - (at most 100)") from None


def tags(text: str, _home: Path) -> tuple[str, ...]:
    """Return tags, separated by commas."""
    from adws.adw_modules.workflow.requirements import checked_tags  # noqa: PLC0415 - few starts of adw need it

    try:
        return tuple(sorted(checked_tags(part.strip() for part in text.split(","))))
    except UsageError:
        raise ValueError("must be names of letters, digits and . _ : -, separated by commas") from None


RUN_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "worker_host",
        "",
        host_name,
        "Name of this machine: what runs demand, and what ports, quotas and effects are kept under. Without it, the "
        "machine's own name. Two machines that share a database need different ones.",
        "worker.host",
        values="name",
    ),
    Setting(
        "worker_tags",
        "",
        tags,
        "What workers here have to offer, for runs that demand it.",
        "worker.tags",
        values="A, B, ...",
    ),
    Setting(
        "runs_no_match_seconds",
        "300",
        config_values.seconds,
        "A run that is due and demands what no worker has offered for this long fails.",
        "runs.no_match_seconds",
        values="seconds",
    ),
    Setting(
        "runners_forget_seconds",
        "600",
        config_values.seconds,
        "A worker that is silent for this long is not listed any more.",
        "runners.forget_seconds",
        values="seconds",
    ),
)

#: What can be limited, as `model.SCOPES`; a table for each.
SCOPES = ("repository", "workflow", "provider")
LIMIT_SECTIONS: tuple[Section, ...] = tuple(
    Section(
        f"limits.{scope}",
        f'How many runs of a {scope} go on at a time: a name and a number; `"*"` is for each that is not listed.',
    )
    for scope in SCOPES
)


def read_limits(file: SettingsFile) -> RunLimits:
    """Return the limits in a file that `wrong_limits` found nothing wrong with."""
    from adws.adw_modules.queue.model import RunLimits  # noqa: PLC0415 - few starts of adw need it

    result = {scope: file.table(f"limits.{scope}") or {} for scope in SCOPES}

    return RunLimits(
        scopes={
            scope: {_spelled(scope, name): most for name, most in names.items() if isinstance(most, int)}
            for scope, names in result.items()
            if names
        }
    )


def wrong_limits(file: SettingsFile) -> Iterator[str]:
    """Yield a sentence for each thing that is no limit."""
    for scope in SCOPES:
        yield from _wrong_names(file, scope, file.table(f"limits.{scope}") or {})


def _wrong_names(file: SettingsFile, scope: str, names: Mapping[str, object]) -> Iterator[str]:
    seen: set[str] = set()
    for name, most in names.items():
        place = f"{file.path}:{file.line_of('limits', scope, name)}"
        least = int(name == EVERY)  # one name can be shut out; all of them would be no limit but the end of work
        if not isinstance(most, int) or isinstance(most, bool) or most < least:
            yield f"{place}: the limit of {scope} {name!r} must be a whole number, {least} or more"
        elif not name or "|" in name:
            yield f"{place}: {name!r} cannot be the name of a {scope}"
        elif _spelled(scope, name) in seen:
            yield f"{place}: the {scope} {name!r} has two limits: leave one out"
        seen.add(_spelled(scope, name))


def _spelled(scope: str, name: str) -> str:
    """Return *name* in the one spelling of labels: forges do not tell Acme/Widget from acme/widget."""
    return name.casefold() if scope == "repository" else name


# The part of the table of settings about the calls of steps.


_HOST = r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?|\[?[0-9a-f:]+\]?"


def hosts(text: str, _home: Path) -> tuple[str, ...]:
    """Return names of hosts, separated by commas; `*.` before one means those below it."""
    result = tuple(part.strip().lower() for part in text.split(","))
    if not all(re.fullmatch(_HOST, name) for name in result):
        raise ValueError("must be names of hosts such as api.example.com or *.example.com, separated by commas")

    return tuple(name.strip("[]") for name in result)


STEP_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "steps_max_result_bytes",
        "8MiB",
        config_values.size,
        "Most bytes of what one call of a step gives back; a call that gives back more has failed.",
        "steps.max_result_bytes",
        values="bytes, or a number with KiB, MiB or GiB",
    ),
    Setting(
        "steps_http_allow",
        "",
        hosts,
        "Hosts that steps may ask over HTTP; `*.example.com` means all below it. Without it, every host.",
        "steps.http_allow",
        values="A, B, ...",
    ),
    Setting(
        "steps_lane_seconds",
        "5",
        config_values.seconds,
        "After so much work on the calls of one step a worker lets others that wait come first.",
        "steps.lane_seconds",
        values="seconds",
    ),
    Setting(
        "steps_batch",
        "64",
        config_values.whole(least=1),
        "Most short calls of a loop that a worker takes at a time; calls that take longer are taken one by one.",
        "steps.batch",
        values="number",
    ),
)


# The part of the table of settings about the web server: where it listens, who may use it, its limits.


_COUNT = config_values.whole(least=0)
_SIZE = "bytes, or a number with KiB, MiB or GiB"

WEB_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "web_host",
        "127.0.0.1",
        config_values.host,
        "Address that adw serve listens at. Anything but loopback needs web_token and webhook_secret.",
        "web.host",
        values="an address of this machine",
    ),
    Setting(
        "web_port",
        "8001",
        config_values.whole_between(0, 65535),
        "Port that adw serve listens at; 0 takes any that is free.",
        "web.port",
        values="0 to 65535",
    ),
    Setting(
        "web_token",
        "",
        config_values.tokens,
        "Token that callers of the API show as a bearer token, 16 characters or more. Two or more, separated by "
        "commas, are all accepted, so that one can be replaced. Without one the API is closed.",
        values="TOKEN, TOKEN, ...",
        secret=True,
    ),
    Setting(
        "web_metrics_token",
        "",
        config_values.tokens,
        "Token that opens /metrics and nothing else, for Prometheus; web_token opens it too. Two or more, separated by "
        "commas, are all accepted.",
        values="TOKEN, TOKEN, ...",
        secret=True,
    ),
    Setting(
        "web_metrics_open",
        "false",
        config_values.switch,
        "Whether /metrics is shown without a token to clients on this machine. Behind a proxy on this machine "
        "everybody comes from there: leave it off then.",
        "web.metrics_open",
        values="true or false",
    ),
    Setting(
        "web_public_url",
        "",
        config_values.origin,
        "Where people reach the dashboard, when that is not the address it listens at: a name, or a proxy that speaks "
        "https. Requests for pages under other names are refused; with https cookies are sent over nothing else.",
        "web.public_url",
        values="URL without a path",
    ),
    Setting(
        "web_session_seconds",
        "43200",
        config_values.seconds_between(60, 31 * 86_400),
        "How long a login to the dashboard lasts.",
        "web.session_seconds",
        values="seconds, 60 to 2678400",
    ),
    Setting(
        "web_read_only",
        "false",
        config_values.switch,
        "Whether the dashboard only shows: it has no buttons then, and refuses what they would send. The API is not "
        "touched by this.",
        "web.read_only",
        values="true or false",
    ),
    Setting(
        "web_workers",
        "2",
        config_values.whole_between(0, 64),
        "Workers that adw serve runs beside itself, each with one workflow at a time.",
        "web.workers",
        values="0 to 64",
    ),
    Setting(
        "web_header_seconds",
        "10",
        config_values.seconds,
        "How long a client may take to send the head of a request.",
        "web.header_seconds",
        values="seconds",
    ),
    Setting(
        "web_body_seconds",
        "10",
        config_values.seconds,
        "How long a client may take to send the body of a request, however steadily it comes.",
        "web.body_seconds",
        values="seconds",
    ),
    Setting(
        "web_max_body_bytes",
        "1 MiB",
        config_values.size,
        "Largest body of a request to the API.",
        "web.max_body_bytes",
        values=_SIZE,
    ),
    Setting(
        "web_max_connections",
        "500",
        config_values.whole(least=1),
        "Connections at a time; those beyond are answered with 503.",
        "web.max_connections",
        values="1 or more",
    ),
    Setting(
        "web_shutdown_seconds",
        "30",
        config_values.seconds,
        "How long adw serve waits for requests and workers when it is told to end, before it kills the workers.",
        "web.shutdown_seconds",
        values="seconds",
    ),
    Setting(
        "webhook_max_body_bytes",
        "25 MiB",
        config_values.size,
        "Largest webhook delivery; GitHub sends none above 25 MB.",
        "webhook.max_body_bytes",
        values=_SIZE,
    ),
    Setting(
        "webhook_sender_limit",
        "100",
        _COUNT,
        "Requests for work that one sender may make in an hour by webhook; those beyond are answered with 429. 0: no "
        "limit.",
        "webhook.sender_limit",
        values="0 or more",
    ),
    Setting(
        "webhook_issue_limit",
        "30",
        _COUNT,
        "Requests for work about one issue in an hour; those beyond are kept and ignored, so that nothing that answers "
        "itself goes on for ever. 0: no limit.",
        "webhook.issue_limit",
        values="0 or more",
    ),
)


# The part of the table of settings about deliveries: what they are signed with, whose they may be, what they start.


_SWITCHES_CONFIG_WEBHOOK = ("label", "comment", "opened", "assigned", "closed", "pull_request")

WEBHOOK_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "webhook_secret_next",
        "",
        config_values.token,
        "A second secret that deliveries may be signed with, while the secret of the hook is changed.",
        values="token",
        secret=True,
    ),
    Setting(
        "webhook_label",
        "adw",
        config_values.label,
        "Label that starts a workflow when an issue gets it.",
        "webhook.label",
        values="name of a label",
    ),
    Setting(
        "webhook_repositories",
        "",
        config_values.repositories,
        "Repositories whose deliveries are taken; without it, the one that is worked on.",
        "webhook.repositories",
        values="owner/name, ...",
    ),
    Setting(
        "webhook_login",
        "",
        config_values.login,
        "Login of the account that adw has for itself: issues assigned to it start a workflow, and what it says is "
        "never listened to. Not the login of a person.",
        "webhook.login",
        values="login",
    ),
    Setting(
        "webhook_bots",
        "",
        config_values.texts,
        "Logins of programs that may ask for something; all others are ignored.",
        "webhook.bots",
        values="A, B, ...",
    ),
    Setting(
        "webhook_permission",
        "write",
        config_values.choice("read", "triage", "write", "maintain", "admin"),
        "What a person must be permitted in the repository to ask for something; looked at each time.",
        "webhook.permission",
        values="read, triage, write, maintain, admin",
    ),
    Setting(
        "webhook_allow",
        "",
        config_values.texts,
        "Logins of the only people who may ask for something; they need the permission too. Without it, everybody who "
        "has the permission may.",
        "webhook.allow",
        values="A, B, ...",
    ),
    Setting(
        "webhook_deny",
        "",
        config_values.texts,
        "Logins that may ask for nothing, whatever else says.",
        "webhook.deny",
        values="A, B, ...",
    ),
    Setting(
        "webhook_events",
        ", ".join(_SWITCHES_CONFIG_WEBHOOK),
        config_values.choices(*_SWITCHES_CONFIG_WEBHOOK),
        "What is listened to: a label, a comment, a new issue that names a workflow, an issue that is assigned, an "
        "issue or a pull request that is closed.",
        "webhook.events",
        values=", ".join(_SWITCHES_CONFIG_WEBHOOK),
    ),
    Setting(
        "webhook_followups",
        "false",
        config_values.switch,
        "Go on with a pull request when a reviewer wants changes or its checks are red.",
        "webhook.followups",
        values="true, false",
    ),
    Setting(
        "webhook_max_followups",
        "3",
        config_values.whole(least=0),
        "How often a workflow goes on because of a review or red checks.",
        "webhook.max_followups",
        values="0 or more",
    ),
)


# The part of the table of settings about the workspace: worktrees, shipping, ports, limits, breakers.


_AT_LEAST_ONE = config_values.whole(least=1)

WORKSPACE_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "worktree_enabled",
        "true",
        config_values.switch,
        "Work in a git worktree and on a branch of its own for each workflow; without it work is done in place. In a "
        "home that is in no git repository a start is refused unless this is false, or adw run is given --in-place.",
        "worktree.enabled",
        values="true, false",
    ),
    Setting(
        "worktree_release",
        "true",
        config_values.switch,
        "Remove the worktree of a completed workflow whose branch is pushed; the branch stays, and what is not "
        "committed is kept as a patch.",
        "worktree.release",
        values="true, false",
    ),
    Setting(
        "workspace_publish_work",
        "auto",
        config_values.choice("auto", "always", "never"),
        "Push the commits of each phase to refs/adw/wip/ID before its result is written, so that a worker on another "
        "machine can go on. auto: with PostgreSQL, and what cannot be pushed stays with its machine. always: what "
        "cannot be pushed fails the attempt. never: work stays with its machine.",
        "workspace.publish_work",
        values="auto, always, never",
    ),
    Setting(
        "ship_merge",
        "no",
        config_values.choice("no", "squash", "merge", "rebase"),
        "Merge the pull request when it is put up, and how.",
        "ship.merge",
        values="no, squash, merge, rebase",
    ),
    Setting(
        "ship_draft",
        "true",
        config_values.switch,
        "Put pull requests up as drafts.",
        "ship.draft",
        values="true, false",
    ),
    Setting(
        "ship_labels", "", config_values.texts, "Labels that pull requests get.", "ship.labels", values="A, B, ..."
    ),
    Setting(
        "ship_allow_paths",
        "",
        config_values.texts,
        "Patterns of files that the check before a push lets through, whatever they are.",
        "ship.allow_paths",
        values="A, B, ...",
    ),
    Setting(
        "ship_allow_workflow_files",
        "false",
        config_values.switch,
        "Push changes of .github/workflows and its like.",
        "ship.allow_workflow_files",
        values="true, false",
    ),
    Setting(
        "ship_allow_agent_files",
        "false",
        config_values.switch,
        "Push changes of the configuration of agents: .claude, CLAUDE.md, .mcp.json, adw.toml and their like.",
        "ship.allow_agent_files",
        values="true, false",
    ),
    Setting(
        "ship_max_files",
        "300",
        _AT_LEAST_ONE,
        "Most files that one push may change.",
        "ship.max_files",
        values="1 or more",
    ),
    Setting(
        "ship_max_lines",
        "20000",
        _AT_LEAST_ONE,
        "Most lines, added and removed, that one push may change.",
        "ship.max_lines",
        values="1 or more",
    ),
    Setting(
        "worktree_include",
        ".env, app/server/.env, .mcp.json, playwright-mcp-config.json",
        config_values.file_list,
        "Files of the main checkout that new worktrees get too; those that git does not ignore are left out.",
        "worktree.include",
        values="paths, separated by commas, or none",
    ),
    Setting(
        "worktree_setup",
        "",
        config_values.command_list,
        "Commands that set a new worktree up, such as npm ci; run one after the other, without a shell.",
        "worktree.setup",
        values="one command a line",
    ),
    *(
        Setting(f"ports_{name}", default, config_values.whole(least=least), text, f"ports.{name}", values=values)
        for name, default, least, text, values in (
            ("backend_start", "9100", 1024, "First port for the backend of a workflow.", "1024 or more"),
            ("frontend_start", "9200", 1024, "First port for the frontend of a workflow.", "1024 or more"),
            ("count", "15", 1, "Pairs of ports there are.", "1 or more"),
        )
    ),
    *(
        Setting(f"quota_{name}", default, parse, text, f"quota.{name}", values=values)
        for name, default, parse, text, values in (
            ("min_free_disk", "10 GiB", config_values.size, "Disk that must be free where worktrees are.", _SIZE),
            ("min_free_memory", "1 GiB", config_values.size, "Memory that must be free to start work.", _SIZE),
            ("max_worktrees", "15", _AT_LEAST_ONE, "Worktrees on one machine.", "1 or more"),
            (
                "max_worktree_size",
                "5 GiB",
                config_values.size_or_off,
                "Disk that one worktree may take: a workflow whose worktree takes as much pauses.",
                f"{_SIZE}, or off",
            ),
            ("max_cost", "10", config_values.amount, "What one workflow may cost.", "US dollars"),
            ("max_cost_per_day", "100", config_values.amount, "What all may cost from midnight UTC.", "US dollars"),
            ("max_runs", "15", _AT_LEAST_ONE, "Workflows that are worked on at once.", "1 or more"),
        )
    ),
    *(
        Setting(f"breakers_{name}", default, parse, text, f"breakers.{name}", values=values)
        for name, default, parse, text, values in (
            (
                "failure_threshold",
                "5",
                config_values.whole_between(1, 1000),
                "Failures in a row of an outside party, such as an agent's provider, after which nobody asks it.",
                "1 to 1000",
            ),
            (
                "reset_timeout_seconds",
                "60",
                config_values.seconds_between(1, 86400),
                "How long nobody asks it, unless it said itself until when.",
                "1 to 86400 seconds",
            ),
            (
                "half_open_max_attempts",
                "1",
                config_values.whole_between(1, 10),
                "How many may try it at a time after that, before all may again.",
                "1 to 10",
            ),
        )
    ),
)


# Read `[connections.NAME]` of adw.toml: where sinks save to.
#
# A file to commit holds no password: a connection names the environment variable that has it, and one that is written
# down is refused. Read and checked when the settings are loaded.


CONNECTION_SECTION = Section(
    "connections", "Databases that sinks of steps save to, each a table `[connections.NAME]`, without passwords."
)
#: As `model.CONNECTION_TYPES`, which few starts of adw need -> the keys of each type.
KEYS: Mapping[str, tuple[str, ...]] = {
    "sqlite": ("type", "path"),
    "postgres": ("type", "url", "url_env", "password_env"),
}

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"passw|pwd|secret|token|credential|api_?key", re.IGNORECASE)
_SCHEMES = ("postgresql", "postgres")


def read_connections(file: SettingsFile) -> Mapping[str, Connection]:
    """Return the connections in a file that `wrong_connections` found nothing wrong with."""
    from adws.adw_modules.workflow.model import Connection  # noqa: PLC0415 - few starts of adw need it

    tables = file.table(CONNECTION_SECTION.name) or {}

    return {name: Connection(name=name, **table) for name, table in tables.items() if isinstance(table, dict)}


def wrong_connections(file: SettingsFile) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with a connection."""
    for name, table in (file.table(CONNECTION_SECTION.name) or {}).items():
        for key, why in _wrong(name, table):
            keys = (CONNECTION_SECTION.name, name, key) if key else (CONNECTION_SECTION.name, name)
            yield f"{file.path}:{file.line_of(*keys)}: [connections.{name}] {why}"


def _wrong(name: str, table: object) -> Iterator[tuple[str, str]]:
    """Yield a key, "" for the whole, and what is wrong there."""
    if not isinstance(table, dict):
        yield "", f"must be a table, such as [connections.{name}]"
        return
    if not _NAME.fullmatch(name):
        yield "", f"{name!r} cannot be the name of a connection: use letters, digits, '-' and '_', a letter first"
    kind = table.get("type")
    if not isinstance(kind, str) or kind not in KEYS:
        what = hint(kind, KEYS) if isinstance(kind, str) else f": say which, one of {', '.join(KEYS)}"
        yield "type", f"has no type that is known{what}"
        return
    wrong_keys = [*_wrong_keys(kind, table)]
    yield from wrong_keys
    if not wrong_keys:
        yield from _wrong_sqlite(table) if kind == "sqlite" else _wrong_postgres(table)


def _wrong_keys(kind: str, table: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if key not in KEYS[kind]:
            if _SECRET.search(key) and not key.endswith("_env"):
                yield key, f"{key} stands in a file that is committed: name an environment variable in password_env"
            else:
                yield key, f"{key!r} is no key of a connection of the type {kind}{hint(key, KEYS[kind])}"
        elif not isinstance(value, str) or not value.strip():
            yield key, f"{key} must be a text that is not empty"
        elif key.endswith("_env") and not _VARIABLE.fullmatch(value):
            # Not shown: somebody may have written the password itself.
            yield key, f"{key} must be the name of an environment variable, not a value"


def _wrong_sqlite(table: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if "path" not in table:
        yield "", "has no path: name the file, such as data/results.db"
    elif "\0" in table["path"]:
        yield "path", "path holds a NUL character"


def _wrong_postgres(table: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if ("url" in table) == ("url_env" in table):
        yield (
            "",
            "needs url, such as postgresql://user@host/database, or url_env, the variable that has it; one of them",
        )
        return
    if "url_env" in table and "password_env" in table:
        yield "password_env", "password_env goes with url; the address in url_env has its password"
    if "url" in table and (why := _why_no_url(table["url"])):
        yield "url", f"url {why}"


def _why_no_url(url: str) -> str:
    """Return what is wrong with *url*, which is not shown: it may hold a password."""
    from urllib.parse import parse_qsl, urlsplit  # noqa: PLC0415 - few starts of adw have connections

    try:
        parts = urlsplit(url)
        names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
        is_address = parts.scheme in _SCHEMES and bool(parts.path.strip("/")) and (parts.port or 1) > 0
    except ValueError:
        return "is no address, such as postgresql://user@host:5432/database"
    if parts.password is not None or any(map(_SECRET.search, names)):
        return "holds a password, and this file is committed: name an environment variable in password_env"
    if not is_address:
        return "is no address of a database, such as postgresql://user@host:5432/database"

    return ""


#: Beginnings of the names of variables that are not settings: those of the test suite.
RESERVED_PREFIXES = ("ADW_TEST_", "ADW_SOAK")
#: Variables that adw gives to the commands of a phase. They say nothing to an adw that such a command calls.
GIVEN_VARIABLES = (
    "ADW_ATTEMPT",
    "ADW_BACKEND_PORT",
    "ADW_CHECKPOINT_FILE",
    "ADW_FRONTEND_PORT",
    "ADW_HINTS_FILE",
    "ADW_ID",
    "ADW_ISSUE_FILE",
    "ADW_ISSUE_NUMBER",
    "ADW_PHASE",
    "ADW_PROCESS_TOKEN",
    "ADW_RESULT_FILE",
)
#: Variables of ADW set-ups that have no meaning here yet: they stop nothing, and `adw config` shows them as ignored.
IGNORED_VARIABLES = ("ADW_AUTO_MERGE", "ADW_CLEANUP_WORKTREES", "ADW_DEBUG")

SETTINGS: tuple[Setting, ...] = (
    Setting("home", "", config_values.path, "Directory of adw.toml, state and trees.", values="path"),
    Setting("state_dir", "state", config_values.path, "Where documents and database are.", "state.dir", values="path"),
    Setting("trees_dir", "trees", config_values.path, "Where git worktrees are made.", "trees.dir", values="path"),
    Setting(
        "store",
        "files",
        config_values.choice("files", "database"),
        "Home of the workflow documents: JSON files, or rows of the database. Without it, and with PostgreSQL: rows of "
        "the database; files beside PostgreSQL are for one machine only, because no other can read them.",
        "state.store",
        values="files, database",
    ),
    Setting(
        "database_url",
        "sqlite:///{state_dir}/adw.db",
        config_values.database_url,
        "Database for what is shared: locks, leases, requests, events, lists.",
        "database.url",
        values="sqlite:///PATH, postgresql://USER:PASSWORD@HOST/NAME (also as postgresql+psycopg://)",
        secret=True,
    ),
    Setting(
        "repository",
        "",
        config_values.repository,
        "Repository on GitHub whose issues are worked on.",
        "github.repository",
        aliases=("GITHUB_REPO_URL",),
        values="owner/name or its URL",
    ),
    Setting(
        "lease_ttl_seconds",
        "30",
        config_values.seconds,
        "A worker that is silent for this long loses its workflow.",
        "lease.ttl_seconds",
        values="seconds",
    ),
    Setting(
        "lease_renew_seconds",
        "10",
        config_values.seconds,
        "How often a worker says that it lives.",
        "lease.renew_seconds",
        values="seconds",
    ),
    Setting(
        "lease_stop_seconds",
        "20",
        config_values.seconds,
        "A worker stops itself when it could not say so for this long.",
        "lease.stop_seconds",
        values="seconds",
    ),
    Setting(
        "projector_interval_seconds",
        "1",
        config_values.seconds,
        "How often an update of the database copy of the documents waits for the disk; the others do not.",
        "state.projector_interval_seconds",
        values="seconds",
    ),
    Setting(
        "max_document_bytes",
        "16 MiB",
        config_values.size,
        "Largest workflow document that is written or read.",
        "state.max_document_bytes",
        values="bytes, or a number with KiB, MiB or GiB",
    ),
    Setting(
        "log_level",
        "INFO",
        config_values.choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
        "Least severe message that is logged.",
        "log.level",
        values="DEBUG, INFO, WARNING, ERROR, CRITICAL",
    ),
    Setting(
        "log_format",
        "auto",
        config_values.choice("auto", "json", "text"),
        "Form of log lines on stderr: auto is text on a terminal, JSON elsewhere.",
        "log.format",
        values="auto, json, text",
    ),
    Setting(
        "log_max_bytes",
        "10 MiB",
        config_values.size,
        "A log file that reaches this size is rotated.",
        "log.max_bytes",
        values="bytes, or a number with KiB, MiB or GiB",
    ),
    Setting("log_backups", "3", _COUNT, "Rotated log files that are kept.", "log.backups", values="0 or more"),
    Setting(
        "max_attempts",
        "5",
        _AT_LEAST_ONE,
        "Attempts a phase has in each round.",
        "limits.max_attempts",
        values="1 or more",
    ),
    Setting(
        "max_retries",
        "3",
        _COUNT,
        "How often a workflow may leave the failed state.",
        "limits.max_retries",
        values="0 or more",
    ),
    Setting(
        "max_reworks",
        "3",
        _COUNT,
        "How often tests, a review or a conflict with the base may send a workflow back to building.",
        "limits.max_reworks",
        values="0 or more",
    ),
    Setting(
        "gates_base",
        "require",
        config_values.choice("require", "compare", "ignore"),
        "The command gates of a workflow are run on the commit it starts from before an agent is paid. When one is red "
        "there: require starts no agent, compare counts only failures that the base does not have, ignore does not "
        "run them there.",
        "gates.base",
        values="require, compare, ignore",
    ),
    Setting(
        "default_workflow",
        "sdlc",
        config_values.name,
        "Workflow that is run when none is named.",
        "workflow.default",
        aliases=("DEFAULT_WORKFLOW",),
        values="a name of adw workflows",
    ),
    Setting(
        "max_total_attempts",
        "40",
        _AT_LEAST_ONE,
        "Attempts of a whole workflow, over all phases; then it has failed.",
        "workflow.max_total_attempts",
        values="1 or more",
    ),
    Setting(
        "max_minutes",
        "720",
        config_values.seconds,
        "Minutes of work of a whole workflow, waiting left out; then it has failed.",
        "workflow.max_minutes",
        values="minutes",
    ),
    Setting(
        "max_outage_hours",
        "24",
        config_values.whole_between(1, 744),
        "How long a phase waits for a network, a forge or a provider that fails, without using attempts; then the "
        "workflow has failed.",
        "workflow.max_outage_hours",
        values="1 to 744 hours",
    ),
    Setting(
        "grace_seconds",
        "10",
        config_values.seconds,
        "How long a process has to end by itself after it was asked to, before it is killed.",
        "worker.grace_seconds",
        values="seconds",
    ),
    Setting(
        "max_output_bytes",
        "64 MiB",
        config_values.size,
        "Output of one attempt that is kept; what comes after is left out.",
        "worker.max_output_bytes",
        values="bytes, or a number with KiB, MiB or GiB",
    ),
    Setting(
        "cleanup_command",
        "",
        config_values.shell,
        "Command that frees disk, memory or ports before a phase is tried again that something was short for.",
        "worker.cleanup_command",
        values="one line for the shell",
    ),
    Setting(
        "recover_seconds",
        "60",
        config_values.seconds,
        "How often a worker looks for work whose worker is gone.",
        "worker.recover_seconds",
        values="seconds",
    ),
    Setting(
        "recovery_mode",
        "stale",
        config_values.choice("none", "stale", "all"),
        "How far recovery goes. none: it only says what it would do. stale: it takes back what has a dead owner or a "
        "lease that is over. all: also what nothing proves anything about, without waiting for the threshold.",
        "recovery.mode",
        aliases=("RUN_RECOVERY_MODE",),
        values="none, stale, all",
    ),
    Setting(
        "recovery_threshold_seconds",
        "300",
        config_values.seconds,
        "Seconds without a change after which mode stale takes back what nothing proves anything about: an owner that "
        "cannot be read, a claim without an owner, a stop that nobody can confirm.",
        "recovery.threshold_seconds",
        aliases=("ADW_RECOVERY_THRESHOLD", "RUN_RECOVERY_THRESHOLD"),
        values="seconds",
    ),
    Setting(
        "recovery_running",
        "resume",
        config_values.choice("resume", "fail"),
        "What becomes of a workflow whose worker was gone in the middle of it: it goes on, or it has failed.",
        "recovery.running",
        values="resume, fail",
    ),
    Setting(
        "recovery_max_losses",
        "5",
        config_values.whole(least=1),
        "How often a worker may vanish with a run; then the run is dead and its workflow has failed.",
        "recovery.max_losses",
        values="a number from 1",
    ),
    Setting(
        "forge",
        "auto",
        config_values.choice_or_plugin("adw.forges", "auto", "github", "local", "none"),
        "Where issues and pull requests are. auto: github when a repository and a token or an App are set, else local "
        "when its directory is there, else github when a repository is set (what needs the token then says so), else "
        "none. Other names are those of plugins.",
        "forge.kind",
        values="auto, github, local, none, or the name of a plugin",
    ),
    Setting(
        "local_forge_dir",
        "{state_dir}/local.forge",
        config_values.path,
        "Directory of the local forge: issues and pull requests as files, and a bare git remote.",
        "forge.dir",
        values="path",
    ),
    Setting(
        "forge_key",
        "",
        config_values.token,
        "Secret by which adw knows its own pull requests and comments. Set it where several machines share a "
        "database; else each home makes its own.",
        values="token",
        secret=True,
    ),
    Setting(
        "github_api_url",
        "https://api.github.com",
        config_values.web_url,
        "Address of GitHub's REST API; for GitHub Enterprise Server it ends in /api/v3.",
        "github.api_url",
        values="URL",
    ),
    Setting(
        "github_app_id",
        "",
        config_values.token,
        "Id of the GitHub App that adw acts as, instead of a token.",
        "github.app_id",
        values="id",
    ),
    Setting(
        "github_app_key_file",
        "",
        config_values.path,
        "File with the private key of the GitHub App, in PEM.",
        "github.app_key_file",
        values="path",
    ),
    Setting(
        "github_token",
        "",
        config_values.token,
        "Token for GitHub.",
        aliases=("GITHUB_PAT", "GH_TOKEN", "GITHUB_TOKEN"),
        values="token",
        secret=True,
    ),
    Setting(
        "webhook_secret",
        "",
        config_values.token,
        "Secret that GitHub signs webhook deliveries with.",
        aliases=("GITHUB_WEBHOOK_SECRET",),
        values="token",
        secret=True,
    ),
    Setting(
        "claude_path",
        "claude",
        config_values.program,
        "The Claude Code program.",
        "agent.claude_path",
        aliases=("CLAUDE_CODE_PATH",),
        values="name or path",
    ),
    *(
        Setting(
            f"{name}_path",
            name,
            config_values.program,
            f"The {title} program.",
            f"agent.{name}_path",
            values="name or path",
        )
        for name, title in (("codex", "Codex"), ("gemini", "Gemini CLI"), ("opencode", "OpenCode"), ("aider", "aider"))
    ),
    Setting(
        "agent_name",
        "claude",
        config_values.choice("claude", "codex", "gemini", "opencode", "aider"),
        "The agent that works on phases that name none.",
        "agent.name",
        values="claude, codex, gemini, opencode, aider",
    ),
    Setting(
        "agent_permissions",
        "edit",
        config_values.choice("read", "edit", "all"),
        "What agents may do without asking: only read, also edit and run commands, or everything there is.",
        "agent.permissions",
        values="read, edit, all",
    ),
    Setting(
        "agent_model",
        "",
        config_values.model,
        "The model of agents where nothing else names one; without it, the agent's own choice.",
        "agent.model",
        values="name",
    ),
    *(
        Setting(
            f"agent_model_{name}",
            "",
            config_values.model,
            f"The model of workflows with the model set {name}; without it, that of the agent for such work.",
            f"agent.model_{name}",
            values="name",
        )
        for name in ("base", "heavy", "lightweight")
    ),
    Setting(
        "agent_env",
        "",
        config_values.variables,
        "Names of further environment variables that agents get. Their own credentials they get anyway, adw's never.",
        "agent.env",
        values="A, B, ...",
    ),
    Setting(
        "agent_max_turns",
        "",
        _AT_LEAST_ONE,
        "Most turns of one attempt, for agents that can limit them; without it, as many as the agent takes.",
        "agent.max_turns",
        values="1 or more",
    ),
    Setting(
        "agent_billing",
        "auto",
        config_values.choice("auto", "api", "subscription"),
        "How agents are paid: by use (api), by the month (subscription: no budget counts), or as each says itself.",
        "agent.billing",
        values="auto, api, subscription",
    ),
    Setting(
        "doctor_enabled",
        "true",
        config_values.switch,
        "Whether a doctor looks at failed attempts: by rules, unless a function or an agent is set.",
        "doctor.enabled",
        values="true, false",
    ),
    Setting(
        "doctor_call",
        "",
        config_values.call,
        "Python function that decides about failed attempts.",
        "doctor.call",
        values="package.module:function",
    ),
    Setting(
        "doctor_agent",
        "",
        config_values.choice("claude", "codex", "gemini", "opencode", "aider"),
        "Agent that decides about failed attempts.",
        "doctor.agent",
        values="claude, codex, gemini, opencode, aider",
    ),
    Setting(
        "doctor_model",
        "",
        config_values.model,
        "Model of the agent that decides about failed attempts; without it, the agent's own choice.",
        "doctor.model",
        values="name of a model",
    ),
    Setting(
        "doctor_models",
        "",
        config_values.models,
        "Further models that the doctor may try a phase with, besides those of the phase itself.",
        "doctor.models",
        values="A, B, ...",
    ),
    Setting(
        "git_remote",
        "origin",
        config_values.remote,
        "Git remote that branches are pushed to.",
        "git.remote",
        aliases=("ADW_GIT_REMOTE_NAME",),
        values="name",
    ),
    Setting(
        "git_remote_url",
        "",
        config_values.remote_url,
        "Address of that remote; without it, the one that adw recorded when it first used it, or with adw init.",
        "git.remote_url",
        values="URL",
    ),
    Setting(
        "git_author",
        "",
        config_values.person,
        "Who commits what phases did; without it, whoever git's own configuration names.",
        "git.author",
        values="NAME <ADDRESS>",
    ),
    Setting(
        "git_env",
        "",
        config_values.variables,
        "Names of further environment variables that adw's git gets, for credential helpers and filters.",
        "git.env",
        values="A, B, ...",
    ),
    *WORKSPACE_SETTINGS,
    *WEB_SETTINGS,
    *WEBHOOK_SETTINGS,
    *CRON_SETTINGS,
    *RETENTION_SETTINGS,
    *RUN_SETTINGS,
    *STEP_SETTINGS,
)
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}

SECTIONS: tuple[Section, ...] = (
    Section("workflows", "Workflows of your own, each a table `[workflows.NAME]`."),
    Section("phases", "What the phases of built-in workflows run, each a table `[phases.NAME]`."),
    *LIMIT_SECTIONS,
    CONNECTION_SECTION,
    Section("plugins", "What plugins are given, each a table `[plugins.NAME]`: see docs/plugins.md."),
    Section("prices", "Prices of models, each a table `[prices.MODEL]`: US dollars for a million tokens."),
)
