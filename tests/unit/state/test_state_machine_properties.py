"""
Whatever is called in whatever order: the machine stays in its table, within its limits, and forgets nothing.
"""

from __future__ import annotations

import contextlib
import os
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from adws.adw_modules import document
from adws.adw_modules.errors import AdwError
from adws.adw_modules.state_machine import (
    HISTORY_LIMIT,
    PHASE_STATES,
    PIPELINE,
    TERMINAL_STATES,
    WorkflowState,
    WorkflowStateMachine,
    derive_table,
    is_rework,
    is_success,
    rank,
)
from tests.unit.state_cases import Ticking, a_document, snapshot, stored

METADATA = st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.lists(st.text(max_size=2), max_size=2))
LIMITS = st.integers(min_value=0, max_value=3)


class AnyCalls(RuleBasedStateMachine):
    """Calls of every kind on one machine; what must hold is counted here a second time, in another way."""

    @initialize(
        phases=st.sets(st.sampled_from(PIPELINE), min_size=1) | st.just(set(PIPELINE)), retries=LIMITS, reworks=LIMITS
    )
    def begin(self, phases, retries, reworks):
        table = derive_table([(state.value, state) for state in PIPELINE if state in phases])
        self.clock = Ticking()
        self.machine = WorkflowStateMachine(
            "1a2b3c4d", table=table, now=self.clock.now, max_retries=retries, max_reworks=reworks
        )
        self.first_limit = retries
        self.granted = 0
        self.visited = [WorkflowState.PENDING]
        self.failed = []
        self.kept_document = a_document()

    # --- calls -------------------------------------------------------------------------------------------------

    @rule(wanted=st.sampled_from(WorkflowState), metadata=METADATA)
    def ask_for_any_move(self, wanted, metadata):
        before, legal = snapshot(self.machine), self.machine.legal_targets()
        try:
            self.machine.transition(wanted, metadata)
        except AdwError:
            assert snapshot(self.machine) == before
            assert wanted not in legal
        else:
            assert wanted in legal
            self._note(wanted)

    @precondition(lambda self: self.machine.legal_targets())
    @rule(data=st.data())
    def go_somewhere(self, data):
        # Ends come last, so that most walks are long.
        legal = sorted(self.machine.legal_targets(), key=lambda state: state in TERMINAL_STATES)
        wanted = data.draw(st.sampled_from(legal))
        self.machine.transition(wanted)
        self._note(wanted)

    def _note(self, reached):
        self.visited.append(reached)
        if reached is WorkflowState.FAILED:
            self.failed.append(rank(self.machine.failed_phase))

    @rule()
    def mark_a_retry(self):
        before = snapshot(self.machine)
        may = self.machine.can_retry()
        try:
            self.machine.mark_retry()
        except AdwError:
            assert not may
            assert snapshot(self.machine) == before
        else:
            assert may

    @precondition(lambda self: self.machine.current_state is WorkflowState.FAILED)
    @rule(number=st.integers(min_value=1, max_value=2))
    def grant(self, number):
        with contextlib.suppress(AdwError):
            self.machine.grant_retries(number)
            self.granted += number

    @rule(phase=st.sampled_from(PIPELINE))
    def choose_a_phase(self, phase):
        before = snapshot(self.machine)
        try:
            self.machine.resume_from(phase)
        except AdwError:
            assert snapshot(self.machine) == before

    @precondition(lambda self: len(self.visited) > 8)
    @rule()
    def merge(self):
        self.machine.mark_merged()

    @precondition(lambda self: len(self.visited) > 8)
    @rule()
    def roll_back(self):
        with contextlib.suppress(AdwError):
            self.machine.begin_rollback()

    @rule()
    def restart_from_the_document(self):
        before = snapshot(self.machine)
        self.machine.write_into(self.kept_document)
        self.kept_document = document.WorkflowDocument.model_validate_json(document.to_bytes(self.kept_document))
        self.machine = WorkflowStateMachine.of(self.kept_document, table=self.machine.table, now=self.clock.now)

        assert snapshot(self.machine) == before

    # --- what holds at every moment ----------------------------------------------------------------------------

    @invariant()
    def every_step_was_an_edge(self):
        table = self.machine.table
        assert self.machine.current_state is self.visited[-1]
        assert all(b in table[a] for a, b in pairwise(self.visited))

    @invariant()
    def nothing_of_the_history_is_lost(self):
        history = self.machine.state_history
        assert len(history) + self.machine.history_dropped == len(self.visited) - 1
        assert [move["to"] for move in history] == [state.value for state in self.visited[1:]][-HISTORY_LIMIT:]

    @invariant()
    def retries_stay_within_the_limit(self):
        machine = self.machine
        assert machine.max_retries == self.first_limit + self.granted
        assert 0 <= machine.position.retry_marks <= machine.retry_count <= machine.max_retries
        assert self._ways_out_of_failed() <= machine.retry_count <= machine.max_retries

    @invariant()
    def reworks_stay_within_the_limit(self):
        made = sum(is_rework(a, b) for a, b in pairwise(self.visited))
        assert made == self.machine.reworks <= self.machine.max_reworks

    @invariant()
    def a_document_changes_nothing(self):
        copy = WorkflowStateMachine.of(stored(self.machine), table=self.machine.table)

        assert snapshot(copy) == snapshot(self.machine)

    @invariant()
    def only_a_closed_workflow_is_at_an_end(self):
        if self.machine.current_state not in TERMINAL_STATES:
            assert self.machine.legal_targets()

    def _ways_out_of_failed(self) -> int:
        """Count them from the path alone: since the furthest phase that failed has last succeeded."""
        used, furthest, failed = 0, -1, iter(self.failed)
        for before, after in pairwise(self.visited):
            if after is WorkflowState.FAILED:
                furthest = max(furthest, next(failed))
            if before is WorkflowState.FAILED and after in PHASE_STATES:
                used += 1
            if is_success(before, after) and rank(before) >= furthest >= 0:
                used, furthest = 0, -1
        return used


#: The soak walks as many more ways as it has time for.
EXAMPLES = 2000 if os.environ.get("ADW_SOAK", "") not in {"", "0"} else 60

AnyCalls.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)
TestAnyCalls = AnyCalls.TestCase
