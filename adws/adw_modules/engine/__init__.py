"""Running a workflow: one attempt per call, by a runner, through its gates."""
