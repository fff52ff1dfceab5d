"""
The part of the table of settings about deliveries: what they are signed with, whose they may be, what they start.

Apart from config_table.py because of its length; nobody reads it from here.
"""

from __future__ import annotations

from adws import config_values
from adws.config_setting import Setting

_SWITCHES = ("label", "comment", "opened", "assigned", "closed", "pull_request")

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
        ", ".join(_SWITCHES),
        config_values.choices(*_SWITCHES),
        "What is listened to: a label, a comment, a new issue that names a workflow, an issue that is assigned, an "
        "issue or a pull request that is closed.",
        "webhook.events",
        values=", ".join(_SWITCHES),
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
