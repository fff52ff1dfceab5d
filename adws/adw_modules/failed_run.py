"""
How a process or an agent ended that failed: the facts that tell one failure from another.

A noun, no error: `errors.RunFailed` carries it, and `error_handler` classifies by it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedRun:
    """What is known about a process or an agent that failed; None and "" stand for: nobody said."""

    exit_code: int | None = None
    signal: int | None = None  #: number of the signal that ended it
    timed_out: str | None = None  #: which of our clocks ran out: wall | idle | after_result
    text: str = ""  #: the end of its error output, or what its result said
    subtype: str = ""  #: the name the agent or a gate gave to the failure, such as error_max_turns or no_effect
    http_status: int | None = None  #: of the answer that ended it
    retry_after_seconds: float | None = None  #: how long the server said to wait, from now on
    resets_at: float | None = None  #: when a used-up quota is open again, seconds since 1970
    tool: str = ""  #: name of the program, where its exit codes have a meaning of their own (gemini)

    @property
    def summary(self) -> str:
        """How it ended, in a few words."""
        if self.timed_out is not None:
            return f"was stopped because its time was over ({self.timed_out})"
        if self.signal is not None:
            return f"was ended by signal {self.signal}"
        if self.exit_code is not None:
            return f"ended with exit code {self.exit_code}"

        return f"failed ({self.subtype})" if self.subtype else "failed"
