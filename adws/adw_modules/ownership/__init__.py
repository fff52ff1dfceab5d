"""Who may work on a workflow: leases, locks, fences."""
