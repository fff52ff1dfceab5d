"""
A process that makes a worktree, for the tests that let many compete.

Run as `python worktree_adder.py MAIN ADW_ID [commit]`: it waits for a line, then adds, and commits when it is told to.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.integration.git_lab import hands_on

if __name__ == "__main__":
    lab = hands_on(Path(sys.argv[1]))
    adw_id = sys.argv[2]
    branch = f"feature-issue-1-adw-{adw_id}-work"
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    made = lab.add(adw_id, branch)
    commit = made.head
    if "commit" in sys.argv:
        (made.path / f"{adw_id}.txt").write_text(adw_id)
        commit = lab.workplace.commit_all(made.path, "chore: work")
    sys.stdout.write(f"{commit}\n")
    sys.stdout.flush()
