"""The run queue: enqueue, claim, renew, finish; workers and how they hear of runs."""
