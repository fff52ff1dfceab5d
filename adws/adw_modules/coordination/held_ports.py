"""
The ports of a workflow while it is worked on: reserved through the ledger, handed over to its processes, given back.

Which ports they are is known only after they are reserved: what is meant first is "ports of this workflow", which is
enough to find and free them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from adws.adw_modules import effect_rules
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.errors import PortsExhausted
from adws.adw_modules.interfaces_resources import Effect, PortPair, Ports

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.document_draft import Draft

#: The ledger's key until the numbers are known.
PORTS = "ports"


class HeldPorts:
    """Takes the ports of workflows and gives them back."""

    def __init__(self, ports: Ports | None, *, host: str) -> None:
        """Without *ports* a workflow has none."""
        self._ports = ports
        self._host = host

    def take(self, session: WorkSession) -> None:
        """Reserve, bind and hold a pair, the one it had when that is free; raise PortsExhausted."""
        if self._ports is None:
            return
        adw_id, held = session.document.adw_id, held_by(session.document, host=self._host)
        if held is None:
            meant = Effect(key=PORTS, kind="port", host=self._host, undo={"adw_id": adw_id})
            session.change(lambda draft: effect_rules.intend(draft, meant))
        try:
            # Also when the ledger has them: the sockets of a process that is gone are not held any more.
            pair = self._ports.take(adw_id, preferred=held or _last(session.document))
        except PortsExhausted as exc:
            why = str(exc)
            session.change(lambda draft: effect_rules.settle(draft, PORTS, "failed", {"error": why}))
            raise
        if pair != held:
            session.change(partial(_taken, pair, self._host))

    @contextmanager
    def handed_over(self, document: WorkflowDocument) -> Iterator[Mapping[str, str]]:
        """Let a process bind the ports inside the block; yields the variables that name them."""
        pair = held_by(document)
        if self._ports is None or pair is None:
            yield {}
            return
        with self._ports.handed_over(document.adw_id):
            yield variables(pair)

    def free(self, session: WorkSession) -> None:
        """Give the ports back, if the workflow has any."""
        is_open = any(found.kind == "port" for found in effect_rules.open_effects(session.document))
        if self._ports is None or not is_open:
            return
        self._ports.free(session.document.adw_id)
        session.change(_freed)


def variables(pair: PortPair) -> Mapping[str, str]:
    """Return the environment variables that tell a process its ports."""
    backend, frontend = str(pair.backend), str(pair.frontend)

    return {"ADW_BACKEND_PORT": backend, "ADW_FRONTEND_PORT": frontend, "PORT": backend}


def held_by(document: WorkflowDocument, *, host: str = "") -> PortPair | None:
    """Return the ports that the ledger says a workflow holds; with *host* those of that machine alone."""
    return _pair(
        found
        for found in effect_rules.effects(document)
        if found.outcome in effect_rules.MADE and (not host or found.host in {"", host})
    )


def _last(document: WorkflowDocument) -> PortPair | None:
    """Return the ports that a workflow had last."""
    return _pair(found for found in effect_rules.effects(document) if found.outcome == "undone")


def _pair(found: Iterable[Effect]) -> PortPair | None:
    numbers = {str(one.undo.get("purpose")): one.undo.get("port") for one in found if one.kind == "port"}
    backend, frontend = numbers.get("backend"), numbers.get("frontend")
    if not isinstance(backend, int) or not isinstance(frontend, int):
        return None

    return PortPair(backend=backend, frontend=frontend)


def _taken(pair: PortPair, host: str, draft: Draft) -> None:
    """Write down which ports they are; what the ledger had before is not ours any more."""
    for found in effect_rules.open_effects(draft.document):
        if found.kind == "port" and found.key != PORTS:
            effect_rules.settle(draft, found.key, "gone")
    numbers = {"backend": pair.backend, "frontend": pair.frontend}
    made = [
        Effect(key=f"port:{port}", kind="port", outcome="made", host=host, undo={"port": port, "purpose": purpose})
        for purpose, port in numbers.items()
    ]
    effect_rules.become(draft, PORTS, *made)
    draft.document.assign(backend_port=pair.backend, frontend_port=pair.frontend)


def _freed(draft: Draft) -> None:
    for found in effect_rules.open_effects(draft.document):
        if found.kind == "port":
            effect_rules.settle(draft, found.key, "undone")
    draft.document.assign(backend_port=None, frontend_port=None)
