"""
The changes of a workflow for the pages and the API: the whole diff, the diff of an attempt, and a tree of files.

The diff is between commits: of the workflow's branch or, if the branch is gone, of the recorded commit and the salvage
ref.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from adws.adw_modules import effects
from adws.adw_modules.errors import AdwError
from adws.adw_modules.git.git import salvage_ref

if TYPE_CHECKING:
    from adws.adw_modules.document import Resource, WorkflowDocument
    from adws.adw_modules.git.diff import Diff, FileDiff
    from adws.app import Home


#: The depth of the tree; deeper folders are part of the name.
_DEEPEST = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitRange:
    """The commits of one attempt."""

    phase: str
    attempt: int
    base: str
    head: str


@dataclass(kw_only=True, slots=True)
class TreeNode:
    """A folder or a file in the tree of a diff."""

    name: str
    number: int = 0  #: position of the file in the diff, from 1; 0: a folder
    file: FileDiff | None = None
    children: list[TreeNode] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """A diff, or the reason for not having one."""

    diff: Diff | None
    problem: str  #: "": there is a diff, or nothing to compare
    ranges: tuple[CommitRange, ...]  #: attempts with commits, in the order of the commits
    phase: str = ""  #: of the attempt shown; "": all attempts
    attempt: int = 0

    @property
    def tree(self) -> list[TreeNode]:
        """The changed files as a tree."""
        return tree_of(self.diff.files if self.diff else ())


def ranges_of(document: WorkflowDocument) -> tuple[CommitRange, ...]:
    """Return the attempts with a commit, each with the commit before it and its own."""
    branch = _branch_of(document)
    if branch is None:
        return ()
    attempts = sorted(
        ((phase.name, attempt) for phase in document.phases for attempt in phase.attempts if attempt.commit),
        key=lambda one: one[1].started_at,
    )
    on_branch = {commit for _, _, commit in effects.phase_commits(document)}
    ranges: list[CommitRange] = []
    for phase, attempt in attempts:
        head, base = str(attempt.commit), _start_of(branch)
        if ranges:
            before = ranges[-1].head
            # After a rebase the commit before is not an ancestor: only the last commit is certain to be the attempt's.
            base = before if (before in on_branch) == (head in on_branch) else f"{head}^"
        ranges.append(CommitRange(phase=phase, attempt=attempt.number, base=base, head=head))

    return tuple(ranges)


def read(
    home: Home, document: WorkflowDocument, *, phase: str = "", attempt: int = 0, most: int | None = None
) -> Changes:
    """
    Return the changes of a workflow, or of one attempt, with at most *most* characters of patches.

    Git is not called for a workflow without a branch.
    """
    ranges = ranges_of(document)
    branch = _branch_of(document)
    chosen = next((one for one in ranges if (one.phase, one.attempt) == (phase, attempt)), None)
    diff, problem = None, ""
    if phase and chosen is None:
        problem = f"Attempt {attempt} of {phase} committed nothing."
    elif branch is not None:
        base = chosen.base if chosen else _start_of(branch)
        kept = (f"refs/heads/{document.branch_name}", str(branch.undo.get("sha") or ""), salvage_ref(document.adw_id))
        try:
            diff = home.diffs.between(base, (chosen.head,) if chosen else kept, mark=document.revision)
        except AdwError as exc:
            problem = f"git failed: {exc}."
        else:
            if not base:
                problem = "The commit where its branch begins is not recorded."
            elif diff is None:
                problem = "Its commits are not in the repository of this machine."

    if diff is not None and most is not None:
        diff = diff.shortened(most)

    return Changes(diff=diff, problem=problem, ranges=ranges, phase=phase, attempt=attempt)


def _branch_of(document: WorkflowDocument) -> Resource | None:
    """Return the workflow's branch, even if deleted, or None if it never had one."""
    if not document.branch_name:
        return None
    branches = (one for one in document.resources if one.kind == "branch")

    return effects.effect(document, f"branch:{document.branch_name}") or next(branches, None)


def _start_of(branch: Resource) -> str:
    return str(branch.undo.get("start") or branch.undo.get("base") or "")


def tree_of(files: Sequence[FileDiff]) -> list[TreeNode]:
    """Return *files*, sorted by name, as a tree; a folder whose only child is a folder is merged with it."""
    root = TreeNode(name="")
    for number, file in enumerate(files, 1):
        *folders, own = file.name.split("/", _DEEPEST)
        node = root
        for folder in folders:
            if not node.children or node.children[-1].file or node.children[-1].name != folder:
                node.children.append(TreeNode(name=folder))
            node = node.children[-1]
        node.children.append(TreeNode(name=own, number=number, file=file))

    return [_joined(child) for child in root.children]


def _joined(node: TreeNode) -> TreeNode:
    while len(node.children) == 1 and node.children[0].file is None:
        [child] = node.children
        node = replace(child, name=f"{node.name}/{child.name}")
    node.children = [_joined(child) for child in node.children]

    return node
