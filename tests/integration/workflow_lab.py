"""Workflows with a past, made by hand where making them would take hours: what the page of a workflow is shown on."""

from __future__ import annotations

from datetime import datetime, timedelta

from adws import app as app_module
from adws.adw_modules import timestamps
from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.document import (
    AttemptRecord,
    Cost,
    FrozenIssue,
    HistoryEntry,
    PhaseRecord,
    Resource,
    WorkflowDocument,
    WorkflowRef,
)
from adws.adw_modules.workflow import model as workflow_model
from adws.adw_modules.workflow.model import STATE_OF_PHASE, PhaseSpec, WorkflowSpec

PHASES = ("plan", "build", "lint", "test", "review", "ship")
MODEL = "claude-sonnet-4-5"
#: Markup, a change of direction, and what a terminal obeys.
NASTY = "<script>alert('1')</script><b>\u202e\u2066gnp.exe\x1b[31mred\x07"


class Story:
    """The document of a workflow whose moments are minutes after it was created."""

    def __init__(self, adw_id: str, issue: int, title: str, *, now: datetime, minutes: float = 60.0) -> None:
        self.adw_id, self.issue, self.title = adw_id, issue, title
        self._start = now - timedelta(minutes=minutes)
        self.history: list[HistoryEntry] = []
        self.attempts: dict[str, list[AttemptRecord]] = {name: [] for name in PHASES}
        self.statuses = dict.fromkeys(PHASES, "queued")
        self.rounds = dict.fromkeys(PHASES, 1)
        self.fields: dict[str, object] = {}
        self.costs: dict[str, float] = {}

    def at(self, minute: float) -> str:
        return timestamps.to_text(self._start + timedelta(minutes=minute))

    def move(self, target: str, minute: float, **metadata: object) -> Story:
        before = self.history[-1].to_state if self.history else "pending"
        entry = HistoryEntry(from_state=before, to_state=target, timestamp=self.at(minute), metadata=metadata)
        self.history.append(entry)
        return self

    def tried(self, phase: str, start: float, end: float | None, status: str = "succeeded", **fields) -> Story:
        """Add an attempt; without *end* it runs."""
        self.rounds[phase] = fields.get("round", 1)
        self.statuses[phase] = {"succeeded": "complete", "parked": "retry_wait"}.get(status, status)
        if end is None:
            status = self.statuses[phase] = "running"
        if usd := fields.pop("usd", 0.0):
            fields |= self._paid(phase, usd, fields.pop("summary", ""))
        elif summary := fields.pop("summary", ""):
            fields["report"] = {"summary": summary}
        self.attempts[phase].append(
            AttemptRecord(
                number=len(self.attempts[phase]) + 1,
                status=status,
                started_at=self.at(start),
                ended_at=None if end is None else self.at(end),
                duration=None if end is None else (end - start) * 60,
                owner="worker 4711@here",
                fence=1,
                **fields,
            )
        )
        return self

    def _paid(self, phase: str, usd: float, summary: str) -> dict[str, object]:
        self.costs[phase] = self.costs.get(phase, 0.0) + usd
        tokens = {"input": int(usd * 40_000), "output": int(usd * 9000), "cache_read": int(usd * 300_000)}
        usage = {"provider": "anthropic", "model": MODEL, "tokens": tokens, "cost_usd": usd}
        return {
            "report": {"summary": summary, "cost_usd": usd, "usage": usage, "exit_code": 0},
            "agent": {"name": "claude", "provider": "anthropic", "session_id": f"session-of-{phase}"},
            "model": MODEL,
        }

    def document(self) -> WorkflowDocument:
        phases = tuple(PhaseSpec(name=name, state=STATE_OF_PHASE[name], runner="shell") for name in PHASES)
        spec = WorkflowSpec(name="feature", version="3", phases=phases)
        issue = FrozenIssue(
            title=self.title,
            body="Customers ask for it.\n\n- totals are kept\n- old orders stay as they are\n",
            author="ada",
            url=f"https://github.invalid/acme/shop/issues/{self.issue}",
            labels=["adw", "shop"],
        )
        known = {
            "adw_id": self.adw_id,
            "issue_number": self.issue,
            "repository": "acme/shop",
            "current_state": self.history[-1].to_state if self.history else "pending",
            "state_history": self.history,
            "workflow": WorkflowRef(**workflow_model.freeze(spec)),
            "issue": issue,
            "phases": [self._phase(name) for name in PHASES],
            "cost": Cost(total_usd=sum(self.costs.values()), by_phase=self.costs),
            "created_at": self.at(0),
            "updated_at": self.at(0),
        }
        return WorkflowDocument(**{**known, **self.fields})

    def _phase(self, name: str) -> PhaseRecord:
        own = [one for one in self.attempts[name] if one.round == self.rounds[name]]
        used = [one for one in own if one.status not in {"suspended", "parked"}]
        return PhaseRecord(
            name=name,
            state=STATE_OF_PHASE[name],
            status=self.statuses[name],
            round=self.rounds[name],
            attempts=self.attempts[name],
            attempts_used=len(used),
        )


