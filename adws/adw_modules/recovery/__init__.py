"""Recovery of runs whose worker is dead, and why a workflow does not move."""
