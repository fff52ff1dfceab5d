"""
The one event type, and the list of everything that can happen.

An event is made inside the step that it describes and stored in the same commit; its key says which revision of which
workflow it belongs to, so storing it twice changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from adws.adw_modules.identifiers import JsonObject, JsonValue


@dataclass(kw_only=True)
class Event:
    """Something that happened to a workflow. `stamp()` fills in the key, the revision and the moment."""

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
        for name in values:  # each step writes some: a comprehension would be a call more
            value = values[name]
            if value or (value is not None and value not in _LEFT_OUT):
                said[name] = value

        return said

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> Event:
        """Return the event written in *data*; unknown keys are left out."""
        known = {name: data[name] for name in FIELD_NAMES if name in data}

        return cls(**known)  # type: ignore[arg-type]  # values come from to_json, checked by the round-trip test


_LEFT_OUT: tuple[JsonValue, ...] = ("", {})
FIELD_NAMES: tuple[str, ...] = tuple(f.name for f in fields(Event))


def stamp(events: Sequence[Event], *, adw_id: str, revision: int, created_at: str) -> tuple[Event, ...]:
    """Return *events* with key, workflow, revision and moment filled in, in their order."""
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


#: Keys of `context` -> what they mean. Other names that begin with `_` are never in it.
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
#: Keys of `meta` -> what they mean.
META_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "retry": "`has_config`; of a call `attempt_number`, `max_attempts`, `retry_type` (the rule that decided: "
        "`on_error`, `on_success`, `interrupted`) and `will_retry`; of a phase how many attempts are used and allowed.",
        "execution": "`duration_seconds` and `completed_at` of a call or an attempt.",
        "queue": "`queue_id` (the run, or the task that is done outside) and `worker_id` of who worked on it.",
        "error": "`message` (at most 500 characters), `has_stack_trace` and `failed_at`.",
        "call": "What the tool and the sink say of a call: `status`, `exit_code`, `rows`, `usage` of an agent.",
        "total_iterations": "Of the end of a step: how many iterations there were.",
        "completed_iterations": "Of the end of a step: how many went well.",
        "success_rate": "Of the end of a step: the share of these.",
        "completed_at": "Of the end of a step: when that was.",
        "rebuilt_from": "What `adw db rebuild` made the event from.",
    }
)

#: name -> what it means. The documentation page is made from this table.
EVENT_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "workflow_created": "A workflow was created and owns its issue.",
        "work_asked_for": "A delivery asked for this workflow; `data` has its guid, what caused it and who asked.",
        "command_obeyed": "What a delivery asked for was done; `data` has its guid.",
        "action_asked": "A person did something to it on the dashboard; `data` has what, who and from where.",
        "followup_begun": "A review or red checks sent the work on; `data` has which follow-up it is and who asked.",
        "attempt_waits": "An attempt waits for work that others do; `data` says for what, and until when at most.",
        "attempt_went_on": "What an attempt waited for is over, and it goes on.",
        "iterator_started": "The calls of a step can begin; `data` has the size of the collection, how it is gone "
        "through (`mode`, `concurrency`, `chunk_size`, `on_failure`), the rules of `retry` (`retry_config`) and the "
        "sink.",
        "iteration_started": "An element of a collection is taken up for the first time; `data` has the element.",
        "action_started": "A call is about to be made; `attempt_number` counts the calls of its iteration. Of a phase "
        "that is done outside of adw: its task was claimed, or the job reports so.",
        "action_completed": "A call ended well; `data.retry` says whether another one follows, such as the next page.",
        "action_failed": "A call failed, or its worker vanished; `data` has the error, and whether it is made again.",
        "action_suspended": "A call was ended on order, or not begun; it does not count, and is made later.",
        "retry_sequence_completed": "The calls of an iteration ended well; `data` has how many there were, and "
        "`result` where what they gave is; `data.is_cut`: the limit was reached, and there is more.",
        "retry_limit_reached": "A warning: `max_attempts` calls are made and the condition of `on_success` still "
        'holds, so the sequence ends and passes on what it collected (`on_limit = "accept"`); `data` has `is_cut` and '
        "how many calls and pages there were.",
        "retry_sequence_exhausted": "The calls of an iteration are used up, or the same failure came too often.",
        "retry_sequence_failed": "Calling again does not help, or makes no progress; `data` has why.",
        "iteration_completed": "An iteration is over, and went well; `result` is what it gave. `data.is_cut`: its "
        "calls reached `max_attempts`, and there is more.",
        "iteration_failed": "An iteration is over, and failed; `data` has why.",
        "iteration_cancelled": "An iteration was not begun any more, or its next call not made; `data` has why.",
        "iterator_cancel_requested": "Nothing more of a step is begun; `data` has why.",
        "iterator_completed": "Every call of a step is over, and it went well; `data` has how many did and did not "
        "and how many were `cut` at their limit of calls, and `result` where the results are.",
        "iterator_failed": "Every call of a step is over, and too many failed; `data` has how many.",
        "iterator_cancelled": "A step was cancelled, and none of its calls continue; `data` has why.",
        "step_started": "A step of a phase begins.",
        "step_completed": "A step of a phase is over; `result` is what it gave, or a part of it when that is large.",
        "step_failed": "A step of a phase failed, and with it the attempt; `data` has the error.",
        "step_skipped": "A step of a phase was left out: its condition does not hold.",
        "state_changed": "The workflow moved along an edge of its state table; `data` has `from` and `to`.",
        "egress_denied": (
            "The sandbox of a phase or of its gates denied connections; `data` has the `host` with its port, and the"
            " `count`."
        ),
        "rules_reloaded": (
            "The rules of the project that an agent reads (`CLAUDE.md`, `AGENTS.md` and the like) changed since its"
            " last attempt, and it works by the new ones; `data` has the hash of all (`sha256`), and that of each file"
            " that changed, null for one that is gone."
        ),
        "state_migrated": "An older document was brought to the current schema version; `data` has the versions.",
        "state_set": "A person changed fields of the document with `adw state set`; `data` has the old values.",
        "document_recovered": "The document was missing or corrupt and the last good revision was used instead.",
        "document_quarantined": "A corrupt document was moved aside; `data` has the path and the reason.",
        "document_foreign": "A document changed by hand was kept aside and not applied; `data` has the path.",
        "lease_taken_over": "A new owner took the workflow over; `data` has the former owner and why.",
        "lock_released": "A person released the issue lock; `data` has who held it.",
        "workflow_imported": "The document was imported from an older ADW set-up; `data` has the source path.",
        "backup_restored": "The document came back from a backup.",
        "attempt_started": "An attempt at a phase is recorded and about to run.",
        "attempt_succeeded": "An attempt ended well; `duration` is its time.",
        "attempt_failed": "An attempt failed; `data` has the classified error.",
        "attempt_interrupted": "An attempt was cut off by a crash, or because nobody reported in time. It counts.",
        "left_processes_ended": "What an attempt had started that was closed on another machine is gone; `data` has "
        "the attempt and what was found.",
        "attempt_suspended": "An attempt was ended on order; `data` has the order. It does not count.",
        "attempt_parked": "A quota is used up, or the network, the forge or a provider is not available; `data` has "
        "until when the phase waits, and its deadline. The attempt does not count.",
        "doctor_decided": "The doctor looked at a failed attempt; `data` has the decision and its reason.",
        "cost_added": "What an attempt or the doctor used was added to what the workflow cost; `data` has the amount "
        "that counts, who is paid for which model, and the tokens.",
        "cost_unclear": "An agent's result does not show whether its cost is of the attempt or of its whole "
        "conversation; all of it is counted. `data` has the message.",
        "phase_completed": "A phase is complete, its gates passed; `duration` is the time since its first attempt.",
        "phase_failed": "A phase failed for good; `data` has the terminal reason, `duration` is the time since its "
        "first attempt.",
        "phase_skipped": "A phase that is not required was left out; `data` has why.",
        "retry_scheduled": "The phase is retried; `data` has when, why and the category of the error.",
        "rework_asked": "A phase sent the work back to an earlier one.",
        "approval_asked": "A phase waits for a person: adw approve or adw reject.",
        "approval_given": "A person approved; `data` has who and what they said.",
        "approval_refused": "A person rejected; `data` has who and what they said.",
        "hint_given": "A person said what to do differently in the next attempt.",
        "issue_read": "The issue had no text when the workflow started, and was read again; `data` has its title.",
        "budget_set": "A person set what the workflow may cost; `data` has the amount and the one before.",
        "budget_warning": "Four fifths of what the workflow may cost are spent; `data` has the cap. Told once per cap.",
        "grant_given": "A person allowed more attempts or retries; `data` has how many.",
        "resumed": "A stopped workflow goes on; `data` has from where.",
        "workflow_continued": "A workflow is carried on with the phases of another definition; `data` has its name, "
        "the phases, who asked and the definition before.",
        "effect_intended": "An effect on the outside world is about to be made; `data` has its key and kind.",
        "effect_settled": "The outcome of an effect: made, adopted, failed, undone, kept, gone or forgotten.",
        "effect_observed": "Something appeared during a phase that adw did not make itself, such as a ref.",
        "work_committed": "What a phase changed is on the branch; `data` has the head, and the commit adw made.",
        "worktree_damaged": "Files that git knows a worktree by are empty or gone: it is removed and made again from "
        "its branch; `data` has the path, what was wrong, the commit, and the ref that keeps its files.",
        "stale_locks_removed": "Locks of the workflow's own branch and worktree that a dead git left are removed; "
        "`data` has their names.",
        "base_checked": "The gates were run on the commit that the work starts from, before its first agent; `data` "
        "has the commit, and for each gate whether it passed, why not, and whether an earlier check is used.",
        "work_discarded": "What gates, or a phase whose changes are not committed, left in the worktree was discarded; "
        "`data` has the phase, the files (at most 50) and how many there are, the ref that keeps commits, and after a "
        "crash the file with a patch.",
        "work_salvaged": "The worktree may have been cut off by a restart and was not what the last recorded commit "
        "has; `data` has the `ref` that keeps what was there, the `commit` that files and branch are restored to, why, "
        "and which files differ.",
        "work_moved": "The work continues on another host, from the last commit on the remote; `data` has from and to. "
        "What was not committed there is not continued.",
        "work_not_published": "The last commit could not be pushed to the remote: only its host can continue it; "
        "`data` has the host and why.",
        "worktree_released": "The workflow is completed and its branch is pushed, so its worktree was removed; `data` "
        "has its path, and the patch of what was not committed.",
        "worktree_kept": "The worktree of a completed workflow could not be removed; `data` has its path and why.",
        "comment_failed": "The comment on the issue could not be updated; `data` has why. The work continues.",
        "rollback_begun": "A rollback was begun; `data` has the reason and the steps.",
        "rollback_step": "A step of a rollback is over; `data` has its outcome.",
        "host_forgotten": "A person gave a host up: what the workflow has there is not undone; `data` has the host, "
        "who, why and what is left.",
        "rolled_back": "Nothing is left of the workflow but what was kept on request.",
        "breaker_opened": "The end of an attempt opened a breaker; `data` has the party, until when, and why.",
        "breaker_closed": "An attempt showed that a party works again, and closed its breaker; `data` has the party.",
        "breaker_waited": "A phase waits because a breaker is open; `data` has the party and until when. "
        "No attempt is used.",
        "recovered": "A workflow whose owner was gone was made ready to go on; `data` has the evidence.",
        "run_recovered": "The run of a worker that is gone was settled; `data` has the run, `from` and `to`, what was "
        "known about the worker, the mode and why.",
    }
)


def facts_of(event: Event) -> str:
    """Return the facts of an event in few words."""
    facts = [f"{name}={_fact(value)}" for name, value in sorted(event.data.items()) if value not in (None, "")]
    if event.duration is not None:
        facts.append(f"duration={event.duration:.3f}")

    return " ".join(facts)


def _fact(value: JsonValue) -> str:
    """Return one fact: of a classified error what it says, a text with blanks in quotes."""
    if isinstance(value, dict) and "message" in value:
        value = value["message"]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)

    return json.dumps(text, ensure_ascii=False) if isinstance(value, str) and (" " in text or not text) else text
