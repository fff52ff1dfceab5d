"""
What a shell offers while somebody types: ids of workflows, names of workflows, states.

A shell waits for this at each press of a key, and shows nothing of what goes wrong: what cannot be looked up is not
offered, and nothing is made by looking.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from adws.adw_modules.errors import AdwError

if TYPE_CHECKING:
    from adws.app import App

#: How many ids are offered, the newest ones.
MOST_IDS = 50
_PREFIX = "adw-"


def ids(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the ids of the newest workflows, each with its state and title."""
    return _offered(ctx, lambda app: _ids(app, incomplete))


def names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the names of the workflows there are to run."""
    return _offered(
        ctx, lambda app: [CompletionItem(name) for name in app.workflows.names() if name.startswith(incomplete)]
    )


def states(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the states of a workflow."""
    found = importlib.import_module("adws.adw_modules.state_table").WorkflowState

    return list(map(CompletionItem, _beginning(incomplete, (state.value for state in found))))


def _beginning(incomplete: str, words: Iterable[str]) -> Iterator[str]:
    return (word for word in words if word.startswith(incomplete))


def _ids(app: App, incomplete: str) -> list[CompletionItem]:
    if not app.has_database():
        return []
    query = importlib.import_module("adws.adw_modules.interfaces").PageQuery(limit=MOST_IDS)
    prefix = _PREFIX if incomplete.startswith(_PREFIX) else ""

    return [
        CompletionItem(f"{prefix}{row.adw_id}", help=f"{row.state}: {row.title}"[:60])
        for row in app.catalogue.page(query).rows
        if f"{prefix}{row.adw_id}".startswith(incomplete)
    ]


def _offered(ctx: click.Context, look: Callable[[App], list[CompletionItem]]) -> list[CompletionItem]:
    config, wiring = importlib.import_module("adws.config"), importlib.import_module("adws.app")
    home = ctx.find_root().params.get("home")
    try:
        with wiring.open_app(config.from_environment({"home": home} if home else {})) as app:
            return look(app)
    except AdwError:
        return []
