"""Workers: claim a run, execute it, answer orders."""
