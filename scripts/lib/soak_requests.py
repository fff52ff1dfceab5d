"""
The requests of the workflow soak: what is asked for, which workflow carries it, and what goes wrong on the way.

Data and its checks only. Together they have a fault in every phase and of every category.
"""

from __future__ import annotations

from dataclasses import dataclass

#: kind of fault -> category that adw must find it to be; "" for what is no error of an attempt
KINDS: dict[str, str] = {
    "network": "transient",
    "overloaded": "transient",
    "killed": "transient",
    "server": "transient",
    "busy": "transient",
    "timeout": "transient",
    "gate": "transient",
    "bad_output": "transient",
    "push_lost": "transient",
    "rate_limited": "rate_limit",
    "disk": "resource",
    "port": "resource",
    "memory": "resource",
    "missing": "configuration",
    "push_refused": "configuration",
    "workflow_file": "configuration",
    "refused": "fatal",
    "crash": "",
    "push_crash": "",
    "rework": "",
    "conflict": "",
    "stray": "",
}
CATEGORIES = ("transient", "rate_limit", "resource", "configuration", "fatal")
PHASES = ("plan", "build", "lint", "test", "review", "document", "ship", "tidy")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that goes wrong in a phase."""

    phase: str
    kind: str  #: of KINDS
    attempt: int = 1  #: in which of the attempts that come to an end; 0: in every one, until a person mends it

    @property
    def key(self) -> str:
        """As the agent looks it up."""
        where = {"push_lost": "push_pre", "push_refused": "push_pre", "push_crash": "push_post"}

        return f"{where.get(self.kind, self.phase)}:{self.attempt or '*'}"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One issue, its workflow and its trouble."""

    title: str
    label: str
    workflow: str
    faults: tuple[Fault, ...]
    person: str = ""  #: what a person has to do on the way: mend | approve
    is_recoverable: bool = True


def _request(title: str, label: str, workflow: str, *faults: Fault, person: str = "", ok: bool = True) -> Request:
    return Request(title=title, label=label, workflow=workflow, faults=faults, person=person, is_recoverable=ok)


REQUESTS: tuple[Request, ...] = (
    _request("Greet people by name", "feature", "sdlc", Fault(phase="plan", kind="network")),
    _request("Round prices half up", "bug", "sdlc", Fault(phase="build", kind="overloaded")),
    _request(
        "Sort imports everywhere",
        "chore",
        "sdlc",
        Fault(phase="lint", kind="killed"),
        Fault(phase="ship", kind="push_refused", attempt=0),
        person="mend",
    ),
    _request(
        "Parse dates with a zone",
        "bug",
        "fix",
        Fault(phase="test", kind="server"),
        Fault(phase="test", kind="bad_output", attempt=2),
    ),
    _request("Build on every push", "chore", "fix", Fault(phase="build", kind="workflow_file", attempt=0), ok=False),
    _request("Explain the settings", "chore", "words", Fault(phase="document", kind="busy")),
    _request("Close files that were opened", "bug", "fix", Fault(phase="ship", kind="push_lost")),
    _request("Drop the old importer", "chore", "swept", Fault(phase="tidy", kind="network")),
    _request("Search by label", "feature", "sdlc", Fault(phase="test", kind="rate_limited")),
    _request("Write a guide for newcomers", "feature", "words", Fault(phase="plan", kind="rate_limited")),
    _request("Export as CSV", "feature", "fix", Fault(phase="build", kind="disk")),
    _request(
        "Show totals on the page",
        "feature",
        "sdlc",
        Fault(phase="review", kind="port"),
        Fault(phase="review", kind="network", attempt=2),
    ),
    _request("Refuse empty names", "bug", "fix", Fault(phase="test", kind="gate")),
    _request("Keep the order of lists", "bug", "sdlc", Fault(phase="test", kind="rework")),
    _request("Plan the move to a new host", "feature", "careful", Fault(phase="build", kind="stray"), person="approve"),
    _request("Cache what is asked often", "feature", "fix", Fault(phase="build", kind="crash")),
    _request("Log who signed in", "feature", "fix", Fault(phase="ship", kind="push_crash")),
    _request("Remove dead flags", "chore", "swept", Fault(phase="tidy", kind="crash")),
    _request("Speed up the start", "bug", "hurried", Fault(phase="build", kind="timeout")),
    _request(
        "Share one constant",
        "feature",
        "sdlc",
        Fault(phase="review", kind="conflict"),
        Fault(phase="document", kind="memory"),
    ),
    _request("Format all sources", "chore", "sdlc", Fault(phase="build", kind="missing", attempt=0), person="mend"),
    _request("Guess passwords of others", "feature", "fix", Fault(phase="test", kind="refused", attempt=0), ok=False),
)

#: The requests of the short soak that runs with every test: the faults that take no time but their own.
SMALL = tuple(
    request
    for request in REQUESTS
    if request.title
    in {
        "Explain the settings",
        "Log who signed in",
        "Cache what is asked often",
        "Refuse empty names",
        "Export as CSV",
        "Guess passwords of others",
    }
)


def problems_of(requests: tuple[Request, ...]) -> list[str]:
    """Return what a full soak must have and *requests* lack."""
    faults = [fault for request in requests for fault in request.faults]
    wanted = (
        ("phase", set(PHASES), {fault.phase for fault in faults}),
        ("category", set(CATEGORIES), {KINDS[fault.kind] for fault in faults}),
        ("kind", set(KINDS), {fault.kind for fault in faults}),
    )

    return [f"no fault for {what} {name}" for what, names, had in wanted for name in sorted(names - had)]
