"""Ways to run a phase: each module has one runner, and imports only what that one needs."""
