"""
What carrying out deliveries needs, and what comes of one.

Words of the conductors of deliveries; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules.command_rules import Access
from adws.adw_modules.interfaces import Catalogue, Clock, IssueLocks, StateStore

if TYPE_CHECKING:
    from adws.adw_modules.coordination.answers import Answers
    from adws.adw_modules.coordination.control import Control
    from adws.adw_modules.coordination.launch import Launcher
    from adws.adw_modules.coordination.merged import CleanUp
    from adws.adw_modules.forge import Forge, PullRequest
    from adws.adw_modules.interfaces_engine import RunQueue
    from adws.adw_modules.rollback_rules import Wishes
    from adws.adw_modules.runs import Run
    from adws.adw_modules.trigger import Deliveries
    from adws.adw_modules.workflow import WorkflowSpec

DONE, REFUSED, FAILED = "done", "refused", "failed"


class Claims(Protocol):
    """Which workflow has which issue (`WorkflowOwnership`)."""

    def prove_continuing(self, adw_id: str, issue_number: int | str, repository: str = "") -> None:
        """Return when *adw_id* may go on with that issue; raise StateNotFound, NotTheLockOwner or IssueLocked."""

    def forget_unwritten(self, adw_id: str) -> bool:
        """Take a workflow away whose creator died before its first write; raise WorkflowBusy while he may live."""


class RollbackQueue(Protocol):
    """Queues rollbacks (`RollbackRuns.queue`)."""

    def __call__(self, adw_id: str, wishes: Wishes, *, by: str = "", wait_seconds: float = 30.0) -> Run:
        """Return the durable run that will roll the workflow back; raise WorkflowBusy when its owner stays at it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryOptions:
    """How deliveries are carried out."""

    repository: str = ""  #: that of the home
    access: Access = field(default_factory=Access)
    default_workflow: str = "sdlc"
    has_followups: bool = False  #: reviews and red checks send work on
    max_followups: int = 3
    max_retries: int = 3
    max_reworks: int = 3
    max_total_attempts: int | None = None
    max_minutes: float | None = None
    ttl_seconds: float = 30.0  #: of a claim


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryParts:
    """What carrying out deliveries works with."""

    clock: Clock
    deliveries: Deliveries
    runs: RunQueue
    store: StateStore
    catalogue: Catalogue
    locks: IssueLocks
    claims: Claims
    launcher: Launcher
    control: Control
    clean_up: CleanUp
    roll_back: RollbackQueue
    workflow: Callable[[str], WorkflowSpec]  #: raises UnknownWorkflow
    forge: Callable[[], Forge]  #: opened late, and may fail then
    answers: Callable[[], Answers]
    made_by_us: Callable[[PullRequest], str]  #: the workflow that a pull request says it is of, "" when it is not ours
    options: DeliveryOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Came:
    """What came of a delivery."""

    status: str  #: done | refused | failed
    text: str  #: one sentence
    adw_id: str = ""
    answer: str = ""  #: what is said instead of the sentence
    topic: str = ""  #: what is said about one is said once; "": each delivery gets an answer of its own
    is_silent: bool = False  #: nothing is said
    is_forbidden: bool = False  #: whoever asked may not: he is told once
