"""
The event class and the list of all event types.

An event is made inside the step that it describes and stored in the same commit; its key contains workflow and
revision, so storing it twice changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from adws.adw_modules.identifiers import JsonObject, JsonValue


@dataclass(kw_only=True)
class Event:
    """Something that happened to a workflow. `stamp()` fills in key, revision and timestamp."""

    event_type: str  #: a name of EVENT_TYPES
    adw_id: str = ""  #: the workflow
    event_id: str = ""  #: `<adw_id>.<revision>.<n>`, unique for ever
    revision: int = 0  #: revision of the document that this event came with
    created_at: str = ""  #: timestamps.to_text
    status: str = ""  #: state or phase status after the event
    execution_id: str = ""  #: the adw_id, or the run inside it
    parent_execution_id: str | None = None  #: the execution that started this one
    parent_event_id: str | None = None  #: the event that led to this one; for a retry, that of the attempt before
    retry_sequence_id: str | None = None  #: the first event of a chain of retries
    attempt_number: int | None = None  #: counts from 1
    iteration_index: int | None = None  #: counts from 0, in the order of the collection
    total_iterations: int | None = None  #: size of the collection
    node_id: str | None = None  #: key of the phase or step in the workflow definition
    node_name: str | None = None  #: phase or step
    node_type: str | None = None  #: workflow | phase | step | iteration
    catalog_id: str | None = None  #: workflow name and version
    duration: float | None = None  #: seconds
    result: JsonValue = None  #: what came out
    context: JsonObject = field(default_factory=dict)  #: what the decision was made on
    data: JsonObject = field(default_factory=dict)  #: facts of this type of event, see EVENT_TYPES
    meta: JsonObject = field(default_factory=dict)  #: who and what wrote it

    def to_json(self) -> JsonObject:
        """Return the event as a JSON object without its empty fields."""
        said, values = JsonObject(), self.__dict__
        for name in values:  # written at every step: a comprehension would be slower
            value = values[name]
            if value or (value is not None and value not in _LEFT_OUT):
                said[name] = value

        return said

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> Event:
        """Return the event in *data*, ignoring unknown keys."""
        known = {name: data[name] for name in FIELD_NAMES if name in data}

        return cls(**known)  # type: ignore[arg-type]  # values come from to_json, checked by the round-trip test


_LEFT_OUT: tuple[JsonValue, ...] = ("", {})
FIELD_NAMES: tuple[str, ...] = tuple(f.name for f in fields(Event))


def stamp(events: Sequence[Event], *, adw_id: str, revision: int, created_at: str) -> tuple[Event, ...]:
    """Return *events* in order, with key, workflow, revision and timestamp filled in."""
    return tuple(
        [
            Event(
                **{
                    **event.__dict__,
                    "adw_id": adw_id,
                    "event_id": f"{adw_id}.{revision}.{index}",
                    "revision": revision,
                    "created_at": created_at,
                    "execution_id": event.execution_id or adw_id,
                }
            )
            for index, event in enumerate(events)
        ]
    )


#: Keys of `context` -> their meaning. It has no other names that begin with `_`.
CONTEXT_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "execution_id": "The execution.",
        "parent_execution_id": "The one that started it.",
        "catalog_id": "Workflow and version.",
        "workload": "The values of `[workflows.NAME.workload]`.",
        "vars": "What steps have set.",
        "_step_results": "Of each step so far what kind of result it gave: `has_data`, `status`, `data_type`.",
    }
)
#: Keys of `meta` -> their meaning.
META_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "retry": "`has_config`; of a call `attempt_number`, `max_attempts`, `retry_type` (the rule that decided: "
        "`on_error`, `on_success`, `interrupted`) and `will_retry`; of a phase how many attempts are used and allowed.",
        "execution": "`duration_seconds` and `completed_at` of a call or an attempt.",
        "queue": "`queue_id` (the run, or the task that is done outside) and `worker_id` of who worked on it.",
        "error": "`message` (at most 500 characters), `has_stack_trace` and `failed_at`.",
        "call": "Of a call: `status`, `exit_code`, `rows`, `usage` of an agent.",
        "total_iterations": "At the end of a step.",
        "completed_iterations": "How many of them succeeded.",
        "success_rate": "Their share.",
        "completed_at": "When the step ended.",
        "rebuilt_from": "What `adw db rebuild` made the event from.",
    }
)

#: Name -> meaning. The documentation page is generated from this table.
EVENT_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "workflow_created": "A workflow was created and owns its issue.",
        "work_asked_for": "A delivery asked for this workflow; `data`: guid, cause, person.",
        "command_obeyed": "What a delivery asked for was done; `data`: guid.",
        "action_asked": "A person acted on the dashboard; `data`: action, person, address.",
        "followup_begun": "A review or red checks sent the work on; `data`: its number, who asked.",
        "attempt_waits": "An attempt waits for work elsewhere; `data`: for what, and until when at most.",
        "attempt_went_on": "What an attempt waited for is over.",
        "iterator_started": "The calls of a step can begin; `data`: size of the collection, `mode`, `concurrency`, "
        "`chunk_size`, `on_failure`, `retry_config`, sink.",
        "iteration_started": "The first call for an element; `data`: the element.",
        "action_started": "A call is about to be made; `attempt_number` counts the calls of its iteration. Of an "
        "external phase: its task was claimed, or the job reports so.",
        "action_completed": "A call succeeded; `data.retry`: whether another one follows, such as the next page.",
        "action_failed": "A call failed, or its worker died; `data`: the error, and whether it is repeated.",
        "action_suspended": "A call was stopped or not begun; it does not count, and is made later.",
        "retry_sequence_completed": "The calls of an iteration succeeded; `data`: their number, where `result` is, and "
        "`is_cut` when the limit was reached with more to come.",
        "retry_limit_reached": "After `max_attempts` calls the condition of `on_success` still holds; what was "
        'collected is passed on (`on_limit = "accept"`). `data`: `is_cut`, number of calls and pages.',
        "retry_sequence_exhausted": "The calls of an iteration are used up, or the same failure came too often.",
        "retry_sequence_failed": "Calling again does not help, or makes no progress; `data`: why.",
        "iteration_completed": "An iteration succeeded with `result`. `data.is_cut`: its calls reached `max_attempts` "
        "with more to come.",
        "iteration_failed": "An iteration failed; `data`: why.",
        "iteration_cancelled": "An iteration was not begun, or its next call not made; `data`: why.",
        "iterator_cancel_requested": "No further call of a step is begun; `data`: why.",
        "iterator_completed": "All calls of a step are over, and it succeeded; `data`: how many succeeded, failed and "
        "were `cut` at their limit, and where `result` is.",
        "iterator_failed": "All calls of a step are over, and too many failed; `data`: how many.",
        "iterator_cancelled": "A step was cancelled; `data`: why.",
        "step_started": "A step of a phase begins.",
        "step_completed": "A step of a phase is over; `result`, or a part of it when that is large.",
        "step_failed": "A step of a phase failed, and with it the attempt; `data`: the error.",
        "step_skipped": "A step was left out, because its condition does not hold.",
        "state_changed": "The workflow changed its state; `data`: `from` and `to`.",
        "egress_denied": "The sandbox of a phase or gate denied connections; `data`: `host` with port, `count`.",
        "rules_reloaded": "The project's rules for agents (`CLAUDE.md`, `AGENTS.md` and the like) changed since the "
        "last attempt; `data`: the hash of all (`sha256`) and of each changed file, null for a removed one.",
        "state_migrated": "An older document was brought to the current schema version; `data`: the versions.",
        "state_set": "A person changed fields with `adw state set`; `data`: the old values.",
        "document_recovered": "The document was missing or corrupt; the last good revision is used.",
        "document_quarantined": "A corrupt document was moved aside; `data`: path, reason.",
        "document_foreign": "A document changed by hand was kept aside and not applied; `data`: path.",
        "lease_taken_over": "A new owner took the workflow over; `data`: the former owner, why.",
        "lock_released": "A person released the issue lock; `data`: who held it.",
        "workflow_imported": "The document was imported from an older ADW set-up; `data`: path.",
        "backup_restored": "The document came back from a backup.",
        "attempt_started": "An attempt at a phase is recorded and about to run.",
        "attempt_succeeded": "An attempt succeeded; `duration` is its time.",
        "attempt_failed": "An attempt failed; `data`: the classified error.",
        "attempt_interrupted": "A crash cut an attempt off, or nobody reported in time. It counts.",
        "left_processes_ended": "Processes of an attempt that was closed on another machine are gone; `data`: the "
        "attempt, what was found.",
        "attempt_suspended": "An attempt was stopped on request; `data`: the request. It does not count.",
        "attempt_parked": "A quota is used up, or network, forge or provider is not available; `data`: until when the "
        "phase waits, its deadline. The attempt does not count.",
        "doctor_decided": "The advisor decided about a failed attempt; `data`: decision, reason.",
        "cost_added": "What an attempt or the advisor used was added to the cost; `data`: amount, provider, model, "
        "tokens.",
        "cost_unclear": "A result does not show whether its cost is of the attempt or of the whole conversation; all "
        "of it is counted. `data`: the message.",
        "phase_completed": "A phase is complete, its gates passed; `duration` since its first attempt.",
        "phase_failed": "A phase failed for good; `data`: terminal reason; `duration` since its first attempt.",
        "phase_skipped": "A phase that is not required was left out; `data`: why.",
        "retry_scheduled": "The phase is retried; `data`: when, why, category of the error.",
        "rework_asked": "A phase sent the work back to an earlier one.",
        "approval_asked": "A phase waits for a person: adw approve or adw reject.",
        "approval_given": "A person approved; `data`: who, what they said.",
        "approval_refused": "A person rejected; `data`: who, what they said.",
        "hint_given": "A person gave a hint for the next attempt.",
        "issue_read": "The issue had no text at the start and was read again; `data`: title.",
        "budget_set": "A person set what the workflow may cost; `data`: the amount, the one before.",
        "budget_warning": "Four fifths of what the workflow may cost are spent; `data`: the cap. Once per cap.",
        "grant_given": "A person allowed more attempts or retries; `data`: how many.",
        "resumed": "A stopped workflow continues; `data`: from where.",
        "workflow_continued": "A workflow continues with the phases of another definition; `data`: its name, phases, "
        "who asked, the definition before.",
        "effect_intended": "An external effect is about to be made; `data`: key, kind.",
        "effect_settled": "The outcome of an effect: made, adopted, failed, undone, kept, gone or forgotten.",
        "effect_observed": "Something appeared during a phase that adw did not make, such as a ref.",
        "work_committed": "What a phase changed is on the branch; `data`: head, adw's commit.",
        "worktree_damaged": "git's files of a worktree are empty or gone: it is made again from its branch; `data`: "
        "path, what was wrong, commit, the ref that keeps its files.",
        "stale_locks_removed": "Locks that a dead git left on the workflow's branch and worktree are removed; `data`: "
        "names.",
        "base_checked": "The gates ran on the base commit before the first agent; `data`: the commit, and for each "
        "gate whether it passed, why not, and whether an earlier check is used.",
        "work_discarded": "What gates, or a phase whose changes are not committed, left in the worktree was discarded; "
        "`data`: phase, files (at most 50), their number, the ref that keeps commits, after a crash the file with a "
        "patch.",
        "work_salvaged": "After a restart the worktree was not what the last recorded commit has; `data`: the `ref` "
        "that keeps what was there, the `commit` that is restored, why, which files differ.",
        "work_moved": "The work continues on another host from the last commit on the remote, without what was not "
        "committed; `data`: from, to.",
        "work_not_published": "The last commit could not be pushed: only its host can continue it; `data`: host, why.",
        "worktree_released": "The worktree of a completed workflow was removed, because its branch is pushed; `data`: "
        "path, the patch of what was not committed.",
        "worktree_kept": "The worktree of a completed workflow could not be removed; `data`: path, why.",
        "comment_failed": "The comment on the issue could not be updated; `data`: why. The work continues.",
        "rollback_begun": "A rollback was begun; `data`: reason, steps.",
        "rollback_step": "A step of a rollback is over; `data`: outcome.",
        "host_forgotten": "A person gave up what the workflow has on a host; `data`: host, who, why, what is left.",
        "rolled_back": "Nothing is left of the workflow but what was kept on request.",
        "breaker_opened": "An attempt opened a circuit breaker; `data`: service, until when, why.",
        "breaker_closed": "An attempt closed a circuit breaker; `data`: service.",
        "breaker_waited": "A phase waits for a circuit breaker, without using an attempt; `data`: service, until when.",
        "recovered": "A workflow whose owner was gone can continue; `data`: the evidence.",
        "run_recovered": "The run of a dead worker was settled; `data`: the run, `from`, `to`, what was known about "
        "the worker, mode, why.",
    }
)


def facts_of(event: Event) -> str:
    """Return the data of an event as short `name=value` text."""
    facts = [f"{name}={_fact(value)}" for name, value in sorted(event.data.items()) if value not in (None, "")]
    if event.duration is not None:
        facts.append(f"duration={event.duration:.3f}")

    return " ".join(facts)


def _fact(value: JsonValue) -> str:
    """Return one value as text: of a classified error its message; a text with spaces in quotes."""
    if isinstance(value, dict) and "message" in value:
        value = value["message"]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)

    return json.dumps(text, ensure_ascii=False) if isinstance(value, str) and (" " in text or not text) else text
