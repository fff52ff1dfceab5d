"""git: repositories, worktrees, and what may change in them."""
