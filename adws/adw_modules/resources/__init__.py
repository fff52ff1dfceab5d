"""What a workflow holds on this machine: git worktrees, ports, and its share of the limits."""
