"""
What is known about the forge, and what it means for work: token, scopes, rights, requests that are left.

Pure: facts in, findings out.
"""

from __future__ import annotations

from collections.abc import Iterator

from adws.adw_modules.checkup import OK, PROBLEM, WARNING, Finding, ForgeFacts

#: Requests below which work may have to wait for the next hour.
FEW_REQUESTS = 200

_NEW_TOKEN = "make a token that has them, and export ADW_GITHUB_TOKEN=..."  # noqa: S105 - a sentence, no token


def forge(facts: ForgeFacts) -> Iterator[Finding]:
    """Judge whether issues can be read, and pull requests be made."""
    if facts.problem:
        yield Finding(area="forge", level=PROBLEM, what=facts.problem, mend=facts.mend)
        return
    if facts.kind == "none":
        yield Finding(
            area="forge",
            level=WARNING,
            what="no forge is configured: issues come from the command line, and no pull request is made",
            mend="set github.repository in adw.toml and export ADW_GITHUB_TOKEN=...; adw init looks for it",
        )
        return
    if facts.kind == "local":
        yield Finding(area="forge", level=OK, what="issues and pull requests are files (local forge)")
        return
    if facts.kind != "github":
        yield Finding(area="forge", level=OK, what=f"{facts.kind} knows us as {facts.login}")
        return
    yield Finding(area="forge", level=OK, what=f"GitHub knows us as {facts.login}, and shows {facts.repository}")
    yield from _rights(facts)
    yield from _scopes(facts)
    if facts.requests_left is not None and facts.requests_left < FEW_REQUESTS:
        what = f"GitHub answers {facts.requests_left} more requests this hour"
        yield Finding(area="forge", level=WARNING, what=what, mend="wait, or use a token that others do not use")


def _rights(facts: ForgeFacts) -> Iterator[Finding]:
    missing = [
        what
        for what, may in (("push branches", facts.may_push), ("write issues and comments", facts.may_write_issues))
        if may is False
    ]
    if missing:
        what = f"{facts.login} may not {' or '.join(missing)} in {facts.repository}"
        yield Finding(area="forge", level=PROBLEM, what=what, mend=f"ask its owner for write access, or {_NEW_TOKEN}")
    elif facts.may_push:
        yield Finding(area="forge", level=OK, what=f"{facts.login} may push to {facts.repository}")


def _scopes(facts: ForgeFacts) -> Iterator[Finding]:
    if facts.scopes is None:
        return
    enough = {"repo"} if facts.is_private else {"repo", "public_repo"}
    if not enough & set(facts.scopes):
        what = f"the token has the scopes {', '.join(facts.scopes) or 'none'}, and needs {' or '.join(sorted(enough))}"
        yield Finding(area="forge", level=PROBLEM, what=what, mend=_NEW_TOKEN)
    elif facts.pushes_workflow_files and "workflow" not in facts.scopes:
        what = "the token has not the scope workflow, and ship.allow_workflow_files needs it"
        yield Finding(area="forge", level=PROBLEM, what=what, mend=_NEW_TOKEN)
    else:
        yield Finding(area="forge", level=OK, what=f"the token has the scopes {', '.join(facts.scopes)}")
