"""The door for browsers and scripts: HTTP API, dashboard, metrics."""
