"""
What only cron asks of GitHub: who labelled an issue, and which webhook deliveries failed.

GitHub does not bring a failed delivery again by itself. It keeps deliveries for some days, and brings one again, with
the same guid, when it is asked to. That needs the right to see the hooks of the repository.
"""

from __future__ import annotations

from adws.adw_modules import github_answers, timestamps
from adws.adw_modules.forge_polling import HookDelivery, Labelled
from adws.adw_modules.github import GitHubForge
from adws.adw_modules.github_answers import Json


class PolledGitHub(GitHubForge):
    """GitHub, with what cron asks of it."""

    def labelled(self, number: int, label: str) -> Labelled | None:
        """Return who put *label* on the issue last, None when nobody did."""
        issue = github_answers.as_object(self._get(f"/issues/{number}"))
        found: Labelled | None = None
        for one in self._pages(f"/issues/{number}/events", {}):  # oldest first
            named = github_answers.text_in(github_answers.as_object(one.get("label") or {}), "name")
            if github_answers.text_in(one, "event") != "labeled" or named != label:
                continue
            actor, raw_at = github_answers.as_object(one.get("actor") or {}), github_answers.text_in(one, "created_at")
            found = Labelled(
                login=github_answers.text_in(actor, "login"),
                is_bot=github_answers.text_in(actor, "type") == "Bot",
                at=_moment(raw_at),
                raw_at=raw_at,
                created_at=github_answers.text_in(issue, "created_at"),
            )

        return found

    def hook_deliveries(self, *, since: str) -> tuple[HookDelivery, ...]:
        """Return every try since a moment, newest first."""
        found: list[HookDelivery] = []
        for hook in list(self._pages("/hooks", {})):
            hook_id = hook.get("id")
            if isinstance(hook_id, int):
                found.extend(self._tries(hook_id, since))

        return tuple(sorted(found, key=lambda one: one.at, reverse=True))

    def _tries(self, hook_id: int, since: str) -> list[HookDelivery]:
        # This list has no page numbers; its newest hundred are looked at, and cron comes again soon.
        answer, _ = self._connection.call(
            "GET", f"/repos/{self.repository}/hooks/{hook_id}/deliveries", params={"per_page": 100}
        )
        tries = (_try_of(hook_id, one) for one in github_answers.as_objects(answer))

        return [one for one in tries if one is not None and one.at >= since]

    def redeliver(self, hook_id: int, delivery_id: int) -> None:
        """Ask for a delivery to be brought again. Not repeated."""
        self._write("POST", f"/hooks/{hook_id}/deliveries/{delivery_id}/attempts", {})


def _try_of(hook_id: int, one: Json) -> HookDelivery | None:
    number, guid = one.get("id"), github_answers.text_in(one, "guid")
    at = _moment(github_answers.text_in(one, "delivered_at"))
    if not isinstance(number, int) or not guid or not at:
        return None
    code = one.get("status_code")

    return HookDelivery(
        hook_id=hook_id,
        delivery_id=number,
        guid=guid,
        is_ok=isinstance(code, int) and 200 <= code < 300,
        at=at,
        event=github_answers.text_in(one, "event"),
        is_redelivery=one.get("redelivery") is True,
    )


def _moment(text: str) -> str:
    """Return a moment in the one spelling that sorts, "" when it is none."""
    try:
        return timestamps.to_text(timestamps.parse(text))
    except (ValueError, OverflowError):
        return ""
