"""A home in memory to which deliveries come, for the tests of carrying them out."""

from __future__ import annotations

from dataclasses import replace

from adws.adw_modules import forge_texts, trigger_requests
from adws.adw_modules.coordination.answers import Answers
from adws.adw_modules.coordination.delivery_parts import DeliveryOptions, DeliveryParts
from adws.adw_modules.coordination.delivery_work import DeliveryWork
from adws.adw_modules.coordination.launch import Launcher
from adws.adw_modules.coordination.merged import CleanUp, CleanUpParts
from adws.adw_modules.coordination.rollback_runs import RollbackRuns
from adws.adw_modules.coordination.workflow_work import RunWork, WorkEnd
from adws.adw_modules.document import Resource
from adws.adw_modules.errors import UnknownWorkflow
from adws.adw_modules.forge import Comment, NewPullRequest
from adws.adw_modules.runs import DELIVERY, Run
from adws.adw_modules.state_machine import WorkflowState
from adws.adw_modules.trigger import Actor, Command, DeliveryRow, IssueText, NewDelivery, RunRequest
from adws.testing import FakeClock, MemoryDeliveries
from tests.unit.conduct_cases import SPEC, Home
from tests.unit.engine_cases import ADW_ID

KEY = b"k" * 32
ADA = Actor(login="ada")
#: What the delivery would start.
CHOSEN = "c0ffee00"
BRANCH = "feature-issue-1"


class DeliveryLab:
    """Deliveries, and everybody who carries them out; issue 1 is there, and `ada` may write."""

    def __init__(self, scripts=None, **options) -> None:
        self.home = Home(scripts, clock=FakeClock())
        self.forge = self.home.parts.forge
        self.forge.people["ada"] = "write"
        self.issue = self.forge.create_issue("Add a button", "Blue.", author="mona").number
        self.deliveries = MemoryDeliveries(self.home.clock, self.home.runs)
        self.options = DeliveryOptions(has_followups=True, **options)
        self.parts = self._parts()
        self._count = 0

    def _parts(self) -> DeliveryParts:
        home = self.home
        return DeliveryParts(
            clock=home.clock,
            deliveries=self.deliveries,
            runs=home.runs,
            store=home.store,
            catalogue=home.parts.catalogue,
            locks=home.parts.locks,
            claims=home.parts.ownership,
            launcher=Launcher(ownership=home.parts.ownership, clock=home.clock, check=lambda _spec: None),
            control=home.control,
            clean_up=CleanUp(
                CleanUpParts(
                    ownership=home.parts.ownership, engine=home.engine, keep=home.keeper.charge, host="testhost"
                )
            ),
            roll_back=RollbackRuns(None, runs=home.runs, requests=home.requests, clock=home.clock).queue,
            workflow=self.workflow,
            forge=lambda: self.forge,
            answers=lambda: Answers(self.forge, key=KEY),
            made_by_us=lambda pull: self.marker_of(pull.body),
            options=self.options,
        )

    def workflow(self, name: str):
        if name != "sdlc":
            raise UnknownWorkflow(name, ("sdlc",))
        return SPEC

    def marker_of(self, body: str) -> str:
        found = forge_texts.read_marker(body, key=KEY, repository=self.forge.repository)
        return found.adw_id if found else ""

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
        data = trigger_requests.to_json(request)
        made = NewDelivery(
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
        )
        self.deliveries.accept(made, run_id_of=f"{0xD0000000 + self._count:x}", adw_id=adw_id or CHOSEN)
        return guid

    @property
    def errands(self) -> dict[str, DeliveryWork]:
        return {DELIVERY: DeliveryWork(self.parts)}

    def claim(self) -> Run:
        return self.home.claim()

    def work(self, run: Run | None = None) -> WorkEnd:
        parts = replace(self.home.work_parts, errands=self.errands)
        return RunWork(parts).work(run or self.claim())

    def carry_out(self, request: RunRequest | Command, **fields) -> DeliveryRow:
        """Deliver, carry out, and return what came of it."""
        guid = self.deliver(request, **fields)
        self.work()
        return self.row(guid)

    # --- looking -----------------------------------------------------------------------------------------------

    def row(self, guid: str) -> DeliveryRow:
        found = self.deliveries.get(guid)
        assert found is not None
        return found

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
        marker = forge_texts.make_marker(
            forge_texts.Marker(adw_id=adw_id, op=forge_texts.PULL_REQUEST), key=KEY, repository=self.forge.repository
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
