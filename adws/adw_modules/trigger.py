"""
What comes in from outside and asks for work: a delivery, and what was made of it.

Nouns only. `adw_triggers.deliveries` reads bytes and says which of these they are; `Deliveries` keeps them; the work
itself is done by a worker, which asks the forge whether whoever wants it may have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from adws.adw_modules.errors import AdwError
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.runs import Run

#: What a comment or a page can ask of a workflow that is there.
COMMANDS = (
    "resume",
    "stop",
    "pause",
    "rollback",
    "retry",
    "status",
    "approve",
    "reject",
    "abandon",
    "clean_up",
    "rework",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """Who wants something."""

    login: str
    is_bot: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class IssueText:
    """An issue as the payload has it: what is edited later changes nothing."""

    number: int
    title: str
    body: str
    author: str = ""
    url: str = ""
    labels: tuple[str, ...] = ()
    is_pull_request: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """A workflow is to be started for an issue, or an older one to be continued."""

    repository: str
    issue: IssueText
    actor: Actor  #: who labelled, commented or opened: his rights count
    workflow: str = ""  #: name or alias, "": the default one
    adw_id: str = ""  #: of the workflow to continue, "": a new one
    model_set: str = ""
    hint: str = ""  #: the change that is asked for, in words
    cause: str = ""  #: label | comment | opened | assigned | poll
    intent: str = ""  #: the same for two deliveries that ask for the same: (repository, issue, comment or label event)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """Something is to be done to the workflow of an issue or pull request."""

    kind: str  #: one of COMMANDS
    repository: str
    number: int  #: of the issue or pull request
    actor: Actor
    adw_id: str = ""  #: "": the one that works on it
    text: str = ""  #: a hint, a reason
    head_sha: str = ""  #: of what CI or a reviewer looked at
    cause: str = ""  #: comment | pull_request | review | checks | closed
    intent: str = ""
    answers: bool = True  #: a comment says what came of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignored:
    """Nothing is to be done."""

    reason: str  #: in one sentence


Verdict: TypeAlias = RunRequest | Command | Ignored


@dataclass(frozen=True, kw_only=True, slots=True)
class NewDelivery:
    """A delivery that passed its checks and is about to be kept."""

    guid: str
    event: str
    action: str
    hook: str  #: which hook sent it, "" when it does not say
    body: bytes
    body_hash: str  #: SHA-256, hexadecimal
    sender: str
    repository: str
    number: int | None
    verdict: str  #: run | command | ignored
    reason: str  #: why it is ignored; else what is wanted, in words
    request: JsonObject = field(default_factory=dict)  #: the RunRequest or Command, as JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryRow:
    """A delivery that is kept."""

    guid: str
    event: str
    action: str
    sender: str
    repository: str
    number: int | None
    verdict: str
    reason: str
    status: str  #: received | done | refused | failed
    outcome: str  #: what came of it, in one sentence
    run_id: int | None
    adw_id: str  #: of the workflow it started or meant, "" for none
    received_at: str
    finished_at: str | None = None
    deliveries: int = 1  #: how often it came


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A delivery that is to be kept, and the ids that were chosen for it."""

    delivery: NewDelivery
    run_id_of: str  #: of its run, if it asks for work
    adw_id: str  #: of the workflow which it would start


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """The answer to a delivery; the same for each time that it comes."""

    row: DeliveryRow
    is_new: bool  #: False: it was here before, and nothing was started


class AskedBefore(NamedTuple):
    """How much work was asked for lately."""

    by_sender: int
    about_issue: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptDelivery:
    """All that is kept of a delivery, for making a database again."""

    row: DeliveryRow
    hook: str
    intent: str
    body_hash: str
    request: JsonObject
    body: bytes | None  #: None: not kept


class Deliveries(Protocol):
    """Deliveries, each kept with the run that it asks for in one transaction."""

    def accept(self, delivery: NewDelivery, *, run_id_of: str, adw_id: str) -> Accepted:
        """
        Keep *delivery* and, when it asks for work, enqueue a run of kind `delivery` under the id *run_id_of*.

        *adw_id* is that of the workflow which it would start. The same guid, the same body from the same hook, or the
        same intent within the time that they are kept, gets the answer of the first. Durable when this returns. One
        guid with another body than before raises DeliveryConflict.
        """

    def accept_all(self, offers: Sequence[Offer]) -> tuple[Accepted | AdwError, ...]:
        """Return `accept` of each, or what that raises, in their order; all of them in one commit."""

    def get(self, guid: str) -> DeliveryRow | None:
        """Return a delivery."""

    def request_of(self, guid: str) -> JsonObject | None:
        """Return what was made of it, as JSON."""

    def body_of(self, guid: str) -> bytes | None:
        """Return its bytes, None when they are not kept any more."""

    def finish(self, guid: str, *, status: str, outcome: str, adw_id: str = "") -> None:
        """Write down what came of it: done, refused or failed. Raises DeliveryNotFound."""

    def again(
        self, guid: str, *, run_id_of: str, asked_by: str, instead: NewDelivery | None = None, adw_id: str = ""
    ) -> Run:
        """
        Enqueue a run for a delivery that is kept, whatever came of it before; the one it has when that is not over.

        *instead* is what is made of its body today, and *adw_id* the workflow that it would start, for one that was
        ignored. Raises DeliveryNotFound, and UsageError for one that asks for nothing.
        """

    def page(self, *, limit: int = 50, before: str = "", verdicts: Sequence[str] = ()) -> tuple[DeliveryRow, ...]:
        """Return deliveries, newest first; *before* is the guid of the last one seen."""

    def count_since(self, since: str, *, sender: str = "", repository: str = "", number: int | None = None) -> int:
        """Return how many asked for work since a moment."""

    def asked_since(self, since: str, arrived: Sequence[NewDelivery]) -> tuple[AskedBefore, ...]:
        """Return the same for the sender and for the issue of each delivery: for limits, and against loops."""

    def forget_before(self, moment: str) -> int:
        """Delete those older than *moment*, but for those whose run is not over, and return how many."""
