"""The steps from one schema to the next; only ever added to."""
