"""
The variables that hold adw's own secrets, by all their names.

No process that adw starts for somebody else gets them: with them it could act in adw's name.
"""

from __future__ import annotations

#: A secret of the settings that is not here fails a test.
OWN_SECRETS = frozenset(
    {
        "ADW_DATABASE_URL",
        "ADW_FORGE_KEY",
        "ADW_GITHUB_TOKEN",
        "ADW_NOTIFY_URL",
        "ADW_WEBHOOK_SECRET",
        "ADW_WEBHOOK_SECRET_NEXT",
        "ADW_WEB_TOKEN",
        "ADW_WEB_METRICS_TOKEN",
        "DATABASE_URL",
        "GH_TOKEN",
        "GITHUB_PAT",
        "GITHUB_TOKEN",
        "GITHUB_WEBHOOK_SECRET",
    }
)
