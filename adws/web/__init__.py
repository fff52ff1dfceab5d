"""The web server: HTTP API, dashboard, live updates, metrics."""
