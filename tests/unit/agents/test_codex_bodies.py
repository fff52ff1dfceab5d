"""What Codex tells of a request that was refused as wrong: the body of the answer, and no status."""

from __future__ import annotations

import json

import pytest

from adws.adw_modules.agent import AgentEnd
from tests.unit.agents.agent_cases import klass as class_of

WRONG = {"type": "error", "error": {"type": "invalid_request_error", "message": "no such field", "code": None}}
TOO_LONG = {"error": {"type": "invalid_request_error", "message": "too long", "code": "context_length_exceeded"}}


@pytest.mark.parametrize(
    ("body", "klass"),
    [(WRONG, "invalid"), ({"detail": "Unsupported parameter"}, "invalid"), (TOO_LONG, "context"), ([1], "failed")],
    ids=["error", "detail", "more-is-said", "something-else"],
)
def test_a_body_without_a_status_is_a_request_that_was_wrong(body, klass):
    line = json.dumps({"type": "turn.failed", "error": {"message": json.dumps(body)}})

    assert class_of("codex", [line], AgentEnd(exit_code=1)) == klass
