"""
The wiring of what carries out deliveries.

Apart from `app` because only workers that find one need it; the forge is opened when it is asked something.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from adws import app_forge, config
from adws.adw_modules import forge_texts
from adws.adw_modules.command_rules import Access
from adws.adw_modules.coordination.answers import Answers
from adws.adw_modules.coordination.delivery_parts import DeliveryOptions, DeliveryParts
from adws.adw_modules.coordination.delivery_work import DeliveryWork
from adws.adw_modules.coordination.merged import CleanUp, CleanUpParts
from adws.app_home import HomeBooks

if TYPE_CHECKING:
    from adws.adw_modules.coordination.control import Control
    from adws.adw_modules.coordination.keeper import Keeper
    from adws.adw_modules.coordination.launch import Launcher
    from adws.adw_modules.coordination.ownership import WorkflowOwnership
    from adws.adw_modules.coordination.rollback_runs import RollbackRuns
    from adws.adw_modules.engine.attempt import EngineParts
    from adws.adw_modules.forge import PullRequest
    from adws.adw_modules.interfaces import IssueLocks
    from adws.adw_modules.workflows import Workflows
    from adws.app_space import SpaceRoom


class HomeTidying(Protocol):
    """What tidying a home (`app_tidy.TidyRoom`) is to the deliveries to it."""

    @property
    def rollback_runs(self) -> RollbackRuns: ...


class HomeWork(Protocol):
    """What the work in a home (`app_work.WorkRoom`) is to the deliveries to it."""

    @property
    def launcher(self) -> Launcher: ...
    @property
    def control(self) -> Control: ...
    @property
    def engine(self) -> EngineParts: ...
    @property
    def keeper(self) -> Keeper: ...
    @property
    def space(self) -> SpaceRoom: ...


class HomeParts(HomeBooks, Protocol):
    """What the parts of a home are to the deliveries to it (`app.App`)."""

    @property
    def locks(self) -> IssueLocks: ...
    @property
    def ownership(self) -> WorkflowOwnership: ...
    @property
    def workflows(self) -> Workflows: ...
    @property
    def tidy(self) -> HomeTidying: ...


class DeliveryRoom:
    """The parts that carry out the deliveries to one home."""

    def __init__(self, app: HomeParts, room: HomeWork) -> None:
        self._app = app
        self._room = room

    @cached_property
    def work(self) -> DeliveryWork:
        """What does what deliveries ask for."""
        app = self._app

        return DeliveryWork(
            DeliveryParts(
                clock=app.clock,
                deliveries=app.deliveries,
                runs=app.runs,
                store=app.store,
                catalogue=app.catalogue,
                locks=app.locks,
                claims=app.ownership,
                launcher=self._room.launcher,
                control=self._room.control,
                clean_up=self._clean_up,
                roll_back=app.tidy.rollback_runs.queue,
                workflow=app.workflows.get,
                forge=lambda: app.forge,
                answers=self._answers,
                made_by_us=self._made_by_us,
                options=options_of(app.settings),
            )
        )

    @cached_property
    def _key(self) -> bytes:
        return app_forge.key_of(self._app.settings, clock=self._app.clock)

    @property
    def _clean_up(self) -> CleanUp:
        space = self._room.space

        return CleanUp(
            CleanUpParts(
                ownership=self._app.ownership,
                engine=self._room.engine,
                keep=self._room.keeper.charge,
                host=space.host,
                git=space.git.repository if space.git else None,
                workplace=space.git.workplace if space.git else None,
            )
        )

    def _answers(self) -> Answers:
        return Answers(self._app.forge, key=self._key, scrub=self._app.redactor.redact_text)

    def _made_by_us(self, pull: PullRequest) -> str:
        forge = self._app.forge
        marker = forge_texts.read_marker(pull.body, key=self._key, repository=forge.repository)
        is_ours = marker is not None and marker.op == forge_texts.PULL_REQUEST and pull.author == forge.login()

        return marker.adw_id if marker is not None and is_ours else ""


def options_of(settings: config.Settings) -> DeliveryOptions:
    """Return how *settings* want deliveries carried out."""
    return DeliveryOptions(
        repository=settings.repository or "",
        access=Access(
            permission=settings.webhook_permission,
            allow=settings.webhook_allow or (),
            deny=settings.webhook_deny or (),
            bots=settings.webhook_bots or (),
        ),
        default_workflow=settings.default_workflow,
        has_followups=settings.webhook_followups,
        max_followups=settings.webhook_max_followups,
        max_retries=settings.max_retries,
        max_reworks=settings.max_reworks,
        max_total_attempts=settings.max_total_attempts,
        max_minutes=settings.max_minutes,
        ttl_seconds=settings.lease_ttl_seconds,
    )
