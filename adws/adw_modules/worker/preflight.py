"""
Checks before a workflow is started, shared by `adw run`, the API, deliveries and `adw doctor`.

They only read. A problem is raised as one sentence that says what to do. Checks on this machine come before those that
use the network; each has a time limit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from adws.adw_modules.agents import prompts
from adws.adw_modules.agents.prompts import PromptFacts
from adws.adw_modules.document import FrozenIssue
from adws.adw_modules.errors import (
    ForgeNotFound,
    ForgeRefused,
    GitUnreachable,
    PullRequestOpen,
    StartRefused,
    StateError,
    UsageError,
)
from adws.adw_modules.forge import effects as forge_effects
from adws.adw_modules.git.git import is_outage
from adws.adw_modules.git.private_dir import without_password
from adws.adw_modules.identifiers import comparable, shortened
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.workflow.model import AGENT, AGENTS, SHIP
from adws.adw_modules.workflow.requirements import Requirements, meets

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.forge.model import ForgeAccess
    from adws.adw_modules.workflow.model import PhaseSpec, WorkflowSpec
    from adws.app import Home

#: Seconds the remote has to answer whether it would accept a push.
REMOTE_SECONDS = 10.0
#: ssh's `user@host:path`, which has no // after the colon.
_OF_SSH = re.compile(r"(?:[^/@:]+@)?(?P<host>[^/:@]+):(?!//)(?P<path>.*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class StartRequest:
    """A workflow that is to be started."""

    spec: WorkflowSpec
    issue_number: int | None = None  #: None: check whether this kind of workflow can be started at all
    repository: str = ""  #: of the issue; "": this home's
    title: str = ""  #: replaces the forge's
    body: str = ""  #: replaces the forge's
    hint: str = ""  #: what to do besides what the issue says
    demands: Requirements | None = None  #: on workers; None: those of the definition
    is_in_place: bool = False  #: allow work in a home outside any git repository
    is_again: bool = False  #: allow an open pull request of the issue


#: Maximum length of a task's title; forges accept no longer ones.
TITLE_CHARACTERS = 250


def title_and_body(task: str) -> tuple[str, str]:
    """Return title and body of a task without an issue: its first line, and the whole text if there is more."""
    whole = task.strip()
    title = shortened(whole.partition("\n")[0].strip(), TITLE_CHARACTERS)

    return title, "" if whole == title else whole


class Preflight:
    """Checks whether a workflow can be started in a home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def accept(self, request: StartRequest, *, asked_by: str, priority: int = 0) -> NewWorkflow:
        """Return the workflow that *request* starts; raise the first problem found."""
        return NewWorkflow(
            issue_number=request.issue_number,
            spec=request.spec,
            repository=request.repository or self._home.repository,
            issue=self.check(request),
            demands=request.demands,
            asked_by=asked_by,
            priority=priority,
        )

    def check(self, request: StartRequest) -> FrozenIssue:
        """
        Return the issue as the workflow starts with it; raise the first problem found.

        StartRefused, ConfigError, UsageError, QuotaExceeded and GitError say what a person has to change.
        ForgeUnavailable, ForgeBusy and GitUnreachable are temporary.
        """
        home, spec = self._home, request.spec
        self._check_repository(request)
        home.workflows.check_ready(spec)  # every phase has a runner here, agents' programs included
        # If not here, another machine does the work, with its own agents, modules and sandbox.
        offer = home.claim_policy.offer
        is_here = offer is None or meets(offer, request.demands or spec.demands)
        if is_here and home.sandboxes.is_required():
            home.sandboxes.check(is_required=True)
        for phase in spec.phases if is_here else ():
            # Refuses an async function or an executor, for example; imports their modules.
            problem = home.phase_runners["python"].check(phase) if phase.runner == "python" else ""
            if problem:
                raise StartRefused(problem)
        if home.has_forge:
            _ = home.forge  # raises ConfigError if something it needs is missing, such as the token
        self._check_origin(spec)
        home.known_quotas.check_start(spec.name)
        for runner in dict.fromkeys(phase.runner for phase in _agent_phases(spec) if is_here):
            profile = home.agent_runner.profile(runner)
            problem = home.agent_preflight.why_logged_out(profile, home.agent_variables(profile))
            if problem:
                raise StartRefused(problem)
        access = self.access() if home.has_forge else None
        if access is not None and _ships(spec) and access.may_push is False:
            raise StartRefused(
                f"{access.login} may not push to {home.settings.repository}: ask its owner for write access, or "
                "export ADW_GITHUB_TOKEN=... with a token that may"
            )
        issue = self._check_issue(request)
        self._check_remote(spec)
        self._check_pull_request(request)

        return issue

    # --- this machine ------------------------------------------------------------------------------------------

    def _check_repository(self, request: StartRequest) -> None:
        home = self._home
        if not home.settings.worktree_enabled:
            return
        if not home.has_worktrees and not request.is_in_place:
            raise StartRefused(
                f"{home.settings.home} is in no git repository: run adw inside one, or let the work be done in place "
                "with adw run --in-place, or with enabled = false under [worktree] in adw.toml"
            )
        if not home.has_worktrees:
            return
        if request.is_in_place:
            raise UsageError(
                f"{home.settings.home} is in a git repository, where work has a worktree: leave --in-place out, or "
                "write enabled = false under [worktree] in adw.toml"
            )
        # For a repository of another user this raises GitError with git's advice.
        if home.git.commit_of("HEAD") is None and home.git.remote_address() is None:
            raise StartRefused('the repository has no commit to begin with: git commit --allow-empty -m "Begin"')

    def _check_origin(self, spec: WorkflowSpec) -> None:
        """Refuse a remote other than the one where the forge looks for the branches of pull requests."""
        home, name = self._home, self._home.settings.git_remote
        if not (home.has_worktrees and home.has_forge and _ships(spec)):
            return
        wanted, address = home.forge.remote_url(), home.git.remote_address()
        if address is None:
            raise StartRefused(f"there is no remote {name} to push to: git remote add {name} {wanted}")
        if not is_same_place(address, wanted, below=home.settings.home):
            setting = "" if home.settings.forge_kind == "local" else ", or correct github.repository in adw.toml"
            raise StartRefused(
                f"the remote {name} is {without_password(address)}, but pull requests are opened from {wanted}: "
                f"git remote set-url {name} {wanted}{setting}"
            )

    # --- the forge and the remote ------------------------------------------------------------------------------

    def access(self) -> ForgeAccess:
        """Return what the forge lets us do; raise StartRefused if GitHub does not accept the token."""
        home = self._home
        if home.settings.forge_kind != "github":
            return home.forge_access()
        try:
            return home.forge_access()
        except ForgeNotFound as exc:
            raise StartRefused(
                f"GitHub shows us no repository {home.settings.repository}: correct github.repository, or use a token "
                "that may see it"
            ) from exc
        except ForgeRefused as exc:
            raise StartRefused(
                f"GitHub does not accept our token ({exc}): make a new token, and export ADW_GITHUB_TOKEN=..."
            ) from exc

    def _check_issue(self, request: StartRequest) -> FrozenIssue:
        home, number = self._home, request.issue_number
        issue = FrozenIssue(title=request.title, body=request.body)
        if number is None:
            return issue
        is_asked = home.has_forge and comparable(request.repository) in {"", comparable(home.settings.repository or "")}
        if is_asked:
            try:
                found = home.forge.issue(number)
            except ForgeNotFound as exc:
                where = home.forge.repository or "the local forge"
                raise UsageError(f"there is no issue {number} in {where}: give the number of an open issue") from exc
            if found.state != "open":
                raise StartRefused(f"issue {number} is {found.state}: open it again first")
            read = forge_effects.freeze(found)
            issue = read.model_copy(update={"title": issue.title or read.title, "body": issue.body or read.body})
        hints = (request.hint,) if request.hint else ()
        facts = PromptFacts(mark="", adw_id="", phase="", title=issue.title, body=issue.body, hints=hints)
        texts = (home.prompts.read(phase.prompt).text for phase in _agent_phases(request.spec))
        if any(prompts.lacks_goal(text, facts) for text in texts):
            why = f"issue {number} has no text" if is_asked else f"there is no forge to read issue {number} from"
            raise StartRefused(f"nobody said what the goal is: {why}; write it there, or give --title and --body")

        return issue

    def read_again(self, document: WorkflowDocument) -> FrozenIssue | None:
        """Return the current issue of a workflow that started without its text, or None if there is nothing to read."""
        home, known = self._home, document.issue
        is_here = comparable(document.repository) in {"", comparable(home.settings.repository or "")}
        is_told = known is not None and bool(known.title.strip() or known.body.strip())
        if is_told or document.issue_number is None or not (is_here and home.has_forge):
            return None

        return forge_effects.freeze(home.forge.issue(document.issue_number))

    def _check_remote(self, spec: WorkflowSpec) -> None:
        """Refuse a remote that does not answer, or that takes no push although the work is to be shipped."""
        home = self._home
        if not home.has_worktrees or home.git.remote_address() is None:
            return
        is_pushed = _ships(spec) and home.git.commit_of("HEAD") is not None
        ask = home.git.push_problem if is_pushed else home.git.remote_problem
        problem = ask(seconds=REMOTE_SECONDS)
        if not problem:
            return
        if is_outage(problem):
            raise GitUnreachable(problem)
        name = home.settings.git_remote

        raise StartRefused(
            f"{problem}; correct the remote {name} (git remote set-url {name} URL), or your access to it"
        )

    # --- the pull request --------------------------------------------------------------------------------------

    def _check_pull_request(self, request: StartRequest) -> None:
        """Refuse a second pull request for an issue; if a workflow has the issue, its lock reports that instead."""
        home, number = self._home, request.issue_number
        repository = request.repository or home.settings.repository or ""
        if number is None or request.is_again or not home.has_forge or not home.has_database():
            return
        if home.locks.holder(number, repository) is not None:
            return
        latest: dict[int, WorkflowDocument] = {}  #: by pull request: the last workflow that worked on it
        for row in home.catalogue.find_by_issue(number, repository):
            try:
                document = home.load(row.adw_id)
            except StateError:
                continue  # it was deleted, or is unreadable
            if document.pr_number is None or document.pr_merged:
                continue
            before = latest.setdefault(document.pr_number, document)
            if document.followups > before.followups:
                latest[document.pr_number] = document
        for pr_number, document in latest.items():
            try:
                is_open = home.forge.pull_request(pr_number).state == "open"
            except ForgeNotFound:
                continue
            if is_open:
                raise PullRequestOpen(number, pr_number=pr_number, adw_id=document.adw_id)