def put(app: app_module.Home, document: WorkflowDocument, *, output: str = "it says hello\n") -> str:
    """Put *document* into the home of *app*, with what its attempts wrote, and return its id."""
    with app.ownership.create(document):
        pass
    app.catch_up(document.adw_id)
    for phase in document.phases:
        for attempt in phase.attempts:
            files = AttemptFiles(app.settings.state_dir / document.adw_id, phase.name, attempt.number)
            files.make_folder()
            files.write("stdout.log", output.encode())

    return document.adw_id


# --- stories ---------------------------------------------------------------------------------------------------


def reworked(now: datetime, adw_id: str = "aaaa1111") -> WorkflowDocument:
    """A workflow that was retried, parked, paused and sent back, and is at work in test."""
    story = Story(adw_id, 42, "Add a discount code to the checkout page", now=now, minutes=95)
    reset = {"message": "connection reset by peer", "category": "transient", "advice": "It is retried."}
    story.move("planning", 2).tried("plan", 2, 9, usd=0.42, summary="A plan in 6 steps.")
    story.move("building", 9).tried("build", 9, 21, "failed", usd=1.1, error={**reset, "traceback": "line 7"})
    story.tried("build", 23, 26, "parked", error={"message": "429, too many requests", "category": "rate_limit"})
    story.tried("build", 36, 48, usd=1.9, summary="Codes are checked on the server.")
    story.move("linting", 48).tried("lint", 48, 49)
    story.move("testing", 49).tried("test", 49, 53, summary="2 tests are red")
    story.move("building", 53, reason="rework", phase="test")
    story.tried("build", 53, 60, usd=0.8, round=2, summary="Rounding is right now.")
    story.move("linting", 60).tried("lint", 60, 61, round=2)
    story.move("testing", 61).tried("test", 61, 64, "suspended", round=2, error={"message": "lunch", "order": "pause"})
    story.move("paused", 64, reason="lunch").move("testing", 82, reason="resumed", by="ada")
    story.tried("test", 85, None, round=2)
    branch, tree = f"feature-issue-42-adw-{adw_id}-discount", f"/srv/shop/trees/{adw_id}"
    story.fields = {
        "reworks": 1,
        "branch_name": branch,
        "worktree_path": tree,
        "warnings": ["document was passed over: no template is there"],
        "hints": [{"text": "Round half up.", "by": "ada", "at": story.at(70), "phase": "build"}],
        "resources": [
            Resource(key="worktree", kind="worktree", outcome="made", host="build-7", undo={"path": tree}),
            Resource(key="branch", kind="branch", outcome="made", undo={"branch": branch, "base": "main", "start": ""}),
            Resource(key="port:9100", kind="port", outcome="undone", undo={"port": 9100}),
        ],
    }
    return story.document()


def hostile(now: datetime, adw_id: str = "bbbb2222") -> WorkflowDocument:
    """A workflow whose every text was written by somebody who means harm."""
    story = Story(adw_id, 43, NASTY, now=now)
    error = {"message": NASTY, "category": NASTY, "advice": NASTY, "traceback": NASTY}
    story.move("planning", 2).tried("plan", 2, 9, "failed", error=error, summary=NASTY, model=NASTY)
    story.move("failed", 9, reason=NASTY, phase=NASTY)
    story.fields = {
        "branch_name": NASTY,
        "pause_reason": NASTY,
        "terminal_reason": NASTY,
        "warnings": [NASTY],
        "hints": [{"text": NASTY, "by": NASTY, "at": "soon", "phase": NASTY}],
        "resources": [Resource(key=NASTY, kind="branch", outcome=NASTY, host=NASTY, undo={"branch": NASTY})],
    }
    document = story.document()
    issue = FrozenIssue(title=NASTY, body=NASTY * 10, author=NASTY, url="javascript:alert(1)", labels=[NASTY])

    return document.changed(issue=issue)


def finished(now: datetime, adw_id: str = "cccc3333", **fields) -> WorkflowDocument:
    """A workflow that is completed, with a pull request."""
    story = Story(adw_id, 44, "Sort products by price", now=now, minutes=300)
    for number, name in enumerate(PHASES):
        story.move(STATE_OF_PHASE[name], number * 10).tried(name, number * 10, number * 10 + 9, usd=0.1)
    story.move("completed", 60)
    story.fields = {"pr_number": 7, **fields}

    return story.document()
