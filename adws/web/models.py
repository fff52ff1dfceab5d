"""
Requests and answers of the API: the models of its OpenAPI.

Answers are validated from the attributes of adw's own data types; a field that is not known is null, never left out.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from adws.adw_modules import views
from adws.adw_modules.queue.model import MAX_PRIORITY

#: Longest text that a person may send along.
_LONGEST = 10_000
#: What `locks.check_issue_number` takes at most.
_MOST_ISSUE_NUMBER = 10**18 - 1

IssueNumber = Annotated[int, Field(ge=1, le=_MOST_ISSUE_NUMBER)]
Note = Annotated[str, Field(max_length=_LONGEST)]
EnumValue = Annotated[str, BeforeValidator(lambda member: member.value)]
TextOrNull = Annotated[str | None, BeforeValidator(lambda text: text or None)]
OwnerName = Annotated[str | None, BeforeValidator(views.owner_name)]
KnownMoment = Annotated[str | None, BeforeValidator(views.known_moment)]

Dollars = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)]


# --- workflows ---------------------------------------------------------------------------------------------------


class WorkflowResult(BaseModel):
    """Where a workflow is, what it cost and what it made."""

    phase: str | None = Field(description="the phase it is in, waits in or failed in; null when every phase is over")
    branch_name: str | None
    pr_number: int | None
    pull_request_url: str = Field(description='"": there is none that a browser may be sent to')
    cost_usd: float
    work_seconds: float = Field(description="of all attempts at all phases")


class WorkflowLine(BaseModel):
    """A workflow in a list."""

    adw_id: str
    state: str
    repository: str = Field(description='owner/name, "" for the repository of this home')
    issue_number: int | None
    title: str
    workflow: str
    revision: int
    owner: OwnerName = Field(description="who works on it, in words")
    created_at: KnownMoment
    updated_at: KnownMoment
    result: WorkflowResult | None = Field(
        default=None, description="null: with_results was not set, or the document cannot be read"
    )


class WorkflowPage(BaseModel):
    """Workflows, newest first."""

    workflows: list[WorkflowLine]
    next_cursor: str | None = Field(description="pass it as cursor for the next page; null on the last one")


class Attempt(BaseModel):
    """One attempt at a phase."""

    number: int
    round: int
    status: str
    started_at: str
    ended_at: str | None
    duration: float | None = Field(description="seconds")
    model: str | None
    error: str | None
    category: str | None


class Phase(BaseModel):
    """A phase of a workflow."""

    name: str
    state: str
    status: str
    round: int
    attempts_used: int
    max_attempts: int = Field(description="with those that a person granted")
    last_failure_reason: str | None
    terminal_reason: str | None
    retry_at: str | None
    wait_reason: str | None
    attempts: list[Attempt]


class Owner(BaseModel):
    """Who works on a workflow."""

    host: str
    pid: int
    role: str
    liveness: str
    lease_seconds_left: float


class Workflow(BaseModel):
    """One workflow in detail."""

    adw_id: str
    state: str
    repository: str
    issue_number: int | None
    title: str
    workflow: str | None
    revision: int
    resume_state: str | None
    failed_phase: str | None
    terminal_reason: str | None
    pause_reason: str | None
    waiting_phase: str | None = Field(description="the phase that waits for approval")
    retry_count: int
    max_retries: int
    reworks: int
    max_reworks: int
    branch_name: str | None
    worktree_path: str | None
    pr_number: int | None
    cost_usd: float
    is_cost_estimated: bool
    warnings: list[str]
    hints: list[dict[str, JsonValue]]
    rollback_blocked_by: list[str] | None = Field(description="null: no rollback was begun")
    phases: list[Phase]
    owner: Owner | None
    notices: list[Annotated[str, BeforeValidator(str)]] = Field(
        description="what was noticed while the document was read"
    )
    created_at: str | None
    updated_at: str | None


class FileDiff(BaseModel):
    """The change of one file."""

    name: str
    status: str = Field(description="added, changed or deleted")
    added: int | None = Field(description="lines; null: the file is binary")
    deleted: int | None
    patch: str = Field(description="hunks of a unified diff, without secrets that adw knows")
    left_out: str = Field(description='why the patch is missing or cut, "" when it is complete')


class CommitRange(BaseModel):
    """An attempt that changed something."""

    phase: str
    attempt: int
    head: str = Field(description="the last commit of the attempt")


class WorkflowDiff(BaseModel):
    """What a workflow changed, in all or by one attempt."""

    adw_id: str
    phase: str = Field(description='of the attempt that was asked for; "": all changes')
    attempt: int
    base: str | None = Field(description="commit; null: there is no diff, and problem says why")
    head: str | None
    added: int = Field(description="lines of all files")
    deleted: int
    file_count: int = Field(description="changed files; files has the first of them")
    is_cut: bool = Field(description="whether files or parts of their patches are left out")
    files: list[FileDiff]
    attempts: list[CommitRange] = Field(description="attempts whose changes can be asked for, in order")
    problem: str | None = Field(description="why there is no diff; null: there is one, or nothing was committed yet")


class _Asked(BaseModel):
    """A request body: strict types, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NewWorkflow(_Asked):
    """A workflow that is to be started."""

    issue_number: IssueNumber | None = Field(default=None, description="null: there is a task instead")
    task: Annotated[str, Field(max_length=200_000)] = Field(
        default="", description="what to do, instead of an issue; the first line is the title"
    )
    workflow: Annotated[str, Field(max_length=100)] = Field(default="", description='"": the default one')
    adw_id: Annotated[str, Field(max_length=64)] = Field(
        default="", description='the workflow of the issue that is continued with these phases; "": a new one'
    )
    repository: Annotated[str, Field(max_length=200)] = Field(default="", description='"": that of this home')
    title: Note = Field(default="", description="wins over the forge's")
    body: Annotated[str, Field(max_length=200_000)] = Field(default="", description="wins over the forge's")
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    again: bool = Field(default=False, description="start although the issue has an open pull request of ours")
    in_place: bool = Field(default=False, description="work in the home itself, where that is in no git repository")
    by: Annotated[str, Field(max_length=100)] = Field(default="", description="who asks, for the history")


