"""
The wiring of agents: which there are, what they are run with, and what they may do.

Apart from `app_work` because whether a workflow can be started is asked without opening anything: only this room knows
which agents are installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adws import config
from adws.adw_modules import agents, cost_rules, model_choice
from adws.adw_modules.agent_preflight import AgentPreflight, AgentState, PreflightParts, variables_of
from adws.adw_modules.agents import prices
from adws.adw_modules.engine.runners.agent import AgentParts, AgentRunner
from adws.adw_modules.engine.runners.agent_guard import Guard, GuardedRunner
from adws.adw_modules.engine.runners.phase_files import ALLOWED_VARIABLES
from adws.adw_modules.own_secrets import OWN_SECRETS
from adws.adw_modules.prompt_files import PromptFiles
from adws.adw_modules.workflow import AGENT
from adws.app_home import Home

if TYPE_CHECKING:
    from adws.adw_modules.agent import AgentProfile
    from adws.adw_modules.cost_rules import Allowance, CostOf
    from adws.adw_modules.document import PhaseRecord, WorkflowDocument
    from adws.adw_modules.interfaces_engine import Runner
    from adws.adw_modules.resources.quotas import MachineQuotas
    from adws.adw_modules.resources.shared_git import SharedGit
    from adws.adw_modules.workflow import PhaseSpec
    from adws.app_resources import GitRoom

#: The models of Claude Code for the sets that ADW knows.
_CLAUDE_SETS: Mapping[str, str] = {"base": "sonnet", "heavy": "opus", "lightweight": "haiku"}


class HomeAgents(Home, Protocol):
    """What the parts of a home are to its agents (`app.App`)."""

    @property
    def quotas(self) -> MachineQuotas: ...


class AgentRoom:
    """The agents of one home."""

    def __init__(
        self,
        app: HomeAgents,
        *,
        env: Mapping[str, str] | None = None,
        git: Callable[[], GitRoom | None] = lambda: None,
    ) -> None:
        """*env* is where the variables of agents come from, *git* looks at what they changed."""
        self._app = app
        self._env = config.process_environment() if env is None else env
        self._git = git

    @cached_property
    def prompts(self) -> PromptFiles:
        """The prompts of this home."""
        return PromptFiles(self._app.settings.home)

    @cached_property
    def preflight(self) -> AgentPreflight:
        """What looks for agents."""
        settings = self._app.settings

        return AgentPreflight(
            PreflightParts(
                clock=self._app.clock,
                processes=self._app.processes,
                redactor=self._app.redactor,
                env={"PATH": self._env.get("PATH", "")},
                programs={name: getattr(settings, f"{name}_path") for name in agents.names()},
            )
        )

    @cached_property
    def runner(self) -> AgentRunner:
        """What runs phases with agents."""
        return AgentRunner(self.parts)

    @cached_property
    def parts(self) -> AgentParts:
        """What agents are run with, for phases and for steps."""
        app, settings = self._app, self._app.settings

        return AgentParts(
            clock=app.clock,
            processes=app.processes,
            redactor=app.redactor,
            env=self._env,
            prompts=self.prompts,
            preflight=self.preflight,
            profile_of=agents.profile,
            folder_of=lambda adw_id: settings.state_dir / adw_id,
            usual=settings.agent_name,
            permissions=settings.agent_permissions,
            max_turns=settings.agent_max_turns,
            env_names=settings.agent_env or (),
            has_changed=self._has_changed,
            allowance=self._allowance,
            cost_of=self.cost_of,
            billing=settings.agent_billing,
            grace_seconds=settings.grace_seconds,
            max_output_bytes=settings.max_output_bytes,
        )

    def shared_place(self) -> SharedGit | None:
        """Return what all worktrees share and no agent may change; None where work is not done in worktrees."""
        git = self._git()

        return git.shared if git else None

    @property
    def runners(self) -> dict[str, Runner]:
        """The one driver, under guard, under the name of every agent."""
        return dict.fromkeys((AGENT, *agents.names()), GuardedRunner(self.runner, self._guard))

    @cached_property
    def _guard(self) -> Guard:
        """What watches over the git directory that agents share."""
        return Guard(self.shared_place)

    @cached_property
    def model_for(self) -> Callable[[WorkflowDocument, PhaseSpec, PhaseRecord], str]:
        """Choose the model of an attempt."""
        return partial(
            model_choice.model_for, usual=self._app.settings.agent_model or "", sets=model_sets(self._app.settings)
        )

    def look(self, name: str) -> tuple[AgentProfile, AgentState]:
        """Return an agent and what is known about it here; asks the agent itself."""
        profile = agents.profile(name)
        wanted = {*ALLOWED_VARIABLES, *variables_of(profile, self._env), *(self._app.settings.agent_env or ())}
        env = {key: value for key, value in self._env.items() if key in wanted - OWN_SECRETS or key.startswith("LC_")}

        return profile, self.preflight.look(profile, {**env, **profile.settings})

    @cached_property
    def cost_of(self) -> CostOf:
        """What tokens cost: as `[prices]` of adw.toml says, else by the list that comes with adw."""
        return partial(prices.cost_of, prices=prices.read_prices(self._app.settings.section("prices").data))

    def _allowance(self, document: WorkflowDocument, attempt_usd: float | None) -> Allowance | None:
        return cost_rules.allowance(
            document,
            max_cost_usd=self._app.settings.quota_max_cost,
            attempt_usd=attempt_usd,
            rest_of_day_usd=self._app.quotas.rest_of_day(),
        )

    def _has_changed(self, cwd: Path, base: str) -> bool:
        git = self._git()
        if git is None or self._guard.is_touched(cwd):
            return True  # with what an agent planted no git is run here: the guard fails the attempt

        return bool(git.workplace.status(cwd) or git.workplace.changed_files(cwd, base))


def model_sets(settings: config.Settings) -> dict[str, str]:
    """Return the model of each set of models: as the settings say, else as the usual agent has one for it."""
    usual = _CLAUDE_SETS if settings.agent_name == "claude" else {}
    said = {name: getattr(settings, f"agent_model_{name}") for name in _CLAUDE_SETS}

    return {**usual, **{name: model for name, model in said.items() if model}}
