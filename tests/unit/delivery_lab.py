"""A home to which deliveries come, for the tests of carrying them out."""

from __future__ import annotations

from types import SimpleNamespace

from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import Actor, Command, Delivery, RunRequest
from adws.adw_modules.deliveries.handler import DeliveryHandler, PostMergeCleanup
from adws.adw_modules.document import Resource
from adws.adw_modules.errors import UnknownWorkflow
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.forge.effects import ForgeEffects
from adws.adw_modules.forge.model import Comment, ForgeAccess, IssueText, NewPullRequest
from adws.adw_modules.queue.model import DELIVERY, Run, RunResult
from adws.adw_modules.rollback.run import Rollbacks
from adws.adw_modules.state_machine import WorkflowState
from adws.adw_modules.worker.preflight import Preflight
from adws.adw_modules.worker.run_executor import RunExecutor
from adws.testing import FakeClock
from tests.unit.conduct_cases import SPEC, Home, launcher_of
from tests.unit.engine_cases import ADW_ID
from tests.unit.setting_cases import settings_with

KEY = b"k" * 32
ADA = Actor(login="ada")
#: What the delivery would start.
CHOSEN = "c0ffee00"
BRANCH = "feature-issue-1"


class DeliveryLab:
    """Deliveries, and everybody who carries them out; issue 1 is there, and `ada` may write."""

    def __init__(self, scripts=None, **options: str) -> None:
        """*options* are settings and their texts."""
        self.home = Home(scripts, clock=FakeClock())
        self.forge = self.home.parts.forge
        self.forge.people["ada"] = "write"
        self.issue = self.forge.create_issue("Add a button", "Blue.", author="mona").number
        self.deliveries = self.home.parts.deliveries
        self.workflow_creator = launcher_of(self.home)
        self.settings = settings_with(
            **{"webhook_max_followups": "3", "forge": "github", "worktree_enabled": "false", **options}
        )
        self._count = 0

    @property
    def delivery_home(self) -> SimpleNamespace:
        """What deliveries are carried out in; with the forge that the lab has now."""
        home = self.home
        place = SimpleNamespace(
            clock=home.clock,
            settings=self.settings,
            repository=self.settings.repository or "",
            deliveries=self.deliveries,
            runs=home.runs,
            load=home.document,
            catalogue=home.parts.catalogue,
            locks=home.parts.locks,
            ownership=home.parts.ownership,
            workflow_creator=self.workflow_creator,
            control=home.control,
            engine=home.engine,
            lease_renewer=home.lease_renewer,
            host="testhost",
            has_worktrees=False,
            rollbacks=Rollbacks(home),
            workflows=SimpleNamespace(get=self.workflow, check_ready=lambda _spec: None),
            has_forge=True,
            forge=self.forge,
            forge_access=lambda: ForgeAccess(login=self.forge.login()),
            has_database=lambda: True,
            known_quotas=home.parts.known_quotas,
            claim_policy=home.parts.claim_policy,
            forge_key=KEY,
            forge_effects=lambda: ForgeEffects(self.forge, clock=home.clock, key=KEY),
        )
        place.post_merge_cleanup = PostMergeCleanup(place)
        place.preflight = Preflight(place)
        return place

    def workflow(self, name: str):
        if name != "sdlc":
            raise UnknownWorkflow(name, ("sdlc",))
        return SPEC

    # --- deliveries --------------------------------------------------------------------------------------------

    def request(self, *, actor: Actor = ADA, **fields) -> RunRequest:
        issue = IssueText(number=self.issue, title="Add  a button", body="Blue.<!-- hidden -->", author="mona")
        return RunRequest(**{"repository": "Acme/Widget", "issue": issue, "actor": actor, "cause": "label", **fields})

    def command(self, kind: str, text: str = "", *, actor: Actor = ADA, **fields) -> Command:
        usual = {"repository": "acme/widget", "number": self.issue, "cause": "comment"}
        return Command(**{"kind": kind, "text": text, "actor": actor, **usual, **fields})

    def deliver(self, request: RunRequest | Command, *, adw_id: str = "", guid: str = "") -> str:
        """Accept a delivery, as the door does; return its guid."""
        self._count += 1
        guid = guid or f"guid-{self._count}"
        data = commands.to_json(request)
        made = Delivery(
            guid=guid,
            event="issues",
            action="labeled",
            hook="",
            body=guid.encode(),
            body_hash=guid,
            sender=request.actor.login,
            repository=request.repository,
            number=self.issue,
            verdict=str(data["type"]),
            reason="asked",
            request=data,
            adw_id=adw_id or CHOSEN,
        )
        self.deliveries.accept([made])
        return guid

    @property
    def job_handlers(self) -> dict[str, DeliveryHandler]:
        return {DELIVERY: DeliveryHandler(self.delivery_home)}

    def claim(self) -> Run:
        return self.home.claim()

    def work(self, run: Run | None = None) -> RunResult:
        return RunExecutor(self.home.changed(job_handler=self.job_handlers.get)).work(run or self.claim())

    def carry_out(self, request: RunRequest | Command, **fields) -> Delivery:
        """Deliver, carry out, and return the result."""
        guid = self.deliver(request, **fields)
        self.work()
        return self.row(guid)

    # --- looking -----------------------------------------------------------------------------------------------

    def row(self, guid: str) -> Delivery:
        result = self.deliveries.get(guid)
        assert result is not None
        return result

    def comments(self, number: int | None = None) -> tuple[Comment, ...]:
        return self.forge.comments(number or self.issue)

    def workflows(self) -> list[str]:
        return sorted(self.home.store.ids())

    # --- workflows in every state ------------------------------------------------------------------------------

    def stand(self, standing: str, adw_id: str = ADW_ID) -> None:
        """Make a workflow of the issue that stands like that."""
        fields: dict[str, object] = {"issue": self.issue}
        if standing == "WAITING":
            fields |= {"current_state": "paused", "resume_state": "planning"}
        elif standing == "PAUSED":
            fields |= {"current_state": "paused", "resume_state": "planning", "pause_reason": "a person wanted it"}
        elif standing == "FAILED":
            fields |= {"current_state": "failed", "failed_phase": "planning"}
        elif standing in {"COMPLETED", "ABANDONED", "ROLLED_BACK"}:
            fields |= {"current_state": WorkflowState[standing].value}
        elif standing == "ACTIVE":
            fields |= {"current_state": "planning"}
        self.home.create(adw_id, has_run=standing == "ACTIVE", **fields)
        with self.home.parts.ownership.own(adw_id) as owned:
            document = owned.document
            status = {"WAITING": "waiting", "FAILED": "failed"}.get(standing)
            if status:
                document.phases[0] = document.phases[0].model_copy(update={"status": status})
            if standing == "ROLLING_BACK":
                document.begin_rollback()
            owned.save(document)

    def pass_plan(self, status: str, adw_id: str = ADW_ID) -> None:
        """Let a workflow have built already, and stand in building like that."""
        with self.home.parts.ownership.own(adw_id) as owned:
            document = owned.document
            states = [("complete", document.phases[0]), (status, document.phases[1])]
            phases = [record.model_copy(update={"status": one}) for one, record in states]
            where = "failed_phase" if document.current_state == "failed" else "resume_state"
            owned.save(document.changed(phases=phases, **{where: "building"}))

    def put_up(self, adw_id: str = ADW_ID) -> int:
        """Give a workflow a pull request, as shipping does; return its number."""
        sha = self.forge.push(BRANCH)
        marker = forge_text.make_marker(
            forge_text.Marker(adw_id=adw_id, op=forge_text.PULL_REQUEST), key=KEY, repository=self.forge.repository
        )
        new = NewPullRequest(title="t", body=f"Made by adw\n{marker}", head=BRANCH, base="main", is_draft=False)
        number = self.forge.create_pull_request(new).number
        with self.home.parts.ownership.own(adw_id) as owned:
            remote = {"branch": BRANCH, "remote": "origin", "sha": sha}
            resources = [
                Resource(key=f"branch:{BRANCH}", kind="branch", outcome="made", undo={"branch": BRANCH, "sha": sha}),
                Resource(key=f"remote_branch:{BRANCH}", kind="remote_branch", outcome="made", undo=remote),
                Resource(key="pull_request", kind="pull_request", outcome="made", undo={"pr_number": number}),
            ]
            owned.save(
                owned.document.changed(
                    pr_number=number, branch_name=BRANCH, resources=[*owned.document.resources, *resources]
                )
            )
        return number