def is_same_place(address: str, wanted: str, *, below: Path) -> bool:
    """
    Return whether the address of a remote leads to *wanted*, the forge's address; paths are relative to *below*.

    ssh, https and different users lead to the same repository. A host without a dot may be an alias that only ssh or
    git can resolve: then only owner and name are compared.
    """
    host, path = _place(address)
    wanted_host, wanted_path = _place(wanted)
    if not host or not wanted_host:
        return host == wanted_host and (below / path).resolve() == (below / wanted_path).resolve()
    is_host = host == wanted_host or "." not in host or host.endswith(f".{wanted_host}")

    return is_host and _repository(path) == _repository(wanted_path)


def _place(address: str) -> tuple[str, str]:
    """Return host and path of a remote's address; a directory has no host."""
    if "://" in address:
        parts = urlsplit(address)
        return (parts.hostname or "").casefold(), parts.path
    match = _OF_SSH.fullmatch(address)

    return (match["host"].casefold(), match["path"]) if match else ("", address)


def _repository(path: str) -> str:
    return path.strip("/").removesuffix(".git").casefold()


def _ships(spec: WorkflowSpec) -> bool:
    return any(phase.runner == SHIP for phase in spec.phases)


def _agent_phases(spec: WorkflowSpec) -> list[PhaseSpec]:
    return [phase for phase in spec.phases if phase.runner in {AGENT, *AGENTS}]