class Started(BaseModel):
    """A workflow that waits for a worker."""

    adw_id: str
    state: str
    run_id: int | None


class Order(_Asked):
    """The reason for an action on a workflow."""

    text: Note = Field(default="", alias="reason")
    by: Annotated[str, Field(max_length=100)] = Field(default="", description="who asks, for the history")


class StopOrder(Order):
    """A stop."""

    is_urgent: bool = Field(default=False, description="kill its processes without asking them to end first")


class Resume(_Asked):
    """Resuming a workflow."""

    text: Note = Field(default="", alias="hint", description="what to do differently")
    from_phase: Annotated[str, Field(max_length=100)] = ""
    workflow: Annotated[str, Field(max_length=100)] = Field(
        default="", description="continue it with the phases of this workflow, also when it is completed"
    )
    budget: Dollars | None = Field(default=None, alias="budget_usd", description="what it may cost in all from now on")
    by: Annotated[str, Field(max_length=100)] = ""


class Retry(_Asked):
    """Retrying a failed workflow."""

    text: Note = Field(default="", alias="hint")
    grant: Annotated[int, Field(ge=0, le=100)] = Field(default=0, description="further attempts that it gets")
    budget: Dollars | None = Field(default=None, alias="budget_usd")
    by: Annotated[str, Field(max_length=100)] = ""


class Decision(_Asked):
    """A decision about a phase that waits for approval."""

    text: Note = Field(default="", description="for the history; after a rejection a hint for the next attempt")
    by: Annotated[str, Field(max_length=100)] = ""


AnyOrder: TypeAlias = Order | Resume | Retry | Decision


class RollbackOrder(Order):
    """Rolling a workflow back."""

    keep_branch: bool = False
    force: bool = Field(default=False, description="continue although work cannot be salvaged")
    forget_hosts: list[str] = Field(
        default_factory=list, description="machines that no longer exist: what is on them is left, and listed"
    )


class Done(BaseModel):
    """The result of an order."""

    adw_id: str
    state: str
    is_done: bool = Field(description="false: the worker that owns it was asked, and the request is kept")
    message: str
    run_id: int | None = Field(default=None, description="the run that continues it")
    request_id: int | None = Field(default=None, description="what its owner was asked")


# --- the rest ----------------------------------------------------------------------------------------------------


class RunLine(BaseModel):
    """A queued, running or finished run."""

    run_id: int
    adw_id: str
    kind: str
    state: EnumValue
    priority: int
    not_before: TextOrNull
    attempts: int
    owner: OwnerName
    reason: str
    asked_by: str
    created_at: str
    updated_at: str
    started_at: str | None
    finished_at: str | None
    demands: Annotated[dict[str, JsonValue], BeforeValidator(lambda demands: demands.to_json())] = Field(
        description="host and tags that its worker must have"
    )
    labels: Annotated[list[str], BeforeValidator(sorted)] = Field(description="what limits count it under")
    losses: int = Field(description="how often a worker vanished with it")
    parent_run_id: int | None


