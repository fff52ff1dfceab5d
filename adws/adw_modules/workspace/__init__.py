"""Where a workflow works: worktree, ports, changes, moving between machines."""
