"""
The part of the table of settings about the web door: where it listens, who may use it, what it puts up with.

Apart from config_table.py because of its length; nobody reads it from here.
"""

from __future__ import annotations

from adws import config_values
from adws.config_setting import Setting

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
