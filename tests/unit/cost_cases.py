"""What the tests of costs share: an agent that costs, a price table of one model, readings."""

from __future__ import annotations

from adws.adw_modules.agent import AgentCapabilities, AgentProfile, AgentReading, TokenUsage, Usage

MODEL = "robot-1"


def profile(**capabilities) -> AgentProfile:
    return AgentProfile(
        name="robot",
        provider="robots",
        capabilities=AgentCapabilities(**capabilities),
        argv=lambda _task: (),
        parser=lambda: None,
        failure=lambda _reading, _end: None,
    )


#: Tells sums of the whole conversation, as Claude Code and Codex do.
SUMMING = profile(totals_are_of_session=True, resumes=True)
SINGLE = profile()


def cost_of(model: str, tokens: TokenUsage) -> float | None:
    """A dollar for each thousand tokens of the one model that has a price."""
    return tokens.total / 1000 if model == MODEL else None


def tokens(count: int, **more) -> TokenUsage:
    return TokenUsage(input=count, **more)


def result(cost: float | None = None, count: int = 0, **more) -> AgentReading:
    return AgentReading(has_result=True, cost_usd=cost, tokens=tokens(count), model=more.pop("model", MODEL), **more)


def usage(cost: float | None = 1.0, count: int = 0, **more) -> Usage:
    return Usage(**{"provider": "robots", "model": MODEL, "tokens": tokens(count), "cost_usd": cost, **more})
