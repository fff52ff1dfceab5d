"""
How pages show what a workflow changed: its files as a tree, and the patch of each with its lines marked.

Pure. The same diff is on a page of its own, on the page of the workflow, and above the button that approves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from adws.web.dashboard import frame

if TYPE_CHECKING:
    from adws.adw_modules.git.diff import Diff, FileDiff
    from adws.web.changes import Changes

#: Lines after which further files are closed, on this page and on the page of the workflow.
OPEN_LINES, OPEN_LINES_BESIDE = 2000, 150
#: Characters of patches on the page of the workflow; the diff's own page has all there is.
CHARACTERS_BESIDE = 60_000
#: Folders inside each other that the tree shows; deeper ones are part of the name.
_DEEPEST = 8
_LINE_KINDS = {"+": "ins", "-": "del", "@": "hunk", "\\": "hunk"}


@dataclass(kw_only=True, slots=True)
class TreeNode:
    """A folder or a file in the tree of a diff."""

    name: str
    number: int = 0  #: of the file in the diff, from 1; 0: it is a folder
    file: FileDiff | None = None
    children: list[TreeNode] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownFile:
    """A file of a diff as a page shows it."""

    file: FileDiff
    patch: Markup
    is_open: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Review:
    """What pages show of the changes of a workflow."""

    changes: Changes
    diff: Diff | None
    files: Sequence[ShownFile]
    tree: Sequence[TreeNode]


def review_of(found: Changes, *, open_lines: int = OPEN_LINES, most: int | None = None) -> Review:
    """Return what a page shows of *found*: at most *most* characters of patches, files open up to *open_lines*."""
    diff = found.diff.shortened(most) if found.diff and most is not None else found.diff
    files, lines = [], 0
    for file in diff.files if diff else ():
        lines += file.patch.count("\n")
        files.append(ShownFile(file=file, patch=patch_html(file.patch), is_open=lines <= open_lines))

    return Review(changes=found, diff=diff, files=files, tree=tree_of(diff.files if diff else ()))


def patch_html(patch: str) -> Markup:
    """Return the lines of a redacted patch as markup, each escaped, those that are added and deleted marked."""
    lines = patch.removesuffix("\n").split("\n") if patch else []
    kinds = (_LINE_KINDS.get(line[:1], "same") for line in lines)
    marked = (
        f'<span class="{kind}">{escape(frame.plain(line))}\n</span>' for kind, line in zip(kinds, lines, strict=True)
    )

    return Markup("".join(marked))  # noqa: S704 - every line is escaped above


def tree_of(files: Sequence[FileDiff]) -> list[TreeNode]:
    """Return *files*, which are ordered by name, as a tree; a folder that has only a folder is joined with it."""
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