class RunPage(BaseModel):
    """Runs, newest first."""

    runs: list[RunLine]
    next_cursor: str | None


class RunnerLine(BaseModel):
    """A worker as it registered itself."""

    runner_id: str
    host: str
    pid: int
    tags: list[str]
    state: str = Field(description="online, draining, silent or gone")
    busy: int
    places: int
    version: str
    started_at: str
    heartbeat_at: str
    silent_seconds: float


class RunnerList(BaseModel):
    """Workers, the oldest first."""

    runners: list[RunnerLine]


class EventPage(BaseModel):
    """Events of a workflow, in the order they happened."""

    events: list[dict[str, JsonValue]]
    next_cursor: str | None = Field(description="pass it as cursor for those that follow; null when none do yet")


class LockLine(BaseModel):
    """An issue lock and the workflow that holds it."""

    repository: str
    issue_number: int
    adw_id: str
    acquired_at: str
    owner: str | None
    liveness: str


class LockList(BaseModel):
    """Every issue lock."""

    locks: list[LockLine]


class QuotaLine(BaseModel):
    """One limit and how much of it is used."""

    name: str
    used: float | None = Field(description="with what is reserved and expected; null: unknown here")
    reserved: float = Field(description="of that, what workflows under way are expected to need besides")
    expected: float = Field(description="of that, what one more workflow is expected to need")
    limit: float
    unit: str
    is_exceeded: bool
    detail: str


class QuotaList(BaseModel):
    """Every limit."""

    quotas: list[QuotaLine]
    is_exceeded: bool


class BreakerLine(BaseModel):
    """The circuit breaker of an external service."""

    name: str
    state: str
    failures: int
    opened_at: str | None
    reopens_at: str | None
    reason: str


class BreakerList(BaseModel):
    """Every breaker."""

    breakers: list[BreakerLine]


class DeliveryLine(BaseModel):
    """A webhook delivery that is kept."""

    guid: str
    event: str
    action: str
    sender: str
    repository: str
    number: int | None
    verdict: str
    reason: str
    status: str
    outcome: str
    run_id: int | None
    adw_id: str
    deliveries: int = Field(description="how often it came")
    received_at: str
    finished_at: str | None


class DeliveryPage(BaseModel):
    """Deliveries, newest first."""

    deliveries: list[DeliveryLine]
    next_cursor: str | None


class RecoverOrder(_Asked):
    """Options of a recovery."""

    mode: Literal["none", "stale", "all"] | None = Field(default=None, description="null: that of the settings")
    threshold: Annotated[float, Field(ge=0, le=366 * 86_400, allow_inf_nan=False)] | None = Field(
        default=None, description="seconds; null: that of the settings"
    )
    force: bool | None = Field(default=None, description="with mode all: take work also from owners that live")
    dry_run: bool = Field(default=False, description="change nothing, and show what would be done")
    by: Annotated[str, Field(max_length=100)] = Field(default="", description="who asks, for the log")


class RecoveredRuns(BaseModel):
    """Which runs were recovered."""

    reset_to_pending: list[int]
    marked_failed: list[int]
    marked_stopped: list[int]


class RecoveryLine(BaseModel):
    """One action of a recovery, done or planned."""

    adw_id: str
    action: str
    why: str
    run_id: int | None
    from_state: str | None = Field(alias="from")
    to_state: str | None = Field(alias="to")
    evidence: dict[str, JsonValue]


class Recovered(BaseModel):
    """The result of a recovery; the same fields in every mode."""

    mode: str
    dry_run: bool
    reset_to_pending: int
    marked_failed: int
    marked_stopped: int
    run_ids: RecoveredRuns
    steps: list[RecoveryLine]


class SessionLine(BaseModel):
    """A session of an agent in one attempt."""

    session_id: str
    adw_id: str
    run_id: int | None
    phase: str
    attempt_number: int
    agent: str
    host: str
    status: EnumValue
    executor_session_id: TextOrNull = Field(description="what the agent itself calls it")
    reason: str
    started_at: str
    ended_at: str | None


class SessionList(BaseModel):
    """Sessions of agents, oldest first."""

    sessions: list[SessionLine]


class Health(BaseModel):
    """Whether the server can do its work."""

    status: str = Field(description="ok, or what is wrong")
    version: str
    database: str
    workers_wanted: int
    workers_running: int
